//! A prompt for the model: a chat turn of the daemon, followed to its end, with the tools that it asks for.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::{CutRecord, ToolResult};
use ollm_protocol::method::ChatSubmitToolResults;
use ollm_protocol::methods::chat::{
    ChatEvent, ChatSendParams, ChatSubmitToolResultsParams, ChatToolCall, ChatToolResult,
    ChatUsage, ToolExecutor,
};
use ollm_protocol::methods::session::MessageInput;
use ollm_protocol::{ErrorKind, Seq, SessionId};
use serde_json::Value;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::acknowledgment::Acknowledgment;
use super::agent::{Agent, RequestResult, log};
use super::cancel::Cancellation;
use super::held::HeldPrompt;
use super::schema::{
    ContentBlock, Prompt, PromptEnd, RequestError, SessionActivity, SessionUpdate, StopReason,
    ToolKind, ToolStatus, code,
};
use super::sessions::EditorSession;
use super::tools::ToolOutcome;
use super::{commands, history, permissions, prompt, updates};
use crate::connection::{FollowedTurn, TurnStep};
use crate::error::ClientError;
use crate::render::units::grouped;
use crate::tracked_dir::{TrackedDir, TrackedWrites};

/// The pause between two attempts to send a message to a session that answers another client's.
const BUSY_PAUSE: Duration = Duration::from_millis(500);
/// The longest wait for the end of a turn that was canceled.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);
/// The time that a turn leaves for the way of the results, within that in which the daemon waits for them.
const RESULT_MARGIN: Duration = Duration::from_secs(2);
/// The end of a canceled prompt.
const CANCELED: PromptEnd = PromptEnd { stop_reason: StopReason::Cancelled, usage: None };

/// Answers a prompt (`session/prompt`).
pub(super) async fn prompt(
    agent: &Arc<Agent>,
    params: Prompt,
    held: &HeldPrompt<'_>,
    acknowledgment: &Acknowledgment<'_>,
    cancellation: &Cancellation,
) -> RequestResult<PromptEnd> {
    let session = agent.open.find(&params.session_id)?;
    let key = agent.version().prompt_key(&params.idempotency_key)?;
    let Some(_turn) = cancellation.unless(session.turn.lock()).await else {
        return Ok(CANCELED);
    };
    let asked = Asked { agent, session: &session, key, held, acknowledgment, cancellation };
    let ended = asked.run(params.prompt).await;
    // The next prompt begins after this.
    session.show_end(agent, &ended).await;
    ended
}

/// A prompt whose turn has come.
struct Asked<'a> {
    agent: &'a Arc<Agent>,
    session: &'a Arc<EditorSession>,
    /// The same for each attempt to send the prompt.
    key: Option<String>,
    held: &'a HeldPrompt<'a>,
    acknowledgment: &'a Acknowledgment<'a>,
    cancellation: &'a Cancellation,
}

impl Asked<'_> {
    async fn run(self, content: Vec<ContentBlock>) -> RequestResult<PromptEnd> {
        let Self { agent, session, cancellation, .. } = self;
        if let Some(command) = prompt::only_text(&content).and_then(commands::parse) {
            session.show_state(agent, SessionActivity::Running).await;
            let Self { key, acknowledgment, .. } = self;
            return commands::run(agent, session, command, key, acknowledgment, cancellation).await;
        }
        let Some(message) = cancellation.unless(message(content)).await else {
            return Ok(CANCELED);
        };
        let message = message?;
        session.show_state(agent, SessionActivity::Running).await;
        let answer = self.answer(message).await;
        session.set_needs_editor(false);
        let end = if cancellation.is_canceled() {
            // The protocol asks for this end, however the turn ended.
            if let Err(error) = answer {
                log(&format!("a canceled turn failed: {}", error.message));
            }
            CANCELED
        } else {
            answer?
        };
        // A title that follows from the first message arrives before the end of its answer.
        if let Err(error) = session.tell_fields(agent).await {
            log(&format!("the title of a session could not be read: {error}"));
        }
        Ok(end)
    }

    /// Lets the model answer a message.
    async fn answer(self, message: MessageInput) -> RequestResult<PromptEnd> {
        let Self { agent, session, key, held, acknowledgment, cancellation } = self;
        held.keep(&message);
        let id = session.prepare(agent).await?;
        let Some(problems) = cancellation.unless(session.tools.ready()).await else {
            return Ok(CANCELED);
        };
        for problem in problems {
            session.remark(agent, problem).await;
        }
        let mut tools = session.tools.definitions();
        if !agent.models.known().calls_tools(&session.choices()) {
            tools.clear();
        }
        let mut params = ChatSendParams {
            message: Some(message),
            tools,
            // The answer goes on when the editor ends, and is there when the session is loaded again.
            detach: true,
            // If the editor leaves before the reply, the message is recorded with this key, and once.
            key: Some(key.unwrap_or_else(|| held.own_key())),
            ..ChatSendParams::new(id)
        };
        let mut answering = Answering::new(agent, session, id, acknowledgment);
        loop {
            let Some(turn) = begin(agent, session, held, &params, cancellation).await? else {
                return Ok(CANCELED);
            };
            match answering.follow(turn, cancellation).await {
                // A server can refuse tools for a model although it did not say before that the model calls none.
                Err(error) if refuses_tools(&error) && !params.tools.is_empty() => {
                    params = ChatSendParams { detach: true, ..ChatSendParams::new(id) };
                    let text = "This model calls no tools: it answers without them.".to_owned();
                    session.remark(agent, text).await;
                }
                ended => return Ok(ended?),
            }
        }
    }
}

