//! The state of hooks besides their files: new sessions whose hooks are due, running and repeated occasions, and how each
//! hook ran last. In memory only.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ollm_protocol::SessionId;
use ollm_protocol::content::{HookInput, HookOccasion, HookRun};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::shutdown::Tasks;

/// The hooks that run at once; each is a process or two.
const MAX_RUNNING: usize = 8;
/// The most hooks whose last run, and whose missing trust, is remembered.
const MAX_REMEMBERED: usize = 256;
/// The most new sessions whose hooks wait; the hooks of others do not run.
const MAX_STARTING: usize = 1024;
/// The most sessions whose files are followed for hooks. A further one takes the place of the one that was unused for longest.
const MAX_FOLLOWED: usize = 32;

/// The state of hooks.
pub(crate) struct HookRuns {
    state: Mutex<State>,
    wake: Notify,
    /// Held while a hook runs.
    pub(super) permits: Semaphore,
    /// Set once a task runs the hooks of new sessions.
    is_following: AtomicBool,
}

#[derive(Default)]
struct State {
    /// New sessions whose hooks are due.
    due: VecDeque<SessionId>,
    /// Sessions whose first prompt waits for hooks, until the token is canceled.
    starting: HashMap<SessionId, CancellationToken>,
    last: HashMap<PathBuf, HookRun>,
    /// Hooks whose missing trust was reported, with their digests.
    reported: HashSet<(PathBuf, String)>,
    /// Running occasions, each with the input of the next run.
    running: HashMap<(SessionId, &'static str), Option<HookInput>>,
    /// The sessions whose files are followed.
    followed: HashMap<SessionId, FollowedSession>,
}

/// A session whose files are followed.
struct FollowedSession {
    used: Instant,
    /// Canceled when another session takes its place.
    end: CancellationToken,
}

impl Default for HookRuns {
    fn default() -> Self {
        let permits = Semaphore::new(MAX_RUNNING);
        Self {
            state: Mutex::default(),
            wake: Notify::new(),
            permits,
            is_following: AtomicBool::default(),
        }
    }
}

impl HookRuns {
    /// Notes that a task runs the hooks of new sessions from now on.
    pub(crate) fn begin(&self) {
        self.is_following.store(true, Ordering::Relaxed);
    }

    /// Returns whether hooks of occasions run.
    pub(crate) fn has_begun(&self) -> bool {
        self.is_following.load(Ordering::Relaxed)
    }

    /// Marks the hooks of a session as due that is new or was moved before its first record; its first prompt waits for them.
    pub(crate) fn mark_started(&self, id: SessionId) {
        let mut state = self.state.lock();
        // Another token would leave those waiting that have the first one.
        let is_starting = state.starting.contains_key(&id);
        if !self.has_begun() || is_starting || state.starting.len() >= MAX_STARTING {
            return;
        }
        state.starting.insert(id, CancellationToken::new());
        state.due.push_back(id);
        drop(state);
        self.wake.notify_one();
    }

    /// Waits for a new session whose hooks are due, and takes it. Cancel safe.
    pub(crate) async fn next_started(&self) -> SessionId {
        loop {
            let next = self.state.lock().due.pop_front();
            match next {
                Some(id) => return id,
                None => self.wake.notified().await,
            }
        }
    }

    /// Lets the first prompt of a session go on.
    pub(crate) fn end_start(&self, id: SessionId) {
        if let Some(token) = self.state.lock().starting.remove(&id) {
            token.cancel();
        }
    }

    /// Waits for the hooks of a session if it is new.
    pub(crate) async fn wait_for_start(&self, id: SessionId, tasks: &Tasks) {
        let token = self.state.lock().starting.get(&id).cloned();
        if let Some(token) = token {
            tokio::select! {
                () = token.cancelled() => {}
                () = tasks.stopping() => {}
            }
        }
    }

    /// Keeps how a hook ran.
    pub(crate) fn note_run(&self, path: &Path, run: HookRun) {
        let mut state = self.state.lock();
        if state.last.len() >= MAX_REMEMBERED && !state.last.contains_key(path) {
            state.last.clear();
        }
        state.last.insert(path.to_owned(), run);
    }

    /// Returns how a hook ran last.
    pub(crate) fn last_run(&self, path: &Path) -> Option<HookRun> {
        self.state.lock().last.get(path).cloned()
    }

    /// Returns whether the missing trust of a hook was not reported yet, and notes that it is now.
    pub(crate) fn is_new_report(&self, path: &Path, digest: &str) -> bool {
        let mut state = self.state.lock();
        if state.reported.len() >= MAX_REMEMBERED {
            state.reported.clear();
        }
        state.reported.insert((path.to_owned(), digest.to_owned()))
    }

    /// Begins an occasion of a session and returns its input. Returns `None` while it runs: then it runs once more behind,
    /// with the newest input.
    pub(crate) fn begin_occasion(&self, input: HookInput) -> Option<HookInput> {
        let mut state = self.state.lock();
        match state.running.get_mut(&key_of(input.session_id, input.occasion)) {
            None => {
                state.running.insert(key_of(input.session_id, input.occasion), None);
                Some(input)
            }
            Some(next) => {
                *next = Some(input);
                None
            }
        }
    }

