//! All sessions of a directory: find, create, write and read them.
//!
//! The store owns the cells. **Invariant**: a session has at most one cell, because two would both write its log. Clones
//! of a cell are made only under the lock of the map, and a cell leaves the map only while no caller has a clone of it,
//! or when its session is deleted and it refuses all uses.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use hashlink::LinkedHashMap;
use ollm_protocol::content::{FileHash, Record, RecordBody, Session, StoreStatus};
use ollm_protocol::limits::json_bytes;
use ollm_protocol::{Seq, SessionId, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::cell::SessionCell;
use super::error::SessionError;
use super::index::{HintSource, IndexEntry};
use super::kept_files;
use super::log::{OpenLogFile, open_real};
use super::open_session::OpenSession;
use super::pending::{PendingAppend, PendingChange, WriteReceiver, refusable};
use super::plan::{RequestedChange, WriteRequest};
use super::pool::SyncPool;
use super::shared::{SessionPaths, StoreShared};
use super::write::{IdempotencyKey, NewRecord, NewSession, Observer};
use crate::clock::Clock;
use crate::fsutil::{self, FsError};

/// Maximum number of open sessions with a log; each has one or two open files and takes 24 bytes for each record.
const MAX_OPEN: usize = 256;
/// Number of open sessions beyond which the least recently used ones get rest marks, long before they are closed to
/// make room: closing them must not wait for the disk.
const MARK_BEYOND: usize = MAX_OPEN - 64;
/// Maximum number of drafts; more of them are a sign of a client that creates sessions and does not use them.
const MAX_DRAFTS: usize = 10_000;
/// Maximum size of the headers of all drafts in bytes of JSON; they are in memory only.
const MAX_DRAFT_BYTES: usize = 64 * 1024 * 1024;
/// A draft that was not used for this long is dropped, in milliseconds.
const DRAFT_MS: i64 = 24 * 60 * 60 * 1000;

/// The cells by id, the least recently used first.
type Cells = LinkedHashMap<SessionId, Arc<SessionCell>>;

/// A handle to all sessions; cheap to clone.
#[derive(Clone)]
pub(crate) struct Sessions {
    pub(super) shared: Arc<StoreShared>,
    cells: Arc<Mutex<Cells>>,
}

impl Sessions {
    /// Returns the sessions of a directory, which must exist; reads nothing yet.
    pub(crate) fn new(dir: PathBuf, clock: Arc<Clock>, observer: Arc<dyn Observer>) -> Self {
        Self::with_files(dir, clock, observer, Box::new(open_real))
    }

    /// Returns the sessions of a directory, whose logs `open_file` opens.
    pub(super) fn with_files(
        dir: PathBuf,
        clock: Arc<Clock>,
        observer: Arc<dyn Observer>,
        open_file: Box<OpenLogFile>,
    ) -> Self {
        let shared = StoreShared {
            paths: SessionPaths { dir },
            clock,
            observer,
            pool: SyncPool::new(),
            open_file,
            n_records: AtomicU64::new(0),
            n_syncs: AtomicU64::new(0),
            failed_forks: Mutex::default(),
            failed_write: Mutex::default(),
            close_unused: OnceLock::new(),
            hints: OnceLock::new(),
            foreign_names: Mutex::default(),
        };
        let sessions = Self { shared: Arc::new(shared), cells: Arc::default() };
        // Weak, because the cells own what they share.
        let cells = Arc::downgrade(&sessions.cells);
        let close = move || cells.upgrade().map_or(0, |cells| close_half(&mut cells.lock()));
        drop(sessions.shared.close_unused.set(Box::new(close)));
        sessions
    }

    /// Sets the source of stored folds; called once, before the first session is opened.
    pub(crate) fn set_hints(&self, hints: Arc<dyn HintSource>) {
        // The first source stays in force; a second call would be an error of the composition.
        drop(self.shared.hints.set(hints));
    }

    pub(super) fn cells(&self) -> MutexGuard<'_, Cells> {
        self.cells.lock()
    }

    /// Creates a session in memory; its first write creates its files.
    ///
    /// **Errors**: `TooManyDrafts`; `Busy` if the session is being deleted; `Exists`.
    pub(crate) fn create(&self, session: NewSession) -> Result<Session, SessionError> {
        let id = session.header.session_id;
        let header_bytes = json_bytes(&session.header);
        let mut cells = self.cells();
        let drafts: Vec<_> = cells.values().filter(|cell| cell.is_draft()).collect();
        let draft_bytes: usize = drafts.iter().map(|cell| cell.header_bytes()).sum();
        if drafts.len() >= MAX_DRAFTS || draft_bytes + header_bytes > MAX_DRAFT_BYTES {
            return Err(SessionError::TooManyDrafts { drafts: drafts.len(), bytes: draft_bytes });
        }
        if self.shared.paths.deleting(id).exists() {
            return Err(SessionError::Busy { id, waiting: 1 });
        }
        if cells.contains_key(&id) || self.shared.paths.log(id).symlink_metadata().is_ok() {
            return Err(SessionError::Exists { id });
        }
        let cell = self.insert(&mut cells, id, Some((session, header_bytes)));
        drop(cells);
        let now = self.shared.clock.now();
        cell.peek(|session| session.summary(now)).ok_or(SessionError::NotFound { id })
    }

    /// Returns the open session that a key of `session.create` created, and the digest of its payload.
    pub(crate) fn find_create_key(&self, key: &[u8; 16]) -> Option<(SessionId, [u8; 8])> {
        let cells: Vec<_> = self.cells().values().cloned().collect();
        cells.iter().find_map(|cell| {
            let used = cell.peek(|session| session.state.create_key())??;
            (used.key == *key).then_some((cell.id, used.payload))
        })
    }

    /// Returns the cell of a session that has a log or is a draft.
    pub(super) fn cell(&self, id: SessionId) -> Result<Arc<SessionCell>, SessionError> {
        let mut cells = self.cells();
        if let Some(cell) = cells.to_back(&id) {
            let cell = Arc::clone(cell);
            if cell.is_draft() {
                // The call may write the first record, with which the session is no draft any more.
                close_least_used(&mut cells);
            }
            return Ok(cell);
        }
        if !self.shared.paths.has_log(id) {
            return Err(SessionError::NotFound { id });
        }
        Ok(self.insert(&mut cells, id, None))
    }

    /// Calls `use_log` with the cell of a session that has a log, which is not opened and not kept for this.
    pub(super) fn with_cell_of_log<T>(
        &self,
        id: SessionId,
        use_log: impl FnOnce(&SessionCell) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        let cell = {
            let mut cells = self.cells();
            match cells.get(&id).cloned() {
                Some(cell) => cell,
                None if self.shared.paths.has_log(id) => self.insert(&mut cells, id, None),
                None => return Err(SessionError::NotFound { id }),
            }
        };
        let result = use_log(&cell);
        self.drop_closed(&cell);
        result
    }

    /// Removes a cell from the map if only the caller uses it and its session is not open.
    fn drop_closed(&self, cell: &Arc<SessionCell>) {
        let mut cells = self.cells();
        let is_same = cells.get(&cell.id).is_some_and(|held| Arc::ptr_eq(held, cell));
        // Two clones are that of the map and this one, so no other caller is about to write through the cell.
        let is_unused = is_same && Arc::strong_count(cell) == 2 && !cell.is_deleting();
        if is_unused && cell.peek(|_| ()).is_none() {
            cells.remove(&cell.id);
        }
    }

    /// Adds the cell of a session, which is a draft if it has a header here. Cells enter the map only here, after others
    /// were closed to make room.
    fn insert(
        &self,
        cells: &mut Cells,
        id: SessionId,
        draft: Option<(NewSession, usize)>,
    ) -> Arc<SessionCell> {
        close_least_used(cells);
        let cell = SessionCell::new(Arc::clone(&self.shared), id, draft);
        cells.insert(id, Arc::clone(&cell));
        cell
    }

    /// Adds a session whose log was just created.
    pub(super) fn insert_open(&self, id: SessionId, session: OpenSession) {
        self.insert(&mut self.cells(), id, None).set_open(session);
    }

    /// Closes half of the unused sessions, the least recently used first; returns their number. For a process that has
    /// no free descriptor.
    pub(crate) fn close_half(&self) -> usize {
        close_half(&mut self.cells())
    }

    /// Writes a file beside the logs, and tries it again after unused sessions were closed if the process has no free
    /// descriptor. Blocks.
    pub(crate) fn with_descriptors<T>(
        &self,
        write: impl FnMut() -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let is_out = |error: &FsError| fsutil::is_out_of_descriptors(&error.source);
        self.shared.retry_with_descriptors(is_out, write)
    }

    /// Queues records that become durable together. The order of calls is the order in the log.
    pub(crate) fn append(
        &self,
        id: SessionId,
        records: Vec<NewRecord>,
        key: Option<IdempotencyKey>,
    ) -> Result<PendingAppend, SessionError> {
        Ok(PendingAppend(self.submit(id, key, RequestedChange::Append(records))?))
    }

    /// Queues records that are refused with `LeafMoved` if the active leaf is not `leaf` when they are written.
    ///
    /// A known key succeeds with any leaf.
    pub(crate) fn append_after(
        &self,
        id: SessionId,
        leaf: Option<Seq>,
        records: Vec<NewRecord>,
        key: Option<IdempotencyKey>,
    ) -> Result<PendingAppend, SessionError> {
        Ok(PendingAppend(self.submit(id, key, RequestedChange::AppendAfter(leaf, records))?))
    }

    /// Queues a change that is planned when its turn comes: `plan` sees every earlier write applied and durable, and what
    /// it returns is written before anything else. It runs once, on the writer's thread, and not at all for a known key.
    ///
    /// `plan` may read records by the reader of the session; everything else of the store would wait for this writer.
    pub(crate) fn change<R: From<SessionError> + Send + 'static>(
        &self,
        id: SessionId,
        key: Option<IdempotencyKey>,
        plan: impl FnOnce(&OpenSession) -> Result<Vec<NewRecord>, R> + Send + 'static,
    ) -> Result<PendingChange<R>, SessionError> {
        let (plan, refusal) = refusable(plan);
        let written = self.submit(id, key, RequestedChange::Plan(plan))?;
        Ok(PendingChange { written, refusal })
    }

    fn submit(
        &self,
        id: SessionId,
        key: Option<IdempotencyKey>,
        change: RequestedChange,
    ) -> Result<WriteReceiver, SessionError> {
        let (reply, written) = oneshot::channel();
        self.cell(id)?.submit(WriteRequest { change, key, reply });
        Ok(written)
    }

    /// Returns the record that a key created; `None` for an unknown key. Blocks on the disk unless the session is open.
    ///
    /// **Errors**: `KeyConflict` if the key was used with other content.
    pub(crate) fn known(
        &self,
        id: SessionId,
        key: &IdempotencyKey,
    ) -> Result<Option<Seq>, SessionError> {
        let Some(used) = self.with(id, |session| session.state.key(&key.digest.key))? else {
            return Ok(None);
        };
        let seq = Seq(u64::from(used.seq));
        if used.payload != key.digest.payload {
            return Err(SessionError::KeyConflict { id, seq });
        }
        // The reply confirms an earlier change.
        self.sync(id)?;
        Ok(Some(seq))
    }

    /// Makes all records of a session durable. Blocks on the disk.
    ///
    /// A write does so by itself. A call that succeeds without a write, because its change is there already, must do it:
    /// a process that was killed may have made that change in the system's cache only.
    pub(crate) fn sync(&self, id: SessionId) -> Result<(), SessionError> {
        self.cell(id)?.sync()
    }

    /// Calls `read` with a session. Blocks on the disk if the session is not open.
    pub(crate) fn with<T>(
        &self,
        id: SessionId,
        read: impl FnOnce(&OpenSession) -> T,
    ) -> Result<T, SessionError> {
        let cell = self.cell(id)?;
        let result = cell.with(read);
        if matches!(result, Err(SessionError::NotFound { .. })) {
            self.drop_closed(&cell);
        }
        result
    }

    /// Calls `read` with a session if it is open; returns `None` otherwise. Never blocks on the disk.
    pub(crate) fn peek<T>(&self, id: SessionId, read: impl FnOnce(&OpenSession) -> T) -> Option<T> {
        let cell = self.cells().get(&id).cloned()?;
        cell.peek(read)
    }

    /// Returns the session as lists show it. Blocks on the disk if records of it could not be read.
    pub(crate) fn summary(&self, id: SessionId) -> Result<Session, SessionError> {
        let now = self.shared.clock.now();
        self.with(id, |session| session.summary(now))
    }

    /// Returns whether a session keeps the content of a file.
    pub(crate) fn keeps_file(&self, id: SessionId, hash: FileHash) -> bool {
        kept_files::is_kept(&self.shared.paths.blobs(id), hash)
    }

    /// Returns the size of the further contents of files that a session may keep, in bytes. Blocks on the disk.
    pub(crate) fn free_file_bytes(&self, id: SessionId, quota_bytes: u64) -> Result<u64, FsError> {
        kept_files::free_bytes(&self.shared.paths.blobs(id), quota_bytes)
    }

    /// Makes the names of the contents that a session keeps durable. Blocks on the disk.
    pub(crate) fn sync_kept_files(&self, id: SessionId) -> Result<(), FsError> {
        kept_files::sync(&self.shared.paths.blobs(id))
    }

    /// Reads a content that a session keeps. Blocks on the disk.
    ///
    /// **Errors**: of kind `InvalidData` if the content is damaged.
    pub(crate) fn read_kept_file(&self, id: SessionId, hash: FileHash) -> Result<Vec<u8>, FsError> {
        kept_files::read(&self.shared.paths.blobs(id), hash)
    }

    /// Reads records by number, with their blobs; returns `None` for damaged ones. May block on the disk.
    ///
    /// **Errors**: `Storage` if a file cannot be read, which says nothing about its records.
    pub(crate) fn records(
        &self,
        id: SessionId,
        seqs: &[Seq],
    ) -> Result<Vec<Option<Record>>, SessionError> {
        let (reader, entries) = self.with(id, |session| {
            let entries: Vec<_> = seqs.iter().map(|seq| session.state.entry(*seq)).collect();
            (session.reader(), entries)
        })?;
        let read = |entry: Option<IndexEntry>| entry.map_or(Ok(None), |entry| reader.read(entry));
        let records: Result<Vec<_>, _> = entries.into_iter().map(read).collect();
        let records = records.map_err(|error| SessionError::fs(id, &error))?;
        let reads: Vec<_> =
            seqs.iter().zip(&records).map(|(seq, record)| (*seq, record.is_some())).collect();
        if reads.iter().any(|(_, is_read)| !is_read) {
            // A deletion removes contents that are being read; they are not damaged.
            self.with(id, |_| ())?;
        }
        self.note_reads(id, &reads);
        Ok(records)
    }

    /// Notes which records a reader could read and which it found damaged.
    pub(crate) fn note_reads(&self, id: SessionId, reads: &[(Seq, bool)]) {
        if let Ok(cell) = self.cell(id) {
            cell.note_reads(reads);
        }
    }

    /// Reads the bodies of records by number; returns `None` for damaged ones. May block on the disk.
    pub(crate) fn bodies(
        &self,
        id: SessionId,
        seqs: &[Seq],
    ) -> Result<Vec<Option<RecordBody>>, SessionError> {
        let records = self.records(id, seqs)?;
        Ok(records.into_iter().map(|record| record.and_then(Record::into_body)).collect())
    }

    /// Returns the open sessions that have a log and are not being deleted, as lists show them.
    pub(crate) fn open_summaries(&self) -> Vec<Session> {
        let cells: Vec<_> = self.cells().values().cloned().collect();
        let now = self.shared.clock.now();
        cells.iter().for_each(|cell| cell.recheck());
        cells
            .iter()
            .filter(|cell| !cell.is_deleting())
            .filter_map(|cell| cell.peek(|session| session.summary(now)))
            .filter(|session| !session.draft)
            .collect()
    }

    /// Returns the sessions whose deletion has begun, which no list may show.
    ///
    /// A caller that also needs the open sessions asks for those first: a session whose deletion begins between the
    /// two calls is then in one of the two results.
    pub(crate) fn deleting(&self) -> Vec<SessionId> {
        let cells = self.cells();
        cells.iter().filter(|(_, cell)| cell.is_deleting()).map(|(id, _)| *id).collect()
    }

    /// Returns the path of the session document.
    pub(crate) fn document_path(&self, id: SessionId) -> PathBuf {
        self.shared.paths.document(id)
    }

    /// Closes the sessions that were not used since `before`, and drops drafts that were not used for a day.
    ///
    /// Returns the number of sessions closed or dropped.
    pub(crate) fn close_unused(&self, before: Timestamp) -> usize {
        let mut cells = self.cells();
        let count = cells.len();
        let drop_before = before.unix_ms() - DRAFT_MS;
        cells.retain(|_, cell| {
            let is_old_draft = cell.used_ms() < drop_before && is_unshared(cell) && cell.is_draft();
            !is_old_draft && (cell.used_ms() >= before.unix_ms() || !close(cell))
        });
        count - cells.len()
    }

    /// Returns whether no thread uses a session.
    #[cfg(test)]
    pub(crate) fn are_unused(&self) -> bool {
        self.cells().values().all(is_unshared)
    }

    /// Marks the sessions that were not used since `before` as resting. Blocks on the disk.
    ///
    /// Only sessions that were written since they were opened get a mark, and only one after their last record.
    pub(crate) fn rest_unused(&self, before: Timestamp) {
        let is_unused = |cell: &&Arc<SessionCell>| cell.used_ms() < before.unix_ms();
        let cells: Vec<_> = self.cells().values().filter(is_unused).cloned().collect();
        let marks: Vec<_> = cells.iter().filter_map(SessionCell::rest).collect();
        marks.into_iter().for_each(wait_for_mark);
    }

    /// Marks a session as resting, see [`Sessions::rest_unused`]. Blocks on the disk.
    pub(crate) fn rest(&self, id: SessionId) {
        let cell = self.cells().get(&id).cloned();
        cell.and_then(|cell| cell.rest()).into_iter().for_each(wait_for_mark);
    }

    /// Returns the state of the store. Counts the sessions on disk by reading their directory.
    pub(crate) fn status(&self) -> StoreStatus {
        let cells: Vec<_> = self.cells().values().cloned().collect();
        let open = cells.iter().filter(|cell| cell.peek(|_| ()).is_some()).count();
        let is_log = |name: &&String| name.ends_with(".jsonl");
        let n_logs = self.file_names().map_or(0, |names| names.iter().filter(is_log).count());
        StoreStatus {
            sessions: n_logs as u64,
            open_sessions: open as u64,
            records_written: self.shared.n_records.load(Ordering::Relaxed),
            syncs: self.shared.n_syncs.load(Ordering::Relaxed),
            last_failed_write: self.shared.failed_write.lock().clone(),
        }
    }

    /// Returns the sessions that have a log, with its size in bytes.
    pub(crate) fn log_ids(&self) -> Result<Vec<(SessionId, u64)>, FsError> {
        let names = self.file_names()?;
        let logs = names.iter().filter_map(|name| {
            let id = name.strip_suffix(".jsonl")?.parse().ok()?;
            let file = self.shared.paths.log(id).symlink_metadata().ok()?;
            if !file.is_file() {
                self.shared.report_foreign_name(id);
                return None;
            }
            Some((id, file.len())).filter(|(_, size)| *size > 0)
        });
        Ok(logs.collect())
    }

    /// Returns the names of all files in the directory of sessions.
    pub(super) fn file_names(&self) -> Result<Vec<String>, FsError> {
        fsutil::file_names(&self.shared.paths.dir)
    }
}

