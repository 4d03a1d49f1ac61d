//! One call of the model: its place in the queue, its window, its context, compacted where that is due, its answer.

use ollm_protocol::content::{BuiltContext, CompactMode};
use ollm_protocol::methods::chat::{ChatEvent, ChatPhase};
use ollm_protocol::methods::context::ContextBuildParams;

use super::answer::{Answer, collect};
use super::partial::Pieces;
use super::run::{Turn, as_ms};
use crate::app::build::build_with;
use crate::app::compact::{InTurn, in_turn, is_due};
use crate::app::{AppError, counts};
use crate::model::{ChatRequest, ModelError, ModelInfo, Priority, Ticket, cap_num_predict};
use crate::shutdown::Tasks;
use crate::tokens::Counter;

/// An answer with what it was asked by.
pub(super) struct Asked {
    pub(super) answer: Answer,
    pub(super) built: BuiltContext,
    pub(super) request: ChatRequest,
}

/// A place at the model, and what is known there of the context to build.
struct Place {
    ticket: Ticket,
    /// The window that all requests name.
    num_ctx: u32,
    /// The model is in the server's memory.
    is_loaded: bool,
    counter: Counter,
    params: ContextBuildParams,
}

/// A context that must become smaller before the model is asked again, because it left no room for an answer.
pub(super) struct Smaller {
    /// Tokens that it has to be under.
    than: u64,
    /// Why the turn ends where it does not become smaller.
    otherwise: AppError,
}

impl Asked {
    /// Asks for a smaller context than this answer had.
    pub(super) const fn smaller(&self, otherwise: AppError) -> Smaller {
        Smaller { than: self.built.tokens_used, otherwise }
    }
}

impl Turn {
    /// Asks the model once, with a context that became `smaller` where that is wanted.
    pub(super) async fn ask(
        &self,
        info: &ModelInfo,
        tasks: &Tasks,
        smaller: Option<Smaller>,
    ) -> Result<Asked, AppError> {
        let core = self.core();
        let place = self.place(info, tasks).await?;
        let place = self.compacted(place, info, tasks, smaller.is_some()).await?;
        let Place { ticket, num_ctx, is_loaded, counter, params } = place;
        let built = build_with(core, params, Some(counter.clone()));
        let mut built = self.unless_ended(tasks, built).await?;
        if let Some(Smaller { than, otherwise }) = smaller
            && built.tokens_used >= than
        {
            return Err(otherwise);
        }
        self.tell_reading(&built, is_loaded).await;
        let request = self.request(&mut built, num_ctx, &counter);
        let backend = core.models.backend()?;
        let stream = async { Ok(backend.stream(&request).await) };
        let answer = match self.unless_ended(tasks, stream).await? {
            Ok(stream) => {
                let pieces = Pieces::new(self.plan.id, &self.plan.model);
                collect(core, stream, pieces, &self.teller, (self.cancel(), tasks)).await
            }
            // Most servers refuse a prompt before anything of an answer is there.
            Err(error @ ModelError::Overflow { .. }) => {
                Answer::refused(error.with_numbers(built.tokens_used, num_ctx))
            }
            Err(error) => return Err(error.into()),
        };
        drop(ticket);
        Ok(Asked { answer, built, request })
    }

    /// Waits for a place at the model, and finds its window and its counter.
    async fn place(&self, info: &ModelInfo, tasks: &Tasks) -> Result<Place, AppError> {
        let core = self.core();
        let ticket = core.models.queues().enter(&self.plan.model, Priority::Chat);
        self.unless_ended(tasks, async {
            self.admitted(&ticket).await;
            Ok(())
        })
        .await?;
        let window = self.plan.window(info, core.chats.learned(&self.plan.model));
        let loaded = self.unless_ended(tasks, async { Ok(self.loaded().await) }).await?;
        let num_ctx = core.models.windows().choose(&self.plan.model, window, loaded.flatten());
        if loaded.is_none() {
            self.tell(phase(ChatPhase::Loading, None, None, None)).await;
        }
        let purpose = self.plan.purpose(num_ctx);
        let counter = async { Ok(counts::prepare(core, info, &purpose).await?) };
        let counter = self.unless_ended(tasks, counter).await?;
        let params = ContextBuildParams {
            context_size: Some(window),
            model: Some(self.plan.model.clone()),
            tools: self.plan.tools.clone(),
            compact: CompactMode::Auto,
            ..ContextBuildParams::new(self.plan.id)
        };
        Ok(Place { ticket, num_ctx, is_loaded: loaded.is_some(), counter, params })
    }

