//! A chat turn: build, call the model, record, wait for tools, and again until no tool is called.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{CountKind, Usage};
use ollm_protocol::methods::chat::{ChatEvent, ChatUsage};
use ollm_protocol::{EventKind, Seq};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::AcceptedMessage;
use super::answer::{AnswerStop, StreamedAnswer};
use super::empty_answer::{AfterAnswer, Retries};
use super::model_call::ModelCall;
use super::request::TurnRequest;
use crate::app::core::Core;
use crate::app::error::{AppError, ChatError};
use crate::app::loops::may_call_model;
use crate::app::models::learning;
use crate::app::running::{Claim, RunningTurn};
use crate::context::reliability::{Evidence, judge};
use crate::model::{Capability, ChatEnd, ModelError, ModelInfo, PromptCount, Target};
use crate::shutdown::Tasks;

/// A model that was loaded for this long was just loaded, so the server may have given it another window.
const LOADED_NOW: Duration = Duration::from_secs(1);

/// Sends the events of a turn to its client as long as that listens.
pub(super) struct TurnReporter(mpsc::Sender<Result<ChatEvent, AppError>>);

impl TurnReporter {
    /// Waits for a slow client, but not longer than until the turn is canceled.
    pub(super) async fn send(&self, event: ChatEvent, cancel: &CancellationToken) {
        tokio::select! {
            biased;
            // Fails for a client that left.
            sent = self.0.send(Ok(event)) => drop(sent),
            () = cancel.cancelled() => {}
        }
    }

    async fn send_last(&self, last: Result<ChatEvent, AppError>) {
        drop(self.0.send(last).await);
    }
}

/// A running turn.
pub(super) struct Turn {
    pub(super) core: Arc<Core>,
    pub(super) claim: Claim<RunningTurn>,
    pub(super) request: TurnRequest,
    pub(super) reporter: TurnReporter,
}

impl Turn {
    pub(super) fn new(
        core: Arc<Core>,
        claim: Claim<RunningTurn>,
        request: TurnRequest,
        sender: mpsc::Sender<Result<ChatEvent, AppError>>,
    ) -> Self {
        Self { core, claim, request, reporter: TurnReporter(sender) }
    }

    pub(super) fn cancel(&self) -> &CancellationToken {
        &self.claim.value.cancel
    }

    pub(super) async fn report(&self, event: ChatEvent) {
        self.reporter.send(event, self.cancel()).await;
    }

    /// Runs the turn and reports how it ended.
    pub(super) async fn run(self, accepted: AcceptedMessage, tasks: &Tasks) {
        let model = self.request.model.clone();
        self.publish(EventKind::TurnStarted, accepted.seq, json!({ "model": model }));
        let last = self.answer(accepted, tasks).await;
        let (seq, data) = match &last {
            Ok(ChatEvent::Done { seq, finish_reason, .. }) => {
                (Some(*seq), json!({ "model": model, "finishReason": finish_reason }))
            }
            Ok(_) => (None, Value::Null),
            Err(error) => {
                let partial =
                    if let AppError::Chat(error) = error { error.partial() } else { None };
                (partial, json!({ "model": model, "error": error.to_string() }))
            }
        };
        self.publish(EventKind::TurnEnded, seq, data);
        let Self { claim, reporter, .. } = self;
        // A client that reads the last event may start the next turn.
        drop(claim);
        reporter.send_last(last).await;
    }

    fn publish(&self, kind: EventKind, seq: Option<Seq>, data: Value) {
        self.core.publish(self.request.id, seq, kind, data);
    }

