//! The session of a chat: a draft until the first message, a project's current session, or a chosen one; and the
//! settings of the next turn.

use std::io::BufRead as _;
use std::time::{Duration, Instant};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use ollm_protocol::content::{Meta, OperationKind, OperationState, Record, Session};
use ollm_protocol::method::{
    ModelList, ModelShow, SessionCreate, SessionGet, SessionOperations, SessionResume, SessionUndo,
    SessionUpdate,
};
use ollm_protocol::methods::chat::{ChatSendParams, Think, ThinkLevel};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::model::ModelShowParams;
use ollm_protocol::methods::session::branches::{SessionOperationsParams, SessionUndoParams};
use ollm_protocol::methods::session::{
    BranchFilter, MessageInput, SessionCreateParams, SessionGetParams, SessionGetResult,
    SessionListParams, SessionResumeParams, SessionUpdateParams,
};
use ollm_protocol::{ErrorKind, Seq, SessionId, sanitize};

use super::options::ChatOptions;
use super::turn::{TurnEnd, TurnOutput, TurnRunner};
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::commands::models::chat_models;
use crate::commands::sessions::options::of_session;
use crate::error::{ClientError, RpcFailure};
use crate::project;
use crate::render::session_table;

/// Sessions offered to choose from; `sessions list` shows more.
const OFFERED_SESSIONS: u32 = 10;
/// Sessions whose titles are searched for words; `sessions search` searches all of them, and their messages.
const SEARCHED_SESSIONS: u32 = 1000;
/// Records read for each message to show: tool calls and counts lie between messages.
const RECORDS_PER_MESSAGE: usize = 4;
/// The maximum number of records of one page.
const MAX_PAGE_RECORDS: u32 = 1000;

/// The longest wait for the end of a turn that was canceled, and the pause between two checks.
const END_LIMIT: Duration = Duration::from_secs(2);
const END_PAUSE: Duration = Duration::from_millis(20);

/// The levels of thinking, with the words for them.
const THINK_LEVELS: [(&str, Think); 6] = [
    ("on", Think::Flag(true)),
    ("off", Think::Flag(false)),
    ("low", Think::Level(ThinkLevel::Low)),
    ("medium", Think::Level(ThinkLevel::Medium)),
    ("high", Think::Level(ThinkLevel::High)),
    ("max", Think::Level(ThinkLevel::Max)),
];

/// Returns the parser of the words for how much a model thinks.
pub(super) fn think_parser() -> impl TypedValueParser<Value = Think> {
    PossibleValuesParser::new(THINK_LEVELS.map(|(word, _)| word)).map(|word| {
        let level = THINK_LEVELS.iter().find(|(known, _)| *known == word);
        level.map_or(Think::Flag(true), |(_, think)| *think)
    })
}

/// Returns the word for how much a model thinks.
pub(super) fn think_word(think: Think) -> &'static str {
    THINK_LEVELS.iter().find(|(_, known)| *known == think).map_or("on", |(word, _)| word)
}

/// The session of a chat.
pub(super) struct ChatSession {
    /// The options of the answers of this chat.
    pub(super) options: ChatOptions,
    session: Option<Session>,
    /// Set with the first message; a session without messages is a draft.
    has_messages: bool,
    /// The project whose current session this becomes with the next message.
    project: Option<String>,
    model: Option<String>,
    system: Option<String>,
    /// The time for which the server keeps the model in memory, in seconds.
    keep_alive: Option<u32>,
}

impl ChatSession {
    /// Returns the chat of a session, or a new draft.
    pub(super) fn new(session: Option<Session>) -> Self {
        Self {
            options: ChatOptions::default(),
            has_messages: session.is_some(),
            project: match &session {
                Some(session) => session.project_path.clone(),
                // A chat needs no project.
                None => project::canonical_path(None).ok(),
            },
            session,
            model: None,
            system: None,
            keep_alive: None,
        }
    }

