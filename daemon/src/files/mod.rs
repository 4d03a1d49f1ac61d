//! The files of workspaces: which a directory has, what changes in them, and search by name.
//!
//! [`Files`] is the handle. Each root that somebody asks for is a `root`, whose thread (`follow`) walks it (`walk`, `rules`),
//! keeps its files in memory (`tree`) and follows changes (`watch`, `changes`). Callers wait for that state (`open_root`) and
//! read it: `page` lists, `search` ranks, `subscription` follows. A root that nobody uses is dropped.
//!
//! **Invariants**: every wait has a deadline, and the error after it names the root. What is kept is bounded in roots, in
//! files and in changes. Files are never opened, except ignore files; nothing is written.

mod changes;
mod filter;
mod follow;
mod open_root;
mod page;
mod root;
mod rules;
mod search;
mod subscription;
#[cfg(test)]
mod tests;
mod tree;
mod walk;
mod watch;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

pub(crate) use self::changes::ChangeSet;
use self::changes::ChangesSince;
pub(crate) use self::filter::PathFilter;
use self::open_root::{OpenRoot, RequestedWalk};
use self::page::FilesPage;
pub(crate) use self::page::{PageFile, PageQuery};
pub(crate) use self::root::{FollowMode, PollReason};
use self::root::{Phase, Root, RootState};
pub(crate) use self::search::FileHit;
pub(crate) use self::subscription::{FilesNews, FilesSubscription};
pub(crate) use self::tree::EntryKind;
use crate::clock::Clock;
use crate::config::FilesConfig;

/// The most roots at once. Each costs a thread, an instance of inotify (128 a user by default) and its tree.
pub(crate) const MAX_ROOTS: usize = 64;
/// The most files of all roots together; the least recently used roots are dropped beyond it.
const MAX_TOTAL_FILES: usize = 3_000_000;
/// A root that is unused for this long is dropped; walking it again takes less than a second for most.
const IDLE: Duration = Duration::from_secs(10 * 60);
/// The longest wait for a directory that does not answer, such as one of a network that is down.
const NO_ANSWER: Duration = Duration::from_secs(10);
/// The longest wait for a walk that a call asked for: less than clients wait for a reply.
const SLOW_ANSWER: Duration = Duration::from_secs(25);
/// A page of a walk that finds little is returned after this long, with what there is.
const PARTIAL_PAGE: Duration = Duration::from_secs(2);
/// The walks of whole roots at once. More would only compete for the disk.
const MAX_WALKS: usize = 2;
/// The longest wait of a walk for others, which may hang.
const WALK_PATIENCE: Duration = Duration::from_secs(5);
/// Calls that may wait for the disks of all roots at once. Each holds a thread, of which there are 512 for all calls of the
/// daemon.
const MAX_ALL_BLOCKED: usize = 64;
/// The most files of a root. A tree of a million files takes about 100 MB.
const MAX_FILES: usize = 1_000_000;
/// The longest wait of a status report for the disks of all roots. One that answers needs far less.
const STATUS_WAIT: Duration = Duration::from_millis(500);
/// A polled root is walked again before it is listed, if the last walk is this long ago.
const POLLED_AGE: Duration = Duration::from_secs(1);

/// The limits of roots and calls. Only tests have others than the default.
#[derive(Clone)]
pub(crate) struct FilesLimits {
    max_files: usize,
    max_total_files: usize,
    /// The greatest number of a watch; 0 for none.
    max_watch: i32,
    no_answer: Duration,
    slow_answer: Duration,
    partial_page: Duration,
    walk_patience: Duration,
    polled_age: Duration,
    idle: Duration,
    /// Called before a directory becomes a part of the tree.
    #[cfg(test)]
    on_read: tests::ReadHook,
}

