//! Pins: records that every later context quotes.

use std::sync::Arc;

use ollm_protocol::content::{Pin, RecordBody, RecordKind};
use ollm_protocol::methods::context::{ContextPinParams, ContextPinResult, PinnedRecord};
use ollm_protocol::{Seq, SessionId};

use super::facts::pins;
use super::paths::active;
use super::shares::{Share, share};
use super::{AppError, Core, append, blocking};
use crate::context::{ContextError, PIN_PERCENT};
use crate::session::{NewRecord, SessionError};

/// Pins a record.
///
/// **Errors**: `Context` where the pinned texts would not fit into their share together; `Invalid` for a record that
/// says nothing or is not in force.
pub(crate) async fn pin(
    core: &Arc<Core>,
    params: ContextPinParams,
) -> Result<ContextPinResult, AppError> {
    let ContextPinParams { session_id: id, seq } = params;
    let result = blocking(core, move |core| {
        let mut pinned = in_force(core, id)?;
        let changed = !pinned.contains(&seq);
        if changed {
            check(core, id, seq)?;
            pinned.push(seq);
        }
        let (share, data) = counted(core, id, &pinned)?;
        let result = told(&share, data, changed);
        if changed && result.tokens > result.limit {
            let (needed, available) = (result.tokens, result.limit);
            let what = "text of all pinned records together";
            return Err(ContextError::Overflow { needed, available, what }.into());
        }
        Ok(result)
    });
    let result = result.await?;
    write(core, id, seq, (true, result.changed)).await?;
    Ok(result)
}

/// Releases a record.
pub(crate) async fn unpin(
    core: &Arc<Core>,
    params: ContextPinParams,
) -> Result<ContextPinResult, AppError> {
    let ContextPinParams { session_id: id, seq } = params;
    let result = blocking(core, move |core| {
        let mut pinned = in_force(core, id)?;
        let before = pinned.len();
        pinned.retain(|one| *one != seq);
        let (share, data) = counted(core, id, &pinned)?;
        Ok(told(&share, data, pinned.len() < before))
    });
    let result = result.await?;
    write(core, id, seq, (false, result.changed)).await?;
    Ok(result)
}

async fn write(
    core: &Arc<Core>,
    id: SessionId,
    target: Seq,
    (pinned, changed): (bool, bool),
) -> Result<(), AppError> {
    if changed {
        let body = RecordBody::Pin(Pin { target, pinned });
        append(core, id, vec![NewRecord::new(body, None)], None).await?;
    }
    Ok(())
}

fn in_force(core: &Core, id: SessionId) -> Result<Vec<Seq>, AppError> {
    pins(core, id, &*active(core, id)?)
}

/// Refuses what cannot be quoted.
fn check(core: &Core, id: SessionId, seq: Seq) -> Result<(), AppError> {
    let entry = core.sessions.with(id, |live| live.state().entry(seq))?;
    let kind = entry.ok_or(SessionError::RecordNotFound { id, seq })?.kind();
    if !matches!(kind, Some(RecordKind::Message | RecordKind::ToolCall)) {
        return Err(AppError::invalid("seq", "only messages and tool calls can be pinned"));
    }
    if !active(core, id)?.has(seq) {
        return Err(AppError::invalid("seq", "the record is not on the active path"));
    }
    Ok(())
}

/// The tokens of records as they would be quoted; one that is damaged has none.
fn counted(
    core: &Core,
    id: SessionId,
    seqs: &[Seq],
) -> Result<(Share, Vec<PinnedRecord>), AppError> {
    let share = share(core, Some(id), PIN_PERCENT)?;
    let bodies = core.sessions.bodies(id, seqs)?;
    let tokens = bodies.into_iter().map(|body| match body {
        Some(RecordBody::Message(message)) => share.count(&message.plain_text()),
        Some(RecordBody::ToolCall(call)) => share.count(&call.result.llm_content),
        _ => 0,
    });
    let data = seqs.iter().zip(tokens).map(|(seq, tokens)| PinnedRecord { seq: *seq, tokens });
    let data = data.collect();
    Ok((share, data))
}

fn told(share: &Share, data: Vec<PinnedRecord>, changed: bool) -> ContextPinResult {
    let tokens = data.iter().map(|one| one.tokens).sum();
    ContextPinResult { data, changed, tokens, limit: share.limit }
}
