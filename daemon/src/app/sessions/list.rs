//! `session.list`, `search`, `current` and `setCurrent`: the catalog, overlaid with the open sessions, which are
//! newer.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::limits::MAX_PAGE_BYTES;
use ollm_protocol::methods::session::{
    SessionCurrentParams, SessionCurrentResult, SessionListParams, SessionListResult,
    SessionSearchParams, SessionSearchResult, SessionSetCurrentParams,
    SessionSetProjectServersParams, SessionSetProjectServersResult,
};

use crate::app::core::Core;
use crate::app::error::{AppError, Result, limit_page, page_limit};
use crate::app::models::gate::check_servers;
use crate::app::other_branches::other_branches;
use crate::catalog::{ListQuery, SearchQuery, TitleWords};
use crate::projects::Projects;
use crate::session::{IDLE_CLOSE_MS, SessionError, project_hash};

const DEFAULT_LIMIT: u32 = 25;
const MAX_LIST: u32 = 1000;
const MAX_SEARCH: u32 = 200;
/// The bytes of a filter for titles, which are those of the longest title.
const MAX_TITLE_FILTER_BYTES: usize = 4096;
/// The most directories in which a current session is looked for.
const MAX_ELSE_OF: usize = 64;
/// A catalog that is behind by at most this many sessions is following; behind by more, it is being rebuilt.
const FEW_BEHIND: u64 = 8;
/// The wait of a search for a catalog that is following, so that it finds the newest records.
const CATCH_UP: Duration = Duration::from_millis(50);

/// Lists sessions, the most recently active first (`session.list`). Blocks on the disk.
pub(crate) fn list(core: &Arc<Core>, params: SessionListParams) -> Result<SessionListResult> {
    let limit = page_limit(params.limit, DEFAULT_LIMIT, MAX_LIST)?;
    let after = params.cursor.as_deref().map(parse_cursor).transpose()?;
    let project_hash = lenient_hash(params.project_path.as_deref());
    let title = title_words(params.title.as_deref())?;
    let (status, ids) = (params.status, (params.id_prefix, params.id_end));
    let wanted = ListFilter { project_hash, status, ids, title, after };
    let open = core.sessions.open_summaries();
    let mut known: HashSet<SessionId> = open.iter().map(|session| session.session_id).collect();
    // The catalog keeps the row of a session until its files are removed.
    known.extend(core.sessions.deleting());
    let mut data: Vec<Session> =
        open.into_iter().filter(|session| wanted.admits(session)).collect();
    add_stored(core, &wanted, limit, &known, &mut data)?;
    data.sort_by_key(|session| std::cmp::Reverse(order_of(session)));
    let is_longer = data.len() > limit;
    data.truncate(limit);
    let more = limit_page(&mut data) || is_longer;
    let next_cursor = more.then(|| data.last().map(cursor_of)).flatten();
    data.iter_mut()
        .for_each(|session| session.short_id = core.catalog.short_id(session.session_id));
    Ok(SessionListResult { data, next_cursor, behind: !core.catalog.knows_all() })
}

/// Adds the sessions that only the catalog knows, more than a page of them if there are.
///
/// The catalog's row of a session was written while the session was active. So among its newest rows, those for a list of
/// closed sessions can be few, and it is asked for the next ones.
fn add_stored(
    core: &Core,
    wanted: &ListFilter,
    limit: usize,
    known: &HashSet<SessionId>,
    data: &mut Vec<Session>,
) -> Result<()> {
    let now = core.clock.now().unix_ms();
    let (mut after, mut n_stored) = (wanted.after, 0);
    loop {
        let rows = core.catalog.list(&ListQuery {
            project_hash: wanted.project_hash.as_deref(),
            statuses: wanted.statuses(),
            id_prefix: wanted.ids.0.as_deref(),
            id_end: wanted.ids.1.as_deref(),
            title: wanted.title.as_ref(),
            limit: limit + 1,
            max_bytes: MAX_PAGE_BYTES,
            after,
            exclude: known,
        })?;
        after = rows.last().map(order_of);
        let n_rows = rows.len();
        let found = rows.into_iter().map(|session| as_of(session, now));
        let found: Vec<Session> = found.filter(|session| wanted.admits(session)).collect();
        let is_thinned = wanted.status == Some(SessionStatus::Closed) && found.len() < n_rows;
        n_stored += found.len();
        data.extend(found);
        if !is_thinned || n_stored > limit {
            return Ok(());
        }
    }
}

