//! The agent: takes the messages of the editor, runs each request as a task, and passes on what the daemon reports.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ollm_protocol::event::EventKind;
use ollm_protocol::methods::event::EventSubscribeParams;
use ollm_protocol::{Event, sanitize};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::signal::unix::SignalKind;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet, yield_now};
use tokio::time::timeout;

use super::acknowledgment::Acknowledgment;
use super::cancel::Cancellation;
use super::held::HeldPrompts;
use super::schema::{
    CancelRequest, ClientCapabilities, Initialize, OnlySession, RequestError, SessionToOpen,
    SessionUpdate, code,
};
use super::sessions::{EditorSession, EditorSessions};
use super::settings::ModelChoices;
use super::version::AcpVersion;
use super::wire::{Editor, EditorMessage, read_messages};
use super::{requests, settings, turn};
use crate::background::Signals;
use crate::command_error::{CommandError, CommandResult};
use crate::connection::{Connector, EventFeed, ReconnectingClient};
use crate::error::ClientError;

/// Requests that run at the same time; an editor has a few for each of its sessions.
const MAX_REQUESTS: usize = 256;
/// Tasks at the same time, those for events and refusals too. With more, the agent reads nothing until some have ended.
const MAX_TASKS: usize = 2 * MAX_REQUESTS;
/// The longest wait for a reply of the daemon: deleting or loading a large session takes long on a slow disk.
const REPLY_LIMIT: Duration = Duration::from_secs(120);
/// The longest wait for short requests, and for what is still to be written, after the end of the input.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Events that wait for the agent. More of them wait in the daemon.
const WAITING_EVENTS: usize = 64;
/// The events that change what an editor shows of a session.
const KINDS: [EventKind; 9] = [
    EventKind::SessionCreated,
    EventKind::SessionUpdated,
    EventKind::SessionDeleted,
    EventKind::ModeChanged,
    EventKind::GoalUpdated,
    EventKind::BranchChanged,
    EventKind::CompressionProgress,
    EventKind::CompressionError,
    EventKind::Compressed,
];

/// The settings of an agent, from the command line.
pub(crate) struct AgentSettings {
    pub(crate) connector: Connector,
    /// The global flags for a command of `ollmctl` that the agent runs.
    pub(crate) flags: Vec<OsString>,
    /// The model of new sessions; `None` for the configured one.
    pub(crate) model: Option<String>,
    /// Set if an editor that asks for the draft of version 2 gets it.
    pub(crate) speaks_v2: bool,
}

/// The state that all requests share.
pub(super) struct Agent {
    pub(super) daemon: Arc<ReconnectingClient>,
    pub(super) editor: Editor,
    pub(super) flags: Vec<OsString>,
    pub(super) model: Option<String>,
    pub(super) open: EditorSessions,
    pub(super) models: ModelChoices,
    /// The newest version that an editor gets.
    newest: AcpVersion,
    running: Mutex<HashMap<u64, RunningRequest>>,
    n_requests: AtomicU64,
    held: HeldPrompts,
}

/// A request that has not ended.
struct RunningRequest {
    /// The id of the request; `None` if it was answered, as a prompt is that is recorded.
    id: Option<Value>,
    cancellation: Cancellation,
    /// The session of a prompt, which `session/cancel` names; `None` for other requests.
    prompt_of: Option<String>,
}

/// The answer to a request, and what the editor is told behind it.
pub(super) struct Answer {
    pub(super) result: Value,
    pub(super) then: Vec<(String, SessionUpdate)>,
}

/// The result of a request.
pub(super) type RequestResult<T = Answer> = Result<T, RequestError>;

impl From<Value> for Answer {
    fn from(result: Value) -> Self {
        Self { result, then: Vec::new() }
    }
}

impl From<ClientError> for RequestError {
    /// Returns the error with its message and, for editors that show only that, the command that may help.
    fn from(error: ClientError) -> Self {
        let (kind, hint) = (error.kind().to_owned(), error.hint());
        let code = match (kind.as_str(), &error) {
            ("sessionNotFound" | "invalidId", _) => code::NOT_FOUND,
            (_, ClientError::Rpc(failure)) => failure.code,
            _ => code::INTERNAL,
        };
        let fields = error.fields().cloned().unwrap_or_default();
        let message = CommandError::from(error).message();
        let text = match &hint {
            Some(hint) => format!("{message} (try: {hint})"),
            None => message,
        };
        let mut data = json!({ "kind": kind, "hint": hint });
        if let Some(data) = data.as_object_mut() {
            data.retain(|_, value| !value.is_null());
            data.extend(fields);
        }
        Self { code, message: text, data: Some(data) }
    }
}

