//! Asking a model for summaries: in pieces that fit its window, each answer verified, with one stricter retry.
//!
//! **Invariants**: a request names the window that all requests to the model name; a background summary yields to
//! chats; every wait has a limit; no answer is used before it is verified.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{ContextMessage, CountKind};
use ollm_protocol::{Seq, SessionId};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};

use crate::app::core::Core;
use crate::app::error::CompactError;
use crate::app::models::choose_window;
use crate::app::models::learning::{CountedPrompts, learned_counter};
use crate::app::models::window::describe;
use crate::app::schedule::LONGEST_NEEDED_PAUSE;
use crate::context::compact::{
    ChatPrompt, RejectedSummary, ShownRecords, Summary, SummaryLimits, SummaryOptions,
    SummaryRequest, TranscriptPiece, complete_summary, partial_summary, summary_messages,
    verify_summary,
};
use crate::model::{
    ChatDelta, ChatEnd, ChatItem, ChatRequest, DoneReason, Priority, Sampling, ThinkMode, Ticket,
    canonical_name,
};
use crate::tokens::{Counter, ESTIMATE_MARGIN_DIVISOR};

/// Attempts of a background summary that each yield to a chat, after longer and longer pauses.
const MAX_YIELDS: usize = 8;
/// The interval at which a background summary looks for waiting chats.
const YIELD_CHECK: Duration = Duration::from_millis(200);
/// The longest wait for a place in the queue, for a pause, and for one answer: a summary takes minutes on the slowest
/// machines.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(1800);
/// The longest time that a user waits for the summary of a turn. Without one by then, the records are extracted, and the
/// background asks again.
pub(super) const TURN_LIMIT: Duration = Duration::from_secs(60);
/// The time after which a turn asks for no second summary in place of a refused one.
const RETRY_LIMIT: Duration = Duration::from_secs(20);
/// The least room for records that is worth a call, in tokens.
const MIN_ROOM: u64 = 96;
/// The least room for records in a request behind the chat's prompt, in tokens: smaller pieces would need too many
/// requests.
const MIN_ROOM_BEHIND: u64 = 384;
/// The tokens by which a retry, and the task of an update, can be longer than a first request.
const RETRY_TOKENS: u64 = 160;
/// The smallest summary that is asked for, in tokens.
const MIN_TARGET: u64 = 128;

/// The records of a request whose other parts are counted.
static NO_RECORDS: TranscriptPiece =
    TranscriptPiece { from: Seq(0), to: Seq(0), text: String::new() };

/// The summarizer's place in the queue of its model.
#[derive(Clone, Copy)]
pub(super) enum QueuePlace<'t> {
    /// The caller's place, which is admitted already.
    Held(&'t Ticket),
    /// A new place for each request.
    Own(Priority),
}

/// A model that writes summaries.
#[derive(Clone)]
pub(super) struct Summarizer<'a> {
    core: &'a Arc<Core>,
    id: SessionId,
    place: QueuePlace<'a>,
    /// The moment at which a turn stops to wait; `None` in the background.
    ends: Option<Instant>,
    pub(super) model: String,
    num_ctx: u32,
    pub(super) counter: Counter,
    /// The longest summary in tokens.
    max_tokens: u32,
    /// The tools of the chat behind whose prompt summaries are requested: a template puts them before everything else.
    /// `None` for requests with a prompt of their own.
    chat_tools: Option<Vec<Value>>,
    /// The mode of thinking that requests name.
    think: Option<ThinkMode>,
    /// Whether a request in the background waits for a pause, and is repeated after it gave way to a chat.
    is_patient: bool,
}

/// The parts of a window in requests for summaries, in tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestRoom {
    /// The longest summary.
    pub target: u64,
    /// The records of a request.
    pub records: u64,
}

/// The verified answer of a summarizer.
pub(super) enum SummaryAnswer {
    Whole(Summary),
    /// The beginning of a summary that ran into its limit.
    Beginning(Summary),
}

/// Returns whether the model of a chat also writes its summaries.
pub(in crate::app) fn summarizes_itself(core: &Core, model: &str) -> bool {
    let other = core.config().compression.model.clone();
    other.is_none_or(|other| canonical_name(&other) == canonical_name(model))
}

