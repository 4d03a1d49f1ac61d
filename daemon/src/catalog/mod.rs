//! The catalog: a derived SQLite database for lists, quick opening of sessions and full-text search.
//!
//! The catalog follows the logs. It is notified that a session changed and asks an [`IndexSource`] for the new
//! records. Its files can be deleted at any time; they are rebuilt from the logs while everything else continues.
//!
//! **Invariants**: one thread writes ([`writer`]); a reader never waits for it (own connection, WAL); no acknowledged
//! record depends on the catalog; a forgotten session leaves no byte in any file of the catalog.
//!
//! Must not know log formats, the wire or the configuration. FORMAT.md, "Catalog".

mod database;
mod document;
mod error;
mod files;
mod listing;
mod query;
mod queue;
mod reading;
mod recall;
mod seal;
mod search;
mod stems;
mod words;
mod writer;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::content::{CatalogStatus, Session};
use parking_lot::Mutex;
use rusqlite::Connection;

use crate::session::index::{IndexEntry, IndexProgress, IndexSource, KeyEntry, OpenHint};

use database::CatalogShared;
pub(crate) use document::{RECALL_READ, RECALL_SEARCH};
pub(crate) use error::CatalogError;
use listing::ListPage;
use query::sessions::{self, PackedTable};
pub(crate) use query::sessions::{ListQuery, RetentionRow};
pub(crate) use query::titles::TitleWords;
use queue::{CatalogState, ForgetRequest, IndexNeed, WorkQueue};
pub(crate) use recall::{
    RecallPeriod, RecallQuery, RecallScope, RecalledMessage, RecalledPage, TurnRules,
};
use seal::CatalogSeal;
pub(crate) use search::{SearchPage, SearchQuery};
#[cfg(test)]
pub(crate) use writer::THREAD_NAME;

/// The time between opening the catalog and comparing it with the logs. Listing 10,000 files takes 20 ms, and a second
/// on a cold disk; the first calls, for which the daemon was probably started, take precedence.
const CHECK_DELAY: Duration = Duration::from_millis(150);

/// The longest wait of a read that found damage for the file that replaces the damaged one, or for the end of its check.
const REPAIR_WAIT: Duration = Duration::from_secs(2);
/// The longest wait of a read until the new file has all sessions, if the answer must not lack one.
const REBUILD_WAIT: Duration = Duration::from_secs(5);

