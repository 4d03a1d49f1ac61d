//! What the writer thread has to do next, and how others wait for it.
//!
//! Bounded by the number of sessions: a session that changes again while it waits is one item. Must not know
//! what the work is. The lock is held for a few instructions and never across I/O.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;

use super::CatalogError;

/// The shortest time from one batch to the next, so that a conversation is indexed in transactions of several
/// records. The first change after a pause does not wait.
const PACE: Duration = Duration::from_millis(500);
/// Changes after which the next batch does not wait for [`PACE`].
const EAGER_MARKS: usize = 256;
/// How long after a failed batch the next one is tried: a full disk stays full for a while.
const RETRY: Duration = Duration::from_secs(5);
/// How long nothing is asked before memory is given back, once.
const REST: Duration = Duration::from_secs(3);
/// How long a shutdown goes on indexing what is waiting; the rest is found again at the next start.
const LAST_WORK: Duration = Duration::from_millis(300);

/// What to do for a session that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Ask the source what is new.
    Update,
    /// Only go on with the text of records that are known.
    Text,
}

/// A request to remove sessions, and where to answer.
pub(super) struct Forget {
    /// The sessions.
    pub ids: Vec<SessionId>,
    /// Takes exactly one answer.
    pub reply: SyncSender<Result<(), CatalogError>>,
}

/// The next thing to do.
pub(super) enum Job {
    /// Take sessions and index them.
    Index,
    /// Remove a session.
    Forget(Forget),
    /// Compare the catalog with the logs.
    Check,
    /// The file is damaged: make another one.
    Recover,
    /// Nothing was asked for a while.
    Rest,
    /// Leave.
    Close,
}

/// See the module's description.
#[derive(Default)]
pub(super) struct Queue {
    pending: Mutex<Pending>,
    /// Something is to be done.
    wake: Condvar,
    /// Something was done.
    done: Condvar,
}

#[derive(Default)]
struct Pending {
    needs: HashMap<SessionId, Need>,
    order: VecDeque<SessionId>,
    /// Taken for a batch that is not committed.
    taken: Vec<(SessionId, Need)>,
    /// Their source failed; they wait for the next change.
    failed: HashSet<SessionId>,
    /// Removed and not changed since, so that a check does not bring them back.
    forgotten: HashSet<SessionId>,
    forgets: VecDeque<Forget>,
    /// When to compare with the logs.
    check_at: Option<Instant>,
    checking: bool,
    recover: bool,
    working: bool,
    rested: bool,
    marks: usize,
    waiters: usize,
    last_batch: Option<Instant>,
    retry_at: Option<Instant>,
    closing: Option<Instant>,
    dead: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session changed.
    pub(super) fn mark(&self, id: SessionId) {
        let mut pending = self.lock();
        pending.forgotten.remove(&id);
        pending.failed.remove(&id);
        let was_empty = pending.needs.is_empty();
        pending.add(id, Need::Update);
        // Anything else does not change what the writer waits for, and waking it for every record would cost
        // each of them a switch of threads.
        let is_news = was_empty || pending.marks == EAGER_MARKS;
        drop(pending);
        if is_news {
            self.wake.notify_one();
        }
    }

    /// A check found that these differ; those that were removed meanwhile stay removed.
    pub(super) fn mark_found(&self, found: impl IntoIterator<Item = (SessionId, Need)>) {
        let mut pending = self.lock();
        for (id, need) in found {
            if !pending.forgotten.contains(&id) {
                pending.add(id, need);
            }
        }
    }

    /// Asks for a removal. What changed before it is of no interest any more.
    pub(super) fn ask_forget(&self, forget: Forget) -> Result<(), CatalogError> {
        let mut pending = self.lock();
        if pending.dead || pending.closing.is_some() {
            return Err(CatalogError::Closed);
        }
        forget.ids.iter().for_each(|id| pending.drop_session(*id));
        pending.forgets.push_back(forget);
        drop(pending);
        self.wake.notify_one();
        Ok(())
    }

    /// Drops changes that came while a removal was under way.
    pub(super) fn forgotten(&self, ids: &[SessionId]) {
        let mut pending = self.lock();
        ids.iter().for_each(|id| pending.drop_session(*id));
    }

    /// Asks for a comparison with the logs, now or after a while; who waits for the catalog does not wait so long.
    pub(super) fn ask_check(&self, after: Duration) {
        self.lock().check_at = Some(Instant::now() + after);
        self.wake.notify_one();
    }

    /// Asks for another file.
    pub(super) fn ask_recover(&self) {
        self.lock().recover = true;
        self.wake.notify_one();
    }

    /// Another file was made: errors of the one before it are settled.
    pub(super) fn recovered(&self) {
        self.lock().recover = false;
    }

    /// Asks the writer to leave.
    pub(super) fn close(&self) {
        self.lock().closing.get_or_insert_with(|| Instant::now() + LAST_WORK);
        self.wake.notify_one();
    }

    /// The writer is gone: nobody waits for it any more.
    pub(super) fn die(&self) {
        let mut pending = self.lock();
        pending.dead = true;
        // Dropping a request answers it: its receiver sees the other end gone.
        pending.forgets.clear();
        drop(pending);
        self.done.notify_all();
    }

    /// Sessions whose newest records are not in the catalog.
    pub(super) fn behind(&self) -> usize {
        let pending = self.lock();
        let unchecked = usize::from(pending.check_at.is_some() || pending.checking);
        pending.needs.len() + pending.taken.len() + pending.failed.len() + unchecked
    }