    /// Answers the message and returns the last event.
    async fn answer(
        &self,
        accepted: AcceptedMessage,
        tasks: &Tasks,
    ) -> Result<ChatEvent, AppError> {
        let AcceptedMessage { seq, duplicate, answered } = accepted;
        let model = self.request.model.clone();
        self.report(ChatEvent::Accepted { seq, duplicate, model }).await;
        if let Some((seq, finish_reason)) = answered {
            return Ok(ChatEvent::Done { seq, finish_reason, usage: None });
        }
        let core = &self.core;
        let info = async { Ok(core.models.info(&self.request.model).await?) };
        let info = self.unless_ended(tasks, info).await?;
        self.check_capabilities(&info)?;
        let (mut retries, mut shrink) = (Retries::default(), None);
        loop {
            may_call_model(core, self.request.id).await?;
            let call = self.call_model(&info, tasks, shrink.take()).await?;
            let effective = self.measure(&call).await;
            if let AfterAnswer::CallAgain(required) =
                self.after_answer(&info, &call, effective, &mut retries).await?
            {
                shrink = required;
                continue;
            }
            let (seq, usage) = self.record(&info, &call, effective).await?;
            let seq = seq.ok_or_else(|| self.empty_answer_error(&call, None))?;
            if call.answer.calls.is_empty() {
                let finish_reason = call.answer.finish_reason().to_owned();
                return Ok(ChatEvent::Done { seq, finish_reason, usage: Some(usage) });
            }
            // Before the tools run: their results would not be sent to the model.
            may_call_model(core, self.request.id).await?;
            self.wait_for_tools(seq, call.answer, tasks).await?;
        }
    }

    /// Refuses what the model cannot do.
    fn check_capabilities(&self, info: &ModelInfo) -> Result<(), AppError> {
        let lacks_tools = !self.request.tools.is_empty() && info.can("tools") == Some(false);
        if !lacks_tools {
            return Ok(());
        }
        let host = self.core.models.backend()?.host();
        let to = Target { host, model: Some(self.request.model.clone()) };
        Err(ModelError::Unsupported { to, capability: Capability::Tools }.into())
    }

    /// Records an answer and reports its usage; returns an error for an answer that was cut off. An answer without
    /// content has no record.
    pub(super) async fn record(
        &self,
        info: &ModelInfo,
        call: &ModelCall,
        effective: Option<u32>,
    ) -> Result<(Option<Seq>, ChatUsage), AppError> {
        let ModelCall { answer, built, .. } = call;
        let (core, id) = (&self.core, self.request.id);
        let counted = answer.end.as_ref().ok().map(|end| Usage {
            model: Some(self.request.model.clone()),
            prompt_tokens: prompt_tokens(end).unwrap_or(built.tokens_used),
            answer_tokens: end.answer_tokens.unwrap_or_default(),
        });
        let partial = answer.record(core, id, &self.request.model, counted).await?;
        let end = match &answer.end {
            Ok(end) => end,
            Err(AnswerStop::Canceled) => return Err(ChatError::Canceled { partial }.into()),
            Err(AnswerStop::Stopping) => return Err(AppError::Stopping),
            Err(AnswerStop::Failed(error)) => {
                return Err(ChatError::Model { source: error.clone(), partial }.into());
            }
        };
        let n_compactions = core.sessions.peek(id, |live| live.state().compression_count());
        let usage = usage(info, call, end, effective, n_compactions.unwrap_or_default());
        self.report(ChatEvent::Usage { usage: usage.clone() }).await;
        self.check_count(call, end, partial).await?;
        Ok((partial, usage))
    }

    /// Notes how fast the model read the prompt, and returns the window that it runs with.
    async fn measure(&self, call: &ModelCall) -> Option<u32> {
        let end = call.answer.end.as_ref().ok()?;
        let num_ctx = call.request.num_ctx;
        let effective = self.effective_window(end, num_ctx).await;
        let smaller = effective.filter(|effective| *effective < num_ctx);
        self.core.speeds.note(&self.request.model, end, smaller);
        effective
    }

    /// Returns the window that the server gave the model; asks for it after the model was loaded.
    async fn effective_window(&self, end: &ChatEnd, num_ctx: u32) -> Option<u32> {
        let measured = self.core.speeds.get(&self.request.model);
        if measured.last_used.is_some() && end.load.is_none_or(|load| load < LOADED_NOW) {
            return measured.effective.or(Some(num_ctx));
        }
        self.core.models.in_memory(&self.request.model).await?.effective
    }

