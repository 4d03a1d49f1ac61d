//! The events of compactions, and of contexts that reach a threshold.

use ollm_protocol::content::CompactionMethod;
use ollm_protocol::{EventKind, SessionId};
use serde_json::{Value, json};

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
    let tier = tier(after.num_ctx);
    let cut = head.cut.as_ref();
    let freed = before.tokens.saturating_sub(after.tokens_used);
    let publish = |kind, data| core.publish(id, *seq, kind, data);
    let n_compactions = core.sessions.peek(id, |live| live.state().compression_count());
    let n_compactions = u32::try_from(n_compactions.unwrap_or(1)).unwrap_or(u32::MAX);
    let data = json!({
        "method": head.method, "from": cut.map(|cut| cut.from), "to": cut.map(|cut| cut.to),
        "tokensBefore": before.tokens, "tokensAfter": after.tokens_used, "freedTokens": freed,
        "automatic": trigger.is_automatic(), "tier": tier.number, "tierName": tier.name,
        "retention": retention, "retainedPercent": retained_percent(retention),
        "warning": retention_warning(retention, n_compactions),
    });
    publish(EventKind::Compressed, data);
    for checkpoint in &head.checkpoints {
        let data = json!({
            "checkpointId": checkpoint.id, "level": checkpoint.level, "from": checkpoint.from,
            "to": checkpoint.to, "tokens": checkpoint.current_tokens, "provisional": checkpoint.provisional,
        });
        if head.created == Some(checkpoint.id) {
            publish(EventKind::CheckpointCreated, data);
        } else if head.aged.contains(&checkpoint.id) {
            publish(EventKind::CheckpointAged, data);
        }
    }
    if head.method == CompactionMethod::Summarized && trigger.is_automatic() {
        let data = json!({ "checkpointId": head.created, "model": head.model });
        publish(EventKind::AutoSummaryCreated, data);
    }
    let kind = match tier.number {
        1 => EventKind::Tier1Compressed,
        2 => EventKind::Tier2Compressed,
        3 => EventKind::Tier3Compressed,
        4 => EventKind::Tier4Compressed,
        _ => EventKind::Tier5Compressed,
    };
    publish(kind, json!({ "method": head.method, "tierName": tier.name }));
    if tier.number == 1 {
        publish(EventKind::RolloverComplete, json!({ "tokensAfter": after.tokens_used }));
    }
    // Measures the smaller context, so that its thresholds can be passed again.
    report_fill(core, id);
}

/// Publishes that a compaction reached a step.
pub(super) fn step(core: &Core, id: SessionId, data: Value) {
    core.publish(id, None, EventKind::CompressionProgress, data);
}

/// Publishes that a due compaction was skipped.
pub(super) fn skipped(core: &Core, id: SessionId, reason: &str) {
    core.publish(id, None, EventKind::CompressionSkipped, json!({ "reason": reason }));
}

/// Publishes that a compaction failed. `provisional`: an extracted summary takes the place of the model's.
pub(super) fn failed(core: &Core, id: SessionId, error: &CompactError, provisional: bool) {
    let data = json!({
        "reason": error.reason(), "error": error.to_string(), "provisional": provisional,
    });
    core.publish(id, None, EventKind::CompressionError, data);
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
    let publish_if_passed = |kind, at: f64| {
        if before < at && share >= at {
            let limit = fill.prompt_limit;
            let data = json!({ "usedTokens": used, "promptLimit": limit, "threshold": at });
            core.publish(id, None, kind, data);
        }
    };
    for at in core.events.thresholds() {
        publish_if_passed(EventKind::ContextThreshold, at);
    }
    publish_if_passed(EventKind::BeforeOverflow, BEFORE_OVERFLOW);
    Some(fill)
}
