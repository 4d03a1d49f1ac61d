//! `snapshot.create`: a snapshot that a client asks for.

use std::sync::Arc;

use ollm_protocol::content::{RecordBody, SnapshotMark};
use ollm_protocol::limits::BoundedField;
use ollm_protocol::methods::snapshot::{SnapshotCreateParams, SnapshotResult};
use ollm_protocol::{SnapshotId, method};

use super::files::save;
use crate::app::core::{Core, blocking};
use crate::app::drafts::{take_key, uncounted};
use crate::app::error::{AppError, Result};
use crate::app::partial::settle;
use crate::app::schedule::TakenSnapshot;
use crate::session::SessionError;

/// Attempts to record a snapshot while other records move the leaf.
const MAX_TRIES: usize = 8;

/// Takes a snapshot (`snapshot.create`).
///
/// **Errors**: `SnapshotsDisabled`; `Invalid` for a session without records; `Storage` if the file cannot be written, and
/// then only the record of the snapshot is left.
pub(crate) async fn create(
    core: Arc<Core>,
    mut params: SnapshotCreateParams,
) -> Result<SnapshotResult> {
    let key = take_key::<method::SnapshotCreate>(&mut params, |params| &mut params.key)?;
    let SnapshotCreateParams { session_id: id, summary, .. } = params;
    let summary = summary.filter(|text| !text.trim().is_empty());
    BoundedField::SnapshotSummary.check(summary.as_ref().map_or(0, String::len))?;
    if !core.config().snapshots.enabled {
        return Err(AppError::SnapshotsDisabled);
    }
    for _ in 0..MAX_TRIES {
        let leaf = blocking(&core, move |core| {
            settle(core, id)?;
            core.sessions.with(id, |live| match live.state().entries().is_empty() {
                true => Err(AppError::invalid("sessionId", "the session has no records yet")),
                false => Ok(live.state().leaf()),
            })?
        })
        .await?;
        let snapshot_id = SnapshotId::from_uuid(core.clock.uuid());
        let mark = SnapshotMark::new(snapshot_id, leaf, SnapshotMark::MANUAL);
        let mark = SnapshotMark { summary: summary.clone(), ..mark };
        let drafts = vec![uncounted(RecordBody::Snapshot(mark.clone()))];
        let appended = match core.sessions.append_after(id, leaf, drafts, key.clone())?.await {
            Err(SessionError::LeafMoved { .. }) => continue,
            appended => appended?,
        };
        return blocking(&core, move |core| {
            let mut taken = TakenSnapshot { seq: appended.seq, at: appended.at, mark };
            if appended.duplicate
                && let Some(RecordBody::Snapshot(first)) = core.body(id, appended.seq)?
            {
                taken.mark = first;
            }
            let saved = save(core, id, &taken)?.ok_or(AppError::SnapshotsDisabled)?;
            core.snapshots.save_map();
            Ok(SnapshotResult { snapshot: saved })
        })
        .await;
    }
    Err(SessionError::LeafMoved { id }.into())
}
