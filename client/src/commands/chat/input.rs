//! The line editor of a chat: edits a message of one or more lines, offers earlier ones, and distinguishes pasted lines
//! from typed ones.
//!
//! **Invariant**: lines that arrive at once are one message, because nobody types so fast; lines that were typed while
//! nothing waited for them are a message each.

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Write as _, stdin, stdout};
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::SessionId;
use ollm_protocol::code_fence::CodeFence;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::termios::tcdrain;
use rustyline::completion::Completer;
use rustyline::config::Configurer as _;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, ColorMode, CompletionType, ConditionalEventHandler, Config, Context, Editor, Event,
    EventContext, EventHandler, Helper, KeyCode, KeyEvent, Modifiers, RepeatCount,
};

use super::files::FileNames;
use super::history::LineHistory;
use super::slash::SlashCommand;
use crate::command_error::{CommandError, CommandResult};
use crate::render::Style;

/// Lines kept for the arrow keys.
const MAX_HISTORY_LINES: usize = 1000;
const PROMPT: &str = "> ";
/// The longest pause between two parts of pasted lines.
const PASTE_PAUSE: Duration = Duration::from_millis(50);
/// Goes up to the line that an attempt to read has ended, and clears it.
const CLEAR_ATTEMPT: &str = "\u{1b}[A\r\u{1b}[J";

/// The outcome of waiting for a line.
pub(super) enum EditorEvent {
    /// A line, or several joined lines.
    Line(String),
    /// Ctrl-X Ctrl-E: the text continues in another editor.
    Edit(String),
    /// Ctrl-Z: this process stops, and the text continues then.
    Stop(String),
    /// Ctrl-C.
    Interrupted { line_was_empty: bool },
    /// Ctrl-D, or a closed terminal.
    EndOfInput,
}

/// The outcome of reading what has arrived already.
enum Arrived {
    Event(EditorEvent),
    /// Nothing more has arrived but this beginning of a line.
    Rest(String),
}

/// Reads lines from the terminal.
pub(super) struct LineEditor {
    editor: Editor<EditorHelper, MemHistory>,
    history: Option<LineHistory>,
    ended_by: EndedBy,
    /// Lines may have arrived that nobody has read; the editor has them in a buffer of its own.
    may_be_ahead: bool,
    /// An event that ended pasted lines.
    next_event: Option<EditorEvent>,
}

impl LineEditor {
    /// Returns an editor that offers the lines of a history, if one is given, those of `session` first.
    pub(super) fn new(
        history: Option<LineHistory>,
        session: Option<SessionId>,
        files: FileNames,
        has_color: bool,
    ) -> CommandResult<Self> {
        let config = Config::builder()
            .max_history_size(MAX_HISTORY_LINES)
            .map(|config| {
                config
                    .history_ignore_space(true)
                    .completion_type(CompletionType::List)
                    .bracketed_paste(true)
                    .color_mode(if has_color { ColorMode::Enabled } else { ColorMode::Disabled })
                    .build()
            })
            .map_err(input_error)?;
        let earlier = MemHistory::with_config(&config);
        let mut editor = Editor::with_history(config, earlier).map_err(input_error)?;
        let ended_by = EndedBy::default();
        editor.set_helper(Some(EditorHelper::new(Arc::clone(&ended_by), files)));
        let alt_enter = KeyEvent(KeyCode::Enter, Modifiers::ALT);
        editor.bind_sequence(alt_enter, EventHandler::Simple(Cmd::Newline));
        let end_key = |key| {
            let ended_by = Arc::clone(&ended_by);
            EventHandler::Conditional(Box::new(EndKeyHandler { key, ended_by }))
        };
        editor.bind_sequence(
            Event::KeySeq(vec![KeyEvent::ctrl('X'), KeyEvent::ctrl('E')]),
            end_key(EndKey::Edit),
        );
        editor.bind_sequence(KeyEvent::ctrl('Z'), end_key(EndKey::Stop));
        editor.set_auto_add_history(false);
        for line in history.iter().flat_map(|history| history.load(session, MAX_HISTORY_LINES)) {
            editor.add_history_entry(line).map_err(input_error)?;
        }
        Ok(Self { editor, history, ended_by, may_be_ahead: false, next_event: None })
    }

    /// Waits for a line. It begins with `text`, which stays for a later line if others are typed already: those would be
    /// joined to it.
    pub(super) fn read(&mut self, text: &mut Option<String>) -> CommandResult<EditorEvent> {
        if let Some(event) = self.next_event.take() {
            return Ok(event);
        }
        if has_arrived(Duration::ZERO) {
            // Reading it never waits long, and a paste that still arrives is read whole.
            self.may_be_ahead = true;
            let event = self.read_line(PROMPT, "")?;
            return self.with_history(event);
        }
        let mut begun = String::new();
        if std::mem::take(&mut self.may_be_ahead) {
            match self.read_buffered()? {
                Arrived::Event(event) => {
                    self.may_be_ahead = true;
                    return self.with_history(event);
                }
                Arrived::Rest(rest) => begun = rest,
            }
        }
        if begun.is_empty() {
            begun = text.take().unwrap_or_default();
        }
        loop {
            let event = self.read_line(PROMPT, &begun)?;
            let EditorEvent::Line(mut line) = event else { return Ok(event) };
            if line.trim_start().starts_with('/') {
                self.may_be_ahead = true;
                return self.with_history(EditorEvent::Line(line));
            }
            let rest = self.read_pasted(&mut line)?;
            if rest.is_empty() {
                return self.with_history(EditorEvent::Line(line));
            }
            // The end of a paste is not sent before Enter.
            begun = line + "\n" + &rest;
        }
    }

