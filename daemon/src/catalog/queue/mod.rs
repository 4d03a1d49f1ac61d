//! What the writer thread has to do next, and how others wait for it.
//!
//! Bounded by the number of sessions: a session that changes again while it waits is one item. Must not know
//! what the work is. The lock is held for a few instructions and never across I/O.

mod pending;

use std::collections::HashSet;
use std::sync::mpsc::SyncSender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;

use super::CatalogError;
use pending::{Choice, Pending};

/// What is to be cleaned up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unclean {
    /// Sessions whose rows are gone and whose words may still be in the files.
    pub sessions: usize,
    /// Shards of the index are to be merged.
    pub shards: bool,
    /// The journal holds what no transaction brought to its end, which may be of a session that is gone.
    pub journal: bool,
}

/// The shortest time from one batch to the next, so that a conversation is indexed in transactions of several
/// records. The first change after a pause does not wait.
const PACE: Duration = Duration::from_millis(500);
/// Changes after which the next batch does not wait for [`PACE`].
const EAGER_MARKS: usize = 256;
/// How long after a failed batch the next one is tried: a full disk stays full for a while.
const RETRY: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(5) };
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
    /// Takes one answer, where somebody waits for it.
    pub reply: Option<SyncSender<Result<(), CatalogError>>>,
}

/// The next thing to do.
pub(super) enum Job {
    /// Take sessions and index them.
    Index,
    /// Remove a session.
    Forget(Forget),
    /// Do a slice of the cleaning up.
    Clean,
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

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session changed.
    pub(super) fn mark(&self, id: SessionId) {
        let mut pending = self.lock();
        pending.forgotten.remove(&id);
        pending.hidden.remove(&id);
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
        // Ids are mostly by time, and the index takes documents in the order of time best.
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_unstable_by_key(|(id, _)| *id);
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
        for id in &forget.ids {
            pending.drop_session(*id);
            pending.hidden.insert(*id);
        }
        pending.forgets.push_back(forget);
        drop(pending);
        self.wake.notify_one();
        Ok(())
    }

    /// Drops changes that came while a removal was under way; one that failed is tried again.
    pub(super) fn forgotten(&self, ids: &[SessionId], rows_are_gone: bool) {
        let mut pending = self.lock();
        for id in ids {
            pending.drop_session(*id);
            if rows_are_gone {
                pending.hidden.remove(id);
            } else {
                pending.hidden.insert(*id);
            }
        }
        if !rows_are_gone {
            pending.stuck.extend(ids);
            pending.retry_at = Some(Instant::now() + RETRY);
            drop(pending);
            self.wake.notify_one();
        }
    }

    /// Sessions that must not be shown though they have rows.
    pub(super) fn hidden(&self) -> HashSet<SessionId> {
        self.lock().hidden.clone()
    }

    /// Whether somebody waits for a removal, for which a long batch is ended early.
    pub(super) fn is_urgent(&self) -> bool {
        !self.lock().forgets.is_empty()
    }

    /// Says what is to be cleaned up.
    pub(super) fn set_unclean(&self, unclean: Unclean) {
        self.lock().unclean = unclean;
    }

    /// A transaction was given up.
    pub(super) fn note_stale_journal(&self) {
        self.lock().unclean.journal = true;
    }

    /// Sessions that were removed and of which something may still be in the files.
    pub(super) fn unclean(&self) -> usize {
        let pending = self.lock();
        let asked: usize = pending.forgets.iter().map(|forget| forget.ids.len()).sum();
        pending.unclean.sessions + pending.stuck.len() + asked
    }

    /// Waits until nothing of removed sessions is in the files; false when `deadline` came first.
    pub(super) fn wait_clean(&self, deadline: Instant) -> bool {
        self.wait(deadline, Pending::is_clean)
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
        self.lock().waiters += 1;
        self.wake.notify_one();
        let is_done = self.wait(deadline, Pending::is_done);
        self.lock().waiters -= 1;
        is_done
    }

    fn wait(&self, deadline: Instant, is_over: impl Fn(&Pending) -> bool) -> bool {
        let mut pending = self.lock();
        while !is_over(&pending) && !pending.dead {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            pending =
                self.done.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        is_over(&pending)
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
                    // Nobody who waits for what was recorded has to wait for the cleaning up.
                    pending.working = !matches!(job, Job::Clean);
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