/// Serves the editor on stdin and stdout until the input ends, the editor has gone, or a signal arrives.
pub(crate) fn serve(settings: AgentSettings) -> CommandResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(CommandError::Signals)?;
    let served = runtime.block_on(serve_editor(settings));
    // An attempt to connect may still wait for a silent daemon.
    runtime.shutdown_background();
    served
}

async fn serve_editor(settings: AgentSettings) -> CommandResult {
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let mut signals = Signals::listen(&kinds).map_err(CommandError::Signals)?;
    let mut messages = read_messages(std::io::stdin())?;
    let (editor, all_written) = Editor::new(std::io::stdout())?;
    let daemon = ReconnectingClient::new(settings.connector.with_timeout(REPLY_LIMIT));
    let agent = Arc::new(Agent {
        daemon: Arc::new(daemon),
        editor,
        flags: settings.flags,
        model: settings.model,
        open: EditorSessions::default(),
        models: ModelChoices::default(),
        newest: if settings.speaks_v2 { AcpVersion::V2 } else { AcpVersion::V1 },
        running: Mutex::default(),
        n_requests: AtomicU64::new(0),
        held: HeldPrompts::new(),
    });
    let (mut requests, mut feeding) = (JoinSet::new(), JoinSet::new());
    let mut events = follow_events(&agent.daemon, &mut feeding);
    loop {
        tokio::select! {
            message = messages.recv(), if requests.len() < MAX_TASKS => match message {
                Some(message) => agent.received(message, &mut requests),
                None => break,
            },
            Some(done) = requests.join_next() => report(done),
            Some(event) = events.recv() => agent.happened(event, &mut requests),
            () = agent.editor.gone() => break,
            _ = signals.next() => break,
        }
    }
    agent.held.editor_left();
    // The prompts that were read before a signal or before the editor had gone are not lost.
    messages.close();
    while let Some(message) = messages.recv().await {
        agent.received(message, &mut requests);
    }
    agent.end(&mut requests).await;
    drop((agent, requests, feeding));
    wait_for_output(all_written).await;
    Ok(())
}

/// Follows the events in a task.
fn follow_events(
    daemon: &Arc<ReconnectingClient>,
    feeding: &mut JoinSet<()>,
) -> mpsc::Receiver<Event> {
    let params = EventSubscribeParams { kinds: KINDS.to_vec(), ..EventSubscribeParams::default() };
    let mut feed = EventFeed::new(Arc::clone(daemon), params);
    let (sender, events) = mpsc::channel(WAITING_EVENTS);
    drop(feeding.spawn(async move { while sender.send(feed.next().await).await.is_ok() {} }));
    events
}

async fn wait_for_output(all_written: oneshot::Receiver<()>) {
    // An editor that does not read any more cannot be waited for.
    drop(timeout(END_LIMIT, all_written).await);
}

/// Reports a request that panicked. The others go on.
fn report(done: Result<(), JoinError>) {
    if let Err(error) = done
        && error.is_panic()
    {
        log(&format!("a request failed: {error}"));
    }
}

/// Writes a line for people to stderr, which editors show in a log.
pub(super) fn log(text: &str) {
    let line = format!("ollmctl acp: {}\n", sanitize::one_line(text));
    // A closed stderr has no reader.
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}

impl Agent {
    pub(super) fn capabilities(&self) -> ClientCapabilities {
        self.editor.capabilities()
    }

    pub(super) fn version(&self) -> AcpVersion {
        self.editor.version()
    }

    /// Handles a message. Never waits, so that a cancellation is always read.
    fn received(self: &Arc<Self>, message: EditorMessage, requests: &mut JoinSet<()>) {
        match message {
            EditorMessage::Request { id, method, params } => {
                self.begin(id, method, params, requests)
            }
            EditorMessage::Notification { method, params } => self.notified(&method, &params),
            EditorMessage::Answer { id, result } => self.editor.answered(&id, result),
            EditorMessage::Invalid { id, error } => self.refuse(id, error, requests),
        }
    }

