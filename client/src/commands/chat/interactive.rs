//! A chat on a terminal: reads lines and runs them as messages or commands until the user leaves.

use ollm_protocol::content::{Record, RecordKind};
use ollm_protocol::method::ModelList;
use ollm_protocol::methods::chat::Think;
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::session::MessageInput;
use ollm_protocol::{ErrorKind, SessionId, sanitize};

use super::editor;
use super::files::{self, FileNames};
use super::help;
use super::history::LineHistory;
use super::input::{EditorEvent, LineEditor};
use super::model_name::require_model;
use super::options::named_option;
use super::screen::Screen;
use super::session::{self, ChatSession, last_on_branch, numbered, think_word};
use super::slash::{ChatInput, OwnCommand, ParsedCommand, SlashCommand};
use super::turn::{TurnEnd, TurnRunner, canceled};
use crate::args::CommandGroup;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult, parse_error_message};
use crate::commands::models::chat_models;
use crate::commands::sessions::SessionsCommand;
use crate::commands::sessions::branches::fork;
use crate::commands::shared::SharedCommand;
use crate::commands::snapshot::{self, SnapshotCommand};
use crate::error::ClientError;
use crate::render::Style;
use crate::render::session_table::heading;
use crate::render::terminal::Terminal;
use crate::render::transcript::Transcript;
use crate::render::wrap::wrap;

/// The command in the hint of an option that cannot be read.
const OPTION_EXAMPLE: &str = "/set temperature=0.2";
/// Messages shown of a session that is continued: enough to remember its subject.
const SHOWN_MESSAGES: u32 = 4;

struct InteractiveChat<'a, 'ctx> {
    session: ChatSession,
    turns: TurnRunner,
    ctx: &'a mut CommandContext<'ctx>,
    /// A message that was typed and is not recorded: the next line begins with it.
    given_back: Option<String>,
    /// Set by `/exit`.
    is_left: bool,
    /// Set if no line is painted again.
    is_plain: bool,
}

pub(super) fn run(
    session: ChatSession,
    turns: TurnRunner,
    keeps_history: bool,
    is_plain: bool,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    let history = keeps_history.then(|| LineHistory::new(ctx.connector().address().home()));
    let mut chat =
        InteractiveChat { session, turns, ctx, given_back: None, is_left: false, is_plain };
    let has_color = chat.ctx.terminal.has_color();
    let files = FileNames::new(chat.ctx.connector());
    let mut editor = LineEditor::new(history, chat.session_id(), files, has_color)?;
    let has_model = chat.session.require_model(chat.ctx);
    chat.reported(has_model)?;
    chat.greet()?;
    let joined = chat.join();
    chat.reported(joined)?;
    editor.keep_lines(chat.session_id());
    let mut interrupted_before = false;
    loop {
        chat.ctx.terminal.flush()?;
        let line = match editor.read(&mut chat.given_back)? {
            EditorEvent::Line(line) => line,
            EditorEvent::Edit(text) => {
                let edited = chat.edit(&text);
                chat.reported(edited)?;
                continue;
            }
            EditorEvent::Stop(text) => {
                chat.turns.stop_key().stop_job();
                if !text.is_empty() {
                    chat.given_back = Some(text);
                }
                continue;
            }
            EditorEvent::EndOfInput => return Ok(()),
            EditorEvent::Interrupted { line_was_empty: true } if interrupted_before => {
                return Ok(());
            }
            EditorEvent::Interrupted { line_was_empty } => {
                interrupted_before = line_was_empty;
                if line_was_empty {
                    chat.remark("Ctrl-C again leaves, and so does Ctrl-D");
                }
                continue;
            }
        };
        interrupted_before = false;
        editor.keep_lines(chat.session_id());
        let result = chat.run_input(ChatInput::parse(&line));
        editor.keep_lines(chat.session_id());
        chat.reported(result)?;
        if chat.is_left {
            return Ok(());
        }
    }
}

impl InteractiveChat<'_, '_> {
    fn session_id(&self) -> Option<SessionId> {
        self.session.session().map(|session| session.session_id)
    }

