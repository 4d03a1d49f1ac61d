//! Sessions with background work: documents and snapshots to write, and compactions to try.
//!
//! The observer marks sessions here on the writers' threads; three tasks take the marks and do the work. A mark is a
//! state and not a message: a session that is marked twice is worked on once, and no queue can grow.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::SnapshotMark;
use ollm_protocol::{Seq, SessionId, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The wait after the first failed compaction; it doubles with each further failure.
const FIRST_RETRY_WAIT: Duration = Duration::from_secs(30);
/// The longest wait after failed compactions.
const LONGEST_RETRY_WAIT: Duration = Duration::from_secs(1800);
/// The most sessions whose documents, pauses and reports are remembered. A forgotten session only tries again sooner, and
/// its document counts with its size on disk.
const MAX_REMEMBERED: usize = 512;
/// The most snapshots of a session that wait for their files. Of more, only the newest are written, as the cleanup would
/// remove the others.
const MAX_WAITING: usize = 32;

/// Sessions whose document may be due.
#[derive(Default)]
pub(crate) struct DueDocuments {
    state: Mutex<DocumentState>,
    wake: Notify,
    /// Held while a document is written.
    writing: Mutex<()>,
}

#[derive(Default)]
struct DocumentState {
    /// The time at which each changed session will have been idle for long enough.
    due: HashMap<SessionId, Instant>,
    /// The size of each log in bytes when its document was last written.
    written_at: HashMap<SessionId, u64>,
    idle: Duration,
}

impl DueDocuments {
    /// Marks a session as changed.
    pub(crate) fn mark(&self, id: SessionId) {
        let mut state = self.state.lock();
        let was_empty = state.due.is_empty();
        let due = Instant::now() + state.idle;
        state.due.insert(id, due);
        drop(state);
        if was_empty {
            self.wake.notify_one();
        }
    }

    /// Waits until documents are due and takes them. `idle` is how long a session must be unchanged. Cancel safe.
    pub(crate) async fn next(&self, idle: Duration) -> Vec<SessionId> {
        loop {
            self.state.lock().idle = idle;
            let next = self.state.lock().due.values().min().copied();
            match next {
                None => self.wake.notified().await,
                Some(next) => tokio::time::sleep_until(next).await,
            }
            let now = Instant::now();
            let mut state = self.state.lock();
            let due: Vec<_> = state.due.extract_if(|_, due| *due <= now).collect();
            if !due.is_empty() {
                return due.into_iter().map(|(id, _)| id).collect();
            }
        }
    }

    /// Takes every marked session, due or not.
    pub(crate) fn take_all(&self) -> Vec<SessionId> {
        self.state.lock().due.drain().map(|(id, _)| id).collect()
    }

    /// Excludes other writers of documents until the guard is dropped.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock()
    }

    /// Returns the size of a session's log in bytes when its document was last written by this process.
    pub(crate) fn written_at(&self, id: SessionId) -> Option<u64> {
        self.state.lock().written_at.get(&id).copied()
    }

    /// Notes that the document of a log of `log_bytes` was written.
    pub(crate) fn note_written(&self, id: SessionId, log_bytes: u64) {
        let mut state = self.state.lock();
        if state.written_at.len() >= MAX_REMEMBERED && !state.written_at.contains_key(&id) {
            state.written_at.clear();
        }
        state.written_at.insert(id, log_bytes);
    }

    /// Forgets a session that is being deleted. No document is written until the guard is dropped, so that none
    /// appears after the session's files are removed.
    pub(crate) fn forget(&self, id: SessionId) -> MutexGuard<'_, ()> {
        let guard = self.writing.lock();
        let mut state = self.state.lock();
        state.due.remove(&id);
        state.written_at.remove(&id);
        guard
    }
}

/// Sessions whose context may be due for compaction, and what earlier attempts left behind; in memory only.
#[derive(Default)]
pub(crate) struct DueCompactions {
    state: Mutex<CompactionState>,
    wake: Arc<Notify>,
}

#[derive(Default)]
struct CompactionState {
    due: HashSet<SessionId>,
    sessions: HashMap<SessionId, CompactionHistory>,
}

/// What earlier compactions of a session left behind for the decisions of the next one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CompactionHistory {
    /// The compactions that failed in a row.
    pub(crate) n_failures: u32,
    /// The moment at which automatic compactions ask a model again, after a failure.
    retry_at: Option<Instant>,
    /// Set if a summary failed or gave way to a chat, until one succeeds or lines are extracted in its place.
    pub(crate) are_notes_missing: bool,
    /// The running turn has waited for a summary.
    pub(crate) has_waited: bool,
    /// The pause for which a request with a prompt of its own waits, after shorter ones did not suffice. A success leaves
    /// it: behind the chat's prompt, shorter ones suffice.
    pub(crate) needed_pause: Duration,
    /// The last pause that ended before a request was answered for which one is needed.
    pub(crate) short_pause: Option<Duration>,
    /// The reason of the last skipped compaction that was reported, and the newest compaction then.
    skipped: Option<(&'static str, Option<Seq>)>,
}

