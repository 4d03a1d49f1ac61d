//! One session: the queue of its writes, the fold, and the writer of its log.
//!
//! Writes wait in the queue. A thread of the sync pool takes all waiting writes as one batch, with one append
//! and one sync (group commit).
//!
//! **Invariants**: the order is append, sync, apply to the fold, announce, reply. After a failed write the file is
//! closed, and the next write first truncates it to the last acknowledged byte. The writer's lock is held for a
//! whole batch and while the session is opened; the lock of the fold is never held during an append or a sync.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use ollm_protocol::content::{RecordBody, Session, SnapshotMark};
use ollm_protocol::{Seq, SessionId, SnapshotId};
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use super::error::{LogError, SessionError};
use super::index::{ScanPoint, ScannedRecord};
use super::log::recover::ScanEnd;
use super::log::{LogFile, LogReader};
use super::open_session::OpenSession;
use super::plan::{WritePlan, WritePlanner, WriteRequest, send_reply};
use super::shared::StoreShared;
use super::write::{NewRecord, NewSession, PendingAppend, SessionChange};
use crate::error_chain::with_sources;
use crate::fsutil;

/// Maximum number of requests in the queue of a session; far above what a client sends before it reads a reply.
const MAX_WAITING: usize = 4096;
/// Maximum number of requests in a batch, so that the first one does not wait for megabytes of others.
const MAX_BATCH: usize = 256;
/// Bytes of a torn tail that are copied at once. A tail can have any size if another program appended to the log.
const COPY_BYTES: usize = 256 * 1024;

/// A session with a log, open or closed, or a draft.
pub(super) struct SessionCell {
    pub(super) id: SessionId,
    shared: Arc<StoreShared>,
    queue: Mutex<WriteQueue>,
    writer: Mutex<LogWriter>,
    /// The fold, `None` while the session is closed.
    open: RwLock<Option<OpenSession>>,
    /// Whether the session has no log yet; read without waiting for the lock of the fold.
    draft: AtomicBool,
    /// The size of the header of a draft in bytes of JSON, which is in memory only.
    header_bytes: usize,
    used_ms: AtomicI64,
}

#[derive(Default)]
struct WriteQueue {
    waiting: VecDeque<WriteRequest>,
    /// Whether a thread of the pool runs the cell or has a job to do so.
    running: bool,
    deleting: bool,
}

#[derive(Default)]
struct LogWriter {
    /// The log, open for writing; `None` before the first write and after a failed one.
    log: Option<Box<dyn LogFile>>,
    /// The length to truncate the log to after a failed write: the bytes after it were never acknowledged.
    cut_to: Option<u64>,
    /// A new log, opened for reading before anything in it is acknowledged.
    reader: Option<LogReader>,
}

impl SessionCell {
    /// Returns the cell of a session that has a log, or of a draft, with the size of its header in bytes.
    pub(super) fn new(
        shared: Arc<StoreShared>,
        id: SessionId,
        draft: Option<(NewSession, usize)>,
    ) -> Arc<Self> {
        let blobs = shared.paths.blobs(id);
        let header_bytes = draft.as_ref().map_or(0, |(_, bytes)| *bytes);
        let open = draft.map(|(draft, _)| OpenSession::draft(draft, blobs));
        let draft = AtomicBool::new(open.is_some());
        let used_ms = AtomicI64::new(shared.clock.now().unix_ms());
        Arc::new(Self {
            id,
            shared,
            queue: Mutex::default(),
            writer: Mutex::default(),
            open: RwLock::new(open),
            draft,
            header_bytes,
            used_ms,
        })
    }

    /// Queues a request; its reply is sent by the writer, or here if it is refused.
    pub(super) fn submit(self: &Arc<Self>, request: WriteRequest) {
        let id = self.id;
        let mut queue = self.queue.lock();
        let waiting = queue.waiting.len();
        let refusal = if queue.deleting {
            Some(SessionError::NotFound { id })
        } else if waiting >= MAX_WAITING {
            Some(SessionError::Busy { id, waiting })
        } else {
            None
        };
        if let Some(refusal) = refusal {
            send_reply(request.reply, Err(refusal));
            return;
        }
        queue.waiting.push_back(request);
        if !queue.running {
            queue.running = true;
            drop(queue);
            self.schedule();
        }
    }

    fn schedule(self: &Arc<Self>) {
        let cell = Arc::clone(self);
        self.shared.pool.submit(Box::new(move || cell.run()));
    }

