//! The course of a turn: build, ask, record, wait for tools, and again until no tool is called.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{CountKind, Usage};
use ollm_protocol::methods::chat::{ChatEvent, ChatUsage};
use ollm_protocol::{EventKind, Seq};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::answer::{Answer, Stop};
use super::ask::Asked;
use super::plan::Plan;
use super::silence::{Next, Tries};
use super::{Accepted, ChatError, Slot};
use crate::app::loops::may_call_model;
use crate::app::{AppError, Core, counts};
use crate::context::reliability::{ReliabilityEvidence, assess_reliability};
use crate::events::EventDraft;
use crate::model::{Capability, ChatEnd, ModelError, ModelInfo, PromptCount, Target};
use crate::shutdown::Tasks;

/// Tells a turn's client what happens, as long as it listens.
pub(super) struct Teller(mpsc::Sender<Result<ChatEvent, AppError>>);

impl Teller {
    /// Waits for a client that reads slowly, but not longer than for the end of the turn.
    pub(super) async fn tell(&self, event: ChatEvent, cancel: &CancellationToken) {
        tokio::select! {
            biased;
            // Who left is not told any more.
            sent = self.0.send(Ok(event)) => drop(sent),
            () = cancel.cancelled() => {}
        }
    }

    async fn tell_last(&self, last: Result<ChatEvent, AppError>) {
        drop(self.0.send(last).await);
    }
}

/// One turn.
pub(super) struct Turn {
    pub(super) slot: Slot,
    pub(super) plan: Plan,
    pub(super) teller: Teller,
}

impl Turn {
    pub(super) fn new(
        slot: Slot,
        plan: Plan,
        sender: mpsc::Sender<Result<ChatEvent, AppError>>,
    ) -> Self {
        Self { slot, plan, teller: Teller(sender) }
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.slot.core
    }

    pub(super) fn cancel(&self) -> &CancellationToken {
        &self.slot.turn.cancel
    }

    pub(super) async fn tell(&self, event: ChatEvent) {
        self.teller.tell(event, self.cancel()).await;
    }

    /// Runs the turn to its end and tells how it ended.
    pub(super) async fn run(self, accepted: Accepted, tasks: &Tasks) {
        let model = self.plan.model.clone();
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
        let Self { slot, teller, .. } = self;
        // Whoever reads the last event may begin the next turn.
        drop(slot);
        teller.tell_last(last).await;
    }

    fn publish(&self, kind: EventKind, seq: Option<Seq>, data: Value) {
        let core = self.core();
        let session_id = Some(self.plan.id);
        core.events.publish(EventDraft { session_id, seq, kind, at: core.clock.now(), data });
    }

    async fn answer(&self, accepted: Accepted, tasks: &Tasks) -> Result<ChatEvent, AppError> {
        let Accepted { seq, duplicate, answered } = accepted;
        self.tell(ChatEvent::Accepted { seq, duplicate, model: self.plan.model.clone() }).await;
        if let Some((seq, finish_reason)) = answered {
            return Ok(ChatEvent::Done { seq, finish_reason, usage: None });
        }
        let core = self.core();
        let info = async { Ok(core.models.info(&self.plan.model).await?) };
        let info = self.unless_ended(tasks, info).await?;
        self.check(&info)?;
        let (mut tries, mut smaller) = (Tries::default(), None);
        loop {
            may_call_model(core, self.plan.id).await?;
            let asked = self.ask(&info, tasks, smaller.take()).await?;
            let effective = self.learn(&asked).await;
            if let Next::Again(if_smaller) =
                self.after(&info, &asked, effective, &mut tries).await?
            {
                smaller = if_smaller;
                continue;
            }
            let (seq, usage) = self.keep(&info, &asked, effective).await?;
            let seq = seq.ok_or_else(|| self.empty(&asked, None))?;
            if asked.answer.calls.is_empty() {
                let finish_reason = asked.answer.finish_reason().to_owned();
                return Ok(ChatEvent::Done { seq, finish_reason, usage: Some(usage) });
            }
            // What nobody would tell the model about need not be done.
            may_call_model(core, self.plan.id).await?;
            self.wait_for_tools(seq, asked.answer, tasks).await?;
        }
    }

    /// Refuses what the model says it cannot do.
    fn check(&self, info: &ModelInfo) -> Result<(), AppError> {
        let wants_tools = !self.plan.tools.is_empty() && info.can("tools") == Some(false);
        if !wants_tools {
            return Ok(());
        }
        let host = self.core().models.backend()?.host();
        let to = Target { host, model: Some(self.plan.model.clone()) };
        Err(ModelError::Unsupported { to, capability: Capability::Tools }.into())
    }

    /// Records an answer, tells what it cost, and turns an early end into an error. There is no record of one in
    /// which the model neither spoke nor thought.
    pub(super) async fn keep(
        &self,
        info: &ModelInfo,
        asked: &Asked,
        effective: Option<u32>,
    ) -> Result<(Option<Seq>, ChatUsage), AppError> {
        let Asked { answer, built, .. } = asked;
        let core = self.core();
        let counted = answer.end.as_ref().ok().map(|end| Usage {
            model: Some(self.plan.model.clone()),
            prompt_tokens: prompt_tokens(end).unwrap_or(built.tokens_used),
            answer_tokens: end.answer_tokens.unwrap_or_default(),
        });
        let partial = answer.record(core, self.plan.id, &self.plan.model, counted).await?;
        let end = match &answer.end {
            Ok(end) => end,
            Err(Stop::Canceled) => return Err(ChatError::Canceled { partial }.into()),
            Err(Stop::Stopping) => return Err(AppError::Stopping),
            Err(Stop::Failed(error)) => {
                return Err(ChatError::Model { source: error.clone(), partial }.into());
            }
        };
        let compactions = core.sessions.peek(self.plan.id, |live| live.state().compression_count());
        let usage = usage(info, asked, end, (effective, compactions.unwrap_or_default()));
        self.tell(ChatEvent::Usage { usage: usage.clone() }).await;
        self.check_count(asked, end, partial).await?;
        Ok((partial, usage))
    }

