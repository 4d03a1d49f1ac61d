//! A root in use by a call: whether it must be walked first, the waits for its walk and its disk, and its pages.
//!
//! **Invariant**: every wait has a deadline, and the error after it names the root.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use super::FilesError;
use super::page::{self, FilesPage, PageQuery};
use super::root::{FollowMode, Phase, Root, RootState};

/// Calls that may wait for one root's disk at once. Each holds a thread, of which there are 512 for all calls of the daemon.
const MAX_BLOCKED: usize = 8;

/// A root in use. Clones share it.
#[derive(Clone)]
pub(super) struct OpenRoot {
    pub(super) root: Arc<Root>,
    /// The calls that wait for its disk.
    blocked: Arc<Semaphore>,
    /// The calls that wait for any disk.
    all_blocked: Arc<Semaphore>,
    /// Held by the look at the disk of a status report: a hanging root has one at most.
    looking: Arc<Semaphore>,
}

/// A walk that a call asked for.
#[derive(Clone, Copy, Default)]
pub(super) struct RequestedWalk {
    /// The number that [`RootState::refreshed`] reaches; 0 if nothing was asked for.
    pub(super) ticket: u64,
    /// Set if the state before it is wrong, and not only old.
    is_required: bool,
}

/// The age of what is known of a root: all but `Current` needs a walk before the root is listed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RootAge {
    Current,
    /// The root is polled, and the last walk was some time ago.
    Old,
    /// The root was replaced by another directory or cannot be read, or a rule above it changed.
    Wrong,
}

impl OpenRoot {
    /// Takes a root; `all_blocked` counts the calls that wait for any disk.
    pub(super) fn new(root: Arc<Root>, all_blocked: Arc<Semaphore>) -> Self {
        let blocked = Arc::new(Semaphore::new(MAX_BLOCKED));
        Self { root, blocked, all_blocked, looking: Arc::new(Semaphore::new(1)) }
    }

    /// Finds out whether the state may be old in a way that no watch reports, and requests a walk then: the root is another
    /// directory, an ignore file above it changed, or it is polled.
    pub(super) async fn freshen(&self, must: bool) -> Result<RequestedWalk, FilesError> {
        if must {
            return Ok(RequestedWalk { ticket: self.root.request_watches(), is_required: true });
        }
        let root = Arc::clone(&self.root);
        let age = self.blocking(move || age_of(&root)).await?;
        Ok(match age {
            RootAge::Current => RequestedWalk::default(),
            RootAge::Old | RootAge::Wrong => RequestedWalk {
                ticket: self.root.request_refresh(),
                is_required: age == RootAge::Wrong,
            },
        })
    }

    /// Returns the page of a query with its details; `None` if a walk must go on before.
    pub(super) async fn find_page(
        &self,
        query: &Arc<PageQuery>,
        walk: RequestedWalk,
        is_late: bool,
    ) -> Result<Option<FilesPage>, FilesError> {
        let (open, query) = (self.clone(), Arc::clone(query));
        // Rare files are looked for in the whole tree.
        let find = move || {
            let state = open.root.state.read();
            open.check(&state, walk.ticket)?;
            // The last walk of a polled root must do if the next one takes long.
            let is_current = state.phase == Phase::Walking
                || state.refreshed >= walk.ticket
                || is_late && !walk.is_required;
            if !is_current {
                return Ok(None);
            }
            let found = page::find(&state, &query, is_late, open.root.limits.no_answer)?;
            drop(state);
            Ok(found.map(|mut page| {
                if query.details {
                    page::add_details(&mut page, &open.root.key.path);
                }
                page
            }))
        };
        self.blocking(find).await?
    }