impl Default for FilesLimits {
    fn default() -> Self {
        Self {
            max_files: MAX_FILES,
            max_total_files: MAX_TOTAL_FILES,
            max_watch: i32::MAX,
            no_answer: NO_ANSWER,
            slow_answer: SLOW_ANSWER,
            partial_page: PARTIAL_PAGE,
            walk_patience: WALK_PATIENCE,
            polled_age: POLLED_AGE,
            idle: IDLE,
            #[cfg(test)]
            on_read: tests::ReadHook::default(),
        }
    }
}

/// A call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FilesError {
    #[error("{} {problem}", .path.display())]
    Root { path: PathBuf, problem: RootProblem },
    #[error("{} does not answer for {} seconds", .path.display(), NO_ANSWER.as_secs())]
    NoAnswer { path: PathBuf },
    #[error("{} was not read within {} seconds", .path.display(), SLOW_ANSWER.as_secs())]
    Slow { path: PathBuf },
    #[error("{} is not an absolute path", .path.display())]
    NotAbsolute { path: PathBuf },
    #[error("{MAX_ROOTS} other roots are in use")]
    TooManyRoots,
    #[error("{field}: {problem}")]
    Pattern { field: &'static str, problem: String },
    /// The cursor is damaged, or belongs to a walk that is not known any more.
    #[error("the cursor is not valid any more; list again from the beginning")]
    Cursor,
    #[error("no thread can be started for {}", .path.display())]
    Thread { path: PathBuf },
    #[error("the daemon is shutting down")]
    Stopping,
}

/// The reason why a root cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RootProblem {
    #[error("does not exist")]
    NotFound,
    #[error("is not a directory")]
    NotADirectory,
    #[error("cannot be read: {0}")]
    Unreadable(String),
    #[error("cannot be read because of an internal error of the daemon")]
    Internal,
}

/// Something beneath a root that was left out or not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileWarning {
    /// The directory, relative to the root, or the ignore file.
    pub(crate) path: String,
    pub(crate) problem: String,
}

impl FileWarning {
    fn new(path: &str, problem: String) -> Self {
        let path = if path.is_empty() { "." } else { path };
        Self { path: path.to_owned(), problem }
    }
}

/// A root and how it is walked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RootKey {
    pub(crate) path: PathBuf,
    /// Set if names that begin with a dot are listed.
    pub(crate) hidden: bool,
    /// The depth of the deepest files; those of the root have depth 1.
    pub(crate) max_depth: Option<u32>,
}

impl RootKey {
    /// Returns whether a root that is walked like this one has all files of another one.
    fn covers(&self, other: &Self) -> bool {
        let is_deeper = match (self.max_depth, other.max_depth) {
            (None, _) => true,
            (Some(own), Some(other)) => own >= other,
            (Some(_), None) => false,
        };
        self.path == other.path && self.hidden == other.hidden && is_deeper
    }
}

/// The state of a root, for people.
#[derive(Clone, Debug)]
pub(crate) struct RootReport {
    pub(crate) key: RootKey,
    pub(crate) is_walking: bool,
    /// Set if its disk did not answer.
    pub(crate) is_hanging: bool,
    pub(crate) problem: Option<RootProblem>,
    pub(crate) mode: FollowMode,
    pub(crate) n_files: usize,
    pub(crate) n_dirs: usize,
    pub(crate) generation: u64,
    pub(crate) n_subscribers: usize,
    pub(crate) memory_bytes: usize,
    pub(crate) walk_cost: Duration,
    pub(crate) is_cut: bool,
    pub(crate) n_warnings: usize,
    pub(crate) idle: Duration,
}

/// The roots that are kept current; clones share them.
#[derive(Clone)]
pub(crate) struct Files(Arc<FilesShared>);

struct FilesShared {
    clock: Arc<Clock>,
    settings: Mutex<FilesConfig>,
    roots: Mutex<HashMap<RootKey, OpenRoot>>,
    permits: Arc<WalkPermits>,
    /// The calls that wait for any disk.
    all_blocked: Arc<Semaphore>,
    limits: FilesLimits,
}

