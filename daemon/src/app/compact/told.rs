//! What subscribers are told of compactions and of how full a context is.

use ollm_protocol::content::CompactionMethod;
use ollm_protocol::{EventKind, Seq, SessionId};
use serde_json::{Value, json};

use super::commit::Done;
use super::error::CompactError;
use super::slots::Cause;
use crate::app::Core;
use crate::app::builds::{Fill, fill};
use crate::context::compact::tier;
use crate::events::EventDraft;

/// The share of the prompt limit from which on a context counts as about to overflow.
const ABOUT_TO_OVERFLOW: f64 = 0.95;

/// A compaction is durable.
pub(super) fn compacted(core: &Core, id: SessionId, cause: Cause, done: &Done) {
    let Done { seq, made, before, after, .. } = done;
    let tier = tier(after.num_ctx);
    let cut = made.cut.as_ref();
    let freed = before.tokens.saturating_sub(after.tokens_used);
    let publish = |kind, data| publish(core, id, *seq, kind, data);
    let data = json!({
        "method": made.method, "from": cut.map(|cut| cut.from), "to": cut.map(|cut| cut.to),
        "tokensBefore": before.tokens, "tokensAfter": after.tokens_used, "freedTokens": freed,
        "automatic": cause.is_automatic(), "tier": tier.number, "tierName": tier.name,
    });
    publish(EventKind::Compressed, data);
    for checkpoint in &made.checkpoints {
        let data = json!({
            "checkpointId": checkpoint.id, "level": checkpoint.level, "from": checkpoint.from,
            "to": checkpoint.to, "tokens": checkpoint.current_tokens, "provisional": checkpoint.provisional,
        });
        if made.created == Some(checkpoint.id) {
            publish(EventKind::CheckpointCreated, data);
        } else if made.aged.contains(&checkpoint.id) {
            publish(EventKind::CheckpointAged, data);
        }
    }
    if made.method == CompactionMethod::Summarized && cause.is_automatic() {
        let model = &made.model;
        publish(
            EventKind::AutoSummaryCreated,
            json!({ "checkpointId": made.created, "model": model }),
        );
    }
    let kind = match tier.number {
        1 => EventKind::Tier1Compressed,
        2 => EventKind::Tier2Compressed,
        3 => EventKind::Tier3Compressed,
        4 => EventKind::Tier4Compressed,
        _ => EventKind::Tier5Compressed,
    };
    publish(kind, json!({ "method": made.method, "tierName": tier.name }));
    if tier.number == 1 {
        publish(EventKind::RolloverComplete, json!({ "tokensAfter": after.tokens_used }));
    }
    // What was passed can be passed again.
    gauge(core, id);
}

/// A compaction is at another step.
pub(super) fn step(core: &Core, id: SessionId, data: Value) {
    publish(core, id, None, EventKind::CompressionProgress, data);
}

/// A compaction was due and was left out.
pub(super) fn skipped(core: &Core, id: SessionId, reason: &str) {
    publish(core, id, None, EventKind::CompressionSkipped, json!({ "reason": reason }));
}

/// A compaction failed and changed nothing.
pub(super) fn failed(core: &Core, id: SessionId, error: &CompactError, provisional: bool) {
    let data = json!({
        "reason": error.reason(), "error": error.to_string(), "provisional": provisional,
    });
    publish(core, id, None, EventKind::CompressionError, data);
}

/// How full the next context of a session is; tells each threshold that it passed on the way up since the last look.
pub(in crate::app) fn gauge(core: &Core, id: SessionId) -> Option<Fill> {
    let fill = fill(core, id)?;
    let used = fill.used + fill.prompt_limit.saturating_sub(fill.available);
    let share = share_of(used, fill.prompt_limit);
    let before = core.compactions.measured(id, share);
    if share <= before {
        return Some(fill);
    }
    let is_passed = |at: f64| before < at && share >= at;
    let tell = |kind, at: f64| {
        let limit = fill.prompt_limit;
        let data = json!({ "usedTokens": used, "promptLimit": limit, "threshold": at });
        publish(core, id, None, kind, data);
    };
    let thresholds = core.events.thresholds().into_iter();
    thresholds.filter(|at| is_passed(*at)).for_each(|at| tell(EventKind::ContextThreshold, at));
    if is_passed(ABOUT_TO_OVERFLOW) {
        tell(EventKind::BeforeOverflow, ABOUT_TO_OVERFLOW);
    }
    Some(fill)
}

#[expect(clippy::cast_precision_loss, reason = "token counts are small")]
fn share_of(used: u64, limit: u64) -> f64 {
    used as f64 / limit.max(1) as f64
}

fn publish(core: &Core, id: SessionId, seq: Option<Seq>, kind: EventKind, data: Value) {
    let session_id = Some(id);
    core.events.publish(EventDraft { session_id, seq, kind, at: core.clock.now(), data });
}
