//! The work queue of the writer thread, and the condition variables by which callers wait for that thread.
//!
//! A session is queued at most once, so the queue is bounded by the number of sessions. It must not know how the
//! work is done.
//!
//! **Invariant**: the lock is held for a few instructions and never across I/O.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use hashlink::LinkedHashMap;
use ollm_protocol::SessionId;
use ollm_protocol::content::CatalogStatus;
use parking_lot::{Condvar, Mutex};

use super::error::CatalogError;

/// The shortest time between two batches, so that one transaction takes in several records of a conversation. The
/// first change after a pause does not wait.
const BATCH_INTERVAL: Duration = Duration::from_millis(500);
/// Number of changes that start the next batch before [`BATCH_INTERVAL`] has passed.
const EAGER_CHANGES: usize = 256;
/// The pause after a failed job: a full disk stays full for a while.
const RETRY_DELAY: Duration =
    if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(5) };
/// The pause before a log that could not be read is read again; it doubles with every failure.
const SOURCE_RETRY_DELAY: Duration =
    if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(2) };
/// The longest pause before a log that could not be read is read again.
const MAX_SOURCE_RETRY_DELAY: Duration = Duration::from_secs(300);
/// The shortest time between two attempts to read texts that could not be read.
const GAP_RETRY_INTERVAL: Duration =
    if cfg!(test) { Duration::ZERO } else { Duration::from_secs(1) };
/// The idle time after which the writer gives memory back, once.
const MEMORY_RELEASE_DELAY: Duration =
    if cfg!(test) { Duration::from_millis(100) } else { Duration::from_secs(3) };
/// The time for which a shutdown continues to index queued sessions; the next start finds the others.
const CLOSE_GRACE: Duration = Duration::from_millis(300);

/// The next job of the writer thread.
pub(super) enum CatalogJob {
    /// Take sessions from the queue and index them.
    Index,
    Forget(ForgetRequest),
    /// Do one slice of the cleanup after removals.
    CleanUp,
    /// Compare the catalog with the logs.
    Check,
    /// Read the whole file, because it may be damaged.
    CheckFile,
    /// Replace the damaged file.
    Recover,
    /// Give memory back after a while without work.
    ReleaseMemory,
    /// End the thread.
    Close,
}

/// The work that a queued session needs, the least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum IndexNeed {
    /// Only continue to index the text of records that are already described.
    Text,
    /// Ask the source for new records.
    Update,
    /// Ask the source for all records, because those that are described may be wrong.
    Whole,
}

/// A session that the source could not read.
#[derive(Clone, Copy, Debug)]
struct FailedSession {
    need: IndexNeed,
    retry_at: Instant,
}

/// A request to remove sessions.
pub(super) struct ForgetRequest {
    pub ids: Vec<SessionId>,
    /// Receives the result; `None` for a retry, which has no caller.
    pub reply: Option<SyncSender<Result<(), CatalogError>>>,
}

/// The cleanup that removals and failed transactions left to do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingCleanup {
    /// Number of sessions whose rows are removed and whose words may still be in the files.
    pub sessions: usize,
    /// Whether shards of the full-text index are to be merged.
    pub shards: bool,
    /// Whether the journal may hold pages that no transaction committed. They may belong to a removed session.
    pub journal: bool,
}

/// The state that `daemon.status` reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CatalogState {
    #[default]
    Ready,
    Rebuilding,
    Unavailable,
}

impl CatalogState {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Rebuilding => "rebuilding",
            Self::Unavailable => "unavailable",
        }
    }
}

/// The queue of work for the writer thread.
#[derive(Default)]
pub(super) struct WorkQueue {
    state: Mutex<IndexQueueState>,
    /// Wakes the writer when there is work.
    wake: Condvar,
    /// Wakes callers that wait for the writer when a job has ended.
    done: Condvar,
}

