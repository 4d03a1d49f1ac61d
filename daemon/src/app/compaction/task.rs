//! One compaction from its claim to its record.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ollm_protocol::SessionId;
use ollm_protocol::content::CompactionMethod;
use ollm_protocol::event::CompressionStep;
use tokio_util::sync::CancellationToken;

use super::commit::{CommitOutcome, Compacted, NewHead, commit, snapshot_before};
use super::events;
use super::read_ahead::is_reading_noticed;
use super::summarizer::QueuePlace;
use super::summary::SummaryRange;
use super::survey::{CompactionRequest, HeadPlan, Survey, plan_head, survey};
use crate::app::core::Core;
use crate::app::error::{AppError, CompactError, Result};
use crate::app::running::{Claim, CompactionTrigger, RunningCompaction};

/// Attempts to plan a compaction while other compactions are recorded first.
const MAX_ROUNDS: usize = 3;
/// The records that can wait for the notes of a model before a turn waits too, in prompts of the largest size.
const MAX_WAITING_PROMPTS: u64 = 2;
/// The longest expected time for reading the request and writing the summary for which a turn waits before it answers the
/// user.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The longest such time between calls of tools, where no user waits for the first word of an answer.
const LONGEST_WAIT_BETWEEN_CALLS: Duration = Duration::from_secs(30);
/// The reason of a skipped compaction that subscribers do not need to know.
const NOT_DUE: &str = "notDue";

/// The end of a compaction.
pub(super) enum CompactionOutcome {
    Done(Box<Compacted>),
    /// The compaction was not due, or would have gained nothing.
    Skipped(&'static str, Arc<Survey>),
    /// The compaction failed or gave way; the context is unchanged.
    Abandoned,
}

/// A compaction to carry out.
pub(super) struct CompactionTask<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) request: CompactionRequest,
    pub(super) trigger: CompactionTrigger,
    pub(super) place: QueuePlace<'a>,
    pub(super) cause: CompactionCause,
}

