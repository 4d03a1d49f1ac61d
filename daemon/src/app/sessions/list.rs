//! `session.list`, `search`, `current` and `setCurrent`: the catalog, overlaid with the open sessions, which are
//! newer.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::methods::session::{
    SessionCurrentParams, SessionCurrentResult, SessionListParams, SessionListResult,
    SessionSearchParams, SessionSearchResult, SessionSetCurrentParams,
};

use crate::app::core::Core;
use crate::app::error::{AppError, Result, page_limit};
use crate::catalog::{ListQuery, SearchQuery};
use crate::projects::Projects;
use crate::session::{IDLE_CLOSE_MS, SessionError, project_hash};

const DEFAULT_LIMIT: u32 = 25;
const MAX_LIST: u32 = 1000;
const MAX_SEARCH: u32 = 200;
/// A catalog that is behind by at most this many sessions is following; behind by more, it is being rebuilt.
const FEW_BEHIND: u64 = 8;
/// The wait of a search for a catalog that is following, so that it finds the newest records.
const CATCH_UP: Duration = Duration::from_millis(50);

/// Lists sessions, the most recently active first (`session.list`). Blocks on the disk.
pub(crate) fn list(core: &Arc<Core>, params: SessionListParams) -> Result<SessionListResult> {
    let limit = page_limit(params.limit, DEFAULT_LIMIT, MAX_LIST)?;
    let after = params.cursor.as_deref().map(parse_cursor).transpose()?;
    let project_hash = lenient_hash(params.project_path.as_deref());
    let wanted =
        ListFilter { project_hash, status: params.status, id_prefix: params.id_prefix, after };
    let open = core.sessions.open_summaries();
    let mut known: HashSet<SessionId> = open.iter().map(|session| session.session_id).collect();
    // The catalog keeps the row of a session until its files are removed.
    known.extend(core.sessions.deleting());
    let mut data: Vec<Session> =
        open.into_iter().filter(|session| wanted.admits(session)).collect();
    let query = ListQuery {
        project_hash: wanted.project_hash.as_deref(),
        statuses: wanted.statuses(),
        id_prefix: wanted.id_prefix.as_deref(),
        limit: limit + 1,
        after: wanted.after,
        exclude: &known,
    };
    let now = core.clock.now().unix_ms();
    let stored = core.catalog.list(&query)?.into_iter().map(|mut session| {
        let idle_ms = now - session.last_activity.unix_ms();
        // The catalog's row was written while the session was active.
        if session.status == SessionStatus::Active && idle_ms > IDLE_CLOSE_MS {
            session.status = SessionStatus::Closed;
        }
        session
    });
    data.extend(stored.filter(|session| wanted.admits(session)));
    data.sort_by_key(|session| std::cmp::Reverse(order_of(session)));
    let more = data.len() > limit;
    data.truncate(limit);
    let next_cursor = more.then(|| data.last().map(cursor_of)).flatten();
    Ok(SessionListResult { data, next_cursor, behind: !core.catalog.knows_all() })
}

/// The filter of a list.
struct ListFilter {
    project_hash: Option<String>,
    status: Option<SessionStatus>,
    id_prefix: Option<String>,
    after: Option<(i64, SessionId)>,
}

impl ListFilter {
    fn admits(&self, session: &Session) -> bool {
        let status = match self.status {
            Some(status) => session.status == status,
            None => session.status != SessionStatus::Archived,
        };
        status
            && (self.project_hash.is_none() || self.project_hash == session.project_hash)
            && self.after.is_none_or(|after| order_of(session) < after)
            && self.id_prefix.as_deref().is_none_or(|prefix| has_prefix(session, prefix))
    }

    /// Returns the statuses to ask the catalog for: its rows of closed sessions may still say active.
    const fn statuses(&self) -> &'static [SessionStatus] {
        use SessionStatus::{Active, Archived, Closed, Corrupted};
        match self.status {
            None => &[Active, Closed, Corrupted],
            Some(Active) => &[Active],
            Some(Closed) => &[Active, Closed],
            Some(Archived) => &[Archived],
            Some(Corrupted) => &[Corrupted],
        }
    }
}

/// Returns the hash of a project, which may no longer exist.
fn lenient_hash(path: Option<&str>) -> Option<String> {
    path.map(|path| project_hash(&Projects::lenient(path)))
}

fn has_prefix(session: &Session, prefix: &str) -> bool {
    let plain = |text: &str| text.replace('-', "").to_ascii_lowercase();
    plain(&session.session_id.to_string()).starts_with(&plain(prefix))
}

fn order_of(session: &Session) -> (i64, SessionId) {
    (session.last_activity.unix_ms(), session.session_id)
}

fn cursor_of(session: &Session) -> String {
    format!("{}:{}", session.last_activity.unix_ms(), session.session_id)
}

fn parse_cursor(cursor: &str) -> Result<(i64, SessionId)> {
    let parse = || {
        let (at, id) = cursor.split_once(':')?;
        Some((at.parse().ok()?, id.parse().ok()?))
    };
    parse().ok_or_else(|| AppError::invalid("cursor", "is not the cursor of a list"))
}

/// Finds text in all records (`session.search`). Blocks on the disk.
pub(crate) fn search(core: &Arc<Core>, params: SessionSearchParams) -> Result<SessionSearchResult> {
    let limit = page_limit(params.limit, DEFAULT_LIMIT, MAX_SEARCH)?;
    let project_hash = lenient_hash(params.project_path.as_deref());
    core.catalog.retry_gaps();
    if (1..=FEW_BEHIND).contains(&core.catalog.status().behind) {
        core.catalog.wait_caught_up(Instant::now() + CATCH_UP);
    }
    let page = core.catalog.search(&SearchQuery {
        query: &params.query,
        session_id: params.session_id,
        project_hash: project_hash.as_deref(),
        role: params.role,
        since: params.since,
        until: params.until,
        sort: params.sort,
        limit,
        cursor: params.cursor.as_deref(),
    })?;
    Ok(SessionSearchResult {
        data: page.hits,
        next_cursor: page.next_cursor,
        behind: (page.behind > 0).then_some(page.behind),
    })
}

/// Returns the current session of a project (`session.current`). Blocks on the disk.
pub(crate) fn current(
    core: &Arc<Core>,
    params: SessionCurrentParams,
) -> Result<SessionCurrentResult> {
    let path = Projects::lenient(&params.project_path);
    let session = match core.projects.current(&path)?.map(|id| core.sessions.summary(id)) {
        // The log was removed by hand.
        Some(Err(SessionError::NotFound { .. })) => None,
        session => session.transpose()?,
    };
    Ok(SessionCurrentResult { session })
}

/// Sets the current session of a project (`session.setCurrent`). Blocks on the disk.
pub(crate) fn set_current(
    core: &Arc<Core>,
    params: SessionSetCurrentParams,
) -> Result<SessionCurrentResult> {
    let path = Projects::canonical(&params.project_path)?;
    let session = params.session_id.map(|id| core.sessions.summary(id)).transpose()?;
    core.projects.set_current(&path, params.session_id)?;
    Ok(SessionCurrentResult { session })
}
