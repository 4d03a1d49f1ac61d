//! One session's writer: append, sync, apply, announce, reply, in that order.
//!
//! Writes wait in the queue; whichever sync thread takes the cell's turn writes all that wait with one append
//! and one sync (group commit). A failed write latches: the file is closed, and the next write first cuts it
//! back to what was acknowledged.

mod open;

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use ollm_protocol::content::Session;
use ollm_protocol::{Seq, SessionId};
use parking_lot::{Mutex, RwLock};

use super::command::{Command, tell};
use super::live::Live;
use super::log::file::LogFile;
use super::log::{LogError, Scanned};
use super::plan::{Plan, Planner};
use super::shared::Shared;
use super::{Birth, Change, SessionError};
use crate::error_chain::with_sources;
use crate::fsutil;

/// Most writes that wait for one session; more than any honest client sends before it reads a reply.
const MAX_WAITING: usize = 4096;
/// Most writes in one append, so that the first of them does not wait for megabytes of others.
const MAX_BATCH: usize = 256;

/// A session's queue, fold and file.
pub(super) struct Cell {
    /// The session.
    pub(super) id: SessionId,
    shared: Arc<Shared>,
    queue: Mutex<Queue>,
    writer: Mutex<Writer>,
    live: RwLock<Option<Live>>,
    used_ms: AtomicI64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Command>,
    running: bool,
    deleting: bool,
}

/// The file, as long as nothing failed.
#[derive(Default)]
struct Writer {
    log: Option<Box<dyn LogFile>>,
    /// Set by a failed write: what follows these bytes was never acknowledged.
    cut_to: Option<u64>,
    /// A new log, opened for reading before anything in it is acknowledged.
    reader: Option<File>,
}

impl Cell {
    /// A cell for a session that has a log, or for a new one that has not.
    pub(super) fn new(shared: Arc<Shared>, id: SessionId, birth: Option<Birth>) -> Arc<Self> {
        let blobs = shared.paths.blobs(id);
        let live = birth.map(|birth| Live::draft(birth, blobs));
        let used_ms = AtomicI64::new(shared.clock.now().unix_ms());
        Arc::new(Self {
            id,
            shared,
            queue: Mutex::default(),
            writer: Mutex::default(),
            live: RwLock::new(live),
            used_ms,
        })
    }

    /// Queues a write; the reply comes through the command.
    pub(super) fn submit(self: &Arc<Self>, command: Command) {
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
            tell(command.reply, Err(refusal));
            return;
        }
        queue.waiting.push_back(command);
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

    /// Writes what waits until nothing does, or until other sessions wait for the thread.
    fn run(self: &Arc<Self>) {
        let _turn = TurnGuard(self);
        loop {
            let batch: Vec<Command> = {
                let mut queue = self.queue.lock();
                let count = queue.waiting.len().min(MAX_BATCH);
                queue.waiting.drain(..count).collect()
            };
            if batch.is_empty() {
                return;
            }
            self.used_ms.store(self.shared.clock.now().unix_ms(), Ordering::Relaxed);
            self.write(batch);
            if self.shared.pool.is_crowded() {
                return;
            }
        }
    }

    fn write(&self, batch: Vec<Command>) {
        let mut writer = self.writer.lock();
        // A delete that began after this batch left the queue has already been told that nothing is written.
        let ready = if self.is_deleting() {
            Err(SessionError::NotFound { id: self.id })
        } else {
            self.open_locked().and_then(|()| self.open_writer(&mut writer))
        };
        if let Err(error) = ready {
            self.shared.note_failed_write(&error);
            for command in batch {
                tell(command.reply, Err(error.clone()));
            }
            return;
        }
        let plan = {
            let live = self.live.read();
            let Some(live) = live.as_ref() else { return };
            let mut planner = Planner::new(live, &self.shared);
            for command in batch {
                planner.add(command);
            }
            planner.into_plan()
        };
        // Until the fold has the records, the file counts as failed: a panic in between must not let the next
        // write go on behind bytes that nobody knows.
        let Some(mut log) = writer.log.take() else { return };
        writer.cut_to = Some(plan.start.bytes);
        if let Err(error) = self.make_durable(log.as_mut(), &plan) {
            tracing::error!(session = %self.id, "a write failed: {}", with_sources(&error));
            let error = SessionError::log(self.id, &error);
            self.shared.note_failed_write(&error);
            plan.fail(&error);
            return;
        }
        self.finish(plan, writer.reader.take());
        writer.log = Some(log);
        writer.cut_to = None;
    }

    /// Appends and syncs; for a new session the directory too.
    fn make_durable(&self, log: &mut dyn LogFile, plan: &Plan) -> Result<(), LogError> {
        if plan.bytes.is_empty() {
            return Ok(());
        }
        let path = self.shared.paths.log(self.id);
        log.append(&plan.bytes).map_err(|source| LogError::io("append to", &path, source))?;
        log.sync().map_err(|source| LogError::io("sync", &path, source))?;
        self.shared.stats.syncs.fetch_add(1, Ordering::Relaxed);
        if plan.is_birth {
            fsutil::sync_dir(&self.shared.paths.dir)?;
        }
        Ok(())
    }

