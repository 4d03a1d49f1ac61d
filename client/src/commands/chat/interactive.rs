//! A chat on a terminal: reads lines and runs them as messages or commands until the user leaves.

use ollm_protocol::content::{GoalPriority, Record, RecordKind};
use ollm_protocol::method::{ContextInspect, GoalCreate, ModelList, SessionFork};
use ollm_protocol::methods::chat::Think;
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::goal::GoalCreateParams;
use ollm_protocol::methods::session::branches::SessionForkParams;
use ollm_protocol::{ErrorKind, Seq, SessionId, sanitize};

use super::history::LineHistory;
use super::input::{EditorEvent, LineEditor};
use super::screen::Screen;
use super::session::{ChatSession, last_on_branch, last_records, think_word};
use super::slash::{self, COMMANDS, ChatInput, SessionInput};
use super::turn::{TurnEnd, TurnRunner, canceled};
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::commands::context::compact::compact_in_chat;
use crate::commands::context::set_pin;
use crate::commands::context::window::{
    inspect_params, render_items, render_messages, show_status,
};
use crate::commands::recall::recall;
use crate::commands::remember::{RememberScope, remember, show_entries};
use crate::commands::sessions::export::{self, ExportArgs};
use crate::commands::sessions::list::{self, ListArgs};
use crate::commands::sessions::{branches, tree};
use crate::commands::undo::StepDirection;
use crate::commands::{goal, sessions, snapshot, undo};
use crate::error::ClientError;
use crate::render::session_table::heading;
use crate::render::transcript::Transcript;
use crate::render::{Style, table};

/// Files that are named after an undo that leaves them as they are.
/// Messages shown of a session that is continued: enough to remember its subject.
const SHOWN_MESSAGES: u32 = 4;
/// Sessions listed by `/sessions`.
const LISTED_SESSIONS: u32 = 10;

struct InteractiveChat<'a, 'ctx> {
    session: ChatSession,
    turns: TurnRunner,
    ctx: &'a mut CommandContext<'ctx>,
}

