//! Pins: records that every later context quotes.

use std::sync::Arc;

use ollm_protocol::content::{Pin, RecordBody, RecordKind};
use ollm_protocol::methods::context::{ContextPinParams, ContextPinResult, PinnedRecord};
use ollm_protocol::{Seq, SessionId};

use super::folds::{pins, settled_path};
use super::quota::TokenQuota;
use crate::app::change::{FirstPhase, in_two_phases};
use crate::app::core::{Core, blocking};
use crate::app::drafts::uncounted;
use crate::app::error::{AppError, Result};
use crate::app::path::ActivePath;
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
    let first_phase = |_| blocking(core, move |core| plan_pin(core, id, seq, pinned));
    let (result, _) = in_two_phases(core, id, None, first_phase).await?;
    Ok(result.expect("a call without a key is planned"))
}

/// Plans to pin or to release a record. Blocks on the disk.
fn plan_pin(
    core: &Arc<Core>,
    id: SessionId,
    seq: Seq,
    pinned: bool,
) -> Result<FirstPhase<ContextPinResult>> {
    let path = settled_path(core, id)?;
    let mut pins = pins(core, id, &path)?;
    let changed = pins.contains(&seq) != pinned;
    if !pinned {
        pins.retain(|one| *one != seq);
    } else if changed {
        check_pinnable(core, id, &path, seq)?;
        pins.push(seq);
    }
    let quota = TokenQuota::of(core, Some(id), PIN_PERCENT)?;
    let data = pinned_records(core, id, &pins, &quota)?;
    let tokens = data.iter().map(|record| record.tokens).sum();
    if pinned && changed {
        quota.check(tokens, "text of all pinned records together")?;
    }
    let result = ContextPinResult { data, changed, tokens, token_limit: quota.limit };
    if !changed {
        return Ok(FirstPhase::Nothing(result));
    }
    let records = vec![uncounted(RecordBody::Pin(Pin { target: seq, pinned }))];
    Ok(FirstPhase::Append(path.leaf, records, result))
}

/// Refuses a record that cannot be quoted.
fn check_pinnable(core: &Core, id: SessionId, path: &ActivePath, seq: Seq) -> Result<()> {
    let entry = core.sessions.with(id, |live| live.state().entry(seq))?;
    let kind = entry.ok_or(SessionError::RecordNotFound { id, seq })?.kind();
    if !matches!(kind, Some(RecordKind::Message | RecordKind::ToolCall)) {
        return Err(AppError::invalid("seq", "only messages and tool calls can be pinned"));
    }
    if !path.contains(seq) {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::app::testing::TestSession;

    impl TestSession {
        async fn set_pinned(&self, seq: Seq, pinned: bool) -> Result<ContextPinResult> {
            let params = json!({ "sessionId": self.id, "seq": seq });
            let params = serde_json::from_value(params).expect("params");
            set_pinned(&self.core, params, pinned).await
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn concurrent_pins_never_exceed_their_share() {
        let session = Arc::new(TestSession::new(&[]));
        let first = session.record("user", "hello").await.seq;
        let limit = session.set_pinned(first, true).await.expect("fits").token_limit;
        let text = "word ".repeat(usize::try_from(limit).expect("is small") / 5);
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let seq = session.record("user", &text).await.seq;
            let session = Arc::clone(&session);
            let pin = async move { session.set_pinned(seq, true).await };
            tasks.push(crate::shutdown::Tasks::new().spawn(pin));
        }
        let mut n_pinned = 0;
        for task in tasks {
            match task.await.expect("no panic") {
                Ok(result) => n_pinned += usize::from(result.changed),
                Err(error) => assert!(matches!(error, AppError::Context(_)), "{error}"),
            }
        }
        assert!((1..8).contains(&n_pinned), "{n_pinned}");
        let rest = session.set_pinned(first, false).await.expect("unpins");
        assert_eq!(rest.data.len(), n_pinned);
        assert!(rest.tokens <= limit, "{} of {limit}", rest.tokens);
        assert!(!session.set_pinned(first, false).await.expect("is unpinned").changed);
    }
}