    /// Returns a new draft with the same settings.
    pub(super) fn new_draft(&self) -> Self {
        Self {
            options: self.options.clone(),
            model: self.model().map(str::to_owned),
            system: self.system.clone(),
            keep_alive: self.keep_alive,
            ..Self::new(None)
        }
    }

    /// Returns the chat of another session with the same settings.
    pub(super) fn continued_in(&self, session: Session) -> Self {
        let (options, model) = (self.options.clone(), self.model.clone());
        Self { options, model, ..Self::new(Some(session)) }
    }

    /// Returns the session; `None` for a draft.
    pub(super) fn session(&self) -> Option<&Session> {
        self.session.as_ref().filter(|_| self.has_messages)
    }

    /// Returns the session's id; creates the session of a draft.
    pub(super) fn id(&mut self, ctx: &mut CommandContext<'_>) -> CommandResult<SessionId> {
        if let Some(session) = &self.session {
            return Ok(session.session_id);
        }
        let params = SessionCreateParams {
            project_path: self.project.clone(),
            model: self.model.clone(),
            system_prompt: self.system.clone().filter(|text| !text.is_empty()),
            keep_alive_seconds: self.keep_alive,
            ..SessionCreateParams::default()
        };
        let session = ctx.call::<SessionCreate>(&params)?.value.session;
        Ok(self.session.insert(session).session_id)
    }

    /// Makes the session, which has its first message now, the current one of its project.
    pub(super) fn message_accepted(&mut self, ctx: &mut CommandContext<'_>) {
        self.has_messages = true;
        let (Some(session), Some(project_path)) = (&self.session, self.project.take()) else {
            return;
        };
        if let Err(error) = project::set_current_session(project_path, session.session_id, ctx) {
            ctx.terminal.eprintln(&CommandError::from(error).to_text());
        }
    }

    /// Undoes a message that was not answered; returns false if something else was recorded since, or if it fails.
    pub(super) fn take_back(&self, message: Seq, ctx: &mut CommandContext<'_>) -> bool {
        let Some(id) = self.session.as_ref().map(|session| session.session_id) else {
            return false;
        };
        let deadline = Instant::now() + END_LIMIT;
        loop {
            match undo_message(id, message, ctx) {
                // The turn ends just after its last event.
                Err(ClientError::Rpc(failure))
                    if failure.kind == Some(ErrorKind::Conflict) && Instant::now() < deadline =>
                {
                    std::thread::sleep(END_PAUSE);
                }
                undone => return undone.unwrap_or(false),
            }
        }
    }

    /// Returns the model; `None` if the daemon's configuration decides.
    pub(super) fn model(&self) -> Option<&str> {
        let of_session = self.session.as_ref().and_then(|session| session.model.as_deref());
        of_session.or(self.model.as_deref())
    }

