//! `session.delete`, `clear` and `cleanup`: deleting log, document, blobs, snapshots, catalog rows and entries
//! of projects.
//!
//! A deletion is marked on the disk first: the next start finishes one that a crash interrupted.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::event::SessionDeletedData;
use ollm_protocol::limits::{MAX_PAGE_BYTES, json_bytes};
use ollm_protocol::methods::session::{
    CleanupFailure, IndexCleanup, SessionCleanupParams, SessionCleanupResult, SessionClearParams,
    SessionDeleteResult, SessionIdParams,
};

use crate::app::core::Core;
use crate::app::error::{AppError, Result, limit_page};
use crate::app::put_back;
use crate::catalog::ListQuery;
use crate::error_chain::with_sources;

/// The wait of a deletion for the cleanup of the search index, which takes this long for about 10 MB of text.
const CLEANUP_WAIT: Duration = Duration::from_millis(250);

/// The most sessions of a result that could not be deleted; the log has all of them.
const MAX_FAILURES: usize = 1000;

/// All statuses that a session can have.
const EVERY_STATUS: &[SessionStatus] = &[
    SessionStatus::Active,
    SessionStatus::Closed,
    SessionStatus::Archived,
    SessionStatus::Corrupted,
];

/// Deletes a session and all of its files (`session.delete`). Blocks on the disk.
pub(crate) fn delete(core: &Arc<Core>, params: SessionIdParams) -> Result<SessionDeleteResult> {
    let id = params.session_id;
    let _one_at_a_time = core.deleting.lock();
    let forks = core.catalog.forks_of(id).unwrap_or_default();
    settle_files(core, id);
    core.sessions.begin_delete(id)?;
    remove_content(core, id)?;
    let rows = forget(core, &[id]);
    finish(core, id, "client", rows)?;
    let is_clean =
        rows == DeletedRows::Removed && core.catalog.wait_clean(Instant::now() + CLEANUP_WAIT);
    let index_cleanup = (!is_clean).then_some(IndexCleanup::Pending);
    Ok(SessionDeleteResult { session_id: id, forks, index_cleanup })
}

/// Finishes or reverses an interrupted change of files, while the log still says which of both is right. If that is
/// impossible, for example because the project is gone, the change is forgotten with the session.
fn settle_files(core: &Core, id: SessionId) {
    if let Err(error) = put_back::settle(core, id) {
        tracing::warn!(session = %id, "an interrupted change of files is left: {error}");
    }
}

/// Removes the content of a session, before any step that needs space: sessions are deleted when the disk is full.
fn remove_content(core: &Core, id: SessionId) -> Result<()> {
    core.cache.forget(id);
    core.due_compactions.forget(id);
    drop(core.due_snapshots.take(id));
    if let Some(compaction) = core.compactions.get(id) {
        compaction.cancel.cancel();
    }
    let _no_document = core.due_documents.forget(id);
    core.sessions.remove_contents(id)?;
    core.snapshots.writer().remove_session(id)?;
    core.chat_history.forget(id)?;
    put_back::forget(core, id)?;
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
    core.publish(id, None, &SessionDeletedData { reason: reason.to_owned() });
    Ok(())
}

/// Removes half-written files and finishes deletions that a crash interrupted. Blocks on the disk.
pub(crate) fn recover(core: &Arc<Core>) {
    let swept = core
        .sessions
        .sweep_temporaries()
        .and_then(|swept| Ok(swept + core.projects.sweep_temporaries()?))
        .and_then(|swept| Ok(swept + core.hooks.sweep_temporaries()?))
        .and_then(|swept| Ok(swept + core.snapshots.recover()?));
    match swept {
        Ok(0) => {}
        Ok(swept) => tracing::info!(swept, "removed half-written files"),
        Err(error) => tracing::warn!("half-written files may be left: {error}"),
    }
    finish_deletions(core);
    put_back::recover(core);
    if let Err(error) = core.chat_history.sweep(&core.sessions) {
        tracing::warn!("lines typed in deleted sessions may be left: {}", with_sources(&error));
    }
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
        return Ok(cleanup_result(oldest, keep as u64, Vec::new(), true));
    }
    Ok(delete_all(core, oldest, keep as u64))
}

/// Deletes sessions and returns them with those that could not be deleted. Blocks on the disk.
fn delete_all(core: &Arc<Core>, sessions: Vec<Session>, kept: u64) -> SessionCleanupResult {
    let ids: Vec<SessionId> = sessions.iter().map(|session| session.session_id).collect();
    let failures = delete_batch(core, &ids, "client");
    let failed_ids: HashSet<SessionId> = failures.iter().map(|(id, _)| *id).collect();
    let deleted =
        sessions.into_iter().filter(|session| !failed_ids.contains(&session.session_id)).collect();
    let failure = |(id, error): (SessionId, AppError)| CleanupFailure {
        session_id: id,
        message: error.to_string(),
    };
    let failed = failures.into_iter().take(MAX_FAILURES).map(failure).collect();
    cleanup_result(deleted, kept, failed, false)
}

/// Returns a result that fits into a frame: many sessions are listed without their metadata and descriptions, and of
/// even more only the number is given.
fn cleanup_result(
    mut deleted: Vec<Session>,
    kept: u64,
    failed: Vec<CleanupFailure>,
    dry_run: bool,
) -> SessionCleanupResult {
    if json_bytes(&deleted) > MAX_PAGE_BYTES {
        for session in &mut deleted {
            session.metadata.clear();
            session.description.clear();
        }
    }
    let n_deleted = deleted.len();
    limit_page(&mut deleted);
    let more_deleted = (n_deleted - deleted.len()) as u64;
    SessionCleanupResult { deleted, kept, more_deleted, failed, dry_run }
}

/// Deletes sessions with one change of the catalog and announces the reason; returns those that could not be deleted.
/// Blocks on the disk.
pub(super) fn delete_batch(
    core: &Arc<Core>,
    ids: &[SessionId],
    reason: &'static str,
) -> Vec<(SessionId, AppError)> {
    let _one_at_a_time = core.deleting.lock();
    let mut failed = Vec::new();
    let mut removed = Vec::new();
    for id in ids.iter().copied() {
        settle_files(core, id);
        let begun = core.sessions.begin_delete(id).map_err(AppError::from);
        match begun.and_then(|()| remove_content(core, id)) {
            Ok(()) => removed.push(id),
            // The mark on the disk, if there is one, stays for the next start.
            Err(error) => {
                tracing::warn!(session = %id, "a session was not deleted: {error}");
                failed.push((id, error));
            }
        }
    }
    let rows = forget(core, &removed);
    for id in removed {
        if let Err(error) = finish(core, id, reason, rows) {
            failed.push((id, error));
        }
    }
    failed
}

/// Lists all sessions, the most recently active first, including logs that the catalog does not know yet.
fn newest_first(core: &Arc<Core>) -> Result<Vec<Session>> {
    let exclude = HashSet::new();
    let query = ListQuery {
        project_hash: None,
        statuses: EVERY_STATUS,
        id_prefix: None,
        title: None,
        id_end: None,
        limit: usize::MAX,
        max_bytes: usize::MAX,
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
