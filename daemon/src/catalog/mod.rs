//! The derived database: lists, cold-open hints and full-text search. *Shell*: handle and threads.
//!
//! The catalog follows the logs. It is told which sessions changed, asks an [`IndexSource`] what is new, and can
//! be deleted at any time: it is made anew from the logs while everything else goes on.
//!
//! **Invariants**: one thread writes ([`index`]); who reads never waits for it (its own connection, and WAL);
//! an acknowledged record never depends on anything here; a session that was forgotten left no byte in any file
//! of the catalog ([`forget`]).
//!
//! Must not know log formats, the wire or configuration. FORMAT.md, "Catalog".

mod docids;
mod document;
mod entries;
mod error;
mod forget;
mod index;
mod line;
mod query;
mod queue;
mod read;
mod rebuild;
mod schema;
mod search;
mod snippet;
mod terms;
mod words;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::content::CatalogStatus;
use rusqlite::Connection;

pub(crate) use error::CatalogError;
pub(crate) use read::{ListQuery, RetentionRow};
pub(crate) use search::SearchQuery;

use crate::session::index::IndexSource;
use error::is_damage;
use queue::{Forget, Queue};

/// How long after opening the catalog is compared with the logs. Looking at 10,000 files takes 20 ms, and on a cold
/// disk a second; the first calls, for which the daemon was probably started, go before it.
const CHECK_AFTER: Duration = Duration::from_millis(150);

/// What the catalog does besides its duty.
#[derive(Clone, Debug)]
pub(crate) struct CatalogOptions {
    /// Compare with the logs soon after opening. Tests switch it off to see the rows alone.
    pub check_at_open: bool,
}

impl Default for CatalogOptions {
    fn default() -> Self {
        Self { check_at_open: true }
    }
}

/// The derived database of one home. Every call may block: for async code it belongs on a blocking thread, except
/// [`Catalog::mark_dirty`] and [`Catalog::status`].
pub(crate) struct Catalog {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the handle and the writer thread have in common.
struct Shared {
    path: PathBuf,
    source: Arc<dyn IndexSource>,
    queue: Queue,
    /// Absent while the file is replaced and after the end. Held for one short read at a time.
    reader: Mutex<Option<Connection>>,
    state: AtomicU8,
}

/// How the catalog is, as a number in [`Shared::state`].
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Ready,
    Rebuilding,
    Unavailable,
}

impl Catalog {
    /// Opens the catalog in `path`, or makes it, and begins to follow the logs in the background.
    ///
    /// **Errors**: only when the file can neither be used nor replaced, for example on a read-only disk.
    pub(crate) fn open(
        path: PathBuf,
        source: Arc<dyn IndexSource>,
        options: &CatalogOptions,
    ) -> Result<Self, CatalogError> {
        let connections = schema::open(&path)?;
        let shared = Arc::new(Shared {
            path,
            source,
            queue: Queue::default(),
            reader: Mutex::new(Some(connections.reader)),
            state: AtomicU8::new(State::Ready as u8),
        });
        // What a removal left to clean up is gone on with, unless the first calls want something else.
        shared.queue.set_unclean(connections.unclean);
        if connections.fresh {
            shared.set_state(State::Rebuilding);
            shared.queue.ask_check(Duration::ZERO);
        } else if options.check_at_open {
            shared.queue.ask_check(CHECK_AFTER);
        }
        let (conn, has_stale_journal) = (connections.writer, connections.unclean.journal);
        let thread = index::spawn(Arc::clone(&shared), conn, has_stale_journal)
            .map_err(CatalogError::Thread)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// A session changed. Cheap and never blocks; the catalog follows within about half a second.
    ///
    /// After [`Catalog::forget`] this means that the session exists again, for example by an import.
    pub(crate) fn mark_dirty(&self, id: SessionId) {
        self.shared.queue.mark(id);
    }

    /// Removes sessions, whose logs are gone. When it returns, nothing here leads to them any more; their words
    /// may be in the files for a while, and are taken out in the background: [`Catalog::wait_clean`].
    /// Changes that are marked before it returns are dropped.
    ///
    /// **Errors**: the rows could not be removed, for example on a full disk. The sessions are not shown all the
    /// same, and the removal is tried again until it succeeds, also after a restart, which finds that their logs
    /// are gone. A session that is not known is no error.
    pub(crate) fn forget(&self, ids: &[SessionId]) -> Result<(), CatalogError> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.shared.queue.ask_forget(Forget { ids: ids.to_vec(), reply: Some(reply) })?;
        answer.recv().map_err(|_| CatalogError::Closed)?
    }

    /// Waits until no byte of a removed session is in the files; false when `deadline` came first.
    pub(crate) fn wait_clean(&self, deadline: Instant) -> bool {
        self.shared.queue.wait_clean(deadline)
    }

    /// How it is. Reads no table.
    pub(crate) fn status(&self) -> CatalogStatus {
        let state = match self.shared.state() {
            State::Ready => "ready",
            State::Rebuilding => "rebuilding",
            State::Unavailable => "unavailable",
        };
        CatalogStatus {
            state: state.to_owned(),
            behind: self.shared.queue.behind() as u64,
            size_bytes: schema::size_bytes(&self.shared.path),
            forgetting: self.shared.queue.unclean() as u64,
        }
    }

    /// Whether every session that has a log is known; not so right after a start and during a rebuild.
    pub(crate) fn knows_all(&self) -> bool {
        self.shared.state() == State::Ready && !self.shared.queue.is_checking()
    }

    /// Waits until the catalog holds all that was marked; false when `deadline` came first.
    pub(crate) fn wait_caught_up(&self, deadline: Instant) -> bool {
        self.shared.queue.wait_done(deadline)
    }

    /// Finishes the batch under way and closes the file. What was not indexed is found at the next start.
    pub(crate) fn shutdown(&self) {
        self.shared.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the catalog panicked");
        }
    }
}

impl Drop for Catalog {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl Shared {
    fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Ready,
            1 => State::Rebuilding,
            _ => State::Unavailable,
        }
    }

    fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Wraps what SQLite said; a damaged file is replaced soon after.
    fn database_error(&self, attempt: &'static str, source: rusqlite::Error) -> CatalogError {
        if is_damage(&source) {
            self.queue.ask_recover();
        }
        CatalogError::Database { attempt, path: self.path.clone(), source }
    }

    /// Replaces the connection of those who read; `None` closes it.
    fn set_reader(&self, reader: Option<Connection>) {
        *self.reader.lock().unwrap_or_else(PoisonError::into_inner) = reader;
    }
}
