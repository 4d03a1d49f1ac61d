//! `snapshot.restore`: returning a session to a snapshot.
//!
//! The leaf moves to where it was, so messages, checkpoints, goals, entries, pins and the mode are those of that time,
//! because their folds follow the path. Unlike other moves it goes to the very record of the snapshot, also between a tool
//! call and its results: the end of the unit would lie behind the change that is taken back. A snapshot whose record is
//! lost becomes a new session.

use std::sync::Arc;

use ollm_protocol::content::{
    ContextState, LeafMove, PathRecords, RecordBody, RecordKind, SnapshotDocument, SnapshotMark,
};
use ollm_protocol::methods::snapshot::{SnapshotRestoreParams, SnapshotRestoreResult};
use ollm_protocol::{EventKind, Seq, SessionId, SnapshotId, method};
use serde_json::json;

use super::branch::append;
use super::unit::check_on_tree;
use super::{check_no_turn, count, path_change};
use crate::app::context::state::context_state;
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, mark_before, take_key, uncounted};
use crate::app::error::{AppError, Result};
use crate::app::partial::settle;
use crate::app::snapshots::manage::session_of;
use crate::app::snapshots::new_session;
use crate::session::index::IndexEntry;
use crate::session::{IdempotencyKey, SessionError};
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
    leaf: Option<Seq>,
    to: Option<Seq>,
    added: PathRecords,
    removed: PathRecords,
    /// The contexts before and after, of a dry run.
    states: Option<(ContextState, ContextState)>,
}

/// Returns a session to a snapshot (`snapshot.restore`).
///
/// **Errors**: `Conflict` while a turn answers; `Snapshot` if there is neither a record nor a usable file; `LeafMoved` if
/// the session changed concurrently.
pub(crate) async fn restore(
    core: Arc<Core>,
    mut params: SnapshotRestoreParams,
) -> Result<SnapshotRestoreResult> {
    let key = take_key::<method::SnapshotRestore>(&mut params, |params| &mut params.key)?;
    let SnapshotRestoreParams { snapshot_id, dry_run, .. } = params;
    let target = blocking(&core, move |core| find(core, &params)).await?;
    let (id, to) = match target {
        SnapshotTarget::Leaf(id, to) => (id, to),
        SnapshotTarget::File(document) => {
            return blocking(&core, move |core| {
                new_session::restore(core, snapshot_id, *document, key, dry_run)
            })
            .await;
        }
    };
    let used = key.clone();
    let plan = blocking(&core, move |core| plan(core, id, to, used.as_ref(), dry_run)).await?;
    let Some(RestorePlan { leaf, to, added, removed, states }) = plan else {
        // Without records, the write only compares the key and its payload.
        let known = core.sessions.append(id, Vec::new(), key)?.await?;
        return Ok(moved(snapshot_id, id, Some(known.seq), true));
    };
    let (before, after) = states.unzip();
    let mut result = SnapshotRestoreResult {
        before,
        after,
        added,
        removed,
        ..moved(snapshot_id, id, None, false)
    };
    if dry_run || leaf == to {
        return Ok(result);
    }
    let mark = mark_before(&core.clock, leaf, MarkedChange::Restore(snapshot_id));
    result.saved_as = Some(mark.snapshot_id);
    let drafts = vec![
        uncounted(RecordBody::Snapshot(mark)),
        uncounted(RecordBody::Leaf(LeafMove { to, cause: LeafMove::RESTORE.to_owned() })),
    ];
    let appended = append(&core, id, leaf, drafts, key).await?;
    result.seq = Some(appended.seq.next());
    let data = json!({ "snapshotId": snapshot_id, "from": null });
    core.publish(id, result.seq, EventKind::SnapshotRestored, data);
    Ok(result)
}

/// Returns the result of a return whose snapshot record has the number `mark`.
fn moved(
    snapshot_id: SnapshotId,
    session_id: SessionId,
    mark: Option<Seq>,
    duplicate: bool,
) -> SnapshotRestoreResult {
    SnapshotRestoreResult {
        snapshot_id,
        session_id,
        session: None,
        new_session: false,
        seq: mark.map(Seq::next),
        saved_as: None,
        before: None,
        after: None,
        added: PathRecords::default(),
        removed: PathRecords::default(),
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
    let (leaf, added, removed) = core.sessions.with(id, |live| {
        let state = live.state();
        to.map_or(Ok(()), |to| check_on_tree(state, to, "snapshotId"))?;
        let (added, removed) = path_change(state, state.leaf(), to);
        Ok::<_, AppError>((state.leaf(), count(state, &added), count(state, &removed)))
    })??;
    let states = match dry_run {
        true => Some((context_state(core, id, leaf)?, context_state(core, id, to)?)),
        false => None,
    };
    if leaf == to && !dry_run {
        // The reply confirms an earlier move.
        core.sessions.sync(id)?;
    }
    Ok(Some(RestorePlan { leaf, to, added, removed, states }))
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