    fn refuse(self: &Arc<Self>, id: Value, error: RequestError, requests: &mut JoinSet<()>) {
        let agent = Arc::clone(self);
        drop(requests.spawn(async move { agent.editor.answer(&id, &Err(error)).await }));
    }

    /// Begins a request. It can be canceled from now on, before it runs, and a prompt is held.
    fn begin(
        self: &Arc<Self>,
        id: Value,
        method: String,
        params: Box<RawValue>,
        requests: &mut JoinSet<()>,
    ) {
        if requests.len() >= MAX_REQUESTS {
            let problem = format!("more than {MAX_REQUESTS} requests are running");
            return self.refuse(id, RequestError::new(code::INTERNAL, problem), requests);
        }
        let is_prompt = method == "session/prompt";
        let prompt_of = is_prompt
            .then(|| serde_json::from_str::<OnlySession>(params.get()).ok())
            .flatten()
            .map(|params| params.session_id);
        let cancellation = Cancellation::new();
        let number = self.n_requests.fetch_add(1, Ordering::Relaxed);
        let request =
            RunningRequest { id: Some(id.clone()), cancellation: cancellation.clone(), prompt_of };
        drop(self.running.lock().insert(number, request));
        let params: Arc<RawValue> = params.into();
        if is_prompt {
            self.held.hold(number, Arc::clone(&params), cancellation.clone());
        }
        let agent = Arc::clone(self);
        drop(requests.spawn(async move {
            let answer = if is_prompt {
                agent.prompt((number, &id), &params, &cancellation).await
            } else {
                agent.answer(&method, &params, &cancellation).await.map(Some)
            };
            drop(agent.running.lock().remove(&number));
            agent.held.ended(number, answer.is_err());
            let (result, then) = match answer {
                Ok(Some(answer)) => (Ok(answer.result), answer.then),
                Ok(None) => return,
                Err(error) => (Err(agent.version().error(error, &params)), Vec::new()),
            };
            agent.editor.answer(&id, &result).await;
            for (session, update) in then {
                agent.editor.update(&session, update).await;
            }
        }));
    }

    /// Answers a prompt to its end; returns `None` if the reply to it was sent before.
    async fn prompt(
        self: &Arc<Self>,
        (number, id): (u64, &Value),
        params: &RawValue,
        cancellation: &Cancellation,
    ) -> RequestResult<Option<Answer>> {
        let prompt = decode(params)?;
        let acknowledgment = Acknowledgment::new(self, number, id, params);
        let held = self.held.prompt(number);
        let ended = turn::prompt(self, prompt, &held, &acknowledgment, cancellation).await;
        self.version().prompt_answer(acknowledgment.is_sent(), ended)
    }

    /// Notes that a request was answered before its end, so that its id can be used again.
    pub(super) fn forget_id(&self, number: u64) {
        if let Some(request) = self.running.lock().get_mut(&number) {
            request.id = None;
        }
    }

    async fn answer(
        self: &Arc<Self>,
        method: &str,
        params: &RawValue,
        cancellation: &Cancellation,
    ) -> RequestResult {
        let canceled = || RequestError::new(code::CANCELED, "the request was canceled");
        cancellation.unless(self.call(method, params)).await.ok_or_else(canceled)?
    }

    async fn call(self: &Arc<Self>, method: &str, params: &RawValue) -> RequestResult {
        let version = self.version();
        match method {
            "initialize" => Ok(self.initialize(params).into()),
            "session/new" => requests::new(self, decode(params)?).await,
            "session/load" if version.has(method) => {
                requests::reopen(self, decode(params)?, true).await
            }
            "session/resume" => {
                let params: SessionToOpen = decode(params)?;
                let replays = version.replays(&params.replay_from)?;
                requests::reopen(self, params, replays).await
            }
            "session/fork" => requests::fork(self, decode(params)?).await,
            "session/list" => requests::list(self, decode(params)?).await,
            "session/close" => version.removed(requests::close(self, decode(params)?).await),
            "session/delete" => version.removed(requests::delete(self, decode(params)?).await),
            "session/set_mode" if version.has(method) => {
                settings::set_mode(self, decode(params)?).await
            }
            "session/set_config_option" => settings::set_option(self, decode(params)?).await,
            "tool_call/cancel" if version.has(method) => {
                requests::cancel_tool_call(self, &decode(params)?)
            }
            _ => {
                let problem = format!("there is no method {}", sanitize::one_line(method));
                Err(RequestError::new(code::METHOD_NOT_FOUND, problem))
            }
        }
    }

