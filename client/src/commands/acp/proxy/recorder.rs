//! The thread that records the conversation with the daemon.
//!
//! A session of the agent is found again by an idempotency key made of the agent's name and its id, so a restarted proxy goes
//! on with it. While the daemon cannot be reached, steps wait for a while, then they are dropped and counted; the streams
//! know nothing of it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use ollm_protocol::content::{Meta, Part, Role, ToolResult};
use ollm_protocol::method::{
    SessionCreate, SessionRecord, SessionRecordCustom, SessionRecordToolCall, SessionUpdate,
};
use ollm_protocol::methods::session::{
    MessageInput, SessionCreateParams, SessionRecordCustomParams, SessionRecordParams,
    SessionRecordToolCallParams, SessionUpdateParams, ToolCallInput,
};
use ollm_protocol::{Method, SessionId};
use parking_lot::Mutex;
use serde_json::json;
use tokio::runtime::Runtime;

use super::conversation::{AcpConversation, RecordStep, StepKind};
use super::frames::Lines;
use super::tap::{AcpSide, Tap, Tapped};
use crate::background::spawn;
use crate::command_error::{CommandError, CommandResult};
use crate::connection::Connector;
use crate::error::{ClientError, Exit};
use crate::mcp::DaemonLink;

/// The attempts to record a step while the daemon cannot be reached, and the pause between two: a restart takes less.
const ATTEMPTS: usize = 40;
const PAUSE: Duration = Duration::from_millis(250);
/// The time without attempts after all of them failed.
const DOWN: Duration = Duration::from_secs(10);

/// What the recorder knows of the agent's sessions, by their ids.
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
struct OpenedSession {
    id: SessionId,
    /// Whether it had records before it was opened.
    is_known: bool,
}

/// Records one conversation.
pub(super) struct Recorder {
    link: DaemonLink,
    /// The name of the agent's program.
    program: String,
    known: KnownSessions,
    opened: HashMap<String, OpenedSession>,
    /// Distinguishes the keys of this run.
    run: String,
    n_steps: u64,
    down_until: Option<Instant>,
    /// Steps that were not recorded, and the first reason.
    dropped: u64,
    problem: Option<String>,
}

/// The recorder while it works.
pub(super) struct RunningRecorder {
    ended: Receiver<Option<String>>,
}

impl RunningRecorder {
    /// Waits for the end of the recording, and returns what a person should know about it.
    pub(super) fn finish(self, limit: Duration) -> Option<String> {
        self.ended.recv_timeout(limit).unwrap_or_else(|_| {
            Some("the end of the conversation was not recorded in time".to_owned())
        })
    }
}

impl Recorder {
    pub(super) fn new(connector: Connector, program: String, known: KnownSessions) -> Self {
        Self {
            link: DaemonLink::new(connector),
            program,
            known,
            opened: HashMap::new(),
            run: format!("{}-{}", std::process::id(), chrono::Utc::now().timestamp_millis()),
            n_steps: 0,
            down_until: None,
            dropped: 0,
            problem: None,
        }
    }

