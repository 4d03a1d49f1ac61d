//! All sessions: finding, beginning, writing and reading them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use ollm_protocol::content::{Record, RecordBody, Session, StoreStatus};
use ollm_protocol::{Seq, SessionId, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::cell::Cell;
use super::command::Command;
use super::index::Entry;
use super::live::Live;
use super::log::file::{OpenLogFile, open_real};
use super::pool::SyncPool;
use super::shared::{Hints, Paths, Shared, Stats};
use super::{Appended, Birth, Draft, KeyUse, Observer, SessionError};
use crate::clock::Clock;
use crate::fsutil::FsError;

/// Most sessions held open; each costs a file or two and 24 bytes a record.
const MAX_OPEN: usize = 256;
/// Most sessions that were created and never written to; more is a client that leaks them.
const MAX_DRAFTS: usize = 10_000;

/// A session that was created and not written to for this long is forgotten, in milliseconds.
const DRAFT_MS: i64 = 24 * 60 * 60 * 1000;

/// What sessions need from outside.
pub(crate) struct SessionsOptions {
    /// The directory of the logs; exists.
    pub dir: PathBuf,
    /// Time and ids.
    pub clock: Arc<Clock>,
    /// Who is told of changes.
    pub observer: Arc<dyn Observer>,
}

/// What a write's caller waits for; it comes when the records are synced.
pub(crate) type Answer = oneshot::Receiver<Result<Appended, SessionError>>;

/// All sessions; a cheap clone.
#[derive(Clone)]
pub(crate) struct Sessions {
    pub(super) shared: Arc<Shared>,
    cells: Arc<Mutex<HashMap<SessionId, Arc<Cell>>>>,
}

impl Sessions {
    /// The sessions of a directory; reads nothing yet.
    pub(crate) fn new(options: SessionsOptions) -> Self {
        Self::with_files(options, Box::new(open_real))
    }

    /// Like [`Sessions::new`], with files that a test can make fail.
    pub(super) fn with_files(options: SessionsOptions, open_file: Box<OpenLogFile>) -> Self {
        let SessionsOptions { dir, clock, observer } = options;
        let shared = Shared {
            paths: Paths { dir },
            clock,
            observer,
            pool: SyncPool::new(),
            open_file,
            stats: Stats::default(),
            hints: OnceLock::new(),
        };
        Self { shared: Arc::new(shared), cells: Arc::default() }
    }

    /// Says where stored folds come from; set once, before the first session is opened.
    pub(crate) fn set_hints(&self, hints: Arc<dyn Hints>) {
        // A second call would be a defect of the composition; the first one stays in force.
        drop(self.shared.hints.set(hints));
    }

    pub(super) fn cells(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Cell>>> {
        self.cells.lock()
    }

    /// Begins a session in memory; its files come with the first write.
    ///
    /// **Errors**: `Busy` when too many were begun and never used, or one of this id is just being deleted;
    /// `Exists`.
    pub(crate) fn create(&self, birth: Birth) -> Result<Session, SessionError> {
        let id = birth.header.session_id;
        let mut cells = self.cells();
        if cells.len() >= MAX_DRAFTS {
            return Err(SessionError::Busy { id, waiting: cells.len() });
        }
        if self.shared.paths.deleting(id).exists() {
            return Err(SessionError::Busy { id, waiting: 1 });
        }
        if cells.contains_key(&id) || self.shared.paths.log(id).exists() {
            return Err(SessionError::Exists { id });
        }
        let cell = Cell::new(Arc::clone(&self.shared), id, Some(birth));
        cells.insert(id, Arc::clone(&cell));
        drop(cells);
        let now = self.shared.clock.now();
        cell.peek(|live| live.summary(now)).ok_or(SessionError::NotFound { id })
    }

    /// The session that a key of `session.create` began, among the open ones, with the key's payload.
    pub(crate) fn find_create_key(&self, key: &[u8; 16]) -> Option<(SessionId, [u8; 8])> {
        let cells: Vec<_> = self.cells().values().cloned().collect();
        cells.iter().find_map(|cell| {
            let used = cell.peek(|live| live.state.create_key())??;
            (used.key == *key).then_some((cell.id, used.payload))
        })
    }

    /// The cell of a session that has a log or a draft.
    pub(super) fn cell(&self, id: SessionId) -> Result<Arc<Cell>, SessionError> {
        let mut cells = self.cells();
        if let Some(cell) = cells.get(&id) {
            return Ok(Arc::clone(cell));
        }
        if !self.shared.paths.log(id).exists() {
            return Err(SessionError::NotFound { id });
        }
        if cells.len() >= MAX_OPEN {
            close_longest_unused(&mut cells);
        }
        let cell = Cell::new(Arc::clone(&self.shared), id, None);
        cells.insert(id, Arc::clone(&cell));
        Ok(cell)
    }

    /// Queues records that become durable together; the order of calls is the order in the log.
    ///
    /// The records are queued when this returns; the answer comes when they are synced.
    pub(crate) fn append(
        &self,
        id: SessionId,
        drafts: Vec<Draft>,
        key: Option<KeyUse>,
    ) -> Result<Answer, SessionError> {
        let cell = self.cell(id)?;
        let (reply, answer) = oneshot::channel();
        cell.submit(Command { drafts, key, expected_leaf: None, reply });
        Ok(answer)
    }

    /// Like [`Sessions::append`], refused with `LeafMoved` unless `leaf` is still the active leaf when it is
    /// this write's turn.
    pub(crate) fn append_after(
        &self,
        id: SessionId,
        leaf: Option<Seq>,
        drafts: Vec<Draft>,
    ) -> Result<Answer, SessionError> {
        self.append_keyed_after(id, leaf, drafts, None)
    }

    /// Like [`Sessions::append_after`], with a key: one that was used before is answered whatever the leaf.
    pub(crate) fn append_keyed_after(
        &self,
        id: SessionId,
        leaf: Option<Seq>,
        drafts: Vec<Draft>,
        key: Option<KeyUse>,
    ) -> Result<Answer, SessionError> {
        let cell = self.cell(id)?;
        let (reply, answer) = oneshot::channel();
        cell.submit(Command { drafts, key, expected_leaf: Some(leaf), reply });
        Ok(answer)
    }

    /// Calls `read` with an open session; may block on the disk when it is not open yet.
    pub(crate) fn with<T>(
        &self,
        id: SessionId,
        read: impl FnOnce(&Live) -> T,
    ) -> Result<T, SessionError> {
        let cell = self.cell(id)?;
        let result = cell.with(read);
        if matches!(result, Err(SessionError::NotFound { .. })) {
            let mut cells = self.cells();
            let is_same = cells.get(&id).is_some_and(|held| Arc::ptr_eq(held, &cell));
            // The map's own and this one: nobody else can be about to write through it.
            if is_same && Arc::strong_count(&cell) == 2 && !cell.is_deleting() {
                cells.remove(&id);
            }
        }
        result
    }

    /// Calls `read` with a session that is open already; `None` for any other. Never waits for the disk.
    pub(crate) fn peek<T>(&self, id: SessionId, read: impl FnOnce(&Live) -> T) -> Option<T> {
        let cell = self.cells().get(&id).cloned()?;
        cell.peek(read)
    }

    /// The session as lists show it.
    pub(crate) fn summary(&self, id: SessionId) -> Result<Session, SessionError> {
        let now = self.shared.clock.now();
        self.with(id, |live| live.summary(now))
    }

    /// Reads records by number, blobs put back; `None` for damaged ones. May block on the disk.
    pub(crate) fn records(
        &self,
        id: SessionId,
        seqs: &[Seq],
    ) -> Result<Vec<Option<Record>>, SessionError> {
        let (reader, entries) = self.with(id, |live| {
            let entries: Vec<_> = seqs.iter().map(|seq| live.state().entry(*seq)).collect();
            (live.reader(), entries)
        })?;
        let read = |entry: Option<Entry>| entry.and_then(|entry| reader.read(entry));
        let records: Vec<_> = entries.into_iter().map(read).collect();
        let unreadable = seqs.iter().zip(&records).filter(|(_, record)| record.is_none());
        self.note_unreadable(id, unreadable.map(|(seq, _)| *seq).collect());
        Ok(records)
    }

    /// Notes records that could not be read; those that were known to be damaged change nothing.
    pub(crate) fn note_unreadable(&self, id: SessionId, seqs: Vec<Seq>) {
        if !seqs.is_empty()
            && let Ok(cell) = self.cell(id)
        {
            cell.note_unreadable(&seqs);
        }
    }

    /// Reads the bodies of records by number; `None` for damaged ones. May block on the disk.
    pub(crate) fn bodies(
        &self,
        id: SessionId,
        seqs: &[Seq],
    ) -> Result<Vec<Option<RecordBody>>, SessionError> {
        let records = self.records(id, seqs)?;
        Ok(records.into_iter().map(|record| record.and_then(Record::into_body)).collect())
    }

    /// The open sessions that have a log, as lists show them.
    pub(crate) fn open_summaries(&self) -> Vec<Session> {
        let cells: Vec<_> = self.cells().values().cloned().collect();
        let now = self.shared.clock.now();
        cells
            .iter()
            .filter_map(|cell| cell.peek(|live| live.summary(now)))
            .filter(|session| !session.draft)
            .collect()
    }

    /// Where the session document lies.
    pub(crate) fn document_path(&self, id: SessionId) -> PathBuf {
        self.shared.paths.document(id)
    }

    /// Closes every session that was not used since `before`; returns how many.
    pub(crate) fn close_unused(&self, before: Timestamp) -> usize {
        let mut cells = self.cells();
        let count = cells.len();
        let given_up = before.unix_ms() - DRAFT_MS;
        cells.retain(|_, cell| {
            let is_old_draft = cell.used_ms() < given_up && is_unshared(cell) && cell.is_draft();
            !is_old_draft && (cell.used_ms() >= before.unix_ms() || !close(cell))
        });
        count - cells.len()
    }

    /// Open sessions and work done since the start; sessions on disk are counted by reading the directory.
    pub(crate) fn status(&self) -> StoreStatus {
        let open = self.cells().values().filter(|cell| cell.peek(|_| ()).is_some()).count();
        StoreStatus {
            sessions: self.count_logs(),
            open_sessions: open as u64,
            records_written: self.shared.stats.records.load(Ordering::Relaxed),
            syncs: self.shared.stats.syncs.load(Ordering::Relaxed),
            last_failed_write: self.shared.stats.failed_write(),
        }
    }

    /// The sessions that have a log, with its size in bytes.
    pub(crate) fn log_ids(&self) -> Result<Vec<(SessionId, u64)>, FsError> {
        let dir = &self.shared.paths.dir;
        let fail = |source| FsError::new("list", dir, source);
        let mut found = Vec::new();
        for file in std::fs::read_dir(dir).map_err(fail)? {
            let file = file.map_err(fail)?;
            let name = file.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(".jsonl"));
            if let Some(id) = id.and_then(|id| id.parse().ok())
                && let Ok(metadata) = file.metadata()
                && metadata.len() > 0
            {
                found.push((id, metadata.len()));
            }
        }
        Ok(found)
    }
}

/// Whether only the map holds a cell. Clones are made under the map's lock alone, so while that is held nobody
/// can be about to write through an unshared cell.
fn is_unshared(cell: &Arc<Cell>) -> bool {
    Arc::strong_count(cell) == 1
}

/// Closes a cell that nobody uses, so that it can leave the map: two cells of one session would both write.
fn close(cell: &Arc<Cell>) -> bool {
    is_unshared(cell) && cell.close_if_idle()
}

/// Makes room for another session among the open ones.
fn close_longest_unused(cells: &mut HashMap<SessionId, Arc<Cell>>) {
    let open = cells.values().filter(|cell| !cell.is_draft());
    let mut by_use: Vec<_> = open.map(|cell| (cell.used_ms(), cell.id)).collect();
    if by_use.len() < MAX_OPEN {
        return;
    }
    by_use.sort_unstable();
    // An eighth at a time, so that a client that walks over all sessions does not sort at every step.
    for (_, id) in by_use.into_iter().take(MAX_OPEN / 8) {
        if cells.get(&id).is_some_and(close) {
            cells.remove(&id);
        }
    }
}