impl<'a> Summarizer<'a> {
    /// Prepares a model for requests, and chooses the window that they name.
    pub(super) async fn new(
        core: &'a Arc<Core>,
        id: SessionId,
        model: &str,
        place: QueuePlace<'a>,
        in_turn: bool,
        context_size: u32,
    ) -> Result<Self, CompactError> {
        let ends = in_turn.then(|| Instant::now() + TURN_LIMIT);
        let info = describe(core, model).await.map_err(CompactError::Model)?;
        let num_ctx = choose_window(core, model, Some(context_size)).await;
        let max_tokens = core.config().compression.summary_max_tokens;
        // Without a window only the vocabulary is learned, which needs no place in the queue.
        let model = model.to_owned();
        let prompts = CountedPrompts { model, think: None, tools: Vec::new(), num_ctx: None };
        let counter = learned_counter(core, &info, &prompts).await.map_err(CompactError::Model)?;
        let (model, chat_tools, is_patient) = (prompts.model, None, true);
        let think = info.can("thinking").unwrap_or(false).then_some(ThinkMode::Off);
        Ok(Self {
            core,
            id,
            place,
            ends,
            model,
            num_ctx,
            counter,
            max_tokens,
            chat_tools,
            think,
            is_patient,
        })
    }

    /// Returns the summarizer for requests behind a prompt of a chat with these tools.
    pub(super) fn behind_chat(&self, tools: Vec<Value>) -> Self {
        Self { chat_tools: Some(tools), ..self.clone() }
    }

    /// Returns the summarizer for requests with a mode of thinking.
    pub(super) fn thinking(self, think: Option<ThinkMode>) -> Self {
        Self { think, ..self }
    }

    /// Returns the summarizer for requests that begin at once, and fail if they give way to a chat.
    pub(super) fn without_patience(&self) -> Self {
        Self { is_patient: false, ..self.clone() }
    }

    /// Returns the tokens that a prompt and its answer may have.
    pub(super) fn window(&self) -> u64 {
        u64::from(self.num_ctx.saturating_sub(1))
    }

    /// Returns whether requests give way to chats.
    pub(super) const fn is_background(&self) -> bool {
        matches!(self.place, QueuePlace::Own(Priority::Background))
    }

    /// Returns the largest target up to `options.target` for a summary that is requested behind a prompt of the chat, or
    /// `None` if less than half of it fits into the window.
    pub(super) fn target_behind(
        &self,
        chat: ChatPrompt<'_>,
        tools: &[Value],
        previous: Option<&Summary>,
        options: SummaryOptions<'_>,
    ) -> Option<u64> {
        let behind = SummaryOptions { chat: Some(chat), ..options };
        let request = match previous {
            None => SummaryRequest::First(&NO_RECORDS),
            Some(previous) => SummaryRequest::Update(previous, &NO_RECORDS),
        };
        let messages = summary_messages(request, &behind);
        let prompt = self.counter.count_prompt(&messages, tools);
        let taken = prompt + prompt / self.margin() + RETRY_TOKENS;
        let left = self.window().saturating_sub(taken);
        let mut target = options.target;
        while u64::from(self.num_predict(target)) > left {
            target -= target.div_ceil(8);
            if target * 2 < options.target || target < MIN_TARGET / 2 {
                return None;
            }
        }
        Some(target)
    }

    /// Returns the room of requests that have their records behind a prompt of the chat, with the largest target up to
    /// `options.target`; `None` if a target of `least` tokens leaves too little.
    pub(super) fn room_behind(
        &self,
        messages: &[ContextMessage],
        tools: &[Value],
        options: SummaryOptions<'_>,
        least: u64,
    ) -> Option<RequestRoom> {
        let chat = Some(ChatPrompt { messages, shows: ShownRecords::Nothing });
        let behind = SummaryOptions { chat, ..options };
        let around = summary_messages(SummaryRequest::First(&NO_RECORDS), &behind);
        let around = self.counter.count_prompt(&around, tools);
        let around = around + around / self.margin() + RETRY_TOKENS;
        let mut target = options.target;
        while target >= least.max(MIN_TARGET) {
            // The request holds the summary so far, the answer the next one.
            let taken = around + target + u64::from(self.num_predict(target));
            let records = self.window().saturating_sub(taken);
            if records >= MIN_ROOM_BEHIND {
                return Some(RequestRoom { target, records });
            }
            target -= target.div_ceil(8);
        }
        None
    }

