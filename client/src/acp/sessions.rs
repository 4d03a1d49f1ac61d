//! The sessions that the editor has open: what it is told of them.

use std::collections::{HashMap, VecDeque};
use std::mem::discriminant;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ollm_protocol::content::{GoalStatus, Session};
use ollm_protocol::event::{CompressedData, CompressionErrorData, EventKind};
use ollm_protocol::method::{
    ChatCancel, ContextStatus, GoalList, SessionCreate, SessionGet, SessionSetCurrent,
};
use ollm_protocol::methods::context::ContextStatusParams;
use ollm_protocol::methods::goal::GoalListParams;
use ollm_protocol::methods::session::{
    SessionCreateParams, SessionIdParams, SessionSetCurrentParams,
};
use ollm_protocol::{ErrorKind, Event, SessionId};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::timeout;

use super::agent::{Agent, Answer, RequestResult, log};
use super::cancel::ToolCalls;
use super::schema::{
    McpServer, PromptEnd, RequestError, SessionActivity, SessionUpdate, StopReason, code,
};
use super::settings::{Choices, apply, config_options, modes};
use super::tools::ToolServers;
use super::version::OpeningReply;
use super::{commands, updates};
use crate::commands::sessions::options::of_session;
use crate::error::ClientError;

/// The longest wait for the end of a turn that was canceled, before its session is closed or deleted.
const TURN_END_LIMIT: Duration = Duration::from_secs(5);
/// Commands whose keys are remembered, so that one that is sent again does not run again. An editor sends it again at once.
const REMEMBERED_COMMANDS: usize = 64;

/// The open sessions, by the ids that the editor uses.
#[derive(Default)]
pub(super) struct EditorSessions(Mutex<HashMap<String, Arc<EditorSession>>>);

/// A session that the editor has open.
pub(super) struct EditorSession {
    /// The id that the editor uses.
    pub(super) name: String,
    pub(super) cwd: String,
    /// The project of the daemon's session, to which the paths of written files are relative.
    pub(super) project: Option<String>,
    pub(super) tools: ToolServers,
    pub(super) tool_calls: ToolCalls,
    /// Held while a prompt is answered: prompts of a session are answered one after the other.
    pub(super) turn: tokio::sync::Mutex<()>,
    state: Mutex<EditorSessionState>,
}

struct EditorSessionState {
    /// The id of the session of the daemon. That of the editor, unless a draft was lost with a daemon.
    id: SessionId,
    /// Set until the first prompt: the daemon has nothing of the session on its disk.
    is_draft: bool,
    /// Set if the session is the current one of its project because of this agent.
    is_current: bool,
    /// Set while a turn may call tools of the editor.
    needs_editor: bool,
    choices: Choices,
    title: String,
    /// Set if the editor shows a plan.
    has_plan: bool,
    n_messages: u64,
    /// The keys and ids of the last commands.
    commands: VecDeque<(String, String)>,
    /// The state that the editor was told.
    shown: SessionActivity,
    n_compactions: u64,
    /// The compaction that runs.
    compaction: Option<String>,
    news: News,
}

/// The changes of a session that the editor was not told yet. Repeated events are one piece of news.
#[derive(Default)]
struct News {
    /// Set while a task tells the editor.
    is_told: bool,
    fields: bool,
    goals: bool,
    window: bool,
    compactions: Vec<(EventKind, Value)>,
}

impl EditorSessions {
    /// Returns an open session.
    pub(super) fn find(&self, name: &str) -> RequestResult<Arc<EditorSession>> {
        self.0.lock().get(name).cloned().ok_or_else(|| {
            let problem = format!("the session {name} is not open: load or resume it first");
            RequestError::new(code::NOT_FOUND, problem)
        })
    }

