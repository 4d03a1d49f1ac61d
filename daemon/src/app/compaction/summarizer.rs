//! Asking a model for summaries: in pieces that fit its window, each answer verified, with one stricter retry.
//!
//! **Invariants**: a request names the window that all requests to the model name; a background summary yields to
//! chats; every wait has a limit; no answer is used before it is verified.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::ContextMessage;
use ollm_protocol::{Seq, SessionId};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior};

use super::policy::{StartSituation, first_pause, needed_quiet, next_pause, piece_reading};
use crate::app::core::Core;
use crate::app::counts::CountedPrompts;
use crate::app::error::{CompactError, Result};
use crate::app::model_speed::SentPrompt;
use crate::app::models::learning::{counter_in_turn, learned_counter};
use crate::app::models::window::describe;
use crate::app::models::{choose_window, gate};
use crate::context::compact::{
    RejectedSummary, ShownRecords, Summary, SummaryLimits, SummaryOptions, SummaryRequest,
    TranscriptPiece, complete_summary, partial_summary, summary_messages, verify_summary,
};
use crate::model::{
    ChatDelta, ChatEnd, ChatItem, ChatRequest, DoneReason, Priority, Sampling, ThinkMode, Ticket,
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
/// The least room for records in a request with a prompt of its own, in tokens.
const MIN_ROOM: u64 = 96;
/// The least room for records in a request behind the chat's prompt, in tokens: smaller pieces would need too many
/// requests.
const MIN_ROOM_BEHIND: u64 = 384;
/// The tokens by which a retry, and the task of an update, can be longer than a first request.
const RETRY_TOKENS: u64 = 160;
/// The smallest summary that is asked for, in tokens.
pub(super) const MIN_TARGET: u64 = 64;

/// The records of a request whose other parts are counted.
pub(super) static NO_RECORDS: TranscriptPiece =
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
    pub(super) core: &'a Arc<Core>,
    id: SessionId,
    place: QueuePlace<'a>,
    /// The moment at which a turn stops to wait; `None` in the background.
    ends: Option<Instant>,
    pub(super) model: String,
    num_ctx: u32,
    pub(super) counter: Counter,
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

/// Returns whether the model of a session's chat also writes its summaries.
pub(in crate::app) fn summarizes_itself(core: &Core, id: SessionId, model: &str) -> bool {
    notes_model(core, id).is_none_or(|other| core.models.is_same(&other, model))
}

/// Returns the model that the configuration names for summaries, of one server, if that may read the session.
pub(super) fn notes_model(core: &Core, id: SessionId) -> Option<String> {
    let model = core.config().compression.model.clone()?;
    Some(core.placed(id, &model)).filter(|model| gate::may_read(core, id, model))
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
        drop(gate::backend_for(core, id, model).await.map_err(CompactError::Model)?);
        let info = describe(core, model).await.map_err(CompactError::Model)?;
        // Without a window only the vocabulary is learned, which needs no place in the queue.
        let model = model.to_owned();
        let prompts = CountedPrompts { model, think: None, tools: Vec::new(), num_ctx: None };
        // A summary that no turn waits for may wait for counts: its prompt has to fit.
        let counter = match in_turn {
            true => counter_in_turn(core, &info, &prompts).await,
            false => learned_counter(core, &info, &prompts).await,
        };
        let counter = counter.map_err(CompactError::Model)?;
        Ok(Self {
            core,
            id,
            place,
            ends,
            num_ctx: choose_window(core, &prompts.model, Some(context_size)).await,
            model: prompts.model,
            counter,
            chat_tools: None,
            think: info.can("thinking").unwrap_or(false).then_some(ThinkMode::Off),
            is_patient: true,
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

    /// Returns the tokens of a prompt.
    pub(super) fn prompt_tokens(&self, messages: &[ContextMessage]) -> u64 {
        let tools = self.chat_tools.as_deref().unwrap_or_default();
        self.counter.count_prompt(messages, tools)
    }

    /// Returns whether requests give way to chats.
    pub(super) const fn is_background(&self) -> bool {
        matches!(self.place, QueuePlace::Own(Priority::Background))
    }

    /// Returns the room of requests with the largest target up to `options.target`, or `None` if a target of `least` tokens
    /// leaves too little.
    ///
    /// `request`: what stands in a request besides the records, unless the prompt of the chat shows all of them.
    pub(super) fn room(
        &self,
        request: SummaryRequest<'_>,
        options: &SummaryOptions<'_>,
        least: u64,
    ) -> Option<RequestRoom> {
        let tools = self.chat_tools.as_deref().unwrap_or_default();
        let around = self.counter.count_prompt(&summary_messages(request, options), tools);
        let (shows_all, least_records) = match options.chat.map(|chat| chat.shows) {
            Some(ShownRecords::AllBut { .. }) => (true, 0),
            Some(ShownRecords::Nothing) => (false, MIN_ROOM_BEHIND),
            None => (false, MIN_ROOM),
        };
        // The part of a window that a prompt may have by its count, which can be wrong.
        let divisor = self.margin();
        let mut target = options.target;
        while target >= least.max(1) {
            let answer = u64::from(self.num_predict(target)) + RETRY_TOKENS;
            let prompt = self.window().saturating_sub(answer) * divisor / (divisor + 1);
            // A request for a piece holds the summary so far, the answer the next one.
            let taken = around + if shows_all { 0 } else { target };
            if let Some(records) = prompt.checked_sub(taken).filter(|room| *room >= least_records) {
                return Some(RequestRoom { target, records });
            }
            target -= target.div_ceil(8);
        }
        None
    }

    /// Returns the room of requests with a prompt of their own.
    pub(super) fn own_room(
        &self,
        options: &SummaryOptions<'_>,
    ) -> Result<RequestRoom, CompactError> {
        let room = self.room(SummaryRequest::First(&NO_RECORDS), options, MIN_TARGET);
        let (model, window) = (&self.model, self.num_ctx);
        room.ok_or_else(|| CompactError::NoRoom { model: model.clone(), window })
    }

    /// Asks for one summary and verifies it. The retry names the reason of the rejection, and has more room if the
    /// first answer ran out of it. A turn that waited long already does without a retry.
    ///
    /// `others`: the summaries that have the sections which an answer lacks that ran into its limit.
    pub(super) async fn ask(
        &self,
        request: SummaryRequest<'_>,
        options: SummaryOptions<'_>,
        limits: SummaryLimits,
        others: impl AsyncFnOnce() -> Result<Vec<Summary>>,
    ) -> Result<Summary> {
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
                return Err(CompactError::Slow { model: self.model.clone() }.into());
            }
            match verify_summary(&answer, is_cut, request, &options, &self.counter, limits) {
                Ok(summary) => {
                    let begun = partial_summary(&answer, request, &options).filter(|_| is_cut);
                    if begun.is_none() {
                        return Ok(summary);
                    }
                    beginning = begun;
                    break;
                }
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
        let Some(beginning) = beginning else {
            return Err(self.rejected(rejected.unwrap_or(RejectedSummary::Empty)).into());
        };
        let others = others().await?;
        let others: Vec<&Summary> = others.iter().collect();
        let completed = complete_summary(&beginning, &others, request, &self.counter, limits);
        completed.map_err(|reason| self.rejected(reason).into())
    }

    /// Returns the error for a rejected summary of this model.
    pub(super) fn rejected(&self, reason: RejectedSummary) -> CompactError {
        CompactError::Rejected { model: self.model.clone(), reason }
    }

    /// Sends a prompt for an answer of one token, so that the server has the prompt in its cache. Returns false if the
    /// request gave way to a chat.
    ///
    /// `prefix_tokens`: those at the beginning that the last prompt of the chat had.
    pub(super) async fn read_prompt(
        &self,
        messages: Vec<ContextMessage>,
        prefix_tokens: u64,
        ticket: &Ticket,
    ) -> Result<bool, CompactError> {
        let request = self.request(messages, 1);
        let prompt = SentPrompt { prefix_tokens, ..self.sent_prompt(&request) };
        let answer = self.read(&request, prompt, ticket).await?;
        Ok(answer.is_some_and(|(_, end)| end.is_some()))
    }

    /// Returns a short answer of a format, without waiting for a pause; `None` if the request gave way to a chat. Servers refuse
    /// a format beside tools.
    pub(super) async fn short_answer(
        &self,
        messages: Vec<ContextMessage>,
        format: Value,
        predict: u32,
        ticket: &Ticket,
    ) -> Result<Option<String>, CompactError> {
        let request = self.request(messages, predict);
        let format = Some(format).filter(|_| request.tools.is_empty());
        let request = ChatRequest { format, ..request };
        let answer = self.read(&request, self.sent_prompt(&request), ticket);
        let answer = tokio::time::timeout(TURN_LIMIT, answer).await.map_err(|_| self.busy())??;
        Ok(answer.map(|(text, _)| text))
    }

    /// Returns the text of an answer, and whether it ran into its limit of tokens or of time.
    async fn answer(
        &self,
        messages: Vec<ContextMessage>,
        predict: u32,
    ) -> Result<(String, bool), CompactError> {
        let (id, due) = (self.id, &self.core.due_compactions);
        let request = self.request(messages, predict);
        let needed = needed_quiet(&self.start_situation(&request));
        let (mut pause, n_attempts) = match self.is_patient {
            true => (first_pause(needed, due.history(id).needed_pause_for(needed)), MAX_YIELDS),
            false => (Duration::ZERO, 1),
        };
        for _ in 0..n_attempts {
            let quiet = tokio::time::timeout(ANSWER_LIMIT, self.wait_for_pause(pause)).await;
            quiet.map_err(|_| self.busy())?;
            let own;
            let ticket = match self.place {
                QueuePlace::Held(ticket) => ticket,
                QueuePlace::Own(priority) => {
                    own = self.admitted(priority).await?;
                    &own
                }
            };
            let begun = Instant::now();
            let answer = self.read(&request, self.sent_prompt(&request), ticket).await?;
            let lasted = begun.elapsed();
            if let Some((text, end)) = answer {
                if !needed.is_zero() {
                    due.change(id, |history| history.add_quiet(pause + lasted));
                }
                return Ok((text, end.is_none_or(|end| end.reason == DoneReason::Length)));
            }
            let short = pause + lasted;
            pause = next_pause(pause, needed, lasted);
            due.change(id, |history| {
                history.are_notes_missing = true;
                if !needed.is_zero() {
                    (history.needed_pause, history.short_pause) = (pause, Some(short));
                }
            });
        }
        Err(self.busy())
    }

    /// Gathers the values on which the start of a request depends.
    fn start_situation(&self, request: &ChatRequest) -> StartSituation {
        let measured = self.core.speeds.get(&self.model);
        let prompt = self.sent_prompt(request);
        let is_held = prompt.session.is_some_and(|id| measured.slots.hold(id));
        let new_tokens = prompt.tokens - if is_held { prompt.prefix_tokens } else { 0 };
        let predict = request.num_predict.map_or(0, |most| u64::from(most.get()));
        StartSituation {
            is_background: self.is_background(),
            displaces_chat: prompt.session.is_none_or(|id| measured.slots.displace_other(id)),
            reads_on: measured.reads_on(),
            reading: measured.reading_or_guess(new_tokens).unwrap_or_default(),
            writing: measured.expected_writing(predict).unwrap_or_default(),
        }
    }

    /// Returns the prompt of a request, which continues from the session's own chat if it goes behind that.
    fn sent_prompt(&self, request: &ChatRequest) -> SentPrompt {
        let ChatRequest { messages, tools, .. } = request;
        let tokens = self.counter.count_prompt(messages, tools);
        if self.chat_tools.is_none() || !self.thinks_like_chat() {
            return SentPrompt { session: None, tokens, prefix_tokens: 0 };
        }
        let chat = &messages[..messages.len().saturating_sub(1)];
        let prefix_tokens = self.counter.count_prompt(chat, tools).min(tokens);
        SentPrompt { session: Some(self.id), tokens, prefix_tokens }
    }

    /// Returns the tokens of records in a piece whose reading fits into a pause like those before, if the server would read
    /// on when a chat comes back.
    pub(super) fn tokens_in_pause(&self) -> Option<u64> {
        let measured = self.core.speeds.get(&self.model);
        let short = self.core.due_compactions.history(self.id).short_pause?;
        if !self.is_background() || !self.reads_on() {
            return None;
        }
        measured.tokens_read_in(piece_reading(short))
    }

    /// Returns whether the server reads a prompt to its end after a chat took the place of its request.
    pub(super) fn reads_on(&self) -> bool {
        self.core.speeds.get(&self.model).reads_on()
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
                self.core
                    .due_compactions
                    .change(self.id, |history| history.are_notes_missing = true);
                quiet_since = Instant::now();
            }
        }
    }

    /// Waits for a place in the queue of the model.
    async fn admitted(&self, priority: Priority) -> Result<Ticket, CompactError> {
        let ticket = self.core.models.queues().enter(&self.model, priority);
        tokio::select! {
            biased;
            admitted = tokio::time::timeout(ANSWER_LIMIT, ticket.admitted()) => {
                admitted.map_err(|_| self.busy())?;
            }
            () = self.ended() => return Err(self.busy()),
        }
        Ok(ticket)
    }

    /// Returns an answer with its end, which is missing if a turn stopped to wait for it; `None` if a chat needs the model.
    async fn read(
        &self,
        request: &ChatRequest,
        prompt: SentPrompt,
        ticket: &Ticket,
    ) -> Result<Option<(String, Option<ChatEnd>)>, CompactError> {
        let mut text = String::new();
        // The stream begins when the server has read the prompt, which takes longer than the answer on slow machines.
        let answer = async {
            let backend = gate::backend_for(self.core, self.id, &self.model).await?;
            let mut reading = self.core.speeds.begin_reading(&self.model, prompt);
            reading.sent();
            let sent = backend.stream(request).await;
            reading.waited_for(&sent);
            let mut stream = sent?;
            loop {
                match stream.next().await? {
                    ChatItem::Delta(ChatDelta::Text(piece)) => text.push_str(&piece),
                    // An answer that only calls tools has no text and is rejected.
                    ChatItem::Delta(_) => {}
                    ChatItem::End(end) => {
                        reading.ended(&end);
                        return Ok(end);
                    }
                }
            }
        };
        tokio::select! {
            biased;
            end = answer => Ok(Some((text, Some(end.map_err(CompactError::Model)?)))),
            () = self.ended() => Ok(Some((text, None))),
            () = self.gives_way(ticket) => Ok(None),
            () = tokio::time::sleep(ANSWER_LIMIT) => Err(self.busy()),
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
        ChatRequest {
            model: self.model.clone(),
            messages,
            tools: tools.to_vec(),
            num_ctx: self.num_ctx,
            num_predict: NonZeroU32::new(predict.min(room)),
            sampling: Sampling::temperature(0.2),
            think: self.think,
            format: None,
            logprobs: None,
            keep_alive: self.core.keep_alive(self.id),
            affinity: Some(self.core.affinity(self.id)),
        }
    }

    /// Returns the limit of an answer in tokens: a little over the target, because a longer summary is cut by
    /// sections.
    fn num_predict(&self, target: u64) -> u32 {
        let wanted = u32::try_from(target + target / 4 + 64).unwrap_or(u32::MAX);
        wanted.min(self.core.config().compression.summary_max_tokens.max(128))
    }

    /// Returns the divisor of a count that gives its possible error.
    fn margin(&self) -> u64 {
        if self.counter.has_vocabulary() { 64 } else { ESTIMATE_MARGIN_DIVISOR }
    }

    fn busy(&self) -> CompactError {
        CompactError::ModelBusy { model: self.model.clone() }
    }
}
