//! The events of compactions, and of contexts that reach a threshold.

use ollm_protocol::SessionId;
use ollm_protocol::content::CompactionMethod;
use ollm_protocol::event::{
    AutoSummaryCreatedData, BeforeOverflowData, CheckpointAgedData, CheckpointCreatedData,
    CompressedData, CompressionErrorData, CompressionProgressData, CompressionSkippedData,
    CompressionStep, ContextThresholdData, RolloverCompleteData, Tier1CompressedData,
    Tier2CompressedData, Tier3CompressedData, Tier4CompressedData, Tier5CompressedData,
};

use super::commit::Compacted;
use crate::app::cache::ContextFill;
use crate::app::core::Core;
use crate::app::error::CompactError;
use crate::app::running::CompactionTrigger;
use crate::app::snapshots::automatic::follow_fill;
use crate::context::compact::{retained_percent, tier};
use crate::context::reliability::retention_warning;

/// The share of the prompt limit at which `before-overflow` is published.
const BEFORE_OVERFLOW: f64 = 0.95;

/// Publishes a compaction that is durable.
pub(super) fn compacted(
    core: &Core,
    id: SessionId,
    trigger: CompactionTrigger,
    compacted: &Compacted,
) {
    let Compacted { seq, head, before, after, retention, .. } = compacted;
    let tier = tier(after.context_size);
    let cut = head.cut.as_ref();
    let freed = before.tokens.saturating_sub(after.context_tokens);
    let n_compactions = core.sessions.peek(id, |live| live.state().compression_count());
    let n_compactions = u32::try_from(n_compactions.unwrap_or(1)).unwrap_or(u32::MAX);
    let data = CompressedData {
        method: head.method,
        from: cut.map(|cut| cut.from),
        to: cut.map(|cut| cut.to),
        tokens_before: before.tokens,
        tokens_after: after.context_tokens,
        freed_tokens: freed,
        automatic: trigger.is_automatic(),
        tier: tier.number,
        tier_name: tier.name.to_owned(),
        retention: *retention,
        retained_percent: retained_percent(retention),
        warning: retention_warning(retention, n_compactions),
    };
    core.publish(id, *seq, &data);
    for checkpoint in &head.checkpoints {
        let data = CheckpointCreatedData {
            checkpoint_id: checkpoint.id,
            level: checkpoint.level,
            from: checkpoint.from,
            to: checkpoint.to,
            tokens: checkpoint.current_tokens,
            provisional: checkpoint.provisional,
        };
        if head.created == Some(checkpoint.id) {
            core.publish(id, *seq, &data);
        } else if head.aged.contains(&checkpoint.id) {
            core.publish(id, *seq, &CheckpointAgedData(data));
        }
    }
    if head.method == CompactionMethod::Summarized && trigger.is_automatic() {
        let (checkpoint_id, model) = (head.created, head.model.clone());
        core.publish(id, *seq, &AutoSummaryCreatedData { checkpoint_id, model });
    }
    let data = Tier1CompressedData { method: head.method, tier_name: tier.name.to_owned() };
    match tier.number {
        1 => {
            core.publish(id, *seq, &data);
            let tokens_after = after.context_tokens;
            core.publish(id, *seq, &RolloverCompleteData { tokens_after });
        }
        2 => core.publish(id, *seq, &Tier2CompressedData(data)),
        3 => core.publish(id, *seq, &Tier3CompressedData(data)),
        4 => core.publish(id, *seq, &Tier4CompressedData(data)),
        _ => core.publish(id, *seq, &Tier5CompressedData(data)),
    }
    // Measures the smaller context, so that its thresholds can be passed again.
    report_fill(core, id);
}

/// Publishes that a compaction reached a step.
pub(super) fn step(core: &Core, id: SessionId, step: CompressionStep) {
    let data = CompressionProgressData { step, piece: None, pieces: None, from: None, to: None };
    core.publish(id, None, &data);
}

/// Publishes that a due compaction was skipped.
pub(super) fn skipped(core: &Core, id: SessionId, reason: &str) {
    core.publish(id, None, &CompressionSkippedData { reason: reason.to_owned() });
}

/// Publishes that a compaction failed. `provisional`: an extracted summary takes the place of the model's.
pub(super) fn failed(core: &Core, id: SessionId, error: &CompactError, provisional: bool) {
    let (reason, error) = (error.reason().to_owned(), error.to_string());
    core.publish(id, None, &CompressionErrorData { reason, error, provisional });
}

/// Returns how full the next context of a session is, and publishes each threshold that it passed upwards since the
/// last call. A snapshot becomes due at its own threshold.
pub(super) fn report_fill(core: &Core, id: SessionId) -> Option<ContextFill> {
    let fill = core.sessions.peek(id, |live| {
        core.cache.peek(id, |session| session.builds.fill(live.state())).flatten()
    });
    let fill = fill.flatten()?;
    let used = fill.used + fill.prompt_limit.saturating_sub(fill.available);
    #[expect(clippy::cast_precision_loss, reason = "token counts are small")]
    let share = used as f64 / fill.prompt_limit.max(1) as f64;
    let before = core.cache.with(id, |session| session.builds.replace_reported_share(share));
    if share <= before {
        return Some(fill);
    }
    follow_fill(core, id, before, share);
    let passed = |threshold: f64| {
        let is_passed = before < threshold && share >= threshold;
        let (context_tokens, prompt_limit) = (used, fill.prompt_limit);
        is_passed.then_some(ContextThresholdData { context_tokens, prompt_limit, threshold })
    };
    for data in core.events.thresholds().into_iter().filter_map(passed) {
        core.publish(id, None, &data);
    }
    if let Some(data) = passed(BEFORE_OVERFLOW) {
        core.publish(id, None, &BeforeOverflowData(data));
    }
    Some(fill)
}
