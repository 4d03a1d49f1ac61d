//! One model call of a turn: its place in the queue, its window, its context, compacted if that is due, and its
//! answer.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{BuiltContext, CompactMode, CutRecord, RecalledRecord};
use ollm_protocol::methods::chat::{ChatEvent, ChatPhase, WaitsFor};

use super::answer::{AnswerStop, StreamedAnswer};
use super::turn::{Turn, TurnRequest, as_ms, phase};
use crate::app::build_request::BuildRequest;
use crate::app::cache::LastChat;
use crate::app::compaction::{CompactionInTurn, is_noticed, summarizes_itself};
use crate::app::context::build::build_with;
use crate::app::counts::CountedPrompts;
use crate::app::error::{ChatError, Result};
use crate::app::model_speed::{PromptReading, SentPrompt};
use crate::app::models::gate;
use crate::app::models::learning::{check_listed, counter_in_turn};
use crate::app::models::window::window_of;
use crate::model::{
    AnswerStream, ChatRequest, ModelError, ModelInfo, Priority, Ticket, cap_num_predict,
};
use crate::tokens::Counter;

/// A model call with its answer.
pub(super) struct ModelCall {
    pub(super) answer: StreamedAnswer,
    pub(super) built: BuiltContext,
    pub(super) request: ChatRequest,
    /// The tokens by which the prompt may be longer than was counted.
    pub(super) margin: u64,
    pub(super) reading: PromptReading,
}

/// A prompt that was sent.
pub(super) struct SentCall {
    /// The answer that begins.
    pub(super) sent: Result<Box<dyn AnswerStream>, ModelError>,
    pub(super) reading: PromptReading,
}

/// The records that the calls of a turn have shown to its model so far.
#[derive(Default)]
pub(super) struct ShownInTurn {
    /// The cut records, which the client knows.
    cut: Vec<CutRecord>,
    /// The earlier messages that were recalled.
    recalled: Vec<RecalledRecord>,
}

impl ShownInTurn {
    /// Adds the recalled messages of a context, each once, and returns all.
    fn add_recalled(&mut self, records: Vec<RecalledRecord>) -> Vec<RecalledRecord> {
        for record in records {
            let is_same =
                |one: &RecalledRecord| (one.session_id, one.seq) == (record.session_id, record.seq);
            if !self.recalled.iter().any(is_same) {
                self.recalled.push(record);
            }
        }
        self.recalled.clone()
    }
}

/// A call that requires a smaller context than the one before, which left no room for an answer.
pub(super) struct RequiredShrink {
    /// The tokens of the context before.
    below_tokens: u64,
    /// The error of the turn if the context does not become smaller.
    otherwise: ChatError,
}

/// An admitted place at the model, and the request for the context of the call.
struct AdmittedCall {
    ticket: Ticket,
    /// The window that all requests to the model name.
    num_ctx: u32,
    /// The model is in the server's memory.
    is_loaded: bool,
    counter: Counter,
    build: BuildRequest,
}

impl ModelCall {
    /// Requires the next call to have a smaller context.
    pub(super) const fn require_shrink(&self, otherwise: ChatError) -> RequiredShrink {
        RequiredShrink { below_tokens: self.built.context_tokens, otherwise }
    }
}