    fn initialize(&self, params: &RawValue) -> Value {
        // Capabilities that cannot be read are not used.
        let params: Initialize = serde_json::from_str(params.get()).unwrap_or_default();
        self.editor.set_capabilities(AcpVersion::client(params, self.newest));
        self.version().initialized()
    }

    fn notified(&self, method: &str, params: &RawValue) {
        match method {
            "session/cancel" => {
                if let Ok(params) = serde_json::from_str::<OnlySession>(params.get()) {
                    self.cancel_prompts(&params.session_id);
                }
            }
            "$/cancel_request" => {
                if let Ok(params) = serde_json::from_str::<CancelRequest>(params.get()) {
                    let running = self.running.lock();
                    let named =
                        |request: &&RunningRequest| request.id.as_ref() == Some(&params.request_id);
                    running
                        .values()
                        .filter(named)
                        .for_each(|request| request.cancellation.cancel());
                }
            }
            _ => {}
        }
    }

    /// Cancels the prompts of a session.
    pub(super) fn cancel_prompts(&self, session_id: &str) {
        let running = self.running.lock();
        let of_session =
            |request: &&RunningRequest| request.prompt_of.as_deref() == Some(session_id);
        running.values().filter(of_session).for_each(|request| request.cancellation.cancel());
    }

    /// Passes an event on to the session that it concerns, if the editor has it open.
    fn happened(self: &Arc<Self>, event: Event, requests: &mut JoinSet<()>) {
        let concerned: Vec<Arc<EditorSession>> = match event.session_id {
            Some(id) => self.open.with_id(id).into_iter().collect(),
            // After lost events any session may have changed.
            None if event.kind == EventKind::Resync || event.kind == EventKind::Lagged => {
                self.open.all()
            }
            None => Vec::new(),
        };
        for session in concerned {
            let (agent, event) = (Arc::clone(self), event.clone());
            drop(requests.spawn(async move { session.happened(&agent, &event).await }));
        }
    }

    /// Ends after the last message: answers short requests, and leaves the answers of models to the daemon.
    ///
    /// An editor closes the input when its window is reloaded or closed, and when it crashed. The person finds the whole
    /// answer in the session then. A turn that may still need the tools of the editor is canceled: nobody could run them,
    /// and the session would be busy until the daemon gives up. A message that waits for an earlier prompt, for tool servers,
    /// or for the answer to another client, is recorded without an answer. To stop an answer, an editor sends
    /// `session/cancel`.
    async fn end(self: &Arc<Self>, requests: &mut JoinSet<()>) {
        // A prompt that has just arrived begins before it is ended.
        yield_now().await;
        let is_short =
            |agent: &Self| agent.running.lock().values().any(|request| request.prompt_of.is_none());
        let short = async {
            while is_short(self)
                && let Some(done) = requests.join_next().await
            {
                report(done);
            }
        };
        drop(timeout(END_LIMIT, short).await);
        // A prompt that is on its way is answered if the daemon accepts it.
        drop(timeout(END_LIMIT, self.held.close()).await);
        drop(timeout(END_LIMIT, self.open.cancel_turns_with_tools(self)).await);
        requests.abort_all();
        while requests.join_next().await.is_some() {}
        self.held.record(self).await;
        drop(timeout(END_LIMIT, self.open.close_all()).await);
    }
}

/// Returns the params of a request.
pub(super) fn decode<T: DeserializeOwned>(params: &RawValue) -> RequestResult<T> {
    // Params can be absent.
    let text = if params.get() == "null" { "{}" } else { params.get() };
    serde_json::from_str(text)
        .map_err(|error| RequestError::invalid(format!("the params are invalid: {error}")))
}
