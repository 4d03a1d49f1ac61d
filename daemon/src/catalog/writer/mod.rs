//! The writer thread: indexes new records, removes sessions, cleans up, and replaces a damaged file.
//!
//! **Invariant**: this thread is the only writer of the database.

mod cleanup;
mod indexing;

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use super::database::{self, CatalogShared, Damage, damage_of};
use super::error::CatalogError;
use super::files;
use super::query::{self, fulltext, schema, sessions, titles};
use super::queue::{CatalogJob, CatalogState, ForgetRequest, IndexNeed};
use super::seal::{CatalogSeal, SealCheck};
use cleanup::{Cleanup, SliceResult, remove_sessions};
use indexing::{CATCHING_UP, DocidAllocator, FOLLOWING, IndexTransaction};

/// The amount by which the thread lowers its priority. On busy cores it then gets a quarter of the time of a thread at
/// normal priority. A removal also runs on this thread and would take too long at a lower priority.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 6;
/// The lowest priority that a thread can have.
#[cfg(target_os = "linux")]
const MAX_NICENESS: i32 = 19;
/// The name of the writer's thread.
pub(crate) const THREAD_NAME: &str = "catalog";
/// Minimum size of a journal that is truncated when the catalog is idle, in bytes.
const MAX_WAL_BYTES: u64 = 4 << 20;
/// Minimum number of waiting sessions with which the catalog counts as catching up.
const MANY_SESSIONS: usize = 32;

/// The owner of the write connection.
struct CatalogWriter {
    shared: Arc<CatalogShared>,
    /// `None` after the file was found damaged, until it is replaced.
    conn: Option<Connection>,
    /// The cleanup in progress.
    cleanup: Option<Cleanup>,
    docids: DocidAllocator,
    seal: CatalogSeal,
}

/// Starts the writer thread.
pub(super) fn spawn(
    shared: Arc<CatalogShared>,
    conn: Connection,
    seal: CatalogSeal,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(THREAD_NAME.into()).spawn(move || {
        lower_priority();
        let (conn, docids) = (Some(conn), DocidAllocator::default());
        CatalogWriter { shared, conn, cleanup: None, docids, seal }.run();
    })
}

