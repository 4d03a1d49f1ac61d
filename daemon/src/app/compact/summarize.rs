//! Having a model summarize: in pieces that fit its window, each verified, with one stricter try.
//!
//! **Invariants**: the request names the window that all requests to the model name; a summary of the background gives
//! way to chats; every wait has a limit; nothing that the model says is taken without being verified.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::Seq;
use ollm_protocol::content::{ContextMessage, CountKind};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior};

use super::error::CompactError;
use crate::app::Core;
use crate::app::counts::{Purpose, prepare};
use crate::context::compact::{
    RejectedSummary, Summary, SummaryLimits, SummaryOptions, SummaryRequest, TranscriptPiece,
    complete_summary, partial_summary, summary_messages, verify_summary,
};
use crate::model::{
    ChatDelta, ChatItem, ChatRequest, DoneReason, ModelInfo, Priority, Sampling, Think, Ticket,
    clamp_window,
};
use crate::tokens::{Counter, ESTIMATE_MARGIN_DIVISOR};

/// How often a summary of the background begins again because a chat came.
const MAX_YIELDS: usize = 8;
/// How often it is looked whether a chat waits.
const LOOK: Duration = Duration::from_millis(200);
/// The longest wait for a place at the model, and the longest time for one answer: with the slowest machines a
/// summary takes minutes, and what takes longer than this is stuck.
const LONGEST: Duration = Duration::from_secs(1800);
/// Fewer tokens hold no records worth a call.
const MIN_ROOM: u64 = 96;
/// Fewer tokens hold no summary.
const MIN_TARGET: u64 = 128;

/// At whose place in the model's queue the summarizer sits.
#[derive(Clone, Copy)]
pub(super) enum Seat<'t> {
    /// At the caller's, who was admitted already.
    Held(&'t Ticket),
    /// At one of its own.
    Own(Priority),
}

/// Somebody who summarizes.
pub(super) struct Summarizer<'a> {
    core: &'a Arc<Core>,
    seat: Seat<'a>,
    info: Arc<ModelInfo>,
    model: String,
    num_ctx: u32,
    counter: Counter,
    /// The longest summary, in tokens.
    longest: u32,
}

/// What a model made of what it was asked for.
pub(super) enum Said {
    /// A summary.
    Whole(Summary),
    /// The beginning of one that it did not bring to its end within its room.
    Beginning(Summary),
}

/// Why a call gave no answer.
enum Broken {
    /// It cannot be done.
    Failed(CompactError),
    /// A chat needs the model.
    Yielded,
}

impl<'a> Summarizer<'a> {
    /// Makes ready to ask a model, whose window is agreed on with everybody else who asks it.
    pub(super) async fn new(
        core: &'a Arc<Core>,
        model: &str,
        seat: Seat<'a>,
        context_size: u32,
    ) -> Result<Self, CompactError> {
        let info = core.models.info(model).await.map_err(CompactError::Model)?;
        let wanted = clamp_window(context_size, info.trained, info.can("vision").unwrap_or(false));
        let num_ctx = match core.models.loads().current(model) {
            Some(current) if current >= wanted => current,
            _ => {
                let loaded = core.models.in_memory(model).await.and_then(|one| one.effective);
                core.models.loads().agree(model, wanted, loaded).num_ctx
            }
        };
        let longest = core.config().compression.summary_max_tokens;
        // Without a window only the vocabulary is learned, for which no place at the model is needed.
        let model = model.to_owned();
        let purpose = Purpose { model, think: None, tools: Vec::new(), num_ctx: None };
        let counter = prepare(core, &info, &purpose).await.map_err(CompactError::Model)?;
        Ok(Self { core, seat, info, model: purpose.model, num_ctx, counter, longest })
    }

    /// The model.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// Who counts for it.
    pub(super) const fn counter(&self) -> &Counter {
        &self.counter
    }

    /// The largest target up to `wanted` with which records fit into a call, and how many tokens of them do.
    pub(super) fn room(&self, wish: &SummaryOptions<'_>) -> Result<(u64, u64), CompactError> {
        let mut target = wish.target;
        loop {
            match self.room_for(&SummaryOptions { target, ..*wish }) {
                Ok(room) => return Ok((target, room)),
                Err(error) if target < MIN_TARGET => return Err(error),
                Err(_) => target -= target / 4,
            }
        }
    }

    /// Tokens of records that fit into one call beside everything else.
    fn room_for(&self, wish: &SummaryOptions<'_>) -> Result<u64, CompactError> {
        let empty = TranscriptPiece { from: Seq(0), to: Seq(0), text: String::new() };
        let around =
            self.counter.count_prompt(&summary_messages(SummaryRequest::First(&empty), wish), &[]);
        let window = u64::from(self.num_ctx.saturating_sub(1));
        // The summary so far stands in the prompt, the next one in the answer, and a retry says a little more.
        let taken = around + wish.target + u64::from(self.num_predict(wish.target)) + 64;
        let room = window.saturating_sub(window / self.margin()).saturating_sub(taken);
        if room < MIN_ROOM {
            return Err(CompactError::NoRoom { model: self.model.clone(), window: self.num_ctx });
        }
        Ok(room)
    }

