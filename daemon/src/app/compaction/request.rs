//! `context.compact` and `context.checkpoints`: compactions and checkpoints for clients.

use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::{CompactStrategy, CountKind, Reliability, Retention};
use ollm_protocol::methods::context::{
    ContextCheckpointsResult, ContextCompactParams, ContextCompactResult,
};
use ollm_protocol::methods::session::SessionIdParams;

use super::commit::{Compacted, NewHead, plan};
use super::policy::SkipReason;
use super::summary::SummaryRange;
use super::survey::{CompactionRequest, HeadPlan, Survey, plan_head, survey};
use super::task::{CompactionOutcome, CompactionTask};
use crate::app::build_request::BuildRequest;
use crate::app::context::inputs::request_like_last;
use crate::app::context::inspect;
use crate::app::core::Core;
use crate::app::error::{AppError, CompactError, Result};
use crate::app::running::CompactionTrigger;
use crate::context::compact::{MAX_INSTRUCTIONS, tier};

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
    let last = request_like_last(&core, id);
    let tools = if tools.is_empty() { last.tools.clone() } else { tools };
    let params = BuildRequest { tools, deep: true, ..last };
    let default = CompactionRequest::configured(&core, params, None);
    let strategy = strategy.unwrap_or(default.strategy);
    let request = CompactionRequest { strategy, instructions, ..default };
    let outcome = match dry_run {
        true => preview_outcome(&core, request).await?,
        false => {
            let trigger = CompactionTrigger::Client;
            CompactionTask { core: &core, request, trigger, ticket: None }.run().await?
        }
    };
    result(&core, id, strategy, outcome).await
}

/// Lists the checkpoints in force (`context.checkpoints`).
pub(crate) async fn checkpoints(
    core: Arc<Core>,
    params: SessionIdParams,
) -> Result<ContextCheckpointsResult> {
    let id = params.session_id;
    let request = CompactionRequest::configured(&core, request_like_last(&core, id), None);
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
        checkpoint_limit: tier.limit as u64,
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
        HeadPlan::Nothing => return Ok(CompactionOutcome::Skipped(SkipReason::Nothing, survey)),
        HeadPlan::WithoutSummary(method) => {
            NewHead::without_summary(method, &survey.inputs.checkpoints)
        }
        HeadPlan::Summary(cut) => {
            SummaryRange::new(core, &request, &survey, &cut).preview().await?
        }
    };
    let head = head.without_outdated(core, &survey).await?;
    let (built, retention) = match plan(core, &request, &survey, &head).await {
        Err(AppError::Compact(CompactError::NoGain { .. })) => {
            return Ok(CompactionOutcome::Skipped(SkipReason::Unchanged, survey));
        }
        planned => planned?,
    };
    let (before, after) = (survey.before, built.result);
    let previewed = Compacted { seq: None, head, before, after, retention, survey };
    Ok(CompactionOutcome::Done(Box::new(previewed)))
}

async fn result(
    core: &Arc<Core>,
    id: SessionId,
    strategy: CompactStrategy,
    outcome: CompactionOutcome,
) -> Result<ContextCompactResult> {
    let (reason, survey, done) = match outcome {
        CompactionOutcome::Done(done) => {
            let reason = done.seq.is_none().then_some("dryRun");
            (reason, Arc::clone(&done.survey), Some(done))
        }
        CompactionOutcome::Skipped(reason, survey) => (Some(reason.name()), survey, None),
        // Only the deletion of its session abandons a client's compaction.
        CompactionOutcome::Abandoned => return Err(CompactError::BranchMoved { id }.into()),
    };
    let (done, before) = (done.as_deref(), &survey.before);
    let (head, after) = (done.map(|done| &done.head), done.map(|done| &done.after));
    let cut = head.and_then(|head| head.cut.as_ref());
    let checkpoints = head.map_or(&survey.inputs.checkpoints, |head| &head.checkpoints).clone();
    let tokens_after = after.map_or(before.tokens, |after| after.context_tokens);
    let count_kind = after.map_or(before.count_kind, |after| after.count_kind);
    let retention = done.map(|done| done.retention);
    let n_compactions = core.summary(id)?.compression_count;
    Ok(ContextCompactResult {
        compacted: reason.is_none(),
        reason: reason.map(str::to_owned),
        seq: done.and_then(|done| done.seq),
        method: head.map(|head| head.method),
        strategy,
        from: cut.map(|cut| cut.from),
        to: cut.map(|cut| cut.to),
        summarized_message_count: cut.map_or(0, |cut| cut.n_messages),
        kept_message_count: after.map_or(before.n_messages, |after| after.included_message_count),
        tokens_before: before.tokens,
        tokens_after,
        freed_tokens: before.tokens.saturating_sub(tokens_after),
        model: head.and_then(|head| head.model.clone()),
        checkpoints,
        reliability: reliability(core, &survey, n_compactions, count_kind, retention).await,
        retention,
    })
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
