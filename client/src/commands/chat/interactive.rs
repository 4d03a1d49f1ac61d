//! A chat on a terminal, line by line, until somebody leaves.

use ollm_protocol::SessionId;
use ollm_protocol::content::RecordKind;
use ollm_protocol::method::{ContextInspect, ContextStatus, ModelList};
use ollm_protocol::methods::chat::Think;
use ollm_protocol::methods::context::{ContextInspectParams, ContextStatusParams};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::sanitize;

use super::super::{CommandError, Cx, compaction, sessions};
use super::aims;
use super::input::{Input, Line};
use super::screen::Screen;
use super::slash::{COMMANDS, Typed};
use super::talk::{self, Talk};
use super::turns::{Outcome, Turns};
use super::{Manner, ask, next};
use crate::cli::{ChatArgs, ExportArgs, ListArgs, SessionArg, SessionsCommand, think_word};
use crate::error::ClientError;
use crate::render::style::Style;
use crate::render::transcript::{self, Transcript};
use crate::render::{context, table, window};

/// Messages that are shown of a session that is gone on with: enough to remember what it was about.
const REMINDED: u32 = 4;
/// Sessions that are listed.
const LISTED: u32 = 10;
/// Records that are read for one message that is shown: calls and counts lie between them.
const RECORDS_A_MESSAGE: u32 = 4;
/// The most records of a page.
const MAX_PAGE: u32 = 1000;

/// What a command says of a session in which nothing was said.
const NOTHING_SAID: &str = "nothing was said yet";

/// The file in the home that keeps what was typed.
const HISTORY: &str = "chat-history";

/// A chat in the making.
struct Chat<'a, 'cx> {
    talk: Talk,
    turns: Turns,
    manner: Manner,
    cx: &'a mut Cx<'cx>,
}

/// Whether it goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Line,
    Leave,
}

pub(super) fn run(
    args: &ChatArgs,
    talk: Talk,
    turns: Turns,
    cx: &mut Cx<'_>,
) -> Result<(), CommandError> {
    let home = cx.connector().address().home().to_owned();
    let history = (!args.no_history).then(|| home.join(HISTORY));
    let mut input = Input::new(history.as_deref(), cx.terminal.has_color())?;
    let manner = Manner { think: args.thinking() };
    let mut chat = Chat { talk, turns, manner, cx };
    chat.greet()?;
    let mut asked_to_leave = false;
    loop {
        chat.cx.terminal.flush().map_err(CommandError::Output)?;
        let line = match input.read()? {
            Line::Text(line) => line,
            Line::End => return Ok(()),
            Line::Interrupted { was_empty: true } if asked_to_leave => return Ok(()),
            Line::Interrupted { was_empty } => {
                asked_to_leave = was_empty;
                if was_empty {
                    chat.say("Ctrl-C once more leaves, and so does Ctrl-D");
                }
                continue;
            }
        };
        asked_to_leave = false;
        match chat.obey(Typed::read(&line)) {
            Ok(Next::Line) => {}
            Ok(Next::Leave) => return Ok(()),
            Err(error @ (CommandError::Output(_) | CommandError::Canceled { .. })) => {
                return Err(error);
            }
            Err(error) => chat.tell(&error),
        }
    }
}

impl Chat<'_, '_> {
    /// Says something faint that is no answer.
    fn say(&mut self, text: &str) {
        self.note(&Style::Faint.paint(text));
    }

    /// Tells something after everything that was printed.
    fn note(&mut self, text: &str) {
        // Where it cannot be printed, the next line says so.
        self.cx.terminal.flush().ok();
        self.cx.terminal.note(text);
    }

    /// Tells what went wrong; the chat goes on.
    fn tell(&mut self, error: &CommandError) {
        let text = match next::hint(error) {
            Some(hint) => error.to_text_with(Some(hint)),
            None => error.to_text(),
        };
        self.note(&text);
        if let CommandError::Client(error) = error
            && !matches!(error, ClientError::Rpc(_))
        {
            self.cx.disconnect();
        }
    }