/// Returns the message of a prompt.
pub(super) async fn message(content: Vec<ContentBlock>) -> RequestResult<MessageInput> {
    if !prompt::reads_files(&content) {
        return prompt::message(content);
    }
    // A linked file can be on a disk that hangs.
    let message = tokio::task::spawn_blocking(move || prompt::message(content)).await;
    let lost = |error| RequestError::new(code::INTERNAL, format!("the prompt is lost: {error}"));
    message.map_err(lost)?
}

fn refuses_tools(error: &ClientError) -> bool {
    let reason = error.fields().and_then(|fields| fields.get("reason")?.as_str());
    error.kind() == ErrorKind::ModelRefused.as_str() && reason == Some("unsupported")
}

/// Starts a turn, if need be after the answer to the message of another client; `None` if it was canceled before.
async fn begin(
    agent: &Agent,
    session: &EditorSession,
    held: &HeldPrompt<'_>,
    params: &ChatSendParams,
    cancellation: &Cancellation,
) -> Result<Option<FollowedTurn>, ClientError> {
    let mut has_waited = false;
    while !cancellation.is_canceled() {
        let attempt = async {
            // A prompt that is not sent any more has no turn, and that of another client is not to be canceled for it.
            session.set_needs_editor(!params.tools.is_empty());
            FollowedTurn::start(Arc::clone(&agent.daemon), params.clone()).await
        };
        match held.send(attempt).await {
            Err(error) if is_busy(&error) && params.message.is_some() => {}
            started => return started.map(Some),
        }
        // The running turn is that of another client: it goes on when the editor leaves.
        session.set_needs_editor(false);
        if !std::mem::replace(&mut has_waited, true) {
            let text = "The session is answering another message; this one waits.";
            session.remark(agent, text.to_owned()).await;
        }
        if cancellation.unless(sleep(BUSY_PAUSE)).await.is_none() {
            return Ok(None);
        }
    }
    Ok(None)
}

/// Returns whether another turn is in the way, and not an earlier message that has the key of this one.
fn is_busy(error: &ClientError) -> bool {
    let holder = error.fields().and_then(|fields| fields.get("holder"));
    error.is_conflict() && !holder.is_some_and(Value::is_number)
}

/// A turn that is being answered.
struct Answering<'a> {
    agent: &'a Arc<Agent>,
    session: &'a Arc<EditorSession>,
    id: SessionId,
    acknowledgment: &'a Acknowledgment<'a>,
    /// The id of the message that the model is writing. Each call of the model writes another one.
    message_id: String,
    /// The record of the last message of the user or the model.
    last: Option<Seq>,
    /// Set if the message was sent before, until the model answers it again.
    is_repeated: bool,
    /// The calls that the daemon answers itself, until the model goes on.
    daemon_calls: BTreeSet<String>,
    /// The task that runs tools; empty while none run.
    tools: JoinSet<Vec<ChatToolResult>>,
    /// Ends the tools when the turn has ended.
    tools_cancellation: Cancellation,
    is_canceled: bool,
}

