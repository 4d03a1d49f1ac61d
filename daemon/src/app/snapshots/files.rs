//! The files of snapshots: writing one whose record is durable, and the cleanup of automatic ones.

use std::sync::Arc;

use ollm_protocol::content::{SnapshotInfo, SnapshotMark};
use ollm_protocol::event::{
    AutoSnapshotCreatedData, SnapshotCreatedData, SnapshotDeletedData, SnapshotErrorData,
};
use ollm_protocol::{SessionId, SnapshotId};

use super::content::document;
use crate::app::core::Core;
use crate::app::error::{AppError, Result};
use crate::app::schedule::TakenSnapshot;
use crate::error_chain::with_sources;
use crate::session::SessionError;

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
    let (snapshot_id, leaf) = (*snapshot_id, *leaf);
    let data = SnapshotCreatedData { snapshot_id, reason: reason.clone(), leaf, file };
    match SnapshotMark::is_requested(reason) {
        true => core.publish(id, Some(taken.seq), &data),
        false => core.publish(id, Some(taken.seq), &AutoSnapshotCreatedData(data)),
    }
}

pub(super) fn publish_error(core: &Core, id: SessionId, snapshot_id: SnapshotId, error: &AppError) {
    let error = with_sources(error);
    tracing::warn!(session = %id, snapshot = %snapshot_id, "a snapshot failed: {error}");
    core.publish(id, None, &SnapshotErrorData { snapshot_id, error });
}

/// Announces that the disk refused the record of a snapshot. Other errors are no failure of the snapshot.
pub(in crate::app) fn publish_unrecorded(
    core: &Core,
    id: SessionId,
    snapshot_id: SnapshotId,
    error: &AppError,
) {
    if matches!(error, AppError::Session(SessionError::Storage { .. })) {
        publish_error(core, id, snapshot_id, error);
    }
}

/// Removes the oldest automatic snapshots beyond their number, never `target`, to which the session is returning. Errors
/// are published: the next cleanup tries again. Blocks on the disk.
pub(super) fn clean_up(core: &Core, id: SessionId, target: Option<SnapshotId>) {
    let writer = core.snapshots.writer();
    let found = match core.snapshots.list(id) {
        Ok(found) => found.snapshots,
        Err(error) => {
            return tracing::warn!(session = %id, "snapshots are cleaned up later: {error}");
        }
    };
    let is_counted = |info: &&SnapshotInfo| {
        !info.pinned && !SnapshotMark::is_requested(&info.reason) && info.seq.is_some()
    };
    let mut counted: Vec<_> =
        found.iter().filter(is_counted).map(|info| info.snapshot_id).collect();
    let max_count = core.config().snapshots.max_count as usize;
    // The newest come first.
    while counted.len() > max_count {
        let Some(oldest) = counted.iter().rposition(|id| Some(*id) != target) else { return };
        let oldest = counted.remove(oldest);
        match writer.remove(id, oldest) {
            Ok(()) => publish_deleted(core, id, oldest, "cleanup"),
            Err(error) => publish_error(core, id, oldest, &error.into()),
        }
    }
}

pub(super) fn publish_deleted(core: &Core, id: SessionId, snapshot_id: SnapshotId, reason: &str) {
    let reason = reason.to_owned();
    core.publish(id, None, &SnapshotDeletedData { snapshot_id, reason });
}