    pub(super) fn with_id(&self, id: SessionId) -> Option<Arc<EditorSession>> {
        self.0.lock().values().find(|session| session.id() == id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<EditorSession>> {
        self.0.lock().values().cloned().collect()
    }

    /// Adds a session, in place of an earlier opening of it.
    fn add(&self, session: Arc<EditorSession>) {
        drop(self.0.lock().insert(session.name.clone(), session));
    }

    pub(super) fn remove(&self, name: &str) -> Option<Arc<EditorSession>> {
        self.0.lock().remove(name)
    }

    /// Cancels the turns that may need tools of the editor.
    pub(super) async fn cancel_turns_with_tools(&self, agent: &Agent) {
        for session in self.all() {
            if session.state.lock().needs_editor {
                session.cancel_turn(agent).await;
            }
        }
    }

    /// Closes all sessions and ends their tool servers.
    pub(super) async fn close_all(&self) {
        let sessions = std::mem::take(&mut *self.0.lock());
        for session in sessions.values() {
            session.tools.close().await;
        }
    }
}

impl EditorSession {
    /// Returns an opening of a session of the daemon, whose tool servers are starting.
    pub(super) fn new(
        agent: &Arc<Agent>,
        session: &Session,
        name: String,
        cwd: String,
        servers: Vec<McpServer>,
    ) -> Arc<Self> {
        let tools = ToolServers::start(agent, servers, Path::new(&cwd));
        let state = EditorSessionState {
            id: session.session_id,
            is_draft: session.draft,
            is_current: false,
            needs_editor: false,
            choices: Choices::of(session),
            title: session.title.clone(),
            has_plan: false,
            n_messages: agent.version().first_number(SystemTime::now()),
            commands: VecDeque::new(),
            shown: SessionActivity::IDLE,
            n_compactions: 0,
            compaction: None,
            news: News::default(),
        };
        let (turn, state) = (tokio::sync::Mutex::new(()), Mutex::new(state));
        let project = session.project_path.clone();
        let tool_calls = ToolCalls::default();
        let opened = Arc::new(Self { name, cwd, project, tools, tool_calls, turn, state });
        agent.open.add(Arc::clone(&opened));
        opened
    }

    pub(super) fn id(&self) -> SessionId {
        self.state.lock().id
    }

    /// Returns the id of the session, if it is more than a draft.
    pub(super) fn written_id(&self) -> Option<SessionId> {
        let state = self.state.lock();
        (!state.is_draft).then_some(state.id)
    }

    pub(super) fn choices(&self) -> Choices {
        self.state.lock().choices.clone()
    }

    pub(super) fn set_choices(&self, choices: Choices) {
        self.state.lock().choices = choices;
    }

    pub(super) fn set_needs_editor(&self, needs_editor: bool) {
        self.state.lock().needs_editor = needs_editor;
    }

    /// Makes a draft ready to be written: with what was chosen since, and again if a daemon that ended has lost it.
    pub(super) async fn prepare(&self, agent: &Agent) -> Result<SessionId, ClientError> {
        let id = match self.written_id() {
            Some(id) => return Ok(id),
            None => self.id(),
        };
        let choices = self.choices();
        let id = match agent.daemon.call::<SessionGet>(&of_session(id)).await {
            Ok(found) => {
                let earlier = Choices::of(&found.session);
                apply(agent, id, &choices, Some(&earlier)).await?;
                id
            }
            Err(error) if error.kind() == ErrorKind::SessionNotFound.as_str() => {
                let params = create_params(self.cwd.clone(), &choices);
                agent.daemon.call::<SessionCreate>(&params).await?.session.session_id
            }
            Err(error) => return Err(error),
        };
        self.state.lock().id = id;
        Ok(id)
    }

    /// Notes that the session is on the disk of the daemon.
    pub(super) fn mark_written(&self) {
        self.state.lock().is_draft = false;
    }

    /// Returns an id that no other message of the session has while it is open. Those of records are their numbers.
    pub(super) fn next_message_id(&self, kind: &str) -> String {
        let mut state = self.state.lock();
        state.n_messages += 1;
        format!("{kind}-{}", state.n_messages)
    }

    /// Returns the id of a command, and whether it has run: one with the same key was an attempt to send this one.
    pub(super) fn command_id(&self, key: Option<String>) -> (String, bool) {
        let known = |state: &EditorSessionState| {
            let (_, id) = state.commands.iter().find(|(known, _)| Some(known) == key.as_ref())?;
            Some(id.clone())
        };
        let earlier = known(&self.state.lock());
        if let Some(id) = earlier {
            return (id, true);
        }
        let id = self.next_message_id("command");
        if let Some(key) = key {
            let commands = &mut self.state.lock().commands;
            commands.truncate(REMEMBERED_COMMANDS - 1);
            commands.push_front((key, id.clone()));
        }
        (id, false)
    }

    /// Tells the editor what the session does, if that changed.
    pub(super) async fn show_state(&self, agent: &Agent, state: SessionActivity) {
        let earlier = std::mem::replace(&mut self.state.lock().shown, state.clone());
        if discriminant(&earlier) != discriminant(&state) {
            agent.editor.update(&self.name, SessionUpdate::StateUpdate(state)).await;
        }
    }

    /// Tells the editor how a prompt has ended, if it was told of the beginning.
    pub(super) async fn show_end(&self, agent: &Agent, ended: &RequestResult<PromptEnd>) {
        let (end, error) = match ended {
            Ok(end) => (end.clone(), None),
            Err(error) => (PromptEnd::of(StopReason::Error), Some(error.clone())),
        };
        self.show_state(agent, SessionActivity::Idle { end: Some(end), error }).await;
    }

    /// Shows a remark about the answer that follows, at the least as a thought: an editor without notices has no other place
    /// for it.
    pub(super) async fn remark(&self, agent: &Agent, text: String) {
        let update = if agent.capabilities().shows_notices() {
            updates::notice("warning", text)
        } else {
            updates::thought_chunk(&format!("{text}\n"), self.next_message_id("remark"))
        };
        agent.editor.update(&self.name, update).await;
    }

    /// Shows a notice, in editors that have them.
    pub(super) async fn notice(&self, agent: &Agent, text: String) {
        if agent.capabilities().shows_notices() {
            agent.editor.update(&self.name, updates::notice("info", text)).await;
        }
    }

    /// Makes the session the current one of its project, once, so that `ollmctl` without a session means it.
    pub(super) async fn make_current(&self, agent: &Agent) {
        let id = {
            let mut state = self.state.lock();
            if std::mem::replace(&mut state.is_current, true) {
                return;
            }
            state.id
        };
        let params =
            SessionSetCurrentParams { project_path: self.cwd.clone(), session_id: Some(id) };
        if let Err(error) = agent.daemon.call::<SessionSetCurrent>(&params).await {
            log(&format!("{} has no current session: {error}", self.cwd));
        }
    }

    /// Asks the daemon to cancel the running turn.
    pub(super) async fn cancel_turn(&self, agent: &Agent) {
        let params = SessionIdParams { session_id: self.id() };
        // A daemon that does not answer has no turn, or ends it by its own deadlines.
        let canceled = agent.daemon.call::<ChatCancel>(&params);
        if let Ok(Err(error)) = timeout(TURN_END_LIMIT, canceled).await {
            log(&format!("a turn could not be canceled: {error}"));
        }
    }

    /// Tells the editor what an event means for the session. Events that arrive meanwhile are told by the same call.
    pub(super) async fn happened(&self, agent: &Agent, event: &Event) {
        if event.kind == EventKind::SessionDeleted {
            drop(agent.open.remove(&self.name));
            return self.tools.close().await;
        }
        if self.note(event) {
            self.tell_news(agent).await;
        }
    }

    /// Keeps back what happens until [`Self::tell_news`].
    pub(super) fn hold_news(&self) {
        self.state.lock().news.is_told = true;
    }

    pub(super) async fn tell_news(&self, agent: &Agent) {
        while let Some(news) = self.take_news() {
            if let Err(error) = self.tell(agent, news).await {
                log(&format!("a change of a session could not be read: {error}"));
            }
        }
    }

    /// Notes an event; returns whether nobody tells the editor yet.
    fn note(&self, event: &Event) -> bool {
        let mut state = self.state.lock();
        state.is_draft &= event.kind != EventKind::SessionCreated;
        let news = &mut state.news;
        match event.kind {
            EventKind::SessionCreated | EventKind::SessionUpdated | EventKind::ModeChanged => {
                news.fields = true;
            }
            EventKind::GoalUpdated => news.goals = true,
            EventKind::BranchChanged | EventKind::Resync | EventKind::Lagged => {
                (news.fields, news.goals) = (true, true);
            }
            EventKind::CompressionProgress
            | EventKind::CompressionError
            | EventKind::Compressed => {
                news.window |= event.kind == EventKind::Compressed;
                // Steps of one compaction are one piece of news; the newest says how it ended.
                match news.compactions.last_mut() {
                    Some((kind, data)) if *kind == event.kind => data.clone_from(&event.data),
                    _ => news.compactions.push((event.kind, event.data.clone())),
                }
            }
            _ => {}
        }
        !std::mem::replace(&mut news.is_told, true)
    }

    fn take_news(&self) -> Option<News> {
        let news = &mut self.state.lock().news;
        let is_empty = !news.fields && !news.goals && !news.window && news.compactions.is_empty();
        if is_empty {
            news.is_told = false;
            return None;
        }
        Some(std::mem::replace(news, News { is_told: true, ..News::default() }))
    }

    async fn tell(&self, agent: &Agent, news: News) -> Result<(), ClientError> {
        for (kind, data) in news.compactions {
            if let Some(update) = self.compaction_update(agent, kind, &data) {
                agent.editor.update(&self.name, update).await;
            }
        }
        if news.fields {
            self.tell_fields(agent).await?;
        }
        if news.goals {
            self.tell_plan(agent).await?;
        }
        if news.window {
            self.tell_usage(agent).await?;
        }
        Ok(())
    }

    /// Tells the editor the title and the choices of the session, as far as they changed.
    pub(super) async fn tell_fields(&self, agent: &Agent) -> Result<(), ClientError> {
        // A draft has what the editor chose, which the daemon does not know yet.
        let Some(id) = self.written_id() else { return Ok(()) };
        let session = agent.daemon.call::<SessionGet>(&of_session(id)).await?.session;
        let choices = Choices::of(&session);
        let (earlier, title) = {
            let mut state = self.state.lock();
            let earlier = std::mem::replace(&mut state.choices, choices.clone());
            (earlier, std::mem::replace(&mut state.title, session.title.clone()))
        };
        let mut updates = Vec::new();
        if title != session.title {
            updates.push(updates::info(&session));
        }
        if earlier.mode != choices.mode {
            updates.push(updates::mode(&modes(&choices)));
        }
        if earlier != choices {
            let config_options = config_options(&choices, &agent.models.known());
            updates.push(SessionUpdate::ConfigOptionUpdate { config_options });
        }
        for update in updates {
            agent.editor.update(&self.name, update).await;
        }
        Ok(())
    }

    /// Shows the steps of the active goal as a plan. An editor that shows none is told only if there is one.
    pub(super) async fn tell_plan(&self, agent: &Agent) -> Result<(), ClientError> {
        let Some(id) = self.written_id() else { return Ok(()) };
        let params = GoalListParams {
            session_id: id,
            status: Some(GoalStatus::Active),
            limit: Some(1),
            cursor: None,
        };
        let goals = agent.daemon.call::<GoalList>(&params).await?.data;
        let entries = goals.first().map(updates::plan).unwrap_or_default();
        let had_plan = {
            let mut state = self.state.lock();
            std::mem::replace(&mut state.has_plan, !entries.is_empty())
        };
        if had_plan || !entries.is_empty() {
            agent.editor.update(&self.name, SessionUpdate::Plan { entries }).await;
        }
        Ok(())
    }

    /// Shows how full the window is, with the next prompt.
    pub(super) async fn tell_usage(&self, agent: &Agent) -> Result<(), ClientError> {
        let params = ContextStatusParams { session_id: self.id(), context_size: None };
        let status = agent.daemon.call::<ContextStatus>(&params).await?;
        let (used, size) = (status.context_tokens, u64::from(status.context_size));
        agent.editor.update(&self.name, SessionUpdate::UsageUpdate { used, size }).await;
        Ok(())
    }

    /// Returns the update for a step of a compaction; `None` if the editor shows none, or no new one.
    fn compaction_update(
        &self,
        agent: &Agent,
        kind: EventKind,
        data: &Value,
    ) -> Option<SessionUpdate> {
        let capabilities = agent.capabilities();
        let mut state = self.state.lock();
        let running = state.compaction.take();
        let is_new = running.is_none();
        let id = running.unwrap_or_else(|| {
            state.n_compactions += 1;
            format!("compaction-{}", state.n_compactions)
        });
        // Lines of the records take the place of a summary: the compaction goes on.
        let is_provisional = kind == EventKind::CompressionError && data["provisional"] == true;
        if kind == EventKind::CompressionProgress || (is_provisional && !is_new) {
            state.compaction = Some(id.clone());
        }
        drop(state);
        let compressed = serde_json::from_value::<CompressedData>(data.clone()).ok();
        match kind {
            EventKind::Compressed if !capabilities.shows_compactions() => {
                let text = updates::compacted(compressed.as_ref()?);
                capabilities.shows_notices().then_some(updates::notice("info", text))
            }
            _ if !capabilities.shows_compactions() => None,
            EventKind::CompressionProgress => is_new.then(|| updates::compaction_begun(id)),
            EventKind::Compressed => Some(updates::compaction_done(id, compressed.as_ref()?)),
            _ => {
                let failed = serde_json::from_value::<CompressionErrorData>(data.clone()).ok()?;
                (!failed.provisional).then(|| updates::compaction_failed(id, failed.error))
            }
        }
    }

    /// Cancels the prompts and waits for their end.
    pub(super) async fn stop(&self, agent: &Agent) {
        agent.cancel_prompts(&self.name);
        drop(timeout(TURN_END_LIMIT, self.turn.lock()).await);
    }

    /// Returns the reply to a request that opened the session.
    pub(super) fn opened(&self, agent: &Agent, is_named: bool) -> Answer {
        let choices = self.choices();
        agent.version().opened(OpeningReply {
            name: self.name.clone(),
            is_named,
            modes: modes(&choices),
            config_options: config_options(&choices, &agent.models.known()),
            commands: commands::available(),
        })
    }
}

pub(super) fn create_params(cwd: String, choices: &Choices) -> SessionCreateParams {
    SessionCreateParams {
        project_path: Some(cwd),
        model: choices.model.clone(),
        mode: choices.mode.clone(),
        options: Some(choices.options()).filter(|_| !choices.think.is_null()),
        ..SessionCreateParams::default()
    }
}
