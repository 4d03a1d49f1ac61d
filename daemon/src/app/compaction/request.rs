//! `context.compact` and `context.checkpoints`: compactions and checkpoints for clients.

use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::{CompactStrategy, CountKind, Reliability, Retention};
use ollm_protocol::methods::context::{
    ContextBuildParams, ContextCheckpointsResult, ContextCompactParams, ContextCompactResult,
};
use ollm_protocol::methods::session::SessionIdParams;

use super::commit::{Compacted, NewHead, preview};
use super::summarizer::QueuePlace;
use super::summary::SummaryRange;
use super::survey::{CompactionRequest, HeadPlan, Survey, plan_head, survey};
use super::task::{CompactionCause, CompactionOutcome, CompactionTask};
use crate::app::context::inputs::params_like_last;
use crate::app::context::inspect;
use crate::app::core::Core;
use crate::app::error::{AppError, CompactError, Result};
use crate::app::running::CompactionTrigger;
use crate::context::compact::tier;
use crate::model::Priority;

/// The longest instructions in characters; every request for a summary repeats them.
const MAX_INSTRUCTIONS: usize = 2000;

/// Compacts a session, or previews the compaction (`context.compact`).
pub(crate) async fn compact(
    core: Arc<Core>,
    params: ContextCompactParams,
) -> Result<ContextCompactResult> {
    let ContextCompactParams { session_id: id, dry_run, strategy, instructions, tools } = params;
    if instructions.as_ref().is_some_and(|text| text.chars().count() > MAX_INSTRUCTIONS) {
        let problem = format!("must have at most {MAX_INSTRUCTIONS} characters");
        return Err(AppError::invalid("instructions", problem));
    }
    let instructions = instructions.filter(|text| !text.trim().is_empty());
    let last = params_like_last(&core, id);
    let tools = if tools.is_empty() { last.tools.clone() } else { tools };
    let params = ContextBuildParams { tools, ..last };
    let default = CompactionRequest::configured(&core, params, None);
    let strategy = strategy.unwrap_or(default.strategy);
    let request = CompactionRequest { strategy, instructions, ..default };
    let outcome = match dry_run {
        true => preview_outcome(&core, request).await?,
        false => {
            let (place, trigger) = (QueuePlace::Own(Priority::Chat), CompactionTrigger::Client);
            let cause = CompactionCause::Growth;
            CompactionTask { core: &core, request, trigger, place, cause }.run().await?
        }
    };
    match outcome {
        CompactionOutcome::Done(compacted) => result(&core, id, strategy, *compacted).await,
        CompactionOutcome::Skipped(reason, survey) => {
            Ok(unchanged(&core, id, strategy, reason, &survey).await)
        }
        // Only the deletion of its session abandons a client's compaction.
        CompactionOutcome::Abandoned => Err(CompactError::BranchMoved { id }.into()),
    }
}

/// Lists the checkpoints in force (`context.checkpoints`).
pub(crate) async fn checkpoints(
    core: Arc<Core>,
    params: SessionIdParams,
) -> Result<ContextCheckpointsResult> {
    let id = params.session_id;
    let request = CompactionRequest::configured(&core, params_like_last(&core, id), None);
    let survey = survey(&core, &request).await?;
    let tier = tier(survey.inputs.window.size);
    let compression_count = core.summary(id)?.compression_count;
    let checkpoints = survey.inputs.checkpoints.clone();
    let count_kind = survey.before.count_kind;
    let retention = survey.inputs.retention;
    Ok(ContextCheckpointsResult {
        tokens: checkpoints.iter().map(|one| one.current_tokens).sum(),
        checkpoints,
        compression_count,
        tier: tier.number,
        tier_name: tier.name.to_owned(),
        limit: tier.limit as u64,
        reliability: reliability(&core, &survey, compression_count, count_kind, retention).await,
    })
}

/// Previews a compaction.
async fn preview_outcome(
    core: &Arc<Core>,
    request: CompactionRequest,
) -> Result<CompactionOutcome> {
    let survey = survey(core, &request).await?;
    let head = match plan_head(core, &request, &survey).await? {
        HeadPlan::Nothing => return Ok(CompactionOutcome::Skipped("nothing", survey)),
        HeadPlan::WithoutSummary(method) => {
            NewHead::without_summary(method, &survey.inputs.checkpoints)
        }
        HeadPlan::Summary(cut) => {
            SummaryRange::new(core, &request, &survey, &cut, false).preview().await?
        }
    };
    match preview(core, &request, Arc::clone(&survey), head).await {
        Ok(compacted) => Ok(CompactionOutcome::Done(Box::new(compacted))),
        Err(AppError::Compact(CompactError::NoGain { .. })) => {
            Ok(CompactionOutcome::Skipped("unchanged", survey))
        }
        Err(error) => Err(error),
    }
}

async fn result(
    core: &Arc<Core>,
    id: SessionId,
    strategy: CompactStrategy,
    compacted: Compacted,
) -> Result<ContextCompactResult> {
    let Compacted { seq, head, before, after, retention, survey } = compacted;
    let compression_count = core.summary(id)?.compression_count;
    let (count_kind, retention) = (after.count_kind, Some(retention));
    let cut = head.cut.as_ref();
    Ok(ContextCompactResult {
        compacted: seq.is_some(),
        reason: seq.is_none().then(|| "dryRun".to_owned()),
        seq,
        method: Some(head.method),
        strategy,
        from: cut.map(|cut| cut.from),
        to: cut.map(|cut| cut.to),
        summarized_message_count: cut.map_or(0, |cut| cut.n_messages),
        kept_message_count: after.included_message_count,
        tokens_before: before.tokens,
        tokens_after: after.tokens_used,
        freed_tokens: before.tokens.saturating_sub(after.tokens_used),
        model: head.model,
        checkpoints: head.checkpoints,
        reliability: reliability(core, &survey, compression_count, count_kind, retention).await,
        retention,
    })
}

/// Returns the result for a context that stayed as it was.
async fn unchanged(
    core: &Arc<Core>,
    id: SessionId,
    strategy: CompactStrategy,
    reason: &str,
    survey: &Survey,
) -> ContextCompactResult {
    let before = &survey.before;
    let n_compactions = core.summary(id).map_or(0, |session| session.compression_count);
    ContextCompactResult {
        compacted: false,
        reason: Some(reason.to_owned()),
        seq: None,
        method: None,
        strategy,
        from: None,
        to: None,
        summarized_message_count: 0,
        kept_message_count: before.n_messages,
        tokens_before: before.tokens,
        tokens_after: before.tokens,
        freed_tokens: 0,
        model: None,
        checkpoints: survey.inputs.checkpoints.clone(),
        retention: None,
        reliability: reliability(core, survey, n_compactions, before.count_kind, None).await,
    }
}

async fn reliability(
    core: &Arc<Core>,
    survey: &Survey,
    n_compactions: u64,
    count_kind: CountKind,
    retention: Option<Retention>,
) -> Option<Reliability> {
    // Nothing can be lost before the first compaction.
    if n_compactions == 0 {
        return None;
    }
    let model = survey.inputs.model.as_deref();
    Some(inspect::reliability(core, model, n_compactions, count_kind, retention).await)
}
