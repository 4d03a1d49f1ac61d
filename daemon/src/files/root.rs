//! The state of one root, which callers read, and the requests that they send to its thread.
//!
//! **Invariants**: only the thread changes the tree and the journal.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;

use super::changes::ChangeJournal;
use super::rules::{RootRules, Rules, Sources};
use super::tree::Tree;
use super::watch::DirWatcher;
use super::{FileWarning, FilesLimits, RootKey, RootProblem, WalkPermits};

/// The interval at which a root that cannot be watched is polled, and a missing root is looked for.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The stage of a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The first walk runs: the tree has what it found so far.
    Walking,
    Ready,
    /// The root cannot be read.
    Gone(RootProblem),
}

/// The way in which changes are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FollowMode {
    /// Each directory is watched.
    Watch,
    /// The root is walked from time to time.
    Poll(PollReason),
}

/// The reason why a root is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollReason {
    /// The user has no watches, or no instances of inotify, left.
    NoWatches,
    /// The files belong to another machine or program, whose changes are not reported here.
    RemoteFiles,
    /// The system has no watches that this program can use.
    NoSupport,
}

/// The state of a root that callers read.
pub(crate) struct RootState {
    pub(crate) phase: Phase,
    pub(crate) mode: FollowMode,
    pub(crate) tree: Tree,
    pub(crate) journal: ChangeJournal,
    /// The directories in the order in which the first walk found them, for callers that began to list during it.
    pub(crate) walk_order: Vec<Arc<[u8]>>,
    /// The number of the first walk. A root that came back has a new one, also if it was dropped in between: the numbers
    /// begin with its generation.
    pub(crate) walk_number: u64,
    /// Set if a first walk ended.
    pub(super) has_walked: bool,
    /// Set if directories are missing because the root has too many files, until it is walked anew with room for all.
    pub(crate) is_cut: bool,
    /// The warning for a root of which directories are missing.
    cut_warning: FileWarning,
    pub(crate) warnings: BTreeMap<Vec<u8>, Vec<FileWarning>>,
    pub(super) above_warnings: Vec<FileWarning>,
    /// The ignore files above the root.
    pub(crate) sources: Arc<Sources>,
    /// The file system and the inode of the root.
    pub(crate) identity: Option<(u64, u64)>,
    pub(crate) walked_at: Instant,
    pub(crate) walk_cost: Duration,
    /// The time at which a directory was read last.
    pub(crate) read_at: Instant,
    /// The newest request to walk again that was fulfilled.
    pub(crate) refreshed: u64,
}

/// A root that is kept current.
pub(crate) struct Root {
    pub(crate) key: RootKey,
    pub(super) limits: FilesLimits,
    /// The configured patterns.
    ignore: Mutex<Vec<String>>,
    pub(crate) state: RwLock<RootState>,
    /// Changes whenever a waiting caller may find more.
    pub(crate) progress: watch::Sender<u64>,
    /// The number of requests to walk again.
    pub(super) refresh_wanted: AtomicU64,
    /// The moment since which the walk that runs or was asked for is awaited.
    pub(super) awaited_since: Mutex<Instant>,
    /// Set if the next walk tries again to watch the root.
    pub(super) watch_wanted: AtomicBool,
    n_subscribers: AtomicUsize,
    pub(crate) used_at: Mutex<Instant>,
    pub(super) stop: AtomicBool,
    wake: UnixStream,
}

/// The work of the thread of a root, which another thread wakes by the stream.
pub(super) type RootThread = fn(&Root, &UnixStream, &WalkPermits);

