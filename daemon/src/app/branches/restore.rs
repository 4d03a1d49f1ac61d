//! `snapshot.restore`: returning a session to a snapshot.
//!
//! The leaf moves to where it was, so messages, checkpoints, goals, entries, pins and the mode are those of that time,
//! because their folds follow the path. Unlike other moves it goes to the very record of the snapshot, also between a tool
//! call and its results: the end of the unit would lie behind the change that is taken back. A snapshot whose record is
//! lost becomes a new session. With `files`, the files that the session wrote follow the move (`app::put_back`).

use std::sync::Arc;

use ollm_protocol::content::{
    ContextState, FilePlan, LeafMove, PathRecords, RecordBody, RecordKind, SnapshotDocument,
    SnapshotMark,
};
use ollm_protocol::methods::snapshot::{SnapshotRestoreParams, SnapshotRestoreResult};
use ollm_protocol::{EventKind, Seq, SessionId, SnapshotId, method};
use serde_json::json;

use super::branch::append;
use super::unit::check_on_tree;
use super::{check_no_turn, count_change, path_change};
use crate::app::context::state::context_state;
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, mark_before, take_key, uncounted};
use crate::app::error::{AppError, Result};
use crate::app::partial::settle;
use crate::app::put_back::{self, FileMove, FilesRequest};
use crate::app::snapshots::manage::session_of;
use crate::app::snapshots::new_session;
use crate::session::index::IndexEntry;
use crate::session::{Appended, IdempotencyKey, NewRecord, SessionError};
use crate::snapshot::SnapshotError;

/// Where a snapshot leads to.
enum SnapshotTarget {
    /// The session returns to a leaf.
    Leaf(SessionId, Option<Seq>),
    /// A file of which a new session is made.
    File(Box<SnapshotDocument>),
}

/// A return to a leaf that was planned for a state of the session.
struct RestorePlan {
    file_move: FileMove,
    added: PathRecords,
    removed: PathRecords,
    /// The contexts before and after, of a dry run.
    states: Option<(ContextState, ContextState)>,
}

/// Returns a session to a snapshot (`snapshot.restore`).
///
/// **Errors**: `Conflict` while a turn answers; `Snapshot` if there is neither a record nor a usable file; `LeafMoved` if
/// the session changed concurrently; `Invalid` for files of a new session.
pub(crate) async fn restore(
    core: Arc<Core>,
    mut params: SnapshotRestoreParams,
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
    files.wait_for_others(&core, id).await;
    let used = key.clone();
    let plan = blocking(&core, move |core| plan(core, id, to, used.as_ref(), dry_run)).await?;
    let Some(RestorePlan { file_move, added, removed, states }) = plan else {
        // Without records, the write only compares the key and its payload.
        let known = core.sessions.append(id, Vec::new(), key)?.await?;
        return Ok(moved(snapshot_id, id, (Some(known.seq), to), true));
    };
    let (before, after) = states.unzip();
    let mut result = SnapshotRestoreResult {
        before,
        after,
        added,
        removed,
        ..moved(snapshot_id, id, (None, to), false)
    };
    if files == FilesRequest::Preview {
        let preview = move |core: &Arc<Core>| put_back::preview(core, file_move);
        result.files = Some(blocking(&core, preview).await?);
        return Ok(result);
    }
    if dry_run || file_move.leaf == to {
        return Ok(result);
    }
    let mark = mark_before(&core.clock, file_move.leaf, MarkedChange::Restore(snapshot_id));
    result.saved_as = Some(mark.snapshot_id);
    let drafts = vec![
        uncounted(RecordBody::Snapshot(mark)),
        uncounted(RecordBody::Leaf(LeafMove { to, cause: LeafMove::RESTORE.to_owned() })),
    ];
    let (appended, plan) = carry_out(&core, file_move, drafts, files, key).await?;
    (result.seq, result.files) = (Some(appended.seq.next()), plan);
    let data = json!({ "snapshotId": snapshot_id, "from": null });
    core.publish(id, result.seq, EventKind::SnapshotRestored, data);
    Ok(result)
}

/// Moves the leaf, with or without the files.
async fn carry_out(
    core: &Arc<Core>,
    file_move: FileMove,
    drafts: Vec<NewRecord>,
    files: FilesRequest,
    key: Option<IdempotencyKey>,
) -> Result<(Appended, Option<FilePlan>)> {
    let FilesRequest::Apply(plan_id) = files else {
        let FileMove { id, leaf, .. } = file_move;
        return Ok((append(core, id, leaf, drafts, key).await?, None));
    };
    blocking(core, move |core| {
        let (appended, plan) = put_back::apply(core, &file_move, plan_id, drafts, key)?;
        Ok((appended, Some(plan)))
    })
    .await
}

/// Returns the result of a return to `leaf` whose snapshot record has the number `mark`.
fn moved(
    snapshot_id: SnapshotId,
    session_id: SessionId,
    (mark, leaf): (Option<Seq>, Option<Seq>),
    duplicate: bool,
) -> SnapshotRestoreResult {
    SnapshotRestoreResult {
        snapshot_id,
        session_id,
        session: None,
        new_session: false,
        seq: mark.map(Seq::next),
        leaf,
        saved_as: None,
        before: None,
        after: None,
        added: PathRecords::default(),
        removed: PathRecords::default(),
        files: None,
        duplicate,
    }
}

/// Plans the move; returns `None` if the key was used before. Blocks on the disk.
fn plan(
    core: &Arc<Core>,
    id: SessionId,
    to: Option<Seq>,
    key: Option<&IdempotencyKey>,
    dry_run: bool,
) -> Result<Option<RestorePlan>> {
    settle(core, id)?;
    let is_known = |key: &IdempotencyKey| {
        core.sessions.with(id, |live| live.state().key(&key.digest.key).is_some())
    };
    if key.map_or(Ok(false), is_known)? {
        return Ok(None);
    }
    if !dry_run {
        check_no_turn(core, id)?;
    }
    let (file_move, added, removed) = core.sessions.with(id, |live| {
        let state = live.state();
        to.map_or(Ok(()), |to| check_on_tree(state, to, "snapshotId"))?;
        let leaf = state.leaf();
        let (added, removed) = path_change(state, leaf, to);
        let counts = count_change(state, leaf, to);
        let file_move = FileMove { id, leaf, to, removed, added, cause: LeafMove::RESTORE };
        Ok::<_, AppError>((file_move, counts.0, counts.1))
    })??;
    let leaf = file_move.leaf;
    let states = match dry_run {
        true => Some((context_state(core, id, leaf)?, context_state(core, id, to)?)),
        false => None,
    };
    if leaf == to && !dry_run {
        // The reply confirms an earlier move.
        core.sessions.sync(id)?;
    }
    Ok(Some(RestorePlan { file_move, added, removed, states }))
}

/// Finds where a snapshot leads to. Blocks on the disk.
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
        let is_mark = |entry: &IndexEntry| {
            entry.kind() == Some(RecordKind::Snapshot) && !entry.has(IndexEntry::REST_MARK)
        };
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