/// Waits for a mark. Without it nothing is lost, and the disk's error is in the log of the daemon.
fn wait_for_mark(mark: PendingAppend) {
    drop(mark.wait());
}

/// Returns whether only the map holds a cell. The caller holds the lock of the map, so no clone is made concurrently.
fn is_unshared(cell: &Arc<SessionCell>) -> bool {
    Arc::strong_count(cell) == 1
}

/// Closes an unused cell, so that it can leave the map; returns whether it is closed.
fn close(cell: &Arc<SessionCell>) -> bool {
    is_unshared(cell) && cell.close_if_idle()
}

/// Closes the least recently used sessions until another one can be opened, and queues rest marks for those that may be
/// closed next. Drafts do not count.
fn close_least_used(cells: &mut Cells) {
    if cells.len() < MARK_BEYOND {
        return;
    }
    let n_open = cells.values().filter(|cell| !cell.is_draft()).count();
    close_up_to(cells, (n_open + 1).saturating_sub(MAX_OPEN));
    let unused = cells.values().filter(|cell| !cell.is_draft());
    for cell in unused.take((n_open + 1).saturating_sub(MARK_BEYOND)) {
        // The mark of a cell in use would soon be followed by another record.
        if is_unshared(cell) {
            cell.queue_mark();
        }
    }
}

