//! Recording a compaction: the head is planned for the newest records, measured, and written as one record.
//!
//! **Invariant**: one record holds a whole compaction. The context does not change before that record is written;
//! records that were written during the summary follow the head verbatim.

use std::sync::Arc;

use ollm_protocol::content::{
    AskedFact, BuiltContext, Checkpoint, Compaction, CompactionMethod, RecordBody, Retention,
};
use ollm_protocol::{CheckpointId, Seq, SessionId};

use super::survey::{CompactionRequest, ContextBefore, Survey};
use crate::app::build_request::BuildRequest;
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, mark_before, uncounted};
use crate::app::error::{CompactError, Result};
use crate::app::schedule::TakenSnapshot;
use crate::app::snapshots;
use crate::context::compact::{MeasuredTexts, drop_outdated, measure_retention, retention_targets};
use crate::context::{self, BuildInput, Built, CutPlan};
use crate::session::NewRecord;

/// The parts of a new head, before it is planned.
#[derive(Clone)]
pub(super) struct NewHead {
    pub(super) method: CompactionMethod,
    /// The range that was summarized.
    pub(super) cut: Option<CutPlan>,
    /// Every checkpoint in force after the compaction.
    pub(super) checkpoints: Vec<Checkpoint>,
    /// The checkpoint of the range.
    pub(super) created: Option<CheckpointId>,
    /// The checkpoints that were aged or merged.
    pub(super) aged: Vec<CheckpointId>,
    /// The model that wrote the summary.
    pub(super) model: Option<String>,
    /// The identifiers in the range, whose retention is measured.
    pub(super) identifiers: Vec<String>,
    /// The facts that a model was asked about.
    pub(super) asked: Vec<AskedFact>,
}

impl NewHead {
    /// Returns a head that needs no summary: the checkpoints stay as they are.
    pub(super) fn without_summary(method: CompactionMethod, checkpoints: &[Checkpoint]) -> Self {
        Self {
            method,
            cut: None,
            checkpoints: checkpoints.to_vec(),
            created: None,
            aged: Vec::new(),
            model: None,
            identifiers: Vec::new(),
            asked: Vec::new(),
        }
    }

    /// Returns the head without the lines of notes that say what the user corrected, took back or suppressed. Earlier notes
    /// have such lines, and a model copies them.
    pub(super) async fn without_outdated(
        mut self,
        core: &Arc<Core>,
        survey: &Arc<Survey>,
    ) -> Result<Self> {
        let survey = Arc::clone(survey);
        blocking(core, move |_| {
            let facts = survey.inputs.facts.fold()?;
            for checkpoint in &mut self.checkpoints {
                let is_outdated = |line: &str| facts.is_outdated(line);
                drop_outdated(checkpoint, &survey.inputs.counter, &is_outdated);
            }
            Ok(self)
        })
        .await
    }
}

/// A compaction that was written, or a preview of one.
pub(super) struct Compacted {
    /// Its record; `None` for a preview.
    pub(super) seq: Option<Seq>,
    pub(super) head: NewHead,
    pub(super) before: ContextBefore,
    pub(super) after: BuiltContext,
    pub(super) retention: Retention,
    pub(super) survey: Arc<Survey>,
}

/// Takes a snapshot before a compaction, record and file.
///
/// **Errors**: `Storage`; the compaction must not run then.
pub(super) async fn snapshot_before(
    core: &Arc<Core>,
    id: SessionId,
    leaf: Option<Seq>,
) -> Result<()> {
    let mark = mark_before(&core.clock, leaf, MarkedChange::Compaction);
    let draft = uncounted(RecordBody::Snapshot(mark.clone()));
    let appended = core.append(id, vec![draft], None).await;
    let appended = appended.inspect_err(|error| {
        snapshots::publish_unrecorded(core, id, mark.snapshot_id, error);
    })?;
    let taken = TakenSnapshot { seq: appended.seq, at: appended.at, mark };
    blocking(core, move |core| {
        snapshots::save(core, id, &taken)?;
        core.snapshots.save_map();
        Ok(())
    })
    .await
}

/// Plans the head for the records of a survey, and measures the retention.
///
/// **Errors**: `NoGain` if the context would not be smaller.
pub(super) async fn plan(
    core: &Arc<Core>,
    request: &CompactionRequest,
    survey: &Arc<Survey>,
    head: &NewHead,
) -> Result<(Built, Retention)> {
    let (params, survey, head) = (request.params.clone(), Arc::clone(survey), head.clone());
    blocking(core, move |core| plan_now(core, &params, &survey, &head)).await
}

fn plan_now(
    core: &Core,
    params: &BuildRequest,
    survey: &Survey,
    head: &NewHead,
) -> Result<(Built, Retention)> {
    let Survey { inputs, before, .. } = survey;
    let contents = inputs.contents(core);
    let below_tokens = Some(before.tokens);
    // The record of this compaction is not in the log yet.
    let chosen = (!head.asked.is_empty()).then(|| inputs.facts.with_asked(&head.asked));
    let chosen = chosen.transpose()?;
    let facts = chosen.as_ref().unwrap_or(&inputs.facts);
    let own = inputs.build_input(params, &head.checkpoints);
    let input = BuildInput { below_tokens, facts: Some(facts), ..own };
    let built = match head.method {
        CompactionMethod::Pruned => context::prune(&input, &contents)?,
        CompactionMethod::Truncated => context::truncate(&input, &contents)?,
        CompactionMethod::Summarized | CompactionMethod::Extracted => {
            context::with_checkpoints(&input, &contents)?
        }
    };
    facts.check()?;
    let no_gain = |after| CompactError::NoGain { id: inputs.id, before: before.tokens, after };
    let built = built.ok_or_else(|| no_gain(before.tokens))?;
    if built.result.context_tokens >= before.tokens || built.new_epoch.is_none() {
        return Err(no_gain(built.result.context_tokens).into());
    }
    let files = head.checkpoints.iter().flat_map(|one| one.files_modified.iter().cloned());
    let texts = MeasuredTexts { files: files.collect(), identifiers: head.identifiers.clone() };
    let kept = retention_targets(&input, &contents, &inputs.checkpoints, texts)
        .map_err(context::ContextError::from)?;
    let retention = measure_retention(&kept, input.facts, &built.result.messages);
    facts.check()?;
    Ok((built, retention))
}

/// Returns the record of a compaction.
pub(super) fn record(
    survey: &Survey,
    head: &NewHead,
    built: &Built,
    retention: Retention,
) -> NewRecord {
    let mut epoch = built.new_epoch.clone();
    if let Some(epoch) = &mut epoch {
        "compaction".clone_into(&mut epoch.cause);
    }
    uncounted(RecordBody::Compaction(Compaction {
        from: head.cut.as_ref().map(|cut| cut.from),
        to: head.cut.as_ref().map(|cut| cut.to),
        summary: String::new(),
        tokens_before: survey.before.tokens,
        tokens_after: Some(built.result.context_tokens),
        tokenizer: survey.inputs.counter.identity().to_string(),
        epoch,
        checkpoints: head.checkpoints.clone(),
        method: Some(head.method),
        model: head.model.clone(),
        retention: Some(retention),
        asked: head.asked.clone(),
    }))
}