/// The catalog of one home. Every call may block and belongs on a blocking thread in async code, except
/// [`Catalog::mark_dirty`] and [`Catalog::status`].
pub(crate) struct Catalog {
    shared: Arc<CatalogShared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Catalog {
    /// Opens or creates the database in `path` and starts to follow the logs in the background.
    ///
    /// **Errors**: the file can neither be used nor replaced, for example on a read-only disk.
    pub(crate) fn open(path: PathBuf, source: Arc<dyn IndexSource>) -> Result<Self, CatalogError> {
        let connections = database::open(&path)?;
        let queue = WorkQueue::default();
        queue.set_cleanup(connections.cleanup);
        if connections.is_new {
            queue.set_state(CatalogState::Rebuilding);
        }
        queue.request_check(if connections.is_new { Duration::ZERO } else { CHECK_DELAY });
        let seal = CatalogSeal::load(&path, connections.is_new)?;
        let reader = Mutex::new(Some(connections.reader));
        let shared = Arc::new(CatalogShared { path, source, queue, reader });
        let writer = writer::spawn(Arc::clone(&shared), connections.writer, seal)
            .map_err(CatalogError::Thread)?;
        Ok(Self { shared, writer: Mutex::new(Some(writer)) })
    }

    /// Notes that a session changed; the catalog follows within about half a second. Never blocks.
    ///
    /// After [`Catalog::forget`], a call means that the session exists again, for example by an import.
    pub(crate) fn mark_dirty(&self, id: SessionId) {
        self.shared.queue.mark_changed(id, IndexNeed::Update);
    }

    /// Notes that a log was found damaged, or that damage is gone: the whole log is read again. Never blocks.
    pub(crate) fn mark_doubtful(&self, id: SessionId) {
        self.shared.queue.mark_changed(id, IndexNeed::Whole);
    }

    /// Tries again to read texts that could not be read when they were indexed, for example because a blob was missing.
    ///
    /// A search calls this, so that it finds blobs that were put back in the meantime. Never blocks.
    pub(crate) fn retry_gaps(&self) {
        self.shared.queue.retry_gaps();
    }

    /// Removes sessions whose logs no longer exist. Changes that are marked before it returns are dropped.
    ///
    /// After it returns, nothing in the catalog leads to the sessions. Their words may remain in the files for a
    /// while and are removed in the background: see [`Catalog::wait_clean`].
    ///
    /// **Errors**: the rows could not be removed, for example on a full disk. The sessions are hidden nevertheless,
    /// and the removal is retried until it succeeds, after a restart too. An unknown session is no error.
    pub(crate) fn forget(&self, ids: &[SessionId]) -> Result<(), CatalogError> {
        let (reply, result) = mpsc::sync_channel(1);
        let request = ForgetRequest { ids: ids.to_vec(), reply: Some(reply) };
        self.shared.queue.request_forget(request)?;
        result.recv().map_err(|_| CatalogError::Closed)?
    }

    /// Waits until no byte of a removed session is in the files; returns false when `deadline` passes first.
    pub(crate) fn wait_clean(&self, deadline: Instant) -> bool {
        self.shared.queue.wait_clean(deadline)
    }

    /// Waits until the catalog contains all marked changes; returns false when `deadline` passes first.
    pub(crate) fn wait_caught_up(&self, deadline: Instant) -> bool {
        self.shared.queue.wait_caught_up(deadline)
    }

    /// Returns the status without reading a table.
    pub(crate) fn status(&self) -> CatalogStatus {
        self.shared.queue.status(files::size_bytes(&self.shared.path))
    }

    /// Returns whether every session with a log is known, which is false right after a start and during a rebuild.
    pub(crate) fn knows_all(&self) -> bool {
        self.shared.queue.knows_all()
    }

    /// Ends the current batch and closes the file. The next start indexes the remaining records.
    pub(crate) fn shutdown(&self) {
        self.shared.queue.close();
        let writer = self.writer.lock().take();
        // The writer opens sessions with hints from the catalog, so it may drop the last handle, and ends by itself then.
        let other = writer.filter(|writer| writer.thread().id() != std::thread::current().id());
        if other.is_some_and(|writer| writer.join().is_err()) {
            tracing::error!("the catalog's writer thread panicked");
        }
    }

    /// Returns the entries, keys and folded state of a session, with which it opens without reading its whole log;
    /// `None` if the session is unknown or the catalog cannot be read.
    pub(crate) fn hint(&self, id: SessionId) -> Option<OpenHint> {
        self.hint_if(id, &|_| true)
    }

    /// Returns the same as [`Catalog::hint`], or `None` if `is_wanted` refuses the folded state. Then no entry is read.
    pub(crate) fn hint_if(
        &self,
        id: SessionId,
        is_wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Option<OpenHint> {
        self.shared
            .read(|conn| read_hint(conn, id, is_wanted))
            .inspect_err(|error| {
                let error = error as &dyn std::error::Error;
                tracing::warn!(session = %id, error, "cannot read what the catalog knows of a session");
            })
            .ok()?
    }

    /// Returns the session that `session.create` made with a key, and the hash of its params.
    pub(crate) fn find_create_key(
        &self,
        key: [u8; 16],
    ) -> Result<Option<(SessionId, [u8; 8])>, CatalogError> {
        self.read_complete(|| self.shared.read(|conn| sessions::by_create_key(conn, key)))
    }

    /// Returns sessions, the most recently active first, and by id where the last activity is equal.
    ///
    /// A read that meets a damaged file reads the one that replaces it. That file may lack sessions, so
    /// [`Catalog::knows_all`] is to be asked after the call. The same holds for searches.
    ///
    /// A list of more than 1,000 sessions is read in parts: a session that becomes active meanwhile can be missing.
    pub(crate) fn list(&self, query: &ListQuery<'_>) -> Result<Vec<Session>, CatalogError> {
        self.read_again(|| {
            let hidden = self.shared.queue.hidden();
            let mut page = ListPage::new(query, &hidden);
            while self.shared.read(|conn| page.read_part(conn))? {}
            Ok(page.into_sessions())
        })
    }

    /// Searches all indexed text. The newest hits come first: by the hour between pages, exactly within a page.
    ///
    /// **Errors**: [`CatalogError::EmptyQuery`], [`CatalogError::QueryTooLong`], [`CatalogError::InvalidCursor`].
    pub(crate) fn search(&self, query: &SearchQuery<'_>) -> Result<SearchPage, CatalogError> {
        self.read_again(|| search::search(&self.shared, query))
    }

    /// Finds the messages that answer a question best, the best first. Chat turns wait for it, so it never waits: while a
    /// damaged file is replaced, nothing is found and the result is behind.
    pub(crate) fn recall(&self, query: &RecallQuery<'_>) -> Result<RecalledPage, CatalogError> {
        match recall::recall(&self.shared, query) {
            Err(error) if database::is_of_damage(&error) => {
                let behind = self.shared.queue.behind().max(1) as u64;
                Ok(RecalledPage { messages: Vec::new(), behind })
            }
            read => read,
        }
    }

    /// Returns the short form of a session's id, or `None` if the catalog cannot be read.
    pub(crate) fn short_id(&self, id: SessionId) -> Option<String> {
        self.shared.read(|conn| sessions::short_id(conn, id)).ok()
    }

    /// Returns a retention row for every session, in no order.
    pub(crate) fn retention_rows(&self) -> Result<Vec<RetentionRow>, CatalogError> {
        let hidden = self.shared.queue.hidden();
        let mut rows = self.read_complete(|| self.shared.read(sessions::retention_rows))?;
        rows.retain(|row| !hidden.contains(&row.session_id));
        Ok(rows)
    }

    /// Returns the sessions that were forked from `id`, ordered by id.
    pub(crate) fn forks_of(&self, id: SessionId) -> Result<Vec<SessionId>, CatalogError> {
        self.read_complete(|| self.shared.read(|conn| sessions::forks_of(conn, id)))
    }

    /// Reads, and reads once more if the file was damaged and is replaced.
    fn read_again<T>(&self, read: impl Fn() -> Result<T, CatalogError>) -> Result<T, CatalogError> {
        let queue = &self.shared.queue;
        self.read_after(&read, || queue.wait_repaired(Instant::now() + REPAIR_WAIT))
    }

    /// Reads like [`Catalog::read_again`], but a new file only when it has all sessions.
    fn read_complete<T>(
        &self,
        read: impl Fn() -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        let deadline = || Instant::now() + REBUILD_WAIT;
        self.read_after(&read, || {
            self.shared.queue.wait_repaired(deadline()) && self.wait_caught_up(deadline())
        })
    }

    fn read_after<T>(
        &self,
        read: &impl Fn() -> Result<T, CatalogError>,
        wait: impl FnOnce() -> bool,
    ) -> Result<T, CatalogError> {
        let first = read();
        let met_damage = first.as_ref().is_err_and(database::is_of_damage);
        if met_damage && wait() { read() } else { first }
    }
}

impl Drop for Catalog {
    fn drop(&mut self) {
        self.shutdown();
    }
}

fn read_hint(
    conn: &Connection,
    id: SessionId,
    is_wanted: &dyn Fn(&[u8]) -> bool,
) -> rusqlite::Result<Option<OpenHint>> {
    let Some(row) = sessions::read_row(conn, id)? else { return Ok(None) };
    let carry = sessions::carry(conn, id, &row)?;
    if !is_wanted(&carry) {
        return Ok(None);
    }
    let entries =
        sessions::read_packed(conn, PackedTable::Entries, row.num, IndexEntry::from_bytes)?;
    let keys = sessions::read_packed(conn, PackedTable::Keys, row.num, KeyEntry::from_bytes)?;
    let IndexProgress { point, keys: n_keys } = row.known;
    if entries.len() as u64 != point.records || keys.len() as u64 != n_keys {
        // Never observed; a hint that does not describe the log is worse than none.
        tracing::error!(session = %id, "the catalog's entries of a session are incomplete");
        return Ok(None);
    }
    Ok(Some(OpenHint { point, entries, keys, carry }))
}
