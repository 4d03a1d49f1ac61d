//! Deleting sessions: log, document, blobs, catalog rows, what projects remember. A crash in the middle leaves
//! a deletion that the next start finishes.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::methods::session::{
    CleanupFailure, IndexCleanup, SessionCleanupParams, SessionCleanupResult, SessionClearParams,
    SessionDeleteResult,
};
use ollm_protocol::{EventKind, SessionId};

use super::{AppError, Core};
use crate::catalog::ListQuery;
use crate::error_chain::with_sources;
use crate::events::EventDraft;

/// How long the answer to a deletion waits for the search index to be cleaned up; the index of 10 MB of text takes
/// about so long.
const CLEANING: Duration = Duration::from_millis(250);

/// Deletes a session and every file of it. Blocks on the disk.
pub(crate) fn delete(core: &Arc<Core>, id: SessionId) -> Result<SessionDeleteResult, AppError> {
    delete_because(core, id, "client")
}

pub(super) fn delete_because(
    core: &Arc<Core>,
    id: SessionId,
    reason: &'static str,
) -> Result<SessionDeleteResult, AppError> {
    let _one_at_a_time = core.deleting.lock().unwrap_or_else(PoisonError::into_inner);
    let forks = core.catalog.forks_of(id).unwrap_or_default();
    core.sessions.begin_delete(id)?;
    strip(core, id)?;
    let rows = forget(core, &[id]);
    finish(core, id, reason, rows)?;
    let is_clean = rows == Rows::Gone && core.catalog.wait_clean(Instant::now() + CLEANING);
    let index_cleanup = (!is_clean).then_some(IndexCleanup::Pending);
    Ok(SessionDeleteResult { session_id: id, forks, index_cleanup })
}

/// Removes what was said, before anything that needs space on the disk: a full one is what people delete for.
fn strip(core: &Core, id: SessionId) -> Result<(), AppError> {
    core.builds.forget(id);
    core.paths.forget(id);
    core.compactions.forget(id);
    core.loops.forget(id);
    core.recalled.forget(id);
    // Whoever writes the document has written it, and nobody begins to.
    let _no_save = core.documents.forget(id);
    core.sessions.remove_contents(id)?;
    Ok(core.projects.forget(id)?)
}

/// What became of the rows that the catalog had of deleted sessions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// Nothing leads to the sessions any more.
    Gone,
    /// They are hidden, and the catalog tries again until they are gone.
    Stuck,
}

/// Clears sessions out of the catalog, all in one call.
fn forget(core: &Core, ids: &[SessionId]) -> Rows {
    match core.catalog.forget(ids) {
        Ok(()) => Rows::Gone,
        Err(error) => {
            tracing::warn!("the catalog forgets sessions later: {}", with_sources(&error));
            Rows::Stuck
        }
    }
}

/// Removes the mark of a deletion and tells everybody. Where the catalog is not through with it, the mark stays
/// for the next start.
fn finish(
    core: &Arc<Core>,
    id: SessionId,
    reason: &'static str,
    rows: Rows,
) -> Result<(), AppError> {
    if rows == Rows::Gone {
        core.sessions.finish_delete(id)?;
    }
    core.events.publish(EventDraft {
        session_id: Some(id),
        seq: None,
        kind: EventKind::SessionDeleted,
        at: core.clock.now(),
        data: serde_json::json!({ "reason": reason }),
    });
    Ok(())
}

/// Clears up what a crash left: half-written files and interrupted deletions. Blocks on the disk.
pub(crate) fn clear_up(core: &Arc<Core>, started: SystemTime) {
    let swept = core
        .sessions
        .sweep_temporaries(started)
        .and_then(|swept| Ok(swept + core.projects.sweep_temporaries(started)?));
    match swept {
        Ok(0) => {}
        Ok(swept) => tracing::info!(swept, "removed half-written files"),
        Err(error) => tracing::warn!("half-written files may be left: {error}"),
    }
    finish_deletions(core);
}

/// Finishes the deletions that a crash interrupted.
fn finish_deletions(core: &Arc<Core>) {
    let _one_at_a_time = core.deleting.lock().unwrap_or_else(PoisonError::into_inner);
    let unfinished = match core.sessions.unfinished_deletions() {
        Ok(unfinished) => unfinished,
        Err(error) => return tracing::warn!("cannot look for unfinished deletions: {error}"),
    };
    if unfinished.is_empty() {
        return;
    }
    let mut stripped = unfinished;
    stripped.retain(|id| {
        let outcome = strip(core, *id);
        if let Err(error) = &outcome {
            tracing::error!(session = %id, "a deletion is unfinished: {error}");
        }
        outcome.is_ok()
    });
    let rows = forget(core, &stripped);
    for id in stripped {
        match finish(core, id, "interrupted", rows) {
            Ok(()) => tracing::info!(session = %id, "finished a deletion"),
            Err(error) => tracing::error!(session = %id, "a deletion is unfinished: {error}"),
        }
    }
}