    /// Returns the room of requests with a prompt of their own, with the largest target up to `options.target` that leaves
    /// enough for records.
    pub(super) fn room(&self, options: &SummaryOptions<'_>) -> Result<RequestRoom, CompactError> {
        let mut target = options.target;
        loop {
            match self.room_for(&SummaryOptions { target, ..*options }) {
                Ok(records) => return Ok(RequestRoom { target, records }),
                Err(error) if target < MIN_TARGET => return Err(error),
                Err(_) => target -= target / 4,
            }
        }
    }

    /// Returns the room for records in one request, in tokens.
    fn room_for(&self, options: &SummaryOptions<'_>) -> Result<u64, CompactError> {
        let around = self
            .counter
            .count_prompt(&summary_messages(SummaryRequest::First(&NO_RECORDS), options), &[]);
        let window = self.window();
        // The prompt holds the summary so far, the answer the next one; a retry adds a reason.
        let taken = around + options.target + u64::from(self.num_predict(options.target)) + 64;
        let room = window.saturating_sub(window / self.margin()).saturating_sub(taken);
        if room < MIN_ROOM {
            return Err(CompactError::NoRoom { model: self.model.clone(), window: self.num_ctx });
        }
        Ok(room)
    }

    /// Asks for one summary and verifies it. The retry names the reason of the rejection, and has more room if the
    /// first answer ran out of it. A turn that waited long already does without a retry.
    pub(super) async fn ask(
        &self,
        request: SummaryRequest<'_>,
        options: SummaryOptions<'_>,
        limits: SummaryLimits,
    ) -> Result<SummaryAnswer, CompactError> {
        let mut rejected: Option<RejectedSummary> = None;
        let mut beginning = None;
        for _ in 0..2 {
            let reason = rejected.as_ref().map(ToString::to_string);
            // An empty answer was probably spent on thinking and needs more room; a long one also gets a smaller
            // target.
            let (share, times) = match rejected {
                Some(RejectedSummary::Empty) => (1, 4),
                Some(RejectedSummary::BrokeOff { .. }) => (2, 2),
                _ => (1, 1),
            };
            let predict = self.num_predict(options.target) * times;
            let retry = SummaryOptions {
                rejected: reason.as_deref(),
                target: options.target / share,
                ..options
            };
            let (answer, is_cut) = self.answer(summary_messages(request, &retry), predict).await?;
            // The background asks again, without a limit. Notes that a turn took from a beginning would stay.
            if is_cut && self.ends.is_some_and(|ends| Instant::now() >= ends) {
                return Err(CompactError::Slow { model: self.model.clone() });
            }
            match verify_summary(&answer, is_cut, request, &options, &self.counter, limits) {
                Ok(_)
                    if is_cut && let Some(begun) = partial_summary(&answer, request, &options) =>
                {
                    return Ok(SummaryAnswer::Beginning(begun));
                }
                Ok(summary) => return Ok(SummaryAnswer::Whole(summary)),
                Err(reason) => {
                    if let RejectedSummary::BrokeOff { .. } = reason {
                        beginning = partial_summary(&answer, request, &options).or(beginning);
                    }
                    tracing::info!(model = self.model, "a summary was rejected: {reason}");
                    rejected = Some(reason);
                }
            }
            if self.ends.is_some_and(|ends| Instant::now() + TURN_LIMIT >= ends + RETRY_LIMIT) {
                break;
            }
        }
        if let Some(beginning) = beginning {
            return Ok(SummaryAnswer::Beginning(beginning));
        }
        Err(self.rejected(rejected.unwrap_or(RejectedSummary::Empty)))
    }

    /// Completes a summary that broke off with the missing sections of others.
    pub(super) fn completed(
        &self,
        begun: &Summary,
        others: &[&Summary],
        request: SummaryRequest<'_>,
        limits: SummaryLimits,
    ) -> Result<Summary, CompactError> {
        complete_summary(begun, others, request, &self.counter, limits)
            .map_err(|reason| self.rejected(reason))
    }

