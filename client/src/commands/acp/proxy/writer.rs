//! The writer of steps to the daemon.
//!
//! A session of the agent is found again by an idempotency key made of the agent's name and its id, so a restarted proxy goes
//! on with it. Some agents use an id again for another session: each of these sessions has a key with a number of its own, and
//! the one with the largest number is the newest.
//!
//! **Invariant**: a step that the daemon may have received is sent again with the same key, so it is recorded once.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{Meta, Part, Role, Session, ToolResult};
use ollm_protocol::frame::MAX_FRAME_BYTES;
use ollm_protocol::limits::json_bytes;
use ollm_protocol::method::{
    SessionCreate, SessionRecord, SessionRecordCustom, SessionRecordToolCall, SessionUpdate,
};
use ollm_protocol::methods::session::{
    MessageInput, SessionCreateParams, SessionRecordCustomParams, SessionRecordParams,
    SessionRecordToolCallParams, SessionUpdateParams, ToolCallInput,
};
use ollm_protocol::{ErrorKind, Method, SessionId};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::backlog::Backlog;
use super::contents::EndedCall;
use super::conversation::{RecordStep, StepKind};
use crate::command_error::{CommandError, CommandResult};
use crate::connection::Connector;
use crate::error::{ClientError, Exit};
use crate::mcp::DaemonLink;

/// The pauses between attempts while the daemon cannot be reached. They become longer, up to the second.
const MIN_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// The most sessions of an agent with the same id that are told apart; each costs a call when the id is opened.
const MAX_SAME_IDS: u32 = 256;
/// The bytes of a request besides its params.
const ENVELOPE_BYTES: usize = 1 << 10;

/// The sessions of the daemon and the directories that belong to the agent's sessions, by the ids of the agent.
#[derive(Clone, Default)]
pub(super) struct KnownSessions(Arc<Mutex<KnownMaps>>);

#[derive(Default)]
struct KnownMaps {
    /// The sessions of the daemon.
    ids: HashMap<String, SessionId>,
    directories: HashMap<String, String>,
}

impl KnownSessions {
    pub(super) fn of(&self, session: &str) -> Option<SessionId> {
        self.0.lock().ids.get(session).copied()
    }

    /// Returns the directory in which a session was opened.
    pub(super) fn directory_of(&self, session: &str) -> Option<String> {
        self.0.lock().directories.get(session).cloned()
    }
}

/// A session of the daemon.
#[derive(Clone, Copy)]
struct OpenedSession {
    id: SessionId,
    /// Set if the session had records before it was opened.
    is_known: bool,
    /// Set if the session has its project.
    is_placed: bool,
}

/// Writes the steps of one conversation.
pub(super) struct StepWriter {
    connector: Connector,
    link: DaemonLink,
    /// The name of the agent's program.
    program: String,
    known: KnownSessions,
    opened: HashMap<String, OpenedSession>,
    /// The sessions that the agent began in this run.
    begun: HashSet<String>,
    newest: Option<SessionId>,
    /// Distinguishes the keys of this run.
    run: String,
    n_steps: u64,
    /// The steps that the daemon refused, and the first reason.
    n_refused: u64,
    refusal: Option<String>,
    /// The reason why the oldest step waits.
    problem: Option<String>,
}

impl StepWriter {
    pub(super) fn new(connector: Connector, program: String, known: KnownSessions) -> Self {
        Self {
            link: DaemonLink::new(connector.clone()),
            connector,
            program,
            known,
            opened: HashMap::new(),
            begun: HashSet::new(),
            newest: None,
            run: format!("{}-{}", std::process::id(), chrono::Utc::now().timestamp_millis()),
            n_steps: 0,
            n_refused: 0,
            refusal: None,
            problem: None,
        }
    }

    /// Writes steps until none follows. Ends earlier if none follows and the daemon is away.
    ///
    /// **Cancel safety**: the step that is being written stays in the backlog.
    pub(super) async fn write(&mut self, backlog: &Backlog) {
        while let Some(step) = backlog.next().await {
            if !self.write_step(&step, backlog).await {
                return;
            }
            backlog.done();
        }
    }

    /// Returns the number of steps that the daemon refused.
    pub(super) fn n_refused(&self) -> u64 {
        self.n_refused
    }

    /// Returns the first reason for which it refused one.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Returns why the oldest step waits, if an attempt has failed.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Records in the newest session that something is missing.
    pub(super) async fn mark_loss(&mut self, data: Value) -> CommandResult {
        let Some(session_id) = self.newest else { return Ok(()) };
        let params = SessionRecordCustomParams {
            session_id,
            name: "acp.lost".to_owned(),
            data,
            context_text: None,
            key: self.key(),
        };
        self.call::<SessionRecordCustom>(&params).await.map(drop)
    }