/// The best files of a search.
pub(crate) struct SearchResult {
    pub(crate) hits: Vec<FileHit>,
    pub(crate) generation: u64,
    pub(crate) n_files: usize,
    /// Set while the first walk runs, so that files may be missing.
    pub(crate) is_walking: bool,
}

impl Files {
    pub(crate) fn new(clock: Arc<Clock>, settings: &FilesConfig) -> Self {
        Self::with_limits(clock, settings, FilesLimits::default())
    }

    fn with_limits(clock: Arc<Clock>, settings: &FilesConfig, limits: FilesLimits) -> Self {
        Self(Arc::new(FilesShared {
            clock,
            settings: Mutex::new(settings.clone()),
            roots: Mutex::default(),
            permits: Arc::default(),
            all_blocked: Arc::new(Semaphore::new(MAX_ALL_BLOCKED)),
            limits,
        }))
    }

    /// Applies a configuration: changed patterns at once, to all roots, and a changed depth to those that follow.
    pub(crate) fn configure(&self, settings: &FilesConfig) {
        let old = std::mem::replace(&mut *self.0.settings.lock(), settings.clone());
        if old.ignore != settings.ignore {
            self.0.roots.lock().values().for_each(|open| open.root.configure(&settings.ignore));
        }
    }

    /// Returns a page of the files of a root; waits for the first walk only until a page is full.
    pub(crate) async fn page(
        &self,
        key: &RootKey,
        query: PageQuery,
        refresh: bool,
    ) -> Result<FilesPage, FilesError> {
        let (open, filter) = self.open(key, &query.filter)?;
        // Later pages continue what the first one began.
        let walk = match query.cursor {
            None => open.freshen(refresh).await?,
            Some(_) => RequestedWalk::default(),
        };
        let query = Arc::new(PageQuery { filter, ..query });
        let limits = &self.0.limits;
        let started = Instant::now();
        let mut progress = open.root.progress.subscribe();
        loop {
            progress.mark_unchanged();
            let is_late = started.elapsed() > limits.partial_page;
            if let Some(page) = open.find_page(&query, walk, is_late).await? {
                return Ok(page);
            }
            if started.elapsed() > limits.slow_answer {
                return Err(FilesError::Slow { path: open.root.key.path.clone() });
            }
            let limit = if is_late { limits.slow_answer } else { limits.partial_page };
            open.progress_until(&mut progress, started, limit).await?;
        }
    }

    /// Returns the files whose paths match a query best.
    pub(crate) async fn search(
        &self,
        key: &RootKey,
        query: String,
        filter: PathFilter,
        limit: usize,
    ) -> Result<SearchResult, FilesError> {
        let (open, filter) = self.open(key, &filter)?;
        let walk = open.freshen(false).await?;
        open.ready(walk.ticket, self.0.limits.partial_page).await?;
        let root = Arc::clone(&open.root);
        open.blocking(move || {
            let state = root.state.read();
            SearchResult {
                hits: search::search(&state.tree, &query, &filter, limit),
                generation: state.journal.generation(),
                n_files: state.tree.n_files(),
                is_walking: state.phase == Phase::Walking,
            }
        })
        .await
    }

    /// Subscribes to the changes of a root after a generation, or from now on.
    pub(crate) async fn subscribe(
        &self,
        key: &RootKey,
        filter: PathFilter,
        since: Option<u64>,
    ) -> Result<FilesSubscription, FilesError> {
        let (open, filter) = self.open(key, &filter)?;
        // Counted first, so that the root is not dropped and a polled one is followed.
        let subscription = FilesSubscription::new(Arc::clone(&open.root), filter, since);
        let walk = open.freshen(false).await?;
        open.ready(walk.ticket, self.0.limits.no_answer).await?;
        Ok(subscription)
    }

