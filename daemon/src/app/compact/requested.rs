//! `context.compact` and `context.checkpoints`: compaction as a client asks for it.

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::SessionId;
use ollm_protocol::content::{CompactStrategy, CountKind, Reliability, Retention};
use ollm_protocol::methods::context::{
    ContextBuildParams, ContextCheckpointsResult, ContextCompactParams, ContextCompactResult,
};

use super::commit::{Done, preview};
use super::make::{Range, as_they_are};
use super::plan::{Ground, Order, Way, survey, way};
use super::slots::Cause;
use super::summarize::Seat;
use super::{CompactError, Outcome, Task, configured};
use crate::app::{AppError, Core, blocking};
use crate::context::compact::tier;
use crate::context::reliability::{ReliabilityEvidence, assess_reliability};
use crate::model::Priority;

/// How long the size of the model is waited for; without it the score is that of a small one.
const SIZE_WAIT: Duration = Duration::from_millis(500);
/// Longest instructions; they stand in every request for a summary.
const MAX_INSTRUCTIONS: usize = 2000;

/// Compacts a session, or tells what that would do.
pub(crate) async fn compact(
    core: &Arc<Core>,
    params: ContextCompactParams,
) -> Result<ContextCompactResult, AppError> {
    let ContextCompactParams { session_id: id, dry_run, strategy, instructions, tools } = params;
    if instructions.as_ref().is_some_and(|text| text.chars().count() > MAX_INSTRUCTIONS) {
        let problem = format!("must have at most {MAX_INSTRUCTIONS} characters");
        return Err(AppError::invalid("instructions", problem));
    }
    let instructions = instructions.filter(|text| !text.trim().is_empty());
    let build = core.builds.like_last(id);
    let tools = if tools.is_empty() { build.tools.clone() } else { tools };
    let default = configured(core, ContextBuildParams { tools, ..build }, None);
    let strategy = strategy.unwrap_or(default.strategy);
    let order = Order { strategy, instructions, ..default };
    if dry_run {
        return tried(core, order).await;
    }
    let seat = Seat::Own(Priority::Chat);
    let again = order.clone();
    let task = Task { core, order, cause: Cause::Requested, seat, must: false };
    match task.run(id).await {
        Ok(Outcome::Done(done)) => told(core, id, strategy, *done).await,
        Ok(Outcome::Skipped(reason, ground)) => {
            Ok(untouched(core, id, strategy, reason, &ground).await)
        }
        // Nobody ends one that was asked for, except that its session is deleted.
        Ok(Outcome::Failed) => Err(CompactError::Moved { id }.into()),
        Err(AppError::Compact(CompactError::NoGain { .. })) => {
            let ground = blocking(core, move |core| survey(core, &again)).await?;
            Ok(untouched(core, id, strategy, "unchanged", &ground).await)
        }
        Err(error) => Err(error),
    }
}

/// The checkpoints in force.
pub(crate) async fn checkpoints(
    core: &Arc<Core>,
    id: SessionId,
) -> Result<ContextCheckpointsResult, AppError> {
    let (ground, retention) = blocking(core, move |core| {
        let order = configured(core, core.builds.like_last(id), None);
        let ground = survey(core, &order)?;
        let retention = ground.prepared.retention(core)?;
        Ok((ground, retention))
    })
    .await?;
    let tier = tier(ground.prepared.context_size());
    let compression_count = core.summary(id)?.compression_count;
    let checkpoints = ground.prepared.checkpoints.clone();
    let count_kind = ground.before.count_kind;
    Ok(ContextCheckpointsResult {
        tokens: checkpoints.iter().map(|one| one.current_tokens).sum(),
        checkpoints,
        compression_count,
        tier: tier.number,
        tier_name: tier.name.to_owned(),
        limit: tier.limit as u64,
        reliability: reliability(core, &ground, (compression_count, count_kind), retention).await,
    })
}

/// What would be done; a summary without a model stands for the one that a model would write.
async fn tried(core: &Arc<Core>, order: Order) -> Result<ContextCompactResult, AppError> {
    let (id, strategy) = (order.params.session_id, order.strategy);
    let (order_too, order_last) = (order.clone(), order.clone());
    let (ground, way) = blocking(core, move |core| {
        let ground = survey(core, &order_too)?;
        let way = way(core, &order_too, &ground)?;
        Ok((Arc::new(ground), way))
    })
    .await?;
    let made = match way {
        Way::Nothing => return Ok(untouched(core, id, strategy, "nothing", &ground).await),
        Way::Head(method) => as_they_are(method, &ground.prepared.checkpoints),
        Way::Summary(cut) => {
            let range = Range::new(core, &order, &ground, &cut);
            range.tried().await?
        }
    };
    match preview(core, order_last, Arc::clone(&ground), made).await {
        Ok(done) => {
            let mut result = told(core, id, strategy, done).await?;
            result.compacted = false;
            result.reason = Some("dryRun".to_owned());
            Ok(result)
        }
        Err(AppError::Compact(CompactError::NoGain { .. })) => {
            Ok(untouched(core, id, strategy, "unchanged", &ground).await)
        }
        Err(error) => Err(error),
    }
}

async fn told(
    core: &Arc<Core>,
    id: SessionId,
    strategy: CompactStrategy,
    done: Done,
) -> Result<ContextCompactResult, AppError> {
    let Done { seq, made, before, after, retention, ground } = done;
    let compression_count = core.summary(id)?.compression_count;
    let evidence = (compression_count, after.count_kind);
    let cut = made.cut.as_ref();
    Ok(ContextCompactResult {
        compacted: true,
        reason: None,
        seq,
        method: Some(made.method),
        strategy,
        from: cut.map(|cut| cut.from),
        to: cut.map(|cut| cut.to),
        summarized_message_count: cut.map_or(0, |cut| cut.n_messages),
        kept_message_count: after.included_message_count,
        tokens_before: before.tokens,
        tokens_after: after.tokens_used,
        freed_tokens: before.tokens.saturating_sub(after.tokens_used),
        model: made.model,
        checkpoints: made.checkpoints,
        reliability: reliability(core, &ground, evidence, Some(retention)).await,
        retention: Some(retention),
    })
}

async fn untouched(
    core: &Arc<Core>,
    id: SessionId,
    strategy: CompactStrategy,
    reason: &str,
    ground: &Ground,
) -> ContextCompactResult {
    let before = &ground.before;
    let count = core.summary(id).map_or(0, |session| session.compression_count);
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
        checkpoints: ground.prepared.checkpoints.clone(),
        retention: None,
        reliability: reliability(core, ground, (count, before.count_kind), None).await,
    }
}

async fn reliability(
    core: &Core,
    ground: &Ground,
    evidence: (u64, CountKind),
    retention: Option<Retention>,
) -> Reliability {
    judged(core, ground.prepared.model.as_deref(), evidence, retention).await
}

/// How far a conversation with a model can be trusted, by its compactions and the kind of counting.
pub(in crate::app) async fn judged(
    core: &Core,
    model: Option<&str>,
    (compression_count, count_kind): (u64, CountKind),
    retention: Option<Retention>,
) -> Reliability {
    let info = async { core.models.info(model?).await.ok() };
    let info = tokio::time::timeout(SIZE_WAIT, info).await.ok().flatten();
    assess_reliability(&ReliabilityEvidence {
        parameters: info.and_then(|info| info.parameter_count),
        n_compactions: u32::try_from(compression_count).unwrap_or(u32::MAX),
        count_kind,
        retention,
    })
}