impl CompactionHistory {
    /// Adds a failed compaction, so that automatic ones wait before they ask a model again.
    pub(crate) fn fail(&mut self) {
        let factor = 1 << self.n_failures.min(10);
        let wait = FIRST_RETRY_WAIT.saturating_mul(factor).min(LONGEST_RETRY_WAIT);
        self.n_failures += 1;
        self.retry_at = Some(Instant::now() + wait);
    }

    /// Adds the summary of a model, and forgets what failures left behind.
    pub(crate) fn succeed(&mut self) {
        let Self { has_waited, needed_pause, short_pause, .. } = *self;
        *self = Self { has_waited, needed_pause, short_pause, ..Self::default() };
    }

    /// Adds a time without chats. If it was as long as the needed pause, none is needed any more.
    pub(crate) fn add_quiet(&mut self, quiet: Duration) {
        if quiet >= self.needed_pause {
            (self.needed_pause, self.short_pause) = (Duration::ZERO, None);
        }
    }

    /// Returns the pause for which a request waits that needs `quiet` without chats. One that fits into the short pauses
    /// waits for no longer one.
    pub(crate) fn needed_pause_for(&self, quiet: Duration) -> Duration {
        let fits = self.short_pause.is_some_and(|short| quiet * 2 <= short);
        if fits { Duration::ZERO } else { self.needed_pause }
    }

    /// Returns whether automatic compactions wait before they ask a model again, after a failure.
    pub(crate) fn awaits_retry(&self) -> bool {
        self.retry_at.is_some_and(|until| Instant::now() < until)
    }

    /// Adds a skipped compaction; returns whether that was not reported to subscribers yet.
    pub(crate) fn skip(&mut self, reason: &'static str, at: Option<Seq>) -> bool {
        self.skipped.replace((reason, at)) != Some((reason, at))
    }
}

impl DueCompactions {
    /// Marks a session as due.
    pub(crate) fn mark(&self, id: SessionId) {
        if self.state.lock().due.insert(id) {
            self.wake.notify_one();
        }
    }

    /// Waits until a session is due that `is_busy` does not refuse, and takes it. Cancel safe.
    ///
    /// A refused session stays due: the caller asks again when the session is no longer busy.
    pub(crate) async fn next(&self, is_busy: impl Fn(SessionId) -> bool) -> SessionId {
        loop {
            {
                let mut state = self.state.lock();
                let free = state.due.iter().copied().find(|id| !is_busy(*id));
                if let Some(id) = free {
                    state.due.remove(&id);
                    return id;
                }
            }
            self.wake.notified().await;
        }
    }

    /// Returns what earlier compactions of a session left behind.
    pub(crate) fn history(&self, id: SessionId) -> CompactionHistory {
        self.state.lock().sessions.get(&id).copied().unwrap_or_default()
    }

    /// Changes what compactions of a session leave behind.
    pub(crate) fn change<T>(
        &self,
        id: SessionId,
        change: impl FnOnce(&mut CompactionHistory) -> T,
    ) -> T {
        let mut state = self.state.lock();
        if state.sessions.len() >= MAX_REMEMBERED && !state.sessions.contains_key(&id) {
            state.sessions.clear();
        }
        change(state.sessions.entry(id).or_default())
    }

    /// Forgets that the running turn of a session has waited for a summary, because the turn ended.
    pub(crate) fn end_turn(&self, id: SessionId) {
        if let Some(history) = self.state.lock().sessions.get_mut(&id) {
            history.has_waited = false;
        }
    }

    /// Forgets a deleted session.
    pub(crate) fn forget(&self, id: SessionId) {
        let mut state = self.state.lock();
        state.due.remove(&id);
        state.sessions.remove(&id);
    }
}

/// A `snapshot` record that is durable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TakenSnapshot {
    pub(crate) seq: Seq,
    pub(crate) at: Timestamp,
    pub(crate) mark: SnapshotMark,
}

/// Sessions with automatic snapshots whose files are not written yet; in memory only.
#[derive(Default)]
pub(crate) struct DueSnapshots {
    /// Ordered, so that a simulation makes the same changes each time.
    state: Mutex<BTreeMap<SessionId, SessionDueSnapshots>>,
    wake: Notify,
    /// Held from the moment at which work is taken until it is done.
    writing: Mutex<()>,
}

/// The snapshots of a session that are due.
#[derive(Debug, Default)]
pub(crate) struct SessionDueSnapshots {
    /// The snapshots without a file, the oldest first.
    pub(crate) taken: Vec<TakenSnapshot>,
    /// Whether the context passed the threshold of an automatic snapshot.
    pub(crate) is_full: bool,
}