/// The cause for which a context is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompactionCause {
    /// More records than before.
    Growth,
    /// Another window, another model or other tools.
    NewForm,
    /// A refusal by the model: the context must become smaller even if the counts say that it fits.
    Refusal,
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
    const fn id(&self) -> SessionId {
        self.request.params.session_id
    }

    fn must_shrink(&self) -> bool {
        self.cause == CompactionCause::Refusal
    }

    /// Runs the whole transaction.
    ///
    /// **Cancel safety**: dropped before its record is queued, it leaves no more than a snapshot.
    pub(super) async fn run(self) -> Result<CompactionOutcome> {
        let id = self.id();
        let claim = claim(self.core, id, self.trigger).await?;
        let survey = survey(self.core, &self.request).await?;
        let outcome = self.carry_out(survey, &claim.value.cancel).await?;
        if let CompactionOutcome::Done(compacted) = &outcome {
            // An extracted summary says nothing about the model.
            if compacted.head.method != CompactionMethod::Extracted {
                self.core.due_compactions.note_success(id);
            }
            events::compacted(self.core, id, self.trigger, compacted);
        }
        Ok(outcome)
    }

    /// Makes and records a new head. Starts again if another compaction, whose owner was dropped before the reply, was
    /// recorded first.
    pub(super) async fn carry_out(
        &self,
        mut survey: Arc<Survey>,
        canceled: &CancellationToken,
    ) -> Result<CompactionOutcome> {
        let id = self.id();
        for _ in 0..MAX_ROUNDS {
            let made = tokio::select! {
                biased;
                () = canceled.cancelled() => return Ok(CompactionOutcome::Abandoned),
                made = self.make_head(&survey) => made?,
            };
            // The remaining work takes no longer than one sync, so it cannot be canceled any more.
            let head = match made {
                ControlFlow::Continue(head) => head,
                ControlFlow::Break(outcome) => return Ok(outcome),
            };
            events::step(self.core, id, CompressionStep::Writing);
            match commit(self.core, &self.request, Arc::clone(&survey), head).await {
                Ok(CommitOutcome::Done(done)) => return Ok(CompactionOutcome::Done(done)),
                Ok(CommitOutcome::Superseded(now)) => survey = now,
                Err(AppError::Compact(error)) if self.trigger.is_automatic() => {
                    self.core.due_compactions.note_failure(id);
                    events::failed(self.core, id, &error, false);
                    return Ok(CompactionOutcome::Abandoned);
                }
                Err(AppError::Compact(CompactError::NoGain { .. })) => {
                    return Ok(CompactionOutcome::Skipped("unchanged", survey));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(CompactionOutcome::Abandoned)
    }

    /// Makes the new head, or ends the compaction.
    async fn make_head(
        &self,
        survey: &Arc<Survey>,
    ) -> Result<ControlFlow<CompactionOutcome, NewHead>> {
        let skip = |reason| Ok(ControlFlow::Break(self.skip(reason, Arc::clone(survey))));
        let must_extract = self.must_extract(survey);
        if let Some(reason) = self.objection(survey, must_extract) {
            return skip(reason);
        }
        events::step(self.core, self.id(), CompressionStep::Planning);
        let head = match plan_head(self.core, &self.request, survey).await? {
            HeadPlan::Nothing => return skip("nothing"),
            HeadPlan::WithoutSummary(method) => {
                snapshot_before(self.core, self.id(), survey.inputs.leaf).await?;
                NewHead::without_summary(method, &survey.inputs.checkpoints)
            }
            HeadPlan::Summary(cut) => {
                let in_turn = self.trigger == CompactionTrigger::ChatTurn;
                let range = SummaryRange::new(self.core, &self.request, survey, &cut, in_turn);
                match self.summarize(&range, must_extract).await? {
                    Some(head) => head,
                    None => return Ok(ControlFlow::Break(CompactionOutcome::Abandoned)),
                }
            }
        };
        Ok(ControlFlow::Continue(head))
    }

    /// Summarizes by a model, or by extraction if that fails and the context must become smaller now. Returns `None`
    /// if it can wait for a model. With `must_extract`, no model is asked.
    async fn summarize(
        &self,
        range: &SummaryRange<'_>,
        must_extract: bool,
    ) -> Result<Option<NewHead>> {
        if must_extract {
            // Once: a model may write the next summary.
            self.core.due_compactions.unmark_notes_missing(self.id());
        }
        if must_extract || !self.may_wait_for_model(range) {
            return Ok(Some(range.by_extraction().await?));
        }
        let error = match range.by_model(self.place).await {
            Ok(head) => return Ok(Some(head)),
            Err(AppError::Compact(error)) => error,
            Err(error) => return Err(error),
        };
        let id = self.id();
        let can_wait = self.can_wait(range.survey);
        if can_wait && !self.trigger.is_automatic() {
            return Err(error.into());
        }
        events::failed(self.core, id, &error, !can_wait);
        self.core.due_compactions.note_failure(id);
        self.core.due_compactions.mark_notes_missing(id);
        if can_wait { Ok(None) } else { Ok(Some(range.by_extraction().await?)) }
    }

    /// Returns whether a model may be asked for the summary.
    ///
    /// A user who waits for an answer does not wait for notes as well: a chat turn whose message was too long for the rest
    /// of the context extracts them, and the background replaces them in the next pause. If the pauses are too short for
    /// that and the model is fast enough, or the context has another form, the turn waits for one summary; for none while
    /// summaries fail.
    fn may_wait_for_model(&self, range: &SummaryRange<'_>) -> bool {
        if self.trigger != CompactionTrigger::ChatTurn {
            return true;
        }
        let awaits_retry = self.core.due_compactions.awaits_retry(self.id());
        let prompt_limit = range.survey.before.prompt_limit;
        let longest =
            if range.survey.answers_user() { LONGEST_WAIT } else { LONGEST_WAIT_BETWEEN_CALLS };
        let can_wait_longer = || {
            range.cut.tokens <= prompt_limit * MAX_WAITING_PROMPTS
                || range.expected_time().is_some_and(|time| time > longest)
        };
        if awaits_retry || (self.cause == CompactionCause::Growth && can_wait_longer()) {
            return false;
        }
        let turn = self.core.turns.get(self.id());
        turn.is_none_or(|turn| !turn.has_summarized.swap(true, Ordering::Relaxed))
    }

    /// Returns whether the background extracts notes now: a summary failed or gave way, the next message probably does not
    /// fit, and its user would wait until the model has read the new context.
    fn must_extract(&self, survey: &Survey) -> bool {
        let before = &survey.before;
        self.trigger == CompactionTrigger::Background
            && before.is_nearly_full
            && is_reading_noticed(self.core, self.id(), before.available)
            && self.core.due_compactions.are_notes_missing(self.id())
    }

    /// Returns the reason not to compact automatically now.
    fn objection(&self, survey: &Survey, must_extract: bool) -> Option<&'static str> {
        let before = &survey.before;
        let (is_due, is_redo) = match self.trigger {
            CompactionTrigger::Client => return None,
            CompactionTrigger::ChatTurn => (before.is_due || self.must_shrink(), false),
            CompactionTrigger::Background => (before.is_due_in_pause, survey.has_provisional()),
        };
        if !is_due && !is_redo {
            return Some(NOT_DUE);
        }
        // A context that does not fit, because its window shrank, cannot wait until it has grown.
        if before.is_recent() && !is_redo && before.fits && !self.must_shrink() {
            return Some("recent");
        }
        let awaits_retry = self.core.due_compactions.awaits_retry(self.id());
        (awaits_retry && self.can_wait(survey) && !must_extract).then_some("paused")
    }

    /// Returns whether the context can stay as it is until a model summarizes. In the background no call waits for it.
    fn can_wait(&self, survey: &Survey) -> bool {
        self.trigger == CompactionTrigger::Background || (survey.before.fits && !self.must_shrink())
    }

    fn skip(&self, reason: &'static str, survey: Arc<Survey>) -> CompactionOutcome {
        let at = survey.inputs.compaction_at();
        if reason != NOT_DUE
            && self.trigger.is_automatic()
            && self.core.due_compactions.note_skip(self.id(), reason, at)
        {
            events::skipped(self.core, self.id(), reason);
        }
        CompactionOutcome::Skipped(reason, survey)
    }
}