    /// Returns the changes under a root that are still known, without waiting; `None` if the root is not followed, or too
    /// much changed at once.
    pub(crate) fn known_changes(&self, key: &RootKey) -> Option<ChangeSet> {
        let key = limited(key, &self.0.settings.lock());
        let root = covering(&self.0.roots.lock(), &key).map(|open| Arc::clone(&open.root));
        match root?.state.read().journal.all() {
            ChangesSince::Known(changes) => Some(changes),
            ChangesSince::Resync => None,
        }
    }

    /// Returns the state of all roots, in the order of their paths, after a look at their disks.
    pub(crate) async fn checked_status(&self) -> Vec<RootReport> {
        let roots: Vec<OpenRoot> = self.0.roots.lock().values().cloned().collect();
        let mut looks = JoinSet::new();
        for open in roots {
            looks.spawn(async move {
                let answers = open.answers(STATUS_WAIT).await;
                (!answers).then(|| open.root.key.clone())
            });
        }
        let hanging = looks.join_all().await;
        let mut reports = self.status();
        for report in &mut reports {
            report.is_hanging |= hanging.contains(&Some(report.key.clone()));
        }
        reports
    }

    /// Returns the state of all roots, in the order of their paths, without waiting for their disks.
    pub(crate) fn status(&self) -> Vec<RootReport> {
        let roots: Vec<Arc<Root>> =
            self.0.roots.lock().values().map(|open| Arc::clone(&open.root)).collect();
        let mut reports: Vec<RootReport> = roots.iter().map(|root| report(root)).collect();
        reports.sort_by(|a, b| {
            (&a.key.path, a.key.hidden, a.key.max_depth).cmp(&(
                &b.key.path,
                b.key.hidden,
                b.key.max_depth,
            ))
        });
        reports
    }

    /// Drops the roots that nobody used for a while, and others while all together have too many files.
    pub(crate) fn release_idle(&self) {
        let limits = &self.0.limits;
        let mut roots = self.0.roots.lock();
        roots.retain(|_, open| {
            let is_used =
                open.root.n_subscribers() > 0 || open.root.used_at.lock().elapsed() < limits.idle;
            if !is_used {
                open.root.stop();
            }
            is_used
        });
        drop_until(&mut roots, |roots| has_few_files(roots, limits));
    }

    /// Returns the root of a key, or one that has more, with the filter for the key's own files; starts it if needed.
    fn open(
        &self,
        key: &RootKey,
        filter: &PathFilter,
    ) -> Result<(OpenRoot, PathFilter), FilesError> {
        if !key.path.is_absolute() {
            return Err(FilesError::NotAbsolute { path: key.path.clone() });
        }
        let settings = self.0.settings.lock().clone();
        let key = limited(key, &settings);
        let filter = filter.clone().with_max_depth(key.max_depth);
        let mut roots = self.0.roots.lock();
        if let Some(open) = covering(&roots, &key) {
            *open.root.used_at.lock() = Instant::now();
            return Ok((open.clone(), filter));
        }
        make_room(&mut roots, &self.0.limits)?;
        // Greater than every earlier generation of this root, unless it had a thousand batches a second.
        let generation = u64::try_from(self.0.clock.now().unix_ms()).unwrap_or_default();
        let root = Root::spawn(
            key.clone(),
            settings.ignore,
            generation,
            Arc::clone(&self.0.permits),
            self.0.limits.clone(),
            follow::run,
        );
        let root = root.map_err(|_| FilesError::Thread { path: key.path.clone() })?;
        let open = OpenRoot::new(root, Arc::clone(&self.0.all_blocked));
        roots.insert(key, open.clone());
        Ok((open, filter))
    }
}

impl Drop for FilesShared {
    fn drop(&mut self) {
        self.roots.get_mut().values().for_each(|open| open.root.stop());
    }
}

