//! One compaction from its claim to its record, and the ways a chat turn asks for one.

use std::ops::ControlFlow;
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::methods::context::ContextBuildParams;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::commit::{CommitOutcome, Compacted, NewHead, commit, mark_before};
use super::events;
use super::summarizer::QueuePlace;
use super::summary::SummaryRange;
use super::survey::{CompactionRequest, HeadPlan, Survey, plan_head, survey};
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, CompactError, Result};
use crate::app::running::{Claim, CompactionTrigger, RunningCompaction};
use crate::context;
use crate::model::{Priority, Ticket, canonical_name};
use crate::tokens::Counter;

/// Attempts to plan a compaction while others are recorded first.
const MAX_ROUNDS: usize = 3;
/// The reason of a skipped compaction that subscribers do not need to know.
const NOT_DUE: &str = "notDue";

/// The end of a compaction.
pub(super) enum CompactionOutcome {
    Done(Box<Compacted>),
    /// It was not due, or would have gained nothing.
    Skipped(&'static str, Arc<Survey>),
    /// It failed or gave way; the context is unchanged.
    Abandoned,
}

/// A compaction to carry out.
pub(super) struct CompactionTask<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) request: CompactionRequest,
    pub(super) trigger: CompactionTrigger,
    pub(super) place: QueuePlace<'a>,
    /// The context must become smaller even if the counts say that it fits.
    pub(super) must_shrink: bool,
}

/// The state of a chat turn that is about to call its model.
pub(in crate::app) struct CompactionInTurn<'a> {
    /// The context that the turn will build.
    pub(in crate::app) params: &'a ContextBuildParams,
    pub(in crate::app) counter: &'a Counter,
    /// The turn's place at its model, if that model also summarizes.
    pub(in crate::app) ticket: Option<&'a Ticket>,
    /// The model refused the context, or had no room to answer.
    pub(in crate::app) must_shrink: bool,
}

/// Returns whether a chat turn has to compact before it calls its model. Cheap as long as that is far away.
pub(in crate::app) async fn is_due(core: &Arc<Core>, turn: CompactionInTurn<'_>) -> Result<bool> {
    let compression = core.config().compression.clone();
    if !compression.enabled {
        return Ok(false);
    }
    let fill = events::report_fill(core, turn.params.session_id);
    if turn.must_shrink {
        return Ok(true);
    }
    if fill.is_some_and(|fill| fill.used < context::trigger(fill.available, compression.threshold))
    {
        return Ok(false);
    }
    let counter = Some(turn.counter.clone());
    let request = CompactionRequest::configured(core, turn.params.clone(), counter);
    let survey = blocking(core, move |core| survey(core, &request)).await?;
    Ok(survey.before.is_due)
}

