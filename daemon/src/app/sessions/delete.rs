//! `session.delete`, `clear` and `cleanup`: deleting log, document, blobs, catalog rows and entries of projects.
//!
//! A deletion is marked on the disk first: the next start finishes one that a crash interrupted.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::methods::session::{
    CleanupFailure, IndexCleanup, SessionCleanupParams, SessionCleanupResult, SessionClearParams,
    SessionDeleteResult, SessionIdParams,
};
use ollm_protocol::{EventKind, SessionId};
use serde_json::json;

use crate::app::core::Core;
use crate::app::error::{AppError, Result};
use crate::catalog::ListQuery;
use crate::error_chain::with_sources;

/// The wait of a deletion for the cleanup of the search index, which takes this long for about 10 MB of text.
const CLEANUP_WAIT: Duration = Duration::from_millis(250);

/// All statuses that a session can have.
const EVERY_STATUS: &[SessionStatus] = &[
    SessionStatus::Active,
    SessionStatus::Closed,
    SessionStatus::Archived,
    SessionStatus::Corrupted,
];

/// Deletes a session and all of its files (`session.delete`). Blocks on the disk.
pub(crate) fn delete(core: &Arc<Core>, params: SessionIdParams) -> Result<SessionDeleteResult> {
    delete_for(core, params.session_id, "client")
}

/// Deletes a session and announces the reason. Blocks on the disk.
pub(super) fn delete_for(
    core: &Arc<Core>,
    id: SessionId,
    reason: &'static str,
) -> Result<SessionDeleteResult> {
    let _one_at_a_time = core.deleting.lock();
    let forks = core.catalog.forks_of(id).unwrap_or_default();
    core.sessions.begin_delete(id)?;
    remove_content(core, id)?;
    let rows = forget(core, &[id]);
    finish(core, id, reason, rows)?;
    let is_clean =
        rows == DeletedRows::Removed && core.catalog.wait_clean(Instant::now() + CLEANUP_WAIT);
    let index_cleanup = (!is_clean).then_some(IndexCleanup::Pending);
    Ok(SessionDeleteResult { session_id: id, forks, index_cleanup })
}

/// Removes the content of a session, before any step that needs space: sessions are deleted when the disk is full.
fn remove_content(core: &Core, id: SessionId) -> Result<()> {
    core.cache.forget(id);
    core.due_compactions.forget(id);
    if let Some(compaction) = core.compactions.get(id) {
        compaction.cancel.cancel();
    }
    let _no_document = core.due_documents.forget(id);
    core.sessions.remove_contents(id)?;
    Ok(core.projects.forget(id)?)
}

/// The state of the catalog's rows of deleted sessions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeletedRows {
    Removed,
    /// They are hidden, and the catalog tries again until they are removed.
    Hidden,
}

/// Removes sessions from the catalog in one call.
fn forget(core: &Core, ids: &[SessionId]) -> DeletedRows {
    match core.catalog.forget(ids) {
        Ok(()) => DeletedRows::Removed,
        Err(error) => {
            tracing::warn!("rows of deleted sessions are removed later: {}", with_sources(&error));
            DeletedRows::Hidden
        }
    }
}

/// Removes the mark of a deletion and announces it. The mark stays for the next start if the catalog is not done.
fn finish(core: &Arc<Core>, id: SessionId, reason: &'static str, rows: DeletedRows) -> Result<()> {
    if rows == DeletedRows::Removed {
        core.sessions.finish_delete(id)?;
    }
    core.publish(id, None, EventKind::SessionDeleted, json!({ "reason": reason }));
    Ok(())
}

/// Removes half-written files and finishes deletions that a crash interrupted. Blocks on the disk.
pub(crate) fn recover(core: &Arc<Core>) {
    let swept = core
        .sessions
        .sweep_temporaries()
        .and_then(|swept| Ok(swept + core.projects.sweep_temporaries()?));
    match swept {
        Ok(0) => {}
        Ok(swept) => tracing::info!(swept, "removed half-written files"),
        Err(error) => tracing::warn!("half-written files may be left: {error}"),
    }
    finish_deletions(core);
}