impl<'a> Answering<'a> {
    fn new(
        agent: &'a Arc<Agent>,
        session: &'a Arc<EditorSession>,
        id: SessionId,
        acknowledgment: &'a Acknowledgment<'a>,
    ) -> Self {
        Self {
            agent,
            session,
            id,
            acknowledgment,
            message_id: String::new(),
            last: None,
            is_repeated: false,
            daemon_calls: BTreeSet::new(),
            tools: JoinSet::new(),
            tools_cancellation: Cancellation::new(),
            is_canceled: false,
        }
    }

    /// Follows a turn to its end.
    async fn follow(
        &mut self,
        mut turn: FollowedTurn,
        cancellation: &Cancellation,
    ) -> Result<PromptEnd, ClientError> {
        self.message_id = self.session.next_message_id("answer");
        let ended = self.follow_steps(&mut turn, cancellation).await;
        self.end_tools().await;
        ended
    }

    async fn follow_steps(
        &mut self,
        turn: &mut FollowedTurn,
        cancellation: &Cancellation,
    ) -> Result<PromptEnd, ClientError> {
        loop {
            let limit = if self.is_canceled { CANCEL_LIMIT } else { Duration::MAX };
            let next = timeout(limit, turn.next());
            let step = tokio::select! {
                biased;
                () = cancellation.canceled(), if !self.is_canceled => {
                    self.is_canceled = true;
                    self.end_tools().await;
                    self.session.cancel_turn(self.agent).await;
                    continue;
                }
                results = finished(&mut self.tools) => {
                    self.submit(results).await?;
                    continue;
                }
                step = next => step,
            };
            match step {
                Ok(Some(Ok(TurnStep::Event(event)))) => {
                    if let Some(ended) = self.event(*event).await {
                        return ended;
                    }
                }
                Ok(Some(Ok(TurnStep::Restarted))) => self.restarted().await,
                Ok(Some(Err(error))) => return Err(error),
                // The turn has ended, or does not end although it was canceled: the daemon ends it later.
                Ok(None) | Err(_) => return Ok(CANCELED),
            }
        }
    }

    /// Handles an event; returns the end of the turn, if it is that.
    async fn event(&mut self, event: ChatEvent) -> Option<Result<PromptEnd, ClientError>> {
        match event {
            ChatEvent::Accepted { seq, duplicate, .. } => self.accepted(seq, duplicate).await,
            ChatEvent::Phase { .. } => {
                self.daemon_calls_done().await;
                self.show(updates::phase(&event)).await;
                if let Some(text) = updates::phase_text(&event) {
                    self.session.notice(self.agent, text).await;
                }
            }
            ChatEvent::Cut { cut } => self.session.remark(self.agent, cut_text(&cut)).await,
            ChatEvent::Failover { message, to, .. } => {
                let text = format!("{message}: {to} answers instead.");
                self.session.remark(self.agent, text).await;
            }
            ChatEvent::Delta { text, thinking } => self.delta(text, thinking).await,
            ChatEvent::Logprobs { .. } => {}
            ChatEvent::ToolCalls { seq, calls, by: Some(ToolExecutor::Daemon), .. } => {
                self.last = Some(seq);
                for call in calls {
                    let report = updates::tool_call(&call, ToolStatus::InProgress);
                    self.show(SessionUpdate::ToolCall(report)).await;
                    let _is_new = self.daemon_calls.insert(call.id);
                }
            }
            ChatEvent::ToolCalls { seq, calls, by: None, timeout_ms } => {
                self.last = Some(seq);
                let limit = Duration::from_millis(timeout_ms).saturating_sub(RESULT_MARGIN);
                self.run_tools(calls, limit);
            }
            ChatEvent::Usage { usage } => {
                self.message_id = self.session.next_message_id("answer");
                self.show(updates::usage(&usage)).await;
            }
            ChatEvent::Done { finish_reason, usage, .. } => {
                self.daemon_calls_done().await;
                self.show_repeated().await;
                return Some(Ok(done(&finish_reason, usage.as_ref())));
            }
            ChatEvent::Error { code, message, data } => {
                let error = ClientError::of_turn(code, message, data);
                let is_canceled = self.is_canceled && error.kind() == ErrorKind::Canceled.as_str();
                return Some(if is_canceled { Ok(CANCELED) } else { Err(error) });
            }
        }
        None
    }