/// Compacts before a chat turn calls its model; returns whether the context is smaller now.
pub(in crate::app) async fn compact_in_turn(
    core: &Arc<Core>,
    turn: CompactionInTurn<'_>,
) -> Result<bool> {
    let id = turn.params.session_id;
    let place = turn.ticket.map_or(QueuePlace::Own(Priority::Chat), QueuePlace::Held);
    let counter = Some(turn.counter.clone());
    let request = CompactionRequest::configured(core, turn.params.clone(), counter);
    let (trigger, must_shrink) = (CompactionTrigger::ChatTurn, turn.must_shrink);
    let task = CompactionTask { core, request, trigger, place, must_shrink };
    match task.run(id).await {
        Ok(CompactionOutcome::Done(_)) => Ok(true),
        Ok(CompactionOutcome::Skipped(..) | CompactionOutcome::Abandoned) => Ok(false),
        // Another compaction is running; its result serves as well.
        Err(AppError::Compact(CompactError::Conflict { .. })) => {
            core.compactions.wait_until_free(id).await;
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Returns whether the model of a chat also writes its summaries.
pub(in crate::app) fn summarizes_itself(core: &Core, model: &str) -> bool {
    let other = core.config().compression.model.clone();
    other.is_none_or(|other| canonical_name(&other) == canonical_name(model))
}

/// Claims the session for a compaction. A background compaction gives way to all others.
///
/// **Errors**: `Conflict` while another compaction is running.
async fn claim(
    core: &Core,
    id: SessionId,
    trigger: CompactionTrigger,
) -> Result<Claim<RunningCompaction>, CompactError> {
    loop {
        let (started, cancel) = (core.clock.now(), CancellationToken::new());
        let running = RunningCompaction { trigger, started, cancel };
        let holder = match core.compactions.claim(id, running) {
            Ok(claim) => return Ok(claim),
            Err(holder) => holder,
        };
        let RunningCompaction { trigger: other, started: since, cancel } = &*holder.value;
        let gives_way = *other == CompactionTrigger::Background;
        if !gives_way || trigger == CompactionTrigger::Background {
            return Err(CompactError::Conflict { id, holder: other.holder(), since: *since });
        }
        cancel.cancel();
        holder.ended().await;
    }
}

impl CompactionTask<'_> {
    /// Runs the whole transaction.
    ///
    /// **Cancel safety**: dropped before its record is queued, it leaves no more than a snapshot marker.
    pub(super) async fn run(self, id: SessionId) -> Result<CompactionOutcome> {
        let claim = claim(self.core, id, self.trigger).await?;
        let request = self.request.clone();
        let survey = blocking(self.core, move |core| survey(core, &request)).await?;
        let outcome = self.carry_out(id, Arc::new(survey), &claim.value.cancel).await?;
        if let CompactionOutcome::Done(compacted) = &outcome {
            self.core.due_compactions.note_success(id);
            events::compacted(self.core, id, self.trigger, compacted);
        }
        Ok(outcome)
    }

    /// Makes and records a new head; again if another compaction, dropped by its owner before the reply, was recorded
    /// first.
    pub(super) async fn carry_out(
        &self,
        id: SessionId,
        found: Arc<Survey>,
        canceled: &CancellationToken,
    ) -> Result<CompactionOutcome> {
        let mut survey = found;
        for _ in 0..MAX_ROUNDS {
            let made = tokio::select! {
                biased;
                () = canceled.cancelled() => return Ok(CompactionOutcome::Abandoned),
                made = self.make_head(id, &survey) => made?,
            };
            // From here on it takes no longer than one sync, so it no longer gives way.
            let head = match made {
                ControlFlow::Continue(head) => head,
                ControlFlow::Break(outcome) => return Ok(outcome),
            };
            match self.record(id, survey, head).await? {
                ControlFlow::Continue(now) => survey = now,
                ControlFlow::Break(outcome) => return Ok(outcome),
            }
        }
        Ok(CompactionOutcome::Abandoned)
    }

    /// Makes the new head, or ends the compaction.
    async fn make_head(
        &self,
        id: SessionId,
        survey: &Arc<Survey>,
    ) -> Result<ControlFlow<CompactionOutcome, NewHead>> {
        let skip = |reason| Ok(ControlFlow::Break(self.skip(id, reason, Arc::clone(survey))));
        if let Some(reason) = self.objection(id, survey) {
            return skip(reason);
        }
        events::step(self.core, id, json!({ "step": "planning" }));
        let (request, survey_too) = (self.request.clone(), Arc::clone(survey));
        let plan = blocking(self.core, move |core| plan_head(core, &request, &survey_too)).await?;
        let head = match plan {
            HeadPlan::Nothing => return skip("nothing"),
            HeadPlan::WithoutSummary(method) => {
                mark_before(self.core, id, survey.inputs.leaf).await?;
                NewHead::without_summary(method, &survey.inputs.checkpoints)
            }
            HeadPlan::Summary(cut) => {
                let range = SummaryRange::new(self.core, &self.request, survey, &cut);
                match self.summarize(&range).await? {
                    Some(head) => head,
                    None => return Ok(ControlFlow::Break(CompactionOutcome::Abandoned)),
                }
            }
        };
        Ok(ControlFlow::Continue(head))
    }

    /// Records the head, or returns the session as it is now if another compaction was recorded first.
    async fn record(
        &self,
        id: SessionId,
        survey: Arc<Survey>,
        head: NewHead,
    ) -> Result<ControlFlow<CompactionOutcome, Arc<Survey>>> {
        events::step(self.core, id, json!({ "step": "writing" }));
        match commit(self.core, self.request.clone(), survey, head).await {
            Ok(CommitOutcome::Done(compacted)) => {
                Ok(ControlFlow::Break(CompactionOutcome::Done(compacted)))
            }
            Ok(CommitOutcome::Superseded(now)) => Ok(ControlFlow::Continue(now)),
            Err(AppError::Compact(error)) if self.trigger.is_automatic() => {
                self.core.due_compactions.note_failure(id);
                events::failed(self.core, id, &error, false);
                Ok(ControlFlow::Break(CompactionOutcome::Abandoned))
            }
            Err(error) => Err(error),
        }
    }

    /// Summarizes by a model, or by extraction if that fails and the context must become smaller now. Returns `None` if
    /// it can wait for a model.
    async fn summarize(&self, range: &SummaryRange<'_>) -> Result<Option<NewHead>> {
        let error = match range.by_model(self.place).await {
            Ok(head) => return Ok(Some(head)),
            Err(AppError::Compact(error)) => error,
            Err(error) => return Err(error),
        };
        let id = range.survey.inputs.id;
        let can_wait = self.can_wait(range.survey);
        if can_wait && !self.trigger.is_automatic() {
            return Err(error.into());
        }
        events::failed(self.core, id, &error, !can_wait);
        self.core.due_compactions.note_failure(id);
        if can_wait { Ok(None) } else { Ok(Some(range.by_extraction().await?)) }
    }

    /// Returns the reason not to compact automatically now.
    fn objection(&self, id: SessionId, survey: &Survey) -> Option<&'static str> {
        if !self.trigger.is_automatic() {
            return None;
        }
        if !self.must_shrink && !survey.before.is_due {
            return Some(NOT_DUE);
        }
        if survey.before.is_recent() {
            return Some("recent");
        }
        let is_paused = self.core.due_compactions.is_paused(id);
        (is_paused && self.can_wait(survey)).then_some("paused")
    }

    /// Returns whether the context can stay as it is until a model summarizes. In the background nobody needs it now.
    fn can_wait(&self, survey: &Survey) -> bool {
        self.trigger == CompactionTrigger::Background || (survey.before.fits && !self.must_shrink)
    }

    fn skip(&self, id: SessionId, reason: &'static str, survey: Arc<Survey>) -> CompactionOutcome {
        let at = survey.inputs.compaction_at();
        if reason != NOT_DUE
            && self.trigger.is_automatic()
            && self.core.due_compactions.note_skip(id, reason, at)
        {
            events::skipped(self.core, id, reason);
        }
        CompactionOutcome::Skipped(reason, survey)
    }
}