    /// Writes batches until the queue is empty or other sessions wait for the thread.
    fn run(self: &Arc<Self>) {
        let _turn = TurnGuard(self);
        loop {
            let batch: Vec<WriteRequest> = {
                let mut queue = self.queue.lock();
                let count = queue.waiting.len().min(MAX_BATCH);
                queue.waiting.drain(..count).collect()
            };
            if batch.is_empty() {
                return;
            }
            self.touch();
            self.write(batch);
            if self.shared.pool.is_crowded() {
                return;
            }
        }
    }

    fn write(&self, batch: Vec<WriteRequest>) {
        let mut writer = self.writer.lock();
        // A deletion that began after the batch left the queue has already reported that nothing more is written.
        let ready = if self.is_deleting() {
            Err(SessionError::NotFound { id: self.id })
        } else {
            self.ensure_open().and_then(|()| self.open_writer(&mut writer))
        };
        if let Err(error) = ready {
            self.shared.note_failed_write(&error);
            for request in batch {
                send_reply(request.reply, Err(error.clone()));
            }
            return;
        }
        let plan = {
            let open = self.open.read();
            let Some(open) = open.as_ref() else { return };
            let mut planner = WritePlanner::new(open, &self.shared);
            for request in batch {
                planner.add(request);
            }
            planner.into_plan()
        };
        // The file counts as failed until the fold has the records: after a panic in between, the next write must not
        // append after bytes that the fold does not know.
        let Some(mut log) = writer.log.take() else { return };
        writer.cut_to = Some(plan.start.bytes);
        if let Err(error) = self.make_durable(log.as_mut(), &plan) {
            tracing::error!(session = %self.id, "a write failed: {}", with_sources(&error));
            let error = SessionError::log(self.id, &error);
            self.shared.note_failed_write(&error);
            plan.fail(&error);
            return;
        }
        // A plan whose requests were all refused creates nothing: the reader waits for the one that does.
        let reader = if plan.is_birth { writer.reader.take() } else { None };
        self.finish(plan, reader);
        writer.log = Some(log);
        writer.cut_to = None;
    }

    /// Appends and syncs the bytes of a plan, and the directory of a new log.
    fn make_durable(&self, log: &mut dyn LogFile, plan: &WritePlan) -> Result<(), LogError> {
        if plan.bytes.is_empty() {
            return Ok(());
        }
        let path = self.shared.paths.log(self.id);
        log.append(&plan.bytes).map_err(|source| LogError::io("append to", &path, source))?;
        log.sync().map_err(|source| LogError::io("sync", &path, source))?;
        self.shared.n_syncs.fetch_add(1, Ordering::Relaxed);
        if plan.is_birth {
            let dir = &self.shared.paths.dir;
            self.shared.with_descriptors(|| Ok(fsutil::sync_dir(dir)?))?;
        }
        Ok(())
    }

    /// Applies a durable plan to the fold, announces its records and sends its replies.
    fn finish(&self, plan: WritePlan, reader: Option<LogReader>) {
        let WritePlan { start, end, writes, is_birth, .. } = plan;
        let mut replies = Vec::with_capacity(writes.len());
        let mut announced = Vec::new();
        let mut open = self.open.write();
        let Some(session) = open.as_mut() else { return };
        if let Some(reader) = reader {
            session.set_log(reader);
            self.draft.store(false, Ordering::Relaxed);
        }
        for write in writes {
            for record in write.records {
                session.state.apply(&record);
                announced.push(record);
            }
            if let Some((reply, outcome)) = write.reply {
                replies.push((reply, outcome.into_reply(session)));
            }
        }
        session.state.set_point(end);
        let created = is_birth.then(|| session.summary(self.shared.clock.now()));
        drop(open);
        self.shared.n_records.fetch_add(end.records - start.records, Ordering::Relaxed);
        self.announce(created.as_ref(), &announced);
        for (reply, result) in replies {
            send_reply(reply, result);
        }
    }

    fn announce(&self, created: Option<&Session>, records: &[ScannedRecord]) {
        let observer = &self.shared.observer;
        if let Some(session) = created {
            observer.changed(self.id, &SessionChange::Created(session));
        }
        for ScannedRecord { seq, at, entry, body, .. } in records {
            let Some(body) = body else { continue };
            let (seq, at, tokens) = (*seq, *at, entry.tokens);
            observer.changed(self.id, &SessionChange::Recorded { seq, at, body, tokens });
        }
    }