    /// Returns the error for a rejected summary of this model.
    pub(super) fn rejected(&self, reason: RejectedSummary) -> CompactError {
        CompactError::Rejected { model: self.model.clone(), reason }
    }

    /// Sends a prompt for an answer of one token, so that the server has the prompt in its cache. Returns `None` if the
    /// request gave way to a chat.
    pub(super) async fn read_prompt(
        &self,
        messages: Vec<ContextMessage>,
        ticket: &Ticket,
    ) -> Result<Option<ChatEnd>, CompactError> {
        let answer = self.read(&self.request(messages, 1), ticket).await?;
        Ok(answer.and_then(|(_, end)| end))
    }

    /// Returns the text of an answer, and whether it ran into its limit of tokens or of time.
    async fn answer(
        &self,
        messages: Vec<ContextMessage>,
        predict: u32,
    ) -> Result<(String, bool), CompactError> {
        let due = &self.core.due_compactions;
        let reading = self.displacing_reading(&messages);
        let waits = self.is_patient && !reading.is_zero();
        let mut pause = if waits { reading.max(due.needed_pause(self.id)) } else { Duration::ZERO };
        let request = self.request(messages, predict);
        let n_attempts = if self.is_patient { MAX_YIELDS } else { 1 };
        for _ in 0..n_attempts {
            let quiet = tokio::time::timeout(ANSWER_LIMIT, self.wait_for_pause(pause)).await;
            quiet.map_err(|_| self.busy())?;
            let mut begun = None;
            let answer = self.try_answer(&request, &mut begun).await?;
            let lasted = begun.map_or(Duration::ZERO, |begun| begun.elapsed());
            if let Some(answer) = answer {
                if !reading.is_zero() {
                    due.note_quiet(self.id, pause + lasted);
                }
                return Ok(answer);
            }
            due.mark_notes_missing(self.id);
            // A chat that came as soon after its answer again would wait again, and read its own prompt again.
            pause = (pause.max(lasted) * 2).min(LONGEST_NEEDED_PAUSE);
            if !reading.is_zero() {
                due.note_needed_pause(self.id, pause.max(reading * 2));
            }
        }
        Err(self.busy())
    }

    /// Returns how long the model reads a request in the background with a prompt of its own; zero for others. It takes the
    /// place of the chat's prompt in the server's cache, so the first one waits for a pause as long: in a shorter one the
    /// chat would come back, and would find its prompt gone.
    fn displacing_reading(&self, messages: &[ContextMessage]) -> Duration {
        let repeats_chat = self.chat_tools.is_some() && self.thinks_like_chat();
        if !self.is_background() || repeats_chat {
            return Duration::ZERO;
        }
        let tokens = self.counter.count_prompt(messages, &[]);
        let reading = self.core.speeds.get(&self.model).reading_or_guess(tokens);
        reading.unwrap_or_default().min(LONGEST_NEEDED_PAUSE)
    }

    /// Returns whether requests name the mode of thinking of the last chat. Another one can change a prompt at its beginning.
    pub(super) fn thinks_like_chat(&self) -> bool {
        let last = self.core.cache.peek(self.id, |session| session.last_chat);
        self.think.is_none() || last.flatten().is_none_or(|chat| chat.think == self.think)
    }

    /// Waits until nothing used the model for a time.
    async fn wait_for_pause(&self, pause: Duration) {
        let mut quiet_since = Instant::now();
        while quiet_since.elapsed() < pause {
            tokio::time::sleep(YIELD_CHECK.min(pause)).await;
            if self.core.models.queues().is_busy(&self.model) {
                self.core.due_compactions.mark_notes_missing(self.id);
                quiet_since = Instant::now();
            }
        }
    }

    /// Like [`Self::answer`]; returns `None` if a chat needs the model. Sets `begun` when the model is asked.
    async fn try_answer(
        &self,
        request: &ChatRequest,
        begun: &mut Option<Instant>,
    ) -> Result<Option<(String, bool)>, CompactError> {
        let own;
        let ticket = match self.place {
            QueuePlace::Held(ticket) => ticket,
            QueuePlace::Own(priority) => {
                own = self.core.models.queues().enter(&self.model, priority);
                let admitted = tokio::time::timeout(ANSWER_LIMIT, own.admitted());
                tokio::select! {
                    biased;
                    admitted = admitted => admitted.map_err(|_| self.busy())?,
                    () = self.ended() => return Err(self.busy()),
                }
                &own
            }
        };
        *begun = Some(Instant::now());
        let answer = self.read(request, ticket).await?;
        Ok(answer.map(|(text, end)| (text, end.is_none_or(|end| end.reason == DoneReason::Length))))
    }