    fn greet(&mut self) -> Result<(), CommandError> {
        let model = self.talk.model().map(sanitize::one_line);
        match self.talk.session().map(|session| session.session_id) {
            Some(id) => {
                let view = self.cx.view();
                let head = self.talk.session().map(|session| transcript::head(session, &view));
                self.cx.print_text(&head.unwrap_or_default())?;
                let text = self.last_messages(id, REMINDED)?;
                self.cx.print_text(&format!("{text}\n"))?;
                self.say("/help lists what can be typed here");
            }
            None => {
                let with = model.map_or_else(String::new, |model| format!(" with {model}"));
                self.say(&format!("a new session{with}; /help lists what can be typed here"));
            }
        }
        Ok(())
    }

    fn obey(&mut self, typed: Typed) -> Result<Next, CommandError> {
        match typed {
            Typed::Nothing => {}
            Typed::Message(text) => return self.ask(Some(&text)),
            Typed::Retry => match self.talk.session() {
                Some(_) => return self.ask(None),
                None => self.say(NOTHING_SAID),
            },
            Typed::Help => self.help()?,
            Typed::Model(None) => self.models()?,
            Typed::Model(Some(name)) => {
                self.talk.set_model(name, self.cx)?;
                let model = self.talk.model().map(sanitize::one_line).unwrap_or_default();
                self.say(&format!("{model} answers from now on"));
            }
            Typed::Think(how) => self.think(how),
            Typed::Sessions => {
                let args = ListArgs { project: None, all: false, status: None, limit: LISTED };
                sessions::run(SessionsCommand::List(args), self.cx)?;
            }
            Typed::History(number) => match self.session_id() {
                Some(id) => {
                    let text = self.last_messages(id, number)?;
                    self.cx.print_text(&text)?;
                }
                None => self.say(NOTHING_SAID),
            },
            Typed::Context => self.context()?,
            Typed::DebugContext => self.debug_context()?,
            Typed::Goal(text) => {
                let told = aims::goal(&mut self.talk, text, self.cx)?;
                self.cx.print_text(&told)?;
            }
            Typed::Pin(seq) => self.pin(seq, true)?,
            Typed::Unpin(seq) => self.pin(seq, false)?,
            Typed::Compact { apply } => match self.session_id() {
                Some(id) => self.compact(id, apply)?,
                None => self.say(NOTHING_SAID),
            },
            Typed::Info => self.info()?,
            Typed::Export(output) => match self.session_id() {
                Some(id) => {
                    let args = ExportArgs { id: id.to_string(), format: None, output };
                    sessions::run(SessionsCommand::Export(args), self.cx)?;
                }
                None => self.say(NOTHING_SAID),
            },
            Typed::Archive => self.archive()?,
            Typed::New => self.begin_again(),
            Typed::Exit => return Ok(Next::Leave),
            Typed::Unknown { said, near } => {
                let near = near.unwrap_or_else(|| "/help".to_owned());
                let said = sanitize::one_line(&said);
                return Err(CommandError::usage(
                    format!("{said} is no command; // begins a message with a slash"),
                    &near,
                ));
            }
        }
        Ok(Next::Line)
    }

    fn session_id(&self) -> Option<SessionId> {
        self.talk.session().map(|session| session.session_id)
    }

    fn ask(&mut self, message: Option<&str>) -> Result<Next, CommandError> {
        let mut screen = Screen::default();
        let Self { talk, turns, manner, cx } = self;
        let outcome = ask(talk, message, *manner, (turns, &mut screen), cx);
        if let Some(cost) = screen.cost() {
            self.note(&format!("{cost}\n"));
        }
        match outcome {
            Ok(Outcome::Done) => Ok(Next::Line),
            Ok(Outcome::Canceled) => {
                self.say("canceled; what was answered is kept, /retry asks anew");
                Ok(Next::Line)
            }
            Ok(Outcome::Left) => {
                Err(CommandError::Canceled { hint: Some("ollmctl chat --continue".to_owned()) })
            }
            Err(error) => {
                self.tell(&error);
                if self.talk.session().is_some()
                    && let Some(kept) = next::kept(&error, message.is_some())
                {
                    self.say(kept);
                }
                Ok(Next::Line)
            }
        }
    }

    /// Says whether the model thinks, or has it do so from now on.
    fn think(&mut self, how: Option<Think>) {
        self.manner.think = how.or(self.manner.think);
        let word = self.manner.think.map(think_word);
        let known = word.map_or("the model thinks as it does by itself".to_owned(), |word| {
            format!("thinking is {word}")
        });
        self.say(&format!("{known}{}", if how.is_some() { " from now on" } else { "" }));
    }