    /// Calls `read` with the session, which is opened if necessary. Opening blocks on the disk.
    ///
    /// **Errors**: `NotFound`, `Storage`, `UpgradeRequired`.
    pub(super) fn with<T>(&self, read: impl FnOnce(&OpenSession) -> T) -> Result<T, SessionError> {
        if self.is_deleting() {
            return Err(SessionError::NotFound { id: self.id });
        }
        self.touch();
        // What failed once may have been put back.
        self.recheck();
        if let Some(session) = self.open.read().as_ref() {
            return Ok(read(session));
        }
        let guard = self.writer.lock();
        // A deletion that began in the meantime must not open the session again.
        if self.is_deleting() {
            return Err(SessionError::NotFound { id: self.id });
        }
        self.ensure_open()?;
        drop(guard);
        let open = self.open.read();
        open.as_ref().map(read).ok_or(SessionError::NotFound { id: self.id })
    }

    /// Calls `read` with the session if it is open, even during its deletion. Never blocks on the disk.
    pub(super) fn peek<T>(&self, read: impl FnOnce(&OpenSession) -> T) -> Option<T> {
        self.open.read().as_ref().map(read)
    }

    /// Notes which records could be read and which were damaged, and announces what changed.
    pub(super) fn note_reads(&self, reads: &[(Seq, bool)]) {
        let is_known = |session: &OpenSession| {
            session.unreadable().is_empty() && reads.iter().all(|(_, is_read)| *is_read)
        };
        if self.peek(is_known).unwrap_or(true) {
            return;
        }
        let mut open = self.open.write();
        let Some(session) = open.as_mut() else { return };
        let (lost, healed) = session.note_reads(reads);
        let must_reopen = healed > 0 && !session.state.lacking().is_empty();
        drop(open);
        if lost > 0 {
            let change = SessionChange::Recovered { torn_bytes: 0, damaged: lost as u64 };
            self.shared.observer.changed(self.id, &change);
        }
        if must_reopen {
            self.close_for_reopening();
        }
        if healed > 0 {
            self.shared
                .observer
                .changed(self.id, &SessionChange::Healed { records: healed as u64 });
        }
    }

    /// Reads the records again whose last read found them damaged, because a file may have been put back.
    pub(super) fn recheck(&self) {
        let unreadable = self.peek(|session| {
            if session.unreadable().is_empty() {
                return None;
            }
            let entry = |seq: &Seq| Some((*seq, session.state.entry(*seq)?));
            let entries: Vec<_> = session.unreadable().iter().filter_map(entry).collect();
            Some((session.reader(), entries))
        });
        let Some((reader, entries)) = unreadable.flatten() else { return };
        let is_read = |entry| matches!(reader.read(entry), Ok(Some(_)));
        let reads = entries.into_iter().map(|(seq, entry)| (seq, is_read(entry)));
        self.note_reads(&reads.collect::<Vec<_>>());
    }

    /// Closes the log and the fold, which lacks records that can be read now; the next use opens them again.
    fn close_for_reopening(&self) {
        let mut writer = self.writer.lock();
        if writer.cut_to.is_none() {
            writer.log = None;
            *self.open.write() = None;
        }
    }

    /// Refuses all later reads and writes, waits for the running write, and closes the session.
    ///
    /// **Errors**: `NotFound` if the deletion was begun before.
    pub(super) fn begin_delete(&self) -> Result<(), SessionError> {
        let refused: Vec<WriteRequest> = {
            let mut queue = self.queue.lock();
            if queue.deleting {
                return Err(SessionError::NotFound { id: self.id });
            }
            queue.deleting = true;
            queue.waiting.drain(..).collect()
        };
        for request in refused {
            send_reply(request.reply, Err(SessionError::NotFound { id: self.id }));
        }
        let mut writer = self.writer.lock();
        writer.log = None;
        *self.open.write() = None;
        Ok(())
    }

    /// Accepts reads and writes again after [`SessionCell::begin_delete`], when the log could not be renamed.
    pub(super) fn cancel_delete(&self) {
        self.queue.lock().deleting = false;
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.queue.lock().deleting
    }

    /// Returns whether the session has no log yet. Never waits, so the lock of the map may be held.
    pub(super) fn is_draft(&self) -> bool {
        self.draft.load(Ordering::Relaxed)
    }

