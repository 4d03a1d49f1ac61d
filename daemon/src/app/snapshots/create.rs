//! `snapshot.create`, and writing the file of a snapshot whose record is durable.

use std::sync::Arc;

use ollm_protocol::content::{RecordBody, SnapshotInfo, SnapshotMark};
use ollm_protocol::limits::BoundedField;
use ollm_protocol::methods::snapshot::{SnapshotCreateParams, SnapshotResult};
use ollm_protocol::{EventKind, SessionId, SnapshotId, method};
use serde_json::json;

use super::automatic::clean_up;
use super::content::document;
use crate::app::core::{Core, blocking};
use crate::app::drafts::{take_key, uncounted};
use crate::app::error::{AppError, Result};
use crate::app::partial::settle;
use crate::app::schedule::TakenSnapshot;
use crate::error_chain::with_sources;
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

/// Writes the file of a snapshot, removes automatic ones beyond their number, and announces the snapshot. Returns `None`
/// if the configuration allows no files. Blocks on the disk.
///
/// **Errors**: also published; the file does not exist then.
pub(in crate::app) fn save(
    core: &Arc<Core>,
    id: SessionId,
    taken: &TakenSnapshot,
) -> Result<Option<SnapshotInfo>> {
    if !core.config().snapshots.enabled {
        announce(core, id, taken, false);
        return Ok(None);
    }
    match write(core, id, taken) {
        Ok((info, is_new)) => {
            if is_new {
                announce(core, id, taken, true);
                clean_up(core, id, taken.mark.restores);
            }
            Ok(Some(info))
        }
        // A deletion of the session is no failure of the snapshot.
        Err(error @ AppError::Session(SessionError::NotFound { .. })) => Err(error),
        Err(error) => {
            publish_error(core, id, taken.mark.snapshot_id, &error);
            Err(error)
        }
    }
}

/// Writes the file of a snapshot unless it is there; returns whether it was not.
fn write(core: &Arc<Core>, id: SessionId, taken: &TakenSnapshot) -> Result<(SnapshotInfo, bool)> {
    let snapshot_id = taken.mark.snapshot_id;
    if core.snapshots.has(id, snapshot_id)? {
        core.snapshots.writer().sync(id)?;
        return Ok((core.snapshots.read(id, snapshot_id)?.0, false));
    }
    let document = document(core, id, taken)?;
    let writer = core.snapshots.writer();
    // A deletion that begins later waits for the writer, and then removes the file.
    core.sessions.with(id, |_| ())?;
    let written = core.sessions.with_descriptors(|| writer.write(id, &document))?;
    Ok((written, true))
}

pub(super) fn announce(core: &Core, id: SessionId, taken: &TakenSnapshot, file: bool) {
    let SnapshotMark { snapshot_id, leaf, reason, .. } = &taken.mark;
    let kind = match reason == SnapshotMark::MANUAL {
        true => EventKind::SnapshotCreated,
        false => EventKind::AutoSnapshotCreated,
    };
    let data = json!({ "snapshotId": snapshot_id, "reason": reason, "leaf": leaf, "file": file });
    core.publish(id, Some(taken.seq), kind, data);
}

pub(super) fn publish_error(core: &Core, id: SessionId, snapshot_id: SnapshotId, error: &AppError) {
    let error = with_sources(error);
    tracing::warn!(session = %id, snapshot = %snapshot_id, "a snapshot failed: {error}");
    let data = json!({ "snapshotId": snapshot_id, "error": error });
    core.publish(id, None, EventKind::SnapshotError, data);
}