    async fn accepted(&mut self, message: Option<Seq>, is_repeated: bool) {
        self.is_repeated |= is_repeated;
        if let Some(seq) = message {
            // A turn that begins again goes on behind the answers that it has already.
            let _last = self.last.get_or_insert(seq);
            self.acknowledgment.send(self.session, seq.to_string()).await;
        }
        self.session.mark_written();
        self.session.make_current(self.agent).await;
    }

    async fn delta(&mut self, text: Option<String>, thinking: Option<String>) {
        let message_id = self.agent.version().answer_id(self.message_id.clone(), self.last);
        if std::mem::take(&mut self.is_repeated) {
            for emptied in updates::emptied(&message_id) {
                self.show(emptied).await;
            }
        }
        if let Some(text) = thinking {
            self.show(updates::thought_chunk(&text, message_id.clone())).await;
        }
        if let Some(text) = text {
            self.show(updates::answer_chunk(&text, message_id)).await;
        }
    }

    /// Shows the recorded answer to a message that was sent before, if the model was not called again.
    async fn show_repeated(&mut self) {
        if !std::mem::take(&mut self.is_repeated) {
            return;
        }
        if let Err(error) = history::replay(self.agent, self.session, self.last).await {
            log(&format!("a recorded answer could not be shown: {error}"));
        }
    }

    async fn show(&self, update: SessionUpdate) {
        self.agent.editor.update(&self.session.name, update).await;
    }

    /// The turn began again: what was shown of its answer is left behind.
    async fn restarted(&mut self) {
        self.end_tools().await;
        if self.is_canceled {
            return self.session.cancel_turn(self.agent).await;
        }
        self.message_id = self.session.next_message_id("answer");
        let text = "The connection to ollmd was lost; the model answers again.".to_owned();
        self.session.remark(self.agent, text).await;
    }

    /// Shows that the daemon has answered its calls, which the model reads now.
    async fn daemon_calls_done(&mut self) {
        for id in std::mem::take(&mut self.daemon_calls) {
            self.show(updates::tool_status(id, ToolStatus::Completed, None)).await;
        }
    }

    fn run_tools(&mut self, calls: Vec<ChatToolCall>, limit: Duration) {
        self.tools_cancellation = Cancellation::new();
        let (agent, session) = (Arc::clone(self.agent), Arc::clone(self.session));
        let cancellation = self.tools_cancellation.clone();
        drop(self.tools.spawn(async move {
            // A person answers one question after the other, so the calls follow each other too.
            let mut results = Vec::with_capacity(calls.len());
            let deadline = Instant::now() + limit;
            for call in calls {
                let left = deadline.saturating_duration_since(Instant::now());
                results.push(run_tool(&agent, &session, call, left, &cancellation).await);
            }
            results
        }));
    }

    /// Ends tools whose results nobody waits for any more.
    async fn end_tools(&mut self) {
        self.tools_cancellation.cancel();
        drop(timeout(CANCEL_LIMIT, self.tools.join_next()).await);
        self.tools.abort_all();
        self.session.tool_calls.end_all();
    }