fn finish_deletions(core: &Arc<Core>) {
    let _one_at_a_time = core.deleting.lock();
    let unfinished = match core.sessions.unfinished_deletions() {
        Ok(unfinished) => unfinished,
        Err(error) => return tracing::warn!("cannot look for unfinished deletions: {error}"),
    };
    if unfinished.is_empty() {
        return;
    }
    let log = |id: SessionId, done: &Result<()>| {
        if let Err(error) = done {
            tracing::error!(session = %id, "a deletion is unfinished: {error}");
        }
        done.is_ok()
    };
    let mut removed = unfinished;
    removed.retain(|id| log(*id, &remove_content(core, *id)));
    let rows = forget(core, &removed);
    for id in removed {
        if log(id, &finish(core, id, "interrupted", rows)) {
            tracing::info!(session = %id, "finished a deletion");
        }
    }
}

/// Deletes every session (`session.clear`). Blocks on the disk.
pub(crate) fn clear(core: &Arc<Core>, params: SessionClearParams) -> Result<SessionCleanupResult> {
    if !params.all {
        return Err(AppError::invalid("all", "must be true: this deletes every session"));
    }
    let sessions = newest_first(core)?;
    Ok(delete_all(core, sessions, 0))
}

/// Deletes all but the most recently active sessions (`session.cleanup`); pinned and archived ones stay and do not
/// count. Blocks on the disk.
pub(crate) fn cleanup(
    core: &Arc<Core>,
    params: SessionCleanupParams,
) -> Result<SessionCleanupResult> {
    let mut sessions = newest_first(core)?;
    sessions.retain(|session| !session.pinned && session.status != SessionStatus::Archived);
    let keep = (params.keep as usize).min(sessions.len());
    let oldest = sessions.split_off(keep);
    if params.dry_run {
        let (kept, failed) = (keep as u64, Vec::new());
        return Ok(SessionCleanupResult { deleted: oldest, kept, failed, dry_run: true });
    }
    Ok(delete_all(core, oldest, keep as u64))
}

fn delete_all(core: &Arc<Core>, sessions: Vec<Session>, kept: u64) -> SessionCleanupResult {
    let mut result =
        SessionCleanupResult { deleted: Vec::new(), kept, failed: Vec::new(), dry_run: false };
    let mut fail = |id, error: &AppError| {
        result.failed.push(CleanupFailure { session_id: id, message: error.to_string() });
    };
    let _one_at_a_time = core.deleting.lock();
    let mut removed = Vec::new();
    for session in sessions {
        let id = session.session_id;
        let begun = core.sessions.begin_delete(id).map_err(AppError::from);
        match begun.and_then(|()| remove_content(core, id)) {
            Ok(()) => removed.push(session),
            // The mark on the disk, if there is one, stays for the next start.
            Err(error) => fail(id, &error),
        }
    }
    let ids: Vec<SessionId> = removed.iter().map(|session| session.session_id).collect();
    let rows = forget(core, &ids);
    for session in removed {
        let id = session.session_id;
        match finish(core, id, "client", rows) {
            Ok(()) => result.deleted.push(session),
            Err(error) => fail(id, &error),
        }
    }
    result
}

/// Lists all sessions, the most recently active first, including logs that the catalog does not know yet.
fn newest_first(core: &Arc<Core>) -> Result<Vec<Session>> {
    let exclude = HashSet::new();
    let query = ListQuery {
        project_hash: None,
        statuses: EVERY_STATUS,
        id_prefix: None,
        limit: usize::MAX,
        after: None,
        exclude: &exclude,
    };
    let stored = core.catalog.list(&query)?;
    // Open sessions come last and replace their rows, which are older.
    let open = core.sessions.open_summaries();
    let mut by_id: HashMap<SessionId, Session> =
        stored.into_iter().chain(open).map(|session| (session.session_id, session)).collect();
    for (id, _) in core.sessions.log_ids()? {
        if let Entry::Vacant(unknown) = by_id.entry(id)
            && let Ok(session) = core.sessions.summary(id)
        {
            unknown.insert(session);
        }
    }
    let mut sessions: Vec<Session> = by_id.into_values().collect();
    sessions.sort_by_key(|session| {
        std::cmp::Reverse((session.last_activity.unix_ms(), session.session_id))
    });
    Ok(sessions)
}