    /// Appends the lines that arrived together with a line; returns the beginning of a further one.
    fn read_pasted(&mut self, line: &mut String) -> CommandResult<String> {
        let mut pause = Duration::ZERO;
        loop {
            let arrived = if has_arrived(pause) {
                Arrived::Event(self.following_line(|editor| editor.read_line("", ""))?)
            } else {
                self.read_buffered()?
            };
            match arrived {
                Arrived::Rest(rest) => return Ok(rest),
                Arrived::Event(EditorEvent::Line(next)) => {
                    line.push('\n');
                    line.push_str(&next);
                    pause = PASTE_PAUSE;
                }
                Arrived::Event(event) => {
                    self.next_event = Some(event);
                    return Ok(String::new());
                }
            }
        }
    }

    /// Reads a line from the buffer of the editor, without waiting for more.
    fn read_buffered(&mut self) -> CommandResult<Arrived> {
        let mode = NonBlocking::new();
        let event = self.following_line(|editor| editor.read_line("", ""));
        drop(mode);
        match event {
            Err(CommandError::Input(error)) if error.kind() == ErrorKind::WouldBlock => {
                // If this fails, the next line reports it.
                let mut out = stdout();
                out.write_all(CLEAR_ATTEMPT.as_bytes()).and_then(|()| out.flush()).ok();
                let rest = self.editor.helper().map(|helper| helper.line.take());
                Ok(Arrived::Rest(rest.unwrap_or_default()))
            }
            event => event.map(Arrived::Event),
        }
    }

    /// Calls a function while each Enter ends a line, and the beginning of a line is kept.
    fn following_line<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let keep = |editor: &Self, keeps| {
            editor.editor.helper().into_iter().for_each(|helper| helper.keeps_line.set(keeps));
        };
        keep(self, true);
        let line = read(self);
        keep(self, false);
        line
    }

    /// Reads a line that begins with `text`.
    fn read_line(&mut self, prompt: &str, text: &str) -> CommandResult<EditorEvent> {
        if let Some(helper) = self.editor.helper() {
            helper.start_line(text.is_empty());
        }
        let prompt = (prompt, Style::User.paint(prompt));
        match self.editor.readline_with_initial(&prompt, (text, "")) {
            Ok(line) => Ok(match self.ended_by.lock().take() {
                Some(EndKey::Edit) => EditorEvent::Edit(line),
                Some(EndKey::Stop) => EditorEvent::Stop(line),
                None => {
                    let helper = self.editor.helper();
                    let continued = helper.map(|helper| helper.continued.borrow().clone());
                    EditorEvent::Line(without_continuations(line, &continued.unwrap_or_default()))
                }
            }),
            Err(ReadlineError::Interrupted) => {
                let helper = self.editor.helper();
                let line_was_empty = helper.is_none_or(|helper| helper.is_empty.get());
                Ok(EditorEvent::Interrupted { line_was_empty })
            }
            Err(ReadlineError::Eof) => Ok(EditorEvent::EndOfInput),
            Err(error) => Err(input_error(error)),
        }
    }

    /// Adds a line to the history.
    fn with_history(&mut self, event: EditorEvent) -> CommandResult<EditorEvent> {
        if let EditorEvent::Line(text) = &event {
            let is_added = !text.trim().is_empty()
                && self.editor.add_history_entry(text.as_str()).unwrap_or(false);
            if let Some(history) = self.history.as_mut().filter(|_| is_added) {
                history.add(text.clone());
            }
        }
        Ok(event)
    }

    /// Keeps the lines that were typed, with a session that the chat has just used.
    pub(super) fn keep_lines(&mut self, session: Option<SessionId>) {
        if let Some(history) = &mut self.history {
            history.keep(session);
        }
    }
}

/// Returns whether something waits to be read, at the latest after a pause.
fn has_arrived(pause: Duration) -> bool {
    let stdin = stdin();
    let mut waits = [PollFd::new(&stdin, PollFlags::IN)];
    let pause = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
    poll(&mut waits, Some(&pause)).is_ok_and(|ready| ready > 0)
}

/// A mode of stdin in which reads fail that would wait, until the value is dropped.
struct NonBlocking {
    saved: Option<OFlags>,
}

impl NonBlocking {
    fn new() -> Self {
        // Writes to the same terminal would fail too, so there must be room for them.
        tcdrain(stdout()).ok();
        let saved = fcntl_getfl(stdin()).ok();
        let saved = saved.filter(|flags| fcntl_setfl(stdin(), *flags | OFlags::NONBLOCK).is_ok());
        Self { saved }
    }
}

