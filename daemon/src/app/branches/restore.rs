//! `snapshot.restore`: returning a session to a snapshot.
//!
//! The leaf moves to where it was, so messages, checkpoints, goals, entries, pins and the mode are those of that time,
//! because their folds follow the path. Unlike other moves it goes to the very record of the snapshot, also between a tool
//! call and its results: the end of the unit would lie behind the change that is taken back. A snapshot whose record is
//! lost becomes a new session. With `files`, the files that the session wrote follow the move (`app::put_back`).

use std::sync::Arc;

use ollm_protocol::content::{
    LeafMove, PathRecords, RecordBody, RecordKind, SnapshotDocument, SnapshotMark,
};
use ollm_protocol::event::SnapshotRestoredData;
use ollm_protocol::methods::snapshot::{SnapshotRestoreParams, SnapshotRestoreResult};
use ollm_protocol::{Seq, SessionId, SnapshotId, method};
use tokio_util::sync::CancellationToken;

use super::count_change;
use super::leaf_move::{MoveCall, Moved, PlannedMove, RecordedMove, carry_out};
use super::unit::check_on_tree;
use crate::app::change::View;
use crate::app::context::state::context_state;
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, mark_before, take_key};
use crate::app::error::{AppError, Result};
use crate::app::put_back::FilesRequest;
use crate::app::snapshots::manage::session_of;
use crate::app::snapshots::new_session;
use crate::session::SessionError;
use crate::session::index::IndexEntry;
use crate::snapshot::SnapshotError;

/// The target of a restore.
enum SnapshotTarget {
    /// The session returns to a leaf.
    Leaf(SessionId, Option<Seq>),
    /// A file of which a new session is made.
    File(Box<SnapshotDocument>),
}

