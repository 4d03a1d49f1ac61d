//! Compaction as one transaction: plan, mark, summarize, verify, and one record; or nothing at all.
//!
//! What is planned is decided in `context`; here it is carried out. A compaction that fails leaves the context byte
//! for byte as it was while that fits, and is tried again later; only where it does not fit, a summary is made from
//! the records' own lines, and made anew by a model with the next compaction.
//!
//! **Invariants**: one compaction a session at a time; a range that a model summarized is not summarized again; what
//! the daemon does by itself gives way to chats; recording and building never wait for any of it.

mod commit;
mod error;
mod make;
mod plan;
mod requested;
mod slots;
mod summarize;
mod told;

use std::ops::ControlFlow;
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::{CompactStrategy, MIN_CONTEXT_SIZE};
use ollm_protocol::methods::context::ContextBuildParams;
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub(crate) use error::CompactError;
pub(super) use requested::judged;
pub(crate) use requested::{checkpoints, compact};
pub(crate) use slots::Compactions;

use self::commit::{Committed, Done, Made, commit, mark};
use self::make::{Range, as_they_are};
use self::plan::{Ground, Order, Way, survey, way};
use self::slots::{Cause, Slot};
use self::summarize::Seat;
use super::{AppError, Core, blocking};
use crate::config::CompressionStrategy;
use crate::context;
use crate::model::{Priority, Ticket, canonical_name};
use crate::tokens::Counter;

/// How often a compaction is planned anew because another one came first.
const MAX_ROUNDS: usize = 3;

/// What became of a compaction.
enum Outcome {
    /// It is durable.
    Done(Box<Done>),
    /// It was not worth it, or not due.
    Skipped(&'static str, Arc<Ground>),
    /// It failed, and the context is as it was.
    Failed,
}

/// A compaction that is to be carried out.
struct Task<'a> {
    core: &'a Arc<Core>,
    order: Order,
    cause: Cause,
    seat: Seat<'a>,
    /// The context must become smaller, whatever is counted.
    must: bool,
}

/// What a chat turn has in hand when it is about to call its model.
pub(super) struct InTurn<'a> {
    /// The context that it will build.
    pub(super) params: &'a ContextBuildParams,
    /// Who counts.
    pub(super) counter: &'a Counter,
    /// Its place at its model, where that is the one that summarizes too.
    pub(super) ticket: Option<&'a Ticket>,
    /// Its model refused the context, or had no room to answer.
    pub(super) must: bool,
}

/// Whether a chat turn has to compact before it calls its model. Cheap as long as that is far away.
pub(super) async fn is_due(core: &Arc<Core>, turn: InTurn<'_>) -> Result<bool, AppError> {
    let compression = core.config().compression.clone();
    if !compression.enabled {
        return Ok(false);
    }
    let id = turn.params.session_id;
    let fill = told::gauge(core, id);
    if turn.must {
        return Ok(true);
    }
    if fill.is_some_and(|fill| fill.used < context::trigger(fill.available, compression.threshold))
    {
        return Ok(false);
    }
    let order = configured(core, turn.params.clone(), Some(turn.counter.clone()));
    let ground = blocking(core, move |core| survey(core, &order)).await?;
    Ok(ground.before.is_due)
}

