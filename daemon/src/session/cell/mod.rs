//! One session: the queue of its writes, the fold, and the writer of its log.
//!
//! Writes wait in the queue. A thread of the sync pool takes all waiting writes as one batch, with one append
//! and one sync (group commit). A change that is planned from the session's state begins a new append.
//!
//! **Invariants**: the order is append, sync, apply to the fold, announce, reply. After a failed write the log is cut
//! back to the last acknowledged byte before its callers know, and nothing is written before that succeeded. The
//! writer's lock is held for a whole batch and while the session is opened; the lock of the fold is never held during
//! an append or a sync. [`log_writer`] has the changes of the log.

mod log_writer;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use ollm_protocol::content::{RecordBody, RestMark, Session};
use ollm_protocol::{Seq, SessionId};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::oneshot;

use super::error::SessionError;
use super::index::ScannedRecord;
use super::log::recover::ScanEnd;
use super::log::{LogFile, LogReader};
use super::open_session::OpenSession;
use super::pending::PendingAppend;
use super::plan::{RequestedChange, WritePlan, WritePlanner, WriteRequest, send_reply};
use super::shared::StoreShared;
use super::write::{NewRecord, NewSession, SessionChange};
use crate::error_chain::with_sources;

/// Maximum number of requests in the queue of a session; far above what a client sends before it reads a reply.
const MAX_WAITING: usize = 4096;
/// Maximum number of requests in a batch, so that the first one does not wait for megabytes of others.
const MAX_BATCH: usize = 256;

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
    /// The number of times that damaged records could be read again.
    heals: AtomicU64,
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
    /// Whether a failed write may have left bytes in the log that were never acknowledged, or a new log of such bytes.
    has_failed: bool,
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
            heals: AtomicU64::new(0),
        })
    }

    /// Opens the session with a fold that its creator made, before any other caller knows the id.
    pub(super) fn set_open(&self, session: OpenSession) {
        *self.open.write() = Some(session);
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

    /// Writes a batch, in one append, or in one for each planned change and what follows it: a plan sees everything
    /// before it applied.
    fn write(&self, batch: Vec<WriteRequest>) {
        let mut writer = self.writer.lock();
        let mut batch = VecDeque::from(batch);
        while !batch.is_empty() {
            let n_appended = batch.iter().skip(1).take_while(|request| !request.is_planned());
            let n_requests = 1 + n_appended.count();
            self.write_part(&mut writer, batch.drain(..n_requests));
        }
    }

    /// Writes requests in one append. Only the first one can be planned.
    fn write_part(&self, writer: &mut LogWriter, requests: impl Iterator<Item = WriteRequest>) {
        // A deletion that began after the batch left the queue has already reported that nothing more is written.
        let ready = if self.is_deleting() {
            Err(SessionError::NotFound { id: self.id })
        } else {
            self.ensure_open().and_then(|()| self.open_writer(writer))
        };
        if let Err(error) = ready {
            self.shared.note_failed_write(&error);
            for request in requests {
                send_reply(request.reply, Err(error.clone()));
            }
            return;
        }
        let mut plan = {
            let open = self.open.read();
            let Some(open) = open.as_ref() else { return };
            let mut planner = WritePlanner::new(open, &self.shared);
            for request in requests {
                planner.add(request);
            }
            planner.into_plan()
        };
        let (log, reader) = match self.make_durable(writer, &plan) {
            Ok(written) => written,
            Err(error) => {
                tracing::error!(session = %self.id, "a write failed: {}", with_sources(&error));
                self.take_back(writer);
                match writer.has_failed {
                    true => plan.leave_new_blobs(),
                    false => plan.remove_new_blobs(),
                }
                let error = SessionError::log(self.id, &error);
                self.shared.note_failed_write(&error);
                plan.fail(&error);
                return;
            }
        };
        // Without bytes, all requests were refused, or their keys were known.
        match plan.bytes.is_empty() {
            true => plan.remove_new_blobs(),
            false => plan.keep_new_blobs(),
        }
        self.finish(plan, reader);
        writer.log = log;
        writer.has_failed = false;
    }

    /// Applies a durable plan to the fold, announces its records and sends its replies.
    fn finish(&self, plan: WritePlan, reader: Option<LogReader>) {
        let WritePlan { start, end, writes, is_birth, .. } = plan;
        let mut replies = Vec::with_capacity(writes.len());
        let mut announced = Vec::new();
        let mut n_marks = 0;
        let mut open = self.open.write();
        let Some(session) = open.as_mut() else { return };
        if let Some(reader) = reader {
            session.set_log(reader);
            self.draft.store(false, Ordering::Relaxed);
        }
        for write in writes {
            for record in write.records {
                session.state.apply(&record);
                n_marks += u64::from(record.entry.is_of_log());
                announced.push(record);
            }
            if let Some((reply, outcome)) = write.reply {
                replies.push((reply, outcome.into_reply(session)));
            }
        }
        session.state.set_point(end);
        let created = is_birth.then(|| session.summary(self.shared.clock.now()));
        drop(open);
        let n_records = end.records - start.records - n_marks;
        self.shared.n_records.fetch_add(n_records, Ordering::Relaxed);
        // The records are durable, so their callers get the results even if the observer has a bug.
        let announced = catch_unwind(AssertUnwindSafe(|| {
            self.announce(created.as_ref(), &announced);
        }));
        if announced.is_err() {
            tracing::error!(session = %self.id, "the observer of durable records panicked");
        }
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
        let open = self.opened()?;
        open.as_ref().map(read).ok_or(SessionError::NotFound { id: self.id })
    }

    /// Opens the session if necessary. It may be closed again before it is locked, for its deletion only.
    fn opened(&self) -> Result<RwLockReadGuard<'_, Option<OpenSession>>, SessionError> {
        if self.is_deleting() {
            return Err(SessionError::NotFound { id: self.id });
        }
        self.touch();
        // A record that could not be read may be readable again.
        self.recheck();
        let open = self.open.read();
        if open.is_some() {
            return Ok(open);
        }
        drop(open);
        let guard = self.writer.lock();
        // A deletion that began in the meantime must not open the session again.
        if self.is_deleting() {
            return Err(SessionError::NotFound { id: self.id });
        }
        self.ensure_open()?;
        drop(guard);
        Ok(self.open.read())
    }

    /// Calls `read` with the session if it is open, even during its deletion. Never blocks on the disk.
    pub(super) fn peek<T>(&self, read: impl FnOnce(&OpenSession) -> T) -> Option<T> {
        self.open.read().as_ref().map(read)
    }

    /// Returns how often damaged records could be read again.
    pub(super) fn n_heals(&self) -> u64 {
        self.heals.load(Ordering::SeqCst)
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
            self.heals.fetch_add(1, Ordering::SeqCst);
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
        if !writer.has_failed {
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
        if is_draft || writer.has_failed {
            return false;
        }
        writer.log = None;
        *open = None;
        true
    }

    /// Closes the log and the fold after a panic, which may have left the fold without a part of what was written. The
    /// next use reads the log. A draft has none and stays.
    fn close_after_panic(&self) {
        self.writer.lock().log = None;
        if !self.is_draft() {
            *self.open.write() = None;
        }
    }

    /// Queues a mark that the records before it are synced, unless this writer wrote nothing after the last mark. Waits
    /// for a running write. FORMAT.md, "Rest marks".
    pub(super) fn rest(self: &Arc<Self>) -> Option<PendingAppend> {
        // A session that was only read is not written because of that.
        let is_written = self.writer.lock().log.is_some();
        is_written.then(|| self.submit_mark()).flatten()
    }

    /// Queues a mark like [`SessionCell::rest`], unless the session is in use. Never waits, so the lock of the map may be
    /// held.
    pub(super) fn queue_mark(self: &Arc<Self>) {
        let is_written = self.writer.try_lock().is_some_and(|writer| writer.log.is_some());
        // The session goes on if nobody waits for its mark.
        drop(is_written.then(|| self.submit_mark()));
    }

    fn submit_mark(self: &Arc<Self>) -> Option<PendingAppend> {
        let is_due = self.peek(OpenSession::needs_rest_mark).unwrap_or_default();
        is_due.then(|| {
            let records = vec![NewRecord::new(RecordBody::Rest(RestMark {}), None)];
            let (reply, result) = oneshot::channel();
            self.submit(WriteRequest {
                change: RequestedChange::Append(records),
                key: None,
                reply,
            });
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
}

/// A guard that ends a turn even after a panic, so that a queue with requests always has a thread.
struct TurnGuard<'a>(&'a Arc<SessionCell>);

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close_after_panic();
        }
        let mut queue = self.0.queue.lock();
        if queue.waiting.is_empty() {
            queue.running = false;
            return;
        }
        drop(queue);
        self.0.schedule();
    }
}