    /// One verified answer; the second try says what was wrong with the first, and has more room where that was it.
    pub(super) async fn once(
        &self,
        ask: SummaryRequest<'_>,
        wish: SummaryOptions<'_>,
        limits: SummaryLimits,
    ) -> Result<Said, CompactError> {
        let mut rejected: Option<RejectedSummary> = None;
        let mut beginning = None;
        for _ in 0..2 {
            let reason = rejected.as_ref().map(ToString::to_string);
            // A model that thinks whatever it is told needs room for that; one that says too much is told less.
            let (share, times) = match rejected {
                Some(RejectedSummary::Empty) => (1, 4),
                Some(RejectedSummary::BrokeOff { .. }) => (2, 2),
                _ => (1, 1),
            };
            let predict = self.num_predict(wish.target) * times;
            let told =
                SummaryOptions { rejected: reason.as_deref(), target: wish.target / share, ..wish };
            let (answer, is_cut) = self.answer(summary_messages(ask, &told), predict).await?;
            match verify_summary(&answer, is_cut, &self.counter, limits) {
                Ok(_) if is_cut && let Some(begun) = partial_summary(&answer) => {
                    return Ok(Said::Beginning(begun));
                }
                Ok(summary) => return Ok(Said::Whole(summary)),
                Err(reason) => {
                    if let RejectedSummary::BrokeOff { .. } = reason {
                        beginning = partial_summary(&answer).or(beginning);
                    }
                    tracing::info!(model = self.model, "a summary was not taken: {reason}");
                    rejected = Some(reason);
                }
            }
        }
        if let Some(beginning) = beginning {
            return Ok(Said::Beginning(beginning));
        }
        Err(self.rejected(rejected.unwrap_or(RejectedSummary::Empty)))
    }

    /// A summary that broke off, with what it did not come to taken from others.
    pub(super) fn completed(
        &self,
        begun: &Summary,
        others: &[&Summary],
        limits: SummaryLimits,
    ) -> Result<Summary, CompactError> {
        complete_summary(begun, others, &self.counter, limits)
            .map_err(|reason| self.rejected(reason))
    }

    /// The error for a summary of this model that is not taken.
    pub(super) fn rejected(&self, reason: RejectedSummary) -> CompactError {
        CompactError::Rejected { model: self.model.clone(), reason }
    }

    /// The whole text of an answer, and whether it ended at its longest.
    async fn answer(
        &self,
        messages: Vec<ContextMessage>,
        predict: u32,
    ) -> Result<(String, bool), CompactError> {
        let request = self.request(messages, predict);
        for _ in 0..MAX_YIELDS {
            match self.try_answer(&request).await {
                Ok(answer) => return Ok(answer),
                Err(Broken::Failed(error)) => return Err(error),
                Err(Broken::Yielded) => {}
            }
        }
        Err(CompactError::Crowded { model: self.model.clone() })
    }

    async fn try_answer(&self, request: &ChatRequest) -> Result<(String, bool), Broken> {
        let own;
        let ticket = match self.seat {
            Seat::Held(ticket) => ticket,
            Seat::Own(priority) => {
                own = self.core.models.queues().enter(&self.model, priority, "a summary");
                let admitted = tokio::time::timeout(LONGEST, own.admitted()).await;
                admitted.map_err(|_| Broken::Failed(self.crowded()))?;
                &own
            }
        };
        let yields = matches!(self.seat, Seat::Own(Priority::Side));
        let read = self.read(request, ticket, yields);
        match tokio::time::timeout(LONGEST, read).await {
            Ok(answer) => answer,
            Err(_) => Err(Broken::Failed(self.crowded())),
        }
    }

    async fn read(
        &self,
        request: &ChatRequest,
        ticket: &Ticket,
        yields: bool,
    ) -> Result<(String, bool), Broken> {
        let failed = |error| Broken::Failed(CompactError::Model(error));
        let backend = self.core.models.backend().map_err(failed)?;
        let mut stream = backend.stream(request).await.map_err(failed)?;
        let mut text = String::new();
        let mut look = tokio::time::interval_at(Instant::now() + LOOK, LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let item = tokio::select! {
                biased;
                item = stream.next() => item.map_err(failed)?,
                _ = look.tick(), if yields => {
                    if ticket.chat_waits() {
                        return Err(Broken::Yielded);
                    }
                    continue;
                }
            };
            match item {
                ChatItem::Delta(ChatDelta::Text(piece)) => text.push_str(&piece),
                // What it thinks is no summary, and a call is verified away by the text that is missing.
                ChatItem::Delta(ChatDelta::Thinking(_) | ChatDelta::ToolCalls(_)) => {}
                ChatItem::End(end) => return Ok((text, end.reason == DoneReason::Length)),
            }
        }
    }

    fn request(&self, messages: Vec<ContextMessage>, predict: u32) -> ChatRequest {
        let prompt = u32::try_from(self.counter.count_prompt(&messages, &[])).unwrap_or(u32::MAX);
        let room = self.num_ctx.saturating_sub(1).saturating_sub(prompt).max(1);
        let options = json!({ "temperature": 0.2 });
        let sampling = options.as_object().cloned().map(Sampling::check);
        ChatRequest {
            model: self.model.clone(),
            messages,
            tools: Vec::new(),
            num_ctx: self.num_ctx,
            num_predict: NonZeroU32::new(predict.min(room)),
            sampling: sampling.and_then(Result::ok).unwrap_or_default(),
            think: self.info.can("thinking").unwrap_or(false).then_some(Think::Off),
            format: None,
            keep_alive: self.core.config().ollama.keep_alive,
        }
    }

    /// The longest answer: a little over the target, because a longer one is cut by sections and not thrown away.
    fn num_predict(&self, target: u64) -> u32 {
        let wanted = u32::try_from(target + target / 4 + 64).unwrap_or(u32::MAX);
        wanted.min(self.longest.max(128))
    }

    /// What counts may be wrong by, as a divisor.
    fn margin(&self) -> u64 {
        if self.counter.kind_of_text() == CountKind::Exact { 64 } else { ESTIMATE_MARGIN_DIVISOR }
    }

    fn crowded(&self) -> CompactError {
        CompactError::Crowded { model: self.model.clone() }
    }
}