    /// **Errors**: `Root` if the root cannot be read, unless a later attempt than `ticket` is awaited.
    fn check(&self, state: &RootState, ticket: u64) -> Result<(), FilesError> {
        match &state.phase {
            Phase::Gone(problem) if state.refreshed >= ticket => {
                Err(FilesError::Root { path: self.root.key.path.clone(), problem: problem.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Waits for the walk of a ticket, and at most `patience` for the first walk.
    pub(super) async fn ready(&self, ticket: u64, patience: Duration) -> Result<(), FilesError> {
        let started = Instant::now();
        let mut progress = self.root.progress.subscribe();
        loop {
            progress.mark_unchanged();
            let has_files = {
                let state = self.root.state.read();
                self.check(&state, ticket)?;
                if state.phase == Phase::Ready && state.refreshed >= ticket {
                    return Ok(());
                }
                state.tree.n_dirs() > 0
            };
            if has_files && started.elapsed() > patience {
                return Ok(());
            }
            let limit = if has_files { patience } else { self.root.limits.no_answer };
            self.progress_until(&mut progress, started, limit).await?;
        }
    }

    /// Waits for progress, or until a time after the start of a call is over.
    ///
    /// **Errors**: `NoAnswer` if no directory was read for [`super::NO_ANSWER`] since the start, although a walk is awaited.
    pub(super) async fn progress_until(
        &self,
        progress: &mut tokio::sync::watch::Receiver<u64>,
        started: Instant,
        limit: Duration,
    ) -> Result<(), FilesError> {
        let no_answer = self.root.limits.no_answer;
        let moment = (started + limit).min(Instant::now() + no_answer);
        let is_late = tokio::time::timeout_at(moment.into(), progress.changed()).await.is_err();
        // The disk of a root that was quiet before had nothing to answer.
        if is_late && self.root.state.read().read_at.max(started).elapsed() > no_answer {
            return Err(FilesError::NoAnswer { path: self.root.key.path.clone() });
        }
        Ok(())
    }

    /// Holds the places of all calls that wait for the disk, as a disk does that does not answer.
    #[cfg(test)]
    pub(super) async fn hold_disk(&self) -> tokio::sync::OwnedSemaphorePermit {
        let all = u32::try_from(MAX_BLOCKED).unwrap_or(u32::MAX);
        Arc::clone(&self.blocked).acquire_many_owned(all).await.expect("is never closed")
    }

    /// Returns whether the disk of the root answers within a time.
    pub(super) async fn answers(&self, limit: Duration) -> bool {
        let path = self.root.key.path.clone();
        // A root that is gone answers too.
        self.looks(limit, move || drop(path.metadata())).await
    }

    /// Returns whether a look at the disk ends within a time.
    pub(super) async fn looks(
        &self,
        limit: Duration,
        look: impl FnOnce() + Send + 'static,
    ) -> bool {
        let looked = async {
            let looking = Arc::clone(&self.looking).acquire_owned().await;
            let look = move || {
                let _looking = looking;
                look();
            };
            self.blocking(look).await
        };
        matches!(tokio::time::timeout(limit, looked).await, Ok(Ok(())))
    }

    /// Returns how many more calls may wait for any disk.
    #[cfg(test)]
    pub(super) fn n_free(&self) -> usize {
        self.all_blocked.available_permits()
    }

    /// Runs work that may wait for the disk.
    ///
    /// **Errors**: `NoAnswer` if the disk does not answer; the thread stays until it does, and only a few may.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, FilesError> {
        let no_answer = || FilesError::NoAnswer { path: self.root.key.path.clone() };
        let (blocked, all) = (Arc::clone(&self.blocked), Arc::clone(&self.all_blocked));
        let work = async {
            // A root whose disk hangs has its own permits taken, and few of those of all.
            let permit = (blocked.acquire_owned().await, all.acquire_owned().await);
            tokio::task::spawn_blocking(move || {
                let _permit = permit;
                work()
            })
            .await
        };
        match tokio::time::timeout(self.root.limits.no_answer, work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(failed)) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
            Ok(Err(_)) => Err(FilesError::Stopping),
            Err(_) => Err(no_answer()),
        }
    }
}

/// Finds out whether a root must be walked before it is listed. Blocks on the disk.
pub(super) fn age_of(root: &Root) -> RootAge {
    let state = root.state.read();
    let (identity, sources, phase) =
        (state.identity, Arc::clone(&state.sources), state.phase.clone());
    let is_polled = matches!(state.mode, FollowMode::Poll(_));
    let age = root.limits.polled_age.max(state.walk_cost * 2);
    let is_due = is_polled && state.walked_at.elapsed() > age;
    drop(state);
    match phase {
        Phase::Walking => RootAge::Current,
        Phase::Gone(_) => RootAge::Wrong,
        Phase::Ready if !is_same(&root.key.path, identity) || sources.changed() => RootAge::Wrong,
        Phase::Ready if is_due => RootAge::Old,
        Phase::Ready => RootAge::Current,
    }
}

fn is_same(path: &Path, identity: Option<(u64, u64)>) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    path.metadata().is_ok_and(|found| Some((found.dev(), found.ino())) == identity)
}