    /// Writes a step as soon as the daemon takes it, unless the daemon refuses it. Returns false if nothing follows and the
    /// daemon is away.
    async fn write_step(&mut self, step: &RecordStep, backlog: &Backlog) -> bool {
        if let StepKind::Open { cwd, is_new } = &step.what {
            self.note_opened(&step.session, cwd.as_deref(), *is_new);
            return true;
        }
        let key = self.key();
        let (mut pause, mut is_reopened) = (MIN_PAUSE, false);
        loop {
            let error = match self.carry_out(step, key.clone()).await {
                Ok(()) => {
                    self.problem = None;
                    return true;
                }
                Err(error) => error,
            };
            if is_missing_session(&error) && !std::mem::replace(&mut is_reopened, true) {
                // The daemon ended before anything was said, or a person deleted the session.
                self.opened.remove(&step.session);
                continue;
            }
            if !is_temporary(&error) {
                self.n_refused += 1;
                self.refusal.get_or_insert_with(|| error.message());
                return true;
            }
            if matches!(error, CommandError::Client(ClientError::Timeout { .. })) {
                // What is sent to a daemon that hangs waits in its connection: another one does not collect it.
                self.link = DaemonLink::new(self.connector.clone());
            }
            self.problem = Some(error.message());
            if !backlog.is_closed() {
                drop(timeout(pause, backlog.closed()).await);
                pause = (pause * 2).min(MAX_PAUSE);
            } else if error.exit() == Exit::Busy {
                sleep(MIN_PAUSE).await;
            } else {
                // At the end nobody waits for a daemon that is away.
                return false;
            }
        }
    }

    /// Notes that the editor opened a session. A session in which nothing is said leaves no trace.
    fn note_opened(&mut self, session: &str, directory: Option<&str>, is_new: bool) {
        let mut known = self.known.0.lock();
        if let Some(directory) = directory {
            known.directories.insert(session.to_owned(), directory.to_owned());
        }
        if is_new {
            known.ids.remove(session);
            self.opened.remove(session);
            self.begun.insert(session.to_owned());
        } else if let Some(opened) = self.opened.get_mut(session) {
            // What is replayed when it is opened again has records already.
            opened.is_known = true;
        }
    }

    fn key(&mut self) -> Option<String> {
        self.n_steps += 1;
        Some(format!("acp-{}-{}", self.run, self.n_steps))
    }

    async fn carry_out(&mut self, step: &RecordStep, key: Option<String>) -> CommandResult {
        let OpenedSession { id: session_id, is_known, .. } = self.open(step).await?;
        if step.is_replay && is_known {
            return Ok(());
        }
        self.newest = Some(session_id);
        match &step.what {
            StepKind::Open { .. } => Ok(()),
            StepKind::Title(title) => {
                let title = Some(title.clone());
                let params = SessionUpdateParams { title, ..SessionUpdateParams::new(session_id) };
                self.call::<SessionUpdate>(&params).await.map(drop)
            }
            StepKind::User(text) => {
                let message = MessageInput::text(Role::User, text.as_str());
                let params = SessionRecordParams { session_id, message, key };
                self.call::<SessionRecord>(&params).await.map(drop)
            }
            StepKind::Answer { thought, text, end } => {
                let message = answer(thought, text, end.clone());
                let params = SessionRecordParams { session_id, message, key };
                self.call::<SessionRecord>(&params).await.map(drop)
            }
            StepKind::Call(call) => {
                let tool_call = tool_call(call);
                let params = SessionRecordToolCallParams { session_id, tool_call, key };
                self.call::<SessionRecordToolCall>(&params).await.map(drop)
            }
        }
    }

    async fn call<M: Method>(&self, params: &M::Params) -> CommandResult<M::Result> {
        // A larger request would end the connection, at each attempt.
        if json_bytes(params) > MAX_FRAME_BYTES - ENVELOPE_BYTES {
            return Err(ClientError::RequestTooLarge { method: M::NAME.to_owned() }.into());
        }
        self.link.call::<M>(params).await
    }

    /// Returns the session of the daemon, which is created for a new session of the agent.
    async fn open(&mut self, step: &RecordStep) -> CommandResult<OpenedSession> {
        let agent = step.agent.clone().unwrap_or_else(|| self.program.clone());
        let mut opened = match self.opened.get(&step.session) {
            Some(opened) => *opened,
            None => {
                let own = self.find_or_create(&agent, &step.session).await?;
                let (id, is_known) = (own.session_id, !own.draft);
                let opened = OpenedSession { id, is_known, is_placed: is_known };
                self.known.0.lock().ids.insert(step.session.clone(), id);
                self.opened.insert(step.session.clone(), opened);
                opened
            }
        };
        if !opened.is_placed {
            self.place(opened.id, agent, &step.session).await?;
            opened.is_placed = true;
            self.opened.insert(step.session.clone(), opened);
        }
        Ok(opened)
    }