impl Root {
    /// Starts the thread of a root, which calls `run`.
    ///
    /// `generation` must be greater than those that an earlier thread for the same root had.
    pub(crate) fn spawn(
        key: RootKey,
        ignore: Vec<String>,
        generation: u64,
        permits: Arc<WalkPermits>,
        limits: FilesLimits,
        run: RootThread,
    ) -> std::io::Result<Arc<Self>> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let cut_warning = FileWarning::new(
            "",
            format!("there are more than {} files, so directories are missing", limits.max_files),
        );
        let root = Arc::new(Self {
            key,
            limits,
            ignore: Mutex::new(ignore),
            state: RwLock::new(RootState {
                phase: Phase::Walking,
                mode: FollowMode::Watch,
                tree: Tree::default(),
                journal: ChangeJournal::new(generation),
                walk_order: Vec::new(),
                walk_number: generation,
                has_walked: false,
                is_cut: false,
                cut_warning,
                warnings: BTreeMap::new(),
                above_warnings: Vec::new(),
                sources: Arc::default(),
                identity: None,
                walked_at: Instant::now(),
                walk_cost: Duration::ZERO,
                read_at: Instant::now(),
                refreshed: 0,
            }),
            progress: watch::Sender::new(0),
            refresh_wanted: AtomicU64::new(0),
            awaited_since: Mutex::new(Instant::now()),
            watch_wanted: AtomicBool::new(false),
            n_subscribers: AtomicUsize::new(0),
            used_at: Mutex::new(Instant::now()),
            stop: AtomicBool::new(false),
            wake,
        });
        let own = Arc::clone(&root);
        let thread = std::thread::Builder::new().name("ollmd-files".to_owned());
        thread.spawn(move || run(&own, &woken, &permits))?;
        Ok(root)
    }

    /// Asks the thread to end. It may still wait for a disk that does not answer.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Asks for another walk; returns the number that [`RootState::refreshed`] reaches when it is done.
    pub(crate) fn request_refresh(&self) -> u64 {
        let number = {
            let state = self.state.read();
            let mut since = self.awaited_since.lock();
            if !self.awaits_walk(&state) {
                *since = Instant::now();
            }
            self.refresh_wanted.fetch_add(1, Ordering::SeqCst) + 1
        };
        self.wake();
        number
    }

    /// Returns whether the first walk runs, or a request to walk again is not fulfilled.
    pub(super) fn awaits_walk(&self, state: &RootState) -> bool {
        state.phase == Phase::Walking
            || state.refreshed < self.refresh_wanted.load(Ordering::SeqCst)
    }

    /// Asks for another walk that also tries to watch the root, if it is polled because no watches were left.
    pub(crate) fn request_watches(&self) -> u64 {
        self.watch_wanted.store(true, Ordering::SeqCst);
        self.request_refresh()
    }

    /// Replaces the configured patterns.
    pub(crate) fn configure(&self, ignore: &[String]) {
        ignore.clone_into(&mut self.ignore.lock());
        self.request_refresh();
    }

    /// Returns the rules above the root, of which `path` is the path without links.
    pub(super) fn rules(&self, path: &Path) -> RootRules {
        let ignore = self.ignore.lock().clone();
        Rules::above(path, &ignore, self.key.hidden)
    }

    /// Counts a subscriber in, or out. The root is used until the last one leaves.
    pub(crate) fn count_subscriber(&self, comes: bool) {
        if comes {
            self.n_subscribers.fetch_add(1, Ordering::SeqCst);
        } else {
            *self.used_at.lock() = Instant::now();
            self.n_subscribers.fetch_sub(1, Ordering::SeqCst);
        }
        self.wake();
    }

    pub(crate) fn n_subscribers(&self) -> usize {
        self.n_subscribers.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        // A full buffer means that the thread will wake anyway.
        drop((&self.wake).write(&[0]));
    }

    pub(super) fn announce(&self) {
        self.progress.send_modify(|number| *number += 1);
    }

    /// Records that the root cannot be read. All its files are gone then.
    pub(super) fn lose(&self, problem: RootProblem, wanted: u64) {
        let mut state = self.state.write();
        state.refreshed = wanted;
        if state.phase != Phase::Gone(problem.clone()) {
            tracing::debug!(root = %self.key.path.display(), %problem, "a root cannot be read");
            state.phase = Phase::Gone(problem);
            state.tree = Tree::default();
            state.walk_order = Vec::new();
            state.warnings.clear();
            state.identity = None;
            state.is_cut = false;
            state.journal.resync();
        }
        drop(state);
        self.announce();
    }
}

impl RootState {
    /// Returns the warnings, those of directories that are gone left out.
    pub(crate) fn all_warnings(&self) -> impl Iterator<Item = &FileWarning> {
        let beneath = self.warnings.iter().filter(|(dir, _)| self.tree.dir(dir).is_some());
        let cut = self.is_cut.then_some(&self.cut_warning);
        cut.into_iter()
            .chain(&self.above_warnings)
            .chain(beneath.flat_map(|(_, warnings)| warnings))
    }

    /// Returns the memory that the root takes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.tree.bytes() + self.journal.bytes() + 16 * self.walk_order.len()
    }
}

/// Waits until the root is woken, its watches have notices, or a time is over.
pub(super) fn wait(woken: &UnixStream, watcher: Option<&DirWatcher>, limit: Option<Duration>) {
    let mut fds = vec![PollFd::new(woken, PollFlags::IN)];
    fds.extend(watcher.map(|watcher| PollFd::from_borrowed_fd(watcher.as_fd(), PollFlags::IN)));
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    // An interrupted wait is as good as one that ended early.
    let _ready = poll(&mut fds, limit.as_ref());
    while matches!((&*woken).read(&mut [0; 64]), Ok(n) if n > 0) {}
}