    /// Starts the thread.
    pub(super) fn start(mut self, tap: Arc<Tap>) -> CommandResult<RunningRecorder> {
        let (send, ended) = mpsc::sync_channel(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(CommandError::Thread)?;
        spawn("acp-recorder", move || drop(send.send(self.run(&tap, &runtime))))?;
        Ok(RunningRecorder { ended })
    }

    fn run(&mut self, tap: &Tap, runtime: &Runtime) -> Option<String> {
        let mut conversation = AcpConversation::new();
        let (mut editor, mut agent) = (Lines::default(), Lines::default());
        let mut lost_bytes = 0;
        let mut newest = None;
        loop {
            match tap.next() {
                Tapped::Bytes(direction, bytes) => {
                    let mut steps = Vec::new();
                    let lines =
                        if direction == AcpSide::FromEditor { &mut editor } else { &mut agent };
                    lines.push(&bytes, |line| steps.extend(conversation.line(direction, line)));
                    drop(bytes);
                    for step in steps {
                        newest = Some(step.session.clone());
                        self.record(step, &conversation, tap, runtime);
                    }
                }
                Tapped::Lost(direction, bytes) => {
                    lost_bytes += bytes;
                    if direction == AcpSide::FromEditor { editor.skip() } else { agent.skip() }
                }
                Tapped::Closed => break,
            }
        }
        for step in conversation.end() {
            self.record(step, &conversation, tap, runtime);
        }
        let lost_lines = editor.lost() + agent.lost();
        if lost_lines == 0 && self.dropped == 0 {
            return None;
        }
        let data = json!({ "lines": lost_lines, "bytes": lost_bytes, "steps": self.dropped });
        if let Some(session) = newest.and_then(|session| self.known.of(&session)) {
            let params = SessionRecordCustomParams {
                session_id: session,
                name: "acp.lost".to_owned(),
                data,
                context_text: None,
                key: self.key(),
            };
            drop(runtime.block_on(self.link.call::<SessionRecordCustom>(&params)));
        }
        let reason = self.problem.take().map_or(String::new(), |problem| format!(": {problem}"));
        let n = lost_lines + self.dropped;
        Some(format!("{n} parts of the conversation were not recorded{reason}"))
    }

    /// Records a step, or counts it.
    fn record(
        &mut self,
        step: RecordStep,
        conversation: &AcpConversation,
        tap: &Tap,
        runtime: &Runtime,
    ) {
        if let StepKind::Open { cwd } = &step.what {
            self.note_opened(&step.session, cwd.as_deref());
            return;
        }
        if self.down_until.is_some_and(|until| Instant::now() < until) {
            self.dropped += 1;
            return;
        }
        let agent = conversation.agent().unwrap_or(&self.program).to_owned();
        let key = self.key();
        for attempt in 1..=ATTEMPTS {
            let error = match runtime.block_on(self.carry_out(&step, &agent, key.clone())) {
                Ok(()) => {
                    self.down_until = None;
                    return;
                }
                Err(error) => error,
            };
            let is_down = matches!(error.exit(), Exit::Unreachable | Exit::Busy);
            self.problem.get_or_insert_with(|| error.message());
            // At the end nobody waits for a daemon that is away.
            if !is_down || attempt == ATTEMPTS || tap.wait_closed(Instant::now() + PAUSE) {
                self.down_until = is_down.then(|| Instant::now() + DOWN);
                self.dropped += 1;
                return;
            }
        }
    }

    /// Notes that the editor opened a session. A session in which nothing is said leaves no trace.
    fn note_opened(&mut self, session: &str, directory: Option<&str>) {
        if let Some(directory) = directory {
            let mut known = self.known.0.lock();
            known.directories.insert(session.to_owned(), directory.to_owned());
        }
        // What is replayed when it is opened again has records already.
        if let Some(opened) = self.opened.get_mut(session) {
            opened.is_known = true;
        }
    }

    fn key(&mut self) -> Option<String> {
        self.n_steps += 1;
        Some(format!("acp-{}-{}", self.run, self.n_steps))
    }

    async fn carry_out(
        &mut self,
        step: &RecordStep,
        agent: &str,
        key: Option<String>,
    ) -> CommandResult {
        let opened = self.open(&step.session, agent).await?;
        let (session_id, is_known) = (opened.id, opened.is_known);
        if step.is_replay && is_known {
            return Ok(());
        }
        match &step.what {
            StepKind::Open { .. } => Ok(()),
            StepKind::Title(title) => {
                let mut title = title.clone();
                ollm_protocol::limits::BoundedField::Title.shorten(&mut title);
                self.call::<SessionUpdate>(&SessionUpdateParams {
                    title: Some(title),
                    ..SessionUpdateParams::new(session_id)
                })
                .await
            }
            StepKind::User(text) => {
                let message = MessageInput::text(Role::User, text.as_str());
                self.call::<SessionRecord>(&SessionRecordParams { session_id, message, key }).await
            }
            StepKind::Answer { thought, text, end } => {
                let thought =
                    (!thought.is_empty()).then(|| Part::Thinking { text: thought.clone() });
                let text = (!text.is_empty()).then(|| Part::Text { text: text.clone() });
                let message = MessageInput {
                    parts: Some(thought.into_iter().chain(text).collect()),
                    content: None,
                    finish_reason: end.clone(),
                    ..MessageInput::text(Role::Assistant, "")
                };
                self.call::<SessionRecord>(&SessionRecordParams { session_id, message, key }).await
            }
            StepKind::Call(call) => {
                let error = (call.success == Some(false)).then(|| "the tool failed".to_owned());
                let result = ToolResult {
                    llm_content: call.output.clone(),
                    success: call.success,
                    error,
                    ..ToolResult::default()
                };
                let tool_call = ToolCallInput {
                    id: call.id.clone(),
                    name: call.name.clone(),
                    args: call.args.clone(),
                    result,
                    timestamp: None,
                    duration_ms: None,
                    message_seq: None,
                    writes: None,
                    writes_omitted: 0,
                };
                self.call::<SessionRecordToolCall>(&SessionRecordToolCallParams {
                    session_id,
                    tool_call,
                    key,
                })
                .await
            }
        }
    }

    async fn call<M: Method>(&self, params: &M::Params) -> CommandResult {
        self.link.call::<M>(params).await.map(drop)
    }

    /// Returns the session of the daemon, which is created for a new session of the agent.
    async fn open(&mut self, session: &str, agent: &str) -> CommandResult<&OpenedSession> {
        if !self.opened.contains_key(session) {
            let created = SessionCreateParams {
                metadata: Some(metadata(agent, session)),
                key: Some(format!(
                    "acp-{}",
                    blake3::hash(format!("{agent}\0{session}").as_bytes()).to_hex()
                )),
                ..SessionCreateParams::default()
            };
            let own = self.link.call::<SessionCreate>(&created).await?.session;
            let id = own.session_id;
            let is_known = !own.draft;
            if !is_known {
                let project_path =
                    self.known.directory_of(session).filter(|path| Path::new(path).is_dir());
                // A session without its project is better than none.
                let provider = Some(agent.to_owned());
                let fields =
                    SessionUpdateParams { project_path, provider, ..SessionUpdateParams::new(id) };
                match self.call::<SessionUpdate>(&fields).await {
                    Err(CommandError::Client(ClientError::Rpc(_))) | Ok(()) => {}
                    Err(error) => return Err(error),
                }
            }
            self.known.0.lock().ids.insert(session.to_owned(), id);
            self.opened.insert(session.to_owned(), OpenedSession { id, is_known });
        }
        self.opened.get(session).ok_or(CommandError::NotRunning)
    }
}

fn metadata(agent: &str, session: &str) -> Meta {
    let own = json!({ "agent": agent, "sessionId": session });
    Meta::from_iter([("acp".to_owned(), own)])
}
