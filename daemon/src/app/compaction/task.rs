//! The steps of one compaction, from its claim to its record: claim, survey, decision, plan, summary, commit.

use std::ops::ControlFlow;
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::{CompactionMethod, HookCompaction, Retention};
use ollm_protocol::event::CompressionStep;
use tokio_util::sync::CancellationToken;

use super::commit::{Compacted, NewHead, plan, record, snapshot_before};
use super::events;
use super::policy::{Action, CompactionNeed, Fullness, OnFailure, Situation, SkipReason, decide};
use super::read_ahead::NextReader;
use super::selection::asked_facts;
use super::summarizer::QueuePlace;
use super::summary::SummaryRange;
use super::survey::{CompactionRequest, HeadPlan, Survey, plan_head, survey};
use crate::app::change::{FirstPhase, in_two_phases};
use crate::app::core::Core;
use crate::app::error::{AppError, CompactError, Result};
use crate::app::hooks;
use crate::app::running::{Claim, CompactionTrigger, RunningCompaction};
use crate::app::schedule::CompactionHistory;
use crate::context::{Built, CutPlan};
use crate::model::{Priority, Ticket};
use crate::session::SessionError;

/// The end of a compaction.
pub(super) enum CompactionOutcome {
    Done(Box<Compacted>),
    /// It was not due, or would have gained nothing.
    Skipped(SkipReason, Arc<Survey>),
    /// It failed or gave way; the context is unchanged.
    Abandoned,
}

/// A head whose record can be written for the survey that it was planned with.
struct PlannedCompaction {
    survey: Arc<Survey>,
    head: NewHead,
    built: Built,
    retention: Retention,
}

/// A compaction to carry out.
pub(super) struct CompactionTask<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) request: CompactionRequest,
    pub(super) trigger: CompactionTrigger,
    /// The caller's place in the queue of the model that summarizes, if it has one.
    pub(super) ticket: Option<&'a Ticket>,
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

/// Gathers what is known of the need for a compaction without the log.
///
/// `available`: the tokens that the conversation may have.
pub(super) fn need_of(
    core: &Core,
    id: SessionId,
    fullness: Fullness,
    has_provisional: bool,
    available: u64,
) -> CompactionNeed {
    let history = core.due_compactions.history(id);
    // A new context has about half of the tokens that are available.
    let reading = || NextReader::of(core, id, available / 2).map(|reader| reader.reading);
    let missing_notes = history.are_notes_missing.then(|| reading().unwrap_or_default());
    let awaits_retry = history.awaits_retry();
    CompactionNeed { fullness, has_provisional, awaits_retry, missing_notes }
}

impl<'a> CompactionTask<'a> {
    const fn id(&self) -> SessionId {
        self.request.params.session_id
    }