impl Turn {
    /// Calls the model once.
    ///
    /// `info`: the description of the model, which is replaced if the model was.
    /// `shrink`: taken by a call that the server answers, or whose context does not become smaller.
    /// `shown`: what the calls of the turn have shown so far.
    pub(super) async fn call_model(
        &self,
        info: &mut Arc<ModelInfo>,
        shrink: &mut Option<RequiredShrink>,
        shown: &mut ShownInTurn,
    ) -> Result<ModelCall> {
        let core = &self.core;
        self.feed().begin_answer();
        let admitted = self.admit(info).await?;
        let admitted = self.compact_if_due(admitted, info, shrink.is_some()).await?;
        let AdmittedCall { ticket, num_ctx, is_loaded, counter, build } = admitted;
        // A context that the model refused must stay small.
        let build = BuildRequest { recall: shrink.is_none(), ..build };
        let built = build_with(core, build, Some(counter.clone()));
        let mut built = self.unless_ended(built).await??;
        built.recalled = shown.add_recalled(std::mem::take(&mut built.recalled));
        let is_small = |shrink: &mut RequiredShrink| built.context_tokens < shrink.below_tokens;
        if let Some(RequiredShrink { otherwise, .. }) = shrink.take_if(|one| !is_small(one)) {
            return Err(otherwise.into());
        }
        for cut in std::mem::take(&mut built.cut) {
            if !shown.cut.contains(&cut) {
                shown.cut.push(cut);
                self.report(ChatEvent::Cut { cut }).await;
            }
        }
        if !is_loaded {
            core.speeds.note_unloaded(&self.request.model);
        }
        let margin = counter.margin(&built.messages, &self.request.tools, built.context_tokens);
        let request = self.chat_request(&mut built, num_ctx, margin, info.max_output);
        let SentCall { sent, reading } = self.send_when_accepted(&ticket, &request, &built).await?;
        let answer = match sent {
            Ok(stream) => self.read_answer(stream).await,
            // Most servers refuse a prompt before they send anything.
            Err(error @ ModelError::Overflow { .. }) => {
                let error = error.with_numbers(built.context_tokens, num_ctx);
                StreamedAnswer::empty(Err(AnswerStop::Failed(error)))
            }
            Err(error) => return Err(error.into()),
        };
        drop(ticket);
        if let Some(error) = answer.failed_at_once().filter(|error| error.is_of_server()) {
            return Err(error.clone().into());
        }
        *shrink = None;
        Ok(ModelCall { answer, built, request, margin, reading })
    }

    /// Sends a prompt and waits until its answer begins. Reports what the server does meanwhile: it may still read a prompt
    /// whose caller left.
    pub(super) async fn send(
        &self,
        request: &ChatRequest,
        built: &BuiltContext,
    ) -> Result<SentCall> {
        let TurnRequest { id, model, .. } = &self.request;
        let speeds = &self.core.speeds;
        let unread = speeds.get(model).unread_rest();
        let prompt = SentPrompt {
            session: Some(*id),
            tokens: built.context_tokens,
            prefix_tokens: built.prefix_tokens,
        };
        let backend = self.unless_ended(gate::backend_for(&self.core, *id, model)).await??;
        let mut reading = speeds.begin_reading(model, prompt);
        let sent = async {
            let mut stream = backend.stream(request);
            if is_noticed(unread) {
                self.report_queued(None, Some(WaitsFor::Server), Some(unread)).await;
                reading.sent();
                tokio::select! {
                    biased;
                    sent = &mut stream => return sent,
                    () = tokio::time::sleep(unread) => {}
                }
            }
            self.report_reading(reading.new_tokens()).await;
            reading.sent();
            stream.await
        };
        let sent = self.unless_ended(sent).await?;
        reading.waited_for(&sent);
        Ok(SentCall { sent, reading })
    }

    /// Waits for a place at the model, and finds its window and its counter.
    async fn admit(&self, info: &mut Arc<ModelInfo>) -> Result<AdmittedCall> {
        let core = &self.core;
        let TurnRequest { id, model, tools, think, context_size, .. } = &self.request;
        let ticket = core.models.queues().enter(model, Priority::Chat);
        self.unless_ended(self.wait_in_queue(&ticket)).await?;
        let reports = self.unless_ended(self.reports.current(core, *id, model)).await?;
        *info = self.unless_ended(check_listed(core, info, reports.listed)).await?;
        let loaded = reports.loaded;
        let window = window_of(core, Some(model), *context_size).size;
        let num_ctx = core.models.windows().choose(model, window, loaded.flatten());
        if loaded.is_none() {
            self.report(phase(ChatPhase::Loading)).await;
        }
        let (model, tools) = (model.clone(), tools.clone());
        let prompts = CountedPrompts { model, think: *think, tools, num_ctx: Some(num_ctx) };
        let counter = self.unless_ended(counter_in_turn(core, info, &prompts)).await??;
        if self.request.offers_recall {
            // The client may also build contexts, for which it names its own tools only.
            let tools = self.request.client_tools().to_vec();
            let own = CountedPrompts { tools, ..prompts.clone() };
            self.unless_ended(counter_in_turn(core, info, &own)).await??;
        }
        let build = BuildRequest {
            context_size: Some(window),
            model: Some(prompts.model),
            tools: prompts.tools,
            compact: CompactMode::Auto,
            ..BuildRequest::new(*id)
        };
        Ok(AdmittedCall { ticket, num_ctx, is_loaded: loaded.is_some(), counter, build })
    }

