//! The writer thread: asks the source what is new and writes it, many records to a transaction.
//!
//! **Invariant**: what a transaction says of a session (how far its log is described, how far its text is
//! indexed) is true of the rows that the same transaction holds, so a crash at any point leaves a catalog that is
//! behind, never one that is wrong.

mod batch;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use super::docids::DocIds;
use super::forget::Cleaning;
use super::query::{self, shards};
use super::queue::{Forget, Job, Unclean};
use super::{CatalogError, Shared, State, forget, rebuild, schema};
use batch::Indexing;

/// How much one transaction takes in. Larger ones are cheaper by the record, and keep the index from being
/// written in many small pieces that have to be merged; smaller ones bound memory and how long a removal waits.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    /// Records whose text is indexed, and sessions.
    pub items: usize,
    /// Bytes of the log that are read.
    pub bytes: u64,
}

/// While the catalog follows: 64 to 256 records cost 30 to 70 us/KiB, one at a time 107 to 480.
pub(super) const FOLLOWING: Batch = Batch { items: 256, bytes: 4 << 20 };
/// While it catches up with many records: 200 ms of work. What it takes in decides how much memory the process has
/// ever after, for the C library does not give it back: 12 MiB cost as much again, and saved a tenth of the time.
pub(super) const CATCHING_UP: Batch = Batch { items: 32_768, bytes: 4 << 20 };
/// How far the thread stands back: a quarter of what a thread at normal priority gets where cores are short. More
/// would let a removal wait too long, which is done on this thread too.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 6;
/// As far back as a thread can stand.
#[cfg(target_os = "linux")]
const MAX_NICENESS: i32 = 19;
/// A journal larger than this is emptied when nothing else is to be done.
const MAX_WAL_BYTES: u64 = 4 << 20;
/// Waiting sessions from which on the catalog is catching up.
const MANY_SESSIONS: usize = 32;

/// The thread's own state.
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    /// Absent after the file was found damaged, until another one is made.
    pub(super) conn: Option<Connection>,
    /// How far the cleaning up after removals has come.
    pub(super) cleaning: Option<Cleaning>,
    /// The journal may hold pages that no transaction committed: of a batch that was given up, or that a crash cut
    /// off. SQLite passes over them, and overwrites them some day.
    pub(super) has_stale_journal: bool,
    docids: DocIds,
}

/// Starts the writer thread.
pub(super) fn spawn(
    shared: Arc<Shared>,
    conn: Connection,
    has_stale_journal: bool,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("catalog".into()).spawn(move || {
        step_back();
        let mut writer = Writer {
            shared,
            conn: Some(conn),
            cleaning: None,
            has_stale_journal,
            docids: DocIds::default(),
        };
        writer.run();
    })
}

/// Lets the threads that answer callers go first: indexing a burst of records must not slow down their writing.
fn step_back() {
    // Elsewhere than on Linux this would be about the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::getpriority_process(None).and_then(|now| {
        rustix::process::setpriority_process(None, (now + NICENESS).min(MAX_NICENESS))
    }) {
        tracing::debug!(%error, "the catalog runs at normal priority");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Also when the thread panics: nobody may wait for it for ever.
        self.shared.queue.die();
        self.shared.set_reader(None);
        self.shared.set_state(State::Unavailable);
    }
}

impl Writer {
    fn run(&mut self) {
        loop {
            let outcome = match self.shared.queue.next() {
                Job::Index => self.index_batch(),
                Job::Check => rebuild::check(self)
                    .inspect_err(|_| self.shared.queue.ask_check(Duration::ZERO)),
                Job::Recover => rebuild::recover(self),
                Job::Rest => self.rest(),
                Job::Forget(request) => {
                    self.forget(request);
                    Ok(())
                }
                Job::Clean => forget::clean(self),
                Job::Close => return,
            };
            match outcome {
                Ok(()) => self.settle(),
                Err(error) => self.fall_back(&error),
            }
        }
    }

    /// The connection, unless the file is being replaced.
    pub(super) fn conn(&self) -> Result<&Connection, CatalogError> {
        self.conn.as_ref().ok_or(CatalogError::Closed)
    }

    /// Forgets what was known of rows that are gone.
    pub(super) fn rows_replaced(&mut self) {
        self.cleaning = None;
        self.docids = DocIds::default();
    }

    /// Tells the queue how much there is to clean up.
    pub(super) fn note_unclean(&self) -> Result<(), CatalogError> {
        let conn = self.conn()?;
        let fail = |error| self.shared.database_error("read", error);
        self.shared.queue.set_unclean(Unclean {
            sessions: query::forgotten(conn).map_err(fail)?.len(),
            shards: !shards::unmerged(conn).map_err(fail)?.is_empty(),
            journal: self.has_stale_journal,
        });
        Ok(())
    }

    fn forget(&mut self, request: Forget) {
        let outcome = forget::forget(self, &request.ids);
        if let Err(error) = &outcome {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "the catalog cannot remove sessions yet"
            );
        }
        self.shared.queue.forgotten(&request.ids, outcome.is_ok());
        if let Some(reply) = request.reply {
            // Its caller went away; the removal is done all the same.
            drop(reply.send(outcome));
        }
    }

    fn settle(&self) {
        self.shared.queue.check_done();
        let caught_up = self.shared.queue.behind() == 0;
        if caught_up || self.shared.state() == State::Unavailable {
            self.shared.set_state(if caught_up { State::Ready } else { State::Rebuilding });
        }
    }

    fn fall_back(&mut self, error: &CatalogError) {
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "the catalog cannot follow the logs"
        );
        if let Some(conn) = &self.conn {
            query::rollback(conn);
        }
        self.has_stale_journal = true;
        self.shared.queue.note_stale_journal();
        self.rows_replaced();
        self.shared.set_state(State::Unavailable);
        self.shared.queue.batch_failed();
    }

    /// Gives memory back. FTS5 keeps the tables in which it gathered words as large as they ever were, until its
    /// connection is closed.
    fn rest(&mut self) -> Result<(), CatalogError> {
        let shared = Arc::clone(&self.shared);
        let fail = |error| shared.database_error("tidy", error);
        if schema::wal_bytes(&self.shared.path) > MAX_WAL_BYTES {
            // A reader that is in the way keeps it as it is.
            let _is_empty = query::truncate_wal(self.conn()?).map_err(fail)?;
        }
        if self.conn.take().is_some() {
            self.rows_replaced();
            let reopened = schema::connect(&self.shared.path);
            self.conn = Some(reopened.map_err(|error| {
                self.shared.queue.ask_recover();
                fail(error)
            })?);
        }
        if let Some(reader) =
            &*self.shared.reader.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        {
            query::shrink_memory(reader)
                .map_err(|error| self.shared.database_error("tidy", error))?;
        }
        Ok(())
    }

    fn index_batch(&mut self) -> Result<(), CatalogError> {
        let catching_up = self.shared.queue.behind() >= MANY_SESSIONS;
        let batch = if catching_up { CATCHING_UP } else { FOLLOWING };
        let shared = Arc::clone(&self.shared);
        let conn = self.conn.as_ref().ok_or(CatalogError::Closed)?;
        let mut indexing = Indexing::new(&shared, conn, &mut self.docids, batch);
        indexing.run().map_err(|error| shared.database_error("write", error))?;
        shared.queue.batch_done();
        if catching_up && shared.queue.behind() == 0 {
            // What it left in a few large segments would stay so until much more has come.
            shards::set_newest_unmerged(conn)
                .map_err(|error| shared.database_error("write", error))?;
        }
        self.note_unclean()
    }
}