impl DueSnapshots {
    /// Marks the file of a snapshot as due.
    pub(crate) fn mark(&self, id: SessionId, taken: TakenSnapshot) {
        self.with(id, |due| {
            if due.taken.len() == MAX_WAITING {
                due.taken.remove(0);
            }
            due.taken.push(taken);
        });
    }

    /// Marks a snapshot of a context that became full as due.
    pub(crate) fn mark_full(&self, id: SessionId) {
        self.with(id, |due| due.is_full = true);
    }

    fn with(&self, id: SessionId, change: impl FnOnce(&mut SessionDueSnapshots)) {
        change(self.state.lock().entry(id).or_default());
        self.wake.notify_one();
    }

    /// Waits until a session has something due. Cancel safe.
    pub(crate) async fn next(&self) -> SessionId {
        loop {
            let next = self.state.lock().keys().next().copied();
            match next {
                Some(id) => return id,
                None => self.wake.notified().await,
            }
        }
    }

    /// Waits until everything that was taken is done, and keeps others from taking more.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock()
    }

    /// Takes what is due for a session.
    pub(crate) fn take(&self, id: SessionId) -> SessionDueSnapshots {
        self.state.lock().remove(&id).unwrap_or_default()
    }

    /// Returns the sessions that have something due.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        self.state.lock().keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> SessionId {
        SessionId::from_uuid(uuid::Uuid::from_u128(number))
    }

    #[test]
    fn sizes_of_written_documents_are_remembered_for_some_sessions_only() {
        let documents = DueDocuments::default();
        for number in 0..10 * MAX_REMEMBERED as u128 {
            documents.note_written(id(number), 7);
            assert_eq!(documents.written_at(id(number)), Some(7));
        }
        assert!(documents.state.lock().written_at.len() <= MAX_REMEMBERED);
    }

    #[tokio::test(start_paused = true)]
    async fn documents_are_due_after_the_idle_time() {
        let documents = DueDocuments::default();
        let idle = Duration::from_secs(2);
        let never = tokio::time::timeout(Duration::ZERO, documents.next(idle)).await;
        assert!(never.is_err(), "no session has changed");
        documents.mark(id(1));
        tokio::time::advance(Duration::from_secs(1)).await;
        documents.mark(id(1));
        documents.mark(id(2));
        let marked = Instant::now();
        assert_eq!(documents.next(idle).await.len(), 2);
        assert_eq!(marked.elapsed().as_secs(), 2);
        documents.mark(id(3));
        drop(documents.forget(id(3)));
        assert!(documents.take_all().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn failed_compactions_pause_for_doubling_times() {
        let mut history = CompactionHistory::default();
        for expected in [30, 60, 120] {
            history.fail();
            tokio::time::advance(Duration::from_secs(expected - 1)).await;
            assert!(history.awaits_retry());
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(!history.awaits_retry());
        }
        history.fail();
        history.succeed();
        assert!(!history.awaits_retry() && history.n_failures == 0);
    }

    #[test]
    fn needed_pause_ends_with_a_pause_as_long() {
        let needed_pause = Duration::from_secs(600);
        let mut history = CompactionHistory { needed_pause, ..CompactionHistory::default() };
        history.succeed();
        history.add_quiet(needed_pause / 2);
        assert_eq!(history.needed_pause, needed_pause, "no such pause yet");
        history.add_quiet(needed_pause);
        assert!(history.needed_pause.is_zero());
        let short_pause = Some(Duration::from_secs(60));
        let history =
            CompactionHistory { needed_pause, short_pause, ..CompactionHistory::default() };
        assert_eq!(history.needed_pause_for(Duration::from_secs(31)), needed_pause);
        assert!(history.needed_pause_for(Duration::from_secs(30)).is_zero(), "it fits");
    }

    #[test]
    fn turn_has_waited_until_it_ends() {
        let compactions = DueCompactions::default();
        compactions.change(id(1), |history| history.has_waited = true);
        compactions.change(id(1), CompactionHistory::succeed);
        assert!(compactions.history(id(1)).has_waited && !compactions.history(id(2)).has_waited);
        compactions.end_turn(id(1));
        assert!(!compactions.history(id(1)).has_waited);
    }

    #[tokio::test]
    async fn busy_session_stays_due() {
        let compactions = DueCompactions::default();
        compactions.mark(id(1));
        compactions.mark(id(2));
        assert_eq!(compactions.next(|busy| busy == id(1)).await, id(2));
        assert_eq!(compactions.next(|_| false).await, id(1));
    }

    #[test]
    fn skip_is_new_once_per_reason_and_compaction() {
        let mut history = CompactionHistory::default();
        for (reason, at, is_new) in [
            ("recent", None, true),
            ("recent", None, false),
            ("paused", None, true),
            ("recent", Some(Seq(3)), true),
        ] {
            assert_eq!(history.skip(reason, at), is_new, "{reason} {at:?}");
        }
    }
}
