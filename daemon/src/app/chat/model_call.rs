//! One model call of a turn: its place in the queue, its window, its context, compacted if that is due, and its answer.

use std::num::NonZeroU32;

use ollm_protocol::content::{BuiltContext, CompactMode};
use ollm_protocol::methods::chat::{ChatEvent, ChatPhase};
use ollm_protocol::methods::context::ContextBuildParams;

use super::answer::StreamedAnswer;
use super::request::TurnRequest;
use super::turn::{Turn, as_ms};
use crate::app::compaction::{CompactionInTurn, compact_in_turn, is_due, summarizes_itself};
use crate::app::context::build::build_with;
use crate::app::error::{AppError, Result};
use crate::app::models::learning::learned_counter;
use crate::app::partial::PartialWriter;
use crate::model::{ChatRequest, ModelError, ModelInfo, Priority, Ticket, cap_num_predict};
use crate::shutdown::Tasks;
use crate::tokens::Counter;

/// A model call with its answer.
pub(super) struct ModelCall {
    pub(super) answer: StreamedAnswer,
    pub(super) built: BuiltContext,
    pub(super) request: ChatRequest,
}

/// An admitted place at the model, and the params of the context to build there.
struct AdmittedCall {
    ticket: Ticket,
    /// The window that all requests to the model name.
    num_ctx: u32,
    /// The model is in the server's memory.
    is_loaded: bool,
    counter: Counter,
    params: ContextBuildParams,
}

/// A call that requires a smaller context than the one before, which left no room for an answer.
pub(super) struct RequiredShrink {
    /// The tokens of the context before.
    below: u64,
    /// The error of the turn if the context does not become smaller.
    otherwise: AppError,
}

impl ModelCall {
    /// Requires the next call to have a smaller context.
    pub(super) const fn require_shrink(&self, otherwise: AppError) -> RequiredShrink {
        RequiredShrink { below: self.built.tokens_used, otherwise }
    }
}

impl Turn {
    /// Calls the model once.
    pub(super) async fn call_model(
        &self,
        info: &ModelInfo,
        tasks: &Tasks,
        shrink: Option<RequiredShrink>,
    ) -> Result<ModelCall> {
        let core = &self.core;
        let admitted = self.admit(info, tasks).await?;
        let admitted = self.compact_if_due(admitted, info, tasks, shrink.is_some()).await?;
        let AdmittedCall { ticket, num_ctx, is_loaded, counter, params } = admitted;
        let built = build_with(core, params, Some(counter.clone()));
        let mut built = self.unless_ended(tasks, built).await?;
        if let Some(RequiredShrink { below, otherwise }) = shrink
            && built.tokens_used >= below
        {
            return Err(otherwise);
        }
        self.report_reading(&built, is_loaded).await;
        let request = self.chat_request(&mut built, num_ctx, &counter);
        let backend = core.models.backend()?;
        let stream = async { Ok(backend.stream(&request).await) };
        let answer = match self.unless_ended(tasks, stream).await? {
            Ok(stream) => {
                let partial = PartialWriter::new(self.request.id, &self.request.model);
                let ends = (self.cancel(), tasks);
                StreamedAnswer::read(core, stream, partial, &self.reporter, ends).await
            }
            // Most servers refuse a prompt before they send anything.
            Err(error @ ModelError::Overflow { .. }) => {
                StreamedAnswer::refused(error.with_numbers(built.tokens_used, num_ctx))
            }
            Err(error) => return Err(error.into()),
        };
        drop(ticket);
        Ok(ModelCall { answer, built, request })
    }

    /// Waits for a place at the model, and finds its window and its counter.
    async fn admit(&self, info: &ModelInfo, tasks: &Tasks) -> Result<AdmittedCall> {
        let (core, model) = (&self.core, &self.request.model);
        let ticket = core.models.queues().enter(model, Priority::Chat);
        self.unless_ended(tasks, async {
            self.wait_in_queue(&ticket).await;
            Ok(())
        })
        .await?;
        let window = self.request.window(info, core.speeds.get(model));
        let loaded = self.unless_ended(tasks, async { Ok(self.loaded_window().await) }).await?;
        let num_ctx = core.models.windows().choose(model, window, loaded.flatten());
        if loaded.is_none() {
            self.report(phase(ChatPhase::Loading)).await;
        }
        let prompts = self.request.counted_prompts(num_ctx);
        let counter = async { Ok(learned_counter(core, info, &prompts).await?) };
        let counter = self.unless_ended(tasks, counter).await?;
        let params = ContextBuildParams {
            context_size: Some(window),
            model: Some(model.clone()),
            tools: self.request.tools.clone(),
            compact: CompactMode::Auto,
            ..ContextBuildParams::new(self.request.id)
        };
        let is_loaded = loaded.is_some();
        Ok(AdmittedCall { ticket, num_ctx, is_loaded, counter, params })
    }

