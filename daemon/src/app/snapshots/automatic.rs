//! Automatic snapshots: the one of a context that becomes full, the files of all of them, and their cleanup.

use std::sync::Arc;

use ollm_protocol::content::{RecordBody, RecordKind, SnapshotMark};
use ollm_protocol::{Seq, SessionId, Timestamp};

use super::files::{announce, publish_unrecorded, save};
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, mark_before, uncounted};
use crate::app::error::{AppError, Result};
use crate::app::schedule::{SessionDueSnapshots, TakenSnapshot};
use crate::session::SessionError;

/// Marks the file of an automatic snapshot as due. Called by the observer; never blocks.
pub(crate) fn follow(core: &Core, id: SessionId, seq: Seq, at: Timestamp, body: &RecordBody) {
    if let RecordBody::Snapshot(mark) = body
        // The call that takes one of these writes its file.
        && !SnapshotMark::is_requested(&mark.reason)
        && mark.reason != "compaction"
        // The snapshots of an imported session were taken elsewhere, and their records are enough.
        && !core.imports.is_running(id)
    {
        core.due_snapshots.mark(id, TakenSnapshot { seq, at, mark: mark.clone() });
    }
}

/// Marks a snapshot as due if the share of the prompt limit that a context takes rose to the threshold. Never blocks.
pub(in crate::app) fn follow_fill(core: &Core, id: SessionId, before: f64, share: f64) {
    let snapshots = &core.config().snapshots;
    let at = snapshots.auto_threshold;
    if snapshots.auto_create && before < at && share >= at {
        core.due_snapshots.mark_full(id);
    }
}

/// Takes and writes automatic snapshots when they are due; never returns.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        let id = core.due_snapshots.next().await;
        let written = blocking(&core, move |core| {
            write_due_of(core, id);
            core.snapshots.save_map();
            Ok(())
        });
        if written.await.is_err() {
            return;
        }
    }
}

/// Writes everything that is due: at shutdown, and before snapshots are looked for. Blocks on the disk.
pub(crate) fn write_due(core: &Arc<Core>) {
    for id in core.due_snapshots.sessions() {
        write_due_of(core, id);
    }
    // Another thread may still write snapshots that it took before.
    drop(core.due_snapshots.lock());
    core.snapshots.save_map();
}

/// Takes the snapshot of a session that is due, and writes the files of the newest ones. Errors are published. Blocks on
/// the disk.
pub(super) fn write_due_of(core: &Arc<Core>, id: SessionId) {
    let _until_done = core.due_snapshots.lock();
    let SessionDueSnapshots { mut taken, is_full } = core.due_snapshots.take(id);
    if is_full {
        match take_full(core, id) {
            Ok(()) => taken.extend(core.due_snapshots.take(id).taken),
            Err(AppError::Session(SessionError::NotFound { .. })) => return,
            Err(error) => {
                tracing::warn!(session = %id, "no snapshot of a full context: {error}");
            }
        }
    }
    let max_count = core.config().snapshots.max_count as usize;
    let without_file = taken.len().saturating_sub(max_count);
    for (at, taken) in taken.iter().enumerate() {
        if at < without_file {
            // The cleanup would remove it at once.
            announce(core, id, taken, false);
        } else if let Err(AppError::Session(SessionError::NotFound { .. })) = save(core, id, taken)
        {
            return;
        }
    }
}

/// Records a snapshot of a full context, unless the newest one has that reason: since then nothing was done about it, and
/// only a restart made the daemon forget it.
fn take_full(core: &Core, id: SessionId) -> Result<()> {
    let (leaf, newest) = core.sessions.with(id, |live| {
        let entries = live.state().entries();
        let newest = entries.iter().rposition(|entry| entry.kind() == Some(RecordKind::Snapshot));
        (live.state().leaf(), newest.map(|at| Seq(at as u64)))
    })?;
    let newest = newest.map(|seq| core.body(id, seq)).transpose()?.flatten();
    if matches!(newest, Some(RecordBody::Snapshot(mark)) if mark.reason == SnapshotMark::THRESHOLD)
    {
        return Ok(());
    }
    let mark = mark_before(&core.clock, leaf, MarkedChange::Threshold);
    let snapshot_id = mark.snapshot_id;
    let draft = uncounted(RecordBody::Snapshot(mark));
    match core.sessions.append_after(id, leaf, vec![draft], None)?.wait().map_err(AppError::from) {
        // The record that moved the leaf marks the session again.
        Ok(_) | Err(AppError::Session(SessionError::LeafMoved { .. })) => Ok(()),
        Err(error) => {
            publish_unrecorded(core, id, snapshot_id, &error);
            Err(error)
        }
    }
}