    /// Returns the size of a draft's header in bytes of JSON.
    pub(super) const fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Returns the time of the last use in milliseconds since 1970.
    pub(super) fn used_ms(&self) -> i64 {
        self.used_ms.load(Ordering::Relaxed)
    }

    fn touch(&self) {
        self.used_ms.store(self.shared.clock.now().unix_ms(), Ordering::Relaxed);
    }

    /// Closes the log and the fold unless the session is in use; returns whether it is closed.
    ///
    /// A draft is never closed, because it exists in memory only.
    pub(super) fn close_if_idle(&self) -> bool {
        let queue = self.queue.lock();
        if queue.running || queue.deleting || !queue.waiting.is_empty() {
            return false;
        }
        let Some(mut writer) = self.writer.try_lock() else { return false };
        let Some(mut open) = self.open.try_write() else { return false };
        let is_draft = open.as_ref().is_some_and(|session| session.draft.is_some());
        if is_draft || writer.cut_to.is_some() {
            return false;
        }
        writer.log = None;
        *open = None;
        true
    }

    /// Queues a mark that the records before it are synced, unless this writer wrote nothing after the last mark. Waits
    /// for a running write. FORMAT.md, "Rest marks".
    pub(super) fn rest(self: &Arc<Self>) -> Option<PendingAppend> {
        // A session that was only read is not written because of that.
        let is_written = self.writer.lock().log.is_some();
        let is_due = is_written && self.peek(OpenSession::needs_rest_mark).unwrap_or_default();
        is_due.then(|| {
            let snapshot_id = SnapshotId::from_uuid(self.shared.clock.uuid());
            let leaf = self.peek(|session| session.state.leaf()).flatten();
            let mark = SnapshotMark { snapshot_id, leaf, reason: SnapshotMark::REST.to_owned() };
            let records = vec![NewRecord::new(RecordBody::Snapshot(mark), None)];
            let (reply, result) = oneshot::channel();
            self.submit(WriteRequest { records, key: None, expected_leaf: None, reply });
            PendingAppend(result)
        })
    }

    /// Opens the fold if it is closed. The caller holds the writer's lock, so that no other thread opens it too.
    fn ensure_open(&self) -> Result<(), SessionError> {
        if self.open.read().is_some() {
            return Ok(());
        }
        let path = self.shared.paths.log(self.id);
        if !self.shared.paths.has_log(self.id) {
            return Err(SessionError::NotFound { id: self.id });
        }
        let blobs = self.shared.paths.blobs(self.id);
        let open = || {
            let log = LogReader::open(&path)?;
            OpenSession::open(self.id, log, blobs.clone(), self.shared.hint(self.id), 0)
        };
        let (session, end) = self
            .shared
            .with_descriptors(open)
            .map_err(|error| SessionError::log(self.id, &error))?;
        if end.point.records == 0 {
            self.shared.set_aside_empty_log(self.id);
            return Err(SessionError::NotFound { id: self.id });
        }
        let ScanEnd { torn_bytes, damaged_places, missing_records, .. } = end;
        let damaged = damaged_places + missing_records + session.unreadable().len() as u64;
        *self.open.write() = Some(session);
        if torn_bytes > 0 || damaged > 0 {
            let change = SessionChange::Recovered { torn_bytes, damaged };
            self.shared.observer.changed(self.id, &change);
        }
        Ok(())
    }

    /// Opens the log for writing if it is closed, and truncates it to the last acknowledged byte.
    fn open_writer(&self, writer: &mut LogWriter) -> Result<(), SessionError> {
        if writer.log.is_some() {
            return Ok(());
        }
        let (is_draft, point) = {
            let open = self.open.read();
            let Some(session) = open.as_ref() else {
                return Err(SessionError::NotFound { id: self.id });
            };
            (session.draft.is_some(), session.state.point())
        };
        let path = self.shared.paths.log(self.id);
        let after_failure = writer.cut_to.is_some();
        // After a failed attempt an empty log may exist.
        let mut after_failure = after_failure;
        let opened = self.shared.with_descriptors(|| {
            if !is_draft {
                return self.reopen_log(&path, point, after_failure);
            }
            let log = self.create_log(&path, after_failure)?;
            after_failure = true;
            writer.reader = Some(LogReader::open(&path)?);
            Ok(log)
        });
        if opened.is_err() && after_failure {
            // The next attempt must not create the log again.
            writer.cut_to.get_or_insert(point.bytes);
        }
        writer.log = Some(opened.map_err(|error| SessionError::log(self.id, &error))?);
        writer.cut_to = None;
        if let Some(session) = self.open.write().as_mut() {
            session.may_be_unsynced = false;
        }
        Ok(())
    }