/// Returns a key whose depth does not exceed the configured one.
fn limited(key: &RootKey, settings: &FilesConfig) -> RootKey {
    let max_depth = match (key.max_depth, settings.max_depth) {
        (Some(own), Some(configured)) => Some(own.min(configured)),
        (own, configured) => own.or(configured),
    };
    RootKey { max_depth, ..key.clone() }
}

/// Returns an open root that has all files of a key.
fn covering<'r>(roots: &'r HashMap<RootKey, OpenRoot>, key: &RootKey) -> Option<&'r OpenRoot> {
    roots.values().find(|open| open.root.key.covers(key))
}

/// Drops least recently used roots until another one has room.
fn make_room(
    roots: &mut HashMap<RootKey, OpenRoot>,
    limits: &FilesLimits,
) -> Result<(), FilesError> {
    drop_until(roots, |roots| roots.len() < MAX_ROOTS && has_few_files(roots, limits));
    if roots.len() < MAX_ROOTS { Ok(()) } else { Err(FilesError::TooManyRoots) }
}

fn has_few_files(roots: &HashMap<RootKey, OpenRoot>, limits: &FilesLimits) -> bool {
    let n_files = |open: &OpenRoot| open.root.state.read().tree.n_files();
    roots.values().map(n_files).sum::<usize>() <= limits.max_total_files
}

/// Drops least recently used roots until a condition is fulfilled, or all others are in use.
fn drop_until(
    roots: &mut HashMap<RootKey, OpenRoot>,
    is_enough: impl Fn(&HashMap<RootKey, OpenRoot>) -> bool,
) {
    while !is_enough(roots) {
        // The map and the thread have a reference each; any other one belongs to a call or a subscription.
        let unused = roots.iter().filter(|(_, open)| Arc::strong_count(&open.root) <= 2);
        let oldest =
            unused.min_by_key(|(_, open)| *open.root.used_at.lock()).map(|(key, _)| key.clone());
        let Some(open) = oldest.and_then(|oldest| roots.remove(&oldest)) else { return };
        open.root.stop();
    }
}

fn report(root: &Root) -> RootReport {
    let state = root.state.read();
    RootReport {
        key: root.key.clone(),
        is_walking: state.phase == Phase::Walking,
        is_hanging: is_walk_hanging(root, &state),
        problem: match &state.phase {
            Phase::Gone(problem) => Some(problem.clone()),
            Phase::Walking | Phase::Ready => None,
        },
        mode: state.mode,
        n_files: state.tree.n_files(),
        n_dirs: state.tree.n_dirs(),
        generation: state.journal.generation(),
        n_subscribers: root.n_subscribers(),
        memory_bytes: state.bytes(),
        walk_cost: state.walk_cost,
        is_cut: state.is_cut,
        n_warnings: state.all_warnings().count(),
        idle: root.used_at.lock().elapsed(),
    }
}

/// Returns whether a walk that is awaited reads no directory, for as long as calls wait for one.
fn is_walk_hanging(root: &Root, state: &RootState) -> bool {
    let since = state.read_at.max(*root.awaited_since.lock());
    root.awaits_walk(state) && since.elapsed() > root.limits.no_answer
}

/// Limits the walks of whole roots at once.
#[derive(Default)]
pub(crate) struct WalkPermits {
    n_walks: Mutex<usize>,
    freed: Condvar,
}

/// A running walk.
pub(crate) struct WalkPermit<'a>(&'a WalkPermits);

impl WalkPermits {
    /// Waits until another walk may start, but not forever: others may hang on a disk that does not answer.
    fn acquire(&self, patience: Duration) -> WalkPermit<'_> {
        let end = Instant::now() + patience;
        let mut n_walks = self.n_walks.lock();
        while *n_walks >= MAX_WALKS && !self.freed.wait_until(&mut n_walks, end).timed_out() {}
        *n_walks += 1;
        WalkPermit(self)
    }
}

impl Drop for WalkPermit<'_> {
    fn drop(&mut self) {
        *self.0.n_walks.lock() -= 1;
        self.0.freed.notify_one();
    }
}