/// Methods for the handle.
impl WorkQueue {
    /// Queues a session that changed.
    pub(super) fn mark_changed(&self, id: SessionId, need: IndexNeed) {
        let mut state = self.state.lock();
        state.forgotten.remove(&id);
        state.hidden.remove(&id);
        let missed = state.failed.remove(&id).or_else(|| state.unusable.remove(&id));
        let need = missed.map_or(need, |failed| failed.need.max(need));
        let was_empty = state.needs.is_empty();
        state.add(id, need);
        // The writer has to react only to the first change and to the last one before a batch is due. Waking it for
        // every record would cost a thread switch each.
        if was_empty || state.n_changes == EAGER_CHANGES {
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Queues a removal, and drops the earlier changes of these sessions.
    pub(super) fn request_forget(&self, request: ForgetRequest) -> Result<(), CatalogError> {
        let mut state = self.state.lock();
        if state.writer_exited || state.close_by.is_some() {
            return Err(CatalogError::Closed);
        }
        for id in &request.ids {
            state.drop_session(*id);
            state.hidden.insert(*id);
        }
        state.forget_requests.push_back(request);
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// Requests a comparison with the logs after a delay. A caller of [`Self::wait_caught_up`] ends the delay.
    pub(super) fn request_check(&self, after: Duration) {
        self.state.lock().check_at = Some(Instant::now() + after);
        self.wake.notify_one();
    }

    /// Queues the sessions with texts that could not be read, unless that was done a moment ago.
    pub(super) fn retry_gaps(&self) {
        let mut state = self.state.lock();
        let now = Instant::now();
        if state.gaps.is_empty() || state.gaps_retry_at.is_some_and(|at| at > now) {
            return;
        }
        state.gaps_retry_at = Some(now + GAP_RETRY_INTERVAL);
        for id in std::mem::take(&mut state.gaps) {
            state.add(id, IndexNeed::Text);
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Requests a check of the whole file.
    pub(super) fn request_check_of_file(&self) {
        self.state.lock().check_file = true;
        self.wake.notify_one();
    }

    /// Requests the replacement of the damaged file.
    pub(super) fn request_recovery(&self) {
        self.state.lock().recover = true;
        self.wake.notify_one();
    }

    /// Asks the writer to end.
    pub(super) fn close(&self) {
        self.state.lock().close_by.get_or_insert_with(|| Instant::now() + CLOSE_GRACE);
        self.wake.notify_one();
    }

    /// Returns the sessions that must not be shown although they still have rows.
    pub(super) fn hidden(&self) -> HashSet<SessionId> {
        self.state.lock().hidden.clone()
    }

    /// Returns the status of the catalog, whose files have this size.
    pub(super) fn status(&self, size_bytes: u64) -> CatalogStatus {
        let state = self.state.lock();
        CatalogStatus {
            state: state.state.as_str().to_owned(),
            behind: state.behind() as u64,
            size_bytes,
            forgetting: (state.cleanup.sessions + state.hidden.len()) as u64,
            unusable: state.unusable.len() as u64,
        }
    }

    /// Returns whether every session with a log is known to the catalog.
    pub(super) fn knows_all(&self) -> bool {
        let state = self.state.lock();
        state.state == CatalogState::Ready && !state.is_check_outstanding()
    }

    /// Returns the number of sessions whose newest records are not in the catalog.
    pub(super) fn behind(&self) -> usize {
        self.state.lock().behind()
    }

    /// Waits until nothing of a removed session is in the files; returns false when `deadline` passes first.
    pub(super) fn wait_clean(&self, deadline: Instant) -> bool {
        self.wait(deadline, IndexQueueState::is_clean)
    }

    /// Waits until no damage is suspected that was not examined and repaired; returns false when `deadline` passes first,
    /// or if the repair failed.
    pub(super) fn wait_repaired(&self, deadline: Instant) -> bool {
        self.wait(deadline, |state| !(state.recover || state.check_file || state.is_repairing))
    }

    /// Waits until all queued work is done, cleanup excepted; returns false when `deadline` passes first.
    pub(super) fn wait_caught_up(&self, deadline: Instant) -> bool {
        self.state.lock().waiters += 1;
        self.wake.notify_one();
        let is_caught_up = self.wait(deadline, IndexQueueState::is_caught_up);
        self.state.lock().waiters -= 1;
        is_caught_up
    }

    fn wait(&self, deadline: Instant, is_over: impl Fn(&IndexQueueState) -> bool) -> bool {
        let mut state = self.state.lock();
        while !is_over(&state) && !state.writer_exited {
            if self.done.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        is_over(&state)
    }
}

/// Methods for the writer thread.
impl WorkQueue {
    /// Waits for the next job. Without work the thread sleeps until it is woken.
    pub(super) fn next_job(&self) -> CatalogJob {
        let mut state = self.state.lock();
        loop {
            match state.decide(Instant::now()) {
                Decision::Run(job) => {
                    // `wait_caught_up` does not wait for cleanup.
                    state.is_working = !matches!(job, CatalogJob::CleanUp);
                    state.is_repairing = matches!(job, CatalogJob::CheckFile | CatalogJob::Recover);
                    return job;
                }
                Decision::WaitUntil(at) => {
                    self.wake.wait_until(&mut state, at);
                }
                Decision::Wait => self.wake.wait(&mut state),
            }
        }
    }

    /// Ends a job that succeeded.
    pub(super) fn job_done(&self) {
        let mut state = self.state.lock();
        state.is_working = false;
        state.is_checking = false;
        state.is_repairing = false;
        let is_caught_up = state.behind() == 0;
        if is_caught_up || state.state == CatalogState::Unavailable {
            state.state = if is_caught_up { CatalogState::Ready } else { CatalogState::Rebuilding };
        }
        drop(state);
        self.done.notify_all();
    }

    /// Ends a job that failed: its sessions are queued again, and the next attempt is delayed.
    ///
    /// The replacement of the file is not delayed, unless it is what failed.
    pub(super) fn job_failed(&self, was_recovery: bool) {
        let mut state = self.state.lock();
        state.is_working = false;
        state.is_checking = false;
        state.is_repairing = false;
        state.state = CatalogState::Unavailable;
        state.cleanup.journal = true;
        for (id, need) in std::mem::take(&mut state.taken) {
            state.add(id, need);
        }
        if was_recovery || !(state.recover || state.check_file) {
            state.retry_at = Some(Instant::now() + RETRY_DELAY);
        }
        drop(state);
        self.done.notify_all();
    }

    /// Takes the session that has waited longest into the current batch.
    pub(super) fn take_session(&self) -> Option<(SessionId, IndexNeed)> {
        let mut state = self.state.lock();
        let taken = state.needs.pop_front()?;
        state.taken.push(taken);
        Some(taken)
    }

    /// Puts a session back in front because the batch was full before all its text was indexed.
    pub(super) fn put_back(&self, id: SessionId) {
        let mut state = self.state.lock();
        if !state.needs.contains_key(&id) {
            state.needs.insert_front(id, IndexNeed::Text);
            state.n_changes = state.n_changes.max(EAGER_CHANGES);
        }
    }

    /// Notes that the source could not read a session, which is tried again later; an unusable one at its next change.
    pub(super) fn source_failed(&self, id: SessionId, need: IndexNeed, is_usable: bool) {
        let mut state = self.state.lock();
        let n_failures = state.failures.get(&id).copied().unwrap_or_default();
        let delay = SOURCE_RETRY_DELAY.saturating_mul(1 << n_failures.min(16));
        let retry_at = Instant::now() + delay.min(MAX_SOURCE_RETRY_DELAY);
        let failed = FailedSession { need, retry_at };
        if is_usable {
            state.failures.insert(id, n_failures + 1);
            state.failed.insert(id, failed);
        } else {
            state.unusable.insert(id, failed);
        }
    }

    /// Notes that the source could read a session, and whether texts are missing all the same.
    pub(super) fn source_succeeded(&self, id: SessionId, has_gaps: bool) {
        let mut state = self.state.lock();
        state.failures.remove(&id);
        if has_gaps {
            state.gaps.insert(id);
        }
    }

    /// Notes that the current batch is committed.
    pub(super) fn batch_committed(&self) {
        let mut state = self.state.lock();
        state.taken.clear();
        state.last_batch_at = Some(Instant::now());
        state.retry_at = None;
        if state.needs.is_empty() {
            state.n_changes = 0;
        }
    }

    /// Returns whether a removal waits, for which a long batch ends early.
    pub(super) fn has_forget_request(&self) -> bool {
        !self.state.lock().forget_requests.is_empty()
    }

    /// Ends a removal. Drops changes that were marked during it; a failed removal is retried.
    pub(super) fn forget_done(&self, ids: &[SessionId], succeeded: bool) {
        let mut state = self.state.lock();
        for id in ids {
            state.drop_session(*id);
            if succeeded {
                state.hidden.remove(id);
            } else {
                state.hidden.insert(*id);
            }
        }
        if !succeeded {
            state.retry_at = Some(Instant::now() + RETRY_DELAY);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Queues the sessions that a comparison found to be outdated, except those removed since then.
    pub(super) fn add_outdated(&self, found: impl IntoIterator<Item = (SessionId, IndexNeed)>) {
        // The index takes documents best in the order of time, by which ids are mostly ordered.
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_unstable_by_key(|(id, _)| *id);
        let mut state = self.state.lock();
        for (id, need) in found {
            if !state.forgotten.contains(&id) {
                state.add(id, need);
            }
        }
    }

    pub(super) fn set_cleanup(&self, cleanup: PendingCleanup) {
        self.state.lock().cleanup = cleanup;
    }

    /// Returns [`PendingCleanup::journal`].
    pub(super) fn is_journal_stale(&self) -> bool {
        self.state.lock().cleanup.journal
    }

    pub(super) fn set_state(&self, state: CatalogState) {
        self.state.lock().state = state;
    }

    /// Notes that the file was replaced: requests for recovery concern the old file, and a comparison with the logs
    /// fills the new one.
    pub(super) fn recovered(&self, cleanup: PendingCleanup) {
        let mut state = self.state.lock();
        state.recover = false;
        state.check_file = false;
        state.gaps.clear();
        state.cleanup = cleanup;
        state.check_at = Some(Instant::now());
    }

    /// Notes that the writer thread ended, and wakes all waiting callers.
    pub(super) fn writer_exited(&self) {
        let mut state = self.state.lock();
        state.writer_exited = true;
        state.state = CatalogState::Unavailable;
        // Dropping a request closes its channel, which its caller reads as an error.
        state.forget_requests.clear();
        drop(state);
        self.done.notify_all();
    }
}

#[derive(Default)]
struct IndexQueueState {
    /// The waiting sessions, in the order in which they are indexed.
    needs: LinkedHashMap<SessionId, IndexNeed>,
    /// Sessions of the batch that is not committed yet.
    taken: Vec<(SessionId, IndexNeed)>,
    /// Sessions that the source could not read and that are tried again.
    failed: HashMap<SessionId, FailedSession>,
    /// Sessions whose log cannot be read until somebody changes it. They do not count as behind.
    unusable: HashMap<SessionId, FailedSession>,
    /// Number of failures of each session since it could be read.
    failures: HashMap<SessionId, u32>,
    /// Sessions with texts that could not be read.
    gaps: HashSet<SessionId>,
    gaps_retry_at: Option<Instant>,
    /// Sessions that were removed and not changed since then; a comparison does not bring them back.
    forgotten: HashSet<SessionId>,
    /// Sessions whose removal was requested and has not succeeded yet.
    hidden: HashSet<SessionId>,
    forget_requests: VecDeque<ForgetRequest>,
    cleanup: PendingCleanup,
    /// Whether the last job was a slice of cleanup.
    cleaned_last: bool,
    check_at: Option<Instant>,
    is_checking: bool,
    recover: bool,
    check_file: bool,
    is_working: bool,
    /// Set while the file is checked as a whole or replaced.
    is_repairing: bool,
    released_memory: bool,
    state: CatalogState,
    /// Number of changes since the queue was last empty.
    n_changes: usize,
    /// Number of callers in [`WorkQueue::wait_caught_up`].
    waiters: usize,
    last_batch_at: Option<Instant>,
    /// The time from which the writer may work again after a failure.
    retry_at: Option<Instant>,
    /// Set by a shutdown: the time at which the writer ends at the latest.
    close_by: Option<Instant>,
    writer_exited: bool,
}

/// The next step of the writer thread.
enum Decision {
    Run(CatalogJob),
    /// Sleep until that instant unless woken.
    WaitUntil(Instant),
    /// Sleep until woken.
    Wait,
}

impl IndexQueueState {
    fn add(&mut self, id: SessionId, need: IndexNeed) {
        self.n_changes = self.n_changes.saturating_add(1);
        self.released_memory = false;
        match self.needs.get_mut(&id) {
            Some(queued) => *queued = need.max(*queued),
            None => {
                self.needs.insert(id, need);
            }
        }
    }

    /// Drops the work for a session that is being removed.
    fn drop_session(&mut self, id: SessionId) {
        self.forgotten.insert(id);
        self.failed.remove(&id);
        self.failures.remove(&id);
        self.unusable.remove(&id);
        self.gaps.remove(&id);
        self.needs.remove(&id);
    }

    fn behind(&self) -> usize {
        let check = usize::from(self.is_check_outstanding());
        self.needs.len() + self.taken.len() + self.failed.len() + check
    }

    /// Returns whether a comparison with the logs is outstanding, so that sessions may be missing.
    const fn is_check_outstanding(&self) -> bool {
        self.check_at.is_some() || self.is_checking
    }

    fn is_clean(&self) -> bool {
        let PendingCleanup { sessions, journal, shards: _ } = self.cleanup;
        sessions == 0 && !journal && self.hidden.is_empty() && self.forget_requests.is_empty()
    }

    fn is_caught_up(&self) -> bool {
        self.needs.is_empty()
            && self.taken.is_empty()
            && self.forget_requests.is_empty()
            && !(self.check_at.is_some() || self.recover || self.check_file || self.is_working)
    }

    /// Chooses the next job, the most urgent first.
    fn decide(&mut self, now: Instant) -> Decision {
        if let Some(request) = self.forget_requests.pop_front() {
            return Decision::Run(CatalogJob::Forget(request));
        }
        if let Some(close_by) = self.close_by {
            let can_index = !self.needs.is_empty() && self.retry_at.is_none() && !self.recover;
            let job =
                if can_index && now < close_by { CatalogJob::Index } else { CatalogJob::Close };
            return Decision::Run(job);
        }
        if let Some(at) = self.retry_at.filter(|at| *at > now) {
            return Decision::WaitUntil(at);
        }
        // No request is queued, so these are the sessions whose removal failed.
        if !self.hidden.is_empty() && !self.recover && !self.check_file {
            self.retry_at = None;
            let ids = self.hidden.iter().copied().collect();
            return Decision::Run(CatalogJob::Forget(ForgetRequest { ids, reply: None }));
        }
        // Cleanup alternates with all other work, so that neither delays the other for long.
        let PendingCleanup { sessions, shards, journal } = self.cleanup;
        let can_clean = (sessions > 0 || shards || journal) && !self.recover && !self.check_file;
        if can_clean && !std::mem::take(&mut self.cleaned_last) {
            self.cleaned_last = true;
            return Decision::Run(CatalogJob::CleanUp);
        }
        match self.decide_work(now) {
            Decision::Wait | Decision::WaitUntil(_) if can_clean => {
                Decision::Run(CatalogJob::CleanUp)
            }
            decision => decision,
        }
    }

    fn decide_work(&mut self, now: Instant) -> Decision {
        if std::mem::take(&mut self.recover) {
            return Decision::Run(CatalogJob::Recover);
        }
        if std::mem::take(&mut self.check_file) {
            return Decision::Run(CatalogJob::CheckFile);
        }
        self.requeue_failed(now);
        if self.check_at.is_some_and(|at| self.waiters > 0 || at <= now) {
            self.check_at = None;
            self.is_checking = true;
            return Decision::Run(CatalogJob::Check);
        }
        let decision = if self.needs.is_empty() {
            self.decide_memory_release(now)
        } else {
            self.decide_index(now)
        };
        let retry_at = self.failed.values().map(|failed| failed.retry_at).min();
        match (decision, self.check_at.into_iter().chain(retry_at).min()) {
            (Decision::WaitUntil(until), Some(at)) => Decision::WaitUntil(until.min(at)),
            (Decision::Wait, Some(at)) => Decision::WaitUntil(at),
            (decision, _) => decision,
        }
    }

    /// Queues the sessions again that could not be read and whose pause is over.
    fn requeue_failed(&mut self, now: Instant) {
        let due: Vec<_> = self.failed.extract_if(|_, failed| failed.retry_at <= now).collect();
        for (id, failed) in due {
            self.add(id, failed.need);
        }
    }

    fn decide_index(&self, now: Instant) -> Decision {
        let due = self.last_batch_at.map_or(now, |at| at + BATCH_INTERVAL);
        if self.waiters > 0 || self.n_changes >= EAGER_CHANGES || due <= now {
            Decision::Run(CatalogJob::Index)
        } else {
            Decision::WaitUntil(due)
        }
    }

    fn decide_memory_release(&mut self, now: Instant) -> Decision {
        match self.last_batch_at.map(|at| at + MEMORY_RELEASE_DELAY) {
            Some(due) if !self.released_memory && due <= now => {
                self.released_memory = true;
                Decision::Run(CatalogJob::ReleaseMemory)
            }
            Some(due) if !self.released_memory => Decision::WaitUntil(due),
            _ => Decision::Wait,
        }
    }
}