    /// Compares the tokens that the server read with those that were sent, and learns from the difference.
    ///
    /// **Errors**: `Truncated` if the server read fewer tokens than its own rendering has. A rendering that agrees with
    /// the server means that the count was wrong: its template is not used again.
    async fn check_count(
        &self,
        call: &ModelCall,
        end: &ChatEnd,
        partial: Option<Seq>,
    ) -> Result<(), AppError> {
        let ModelCall { built, request, .. } = call;
        let PromptCount::Whole(read) = end.prompt else { return Ok(()) };
        if built.count_kind != CountKind::Exact {
            learning::calibrate(&self.core, request, read).await;
            return Ok(());
        }
        // Some servers call the model twice for an answer in a given format.
        if read == built.tokens_used || request.format.is_some() {
            return Ok(());
        }
        let rendered = match read < built.tokens_used {
            true => learning::rendered_tokens(&self.core, request).await,
            false => None,
        };
        if read > built.tokens_used || rendered == Some(read) {
            learning::distrust(&self.core, request).await;
            return Ok(());
        }
        let (model, sent) = (self.request.model.clone(), built.tokens_used);
        let data = json!({ "model": model, "sentTokens": sent, "readTokens": read });
        self.publish(EventKind::ServerTruncated, partial, data);
        Err(ChatError::Truncated { model, sent, read, partial }.into())
    }

    /// Reports the tool calls of an answer and waits until all results are recorded.
    async fn wait_for_tools(
        &self,
        seq: Seq,
        answer: StreamedAnswer,
        tasks: &Tasks,
    ) -> Result<(), AppError> {
        if self.request.tools.is_empty() {
            let name = answer.calls.first().map(|call| call.name.clone()).unwrap_or_default();
            let model = self.request.model.clone();
            return Err(ChatError::UnexpectedCall { model, name, partial: seq }.into());
        }
        let pending = &self.claim.value.pending_calls;
        pending.begin(seq, answer.calls.clone());
        let after = self.core.config().ollama.tool_timeout;
        let timeout_ms = as_ms(after);
        self.report(ChatEvent::ToolCalls { seq, calls: answer.calls, timeout_ms }).await;
        let complete = async { Ok(tokio::time::timeout(after, pending.complete()).await) };
        let waited = self.unless_ended(tasks, complete).await;
        let missing = pending.end();
        match waited? {
            Ok(()) => Ok(()),
            Err(_) => Err(ChatError::ToolTimeout { missing, after }.into()),
        }
    }

    /// Runs `work` unless the turn is canceled or the daemon shuts down first.
    pub(super) async fn unless_ended<T>(
        &self,
        tasks: &Tasks,
        work: impl Future<Output = Result<T, AppError>>,
    ) -> Result<T, AppError> {
        tokio::select! {
            biased;
            () = self.cancel().cancelled() => Err(ChatError::Canceled { partial: None }.into()),
            () = tasks.stopping() => Err(AppError::Stopping),
            done = work => done,
        }
    }
}

pub(super) fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the tokens of the whole prompt, if the server reports them.
fn prompt_tokens(end: &ChatEnd) -> Option<u64> {
    match end.prompt {
        PromptCount::Whole(tokens) => Some(tokens),
        PromptCount::Uncached(_) | PromptCount::Unknown => None,
    }
}

fn usage(
    info: &ModelInfo,
    call: &ModelCall,
    end: &ChatEnd,
    effective: Option<u32>,
    compression_count: u64,
) -> ChatUsage {
    let evidence = Evidence {
        parameters: info.parameter_count,
        n_compactions: u32::try_from(compression_count).unwrap_or(u32::MAX),
        count_kind: call.built.count_kind,
        retention: None,
    };
    ChatUsage {
        prompt_tokens: prompt_tokens(end),
        cached_tokens: end.cached_tokens,
        answer_tokens: end.answer_tokens,
        compression_count,
        reliability: (compression_count > 0).then(|| judge(&evidence)),
        context_tokens: call.built.tokens_used,
        prompt_limit: call.built.token_budget,
        count_kind: Some(call.built.count_kind),
        requested_context: call.request.num_ctx,
        trained_context: info.trained,
        effective_context: effective,
        load_ms: end.load.map(as_ms),
        reading_ms: end.reading.map(as_ms),
        answering_ms: end.answering.map(as_ms),
    }
}