    /// Whether the logs are still to be compared with the rows, so that a session may be unknown.
    pub(super) fn is_checking(&self) -> bool {
        let pending = self.lock();
        pending.check_at.is_some() || pending.checking
    }

    /// A comparison that was under way is done: what it found is marked.
    pub(super) fn check_done(&self) {
        self.lock().checking = false;
    }

    /// Waits until nothing is left to do; false when `deadline` came first.
    pub(super) fn wait_done(&self, deadline: Instant) -> bool {
        let mut pending = self.lock();
        pending.waiters += 1;
        self.wake.notify_one();
        while !pending.is_done() && !pending.dead {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            pending =
                self.done.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        pending.waiters -= 1;
        pending.is_done()
    }

    /// Waits for something to do. Without work it sleeps until it is woken.
    pub(super) fn next(&self) -> Job {
        let mut pending = self.lock();
        pending.working = false;
        self.done.notify_all();
        loop {
            let now = Instant::now();
            let wait = match pending.choose(now) {
                Choice::Do(job) => {
                    pending.working = true;
                    return job;
                }
                Choice::WaitUntil(at) => Some(at.saturating_duration_since(now)),
                Choice::Wait => None,
            };
            pending = match wait {
                Some(time) => {
                    self.wake.wait_timeout(pending, time).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(pending).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Takes the session that waits longest into the batch under way.
    pub(super) fn take(&self) -> Option<(SessionId, Need)> {
        let mut pending = self.lock();
        let id = pending.order.pop_front()?;
        let need = pending.needs.remove(&id)?;
        pending.taken.push((id, need));
        Some((id, need))
    }

    /// Puts a session back in front, with more of its text to do.
    pub(super) fn put_back(&self, id: SessionId) {
        let mut pending = self.lock();
        if pending.needs.contains_key(&id) {
            return;
        }
        pending.needs.insert(id, Need::Text);
        pending.order.push_front(id);
        pending.marks = pending.marks.max(EAGER_MARKS);
    }

    /// The source could not give a session.
    pub(super) fn fail(&self, id: SessionId) {
        self.lock().failed.insert(id);
    }

    /// The batch is committed.
    pub(super) fn batch_done(&self) {
        let mut pending = self.lock();
        pending.taken.clear();
        pending.last_batch = Some(Instant::now());
        pending.retry_at = None;
        if pending.needs.is_empty() {
            pending.marks = 0;
        }
    }

    /// The batch was given up: its sessions wait again, and the next try is later.
    pub(super) fn batch_failed(&self) {
        let mut pending = self.lock();
        for (id, need) in std::mem::take(&mut pending.taken) {
            pending.add(id, need);
        }
        pending.retry_at = Some(Instant::now() + RETRY);
    }
}

enum Choice {
    Do(Job),
    WaitUntil(Instant),
    Wait,
}

impl Pending {
    fn add(&mut self, id: SessionId, need: Need) {
        self.marks = self.marks.saturating_add(1);
        self.rested = false;
        match self.needs.insert(id, need) {
            None => self.order.push_back(id),
            Some(before) if before != need => {
                self.needs.insert(id, Need::Update);
            }
            Some(_) => {}
        }
    }

    fn drop_session(&mut self, id: SessionId) {
        self.forgotten.insert(id);
        self.failed.remove(&id);
        if self.needs.remove(&id).is_some() {
            self.order.retain(|other| *other != id);
        }
    }

    fn is_done(&self) -> bool {
        self.needs.is_empty()
            && self.taken.is_empty()
            && self.forgets.is_empty()
            && !(self.check_at.is_some() || self.recover || self.working)
    }

    fn choose(&mut self, now: Instant) -> Choice {
        // Whoever asks for work has finished the last.
        self.checking = false;
        if let Some(forget) = self.forgets.pop_front() {
            return Choice::Do(Job::Forget(forget));
        }
        if let Some(last_work) = self.closing {
            let more = !self.needs.is_empty() && self.retry_at.is_none() && now < last_work;
            return Choice::Do(if more && !self.recover { Job::Index } else { Job::Close });
        }
        if let Some(at) = self.retry_at.filter(|at| *at > now) {
            return Choice::WaitUntil(at);
        }
        if std::mem::take(&mut self.recover) {
            return Choice::Do(Job::Recover);
        }
        if self.check_at.is_some_and(|at| self.waiters > 0 || at <= now) {
            self.check_at = None;
            self.checking = true;
            return Choice::Do(Job::Check);
        }
        let wait = self.choose_index(now);
        match (wait, self.check_at) {
            (Choice::WaitUntil(until), Some(at)) => Choice::WaitUntil(until.min(at)),
            (Choice::Wait, Some(at)) => Choice::WaitUntil(at),
            (choice, _) => choice,
        }
    }

    fn choose_index(&mut self, now: Instant) -> Choice {
        if self.needs.is_empty() {
            return self.choose_rest(now);
        }
        let due = self.last_batch.map_or(now, |at| at + PACE);
        if self.waiters > 0 || self.marks >= EAGER_MARKS || due <= now {
            return Choice::Do(Job::Index);
        }
        Choice::WaitUntil(due)
    }

    fn choose_rest(&mut self, now: Instant) -> Choice {
        match self.last_batch.map(|at| at + REST) {
            Some(at) if !self.rested && at <= now => {
                self.rested = true;
                Choice::Do(Job::Rest)
            }
            Some(at) if !self.rested => Choice::WaitUntil(at),
            _ => Choice::Wait,
        }
    }
}