    /// Reports an error that does not end the chat.
    ///
    /// **Errors**: the error, if it ends the chat.
    fn reported(&mut self, result: CommandResult) -> CommandResult {
        match result {
            Err(error @ (CommandError::Output(_) | CommandError::Canceled { .. })) => Err(error),
            Err(error) => {
                let error = self.ctx.with_model_server(error);
                self.report(&error);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Lets the user edit a text in their own editor; the next line begins with it.
    fn edit(&mut self, text: &str) -> CommandResult {
        self.given_back = (!text.is_empty()).then(|| text.to_owned());
        let edited = editor::edit(text, self.ctx)?;
        self.given_back = (!edited.trim().is_empty()).then_some(edited);
        Ok(())
    }

    fn greet(&mut self) -> CommandResult {
        match self.session.session() {
            Some(session) => {
                let id = session.session_id;
                let heading = heading(session, &self.ctx.render_options());
                self.ctx.print_text(&heading)?;
                let messages = self.last_messages(id, SHOWN_MESSAGES)?;
                self.ctx.print_text(&format!("{messages}\n"))?;
                self.remark("/help lists the commands");
            }
            None => {
                let model = self.session.model().map(sanitize::one_line);
                let with = model.map_or_else(String::new, |model| format!(" with {model}"));
                self.remark(&format!("a new session{with}; /help lists the commands"));
            }
        }
        Ok(())
    }

    /// Shows the answer that the session is giving to another client, if there is one.
    fn join(&mut self) -> CommandResult {
        let Some(id) = self.session_id() else { return Ok(()) };
        let mut screen = Screen::new(self.is_plain, self.ctx.terminal);
        let text = "another client is being answered; Ctrl-C leaves that answer, which goes on";
        let on_joined = |terminal: &Terminal| {
            let line = wrap(&Style::Faint.paint(text), terminal.err_columns(), 0);
            terminal.eprintln(&line);
        };
        let end = self.turns.join(id, &on_joined, &mut screen, self.ctx);
        if let Some(usage) = screen.usage_line() {
            self.note(&format!("{usage}\n"));
        }
        let is_canceled = |error: &CommandError| {
            let failure = error.rpc_failure();
            failure.is_some_and(|failure| failure.kind == Some(ErrorKind::Canceled))
        };
        match end {
            Ok(Some(TurnEnd::Abandoned)) => {
                self.remark("that answer goes on; /history shows it when it has ended");
            }
            Ok(_) => {}
            Err(error) if is_canceled(&error) => self.remark("that answer was canceled"),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn run_input(&mut self, input: ChatInput) -> CommandResult {
        match input {
            ChatInput::Empty => Ok(()),
            ChatInput::Message(text) => self.ask(Some(&text)),
            ChatInput::Command(command, words) => self.run_command(command, words),
            ChatInput::Unknown { text, continued, .. } if !continued.is_empty() => {
                Err(CommandError::usage(
                    format!("{} is the beginning of several commands", sanitize::one_line(&text)),
                    &continued.join(" or "),
                ))
            }
            ChatInput::Unknown { text, suggestion, .. } => {
                let text = sanitize::one_line(&text);
                Err(CommandError::usage(
                    format!("{text} is not a command; // begins a message with a slash"),
                    suggestion.unwrap_or("/help"),
                ))
            }
        }
    }

    /// Runs a command of `ollmctl` for the session of this chat, or one that only a chat has.
    fn run_command(&mut self, command: SlashCommand, words: Vec<String>) -> CommandResult {
        let session = match self.session_id() {
            _ if !command.needs_session(&words) => None,
            None if command.starts_session() => Some(self.session.id(self.ctx)?),
            None => return self.no_messages(),
            id => id,
        };
        match command.parse(words, session) {
            Ok(ParsedCommand::Own(own)) => self.run_own(own),
            Ok(ParsedCommand::Shared(line)) => {
                self.run_line(line)?;
                if session.is_some() && command.starts_session() {
                    self.session.message_accepted(self.ctx);
                }
                Ok(())
            }
            Err(error) if !error.use_stderr() => self.ctx.print_text(&error.to_string()),
            Err(error) => {
                let problem = format!("{}: {}", command.name(), parse_error_message(&error));
                Err(CommandError::usage(problem, command.usage))
            }
        }
    }

    /// Runs a command of `ollmctl`; the chat follows one that makes or archives a session.
    fn run_line(&mut self, command: SharedCommand) -> CommandResult {
        match command {
            SharedCommand::Sessions(CommandGroup(SessionsCommand::Fork(args))) => {
                self.session = self.session.continued_in(fork(args, self.ctx)?);
            }
            SharedCommand::Snapshot(CommandGroup(SnapshotCommand::Restore(args))) => {
                if let Some(session) = snapshot::restore(&args, self.ctx)? {
                    self.session = self.session.continued_in(session);
                }
            }
            command @ SharedCommand::Sessions(CommandGroup(SessionsCommand::Archive(_))) => {
                command.run(self.ctx)?;
                self.start_draft();
            }
            command => command.run(self.ctx)?,
        }
        Ok(())
    }

    fn run_own(&mut self, command: OwnCommand) -> CommandResult {
        match (command, self.session_id()) {
            (OwnCommand::Help { words }, _) => self.help(&words)?,
            (OwnCommand::Edit { text }, _) => self.edit(text.as_deref().unwrap_or_default())?,
            (OwnCommand::Set { keep, options }, _) => self.set_options(keep, &options)?,
            (OwnCommand::System { text }, _) => self.set_system(text)?,
            (OwnCommand::Model { name: None }, _) => self.list_models()?,
            (OwnCommand::Model { name: Some(name) }, _) => {
                let name = self.model_named(name)?;
                require_model(&name, self.ctx)?;
                self.session.set_model(name, self.ctx)?;
                let model = self.session.model().map(sanitize::one_line).unwrap_or_default();
                self.remark(&format!("the model is {model} from now on"));
            }
            (OwnCommand::Think { level }, _) => self.think(level),
            (OwnCommand::New, _) => self.start_draft(),
            (OwnCommand::Exit, _) => self.is_left = true,
            (_, None) => self.no_messages()?,
            (OwnCommand::Retry, Some(_)) => self.ask(None)?,
            (OwnCommand::History { number }, Some(id)) => {
                let text = self.last_messages(id, number)?;
                self.ctx.print_text(&text)?;
            }
            (OwnCommand::Info, Some(id)) => {
                let session = session::read(id, self.ctx)?;
                let text = heading(&session, &self.ctx.render_options());
                self.ctx.print_text(&text)?;
            }
        }
        Ok(())
    }

    fn no_messages(&mut self) -> CommandResult {
        self.remark("there are no messages yet");
        Ok(())
    }

    /// Lets the model answer a message, or the last message again.
    fn ask(&mut self, message: Option<&str>) -> CommandResult {
        let prepared = message.map(|text| self.with_named_files(text)).transpose()?;
        let mut screen = Screen::new(self.is_plain, self.ctx.terminal);
        // A text that is pasted during the answer waits as one.
        screen.mark_pastes(true, self.ctx.terminal)?;
        let end = self.session.ask(prepared.as_ref(), &self.turns, &mut screen, self.ctx);
        screen.mark_pastes(false, self.ctx.terminal)?;
        if let Some(usage) = screen.usage_line() {
            self.note(&format!("{usage}\n"));
        }
        match end {
            Ok(TurnEnd::Answered) => {}
            Ok(TurnEnd::Canceled { has_answer: true }) => {
                self.remark("canceled; the answer so far is kept, /retry asks again");
            }
            Ok(TurnEnd::Canceled { has_answer: false }) => self.canceled_early(message, &screen),
            Ok(TurnEnd::Abandoned) => return Err(canceled("canceled")),
            Ok(TurnEnd::TakenBack) => self.given_back = message.map(str::to_owned),
            Err(error) => {
                let error = self.ctx.with_model_server(error);
                self.report(&error);
                match MessageFate::of(&error, message.is_some(), screen.is_accepted()) {
                    MessageFate::GivenBack => self.given_back = message.map(str::to_owned),
                    fate => {
                        if let Some(remark) = fate.remark(&error) {
                            self.remark(remark);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns a message with the files that it names, and shows their sizes. If one cannot be read, the text is given back.
    fn with_named_files(&mut self, text: &str) -> CommandResult<MessageInput> {
        let model = self.session.model().map(str::to_owned);
        match files::with_named_files(text, model.as_deref(), self.ctx) {
            Ok((message, notes)) => {
                notes.iter().for_each(|note| self.remark(note));
                Ok(message)
            }
            Err(error) => {
                self.given_back = Some(text.to_owned());
                Err(error)
            }
        }
    }

    /// Takes a question back whose answer had not begun, because the next one would follow it in the prompt as if both
    /// were one question.
    fn canceled_early(&mut self, message: Option<&str>, screen: &Screen) {
        let is_undone = screen.message().is_some_and(|seq| self.session.take_back(seq, self.ctx));
        if is_undone {
            self.given_back = message.map(str::to_owned);
            self.remark("canceled before the answer began; your message is undone, /redo keeps it");
        } else {
            self.remark("canceled before the answer began; /retry asks again");
        }
    }

    /// Shows or sets how the model thinks.
    fn think(&mut self, think: Option<Think>) {
        think.into_iter().for_each(|think| self.session.options.set_think(think));
        let since = if think.is_some() { " from now on" } else { "" };
        match self.session.options.think().map(think_word) {
            Some(word) => self.remark(&format!("thinking is {word}{since}")),
            None => self.remark(
                "this chat does not set how the model thinks; /set shows what the session keeps",
            ),
        }
    }

    /// Shows the options of answers, or sets some.
    fn set_options(&mut self, is_kept: bool, options: &[String]) -> CommandResult {
        let options: CommandResult<Vec<_>> =
            options.iter().map(|text| named_option(text, OPTION_EXAMPLE)).collect();
        let options = options?;
        let kept = if is_kept && !options.is_empty() {
            self.session.keep_options(options.into_iter().collect(), self.ctx)?
        } else {
            let kept = self.session.kept_options(self.ctx)?;
            for (name, value) in options {
                let is_kept = kept.contains_key(&name);
                self.session.options.set((name, value), is_kept);
            }
            kept
        };
        let list = self.session.options.list(&kept);
        let list = wrap(&list, self.ctx.terminal.out_columns(), 2);
        self.ctx.print_text(&list)
    }

    /// Sets the instructions to the model.
    fn set_system(&mut self, text: Option<String>) -> CommandResult {
        let Some(text) = text else {
            self.remark("/system TEXT sets the instructions to the model, and /system '' removes them; /debug context shows them");
            return Ok(());
        };
        let text = if text == "''" || text == "\"\"" { String::new() } else { text };
        let done = if text.is_empty() { "are removed" } else { "hold from now on" };
        self.session.set_system(text, self.ctx)?;
        self.remark(&format!("the instructions {done}"));
        Ok(())
    }

    /// Lists the commands on one screen, or explains those that begin with some words.
    fn help(&mut self, words: &[String]) -> CommandResult {
        let width = self.ctx.terminal.out_columns();
        if words.is_empty() {
            return self.ctx.print_text(&help::overview(width));
        }
        let topic = words.join(" ");
        let Some(text) = help::explanations(&topic, width) else {
            let problem = format!("there is no command {}", sanitize::one_line(&topic));
            return Err(CommandError::usage(problem, "/help"));
        };
        self.ctx.print_text(&text)
    }

    /// Lists the models of the server with their numbers, and a star before the session's.
    fn list_models(&mut self) -> CommandResult {
        let own = self.session.model().map(str::to_owned);
        match &own {
            Some(model) => self.remark(&format!("the model is {}", sanitize::one_line(model))),
            None => self.remark("the model is the configured one, or the only one"),
        }
        let mut text = String::new();
        for (number, model) in (1..).zip(self.model_names()?) {
            let star = if own.as_ref() == Some(&model) { '*' } else { ' ' };
            text.push_str(&format!("{star} {number:>2}  {}\n", sanitize::one_line(&model)));
        }
        self.ctx.print_text(&text)?;
        self.remark("/model NUMBER or /model NAME uses another one");
        Ok(())
    }

    /// Returns the model with a number of the list, or the name itself.
    fn model_named(&mut self, name: String) -> CommandResult<String> {
        if name.parse::<usize>().is_err() {
            return Ok(name);
        }
        let found = numbered(&name, &self.model_names()?).cloned();
        found.ok_or_else(|| CommandError::usage(format!("there is no model {name}"), "/model"))
    }

    fn model_names(&mut self) -> CommandResult<Vec<String>> {
        let list = self.ctx.call::<ModelList>(&NoParams {})?.value;
        Ok(chat_models(list.data))
    }

    fn start_draft(&mut self) {
        self.session = self.session.new_draft();
        self.remark("the next message starts a new session");
    }

    fn last_messages(&mut self, id: SessionId, number: u32) -> CommandResult<String> {
        let is_shown =
            |record: &Record| matches!(record.kind, RecordKind::Message | RecordKind::ToolCall);
        let mut records = last_on_branch(id, number as usize, is_shown, self.ctx)?;
        records.retain(is_shown);
        let skipped = records.len().saturating_sub(number as usize);
        let options = self.ctx.render_options();
        let mut transcript = Transcript::new(&options);
        Ok(records.into_iter().skip(skipped).map(|record| transcript.record(record)).collect())
    }

    /// Reports an error; the chat continues.
    fn report(&mut self, error: &CommandError) {
        self.note(&match hint_in_chat(error) {
            Some(hint) => error.to_text_with(Some(hint)),
            None => error.to_text(),
        });
        if matches!(error, CommandError::Client(_)) && error.rpc_failure().is_none() {
            self.ctx.disconnect();
        }
    }

    /// Writes a faint line to stderr.
    fn remark(&mut self, text: &str) {
        self.note(&Style::Faint.paint(text));
    }

    /// Writes a line to stderr, after everything that was printed.
    fn note(&mut self, text: &str) {
        // If this fails, the next line reports it.
        self.ctx.terminal.flush().ok();
        self.ctx.terminal.eprintln(&wrap(text, self.ctx.terminal.err_columns(), 0));
    }
}

/// The fate of the message of a failed turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageFate {
    /// The turn had no message.
    NoMessage,
    /// The message is on the disk.
    Kept,
    /// The daemon refused the message, so it is not recorded.
    GivenBack,
    /// The connection broke before the daemon had confirmed the message.
    Unknown,
}

impl MessageFate {
    fn of(error: &CommandError, has_message: bool, is_accepted: bool) -> Self {
        match (has_message, is_accepted) {
            (false, _) => Self::NoMessage,
            (true, true) => Self::Kept,
            (true, false) if may_have_arrived(error) => Self::Unknown,
            (true, false) => Self::GivenBack,
        }
    }

    /// Returns a remark on the recorded parts of the turn and how to repeat it; `None` if there are none, or if the error's
    /// hint names the command.
    fn remark(self, error: &CommandError) -> Option<&'static str> {
        let has_answer =
            error.rpc_failure().is_some_and(|failure| failure.fields.contains_key("seq"));
        match (self, has_answer) {
            (Self::Unknown, _) => {
                Some("whether your message was recorded is not known: /history shows it")
            }
            _ if hint_in_chat(error).is_some_and(|hint| hint.contains("/retry")) => None,
            (Self::Kept, true) => {
                Some("your message and the answer so far are kept: /retry asks again")
            }
            (Self::Kept, false) => Some("your message is kept: /retry asks for an answer"),
            (Self::NoMessage, true) => Some("the answer so far is kept: /retry asks again"),
            (Self::NoMessage | Self::GivenBack, _) => None,
        }
    }
}

/// Returns whether the daemon may have received a request that failed.
fn may_have_arrived(error: &CommandError) -> bool {
    let kind = error.rpc_failure().and_then(|failure| failure.kind);
    let is_unknown = matches!(kind, Some(ErrorKind::Canceled | ErrorKind::Storage));
    is_unknown
        || matches!(
            error,
            CommandError::Client(
                ClientError::Closed { .. }
                    | ClientError::Broken { .. }
                    | ClientError::Timeout { .. }
                    | ClientError::BadReply { .. }
            )
        )
}

/// Returns a hint that does not leave the chat; `None` if the error's own hint fits.
fn hint_in_chat(error: &CommandError) -> Option<String> {
    if let CommandError::Client(ClientError::Closed { .. } | ClientError::Broken { .. }) = error {
        return Some("/retry, which starts ollmd if it does not run".to_owned());
    }
    let failure = error.rpc_failure()?;
    let reason = failure.fields.get("reason").and_then(|reason| reason.as_str());
    match (failure.kind?, reason) {
        (ErrorKind::ModelFailed, Some("onlyThinking")) => {
            Some("/think off, and then /retry".to_owned())
        }
        (ErrorKind::LoopDetected, _) => {
            let reset = failure.hint.as_deref().map(|reset| format!(", or {reset} in a shell"));
            let reset = reset.unwrap_or_default();
            Some(format!("send another message, which ends the loop{reset}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn hint_names_a_command_of_the_chat() {
        let check = |data: Value, expect: Option<&str>| {
            let error = ClientError::of_turn(1, "m".to_owned(), data);
            assert_eq!(hint_in_chat(&error.into()).as_deref(), expect);
        };
        let spent = json!({ "kind": "modelFailed", "reason": "onlyThinking", "hint": "ollmctl x" });
        check(spent, Some("/think off, and then /retry"));
        let looped = json!({ "kind": "loopDetected", "hint": "ollmctl loop reset x" });
        check(
            looped,
            Some("send another message, which ends the loop, or ollmctl loop reset x in a shell"),
        );
        check(json!({ "kind": "modelFailed", "reason": "brokeOff" }), None);
    }

    #[test]
    fn only_a_recorded_message_is_called_kept() {
        let check = |error: CommandError, (has_message, is_accepted), expect: Option<&str>| {
            let remark = MessageFate::of(&error, has_message, is_accepted).remark(&error);
            assert_eq!(remark.map(|text| text.split(':').next().unwrap()), expect, "{error}");
        };
        let of_turn = |data: Value| ClientError::of_turn(1, "m".to_owned(), data).into();
        let broken = || of_turn(json!({ "kind": "modelFailed", "reason": "brokeOff", "seq": 4 }));
        check(broken(), (true, true), Some("your message and the answer so far are kept"));
        check(broken(), (false, true), Some("the answer so far is kept"));
        let unavailable = || of_turn(json!({ "kind": "modelUnavailable" }));
        check(unavailable(), (true, true), Some("your message is kept"));
        check(unavailable(), (true, false), None);
        check(unavailable(), (false, true), None);
        let spent = json!({ "kind": "modelFailed", "reason": "onlyThinking", "seq": 4 });
        check(of_turn(spent), (true, true), None);
        check(of_turn(json!({ "kind": "conflict" })), (true, false), None);
        let closed = || ClientError::Closed { method: "chat.send".to_owned() }.into();
        check(closed(), (true, false), Some("whether your message was recorded is not known"));
        check(closed(), (true, true), None);
    }

    #[test]
    fn refused_message_is_given_back() {
        let check = |error: CommandError, is_accepted, expect| {
            assert_eq!(MessageFate::of(&error, true, is_accepted), expect, "{error}");
        };
        let conflict = || ClientError::of_turn(1, "m".to_owned(), json!({ "kind": "conflict" }));
        check(conflict().into(), false, MessageFate::GivenBack);
        check(conflict().into(), true, MessageFate::Kept);
        let unreachable = ClientError::Unreachable { attempts: Vec::new() };
        check(unreachable.into(), false, MessageFate::GivenBack);
    }
}