    /// Compacts before the call where that is due. What goes wrong with it is not the turn's end: the context that
    /// is built next fits or says why not.
    async fn compacted(
        &self,
        place: Place,
        info: &ModelInfo,
        tasks: &Tasks,
        must: bool,
    ) -> Result<Place, AppError> {
        let core = self.core();
        let params = ContextBuildParams { compact: CompactMode::Never, ..place.params.clone() };
        let counter = place.counter.clone();
        let turn = |ticket| InTurn { params: &params, counter: &counter, ticket, must };
        let due = self.unless_ended(tasks, is_due(core, turn(Some(&place.ticket)))).await;
        if !self.survived(due)? {
            return Ok(place);
        }
        self.tell(phase(ChatPhase::Compacting, None, None, None)).await;
        if core.summarizes_itself(&self.plan.model) {
            let done = self.unless_ended(tasks, in_turn(core, turn(Some(&place.ticket)))).await;
            self.survived(done)?;
            return Ok(place);
        }
        // Two places at once could wait for each other for ever.
        drop(place);
        let turn = InTurn { params: &params, counter: &counter, ticket: None, must };
        let done = self.unless_ended(tasks, in_turn(core, turn)).await;
        self.survived(done)?;
        self.place(info, tasks).await
    }

    /// Only the turn's own end ends it.
    fn survived(&self, compacted: Result<bool, AppError>) -> Result<bool, AppError> {
        match compacted {
            Ok(is_so) => Ok(is_so),
            Err(error @ (AppError::Chat(_) | AppError::Stopping)) => Err(error),
            Err(error) => {
                tracing::info!(session = %self.plan.id, "not compacted: {error}");
                Ok(false)
            }
        }
    }

    async fn admitted(&self, ticket: &Ticket) {
        loop {
            let ahead = ticket.n_ahead();
            if ahead == 0 {
                return;
            }
            let ahead = Some(ahead as u64);
            self.tell(phase(ChatPhase::Queued, None, None, ahead)).await;
            ticket.changed().await;
        }
    }

    /// Whether the model is in the server's memory, and with which window; asked only after a pause.
    async fn loaded(&self) -> Option<Option<u32>> {
        let core = self.core();
        let used = core.chats.learned(&self.plan.model).used;
        if used.is_some_and(|used| used.elapsed() < core.config().ollama.keep_alive / 2) {
            return Some(core.models.windows().current(&self.plan.model));
        }
        core.models.in_memory(&self.plan.model).await.map(|running| running.effective_context)
    }

    async fn tell_reading(&self, built: &BuiltContext, is_loaded: bool) {
        let tokens =
            built.tokens_used.saturating_sub(if is_loaded { built.prefix_tokens } else { 0 });
        let expected = self.core().chats.learned(&self.plan.model).expected(tokens).map(as_ms);
        self.tell(phase(ChatPhase::Reading, Some(tokens), expected, None)).await;
    }

    fn request(&self, built: &mut BuiltContext, num_ctx: u32, counter: &Counter) -> ChatRequest {
        let margin = counter.margin(&built.messages, &self.plan.tools, built.tokens_used);
        let used = u32::try_from(built.tokens_used.saturating_add(margin)).unwrap_or(u32::MAX);
        let asked = self.plan.max_tokens.map(std::num::NonZeroU32::get);
        ChatRequest {
            model: self.plan.model.clone(),
            messages: std::mem::take(&mut built.messages),
            tools: self.plan.tools.clone(),
            num_ctx,
            // Of a larger window that others need, the session uses its own part.
            num_predict: cap_num_predict(built.num_ctx.min(num_ctx), used, asked),
            sampling: self.plan.sampling.clone(),
            think: self.plan.think,
            format: self.plan.format.clone(),
            keep_alive: self.core().config().ollama.keep_alive,
        }
    }
}

fn phase(
    name: ChatPhase,
    tokens: Option<u64>,
    expected_ms: Option<u64>,
    ahead: Option<u64>,
) -> ChatEvent {
    ChatEvent::Phase { name, tokens, expected_ms, ahead }
}