    /// Ends a run of an occasion and returns the input of the next one, which begins.
    pub(crate) fn next_occasion(&self, id: SessionId, occasion: HookOccasion) -> Option<HookInput> {
        let mut state = self.state.lock();
        let next = state.running.get_mut(&key_of(id, occasion)).and_then(Option::take);
        if next.is_none() {
            state.running.remove(&key_of(id, occasion));
        }
        next
    }

    /// Notes that a session is used. If its files have to be followed from now on, returns the token that is canceled when
    /// another session takes its place.
    pub(crate) fn begin_following(&self, id: SessionId) -> Option<CancellationToken> {
        let mut state = self.state.lock();
        let used = Instant::now();
        if let Some(followed) = state.followed.get_mut(&id) {
            followed.used = used;
            return None;
        }
        if state.followed.len() >= MAX_FOLLOWED {
            let oldest = state.followed.iter().min_by_key(|(_, followed)| followed.used);
            let oldest = oldest.map(|(oldest, _)| *oldest);
            let removed = oldest.and_then(|oldest| state.followed.remove_entry(&oldest));
            if let Some((oldest, followed)) = removed {
                followed.end.cancel();
                let n = MAX_FOLLOWED;
                tracing::info!(session = %oldest, "no hooks follow its files: {n} others are newer");
            }
        }
        let end = CancellationToken::new();
        state.followed.insert(id, FollowedSession { used, end: end.clone() });
        Some(end)
    }

    /// Returns when a session whose files are followed was last used.
    pub(crate) fn last_used(&self, id: SessionId) -> Option<Instant> {
        self.state.lock().followed.get(&id).map(|followed| followed.used)
    }

    /// Ends following the files of a session, by the token with which it began.
    pub(crate) fn end_following(&self, id: SessionId, end: &CancellationToken) {
        let mut state = self.state.lock();
        // A session that lost its place can have one again, with another token.
        if !end.is_cancelled() {
            state.followed.remove(&id);
        }
    }
}

const fn key_of(id: SessionId, occasion: HookOccasion) -> (SessionId, &'static str) {
    (id, occasion.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> SessionId {
        SessionId::from_uuid(uuid::Uuid::from_u128(1))
    }

    fn input(model: &str) -> HookInput {
        HookInput {
            occasion: HookOccasion::AfterTurn,
            session_id: id(),
            project_path: None,
            model: Some(model.to_owned()),
            turn: None,
            compaction: None,
            paths: Vec::new(),
            more_paths: 0,
        }
    }

    #[test]
    fn occasion_that_repeats_while_it_runs_runs_once_more_with_the_newest_input() {
        let runs = HookRuns::default();
        let model = |input: Option<HookInput>| input.and_then(|input| input.model);
        let next = || model(runs.next_occasion(id(), HookOccasion::AfterTurn));
        assert_eq!(model(runs.begin_occasion(input("a"))).as_deref(), Some("a"));
        assert!(runs.begin_occasion(input("b")).is_none());
        assert!(runs.begin_occasion(input("c")).is_none());
        assert_eq!((next().as_deref(), next()), (Some("c"), None));
        assert!(runs.begin_occasion(input("d")).is_some());
    }

    #[tokio::test]
    async fn first_prompt_waits_for_the_hooks_of_a_new_session() {
        let (runs, tasks) = (HookRuns::default(), Tasks::new());
        runs.mark_started(id());
        runs.wait_for_start(id(), &tasks).await;
        runs.begin();
        runs.mark_started(id());
        assert_eq!(runs.next_started().await, id());
        let mut waits = std::pin::pin!(runs.wait_for_start(id(), &tasks));
        assert!(tokio::time::timeout(std::time::Duration::ZERO, &mut waits).await.is_err());
        // A session that starts again meanwhile does not start twice.
        runs.mark_started(id());
        runs.end_start(id());
        waits.await;
        runs.wait_for_start(id(), &tasks).await;
    }

    #[tokio::test(start_paused = true)]
    async fn further_session_is_followed_instead_of_the_one_that_was_unused_for_longest() {
        let runs = HookRuns::default();
        let id = |n: usize| SessionId::from_uuid(uuid::Uuid::from_u128(n as u128));
        let mut ends = Vec::new();
        for n in 0..MAX_FOLLOWED {
            ends.push(runs.begin_following(id(n)).expect("is new"));
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
        }
        assert!(runs.begin_following(id(0)).is_none());
        assert!(runs.begin_following(id(MAX_FOLLOWED)).is_some());
        let ended: Vec<bool> = ends.iter().map(CancellationToken::is_cancelled).collect();
        assert!(ended[1] && ended.iter().filter(|ended| **ended).count() == 1, "{ended:?}");
        // The end of its task does not end what began later.
        let again = runs.begin_following(id(1)).expect("lost its place");
        runs.end_following(id(1), &ends[1]);
        assert!(runs.last_used(id(1)).is_some());
        runs.end_following(id(1), &again);
        assert!(runs.last_used(id(1)).is_none());
    }
}