impl CatalogWriter {
    fn run(&mut self) {
        loop {
            let job = self.shared.queue.next_job();
            let is_recovery = matches!(job, CatalogJob::Recover);
            let result = match job {
                CatalogJob::Index => self.index(),
                CatalogJob::Forget(request) => {
                    self.forget(request);
                    Ok(())
                }
                CatalogJob::CleanUp => self.clean_up(),
                CatalogJob::Check => {
                    self.check().inspect_err(|_| self.shared.queue.request_check(Duration::ZERO))
                }
                CatalogJob::CheckFile => self.check_rows(),
                CatalogJob::Recover => self.recover(),
                CatalogJob::ReleaseMemory => self.release_memory(),
                CatalogJob::Close => return self.close(),
            };
            match result {
                Ok(()) => self.shared.queue.job_done(),
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn Error,
                        "the catalog cannot follow the logs"
                    );
                    if let Some(conn) = &self.conn {
                        query::rollback(conn);
                    }
                    self.clear_caches();
                    self.shared.queue.job_failed(is_recovery);
                }
            }
        }
    }

    fn conn(&self) -> Result<&Connection, CatalogError> {
        self.conn.as_ref().ok_or(CatalogError::Closed)
    }

    /// Drops cached state of rows that may no longer exist.
    fn clear_caches(&mut self) {
        self.cleanup = None;
        self.docids = DocidAllocator::default();
    }

    /// Reports to the queue how much cleanup is left.
    fn report_cleanup(&self, is_journal_stale: bool) -> Result<(), CatalogError> {
        let cleanup = database::pending_cleanup(self.conn()?, is_journal_stale)
            .map_err(|error| self.shared.database_error("read", error))?;
        self.shared.queue.set_cleanup(cleanup);
        Ok(())
    }

    /// Indexes one batch of sessions from the queue.
    fn index(&mut self) -> Result<(), CatalogError> {
        let shared = Arc::clone(&self.shared);
        let fail = |error| shared.database_error("write", error);
        let is_catching_up = shared.queue.behind() >= MANY_SESSIONS;
        let limits = if is_catching_up { CATCHING_UP } else { FOLLOWING };
        let conn = self.conn.as_ref().ok_or(CatalogError::Closed)?;
        self.seal.mark_transaction(conn).map_err(fail)?;
        IndexTransaction::new(&shared, conn, &mut self.docids, limits).run().map_err(fail)?;
        shared.queue.batch_committed();
        if is_catching_up && shared.queue.behind() == 0 {
            // Catching up leaves a few large segments, which FTS5 would not merge until many more were added.
            fulltext::set_newest_unmerged(conn).map_err(fail)?;
        }
        if files::wal_bytes(&shared.path) > MAX_WAL_BYTES {
            self.copy_journal()?;
        }
        self.report_cleanup(shared.queue.is_journal_stale())
    }

    /// Carries out a request to remove sessions and replies to it.
    fn forget(&mut self, request: ForgetRequest) {
        let result = self.remove(&request);
        if let Err(error) = &result {
            tracing::warn!(error = error as &dyn Error, "the catalog cannot remove sessions yet");
        }
        self.shared.queue.forget_done(&request.ids, result.is_ok());
        if let Some(reply) = request.reply {
            // The caller may have given up; the removal is done all the same.
            drop(reply.send(result));
        }
    }

    /// Removes the rows of sessions.
    fn remove(&mut self, request: &ForgetRequest) -> Result<(), CatalogError> {
        let conn = self.conn.as_ref().ok_or(CatalogError::Closed)?;
        let marked = self.seal.mark_transaction(conn);
        let result = marked
            .and_then(|()| query::begin(conn))
            .and_then(|()| remove_sessions(conn, &request.ids))
            .and_then(|is_empty| query::commit(conn).map(|()| is_empty));
        match result {
            Ok(is_empty) => {
                if is_empty {
                    self.clear_caches();
                }
                self.report_cleanup(self.shared.queue.is_journal_stale())
            }
            Err(error) => {
                query::rollback(conn);
                Err(self.shared.database_error("remove a session from", error))
            }
        }
    }

    /// Does one slice of the cleanup after removals.
    fn clean_up(&mut self) -> Result<(), CatalogError> {
        // Its last step copies the journal into the file.
        self.unseal()?;
        let fail = |error| self.shared.database_error("clean up", error);
        let conn = self.conn.as_ref().ok_or(CatalogError::Closed)?;
        let is_journal_stale = self.shared.queue.is_journal_stale();
        if self.cleanup.is_none() {
            self.cleanup = Cleanup::begin(conn, is_journal_stale).map_err(fail)?;
        }
        let Some(cleanup) = &mut self.cleanup else { return self.report_cleanup(is_journal_stale) };
        match cleanup.run_slice(conn).map_err(fail)? {
            SliceResult::Continue => Ok(()),
            SliceResult::Finished => {
                self.cleanup = None;
                self.report_cleanup(false)
            }
            SliceResult::JournalInUse => {
                Err(CatalogError::JournalInUse { path: self.shared.path.clone() })
            }
        }
    }

    /// Compares the size of every log with the extent that the catalog has read, and queues the sessions that differ.
    ///
    /// A session whose log vanished is queued like a changed one: only the source decides whether the session exists.
    fn check(&mut self) -> Result<(), CatalogError> {
        self.check_seal()?;
        let logs = self.shared.source.logs().map_err(CatalogError::Source)?;
        let extents = sessions::extents(self.conn()?)
            .map_err(|error| self.shared.database_error("read", error))?;
        let mut sizes: HashMap<_, _> = logs.into_iter().collect();
        let mut outdated = Vec::new();
        for extent in extents {
            match sizes.remove(&extent.id) {
                Some(_) if extent.is_doubtful => outdated.push((extent.id, IndexNeed::Whole)),
                Some(bytes) if bytes == extent.bytes && extent.has_all_text && !extent.has_gaps => {
                }
                Some(bytes) if bytes == extent.bytes => outdated.push((extent.id, IndexNeed::Text)),
                _ => outdated.push((extent.id, IndexNeed::Update)),
            }
        }
        outdated.extend(sizes.into_keys().map(|id| (id, IndexNeed::Update)));
        if !outdated.is_empty() {
            tracing::info!(sessions = outdated.len(), "the catalog catches up with the logs");
        }
        self.shared.queue.add_outdated(outdated);
        Ok(())
    }

    /// Removes the damaged file, creates a new one and requests a comparison with the logs, which fills it.
    fn recover(&mut self) -> Result<(), CatalogError> {
        let shared = Arc::clone(&self.shared);
        tracing::warn!(path = %shared.path.display(), "the catalog is damaged and is rebuilt");
        shared.queue.set_state(CatalogState::Rebuilding);
        *shared.reader.lock() = None;
        self.conn = None;
        self.clear_caches();
        let connections = database::discard(&shared.path)
            .and_then(|()| database::open(&shared.path))
            .inspect_err(|_| shared.queue.request_recovery())?;
        self.seal = CatalogSeal::load(&shared.path, connections.is_new)
            .inspect_err(|_| shared.queue.request_recovery())?;
        *shared.reader.lock() = Some(connections.reader);
        self.conn = Some(connections.writer);
        shared.queue.recovered(connections.cleanup);
        Ok(())
    }

    /// Copies the journal into the file and empties it. A reader may prevent this; the journal then stays as it is.
    fn copy_journal(&mut self) -> Result<(), CatalogError> {
        self.unseal()?;
        let truncated = query::truncate_wal(self.conn()?);
        truncated.map(drop).map_err(|error| self.shared.database_error("tidy", error))
    }

    /// Removes the seal, because the file is about to change; an unchecked file is checked before.
    fn unseal(&mut self) -> Result<(), CatalogError> {
        self.check_seal()?;
        self.seal.remove()
    }

    fn renew_seal(&mut self) -> Result<(), CatalogError> {
        self.conn.as_ref().map_or(Err(CatalogError::Closed), |conn| self.seal.renew(conn))
    }

    /// Compares the file with its seal, once after the start. A file without a seal is read row by row.
    fn check_seal(&mut self) -> Result<(), CatalogError> {
        if self.seal.is_checked() {
            return Ok(());
        }
        let conn = self.conn.as_ref().ok_or(CatalogError::Closed)?;
        match self.seal.check(conn)? {
            SealCheck::Intact => Ok(()),
            SealCheck::Unsealed => self.check_rows(),
            SealCheck::Broken => {
                self.shared.queue.request_recovery();
                Err(CatalogError::Damaged { path: self.shared.path.clone() })
            }
        }
    }

    /// Reads the whole file: its schema, the structures of SQLite and FTS5, and the rows with checksums.
    fn check_rows(&self) -> Result<(), CatalogError> {
        let conn = self.conn()?;
        let is_whole = schema::is_complete(conn)
            .and_then(|is_complete| Ok(is_complete && schema::is_consistent(conn)?))
            .and_then(|is_whole| Ok(is_whole && fulltext::has_all_documents(conn)?))
            .and_then(|is_whole| Ok(is_whole && titles::has_all(conn)?))
            .and_then(|is_whole| sessions::check_rows(conn).map(|()| is_whole));
        match is_whole {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.shared.queue.request_recovery();
                Err(CatalogError::Damaged { path: self.shared.path.clone() })
            }
            Err(error) => {
                // The check fails only on a file that is not whole, unless the system refuses to read it.
                if damage_of(&error) != Damage::None {
                    self.shared.queue.request_recovery();
                }
                Err(self.shared.database_error("check", error))
            }
        }
    }

    /// Copies the journal into the file and seals it, after the last reader.
    fn close(&mut self) {
        *self.shared.reader.lock() = None;
        if self.conn.is_none() || !self.seal.is_checked() {
            return;
        }
        let sealed =
            if files::wal_bytes(&self.shared.path) > 0 { self.copy_journal() } else { Ok(()) };
        let sealed = sealed.and_then(|()| self.renew_seal());
        if let Err(error) = sealed {
            tracing::warn!(error = &error as &dyn Error, "the catalog is closed without a seal");
        }
    }

    /// Gives memory back. The connection is reopened, because FTS5 keeps its word tables as large as they ever were
    /// until the connection closes.
    fn release_memory(&mut self) -> Result<(), CatalogError> {
        let shared = Arc::clone(&self.shared);
        let fail = |error| shared.database_error("tidy", error);
        let wal_bytes = files::wal_bytes(&shared.path);
        if wal_bytes > MAX_WAL_BYTES || (wal_bytes > 0 && !self.seal.exists()) {
            self.copy_journal()?;
        }
        self.renew_seal()?;
        if self.conn.take().is_some() {
            self.clear_caches();
            let conn =
                database::connect(&shared.path).inspect_err(|_| shared.queue.request_recovery());
            self.conn = Some(conn.map_err(fail)?);
        }
        shared.reader.lock().as_ref().map_or(Ok(()), query::shrink_memory).map_err(fail)
    }
}

impl Drop for CatalogWriter {
    /// Runs after a panic as well, so that no caller waits for this thread forever.
    fn drop(&mut self) {
        self.shared.queue.writer_exited();
        *self.shared.reader.lock() = None;
    }
}

/// Lets the threads that answer calls run first: indexing a burst of records must not delay recording.
fn lower_priority() {
    // On other systems this call would concern the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::getpriority_process(None).and_then(|now| {
        rustix::process::setpriority_process(None, (now + NICENESS).min(MAX_NICENESS))
    }) {
        tracing::debug!(%error, "the catalog runs at normal priority");
    }
}