/// Compacts before a model is called; true when the context is smaller now.
pub(super) async fn in_turn(core: &Arc<Core>, turn: InTurn<'_>) -> Result<bool, AppError> {
    let id = turn.params.session_id;
    let seat = turn.ticket.map_or(Seat::Own(Priority::Chat), Seat::Held);
    let order = configured(core, turn.params.clone(), Some(turn.counter.clone()));
    let task = Task { core, order, cause: Cause::Chat, seat, must: turn.must };
    match task.run(id).await {
        Ok(Outcome::Done(_)) => Ok(true),
        Ok(Outcome::Skipped(..) | Outcome::Failed) => Ok(false),
        // Somebody else does it right now; what they do serves as well.
        Err(AppError::Compact(CompactError::Conflict { .. })) => {
            Slot::free(core, id).await;
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

impl Core {
    /// Whether the model of a chat writes its summaries too.
    pub(super) fn summarizes_itself(&self, model: &str) -> bool {
        let other = self.config().compression.model.clone();
        other.is_none_or(|other| canonical_name(&other) == canonical_name(model))
    }
}

/// Looks after a session of which something was recorded: tells how full it is, and compacts it in the background.
pub(super) fn after_record(core: &Arc<Core>, id: SessionId, total_tokens: u64) {
    let compression = &core.config().compression;
    let fill = told::gauge(core, id);
    let is_due = match fill {
        Some(fill) => fill.used >= context::trigger(fill.available, compression.threshold),
        // Nobody built a context since the start: only what could be too much is looked at.
        None => total_tokens >= u64::from(MIN_CONTEXT_SIZE) / 2,
    };
    let is_wanted =
        compression.enabled && is_due && !core.chats.is_running(id) && has_model(core, id);
    if !is_wanted || core.compactions.is_paused(id) || !core.compactions.watch(id) {
        return;
    }
    let core_too = Arc::clone(core);
    drop(core.compactions.tasks.spawn(async move {
        let core = core_too;
        let work = async {
            // What was recorded while it looked may be what makes it due.
            loop {
                in_background(&core, id).await;
                if core.compactions.unwatch(id) {
                    break;
                }
            }
        };
        tokio::select! {
            biased;
            () = core.compactions.tasks.stopping() => {}
            () = work => {}
        }
    }));
}

/// Whether a model is known that could be sent the session's context: without one nobody sends it anywhere.
fn has_model(core: &Core, id: SessionId) -> bool {
    let config = core.config();
    let own = core.sessions.peek(id, |live| live.state().model().is_some());
    config.ollama.model.is_some() || config.compression.model.is_some() || own == Some(true)
}

async fn in_background(core: &Arc<Core>, id: SessionId) {
    let order = configured(core, core.builds.like_last(id), None);
    let seat = Seat::Own(Priority::Background);
    let task = Task { core, order, cause: Cause::Background, seat, must: false };
    match task.run(id).await {
        Ok(_) | Err(AppError::Compact(CompactError::Conflict { .. })) => {}
        Err(error) => {
            core.compactions.failed(id);
            tracing::info!(session = %id, "not compacted: {error}");
        }
    }
}

/// An order as the configuration has it.
fn configured(core: &Core, params: ContextBuildParams, counter: Option<Counter>) -> Order {
    let strategy = match core.config().compression.strategy {
        CompressionStrategy::Summarize => CompactStrategy::Summarize,
        CompressionStrategy::Truncate => CompactStrategy::Truncate,
        CompressionStrategy::Hybrid => CompactStrategy::Hybrid,
    };
    Order { params, counter, strategy, instructions: None }
}

impl Task<'_> {
    /// The whole transaction.
    ///
    /// **Cancel safety**: dropped before its record is queued, it leaves no more than a mark in the log.
    async fn run(self, id: SessionId) -> Result<Outcome, AppError> {
        let slot = Slot::take(self.core, id, self.cause).await?;
        let order = self.order.clone();
        let ground = blocking(self.core, move |core| survey(core, &order)).await?;
        let outcome = self.carry_out(id, Arc::new(ground), &slot.cancel).await?;
        if let Outcome::Done(done) = &outcome {
            self.core.compactions.succeeded(id);
            told::compacted(self.core, id, self.cause, done);
        }
        drop(slot);
        Ok(outcome)
    }

    /// Goes from what was found to a record; anew where the record of another compaction, whose owner was gone before it
    /// was written, came first.
    async fn carry_out(
        &self,
        id: SessionId,
        found: Arc<Ground>,
        canceled: &CancellationToken,
    ) -> Result<Outcome, AppError> {
        let mut ground = found;
        for _ in 0..MAX_ROUNDS {
            let made = tokio::select! {
                biased;
                () = canceled.cancelled() => return Ok(Outcome::Failed),
                made = self.make(id, &ground) => made?,
            };
            // From here on it takes no longer than its sync, and who wants the place does better to find it done.
            let written = match made {
                ControlFlow::Continue(made) => self.write_down(id, ground, made).await?,
                ControlFlow::Break(outcome) => return Ok(outcome),
            };
            match written {
                ControlFlow::Continue(now) => ground = now,
                ControlFlow::Break(outcome) => return Ok(outcome),
            }
        }
        Ok(Outcome::Failed)
    }

    /// What takes the place of the context, or why nothing does.
    async fn make(
        &self,
        id: SessionId,
        ground: &Arc<Ground>,
    ) -> Result<ControlFlow<Outcome, Made>, AppError> {
        let skip = |reason| Ok(ControlFlow::Break(self.skip(id, reason, Arc::clone(ground))));
        if let Some(reason) = self.objection(id, ground) {
            return skip(reason);
        }
        told::step(self.core, id, json!({ "step": "planning" }));
        let (order, ground_too) = (self.order.clone(), Arc::clone(ground));
        let way = blocking(self.core, move |core| way(core, &order, &ground_too)).await?;
        let made = match way {
            Way::Nothing => return skip("nothing"),
            Way::Head(method) => {
                mark(self.core, id, ground.prepared.leaf).await?;
                as_they_are(method, &ground.prepared.checkpoints)
            }
            Way::Summary(cut) => {
                let range = Range::new(self.core, &self.order, ground, &cut);
                match self.summarized(&range).await? {
                    Some(made) => made,
                    None => return Ok(ControlFlow::Break(Outcome::Failed)),
                }
            }
        };
        Ok(ControlFlow::Continue(made))
    }

    /// Writes it down, or tells how the session is where another compaction came first.
    async fn write_down(
        &self,
        id: SessionId,
        ground: Arc<Ground>,
        made: Made,
    ) -> Result<ControlFlow<Outcome, Arc<Ground>>, AppError> {
        told::step(self.core, id, json!({ "step": "writing" }));
        match commit(self.core, self.order.clone(), ground, made).await {
            Ok(Committed::Done(done)) => Ok(ControlFlow::Break(Outcome::Done(done))),
            Ok(Committed::Overtaken(now)) => Ok(ControlFlow::Continue(now)),
            Err(AppError::Compact(error)) if self.cause.is_automatic() => {
                self.core.compactions.failed(id);
                told::failed(self.core, id, &error, false);
                Ok(ControlFlow::Break(Outcome::Failed))
            }
            Err(error) => Err(error),
        }
    }

    /// A summary by a model, or without one where the context must become smaller now; `None` where it can wait.
    async fn summarized(&self, range: &Range<'_>) -> Result<Option<Made>, AppError> {
        let error = match range.by_model(self.seat).await {
            Ok(made) => return Ok(Some(made)),
            Err(AppError::Compact(error)) => error,
            Err(error) => return Err(error),
        };
        let id = range.ground.prepared.id;
        let can_wait = self.can_wait(range.ground);
        if can_wait && !self.cause.is_automatic() {
            return Err(error.into());
        }
        told::failed(self.core, id, &error, !can_wait);
        self.core.compactions.failed(id);
        if can_wait { Ok(None) } else { Ok(Some(range.by_lines().await?)) }
    }

    /// Why the daemon does not compact by itself now.
    fn objection(&self, id: SessionId, ground: &Ground) -> Option<&'static str> {
        if !self.cause.is_automatic() {
            return None;
        }
        let before = &ground.before;
        if !self.must && !before.is_due {
            return Some(NOT_DUE);
        }
        if before.is_recent() {
            return Some("recent");
        }
        let is_paused = self.core.compactions.is_paused(id);
        (is_paused && self.can_wait(ground)).then_some("paused")
    }

    /// Whether the context can stay as it is until a model summarizes. In the background nobody needs it now.
    fn can_wait(&self, ground: &Ground) -> bool {
        self.cause == Cause::Background || (ground.before.fits && !self.must)
    }

    fn skip(&self, id: SessionId, reason: &'static str, ground: Arc<Ground>) -> Outcome {
        let at = ground.prepared.compaction_at();
        let is_told = reason != NOT_DUE
            && self.cause.is_automatic()
            && self.core.compactions.is_new_skip(id, reason, at);
        if is_told {
            told::skipped(self.core, id, reason);
        }
        Outcome::Skipped(reason, ground)
    }
}

/// The reason for a compaction left out that nobody needs to hear of.
const NOT_DUE: &str = "notDue";

#[cfg(test)]
mod tests;
