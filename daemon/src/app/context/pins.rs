//! Pins: records that every later context quotes.

use std::sync::Arc;

use ollm_protocol::content::{Pin, RecordBody, RecordKind};
use ollm_protocol::methods::context::{ContextPinParams, ContextPinResult, PinnedRecord};
use ollm_protocol::{Seq, SessionId};

use super::folds::{active_path, pins};
use super::quota::TokenQuota;
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, Result};
use crate::context::PIN_PERCENT;
use crate::session::SessionError;

/// Pins a record (`context.pin`).
///
/// **Errors**: `Context` if all pinned texts together would not fit into their share; `Invalid` for a record that
/// cannot be quoted or is not on the active path.
pub(crate) async fn pin(core: Arc<Core>, params: ContextPinParams) -> Result<ContextPinResult> {
    set_pinned(&core, params, true).await
}

/// Releases a pinned record (`context.unpin`).
pub(crate) async fn unpin(core: Arc<Core>, params: ContextPinParams) -> Result<ContextPinResult> {
    set_pinned(&core, params, false).await
}

async fn set_pinned(
    core: &Arc<Core>,
    params: ContextPinParams,
    pinned: bool,
) -> Result<ContextPinResult> {
    let ContextPinParams { session_id: id, seq } = params;
    let result = blocking(core, move |core| {
        let mut pins = pins(core, id, &*active_path(core, id)?)?;
        let changed = pins.contains(&seq) != pinned;
        if !pinned {
            pins.retain(|one| *one != seq);
        } else if changed {
            check_pinnable(core, id, seq)?;
            pins.push(seq);
        }
        let quota = TokenQuota::of(core, Some(id), PIN_PERCENT)?;
        let data = pinned_records(core, id, &pins, &quota)?;
        let tokens = data.iter().map(|record| record.tokens).sum();
        if pinned && changed {
            quota.check(tokens, "text of all pinned records together")?;
        }
        if !changed {
            // The reply confirms an earlier change.
            core.sessions.sync(id)?;
        }
        Ok(ContextPinResult { data, changed, tokens, limit: quota.limit })
    })
    .await?;
    if result.changed {
        let body = RecordBody::Pin(Pin { target: seq, pinned });
        core.append_one(id, body).await?;
    }
    Ok(result)
}

/// Refuses a record that cannot be quoted.
fn check_pinnable(core: &Core, id: SessionId, seq: Seq) -> Result<()> {
    let entry = core.sessions.with(id, |live| live.state().entry(seq))?;
    let kind = entry.ok_or(SessionError::RecordNotFound { id, seq })?.kind();
    if !matches!(kind, Some(RecordKind::Message | RecordKind::ToolCall)) {
        return Err(AppError::invalid("seq", "only messages and tool calls can be pinned"));
    }
    if !active_path(core, id)?.contains(seq) {
        return Err(AppError::invalid("seq", "the record is not on the active path"));
    }
    Ok(())
}

/// Counts the records as they would be quoted; a damaged one has 0 tokens.
fn pinned_records(
    core: &Core,
    id: SessionId,
    seqs: &[Seq],
    quota: &TokenQuota,
) -> Result<Vec<PinnedRecord>> {
    let bodies = core.sessions.bodies(id, seqs)?;
    let tokens = bodies.into_iter().map(|body| match body {
        Some(RecordBody::Message(message)) => quota.count(&message.plain_text()),
        Some(RecordBody::ToolCall(call)) => quota.count(&call.result.llm_content),
        _ => 0,
    });
    Ok(seqs.iter().zip(tokens).map(|(seq, tokens)| PinnedRecord { seq: *seq, tokens }).collect())
}