    /// Learns from an answer how fast the model reads, and the window that it really has.
    async fn learn(&self, asked: &Asked) -> Option<u32> {
        let end = asked.answer.end.as_ref().ok()?;
        let num_ctx = asked.request.num_ctx;
        let effective = self.effective(end, num_ctx).await;
        self.core().chats.learn(&self.plan.model, |learned| {
            learned.note(end);
            learned.effective = effective.filter(|effective| *effective < num_ctx);
        });
        effective
    }

    /// The window that the server really uses, asked for after it loaded the model.
    async fn effective(&self, end: &ChatEnd, num_ctx: u32) -> Option<u32> {
        let known = self.core().chats.learned(&self.plan.model);
        if known.used.is_some() && end.load.is_none_or(|load| load < Duration::from_secs(1)) {
            return known.effective.or(Some(num_ctx));
        }
        self.core().models.in_memory(&self.plan.model).await?.effective
    }

    /// Fewer tokens read than sent, where both are certain, means that the server cut the prompt.
    ///
    /// Both are held against the server's own rendering first: a count that was wrong is no truncation, and its
    /// template is not used again.
    async fn check_count(
        &self,
        asked: &Asked,
        end: &ChatEnd,
        partial: Option<Seq>,
    ) -> Result<(), AppError> {
        let Asked { built, request, .. } = asked;
        let PromptCount::Whole(read) = end.prompt else { return Ok(()) };
        if built.count_kind != CountKind::Exact {
            counts::learn_from(self.core(), request, read).await;
            return Ok(());
        }
        // Some servers ask the model twice for an answer of a given form.
        if read == built.tokens_used || request.format.is_some() {
            return Ok(());
        }
        let core = self.core();
        let rendered =
            if read < built.tokens_used { counts::rendered(core, request).await } else { None };
        if read > built.tokens_used || rendered == Some(read) {
            counts::distrust(core, request).await;
            return Ok(());
        }
        let (model, sent) = (self.plan.model.clone(), built.tokens_used);
        let data = json!({ "model": model, "sentTokens": sent, "readTokens": read });
        self.publish(EventKind::ServerTruncated, partial, data);
        Err(ChatError::Truncated { model, sent, read, partial }.into())
    }

    async fn wait_for_tools(
        &self,
        seq: Seq,
        answer: Answer,
        tasks: &Tasks,
    ) -> Result<(), AppError> {
        if self.plan.tools.is_empty() {
            let name = answer.calls.first().map(|call| call.name.clone()).unwrap_or_default();
            let model = self.plan.model.clone();
            return Err(ChatError::UnexpectedCall { model, name, partial: seq }.into());
        }
        let awaited = &self.slot.turn.awaited;
        awaited.begin(seq, answer.calls.clone());
        let after = self.core().config().ollama.tool_timeout;
        let timeout_ms = as_ms(after);
        self.tell(ChatEvent::ToolCalls { seq, calls: answer.calls, timeout_ms }).await;
        let complete = async { Ok(tokio::time::timeout(after, awaited.complete()).await) };
        let waited = self.unless_ended(tasks, complete).await;
        let missing = awaited.end();
        match waited? {
            Ok(()) => Ok(()),
            Err(_) => Err(ChatError::ToolTimeout { missing, after }.into()),
        }
    }

    /// Waits for something unless the turn is ended first.
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

/// Tokens of the whole prompt, where the server says.
fn prompt_tokens(end: &ChatEnd) -> Option<u64> {
    match end.prompt {
        PromptCount::Whole(tokens) => Some(tokens),
        PromptCount::Uncached(_) | PromptCount::Unknown => None,
    }
}

fn usage(
    info: &ModelInfo,
    asked: &Asked,
    end: &ChatEnd,
    (effective, compression_count): (Option<u32>, u64),
) -> ChatUsage {
    let evidence = ReliabilityEvidence {
        parameters: info.parameter_count,
        n_compactions: u32::try_from(compression_count).unwrap_or(u32::MAX),
        count_kind: asked.built.count_kind,
        retention: None,
    };
    ChatUsage {
        prompt_tokens: prompt_tokens(end),
        cached_tokens: end.cached_tokens,
        answer_tokens: end.answer_tokens,
        compression_count,
        reliability: (compression_count > 0).then(|| assess_reliability(&evidence)),
        context_tokens: asked.built.tokens_used,
        prompt_limit: asked.built.token_budget,
        count_kind: Some(asked.built.count_kind),
        requested_context: asked.request.num_ctx,
        trained_context: info.trained,
        effective_context: effective,
        load_ms: end.load.map(as_ms),
        reading_ms: end.reading.map(as_ms),
        answering_ms: end.answering.map(as_ms),
    }
}