    pub(super) fn set_model(
        &mut self,
        model: String,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult {
        self.update(|params| params.model = Some(model.clone()), ctx)?;
        self.model = Some(model);
        Ok(())
    }

    pub(super) fn set_system(
        &mut self,
        system: String,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult {
        self.update(|params| params.system_prompt = Some(system.clone()), ctx)?;
        self.system = Some(system);
        Ok(())
    }

    /// Sets the time for which the server keeps the model in memory.
    pub(super) fn set_keep_alive(
        &mut self,
        seconds: u32,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult {
        self.update(|params| params.keep_alive_seconds = Some(seconds), ctx)?;
        self.keep_alive = Some(seconds);
        Ok(())
    }

    /// Lets the session keep options of its answers, in place of those of the chat; returns all that it keeps.
    pub(super) fn keep_options(
        &mut self,
        options: Meta,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult<Meta> {
        let names: Vec<String> = options.keys().cloned().collect();
        self.id(ctx)?;
        self.update(|params| params.options = Some(options), ctx)?;
        names.iter().for_each(|name| self.options.forget(name));
        Ok(self.session.as_ref().map(|session| session.options.clone()).unwrap_or_default())
    }

    /// Returns the options that the session keeps.
    pub(super) fn kept_options(&self, ctx: &mut CommandContext<'_>) -> CommandResult<Meta> {
        match &self.session {
            Some(session) => read(session.session_id, ctx).map(|session| session.options),
            None => Ok(Meta::new()),
        }
    }

    /// Changes the session; does nothing before there is one.
    fn update(
        &mut self,
        change: impl FnOnce(&mut SessionUpdateParams),
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult {
        let Some(session) = &self.session else { return Ok(()) };
        let mut params = SessionUpdateParams::new(session.session_id);
        change(&mut params);
        self.session = Some(ctx.call::<SessionUpdate>(&params)?.value.session);
        Ok(())
    }

    /// Lets the model answer a message, or the last message again. If no model is configured, chooses one first.
    pub(super) fn ask(
        &mut self,
        message: Option<&MessageInput>,
        turns: &TurnRunner,
        output: &mut dyn TurnOutput,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult<TurnEnd> {
        match self.run_turn(message, turns, output, ctx) {
            Err(error) if self.lacks_model(&error) => {
                self.choose_model(ctx)?;
                self.run_turn(message, turns, output, ctx)
            }
            end => end,
        }
    }

    fn run_turn(
        &mut self,
        message: Option<&MessageInput>,
        turns: &TurnRunner,
        output: &mut dyn TurnOutput,
        ctx: &mut CommandContext<'_>,
    ) -> CommandResult<TurnEnd> {
        let mut params =
            ChatSendParams { message: message.cloned(), ..ChatSendParams::new(self.id(ctx)?) };
        self.options.apply(&mut params);
        turns.run(params, &mut |ctx| self.message_accepted(ctx), output, ctx)
    }

    /// Returns whether a turn was refused because no model is configured.
    fn lacks_model(&self, error: &CommandError) -> bool {
        let names_model = |failure: &RpcFailure| {
            failure.kind == Some(ErrorKind::InvalidParams) && failure.message.starts_with("model")
        };
        self.model().is_none() && error.rpc_failure().is_some_and(names_model)
    }

    /// Sets a model if neither the session nor the configuration names one, so that nobody is asked behind a message.
    ///
    /// **Errors**: as [`Self::choose_model`]. If the server does not answer, the first turn decides.
    pub(super) fn require_model(&mut self, ctx: &mut CommandContext<'_>) -> CommandResult {
        if self.model().is_some() {
            return Ok(());
        }
        let shown = ctx.call::<ModelShow>(&ModelShowParams { model: None });
        let lacks_model = shown.is_err_and(|error| self.lacks_model(&error.into()));
        if lacks_model { self.choose_model(ctx) } else { Ok(()) }
    }

    /// Sets the server's only model, or the model that the user chooses.
    ///
    /// **Errors**: the server has no model, or several and no person can be asked.
    pub(super) fn choose_model(&mut self, ctx: &mut CommandContext<'_>) -> CommandResult {
        let list = ctx.call::<ModelList>(&NoParams {})?.value;
        let host = sanitize::one_line(&list.host);
        let models = chat_models(list.data);
        match models.as_slice() {
            [] => Err(CommandError::not_found(
                format!("{host} has no model that can chat"),
                list.get_small_model,
            )),
            [only] => {
                if !ctx.json() {
                    let model = sanitize::one_line(only);
                    ctx.terminal.eprintln(&format!("using {model}, the only model of {host}"));
                }
                self.set_model(only.clone(), ctx)
            }
            several => {
                let chosen = ask_for_model(several, ctx)?;
                self.set_model(chosen, ctx)
            }
        }
    }
}

/// Undoes the newest operation if it is that of a message.
fn undo_message(
    id: SessionId,
    message: Seq,
    ctx: &mut CommandContext<'_>,
) -> Result<bool, ClientError> {
    let params = SessionOperationsParams { session_id: id, limit: Some(1), cursor: None };
    let newest = ctx.call::<SessionOperations>(&params)?.value.data.into_iter().next();
    // What the message brought back stands before it.
    let newest = newest.filter(|newest| {
        newest.kind == OperationKind::Turn
            && newest.state == Some(OperationState::Applied)
            && newest.seq <= message
    });
    let Some(newest) = newest else { return Ok(false) };
    let operation = Some(newest.seq);
    let params = SessionUndoParams { operation, ..SessionUndoParams::new(id, 1) };
    ctx.call::<SessionUndo>(&params).map(|_| true)
}

/// Resumes a session; its subscribers get an event.
pub(super) fn resume(
    session_id: SessionId,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<Session> {
    let params = SessionResumeParams { session_id, limit: Some(1) };
    Ok(ctx.call::<SessionResume>(&params)?.value.session)
}

/// Returns a session as it is now.
pub(super) fn read(session_id: SessionId, ctx: &mut CommandContext<'_>) -> CommandResult<Session> {
    Ok(ctx.call::<SessionGet>(&of_session(session_id))?.value.session)
}

/// Returns the newest records on the active branch, the oldest first, of which at least `n_wanted` are wanted if there are
/// so many. Undone records can lie between them, and a record of each undo.
pub(in crate::commands) fn last_on_branch(
    session_id: SessionId,
    n_wanted: usize,
    is_wanted: impl Fn(&Record) -> bool,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<Vec<Record>> {
    let mut page = |from| -> CommandResult<SessionGetResult> {
        let (limit, branch) = (Some(MAX_PAGE_RECORDS), BranchFilter::Active);
        let params = SessionGetParams { session_id, from: Some(from), limit, branch };
        let mut reply = ctx.call::<SessionGet>(&params)?;
        ctx.fetch_contents(&mut reply)?;
        Ok(reply.value)
    };
    let first = n_wanted.saturating_mul(RECORDS_PER_MESSAGE).min(MAX_PAGE_RECORDS as usize);
    let mut from = -i64::try_from(first).unwrap_or(1).max(1);
    let mut records: Vec<Record> = Vec::new();
    loop {
        // A page ends early if its records are large.
        let (mut earlier, mut next) = (Vec::new(), Some(from));
        while let Some(from) = next {
            let found = page(from)?;
            let end = records.first().map(|record| record.seq);
            let is_new = |record: &Record| end.is_none_or(|end| record.seq < end);
            let n_found = found.records.len();
            earlier.extend(found.records.into_iter().filter(is_new));
            let is_complete = end.is_some_and(|end| found.next_from >= i64::try_from(end.0).ok());
            next = found.next_from.filter(|_| n_found > 0 && !is_complete);
        }
        earlier.append(&mut records);
        records = earlier;
        let first = records.first().map_or(0, |record| record.seq.0);
        let n_found = records.iter().filter(|record| is_wanted(record)).count();
        if first == 0 || from == 0 || n_found >= n_wanted {
            return Ok(records);
        }
        let first = i64::try_from(first).unwrap_or(i64::MAX);
        from = (first - i64::from(MAX_PAGE_RECORDS)).max(0);
    }
}

/// Returns the current session of this directory's project.
pub(super) fn current(ctx: &mut CommandContext<'_>) -> CommandResult<Session> {
    let project_path = project::canonical_path(None)?;
    let session = project::current_session(&project_path, ctx)?;
    session.ok_or_else(|| project::no_current_session(&project_path, "ollmctl chat".to_owned()))
}

/// Returns the session that a text identifies: an id, or else words of its title, of which the user chooses if several
/// sessions have them.
pub(super) fn find(text: &str, ctx: &mut CommandContext<'_>) -> CommandResult<SessionId> {
    let unknown = match ctx.session(text) {
        Err(error) => error,
        found => return found,
    };
    let found = titled(text, ctx)?;
    match found.as_slice() {
        [] => Err(unknown),
        [only] => Ok(only.session_id),
        _ => choose_from(found, ctx),
    }
}

/// Lets the user choose from the latest sessions.
pub(super) fn choose(ctx: &mut CommandContext<'_>) -> CommandResult<SessionId> {
    let params =
        SessionListParams { limit: Some(OFFERED_SESSIONS), ..SessionListParams::default() };
    let sessions = ctx.list_sessions(&params)?.data;
    if sessions.is_empty() {
        return Err(CommandError::not_found("there are no sessions yet", "ollmctl chat"));
    }
    choose_from(sessions, ctx)
}

/// Returns the latest sessions whose titles have all words of a text.
fn titled(text: &str, ctx: &mut CommandContext<'_>) -> CommandResult<Vec<Session>> {
    let params =
        SessionListParams { limit: Some(SEARCHED_SESSIONS), ..SessionListParams::default() };
    let words: Vec<String> = text.to_lowercase().split_whitespace().map(str::to_owned).collect();
    let mut found = ctx.list_sessions(&params)?.data;
    found.retain(|session| {
        let title = session.title.to_lowercase();
        words.iter().all(|word| title.contains(word))
    });
    found.truncate(OFFERED_SESSIONS as usize);
    Ok(found)
}

/// Lets the user choose from sessions, by a number, an id, or words that leave fewer of them.
fn choose_from(
    mut sessions: Vec<Session>,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<SessionId> {
    if !ctx.terminal.can_ask() || ctx.json() {
        return Err(CommandError::usage(
            "there is no terminal on which to choose a session",
            "ollmctl chat --resume last 'And then?'",
        ));
    }
    loop {
        let table = session_table::render_numbered(&sessions, &ctx.render_options());
        ctx.print_text(&table)?;
        ctx.terminal.flush()?;
        let typed = read_choice(sessions.len(), "or words of its title", ctx)?;
        if let Some(session) = numbered(&typed, &sessions) {
            return Ok(session.session_id);
        }
        let unknown = match ctx.session(&typed) {
            Ok(id) => return Ok(id),
            Err(error) => error,
        };
        let found = titled(&typed, ctx)?;
        match found.as_slice() {
            [] => ctx.terminal.eprintln(&unknown.to_text()),
            [only] => return Ok(only.session_id),
            _ => sessions = found,
        }
    }
}

/// Lets the user choose from models.
///
/// **Errors**: lists the models if no person can be asked.
fn ask_for_model(models: &[String], ctx: &mut CommandContext<'_>) -> CommandResult<String> {
    let shown: Vec<String> = models.iter().map(|model| sanitize::one_line(model)).collect();
    let message = "no model is configured, and there are several:";
    if !ctx.terminal.can_ask() || ctx.json() {
        return Err(CommandError::usage(
            format!("{message}\n  {}", shown.join("\n  ")),
            &format!("ollmctl chat --model {}  # or set models.default", shown[0]),
        ));
    }
    ctx.terminal.eprintln(message);
    for (number, model) in (1..).zip(&shown) {
        ctx.terminal.eprintln(&format!("{number:>3}  {model}"));
    }
    loop {
        let typed = read_choice(models.len(), "or its name", ctx)?;
        let by_name = models.iter().find(|model| **model == typed);
        if let Some(model) = numbered(&typed, models).or(by_name) {
            return Ok(model.clone());
        }
    }
}

/// Asks for a number, or for something else, and returns what the user typed.
///
/// **Errors**: the user typed nothing.
fn read_choice(count: usize, or: &str, ctx: &mut CommandContext<'_>) -> CommandResult<String> {
    ctx.terminal.eprint(&format!("Which one, 1 to {count}, {or}? "));
    let mut typed = String::new();
    let read = std::io::stdin().lock().read_line(&mut typed).map_err(CommandError::Input)?;
    let typed = typed.trim();
    if read == 0 || typed.is_empty() {
        return Err(CommandError::usage("nothing was chosen", ""));
    }
    Ok(typed.to_owned())
}

/// Returns the item with a number that counts from 1.
pub(super) fn numbered<'a, T>(typed: &str, all: &'a [T]) -> Option<&'a T> {
    all.get(typed.parse::<usize>().ok()?.checked_sub(1)?)
}