    fn place(&self) -> QueuePlace<'a> {
        match self.trigger {
            CompactionTrigger::Background => QueuePlace::Own(Priority::Background),
            _ => self.ticket.map_or(QueuePlace::Own(Priority::Chat), QueuePlace::Held),
        }
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
                self.core.due_compactions.change(id, CompactionHistory::succeed);
            }
            events::compacted(self.core, id, self.trigger, compacted);
        }
        Ok(outcome)
    }

    /// Makes a new head and records it. Records that were written meanwhile follow the head, which is planned again for
    /// them; behind another compaction, whose owner was dropped before the reply, another head is made.
    ///
    /// **Errors**: `BranchMoved` if the session moved to another branch.
    pub(super) async fn carry_out(
        &self,
        survey: Arc<Survey>,
        canceled: &CancellationToken,
    ) -> Result<CompactionOutcome> {
        let first = survey;
        let first_phase = |refused: Option<Result<PlannedCompaction, CompactionOutcome>>| {
            self.plan_record(Arc::clone(&first), refused.and_then(Result::ok), canceled)
        };
        let (planned, seq) = match in_two_phases(self.core, self.id(), None, first_phase).await {
            Ok((Some(Ok(planned)), seq)) => (planned, seq),
            Ok((Some(Err(outcome)), _)) => return Ok(outcome),
            Ok((None, _)) => return Ok(CompactionOutcome::Abandoned),
            Err(error) => return self.failed(error, first),
        };
        let PlannedCompaction { survey, head, built, retention } = planned;
        let (before, after) = (survey.before, built.result);
        self.core.cache.with(self.id(), |session| session.builds.set_fill(seq, &after));
        let compacted = Compacted { seq, head, before, after, retention, survey };
        Ok(CompactionOutcome::Done(Box::new(compacted)))
    }

    /// Makes a head, or takes that of a refused attempt, and plans its record.
    async fn plan_record(
        &self,
        first: Arc<Survey>,
        refused: Option<PlannedCompaction>,
        canceled: &CancellationToken,
    ) -> Result<FirstPhase<Result<PlannedCompaction, CompactionOutcome>>> {
        let (survey, made) = match refused {
            None => (first, None),
            Some(PlannedCompaction { survey: seen, head, .. }) => {
                let now = self.survey_again(&seen).await?;
                let is_valid = now.inputs.compaction_at() == seen.inputs.compaction_at();
                (now, is_valid.then_some(head))
            }
        };
        let head = match made {
            Some(head) => head,
            None => match self.head_unless_canceled(&survey, canceled).await? {
                ControlFlow::Continue(head) => self.with_selection(head, &survey, canceled).await,
                ControlFlow::Break(outcome) => return Ok(FirstPhase::Unrecorded(Err(outcome))),
            },
        };
        let (built, retention) = plan(self.core, &self.request, &survey, &head).await?;
        let (leaf, record) = (survey.inputs.leaf, record(&survey, &head, &built, retention));
        let planned = PlannedCompaction { survey, head, built, retention };
        Ok(FirstPhase::Append(leaf, vec![record], Ok(planned)))
    }

    /// Surveys the session again, after records were written that the last survey does not have.
    async fn survey_again(&self, seen: &Survey) -> Result<Arc<Survey>> {
        let now = survey(self.core, &self.request).await?;
        match seen.inputs.leaf {
            Some(leaf) if !now.inputs.path.contains(leaf) => {
                Err(CompactError::BranchMoved { id: self.id() }.into())
            }
            _ => Ok(now),
        }
    }

    /// Makes the new head, unless the compaction is canceled. The work behind it takes no longer than one sync, so it cannot
    /// be canceled any more.
    async fn head_unless_canceled(
        &self,
        survey: &Arc<Survey>,
        canceled: &CancellationToken,
    ) -> Result<ControlFlow<CompactionOutcome, NewHead>> {
        let made = tokio::select! {
            biased;
            () = canceled.cancelled() => ControlFlow::Break(CompactionOutcome::Abandoned),
            made = self.make_head(survey) => made?,
        };
        if made.is_continue() {
            events::step(self.core, self.id(), CompressionStep::Writing);
        }
        Ok(made)
    }

    /// Adds the facts that the model chose in the pause to a head with its summary. What needs the session meanwhile costs the
    /// choice alone.
    async fn with_selection(
        &self,
        mut head: NewHead,
        survey: &Arc<Survey>,
        canceled: &CancellationToken,
    ) -> NewHead {
        if self.trigger == CompactionTrigger::Background && head.model.is_some() {
            head.asked = tokio::select! {
                biased;
                () = canceled.cancelled() => Vec::new(),
                asked = asked_facts(self.core, &self.request, survey, &head) => asked,
            };
        }
        head
    }

    /// Returns the outcome of a compaction whose record was not written.
    fn failed(&self, error: AppError, survey: Arc<Survey>) -> Result<CompactionOutcome> {
        let id = self.id();
        match error {
            AppError::Session(SessionError::LeafMoved { .. }) if self.trigger.is_automatic() => {
                Ok(CompactionOutcome::Abandoned)
            }
            AppError::Compact(error) if self.trigger.is_automatic() => {
                self.core.due_compactions.change(id, CompactionHistory::fail);
                events::failed(self.core, id, &error, false);
                Ok(CompactionOutcome::Abandoned)
            }
            AppError::Compact(CompactError::NoGain { .. }) => {
                Ok(CompactionOutcome::Skipped(SkipReason::Unchanged, survey))
            }
            error => Err(error),
        }
    }

    /// Makes the new head, or ends the compaction.
    async fn make_head(
        &self,
        survey: &Arc<Survey>,
    ) -> Result<ControlFlow<CompactionOutcome, NewHead>> {
        let action = decide(&self.situation(survey));
        if let Action::Skip(reason) = action {
            return Ok(ControlFlow::Break(self.skip(reason, survey)));
        }
        events::step(self.core, self.id(), CompressionStep::Planning);
        let head = match plan_head(self.core, &self.request, survey).await? {
            HeadPlan::Nothing => {
                return Ok(ControlFlow::Break(self.skip(SkipReason::Nothing, survey)));
            }
            HeadPlan::WithoutSummary(method) => {
                snapshot_before(self.core, self.id(), survey.inputs.leaf).await?;
                Some(NewHead::without_summary(method, &survey.inputs.checkpoints))
            }
            HeadPlan::Summary(cut) => {
                let request = self.request_with_hooks(&cut).await;
                self.summarize(&request, survey, &cut, action).await?
            }
        };
        Ok(match head {
            None => ControlFlow::Break(CompactionOutcome::Abandoned),
            Some(head) => ControlFlow::Continue(head.without_outdated(self.core, survey).await?),
        })
    }

    /// Gathers the values on which the compaction depends.
    fn situation(&self, survey: &Survey) -> Situation {
        let (core, id, before) = (self.core, self.id(), &survey.before);
        let history = core.due_compactions.history(id);
        let provisional = survey.has_provisional();
        Situation {
            trigger: self.trigger,
            need: need_of(core, id, before.fullness, provisional, before.available),
            grown_percent: before.grown_percent,
            waiting_tokens: survey.tokens_without_notes(),
            prompt_limit: before.prompt_limit,
            expected_wait: survey.expected_summary_time(core),
            answers_user: survey.answers_user(),
            has_waited: history.has_waited,
            n_failures: history.n_failures,
        }
    }

    /// Returns the request with what hooks ask of the summary. An entry that a hook sets moves the leaf, so the head is planned
    /// again for it.
    async fn request_with_hooks(&self, cut: &CutPlan) -> CompactionRequest {
        let CutPlan { from, to, n_messages: messages, tokens, .. } = *cut;
        let compaction = HookCompaction { from, to, messages, tokens };
        let guidance = hooks::before_compaction(self.core, self.id(), compaction).await;
        let all = self.request.instructions.iter().chain(&guidance.instructions);
        let all: Vec<&str> = all.map(String::as_str).collect();
        CompactionRequest {
            instructions: (!all.is_empty()).then(|| all.join("\n")),
            keep: guidance.keep,
            ..self.request.clone()
        }
    }

    /// Summarizes a range. Returns `None` if no model did, and the context can stay as it is.
    async fn summarize(
        &self,
        request: &CompactionRequest,
        survey: &Arc<Survey>,
        cut: &CutPlan,
        action: Action,
    ) -> Result<Option<NewHead>> {
        let (id, due) = (self.id(), &self.core.due_compactions);
        let range = SummaryRange::new(self.core, request, survey, cut);
        let Action::Ask(plan) = action else {
            // Once: a model may write the next summary.
            due.change(id, |history| history.are_notes_missing = false);
            return range.by_extraction().await.map(Some);
        };
        if plan.in_turn {
            due.change(id, |history| history.has_waited = true);
        }
        let asked = match range.by_model(self.place(), plan).await {
            // What hooks ask for does not cost the summary.
            Err(AppError::Compact(CompactError::NoRoom { .. }))
                if request.instructions != self.request.instructions =>
            {
                let instructions = self.request.instructions.clone();
                let plain = CompactionRequest { instructions, ..request.clone() };
                let range = SummaryRange::new(self.core, &plain, survey, cut);
                Box::pin(range.by_model(self.place(), plan)).await
            }
            asked => asked,
        };
        let error = match asked {
            Err(AppError::Compact(error)) if plan.on_failure != OnFailure::Fail => error,
            made => return made.map(Some),
        };
        let extracts = plan.on_failure == OnFailure::Extract;
        events::failed(self.core, id, &error, extracts);
        due.change(id, |history| {
            history.fail();
            history.are_notes_missing = true;
        });
        if extracts { range.by_extraction().await.map(Some) } else { Ok(None) }
    }

    /// Reports a compaction that is skipped, unless subscribers know that already or nothing was due.
    fn skip(&self, reason: SkipReason, survey: &Arc<Survey>) -> CompactionOutcome {
        let at = survey.inputs.compaction_at();
        let is_new = || {
            let due = &self.core.due_compactions;
            due.change(self.id(), |history| history.skip(reason.name(), at))
        };
        if reason != SkipReason::NotDue && self.trigger.is_automatic() && is_new() {
            events::skipped(self.core, self.id(), reason.name());
        }
        CompactionOutcome::Skipped(reason, Arc::clone(survey))
    }
}