    /// Submits results one by one: each may have as many contents of files as a frame holds.
    async fn submit(&self, results: Vec<ChatToolResult>) -> Result<(), ClientError> {
        for result in results {
            let submit = async |results| {
                let params = ChatSubmitToolResultsParams { session_id: self.id, results };
                self.agent.daemon.call::<ChatSubmitToolResults>(&params).await
            };
            let plain = ChatToolResult { writes: None, writes_omitted: 0, ..result.clone() };
            let has_writes = result.writes.is_some();
            let submitted = match submit(vec![result]).await {
                Err(error @ ClientError::Rpc(_)) if has_writes && !error.is_conflict() => {
                    // A result without its files is better than none.
                    log(&format!("the files that a tool wrote are not recorded: {error}"));
                    submit(vec![plain]).await
                }
                submitted => submitted,
            };
            match submitted {
                // The turn has ended meanwhile; its last event says why.
                Err(error) if error.is_conflict() || error.is_lost_connection() => return Ok(()),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(())
    }
}

/// Waits for the results of running tools; never ends without any.
async fn finished(tools: &mut JoinSet<Vec<ChatToolResult>>) -> Vec<ChatToolResult> {
    match tools.join_next().await {
        Some(Ok(results)) => results,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Some(Err(_)) | None => std::future::pending().await,
    }
}

/// Asks for permission and calls a tool.
async fn run_tool(
    agent: &Agent,
    session: &EditorSession,
    call: ChatToolCall,
    limit: Duration,
    turn: &Cancellation,
) -> ChatToolResult {
    let cancellation = &session.tool_calls.begin(&call.id, turn);
    let mut report = updates::tool_call(&call, ToolStatus::Pending);
    // Editors may allow other kinds without a question, and the kind is only guessed from the name.
    report.kind = Some(ToolKind::Other);
    report.is_cancelable = true;
    agent.editor.update(&session.name, SessionUpdate::ToolCall(report.clone())).await;
    let begun = Instant::now();
    let checked = async {
        // Such a name can have the form of a pattern, which must not become a rule.
        if !session.tools.has(&call.name) {
            return Err(format!("There is no tool {}.", call.name));
        }
        permissions::check(agent, session, &call.name, &report).await
    };
    let permitted = cancellation.unless(timeout(limit, checked)).await;
    session.show_state(agent, SessionActivity::Running).await;
    let mut writes = None;
    let (text, has_failed) = match permitted {
        Some(Ok(Ok(()))) => {
            let running = updates::tool_status(call.id.clone(), ToolStatus::InProgress, None);
            agent.editor.update(&session.name, running).await;
            let left = limit.saturating_sub(begun.elapsed());
            let (outcome, written) = call_tracked(session, &call, left, cancellation).await;
            writes = written;
            (outcome.text, outcome.has_failed)
        }
        Some(Ok(Err(refusal))) => (refusal, true),
        Some(Err(_)) => ("Nobody allowed this call in time.".to_owned(), true),
        None => ("The call was canceled.".to_owned(), true),
    };
    session.tool_calls.end(&call.id);
    let status = match has_failed {
        false => ToolStatus::Completed,
        true if cancellation.is_canceled() => ToolStatus::Cancelled,
        true => ToolStatus::Failed,
    };
    let update = updates::tool_status(call.id.clone(), status, Some(&text));
    agent.editor.update(&session.name, update).await;
    let duration_ms = u64::try_from(begun.elapsed().as_millis()).ok();
    let result =
        ToolResult { llm_content: text, success: Some(!has_failed), ..ToolResult::default() };
    let writes_omitted = writes.as_ref().map_or(0, |writes| writes.omitted);
    let writes = writes.map(|writes| writes.writes);
    ChatToolResult { id: call.id, result, duration_ms, writes, writes_omitted }
}

/// Calls a tool; returns its outcome, and the files of the session's directory that were written meanwhile.
async fn call_tracked(
    session: &EditorSession,
    call: &ChatToolCall,
    limit: Duration,
    cancellation: &Cancellation,
) -> (ToolOutcome, Option<TrackedWrites>) {
    let project = session.project.clone().filter(|_| session.tools.may_write(&call.name));
    let before = match project {
        Some(project) => {
            let dir = PathBuf::from(&session.cwd);
            let read = move || {
                let dir = dir.canonicalize().map_err(|error| error.to_string())?;
                TrackedDir::read(&dir, &project)
            };
            look(read).await
        }
        None => None,
    };
    let outcome = session.tools.call(&call.name, &call.args, limit, cancellation).await;
    let writes = match before {
        Some(before) => look(move || before.writes()).await,
        None => None,
    };
    (outcome, writes)
}

/// Looks at files in another thread. A problem costs the record of what a tool wrote, and not its result.
async fn look<T: Send + 'static>(
    at_files: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Option<T> {
    match spawn_blocking(at_files).await {
        Ok(Ok(found)) => Some(found),
        Ok(Err(problem)) => {
            log(&format!("the files that a tool wrote are not recorded: {problem}"));
            None
        }
        Err(_) => None,
    }
}

fn done(finish_reason: &str, usage: Option<&ChatUsage>) -> PromptEnd {
    let stop_reason =
        if finish_reason == "length" { StopReason::MaxTokens } else { StopReason::EndTurn };
    PromptEnd { stop_reason, usage: usage.and_then(updates::answer_usage) }
}

fn cut_text(cut: &CutRecord) -> String {
    let (shown, total) = (grouped(cut.shown_tokens), grouped(cut.total_tokens));
    format!("The model reads only {shown} of {total} tokens of this: the rest does not fit.")
}