impl Drop for NonBlocking {
    fn drop(&mut self) {
        if let Some(flags) = self.saved {
            fcntl_setfl(stdin(), flags).ok();
        }
    }
}

/// A key that ends the line, but does not send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndKey {
    /// Ctrl-X Ctrl-E.
    Edit,
    /// Ctrl-Z, because the editor would stop the process before the terminal is as it was.
    Stop,
}

/// The key that has ended the line, if it was not Enter.
type EndedBy = Arc<Mutex<Option<EndKey>>>;

struct EndKeyHandler {
    key: EndKey,
    ended_by: EndedBy,
}

impl ConditionalEventHandler for EndKeyHandler {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        *self.ended_by.lock() = Some(self.key);
        Some(Cmd::AcceptLine)
    }
}

fn input_error(error: ReadlineError) -> CommandError {
    CommandError::Input(match error {
        ReadlineError::Io(error) => error,
        ReadlineError::Errno(error) => error.into(),
        other => std::io::Error::other(other),
    })
}

/// The state of the line while it is typed.
struct EditorHelper {
    is_empty: Cell<bool>,
    /// Set while `line` follows the line, and each Enter ends one.
    keeps_line: Cell<bool>,
    line: RefCell<String>,
    /// The text before each backslash with which a line was continued.
    continued: RefCell<Vec<String>>,
    ended_by: EndedBy,
    files: FileNames,
}

impl EditorHelper {
    fn new(ended_by: EndedBy, files: FileNames) -> Self {
        Self {
            is_empty: Cell::new(true),
            keeps_line: Cell::new(false),
            line: RefCell::default(),
            continued: RefCell::default(),
            ended_by,
            files,
        }
    }

    fn start_line(&self, is_empty: bool) {
        self.is_empty.set(is_empty);
        self.line.borrow_mut().clear();
        self.continued.borrow_mut().clear();
    }
}

/// Removes the backslashes that continued a line; backslashes in a pasted text stay.
fn without_continuations(mut line: String, continued: &[String]) -> String {
    for before in continued.iter().rev() {
        if line.starts_with(&format!("{before}\\\n")) {
            line.remove(before.len());
        }
    }
    line
}

/// Returns whether a text ends within a fenced block. Two empty lines end it too, for a pasted text with a fence too many.
fn has_open_fence(text: &str) -> bool {
    let mut fence: Option<CodeFence> = None;
    for line in text.lines().map(str::trim) {
        match fence {
            Some(open) if open.is_closed_by(line) => fence = None,
            Some(_) => {}
            None => fence = CodeFence::opened_by(line),
        }
    }
    fence.is_some() && !text.ends_with("\n\n")
}

impl Helper for EditorHelper {}
impl Highlighter for EditorHelper {}

impl Hinter for EditorHelper {
    type Hint = String;

    /// Returns no hint; the editor calls this after each change of the line.
    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        if self.keeps_line.get() {
            line.clone_into(&mut self.line.borrow_mut());
        }
        None
    }
}

impl Validator for EditorHelper {
    fn validate(&self, typed: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let input = typed.input();
        if self.keeps_line.get() || self.ended_by.lock().is_some() {
            return Ok(ValidationResult::Valid(None));
        }
        let backslashes = input.chars().rev().take_while(|char| *char == '\\').count();
        if backslashes % 2 == 1 {
            self.continued.borrow_mut().push(input[..input.len() - 1].to_owned());
            return Ok(ValidationResult::Incomplete);
        }
        if has_open_fence(input) {
            return Ok(ValidationResult::Incomplete);
        }
        Ok(ValidationResult::Valid(None))
    }
}

impl Completer for EditorHelper {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..at];
        let word_at = typed.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        if let Some(name) = typed[word_at..].strip_prefix('@') {
            return Ok((word_at, self.files.complete(name)));
        }
        let names = SlashCommand::all().map(|command| command.name());
        let matches = |name: &&str| typed.starts_with('/') && name.starts_with(typed);
        let mut found: Vec<String> = names.filter(matches).map(str::to_owned).collect();
        found.dedup();
        Ok((0, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_fence_continues_the_message() {
        let check = |text: &str, expect| assert_eq!(has_open_fence(text), expect, "{text:?}");
        check("```rust", true);
        check("```\ncode", true);
        check("```\ncode\n```", false);
        check("````\n```\n", true);
        check("```\ncode\n\n", false);
        check("a `code` ```", false);
    }

    #[test]
    fn only_continuation_backslashes_are_removed() {
        let check = |line: &str, continued: &[&str], expect: &str| {
            let continued: Vec<String> = continued.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(without_continuations(line.to_owned(), &continued), expect);
        };
        check("one\\\ntwo", &["one"], "one\ntwo");
        check("a\\\nb\\\nc", &["a", "a\\\nb"], "a\nb\nc");
        check("make \\\n  all", &[], "make \\\n  all");
        check("changed\\\ntwo", &["one"], "changed\\\ntwo");
    }
}