/// Returns a session of the catalog with the status that it has at a time.
fn as_of(mut session: Session, now: i64) -> Session {
    let idle_ms = now - session.last_activity.unix_ms();
    if session.status == SessionStatus::Active && idle_ms > IDLE_CLOSE_MS {
        session.status = SessionStatus::Closed;
    }
    session
}

/// The filter of a list.
struct ListFilter {
    project_hash: Option<String>,
    status: Option<SessionStatus>,
    /// The beginning and the end of ids.
    ids: (Option<String>, Option<String>),
    title: Option<TitleWords>,
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
            && self.has_id(session)
            && self.title.as_ref().is_none_or(|title| title.are_in(&session.title))
    }

    fn has_id(&self, session: &Session) -> bool {
        let plain = |text: &str| text.replace('-', "").to_ascii_lowercase();
        let id = plain(&session.session_id.to_string());
        let (prefix, end) = &self.ids;
        prefix.as_deref().is_none_or(|prefix| id.starts_with(&plain(prefix)))
            && end.as_deref().is_none_or(|end| id.ends_with(&plain(end)))
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

/// Returns the words of a filter for titles.
fn title_words(text: Option<&str>) -> Result<Option<TitleWords>> {
    match text {
        Some(text) if text.len() > MAX_TITLE_FILTER_BYTES => {
            let problem = format!("must have at most {MAX_TITLE_FILTER_BYTES} bytes");
            Err(AppError::invalid("title", problem))
        }
        text => Ok(text.map(TitleWords::new)),
    }
}

/// Returns the hash of a project, which may no longer exist.
pub(crate) fn lenient_hash(path: Option<&str>) -> Option<String> {
    path.map(|path| project_hash(&Projects::lenient(path)))
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

/// Waits a moment for a catalog that follows, so that a search finds the newest records. Blocks.
pub(crate) fn catch_up(core: &Core) {
    core.catalog.retry_gaps();
    if (1..=FEW_BEHIND).contains(&core.catalog.status().behind) {
        core.catalog.wait_caught_up(Instant::now() + CATCH_UP);
    }
}

/// Finds text in all records (`session.search`). Blocks on the disk.
pub(crate) fn search(core: &Arc<Core>, params: SessionSearchParams) -> Result<SessionSearchResult> {
    let limit = page_limit(params.limit, DEFAULT_LIMIT, MAX_SEARCH)?;
    let project_hash = lenient_hash(params.project_path.as_deref());
    catch_up(core);
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
    let mut data = page.hits;
    let found = other_branches(core, data.iter().map(|hit| (hit.session_id, hit.seq)));
    for hit in &mut data {
        hit.other_branch = found.contains(&(hit.session_id, hit.seq));
        hit.short_id = core.catalog.short_id(hit.session_id);
    }
    Ok(SessionSearchResult {
        data,
        next_cursor: page.next_cursor,
        behind: (page.behind > 0).then_some(page.behind),
    })
}

/// Returns the current session of a project (`session.current`). Blocks on the disk.
pub(crate) fn current(
    core: &Arc<Core>,
    params: SessionCurrentParams,
) -> Result<SessionCurrentResult> {
    if params.else_of.len() > MAX_ELSE_OF {
        return Err(AppError::invalid(
            "elseOf",
            format!("has more than {MAX_ELSE_OF} directories"),
        ));
    }
    for path in std::iter::once(&params.project_path).chain(&params.else_of) {
        let current = core.projects.current(&Projects::lenient(path))?;
        match current.map(|id| core.sessions.summary(id)) {
            // The log was removed by hand.
            None | Some(Err(SessionError::NotFound { .. })) => {}
            Some(session) => {
                let session = Some(core.with_short_id(session?));
                return Ok(SessionCurrentResult { session });
            }
        }
    }
    Ok(SessionCurrentResult { session: None })
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

/// Sets the model servers that may get texts of a project's sessions, or returns them (`session.setProjectServers`).
/// Blocks on the disk.
pub(crate) fn set_project_servers(
    core: &Arc<Core>,
    params: SessionSetProjectServersParams,
) -> Result<SessionSetProjectServersResult> {
    let SessionSetProjectServersParams { project_path, allowed_servers } = params;
    // A project that moved is asked for its servers by its old path.
    let project_path = match allowed_servers {
        None => Projects::lenient(&project_path),
        Some(_) => Projects::canonical(&project_path)?,
    };
    check_servers(core, allowed_servers.as_deref())?;
    if let Some(servers) = allowed_servers {
        core.projects.set_allowed_servers(&project_path, servers)?;
    }
    let allowed_servers = core.projects.allowed_servers(&project_path)?;
    Ok(SessionSetProjectServersResult { project_path, allowed_servers })
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::{MetaPatch, RecordBody, SessionHeader};
    use ollm_protocol::limits::json_bytes;
    use ollm_protocol::methods::session::SessionCleanupParams;
    use serde_json::json;

    use super::*;
    use crate::app::sessions::delete;
    use crate::app::testing::TestSession;
    use crate::session::{NewRecord, NewSession};

    /// The store accepts fields of any size; only calls and imports limit them.
    fn create_with_huge_fields(core: &Core) -> SessionId {
        let mut header = SessionHeader::new(core.clock.session_id(), core.clock.now());
        let id = header.session_id;
        header.title = Some("huge ".repeat(1 << 18));
        header.model = Some("m".repeat(1 << 20));
        header.metadata.insert("small".to_owned(), json!(1));
        header.metadata.insert("tall".to_owned(), json!("x".repeat(1 << 20)));
        core.sessions.create(NewSession { header, key: None }).expect("creates");
        let record = NewRecord::new(RecordBody::Meta(MetaPatch::default()), None);
        let pending = core.sessions.append(id, vec![record], None).expect("queues");
        pending.wait().expect("records");
        id
    }

    #[test]
    fn sessions_with_huge_fields_are_listed() {
        let session = TestSession::new(&[]);
        let core = &session.core;
        let ids = [(); 3].map(|()| create_with_huge_fields(core));
        for open in [true, false] {
            let page = list(core, SessionListParams::default()).expect("lists");
            assert!(json_bytes(&page) < 64 * 1024, "open: {open}");
            let mut listed: Vec<_> = page.data.iter().map(|session| session.session_id).collect();
            listed.sort_unstable();
            assert_eq!(listed, ids);
            for session in &page.data {
                assert_eq!(session.shortened, ["title", "model", "metadata"]);
                assert!(session.title.starts_with("huge huge"));
                assert_eq!(session.metadata.keys().collect::<Vec<_>>(), ["small"]);
            }
            let is_known = core.catalog.wait_caught_up(Instant::now() + Duration::from_secs(30));
            assert!(is_known, "the catalog follows");
            while core.sessions.close_half() > 0 {}
        }
    }

    #[test]
    fn cursor_of_a_page_that_ends_by_its_size_leads_to_the_next_session() {
        let session = TestSession::new(&[]);
        let core = &session.core;
        for _ in 0..30 {
            let mut header = SessionHeader::new(core.clock.session_id(), core.clock.now());
            let id = header.session_id;
            header.metadata.insert("m".to_owned(), json!("x".repeat(250 << 10)));
            core.sessions.create(NewSession { header, key: None }).expect("creates");
            let record = NewRecord::new(RecordBody::Meta(MetaPatch::default()), None);
            core.sessions.append(id, vec![record], None).expect("queues").wait().expect("records");
        }
        let mut params = SessionListParams { limit: Some(1000), ..SessionListParams::default() };
        let mut listed = HashSet::new();
        for _ in 0..10 {
            let page = list(core, params.clone()).expect("lists");
            assert!(json_bytes(&page) <= MAX_PAGE_BYTES + 1024);
            listed.extend(page.data.iter().map(|session| session.session_id));
            params.cursor = page.next_cursor;
            if params.cursor.is_none() {
                break;
            }
        }
        assert_eq!(listed.len(), 30);
        let params = SessionCleanupParams { keep: 0, dry_run: true };
        let plan = delete::cleanup(core, params).expect("plans");
        assert!(json_bytes(&plan) <= MAX_PAGE_BYTES);
        assert_eq!((plan.deleted.len(), plan.more_deleted), (30, 0));
    }
}