pub(super) fn run(
    session: ChatSession,
    turns: TurnRunner,
    keeps_history: bool,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    let history = keeps_history.then(|| LineHistory::new(ctx.connector().address().home()));
    let mut chat = InteractiveChat { session, turns, ctx };
    let has_color = chat.ctx.terminal.has_color();
    let mut editor = LineEditor::new(history, chat.session_id(), has_color)?;
    chat.greet()?;
    editor.keep_lines(chat.session_id());
    let mut interrupted_before = false;
    loop {
        chat.ctx.terminal.flush()?;
        let line = match editor.read()? {
            EditorEvent::Line(line) => line,
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
        let input = ChatInput::parse(&line);
        editor.keep_lines(chat.session_id());
        if input == ChatInput::Exit {
            return Ok(());
        }
        let result = chat.run_input(input);
        editor.keep_lines(chat.session_id());
        match result {
            Ok(()) => {}
            Err(error @ (CommandError::Output(_) | CommandError::Canceled { .. })) => {
                return Err(error);
            }
            Err(error) => chat.report(&error),
        }
    }
}

impl InteractiveChat<'_, '_> {
    fn session_id(&self) -> Option<SessionId> {
        self.session.session().map(|session| session.session_id)
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

    fn run_input(&mut self, input: ChatInput) -> CommandResult {
        match input {
            ChatInput::Empty | ChatInput::Exit => {}
            ChatInput::Message(text) => self.ask(Some(&text))?,
            ChatInput::Help => self.help()?,
            ChatInput::Model(None) => self.list_models()?,
            ChatInput::Model(Some(name)) => {
                self.session.set_model(name, self.ctx)?;
                let model = self.session.model().map(sanitize::one_line).unwrap_or_default();
                self.remark(&format!("the model is {model} from now on"));
            }
            ChatInput::Think(think) => self.think(think),
            ChatInput::Sessions => list::run(&ListArgs::latest(LISTED_SESSIONS), self.ctx)?,
            ChatInput::Goal(text) => self.goal(text)?,
            ChatInput::Remember(scope, text) => self.remember(scope, text)?,
            ChatInput::Recall(question) => recall(question, self.ctx)?,
            ChatInput::New => self.start_draft(),
            ChatInput::Unknown { text, suggestion } => {
                if let Some((usage, description)) = slash::without_argument(&text) {
                    let problem = format!("{} needs an argument: {description}", text.trim());
                    return Err(CommandError::usage(problem, usage));
                }
                let text = sanitize::one_line(&text);
                return Err(CommandError::usage(
                    format!("{text} is not a command; // begins a message with a slash"),
                    suggestion.as_deref().unwrap_or("/help"),
                ));
            }
            ChatInput::OnSession(input) => match self.session.session() {
                Some(session) => self.run_on_session(session.session_id, input)?,
                None => self.remark("there are no messages yet"),
            },
        }
        Ok(())
    }

    /// Runs a command that needs a session with messages.
    fn run_on_session(&mut self, id: SessionId, input: SessionInput) -> CommandResult {
        match input {
            SessionInput::Retry => self.ask(None),
            SessionInput::Undo(steps, files) => self.step(id, steps, StepDirection::Back, files),
            SessionInput::Redo(steps, files) => self.step(id, steps, StepDirection::Forward, files),
            SessionInput::Tree => tree::show(id, false, self.ctx),
            SessionInput::Branch(to) => {
                branches::move_leaf(id, branches::BranchTarget(to), false, self.ctx)
            }
            SessionInput::Fork(at) => self.fork(id, at),
            SessionInput::History(number) => {
                let text = self.last_messages(id, number)?;
                self.ctx.print_text(&text)
            }
            SessionInput::Context => show_status(id, None, self.ctx),
            SessionInput::Snapshot(summary) => snapshot::take(id, summary, self.ctx),
            SessionInput::Snapshots => snapshot::list_of(id, self.ctx),
            SessionInput::Restore(text, files) => {
                let made = snapshot::restore_in_chat(id, text.as_deref(), files, self.ctx)?;
                if let Some(session) = made {
                    self.session = self.session.continued_in(session);
                }
                Ok(())
            }
            SessionInput::DebugContext => {
                let inspected = self.ctx.call::<ContextInspect>(&inspect_params(id))?.value;
                let messages = render_messages(&inspected.build.messages);
                let items = render_items(&inspected, &self.ctx.render_options());
                self.ctx.print_text(&format!("{messages}\n{items}"))
            }
            SessionInput::Pin(seq) => self.pin(id, seq, true),
            SessionInput::Unpin(seq) => self.pin(id, seq, false),
            SessionInput::Compact { apply } => self.compact(id, apply),
            SessionInput::Info => {
                let session = last_records(id, 1, self.ctx)?.session;
                let text = heading(&session, &self.ctx.render_options());
                self.ctx.print_text(&text)
            }
            SessionInput::Export(output) => export::run(&ExportArgs::of(id, output), self.ctx),
            SessionInput::Archive => {
                sessions::archive(id, self.ctx)?;
                self.start_draft();
                Ok(())
            }
        }
    }

    /// Undoes or redoes operations, with or without their files. Without, it says which files could be put back.
    fn step(
        &mut self,
        id: SessionId,
        steps: u32,
        direction: StepDirection,
        with_files: bool,
    ) -> CommandResult {
        if with_files {
            return undo::step_with_files(id, steps, direction, false, self.ctx);
        }
        let stay = match direction {
            StepDirection::Back => undo::files_to_put_back(id, steps, self.ctx),
            StepDirection::Forward => None,
        };
        undo::step(id, steps, direction, self.ctx)?;
        if let Some(names) = stay {
            self.remark(&format!(
                "these files could be put back: {names}; do it with /redo {steps}, then /undo {steps} --files"
            ));
        }
        Ok(())
    }

    /// Continues in a fork of the session.
    fn fork(&mut self, session_id: SessionId, at_seq: Option<Seq>) -> CommandResult {
        let params = SessionForkParams { session_id, at_seq, title: None, key: None };
        let forked = self.ctx.call::<SessionFork>(&params)?.value;
        let text = branches::render_fork(&forked);
        self.session = self.session.continued_in(forked.session);
        self.ctx.print_text(&text)
    }

    /// Lets the model answer a message, or the last message again.
    fn ask(&mut self, message: Option<&str>) -> CommandResult {
        let mut screen = Screen::default();
        let end = self.session.ask(message, &self.turns, &mut screen, self.ctx);
        if let Some(usage) = screen.usage_line() {
            self.note(&format!("{usage}\n"));
        }
        match end {
            Ok(TurnEnd::Answered) => {}
            Ok(TurnEnd::Canceled) => {
                self.remark("canceled; the answer so far is kept, /retry asks again");
            }
            Ok(TurnEnd::Abandoned) => return Err(canceled()),
            Err(error) => {
                self.report(&error);
                if self.session.session().is_some()
                    && let Some(remark) = kept_remark(&error, message.is_some())
                {
                    self.remark(remark);
                }
            }
        }
        Ok(())
    }

    /// Shows or sets how the model thinks.
    fn think(&mut self, think: Option<Think>) {
        self.session.think = think.or(self.session.think);
        let since = if think.is_some() { " from now on" } else { "" };
        match self.session.think.map(think_word) {
            Some(word) => self.remark(&format!("thinking is {word}{since}")),
            None => self.remark("the model decides whether it thinks"),
        }
    }

    fn help(&mut self) -> CommandResult {
        let rows: Vec<_> =
            COMMANDS.iter().map(|(usage, help)| (*usage, (*help).to_owned())).collect();
        let keys = "\nA backslash at the end of a line continues it on the next line.\n\
                    // begins a message with a slash. Ctrl-C cancels an answer.\n";
        self.ctx.print_text(&(table::fields(&rows) + keys))
    }

    /// Lists the models of the server, with a star before the session's.
    fn list_models(&mut self) -> CommandResult {
        let own = self.session.model().map(str::to_owned);
        match &own {
            Some(model) => self.remark(&format!("the model is {}", sanitize::one_line(model))),
            None => self.remark("the model is the configured one, or the only one"),
        }
        let list = self.ctx.call::<ModelList>(&NoParams {})?.value;
        let mut text = String::new();
        for model in &list.data {
            let star = if own.as_ref() == Some(&model.model) { '*' } else { ' ' };
            text.push_str(&format!("{star} {}\n", sanitize::one_line(&model.model)));
        }
        self.ctx.print_text(&text)
    }

    /// Shows the goals of the session, or creates one, also in a draft.
    fn goal(&mut self, text: Option<String>) -> CommandResult {
        let Some(description) = text else {
            let goals = match self.session.session().map(|session| session.session_id) {
                Some(id) => goal::goals(id, self.ctx)?,
                None => Vec::new(),
            };
            return self.ctx.print_text(&goal::render_list(&goals));
        };
        let params = GoalCreateParams {
            session_id: self.session.id(self.ctx)?,
            description,
            priority: GoalPriority::default(),
            checkpoints: Vec::new(),
            key: None,
        };
        let created = self.ctx.call::<GoalCreate>(&params)?.value.goal;
        self.session.message_accepted(self.ctx);
        self.ctx.print_text(&format!("{}\n", goal::summary(&created)))
    }

    /// Remembers a text; without one, shows the entries in force.
    fn remember(&mut self, scope: RememberScope, text: Option<String>) -> CommandResult {
        let session = match (scope, &text) {
            (RememberScope::Session, Some(_)) => Some(self.session.id(self.ctx)?),
            (RememberScope::Session, None) => self.session.session().map(|one| one.session_id),
            _ => None,
        };
        let Some(text) = text else {
            return show_entries(scope, session, self.ctx);
        };
        remember(&text, scope, session, self.ctx)?;
        if scope == RememberScope::Session {
            self.session.message_accepted(self.ctx);
        }
        Ok(())
    }

    /// Pins or unpins a record; without a number the last message.
    fn pin(&mut self, id: SessionId, seq: Option<Seq>, pinned: bool) -> CommandResult {
        match seq.map_or_else(|| self.last_message(id), |seq| Ok(Some(seq)))? {
            Some(seq) => set_pin(id, seq, pinned, self.ctx),
            None => {
                self.remark("there are no messages yet");
                Ok(())
            }
        }
    }

    fn compact(&mut self, id: SessionId, apply: bool) -> CommandResult {
        let done = self.turns.run_interruptible(self.ctx, |ctx, is_wanted| {
            compact_in_chat(id, apply, is_wanted, ctx)
        })?;
        if !done {
            self.remark("canceled; the context is unchanged");
        }
        Ok(())
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

    /// Returns the number of the last message on the active branch.
    fn last_message(&mut self, id: SessionId) -> CommandResult<Option<Seq>> {
        let is_message = |record: &Record| record.kind == RecordKind::Message;
        let records = last_on_branch(id, 1, is_message, self.ctx)?;
        Ok(records.iter().rev().find(|record| is_message(record)).map(|record| record.seq))
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
        self.ctx.terminal.eprintln(text);
    }
}

/// Returns a remark on the recorded parts of a failed turn and how to repeat it; `None` if there are none, or if the
/// error's hint names the command.
fn kept_remark(error: &CommandError, has_message: bool) -> Option<&'static str> {
    let has_answer = error.rpc_failure().is_some_and(|failure| failure.fields.contains_key("seq"));
    match (has_message, has_answer) {
        _ if hint_in_chat(error).is_some_and(|hint| hint.contains("/retry")) => None,
        (true, true) => Some("your message and the answer so far are kept: /retry asks again"),
        (true, false) => Some("your message is kept: /retry asks for an answer"),
        (false, true) => Some("the answer so far is kept: /retry asks again"),
        (false, false) => None,
    }
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
    fn kept_parts_are_reported_unless_the_hint_does() {
        let check = |data: Value, has_message, expect: Option<&str>| {
            let error = ClientError::of_turn(1, "m".to_owned(), data).into();
            let remark = kept_remark(&error, has_message);
            assert_eq!(remark.map(|text| text.split(':').next().unwrap()), expect);
        };
        let broken = json!({ "kind": "modelFailed", "reason": "brokeOff", "seq": 4 });
        check(broken.clone(), true, Some("your message and the answer so far are kept"));
        check(broken, false, Some("the answer so far is kept"));
        check(json!({ "kind": "modelUnavailable" }), true, Some("your message is kept"));
        check(json!({ "kind": "modelUnavailable" }), false, None);
        check(json!({ "kind": "modelFailed", "reason": "onlyThinking", "seq": 4 }), true, None);
    }
}