    /// Returns the newest session of an id; a new one if the agent began it in this run, or if there is none.
    async fn find_or_create(&self, agent: &str, session: &str) -> CommandResult<Session> {
        let is_begun = self.begun.contains(session);
        let mut found = self.create(agent, session, 1).await?;
        for number in 2..=MAX_SAME_IDS {
            // A session without records is a draft.
            if found.draft {
                break;
            }
            let next = self.create(agent, session, number).await?;
            if next.draft && !is_begun {
                break;
            }
            found = next;
        }
        Ok(found)
    }

    /// Returns the session with a number of those with the same id. Its params are the same each time: the daemon refuses a
    /// key with other ones.
    async fn create(&self, agent: &str, session: &str, number: u32) -> CommandResult<Session> {
        let params = SessionCreateParams {
            metadata: Some(metadata(agent, session)),
            key: Some(session_key(agent, session, number)),
            ..SessionCreateParams::default()
        };
        Ok(self.call::<SessionCreate>(&params).await?.session)
    }

    /// Sets the project and the agent of a new session.
    async fn place(&self, id: SessionId, agent: String, session: &str) -> CommandResult {
        let directory = self.known.directory_of(session);
        let fields = SessionUpdateParams {
            project_path: directory.filter(|path| Path::new(path).is_dir()),
            provider: Some(agent),
            ..SessionUpdateParams::new(id)
        };
        match self.call::<SessionUpdate>(&fields).await {
            Err(error) if is_temporary(&error) || is_missing_session(&error) => Err(error),
            // A session without its project is better than none.
            Err(_) | Ok(_) => Ok(()),
        }
    }
}

/// Returns whether a step can be recorded later: the daemon is away, hangs or starts, or is busy with something else.
fn is_temporary(error: &CommandError) -> bool {
    // The only conflict of these calls is a key that was used with other params, which stays.
    let is_conflict = matches!(error, CommandError::Client(error) if error.is_conflict());
    match error.exit() {
        Exit::Unreachable | Exit::Busy => !is_conflict,
        // A wrong configuration keeps the daemon from starting until a person mends it. A reply of a daemon that runs is
        // about the session, such as one of a newer version, and the steps of all others must not wait for it.
        Exit::Config => !matches!(error, CommandError::Client(ClientError::Rpc(_))),
        _ => false,
    }
}

fn is_missing_session(error: &CommandError) -> bool {
    let kind = ErrorKind::SessionNotFound.as_str();
    matches!(error, CommandError::Client(error) if error.kind() == kind)
}

/// Returns the key of a session.
fn session_key(agent: &str, session: &str, number: u32) -> String {
    let text = match number {
        1 => format!("{agent}\0{session}"),
        _ => format!("{agent}\0{session}\0{number}"),
    };
    format!("acp-{}", blake3::hash(text.as_bytes()).to_hex())
}

fn metadata(agent: &str, session: &str) -> Meta {
    let own = json!({ "agent": agent, "sessionId": session });
    Meta::from_iter([("acp".to_owned(), own)])
}

fn answer(thought: &str, text: &str, finish_reason: Option<String>) -> MessageInput {
    let thought = (!thought.is_empty()).then(|| Part::Thinking { text: thought.to_owned() });
    let text = (!text.is_empty()).then(|| Part::Text { text: text.to_owned() });
    MessageInput {
        parts: Some(thought.into_iter().chain(text).collect()),
        content: None,
        finish_reason,
        ..MessageInput::text(Role::Assistant, "")
    }
}

fn tool_call(call: &EndedCall) -> ToolCallInput {
    let error = (call.success == Some(false)).then(|| "the tool failed".to_owned());
    let result = ToolResult {
        llm_content: call.output.clone(),
        success: call.success,
        error,
        ..ToolResult::default()
    };
    ToolCallInput {
        id: call.id.clone(),
        name: call.name.clone(),
        args: call.args.clone(),
        result,
        timestamp: None,
        duration_ms: None,
        message_seq: None,
        writes: None,
        writes_omitted: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::RpcFailure;

    #[test]
    fn step_waits_for_a_daemon_and_not_for_a_session_that_it_refuses() {
        let check = |error: ClientError, waits: bool| {
            let error = CommandError::from(error);
            assert_eq!(is_temporary(&error), waits, "{}", error.message());
        };
        let reply = |kind: ErrorKind| {
            let data = json!({ "kind": kind.as_str() });
            let failure = RpcFailure::new(kind.code(), kind.as_str().to_owned(), Some(data));
            ClientError::Rpc(Box::new(failure))
        };
        for (kind, waits) in [
            (ErrorKind::Busy, true),
            (ErrorKind::Conflict, false),
            (ErrorKind::UnsupportedVersion, false),
            (ErrorKind::InvalidParams, false),
        ] {
            check(reply(kind), waits);
        }
        let kind = Some(ErrorKind::Config);
        let (message, log) = ("a wrong key".to_owned(), "ollmd.log".into());
        check(ClientError::StartFailed { kind, message, hint: None, log }, true);
        check(ClientError::DaemonNotFound, true);
        check(ClientError::RequestTooLarge { method: SessionRecord::NAME.to_owned() }, false);
    }
}