/// Closes half of the unused sessions, the least recently used first; returns their number.
fn close_half(cells: &mut Cells) -> usize {
    let n_unused = cells.values().filter(|cell| !cell.is_draft() && is_unshared(cell)).count();
    close_up_to(cells, n_unused.div_ceil(2))
}

/// Closes up to `count` unused sessions, the least recently used first; returns their number.
fn close_up_to(cells: &mut Cells, count: usize) -> usize {
    let can_close = |cell: &Arc<SessionCell>| !cell.is_draft() && close(cell);
    let closed = cells.iter().filter(|(_, cell)| can_close(cell)).map(|(id, _)| *id);
    let closed: Vec<SessionId> = closed.take(count).collect();
    for id in &closed {
        cells.remove(id);
    }
    closed.len()
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::{MetaPatch, SessionHeader};

    use super::*;

    #[test]
    fn least_recently_used_sessions_are_closed_and_drafts_stay() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let open = || Sessions::new(dir.path().to_owned(), Arc::new(Clock::system()), Arc::new(()));
        let create = |sessions: &Sessions| {
            let clock = Clock::system();
            let header = SessionHeader::new(clock.session_id(), clock.now());
            let id = header.session_id;
            sessions.create(NewSession { header, key: None }).expect("creates");
            id
        };
        let first = open();
        let write = |id: SessionId| {
            let record = NewRecord::new(RecordBody::Meta(MetaPatch::default()), None);
            let pending = first.append(id, vec![record], None).expect("queues");
            pending.wait().expect("records");
            id
        };
        let ids: Vec<_> = (0..=MAX_OPEN).map(|_| write(create(&first))).collect();

        let sessions = open();
        let draft = create(&sessions);
        let read = |id: SessionId| sessions.summary(id).expect("opens");
        ids[..MAX_OPEN].iter().for_each(|id| drop(read(*id)));
        read(ids[0]);
        assert_eq!(sessions.status().open_sessions, MAX_OPEN as u64 + 1, "with the draft");
        read(ids[MAX_OPEN]);
        let is_open = |id: SessionId| sessions.peek(id, |_| ()).is_some();
        assert_eq!(sessions.status().open_sessions, MAX_OPEN as u64 + 1);
        assert!(is_open(ids[0]) && !is_open(ids[1]) && is_open(ids[2]) && is_open(draft));
    }

    #[test]
    fn sessions_are_marked_before_they_are_closed_to_make_room() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let clock = Arc::new(Clock::system());
        let sessions = Sessions::new(dir.path().to_owned(), Arc::clone(&clock), Arc::new(()));
        let write = || {
            let header = SessionHeader::new(clock.session_id(), clock.now());
            let id = header.session_id;
            sessions.create(NewSession { header, key: None }).expect("creates");
            let record = NewRecord::new(RecordBody::Meta(MetaPatch::default()), None);
            sessions.append(id, vec![record], None).expect("queues").wait().expect("records");
            id
        };
        let n_marks = |id: SessionId| {
            let log = std::fs::read_to_string(sessions.shared.paths.log(id)).expect("reads");
            log.matches("\"type\":\"rest\"").count()
        };
        let ids: Vec<_> = (0..MARK_BEYOND + 8).map(|_| write()).collect();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while ids[..8].iter().any(|id| n_marks(*id) == 0) {
            assert!(std::time::Instant::now() < end, "no marks");
            std::thread::yield_now();
        }
        assert_eq!(sessions.status().open_sessions, ids.len() as u64, "none had to be closed");
        assert_eq!(n_marks(ids[ids.len() - 1]), 0, "the last one is in use");
        assert_eq!(sessions.status().records_written, 2 * ids.len() as u64, "without the marks");
        let _newer: Vec<_> = (ids.len()..=MAX_OPEN).map(|_| write()).collect();
        assert!(sessions.peek(ids[0], |_| ()).is_none(), "it made room");
        assert_eq!(n_marks(ids[0]), 1);
    }

    #[test]
    fn drafts_are_limited_by_the_bytes_of_their_headers() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let clock = Arc::new(Clock::system());
        let sessions = Sessions::new(dir.path().to_owned(), Arc::clone(&clock), Arc::new(()));
        let create = |bytes: usize| {
            let mut header = SessionHeader::new(clock.session_id(), clock.now());
            header.system_prompt = Some("x".repeat(bytes));
            let id = header.session_id;
            sessions.create(NewSession { header, key: None }).map(|_| id)
        };
        let first = create(MAX_DRAFT_BYTES / 2).expect("creates");
        create(1000).expect("creates");
        let refused = create(MAX_DRAFT_BYTES / 2);
        assert!(matches!(refused, Err(SessionError::TooManyDrafts { drafts: 2, .. })));
        let record = NewRecord::new(RecordBody::Meta(MetaPatch::default()), None);
        sessions.append(first, vec![record], None).expect("queues").wait().expect("records");
        create(MAX_DRAFT_BYTES / 2).expect("the first one is no draft any more");
    }
}
