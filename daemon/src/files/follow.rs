//! The thread of a root: it keeps the tree equal to the disk while the root exists, and waits for it otherwise.
//!
//! The thread walks the root, then sleeps until a watch or a caller wakes it. Notices are collected for [`DEBOUNCE`] and
//! become one batch: changed directories are read again, a changed ignore file makes its whole subtree be read again, and
//! many changes or lost notices make the root be walked again. Where nothing can be watched, the thread polls, but only
//! while somebody subscribes; otherwise callers ask for a walk when the last one is too old.
//!
//! **Invariants**: no lock is held while the disk is waited for. A change is in the tree before its generation exists, so
//! nobody misses it who lists and then asks for what came since. A notice of a change of a file is applied after the moves
//! of its batch, to the place that the file has then. A panic costs the tree, which the next call or the next look reads
//! anew; nobody waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::FileType;

use super::changes::ChangeSet;
use super::root::{FollowMode, POLL_INTERVAL, Phase, PollReason, Root, RootState, wait};
use super::rules::{RootRules, Rules, decides};
use super::tree::{EntryKind, PackedListing, Tree, join, split};
use super::walk::{TreeWalk, WalkEnd, WalkJob, absolute, device_of};
use super::watch::{DirWatcher, NoticeKind, WatchNotice, misses_changes};
use super::{FileWarning, RootProblem, WalkPermits};

/// Changes are collected for this long before they become a batch. Editors and compilers write files in several steps.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// The longest collection of changes, when batches take long to work on.
const MAX_DEBOUNCE: Duration = Duration::from_secs(2);
/// With more changed directories than this, the root is walked again, which reads each once.
const MAX_DIRTY: usize = 64;
/// A walk by polling may take this share of the time: one tenth.
const POLL_COST: u32 = 10;
/// The number of times that the queue of notices is emptied after an overflow, while further ones come.
const MAX_DRAINS: usize = 16;
/// The most directories whose warnings are kept.
const MAX_WARNED: usize = 1_000;
/// Waiting callers are woken after so many directories of a walk.
const PROGRESS_EVERY: usize = 16;

/// Follows a root until it is stopped.
pub(super) fn run(root: &Root, woken: &UnixStream, permits: &WalkPermits) {
    while !root.stop.load(Ordering::Relaxed) {
        let wanted = root.refresh_wanted.load(Ordering::SeqCst);
        // A lock that the panic left is free again, and what it protected is replaced or read anew.
        let followed = catch_unwind(AssertUnwindSafe(|| {
            Follower::open(root, woken, permits).map(|follower| follower.follow(wanted))
        }));
        let followed = followed.unwrap_or_else(|_panic| {
            tracing::error!(root = %root.key.path.display(), "the thread of a root panicked");
            Err(RootProblem::Internal)
        });
        let Err(problem) = followed else { continue };
        root.lose(problem, wanted);
        // Nobody notices that a directory comes back, except by looking.
        let limit = (root.n_subscribers() > 0).then_some(POLL_INTERVAL);
        if root.refresh_wanted.load(Ordering::SeqCst) == wanted {
            wait(woken, None, limit);
        }
    }
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
    /// The time that the last batch took, and its end.
    last_cost: Duration,
    last_end: Instant,
    /// Set if the tree has as many files as it may.
    is_full: AtomicBool,
}

/// An entry of the directory that has a watch. Unlike a path it stays right when the directory is moved.
type WatchedEntry = (i32, Vec<u8>);

/// The meaning of notices for the tree.
#[derive(Default)]
struct Dirty {
    /// Directories to read again.
    dirs: BTreeSet<Vec<u8>>,
    /// Directories to read again with everything in them, if they are still there.
    deep: BTreeSet<Vec<u8>>,
    /// Entries that appeared, perhaps in the place of another one, each with the path that it had before the batch; none
    /// for a new one.
    appeared: BTreeMap<WatchedEntry, Option<Vec<u8>>>,
    /// Entries whose content or rights changed, in the place that they have after all moves.
    modified: BTreeSet<WatchedEntry>,
    moves: Vec<(Vec<u8>, Vec<u8>)>,
    /// Set if the root may be gone, or closed to the user.
    is_root_doubtful: bool,
}

impl<'a> Follower<'a> {
    /// Opens the root.
    fn open(
        root: &'a Root,
        woken: &'a UnixStream,
        permits: &'a WalkPermits,
    ) -> Result<Self, RootProblem> {
        let (path, identity) = find_root(&root.key.path)?;
        let watcher = watcher_for(root, &path);
        if let Err(reason) = &watcher {
            tracing::debug!(root = %path.display(), ?reason, "a root is polled");
        }
        let RootRules { rules, sources, warnings } = root.rules(&path);
        let mut state = root.state.write();
        state.mode =
            watcher.as_ref().map_or_else(|reason| FollowMode::Poll(*reason), |_| FollowMode::Watch);
        state.identity = Some(identity);
        state.sources = Arc::new(sources);
        state.above_warnings = warnings;
        drop(state);
        Ok(Self {
            root,
            woken,
            permits,
            path,
            identity,
            watcher: watcher.ok(),
            rules,
            last_cost: Duration::ZERO,
            last_end: Instant::now(),
            is_full: AtomicBool::new(false),
        })
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
            state.read_at = Instant::now();
        }
        self.walk_all(None);
        let mut state = self.root.state.write();
        state.phase = Phase::Ready;
        state.read_at = Instant::now();
        // Subscribers that saw the root vanish, or know another directory of this name, must list again.
        if std::mem::replace(&mut state.has_walked, true) {
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
        let watches_again =
            self.root.watch_wanted.swap(false, Ordering::SeqCst) && self.watch_again();
        self.walk_all(Some(&changes));
        if watches_again {
            // Files of a watched root have no stamps, so what was written since the last walk is not known.
            self.root.state.write().journal.resync();
            self.root.announce();
        } else {
            self.publish(changes.into_inner());
        }
        true
    }