/// Deletes every session. Blocks on the disk.
pub(crate) fn clear(
    core: &Arc<Core>,
    params: &SessionClearParams,
) -> Result<SessionCleanupResult, AppError> {
    if !params.all {
        return Err(AppError::invalid("all", "must be true: this deletes every session"));
    }
    let every = [
        SessionStatus::Active,
        SessionStatus::Closed,
        SessionStatus::Archived,
        SessionStatus::Corrupted,
    ];
    let sessions = newest_first(core, &every)?;
    Ok(delete_all(core, sessions, 0))
}

/// Deletes all but the most recently active sessions; pinned and archived ones stay and do not count.
/// Blocks on the disk.
pub(crate) fn cleanup(
    core: &Arc<Core>,
    params: &SessionCleanupParams,
) -> Result<SessionCleanupResult, AppError> {
    let counted = [SessionStatus::Active, SessionStatus::Closed, SessionStatus::Corrupted];
    let mut sessions = newest_first(core, &counted)?;
    sessions.retain(|session| !session.pinned && session.status != SessionStatus::Archived);
    let keep = (params.keep as usize).min(sessions.len());
    let going = sessions.split_off(keep);
    if params.dry_run {
        let kept = keep as u64;
        return Ok(SessionCleanupResult {
            deleted: going,
            kept,
            failed: Vec::new(),
            dry_run: true,
        });
    }
    Ok(delete_all(core, going, keep as u64))
}

fn delete_all(core: &Arc<Core>, sessions: Vec<Session>, kept: u64) -> SessionCleanupResult {
    let mut result =
        SessionCleanupResult { deleted: Vec::new(), kept, failed: Vec::new(), dry_run: false };
    let mut fail = |id, error: &AppError| {
        result.failed.push(CleanupFailure { session_id: id, message: error.to_string() });
    };
    let _one_at_a_time = core.deleting.lock().unwrap_or_else(PoisonError::into_inner);
    let mut stripped = Vec::new();
    for session in sessions {
        let id = session.session_id;
        let begun = core.sessions.begin_delete(id).map_err(AppError::from);
        match begun.and_then(|()| strip(core, id)) {
            Ok(()) => stripped.push(session),
            // The mark on disk stays where there is one, so the next start goes on from here.
            Err(error) => fail(id, &error),
        }
    }
    let ids: Vec<SessionId> = stripped.iter().map(|session| session.session_id).collect();
    let rows = forget(core, &ids);
    for session in stripped {
        let id = session.session_id;
        match finish(core, id, "client", rows) {
            Ok(()) => result.deleted.push(session),
            Err(error) => fail(id, &error),
        }
    }
    result
}

/// Every session of some statuses, the most recently active first; logs that the catalog does not know yet
/// are among them.
fn newest_first(core: &Arc<Core>, statuses: &[SessionStatus]) -> Result<Vec<Session>, AppError> {
    let exclude = std::collections::HashSet::new();
    let query = ListQuery {
        project_hash: None,
        statuses: &[
            SessionStatus::Active,
            SessionStatus::Closed,
            SessionStatus::Archived,
            SessionStatus::Corrupted,
        ],
        id_prefix: None,
        limit: usize::MAX,
        after: None,
        exclude: &exclude,
    };
    let stored = core.catalog.list(&query)?;
    let known = core.sessions.open_summaries();
    let mut by_id: std::collections::HashMap<SessionId, Session> =
        stored.into_iter().chain(known).map(|session| (session.session_id, session)).collect();
    for (id, _) in core.sessions.log_ids()? {
        if let std::collections::hash_map::Entry::Vacant(unknown) = by_id.entry(id)
            && let Ok(session) = core.sessions.summary(id)
        {
            unknown.insert(session);
        }
    }
    let mut sessions: Vec<Session> =
        by_id.into_values().filter(|session| statuses.contains(&session.status)).collect();
    sessions.sort_by_key(|session| {
        std::cmp::Reverse((session.last_activity.unix_ms(), session.session_id))
    });
    Ok(sessions)
}