    /// Creates a log. After a failed write the log of that write is emptied instead.
    fn create_log(&self, path: &Path, after_failure: bool) -> Result<Box<dyn LogFile>, LogError> {
        let create = !(after_failure && path.exists());
        let opened = (self.shared.open_file)(path, create);
        let mut log = opened.map_err(|source| LogError::io("create", path, source))?;
        if !create {
            log.truncate(0).map_err(|source| LogError::io("cut", path, source))?;
        }
        Ok(log)
    }

    /// Opens a log for writing and truncates it to `point`. Saves the torn tail first, unless a failed write left it.
    fn reopen_log(
        &self,
        path: &Path,
        point: ScanPoint,
        after_failure: bool,
    ) -> Result<Box<dyn LogFile>, LogError> {
        let fail = |source| LogError::io("open for writing", path, source);
        let mut log = (self.shared.open_file)(path, false).map_err(fail)?;
        let len = log.len().map_err(fail)?;
        if len < point.bytes {
            let shrank = std::io::Error::other("the file is shorter than what was acknowledged");
            *self.open.write() = None;
            return Err(LogError::io("continue", path, shrank));
        }
        if len > point.bytes {
            if !after_failure {
                self.save_torn_tail(log.as_ref(), path, point.bytes..len)?;
            }
            log.truncate(point.bytes).map_err(|source| LogError::io("cut", path, source))?;
        }
        // A crash may have left data in the system's cache only: bytes of the log, the names of the log and of its
        // blobs. They must be durable before a record claims that they are.
        log.sync().map_err(|source| LogError::io("sync", path, source))?;
        self.sync_names()?;
        Ok(log)
    }

    /// Makes the names of the log and of its blobs durable.
    fn sync_names(&self) -> Result<(), LogError> {
        let blobs = self.shared.paths.blobs(self.id);
        if blobs.exists() {
            fsutil::sync_dir(&blobs)?;
        }
        Ok(fsutil::sync_dir(&self.shared.paths.dir)?)
    }

    /// Makes the records durable that were read and not written by this process: one that was killed may have left them
    /// in the system's cache only. Changes no file. Blocks on the disk.
    pub(super) fn sync(&self) -> Result<(), SessionError> {
        let _writer = self.writer.lock();
        if self.is_deleting() {
            return Err(SessionError::NotFound { id: self.id });
        }
        self.ensure_open()?;
        let Some(log) = self.peek(OpenSession::unsynced_log).flatten() else { return Ok(()) };
        let sync = || {
            log.sync()?;
            self.sync_names()
        };
        let synced = self.shared.with_descriptors(sync);
        synced.map_err(|error| SessionError::log(self.id, &error))?;
        if let Some(session) = self.open.write().as_mut() {
            session.may_be_unsynced = false;
        }
        Ok(())
    }

    fn save_torn_tail(
        &self,
        log: &dyn LogFile,
        path: &Path,
        tail: Range<u64>,
    ) -> Result<(), LogError> {
        let aside = self.shared.paths.torn(self.id, self.shared.clock.now());
        let mut unreadable = None;
        let copied = fsutil::replace_with(&aside, |out| {
            let mut buffer = vec![0; COPY_BYTES];
            for start in tail.clone().step_by(COPY_BYTES) {
                let len = usize::try_from(tail.end - start).unwrap_or(usize::MAX).min(COPY_BYTES);
                let chunk = &mut buffer[..len];
                log.read_at(chunk, start).map_err(|source| {
                    let kind = source.kind();
                    unreadable = Some(source);
                    io::Error::from(kind)
                })?;
                out.write_all(chunk)?;
            }
            Ok(())
        });
        if let Some(source) = unreadable {
            return Err(LogError::io("read the torn tail of", path, source));
        }
        copied?;
        tracing::warn!(session = %self.id, bytes = tail.end - tail.start, "cut a torn tail");
        Ok(())
    }
}

/// A guard that ends a turn even after a panic, so that a queue with requests always has a thread.
struct TurnGuard<'a>(&'a Arc<SessionCell>);

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        if queue.waiting.is_empty() {
            queue.running = false;
            return;
        }
        drop(queue);
        self.0.schedule();
    }
}