    /// Returns an answer with its end, which is missing if a turn stopped to wait for it; `None` if a chat needs the model.
    async fn read(
        &self,
        request: &ChatRequest,
        ticket: &Ticket,
    ) -> Result<Option<(String, Option<ChatEnd>)>, CompactError> {
        let read = tokio::time::timeout(ANSWER_LIMIT, self.read_stream(request, ticket)).await;
        read.map_err(|_| self.busy())?
    }

    async fn read_stream(
        &self,
        request: &ChatRequest,
        ticket: &Ticket,
    ) -> Result<Option<(String, Option<ChatEnd>)>, CompactError> {
        let backend = self.core.models.backend().map_err(CompactError::Model)?;
        let mut gives_way = std::pin::pin!(self.gives_way(ticket));
        let mut ended = std::pin::pin!(self.ended());
        let mut text = String::new();
        // The stream begins when the server has read the prompt, which takes longer than the answer on slow machines.
        let mut stream = tokio::select! {
            biased;
            begun = backend.stream(request) => begun.map_err(CompactError::Model)?,
            () = &mut ended => return Ok(Some((text, None))),
            () = &mut gives_way => return Ok(None),
        };
        loop {
            let item = tokio::select! {
                biased;
                item = stream.next() => item.map_err(CompactError::Model)?,
                () = &mut ended => return Ok(Some((text, None))),
                () = &mut gives_way => return Ok(None),
            };
            match item {
                ChatItem::Delta(ChatDelta::Text(piece)) => text.push_str(&piece),
                // An answer that only calls tools has no text and is rejected.
                ChatItem::Delta(ChatDelta::Thinking(_) | ChatDelta::ToolCalls(_)) => {}
                ChatItem::End(end) => return Ok(Some((text, Some(end)))),
            }
        }
    }

    /// Waits until the turn no longer waits for the summary. In the background, waits for ever.
    async fn ended(&self) {
        match self.ends {
            Some(ends) => tokio::time::sleep_until(ends).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until a chat needs the place of a background summary. For other summaries, waits for ever.
    async fn gives_way(&self, ticket: &Ticket) {
        if !self.is_background() {
            return std::future::pending().await;
        }
        let mut check = tokio::time::interval_at(Instant::now() + YIELD_CHECK, YIELD_CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !ticket.chat_waits() {
            check.tick().await;
        }
    }

    fn request(&self, messages: Vec<ContextMessage>, predict: u32) -> ChatRequest {
        let tools = self.chat_tools.as_deref().unwrap_or_default();
        let prompt = self.counter.count_prompt(&messages, tools);
        let prompt = u32::try_from(prompt).unwrap_or(u32::MAX);
        let room = self.num_ctx.saturating_sub(1).saturating_sub(prompt).max(1);
        let options = json!({ "temperature": 0.2 });
        let sampling = options.as_object().cloned().map(Sampling::check);
        ChatRequest {
            model: self.model.clone(),
            messages,
            tools: tools.to_vec(),
            num_ctx: self.num_ctx,
            num_predict: NonZeroU32::new(predict.min(room)),
            sampling: sampling.and_then(Result::ok).unwrap_or_default(),
            think: self.think,
            format: None,
            keep_alive: self.core.config().ollama.keep_alive,
        }
    }

    /// Returns the limit of an answer in tokens: a little over the target, because a longer summary is cut by
    /// sections.
    fn num_predict(&self, target: u64) -> u32 {
        let wanted = u32::try_from(target + target / 4 + 64).unwrap_or(u32::MAX);
        wanted.min(self.max_tokens.max(128))
    }

    /// Returns the divisor of a count that gives its possible error.
    fn margin(&self) -> u64 {
        if self.counter.kind_of_text() == CountKind::Exact { 64 } else { ESTIMATE_MARGIN_DIVISOR }
    }

    fn busy(&self) -> CompactError {
        CompactError::ModelBusy { model: self.model.clone() }
    }
}
