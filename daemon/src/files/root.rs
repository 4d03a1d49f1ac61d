//! One root: its state, which callers read, and the thread that keeps the state equal to the disk.
//!
//! The thread walks the root, then sleeps until a watch or a caller wakes it. Notices are collected for [`DEBOUNCE`] and
//! become one batch: changed directories are read again, a changed ignore file makes its whole subtree be read again, and
//! many changes or lost notices make the root be walked again. Where nothing can be watched, the thread polls, but only
//! while somebody subscribes; otherwise callers ask for a walk when the last one is too old.
//!
//! **Invariants**: only the thread changes the tree and the journal, and it holds no lock while it waits for the disk. A
//! change is in the tree before its generation exists, so nobody misses it who lists and then asks for what came since.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use tokio::sync::watch;

use super::changes::{ChangeJournal, ChangeSet};
use super::rules::{RootRules, Rules, Sources, decides};
use super::tree::{EntryKind, PackedListing, Tree, Watched, join, split};
use super::walk::{TreeWalk, WalkEnd, WalkJob, absolute, device_of};
use super::watch::{DirWatcher, NoticeKind, WatchNotice};
use super::{FileWarning, RootKey, RootProblem, WalkPermits};

/// Changes are collected for this long before they become a batch. Editors and compilers write files in several steps.
pub(crate) const DEBOUNCE: Duration = Duration::from_millis(50);
/// The longest collection of changes, when batches take long to work on.
const MAX_DEBOUNCE: Duration = Duration::from_secs(2);
/// With more changed directories than this, the root is walked again, which reads each once.
const MAX_DIRTY: usize = 64;
/// The interval at which a root that cannot be watched is polled, and a missing root is looked for.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// A walk by polling may take this share of the time: one tenth.
const POLL_COST: u32 = 10;
/// The most files of a root. A tree of a million files takes about 100 MB.
pub(crate) const MAX_FILES: usize = 1_000_000;
/// The number of times that the queue of notices is emptied after an overflow, while further ones come.
const MAX_DRAINS: usize = 16;
/// The warning for a root with more files than are kept.
static TOO_MANY_FILES: LazyLock<FileWarning> = LazyLock::new(|| {
    FileWarning::new("", format!("there are more than {MAX_FILES} files; the others are missing"))
});
/// The most directories whose warnings are kept.
const MAX_WARNED: usize = 1_000;
/// Waiting callers are woken after so many directories of a walk.
const PROGRESS_EVERY: usize = 16;

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
    /// The root is walked from time to time, because it cannot be watched.
    Poll,
}

/// The state of a root that callers read.
pub(crate) struct RootState {
    pub(crate) phase: Phase,
    pub(crate) mode: FollowMode,
    pub(crate) tree: Tree,
    pub(crate) journal: ChangeJournal,
    /// The directories in the order in which the first walk found them, for callers that began to list during it.
    pub(crate) walk_order: Vec<Arc<[u8]>>,
    /// The number of the first walk; a root that came back has a new one.
    pub(crate) walk_number: u64,
    /// Set if the root has more files than [`MAX_FILES`].
    pub(crate) is_cut: bool,
    pub(crate) warnings: BTreeMap<Vec<u8>, Vec<FileWarning>>,
    above_warnings: Vec<FileWarning>,
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
    /// The configured patterns.
    ignore: Mutex<Vec<String>>,
    pub(crate) state: RwLock<RootState>,
    /// Changes whenever a waiting caller may find more.
    pub(crate) progress: watch::Sender<u64>,
    /// The number of requests to walk again.
    refresh_wanted: AtomicU64,
    n_subscribers: AtomicUsize,
    pub(crate) used_at: Mutex<Instant>,
    stop: AtomicBool,
    wake: UnixStream,
    /// Set if watches are used; tests poll without them.
    can_watch: bool,
}

