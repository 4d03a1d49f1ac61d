//! The line editor of a chat: edits a line, offers earlier lines, and joins lines that end with a backslash.

use std::cell::{Cell, RefCell};

use ollm_protocol::SessionId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustyline::completion::Completer;
use rustyline::config::Configurer as _;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{ColorMode, CompletionType, Config, Context, Editor, Helper};

use super::history::LineHistory;
use super::slash::SlashCommand;
use crate::command_error::{CommandError, CommandResult};
use crate::render::Style;

/// Lines kept for the arrow keys.
const MAX_HISTORY_LINES: usize = 1000;
const PROMPT: &str = "> ";

/// The outcome of waiting for a line.
pub(super) enum EditorEvent {
    /// A line, or several joined lines.
    Line(String),
    /// Ctrl-C.
    Interrupted { line_was_empty: bool },
    /// Ctrl-D, or a closed terminal.
    EndOfInput,
}

/// Reads lines from the terminal.
pub(super) struct LineEditor {
    editor: Editor<EditorHelper, MemHistory>,
    history: Option<LineHistory>,
}

impl LineEditor {
    /// Returns an editor that offers the lines of a history, if one is given, those of `session` first.
    pub(super) fn new(
        history: Option<LineHistory>,
        session: Option<SessionId>,
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
        editor.set_helper(Some(EditorHelper::default()));
        editor.set_auto_add_history(false);
        for line in history.iter().flat_map(|history| history.load(session, MAX_HISTORY_LINES)) {
            editor.add_history_entry(line).map_err(input_error)?;
        }
        Ok(Self { editor, history })
    }

    /// Waits for a line. It begins with `text`, which stays for a later line if others are typed already: those would be
    /// joined to it.
    pub(super) fn read(&mut self, text: &mut Option<String>) -> CommandResult<EditorEvent> {
        let text = if is_typed_ahead() { None } else { text.take() }.unwrap_or_default();
        if let Some(helper) = self.editor.helper() {
            helper.start_line(text.is_empty());
        }
        let prompt = (PROMPT, Style::User.paint(PROMPT));
        match self.editor.readline_with_initial(&prompt, (&text, "")) {
            Ok(line) => {
                let helper = self.editor.helper();
                let continued = helper.map(|helper| helper.continued.borrow().clone());
                let text = without_continuations(line, &continued.unwrap_or_default());
                self.add_to_history(&text);
                Ok(EditorEvent::Line(text))
            }
            Err(ReadlineError::Interrupted) => {
                let helper = self.editor.helper();
                let line_was_empty = helper.is_none_or(|helper| helper.is_empty.get());
                Ok(EditorEvent::Interrupted { line_was_empty })
            }
            Err(ReadlineError::Eof) => Ok(EditorEvent::EndOfInput),
            Err(error) => Err(input_error(error)),
        }
    }

    fn add_to_history(&mut self, text: &str) {
        let added = !text.trim().is_empty() && self.editor.add_history_entry(text).unwrap_or(false);
        if let Some(history) = self.history.as_mut().filter(|_| added) {
            history.add(text.to_owned());
        }
    }

    /// Keeps the lines that were typed, with a session that the chat has just used.
    pub(super) fn keep_lines(&mut self, session: Option<SessionId>) {
        if let Some(history) = &mut self.history {
            history.keep(session);
        }
    }
}

/// Returns whether a line waits to be read.
fn is_typed_ahead() -> bool {
    let stdin = std::io::stdin();
    let mut waits = [PollFd::new(&stdin, PollFlags::IN)];
    poll(&mut waits, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

fn input_error(error: ReadlineError) -> CommandError {
    CommandError::Input(match error {
        ReadlineError::Io(error) => error,
        other => std::io::Error::other(other),
    })
}

/// The state of the line while it is typed.
#[derive(Default)]
struct EditorHelper {
    is_empty: Cell<bool>,
    /// The text before each backslash with which a line was continued.
    continued: RefCell<Vec<String>>,
}

impl EditorHelper {
    fn start_line(&self, is_empty: bool) {
        self.is_empty.set(is_empty);
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

impl Helper for EditorHelper {}
impl Highlighter for EditorHelper {}

impl Hinter for EditorHelper {
    type Hint = String;

    /// Returns no hint; the editor calls this after each change of the line.
    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.is_empty.set(line.is_empty());
        None
    }
}

impl Validator for EditorHelper {
    fn validate(&self, typed: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let input = typed.input();
        let backslashes = input.chars().rev().take_while(|char| *char == '\\').count();
        if backslashes % 2 == 0 {
            return Ok(ValidationResult::Valid(None));
        }
        self.continued.borrow_mut().push(input[..input.len() - 1].to_owned());
        Ok(ValidationResult::Incomplete)
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