    async fn wait_in_queue(&self, ticket: &Ticket) {
        loop {
            let n_ahead = ticket.n_ahead();
            if n_ahead == 0 {
                return;
            }
            let name = ChatPhase::Queued;
            let ahead = Some(n_ahead as u64);
            self.report(ChatEvent::Phase { name, tokens: None, expected_ms: None, ahead }).await;
            ticket.changed().await;
        }
    }

    /// Returns the window of the model in the server's memory, or `None` if it is not there; asks the server only after
    /// a pause.
    async fn loaded_window(&self) -> Option<Option<u32>> {
        let (core, model) = (&self.core, &self.request.model);
        let last_used = core.speeds.get(model).last_used;
        if last_used.is_some_and(|used| used.elapsed() < core.config().ollama.keep_alive / 2) {
            return Some(core.models.windows().current(model));
        }
        core.models.in_memory(model).await.map(|running| running.effective_context)
    }

    /// Compacts before the call if that is due. A failure does not end the turn: the context that is built next fits, or
    /// its error says why not.
    async fn compact_if_due(
        &self,
        admitted: AdmittedCall,
        info: &ModelInfo,
        tasks: &Tasks,
        must_shrink: bool,
    ) -> Result<AdmittedCall> {
        let core = &self.core;
        let params = ContextBuildParams { compact: CompactMode::Never, ..admitted.params.clone() };
        let (params, counter) = (&params, &admitted.counter.clone());
        let turn = |ticket| CompactionInTurn { params, counter, ticket, must_shrink };
        let due = self.unless_ended(tasks, is_due(core, turn(Some(&admitted.ticket)))).await;
        if !self.unless_fatal(due)? {
            return Ok(admitted);
        }
        self.report(phase(ChatPhase::Compacting)).await;
        if summarizes_itself(core, &self.request.model) {
            let compaction = compact_in_turn(core, turn(Some(&admitted.ticket)));
            let done = self.unless_ended(tasks, compaction).await;
            self.unless_fatal(done)?;
            return Ok(admitted);
        }
        // Two turns that each hold one place and wait for the other's would wait for ever.
        drop(admitted);
        let turn = CompactionInTurn { params, counter, ticket: None, must_shrink };
        let done = self.unless_ended(tasks, compact_in_turn(core, turn)).await;
        self.unless_fatal(done)?;
        self.admit(info, tasks).await
    }

    /// Logs an error of a compaction, unless it ends the turn.
    fn unless_fatal(&self, compacted: Result<bool>) -> Result<bool> {
        match compacted {
            Ok(done) => Ok(done),
            Err(error @ (AppError::Chat(_) | AppError::Stopping)) => Err(error),
            Err(error) => {
                tracing::info!(session = %self.request.id, "not compacted: {error}");
                Ok(false)
            }
        }
    }

    async fn report_reading(&self, built: &BuiltContext, is_loaded: bool) {
        let cached = if is_loaded { built.prefix_tokens } else { 0 };
        let tokens = built.tokens_used.saturating_sub(cached);
        let measured = self.core.speeds.get(&self.request.model);
        let expected_ms = measured.expected_reading(tokens).map(as_ms);
        let (name, tokens) = (ChatPhase::Reading, Some(tokens));
        self.report(ChatEvent::Phase { name, tokens, expected_ms, ahead: None }).await;
    }

    /// Moves the messages of a context into a request.
    fn chat_request(
        &self,
        built: &mut BuiltContext,
        num_ctx: u32,
        counter: &Counter,
    ) -> ChatRequest {
        let TurnRequest { model, tools, sampling, max_tokens, think, format, .. } = &self.request;
        let margin = counter.margin(&built.messages, tools, built.tokens_used);
        let used = u32::try_from(built.tokens_used.saturating_add(margin)).unwrap_or(u32::MAX);
        ChatRequest {
            model: model.clone(),
            messages: std::mem::take(&mut built.messages),
            tools: tools.clone(),
            num_ctx,
            // The session uses its own part of a window that is larger for others.
            num_predict: cap_num_predict(
                built.num_ctx.min(num_ctx),
                used,
                max_tokens.map(NonZeroU32::get),
            ),
            sampling: sampling.clone(),
            think: *think,
            format: format.clone(),
            keep_alive: self.core.config().ollama.keep_alive,
        }
    }
}

fn phase(name: ChatPhase) -> ChatEvent {
    ChatEvent::Phase { name, tokens: None, expected_ms: None, ahead: None }
}