    async fn wait_in_queue(&self, ticket: &Ticket) {
        loop {
            let n_ahead = ticket.n_ahead();
            if n_ahead == 0 {
                return;
            }
            let waits_for = ticket.admitted_priority().map(|priority| match priority {
                Priority::Chat => WaitsFor::Chat,
                Priority::Background => WaitsFor::Background,
            });
            self.report_queued(Some(n_ahead as u64), waits_for, None).await;
            ticket.changed().await;
        }
    }

    pub(super) async fn report_queued(
        &self,
        ahead: Option<u64>,
        waits_for: Option<WaitsFor>,
        expected: Option<Duration>,
    ) {
        let (name, expected_ms) = (ChatPhase::Queued, expected.map(as_ms));
        let event = ChatEvent::Phase { name, tokens: None, expected_ms, ahead, waits_for };
        self.report(event).await;
    }

    /// Compacts before the call if that is due. Returns the place at the model, which may be a new one. A failure does not
    /// end the turn: the context that is built next fits, or its error says why not.
    async fn compact_if_due(
        &self,
        admitted: AdmittedCall,
        info: &mut Arc<ModelInfo>,
        must_shrink: bool,
    ) -> Result<AdmittedCall> {
        let core = &self.core;
        let (build, counter) = (admitted.build.clone(), admitted.counter.clone());
        let due = CompactionInTurn::due(core, build, counter, must_shrink);
        let Some(compaction) = self.or_log(self.unless_ended(due).await?).flatten() else {
            return Ok(admitted);
        };
        self.report(phase(ChatPhase::Compacting)).await;
        if summarizes_itself(core, self.request.id, &self.request.model) {
            let compacted = self.unless_ended(compaction.run(core, Some(&admitted.ticket)));
            self.or_log(compacted.await?);
            return Ok(admitted);
        }
        // Frees the place first: two turns that each hold the place of the other's summarizer would wait for ever.
        drop(admitted);
        self.or_log(self.unless_ended(compaction.run(core, None)).await?);
        self.admit(info).await
    }

    /// Returns the result of a step of a compaction, or logs its error.
    fn or_log<T>(&self, step: Result<T>) -> Option<T> {
        let log = |error: &_| tracing::info!(session = %self.request.id, "not compacted: {error}");
        step.inspect_err(log).ok()
    }

    async fn report_reading(&self, tokens: u64) {
        let measured = self.core.speeds.get(&self.request.model);
        let expected_ms = measured.expected_reading(tokens).map(as_ms);
        let (name, tokens) = (ChatPhase::Reading, Some(tokens));
        let event = ChatEvent::Phase { name, tokens, expected_ms, ahead: None, waits_for: None };
        self.report(event).await;
    }

    /// Moves the messages of a context into a request.
    fn chat_request(
        &self,
        built: &mut BuiltContext,
        num_ctx: u32,
        margin: u64,
        max_output: Option<u32>,
    ) -> ChatRequest {
        let TurnRequest { id, model, tools, sampling, think, format, logprobs, .. } = &self.request;
        self.core.cache.with(*id, |session| session.last_chat = Some(LastChat { think: *think }));
        // The session uses its own part of a window that is larger for others.
        let window = built.context_size.min(num_ctx);
        // The answer keeps half of its room however uncertain the count is.
        let margin = margin.min(u64::from(window).saturating_sub(built.context_tokens) / 2);
        let own = self.request.answer_limit().map(NonZeroU32::get);
        let most = own.into_iter().chain(max_output).min();
        let used = u32::try_from(built.context_tokens.saturating_add(margin)).unwrap_or(u32::MAX);
        ChatRequest {
            model: model.clone(),
            messages: std::mem::take(&mut built.messages),
            tools: tools.clone(),
            num_ctx,
            num_predict: cap_num_predict(window, used, most),
            sampling: sampling.clone(),
            think: *think,
            format: format.clone(),
            logprobs: *logprobs,
            keep_alive: self.core.keep_alive(*id),
            affinity: Some(self.core.affinity(*id)),
        }
    }
}