    /// Begins to watch a root with the next walk, if it is polled because no watches were left. Returns whether it does.
    fn watch_again(&mut self) -> bool {
        if self.root.state.read().mode != FollowMode::Poll(PollReason::NoWatches) {
            return false;
        }
        let Ok(watcher) = watcher_for(self.root, &self.path) else { return false };
        self.watcher = Some(watcher);
        self.root.state.write().mode = FollowMode::Watch;
        true
    }

    fn is_same_root(&self) -> bool {
        find_root(&self.root.key.path).is_ok_and(|(_, identity)| identity == self.identity)
    }

    /// Reads every directory of the root.
    fn walk_all(&mut self, changes: Option<&Mutex<ChangeSet>>) {
        let _permit = self.permits.acquire(self.root.limits.walk_patience);
        let started = Instant::now();
        {
            // Each directory without room sets it again.
            let mut state = self.root.state.write();
            state.is_cut = false;
            state.read_at = started;
        }
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
            #[cfg(test)]
            self.root.limits.on_read.call(&self.root.key.path, &listing.dir);
            self.take(listing, warnings, changes, &unwatched)
        };
        let descend = |dir: &[u8]| descend(dir) && self.has_room(dir);
        let walk = TreeWalk {
            root: &self.path,
            device: self.identity.0,
            max_depth: self.root.key.max_depth,
            watcher: self.watcher.as_ref(),
            stamps: self.watcher.is_none(),
            max_entries: self.root.limits.max_files,
            descend: &descend,
            deliver: &deliver,
            stop: &self.root.stop,
        };
        let end = walk.run(jobs);
        if let Some(watcher) = &self.watcher {
            let state = self.root.state.read();
            // A directory that was moved has the same watch in its new place.
            let is_unused = |watch: &i32| !state.tree.needs(*watch);
            unwatched
                .into_inner()
                .into_iter()
                .filter(is_unused)
                .for_each(|watch| watcher.remove(watch));
        }
        end
    }

    /// Returns whether a directory is read, and notes that it is missing if it is not.
    fn has_room(&self, dir: &[u8]) -> bool {
        let has_room =
            !self.is_full.load(Ordering::Relaxed) || self.root.state.read().tree.dir(dir).is_some();
        if !has_room {
            self.root.state.write().is_cut = true;
        }
        has_room
    }

    /// Takes a directory into the tree; returns false if it has no place there. Beyond the limit of files, only those
    /// directories are taken that are in the tree already, so that these stay right.
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
        let has_room = !self.is_full.load(Ordering::Relaxed)
            || listing.dir.is_empty()
            || state.tree.dir(&listing.dir).is_some();
        if !is_listed || !has_room {
            state.is_cut |= is_listed;
            unwatched.extend(listing.watches());
            return false;
        }
        if warnings.is_empty() {
            state.warnings.remove(&listing.dir);
        } else {
            if state.warnings.len() >= MAX_WARNED {
                let RootState { tree, warnings, .. } = &mut *state;
                warnings.retain(|dir, _| tree.dir(dir).is_some());
            }
            if state.warnings.len() < MAX_WARNED {
                state.warnings.insert(listing.dir.clone(), warnings);
            }
        }
        let key = state.tree.replace(listing, changes_guard.as_deref_mut(), &mut unwatched);
        let is_full = state.tree.n_files() >= self.root.limits.max_files;
        self.is_full.store(is_full, Ordering::Relaxed);
        if changes.is_none() {
            state.walk_order.push(key);
        }
        let is_progress = changes.is_none() && state.walk_order.len() % PROGRESS_EVERY == 1;
        drop(state);
        if is_progress {
            self.root.announce();
        }
        true
    }

    /// Polls the root from now on, because the user has no watches left. Those of this root are given back.
    fn give_up_watching(&mut self) {
        tracing::warn!(root = %self.path.display(), "no inotify watches are left, so this root is polled");
        self.watcher = None;
        {
            let mut state = self.root.state.write();
            state.mode = FollowMode::Poll(PollReason::NoWatches);
            state.is_cut = false;
        }
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
        // What follows at once belongs to the same batch.
        let end = Instant::now() + debounce(self.last_cost, self.last_end.elapsed());
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
        self.last_end = Instant::now();
        self.last_cost = self.last_end - started;
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
        if dirty.is_root_doubtful && !self.is_same_root() {
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
        // Looked up after reading, when a directory that was moved has its new place.
        let place = |(watch, name): &WatchedEntry| {
            let path = join(state.tree.watched(*watch)?, name);
            state.tree.kind(&path).map(|kind| (path, kind))
        };
        dirty.moves.iter().for_each(|(from, to)| changes.rename(from, to));
        for (entry, origin) in &dirty.appeared {
            match place(entry) {
                Some((path, kind))
                    if kind != EntryKind::Directory && !changes.has_renamed(&path) =>
                {
                    changes.modify(path);
                }
                Some((path, _)) => changes.modify_unless_from(&path, origin.as_deref()),
                None => {}
            }
        }
        let modified = dirty.modified.iter().filter_map(place);
        modified
            .filter(|(_, kind)| *kind != EntryKind::Directory)
            .for_each(|(path, _)| changes.modify(path));
        drop(state);
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
        // By cookie: the path before the batch, and whether the file was modified since.
        let mut moved_from: BTreeMap<u32, (Option<Vec<u8>>, bool)> = BTreeMap::new();
        let mut state = self.root.state.write();
        for notice in notices {
            state.tree.excluding(notice.watch).for_each(|dir| dirty.read_deep(dir));
            let dir = state.tree.watched(notice.watch).cloned();
            if notice.kind == NoticeKind::Ended {
                state.tree.forget_watch(notice.watch);
            }
            let Some(dir) = dir else { continue };
            let path = if notice.name.is_empty() { dir.to_vec() } else { join(&dir, &notice.name) };
            let is_attribute = notice.kind == NoticeKind::Modified && notice.is_dir;
            if decides(&notice.name) && !is_attribute {
                dirty.read_deep(&dir);
            }
            let entry = (notice.watch, notice.name.clone());
            match notice.kind {
                NoticeKind::Ended => {
                    // A directory of the same name may have taken its place already.
                    dirty.read_deep(&dir);
                    dirty.is_root_doubtful |= dir.is_empty();
                    continue;
                }
                NoticeKind::SelfGone => {
                    dirty.is_root_doubtful |= dir.is_empty();
                    dirty.dirs.insert(split(&dir).0.to_vec());
                    continue;
                }
                NoticeKind::Modified if notice.is_dir || notice.name.is_empty() => {
                    // The rights of a directory, without which it cannot be read.
                    dirty.is_root_doubtful |= path.is_empty();
                    dirty.dirs.insert(path);
                    continue;
                }
                NoticeKind::Modified => {
                    dirty.modified.insert(entry);
                    continue;
                }
                NoticeKind::Removed => {
                    dirty.appeared.remove(&entry);
                    dirty.modified.remove(&entry);
                }
                NoticeKind::MovedFrom(cookie) => {
                    let origin = dirty.appeared.remove(&entry).unwrap_or(Some(path));
                    let was_modified = dirty.modified.remove(&entry);
                    moved_from.insert(cookie, (origin, was_modified));
                }
                NoticeKind::Created | NoticeKind::MovedTo(_) => {
                    let moved = match notice.kind {
                        NoticeKind::MovedTo(cookie) => moved_from.remove(&cookie),
                        _ => None,
                    };
                    let (origin, was_modified) = moved.unwrap_or_default();
                    dirty.moves.extend(origin.clone().map(|origin| (origin, path.clone())));
                    dirty.modified.remove(&entry);
                    if was_modified {
                        dirty.modified.insert(entry.clone());
                    }
                    dirty.appeared.insert(entry, origin);
                    if notice.is_dir {
                        dirty.deep.insert(path);
                    }
                }
            }
            dirty.dirs.insert(dir.to_vec());
        }
        dirty
    }

    /// Reads the changed directories and their new subdirectories.
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

/// Returns the watcher of a root.
///
/// **Errors**: the reason why it is polled.
fn watcher_for(root: &Root, path: &Path) -> Result<DirWatcher, PollReason> {
    if root.limits.max_watch == 0 {
        return Err(PollReason::NoSupport);
    }
    if misses_changes(path) {
        return Err(PollReason::RemoteFiles);
    }
    DirWatcher::new(root.limits.max_watch).map_err(|error| match error.kind() {
        std::io::ErrorKind::Unsupported => PollReason::NoSupport,
        _ => PollReason::NoWatches,
    })
}

/// Returns the time for which changes are collected. While batches take long, as much time lies between them as they take.
fn debounce(last_cost: Duration, since_last: Duration) -> Duration {
    DEBOUNCE.max(last_cost.saturating_sub(since_last)).min(MAX_DEBOUNCE)
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

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn changes_wait_for_what_is_left_of_the_time_of_the_last_batch() {
        let check = |cost, since, expected| {
            let ms = Duration::from_millis;
            assert_eq!(debounce(ms(cost), ms(since)), ms(expected), "{cost} {since}");
        };
        check(0, 0, 50);
        check(700, 0, 700);
        check(700, 500, 200);
        check(700, 690, 50);
        check(700, 60_000, 50);
        check(60_000, 1, 2_000);
    }
}