    fn help(&mut self) -> Result<(), CommandError> {
        let rows: Vec<(&str, String)> =
            COMMANDS.iter().map(|(usage, what)| (*usage, (*what).to_owned())).collect();
        let keys = "\nA line that ends with \\ goes on; // begins a message with a slash; \
                    Ctrl-C ends an answer.\n";
        self.cx.print_text(&(table::fields(&rows) + keys))
    }

    /// The models of the server, the one that answers marked.
    fn models(&mut self) -> Result<(), CommandError> {
        let own = self.talk.model().map(str::to_owned);
        match &own {
            Some(model) => self.say(&format!("{} answers", sanitize::one_line(model))),
            None => self.say("the configured model answers, or the only one there is"),
        }
        let list = self.cx.call::<ModelList>(&NoParams {})?.value;
        let mut text = String::new();
        for model in &list.data {
            let mark = if own.as_ref() == Some(&model.model) { '*' } else { ' ' };
            text.push_str(&format!("{mark} {}\n", sanitize::one_line(&model.model)));
        }
        self.cx.print_text(&text)
    }

    fn info(&mut self) -> Result<(), CommandError> {
        let Some(id) = self.session_id() else {
            self.say(NOTHING_SAID);
            return Ok(());
        };
        let session = talk::page(id, 1, self.cx)?.session;
        let text = transcript::head(&session, &self.cx.view());
        self.cx.print_text(&text)
    }

    fn last_messages(&mut self, id: SessionId, number: u32) -> Result<String, CommandError> {
        let limit = number.saturating_mul(RECORDS_A_MESSAGE).min(MAX_PAGE);
        let page = talk::page(id, limit, self.cx)?;
        let is_said = |kind| matches!(kind, RecordKind::Message | RecordKind::ToolCall);
        let mut said: Vec<_> = page
            .records
            .into_iter()
            .filter(|record| record.active && is_said(record.kind))
            .collect();
        let skipped = said.len().saturating_sub(number as usize);
        said.drain(..skipped);
        let view = self.cx.view();
        let mut transcript = Transcript::new(&chrono::Local, &view);
        Ok(said.into_iter().map(|record| transcript.record(record)).collect())
    }

    /// How full the window is.
    fn context(&mut self) -> Result<(), CommandError> {
        let Some(session_id) = self.session_id() else {
            self.say(NOTHING_SAID);
            return Ok(());
        };
        let params = ContextStatusParams { session_id, context_size: None };
        let status = self.cx.call::<ContextStatus>(&params)?.value;
        let text = window::status(&status, &self.cx.view());
        self.cx.print_text(&text)
    }

    /// Everything that the model is sent, and everything that it is not.
    fn debug_context(&mut self) -> Result<(), CommandError> {
        let Some(session_id) = self.session_id() else {
            self.say(NOTHING_SAID);
            return Ok(());
        };
        let params = ContextInspectParams { session_id, build_id: None, model: None, tools: None };
        let found = self.cx.call::<ContextInspect>(&params)?.value;
        let messages = context::messages(&found.build.messages);
        let text = messages + "\n" + &window::items(&found, &self.cx.view());
        self.cx.print_text(&text)
    }

    /// Makes the context smaller, unless Ctrl-C ends it.
    fn compact(&mut self, id: SessionId, apply: bool) -> Result<(), CommandError> {
        let Self { turns, cx, .. } = self;
        let done = turns.unless_interrupted(cx, |cx, is_wanted| {
            compaction::in_chat(id, apply, is_wanted, cx)
        })?;
        if !done {
            self.say("canceled; the context is as it was");
        }
        Ok(())
    }

    fn pin(&mut self, seq: Option<u64>, pinned: bool) -> Result<(), CommandError> {
        match aims::pin(&self.talk, seq, pinned, self.cx)? {
            Some(told) => self.cx.print_text(&told),
            None => {
                self.say(NOTHING_SAID);
                Ok(())
            }
        }
    }

    fn archive(&mut self) -> Result<(), CommandError> {
        let Some(id) = self.session_id() else {
            self.say(NOTHING_SAID);
            return Ok(());
        };
        let args = SessionArg { id: id.to_string() };
        sessions::run(SessionsCommand::Archive(args), self.cx)?;
        self.begin_again();
        Ok(())
    }

    fn begin_again(&mut self) {
        self.talk = self.talk.renewed();
        self.say("the next message begins a new session");
    }
}