    /// Applies, announces and replies; everything in `plan` is durable.
    fn finish(&self, plan: Plan, reader: Option<File>) {
        let Plan { start, end, steps, is_birth, .. } = plan;
        let mut replies = Vec::with_capacity(steps.len());
        let mut announced = Vec::new();
        let mut slot = self.live.write();
        let Some(live) = slot.as_mut() else { return };
        if let Some(reader) = reader.filter(|_| is_birth) {
            live.attach(reader);
        }
        live.torn_bytes = 0;
        for step in steps {
            for scanned in step.records {
                live.state.apply(&scanned);
                announced.push(scanned);
            }
            if let Some((reply, outcome)) = step.reply {
                replies.push((reply, outcome.complete(live)));
            }
        }
        live.state.set_point(end);
        let born = is_birth.then(|| live.summary(self.shared.clock.now()));
        drop(slot);
        self.shared.stats.records.fetch_add(end.records - start.records, Ordering::Relaxed);
        self.announce(born.as_ref(), &announced);
        for (reply, result) in replies {
            tell(reply, result);
        }
    }

    fn announce(&self, born: Option<&Session>, records: &[Scanned]) {
        let observer = &self.shared.observer;
        if let Some(session) = born {
            observer.changed(self.id, &Change::Created(session));
        }
        for Scanned { seq, at, entry, body, .. } in records {
            let Some(body) = body else { continue };
            let (seq, at, tokens) = (*seq, *at, entry.tokens);
            observer.changed(self.id, &Change::Recorded { seq, at, body, tokens });
        }
    }

    /// Calls `read` with the open session.
    ///
    /// **Errors**: `NotFound`, `Storage`, `UpgradeRequired`. May block on the disk when it is not open.
    pub(super) fn with<T>(&self, read: impl FnOnce(&Live) -> T) -> Result<T, SessionError> {
        if self.is_deleting() {
            return Err(SessionError::NotFound { id: self.id });
        }
        self.used_ms.store(self.shared.clock.now().unix_ms(), Ordering::Relaxed);
        if let Some(live) = self.live.read().as_ref() {
            return Ok(read(live));
        }
        let guard = self.writer.lock();
        self.open_locked()?;
        drop(guard);
        let live = self.live.read();
        live.as_ref().map(read).ok_or(SessionError::NotFound { id: self.id })
    }

    /// Calls `read` with the session if it is open, even while it is being deleted; never blocks on the disk.
    pub(super) fn peek<T>(&self, read: impl FnOnce(&Live) -> T) -> Option<T> {
        self.live.read().as_ref().map(read)
    }

    /// Notes that records that were whole cannot be read any more, and tells whoever wants to know.
    pub(super) fn note_unreadable(&self, seqs: &[Seq]) {
        let mut live = self.live.write();
        let Some(live) = live.as_mut() else { return };
        let new = seqs.iter().filter(|seq| live.state.note_unreadable(**seq)).count();
        if new > 0 {
            let change = Change::Recovered { torn_bytes: 0, damaged: new as u64 };
            self.shared.observer.changed(self.id, &change);
        }
    }

    /// Refuses every later write and read, waits for the running write, and closes everything.
    ///
    /// **Errors**: `NotFound` when it was begun before.
    pub(super) fn begin_delete(&self) -> Result<(), SessionError> {
        let refused: Vec<Command> = {
            let mut queue = self.queue.lock();
            if queue.deleting {
                return Err(SessionError::NotFound { id: self.id });
            }
            queue.deleting = true;
            queue.waiting.drain(..).collect()
        };
        for command in refused {
            tell(command.reply, Err(SessionError::NotFound { id: self.id }));
        }
        let mut writer = self.writer.lock();
        writer.log = None;
        *self.live.write() = None;
        Ok(())
    }

    /// Whether it is being deleted.
    pub(super) fn is_deleting(&self) -> bool {
        self.queue.lock().deleting
    }

    /// Whether nothing of it is on disk yet.
    pub(super) fn is_draft(&self) -> bool {
        self.peek(|live| live.birth.is_some()).unwrap_or_default()
    }

    /// Takes back [`Cell::begin_delete`] after the log could not be renamed.
    pub(super) fn cancel_delete(&self) {
        self.queue.lock().deleting = false;
    }

    /// When it was last used, in milliseconds since 1970.
    pub(super) fn used_ms(&self) -> i64 {
        self.used_ms.load(Ordering::Relaxed)
    }

    /// Closes file and fold unless something is going on; drafts stay, for they are nowhere else.
    pub(super) fn close_if_idle(&self) -> bool {
        let queue = self.queue.lock();
        if queue.running || queue.deleting || !queue.waiting.is_empty() {
            return false;
        }
        let Some(mut writer) = self.writer.try_lock() else { return false };
        let Some(mut live) = self.live.try_write() else { return false };
        let is_draft = live.as_ref().is_some_and(|live| live.birth.is_some());
        if is_draft || writer.cut_to.is_some() {
            return false;
        }
        writer.log = None;
        *live = None;
        true
    }
}

/// Ends a turn whatever happens in it, so that a panic cannot leave the queue without a thread.
struct TurnGuard<'a>(&'a Arc<Cell>);

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