/// Returns a session to a snapshot (`snapshot.restore`). Canceling `left` ends the call as long as files can be taken back.
///
/// **Errors**: `Conflict` while a turn answers; `Snapshot` if there is neither a record nor a usable file; `LeafMoved` if
/// the session changed concurrently; `Invalid` for files of a new session.
pub(crate) async fn restore(
    core: Arc<Core>,
    mut params: SnapshotRestoreParams,
    left: CancellationToken,
) -> Result<SnapshotRestoreResult> {
    let key = take_key::<method::SnapshotRestore>(&mut params, |params| &mut params.key)?;
    let snapshot_id = params.snapshot_id;
    let files = FilesRequest::of(params.files, params.plan_id)?;
    let is_apply = matches!(files, FilesRequest::Apply(_));
    if params.dry_run && is_apply {
        return Err(AppError::invalid("dryRun", "changes nothing; use `files: \"preview\"`"));
    }
    let dry_run = params.dry_run || files == FilesRequest::Preview;
    let target = blocking(&core, move |core| find(core, &params)).await?;
    let (id, to) = match target {
        SnapshotTarget::Leaf(id, to) => (id, to),
        SnapshotTarget::File(_) if is_apply => {
            let problem = "stay as they are: the snapshot becomes a new session, which wrote none";
            return Err(AppError::invalid("files", problem));
        }
        SnapshotTarget::File(document) => {
            return blocking(&core, move |core| {
                new_session::restore(core, snapshot_id, *document, key, dry_run)
            })
            .await;
        }
    };
    let mark = mark_before(&core.clock, None, MarkedChange::Restore(snapshot_id));
    let call = MoveCall { id, key, mark, files, dry_run, left };
    let moved = carry_out(&core, call, move |view: &View<'_>| plan(view, to)).await?;
    let result = SnapshotRestoreResult { leaf: to, ..SnapshotRestoreResult::new(snapshot_id, id) };
    match moved {
        Moved::Previewed(_, PathChange { leaf, added, removed }, files) => {
            blocking(&core, move |core| {
                let before = Some(context_state(core, id, leaf)?);
                let after = Some(context_state(core, id, to)?);
                Ok(SnapshotRestoreResult { before, after, added, removed, files, ..result })
            })
            .await
        }
        Moved::Done(None, _) => Ok(result),
        Moved::Done(Some((first, duplicate)), files) => {
            let result = SnapshotRestoreResult { files, duplicate, ..result };
            let result = blocking(&core, move |core| done(core, id, first, result)).await?;
            if !duplicate {
                core.publish(id, result.seq, &SnapshotRestoredData { snapshot_id, from: None });
            }
            Ok(result)
        }
    }
}

/// The change of the active path by a restore.
struct PathChange {
    /// The active leaf before it.
    leaf: Option<Seq>,
    added: PathRecords,
    removed: PathRecords,
}

/// Plans the move to the leaf of a snapshot.
fn plan(view: &View<'_>, to: Option<Seq>) -> Result<(PlannedMove, PathChange)> {
    to.map_or(Ok(()), |to| check_on_tree(view.state, to, "snapshotId"))?;
    let leaf = view.state.leaf();
    let (added, removed) = count_change(view.state, leaf, to);
    let planned = PlannedMove::to_leaf(view.state, to, LeafMove::RESTORE);
    Ok((planned, PathChange { leaf, added, removed }))
}

/// Completes the result of a restore whose first record is given. Blocks on the disk.
fn done(
    core: &Core,
    id: SessionId,
    first: Seq,
    result: SnapshotRestoreResult,
) -> Result<SnapshotRestoreResult> {
    let RecordedMove { mark, steps, to } = RecordedMove::read(core, id, first)?;
    let (added, removed) =
        core.sessions.with(id, |live| count_change(live.state(), mark.leaf, to))?;
    let (seq, saved_as) = (steps.last().copied(), Some(mark.snapshot_id));
    Ok(SnapshotRestoreResult { seq, leaf: to, saved_as, added, removed, ..result })
}

/// Finds the target of a restore. Blocks on the disk.
fn find(core: &Arc<Core>, params: &SnapshotRestoreParams) -> Result<SnapshotTarget> {
    let SnapshotRestoreParams { snapshot_id, session_id, new_session, .. } = *params;
    let id = match (session_of(core, snapshot_id, session_id), session_id) {
        (Ok(id), _) => id,
        // Its file is gone, and its record may be there.
        (Err(SnapshotError::NotFound { .. }), Some(id)) => {
            core.sessions.with(id, |_| ())?;
            id
        }
        // The file is that of the session that this one was forked from, and the log has the record of both.
        (Err(error @ SnapshotError::OtherSession { .. }), Some(id)) if !new_session => {
            let mark = find_mark(core, id, snapshot_id)?.ok_or(error)?;
            return Ok(SnapshotTarget::Leaf(id, mark.leaf));
        }
        (Err(error), _) => return Err(error.into()),
    };
    if !new_session && let Some(mark) = find_mark(core, id, snapshot_id)? {
        return Ok(SnapshotTarget::Leaf(id, mark.leaf));
    }
    let (_, document) = core.snapshots.read(id, snapshot_id)?;
    Ok(SnapshotTarget::File(Box::new(document)))
}

/// Returns the record of a snapshot; `None` if the log is lost or does not have it.
fn find_mark(core: &Core, id: SessionId, wanted: SnapshotId) -> Result<Option<SnapshotMark>> {
    let indexed = core.snapshots.list(id)?.snapshots;
    let hint = indexed.iter().find(|info| info.snapshot_id == wanted).and_then(|info| info.seq);
    let marks = core.sessions.with(id, |live| {
        let entries = live.state().entries().iter().enumerate().rev();
        let is_mark = |entry: &IndexEntry| entry.kind() == Some(RecordKind::Snapshot);
        let marks = entries.filter(|(_, entry)| is_mark(entry)).map(|(at, _)| Seq(at as u64));
        let hinted = hint.filter(|seq| live.state().entry(*seq).is_some_and(|one| is_mark(&one)));
        hinted.into_iter().chain(marks).collect::<Vec<_>>()
    });
    let marks = match marks {
        Err(SessionError::NotFound { .. }) => return Ok(None),
        marks => marks?,
    };
    for seq in marks {
        if let Some(RecordBody::Snapshot(mark)) = core.body(id, seq)?
            && mark.snapshot_id == wanted
        {
            return Ok(Some(mark));
        }
    }
    Ok(None)
}