impl Root {
    /// Starts the thread of a root.
    ///
    /// `generation` must be greater than those that an earlier thread for the same root had.
    pub(crate) fn spawn(
        key: RootKey,
        ignore: Vec<String>,
        generation: u64,
        permits: Arc<WalkPermits>,
        can_watch: bool,
    ) -> std::io::Result<Arc<Self>> {
        let (wake, woken) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let root = Arc::new(Self {
            key,
            ignore: Mutex::new(ignore),
            state: RwLock::new(RootState {
                phase: Phase::Walking,
                mode: FollowMode::Watch,
                tree: Tree::default(),
                journal: ChangeJournal::new(generation),
                walk_order: Vec::new(),
                walk_number: 0,
                is_cut: false,
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
            n_subscribers: AtomicUsize::new(0),
            used_at: Mutex::new(Instant::now()),
            stop: AtomicBool::new(false),
            wake,
            can_watch,
        });
        let own = Arc::clone(&root);
        let thread = std::thread::Builder::new().name("ollmd-files".to_owned());
        thread.spawn(move || own.run(&woken, &permits))?;
        Ok(root)
    }

    /// Asks the thread to end. It may still wait for a disk that does not answer.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake();
    }

    /// Asks for another walk; returns the number that [`RootState::refreshed`] reaches when it is done.
    pub(crate) fn request_refresh(&self) -> u64 {
        let number = self.refresh_wanted.fetch_add(1, Ordering::SeqCst) + 1;
        self.wake();
        number
    }

    /// Replaces the configured patterns.
    pub(crate) fn configure(&self, ignore: &[String]) {
        ignore.clone_into(&mut self.ignore.lock());
        self.request_refresh();
    }

    /// Returns the rules above the root, of which `path` is the path without links.
    fn rules(&self, path: &Path) -> RootRules {
        let ignore = self.ignore.lock().clone();
        Rules::above(path, &ignore, self.key.hidden)
    }

    /// Counts a subscriber in, or out.
    pub(crate) fn count_subscriber(&self, comes: bool) {
        if comes {
            self.n_subscribers.fetch_add(1, Ordering::SeqCst);
        } else {
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

    fn announce(&self) {
        self.progress.send_modify(|number| *number += 1);
    }

    fn run(&self, woken: &UnixStream, permits: &WalkPermits) {
        while !self.stop.load(Ordering::Relaxed) {
            let wanted = self.refresh_wanted.load(Ordering::SeqCst);
            match Follower::open(self, woken, permits) {
                Ok(follower) => follower.follow(wanted),
                Err(problem) => {
                    self.lose(problem, wanted);
                    // Nobody notices that a directory comes back, except by looking.
                    let limit = (self.n_subscribers() > 0).then_some(POLL_INTERVAL);
                    if self.refresh_wanted.load(Ordering::SeqCst) == wanted {
                        wait(woken, None, limit);
                    }
                }
            }
        }
    }

    /// Records that the root cannot be read. All its files are gone then.
    fn lose(&self, problem: RootProblem, wanted: u64) {
        let mut state = self.state.write();
        state.refreshed = wanted;
        if state.phase != Phase::Gone(problem.clone()) {
            tracing::debug!(root = %self.key.path.display(), %problem, "a root cannot be read");
            state.phase = Phase::Gone(problem);
            state.tree = Tree::default();
            state.walk_order = Vec::new();
            state.warnings.clear();
            state.identity = None;
            state.journal.resync();
        }
        drop(state);
        self.announce();
    }
}

impl RootState {
    /// Returns the warnings, those of directories that are gone left out.
    pub(crate) fn all_warnings(&self) -> impl Iterator<Item = &FileWarning> {
        let cut = self.is_cut.then(|| &*TOO_MANY_FILES);
        let beneath = self.warnings.iter().filter(|(dir, _)| self.tree.dir(dir).is_some());
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
fn wait(woken: &UnixStream, watcher: Option<&DirWatcher>, limit: Option<Duration>) {
    let mut fds = vec![PollFd::new(woken, PollFlags::IN)];
    fds.extend(watcher.map(|watcher| PollFd::from_borrowed_fd(watcher.as_fd(), PollFlags::IN)));
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    // An interrupted wait is as good as one that ended early.
    let _ready = poll(&mut fds, limit.as_ref());
    while matches!((&*woken).read(&mut [0; 64]), Ok(n) if n > 0) {}
}

/// The thread of a root while the root exists.
struct Follower<'a> {
    root: &'a Root,
    woken: &'a UnixStream,
    permits: &'a WalkPermits,
    /// The root without links.
    path: PathBuf,
    identity: (u64, u64),
    watcher: Option<DirWatcher>,
    rules: Arc<Rules>,
    /// The time that the last batch took.
    last_cost: Duration,
}

/// The meaning of notices for the tree.
#[derive(Default)]
struct Dirty {
    /// Directories to read again.
    dirs: BTreeSet<Vec<u8>>,
    /// Directories to read again with everything in them, if they are still there.
    deep: BTreeSet<Vec<u8>>,
    /// Entries that were written, or that took the place of another one.
    touched: BTreeSet<Vec<u8>>,
    moves: Vec<(Vec<u8>, Vec<u8>)>,
    is_root_gone: bool,
}

impl<'a> Follower<'a> {
    /// Opens the root.
    fn open(
        root: &'a Root,
        woken: &'a UnixStream,
        permits: &'a WalkPermits,
    ) -> Result<Self, RootProblem> {
        let (path, identity) = find_root(&root.key.path)?;
        let watcher = match root.can_watch {
            true => DirWatcher::new(),
            false => Err(std::io::ErrorKind::Unsupported.into()),
        };
        if let Err(error) = &watcher {
            tracing::debug!(root = %path.display(), %error, "a root is polled");
        }
        let RootRules { rules, sources, warnings } = root.rules(&path);
        let mut state = root.state.write();
        state.mode = if watcher.is_ok() { FollowMode::Watch } else { FollowMode::Poll };
        state.identity = Some(identity);
        state.sources = Arc::new(sources);
        state.above_warnings = warnings;
        drop(state);
        let watcher = watcher.ok();
        Ok(Self { root, woken, permits, path, identity, watcher, rules, last_cost: Duration::ZERO })
    }

    /// Keeps the state current until the root is gone, was replaced, or is not needed any more.
    fn follow(mut self, wanted: u64) {
        {
            let mut state = self.root.state.write();
            state.phase = Phase::Walking;
            state.tree = Tree::default();
            state.warnings.clear();
            state.walk_order = Vec::new();
            state.walk_number += 1;
        }
        self.walk_all(None);
        let mut state = self.root.state.write();
        state.phase = Phase::Ready;
        state.read_at = Instant::now();
        // Who was told that the root is gone, or knows another directory with its name, lists again.
        if state.walk_number > 1 {
            state.journal.resync();
        }
        state.refreshed = wanted;
        drop(state);
        self.root.announce();
        let mut refreshed = wanted;
        while !self.root.stop.load(Ordering::Relaxed) {
            let wanted = self.root.refresh_wanted.load(Ordering::SeqCst);
            let is_due =
                self.watcher.is_none() && self.poll_limit().is_some_and(|left| left.is_zero());
            if wanted != refreshed || is_due {
                if !self.refresh() {
                    return;
                }
                refreshed = wanted;
                self.root.state.write().refreshed = wanted;
                self.root.announce();
                continue;
            }
            wait(self.woken, self.watcher.as_ref(), self.poll_limit());
            if !self.work_on_notices() {
                return;
            }
        }
    }

    /// Returns the time until the next walk by polling; `None` if nobody needs one.
    fn poll_limit(&self) -> Option<Duration> {
        if self.watcher.is_some() || self.root.n_subscribers() == 0 {
            return None;
        }
        let state = self.root.state.read();
        let interval = POLL_INTERVAL.max(state.walk_cost * POLL_COST);
        Some(interval.saturating_sub(state.walked_at.elapsed()))
    }

    /// Walks the root again; returns false if it is not the same directory any more.
    fn refresh(&mut self) -> bool {
        if !self.is_same_root() {
            return false;
        }
        let RootRules { rules, sources, warnings } = self.root.rules(&self.path);
        self.rules = rules;
        {
            let mut state = self.root.state.write();
            state.sources = Arc::new(sources);
            state.above_warnings = warnings;
        }
        let changes = Mutex::new(ChangeSet::default());
        self.walk_all(Some(&changes));
        self.publish(changes.into_inner());
        true
    }

    fn is_same_root(&self) -> bool {
        find_root(&self.root.key.path).is_ok_and(|(_, identity)| identity == self.identity)
    }

    /// Reads every directory of the root.
    fn walk_all(&mut self, changes: Option<&Mutex<ChangeSet>>) {
        let _permit = self.permits.acquire();
        let started = Instant::now();
        let job = WalkJob { dir: Vec::new(), depth: 0, rules: Arc::clone(&self.rules) };
        let end = self.walk(vec![job], changes, &|_| true);
        let mut state = self.root.state.write();
        state.walked_at = Instant::now();
        state.walk_cost = started.elapsed();
        drop(state);
        if end.out_of_watches {
            self.give_up_watching();
        }
    }

    /// Reads directories into the tree. `changes` are not collected by a first walk, whose callers list anyway.
    fn walk(
        &self,
        jobs: Vec<WalkJob>,
        changes: Option<&Mutex<ChangeSet>>,
        descend: &(dyn Fn(&[u8]) -> bool + Sync),
    ) -> WalkEnd {
        let unwatched = Mutex::new(Vec::new());
        let deliver = |listing: PackedListing, warnings: Vec<FileWarning>| {
            self.take(listing, warnings, changes, &unwatched)
        };
        let walk = TreeWalk {
            root: &self.path,
            device: self.identity.0,
            max_depth: self.root.key.max_depth,
            watcher: self.watcher.as_ref(),
            stamps: self.watcher.is_none(),
            descend,
            deliver: &deliver,
            stop: &self.root.stop,
        };
        let end = walk.run(jobs);
        if let Some(watcher) = &self.watcher {
            let state = self.root.state.read();
            // A directory that was moved has the same watch in its new place.
            let is_unused = |watch: &i32| state.tree.watched(*watch).is_none();
            unwatched
                .into_inner()
                .into_iter()
                .filter(is_unused)
                .for_each(|watch| watcher.remove(watch));
        }
        end
    }

    /// Takes a directory into the tree; returns false if the root has too many files.
    fn take(
        &self,
        listing: PackedListing,
        warnings: Vec<FileWarning>,
        changes: Option<&Mutex<ChangeSet>>,
        unwatched: &Mutex<Vec<i32>>,
    ) -> bool {
        let mut changes_guard = changes.map(Mutex::lock);
        let mut unwatched = unwatched.lock();
        let mut state = self.root.state.write();
        state.read_at = Instant::now();
        // A directory that the one above it does not list any more, because it was read at the same time.
        let is_listed =
            listing.dir.is_empty() || state.tree.kind(&listing.dir) == Some(EntryKind::Directory);
        if !is_listed {
            unwatched.extend(listing.watches());
            return true;
        }
        if warnings.is_empty() {
            state.warnings.remove(&listing.dir);
        } else if state.warnings.len() < MAX_WARNED {
            state.warnings.insert(listing.dir.clone(), warnings);
        }
        let key = state.tree.replace(listing, changes_guard.as_deref_mut(), &mut unwatched);
        if changes.is_none() {
            state.walk_order.push(key);
        }
        let is_progress = changes.is_none() && state.walk_order.len() % PROGRESS_EVERY == 1;
        state.is_cut = state.tree.n_files() > MAX_FILES;
        let goes_on = !state.is_cut;
        drop(state);
        if is_progress {
            self.root.announce();
        }
        goes_on
    }

    /// Polls the root from now on, because the user has no watches left. Those of this root are given back.
    fn give_up_watching(&mut self) {
        tracing::warn!(root = %self.path.display(), "no inotify watches are left, so this root is polled");
        self.watcher = None;
        self.root.state.write().mode = FollowMode::Poll;
        // Stamps of files are needed from now on, and changes before this walk are unknown.
        let changes = Mutex::new(ChangeSet::default());
        let job = WalkJob { dir: Vec::new(), depth: 0, rules: Arc::clone(&self.rules) };
        self.walk(vec![job], Some(&changes), &|_| true);
        self.root.state.write().journal.resync();
        self.root.announce();
    }

    /// Works on waiting notices; returns false if the root is gone.
    fn work_on_notices(&mut self) -> bool {
        let Some(watcher) = &self.watcher else { return true };
        let mut notices = Vec::new();
        let mut is_whole = watcher.read(&mut notices);
        if notices.is_empty() && is_whole {
            return true;
        }
        // What follows at once belongs to the same batch. Batches that take long are made less often.
        let end = Instant::now() + DEBOUNCE.max(self.last_cost).min(MAX_DEBOUNCE);
        while !self.root.stop.load(Ordering::Relaxed) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            wait(self.woken, None, Some(left));
        }
        is_whole &= watcher.read(&mut notices);
        let started = Instant::now();
        let goes_on = if is_whole { self.work_on(&notices) } else { self.recover() };
        self.last_cost = started.elapsed();
        goes_on
    }

    /// Walks the root again after notices were lost. The difference of names is known, that of contents is not.
    fn recover(&mut self) -> bool {
        tracing::debug!(root = %self.path.display(), "notices of changes were lost, so the root is walked again");
        if let Some(watcher) = &self.watcher {
            (0..MAX_DRAINS).any(|_| watcher.read(&mut Vec::new()));
        }
        if !self.refresh() {
            return false;
        }
        self.root.state.write().journal.resync();
        self.root.announce();
        true
    }

    fn work_on(&mut self, notices: &[WatchNotice]) -> bool {
        let dirty = self.classify(notices);
        if dirty.is_root_gone && !self.is_same_root() {
            return false;
        }
        let changes = Mutex::new(ChangeSet::default());
        if dirty.dirs.len() + dirty.deep.len() > MAX_DIRTY {
            self.walk_all(Some(&changes));
        } else if !dirty.dirs.is_empty() {
            self.read_again(&dirty, &changes);
        }
        let mut changes = changes.into_inner();
        let state = self.root.state.read();
        let is_file = |path: &[u8]| {
            matches!(state.tree.kind(path), Some(EntryKind::File | EntryKind::Symlink))
        };
        for path in dirty.touched.into_iter().filter(|path| is_file(path)) {
            changes.modify(path);
        }
        drop(state);
        dirty.moves.iter().for_each(|(from, to)| changes.rename(from, to));
        self.publish(changes);
        true
    }

    fn publish(&self, changes: ChangeSet) {
        if !changes.is_empty() {
            self.root.state.write().journal.push(changes);
            self.root.announce();
        }
    }

    /// Finds out what notices mean for the tree.
    fn classify(&self, notices: &[WatchNotice]) -> Dirty {
        let mut dirty = Dirty::default();
        let mut moved_from: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        let mut state = self.root.state.write();
        for notice in notices {
            let dir = match state.tree.watched(notice.watch) {
                Some(Watched::Directory(dir)) => Arc::clone(dir),
                Some(Watched::Exclude(dir)) => {
                    dirty.read_deep(dir);
                    if notice.kind == NoticeKind::Ended {
                        state.tree.forget_watch(notice.watch);
                    }
                    continue;
                }
                None => continue,
            };
            let path = if notice.name.is_empty() { dir.to_vec() } else { join(&dir, &notice.name) };
            let is_attribute = notice.kind == NoticeKind::Modified && notice.is_dir;
            if decides(&notice.name) && !is_attribute {
                dirty.read_deep(&dir);
            }
            match notice.kind {
                NoticeKind::Ended => {
                    state.tree.forget_watch(notice.watch);
                    // A directory of the same name may have taken its place already.
                    dirty.read_deep(&dir);
                    dirty.is_root_gone |= dir.is_empty();
                    continue;
                }
                NoticeKind::SelfGone => {
                    dirty.is_root_gone |= dir.is_empty();
                    dirty.dirs.insert(split(&dir).0.to_vec());
                    continue;
                }
                NoticeKind::Modified => {
                    let set = if notice.is_dir || notice.name.is_empty() {
                        &mut dirty.dirs
                    } else {
                        &mut dirty.touched
                    };
                    set.insert(path);
                    continue;
                }
                NoticeKind::Removed => {}
                NoticeKind::MovedFrom(cookie) => drop(moved_from.insert(cookie, path)),
                NoticeKind::Created | NoticeKind::MovedTo(_) => {
                    if let NoticeKind::MovedTo(cookie) = notice.kind
                        && let Some(from) = moved_from.remove(&cookie)
                    {
                        dirty.moves.push((from, path.clone()));
                    }
                    let set = if notice.is_dir { &mut dirty.deep } else { &mut dirty.touched };
                    set.insert(path);
                }
            }
            dirty.dirs.insert(dir.to_vec());
        }
        dirty
    }

    /// Reads the changed directories, and what is new in them.
    fn read_again(&mut self, dirty: &Dirty, changes: &Mutex<ChangeSet>) {
        let jobs = {
            let state = self.root.state.read();
            let is_known = |dir: &&Vec<u8>| dir.is_empty() || state.tree.dir(dir).is_some();
            dirty.dirs.iter().filter(is_known).cloned().collect::<Vec<_>>()
        };
        let jobs = jobs.into_iter().map(|dir| self.job(dir)).collect();
        let descend = |dir: &[u8]| {
            ancestors(dir).any(|dir| dirty.deep.contains(dir))
                || self.root.state.read().tree.dir(dir).is_none()
        };
        if self.walk(jobs, Some(changes), &descend).out_of_watches {
            self.give_up_watching();
        }
    }

    /// Returns the job for a directory, with the rules of those above it.
    fn job(&self, dir: Vec<u8>) -> WalkJob {
        let mut rules = Arc::clone(&self.rules);
        let mut depth = 0;
        let above: Vec<&[u8]> = ancestors(&dir).skip(1).collect();
        for dir in above.into_iter().rev() {
            rules = rules.child_by_probing(&absolute(&self.path, dir));
            depth += 1;
        }
        WalkJob { dir, depth, rules }
    }
}

impl Dirty {
    /// Notes that a directory must be read again with everything in it.
    fn read_deep(&mut self, dir: &[u8]) {
        self.dirs.insert(dir.to_vec());
        self.deep.insert(dir.to_vec());
    }
}

/// Returns a directory and those above it, the root last.
fn ancestors(dir: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(dir), |dir| (!dir.is_empty()).then(|| split(dir).0))
}

/// Returns the path of a root without links, its file system and its inode.
fn find_root(path: &Path) -> Result<(PathBuf, (u64, u64)), RootProblem> {
    let problem = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => RootProblem::NotFound,
        std::io::ErrorKind::NotADirectory => RootProblem::NotADirectory,
        _ => RootProblem::Unreadable(error.to_string()),
    };
    let path = path.canonicalize().map_err(problem)?;
    let found = rustix::fs::stat(&path).map_err(|error| problem(error.into()))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
        return Err(RootProblem::NotADirectory);
    }
    // Unlike a directory within the root, the root itself must be readable.
    let readable =
        rustix::fs::access(&path, rustix::fs::Access::READ_OK | rustix::fs::Access::EXEC_OK);
    readable.map_err(|error| problem(error.into()))?;
    Ok((path, (device_of(&found), found.st_ino)))
}
