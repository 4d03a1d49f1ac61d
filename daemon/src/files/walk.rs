//! Walks of a root: directories are read by a few threads, each with the rules of the directories above it.
//!
//! Each directory is watched before it is read, and delivered as soon as it is read. A walk begins with any directories,
//! so the first walk, a walk after lost notices and the reading of one changed directory are the same code.
//!
//! **Invariants**: no link is followed and no other file system entered. A directory that cannot be read costs a warning
//! and nothing else. Delivers each directory once, and a directory before those in it.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::hash::Hasher as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHasher;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::FileWarning;
use super::rules::{PresentFiles, Rules};
use super::tree::{EntryKind, Listing, PackedListing, join};
use super::watch::{self, DirWatcher};
use crate::fsutil;

/// The most threads of a walk. Reading directories waits for the kernel's locks beyond that.
const MAX_THREADS: usize = 8;
/// A further thread starts when so many directories wait.
const WAITING_FOR_THREAD: usize = 8;

/// A directory to read, with the rules of the directories above it.
pub(crate) struct WalkJob {
    pub(crate) dir: Vec<u8>,
    pub(crate) depth: u32,
    pub(crate) rules: Arc<Rules>,
}

/// The settings of a walk, and the functions that take its results.
pub(crate) struct TreeWalk<'a> {
    pub(crate) root: &'a Path,
    /// The file system of the root.
    pub(crate) device: u64,
    /// The depth of the deepest entries; those of the root have depth 1.
    pub(crate) max_depth: Option<u32>,
    pub(crate) watcher: Option<&'a DirWatcher>,
    /// Set if each file gets a stamp of its time and size.
    pub(crate) stamps: bool,
    /// The most entries that are read from one directory.
    pub(crate) max_entries: usize,
    /// Returns whether a subdirectory is read too.
    pub(crate) descend: &'a (dyn Fn(&[u8]) -> bool + Sync),
    /// Takes a directory; returns whether its subdirectories are read too.
    pub(crate) deliver: &'a (dyn Fn(PackedListing, Vec<FileWarning>) -> bool + Sync),
    pub(crate) stop: &'a AtomicBool,
}

/// The jobs of a walk and its threads.
struct Queue {
    jobs: Vec<WalkJob>,
    /// The threads that read a directory, which may lead to further jobs.
    n_busy: usize,
    n_threads: usize,
}

/// The outcome of a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalkEnd {
    /// Set if a directory is not watched, usually because the user has no watches left.
    pub(crate) out_of_watches: bool,
}

struct Shared<'a> {
    walk: &'a TreeWalk<'a>,
    mounts: HashSet<PathBuf>,
    queue: Mutex<Queue>,
    more: Condvar,
    ended: AtomicBool,
    out_of_watches: AtomicBool,
}

impl TreeWalk<'_> {
    /// Reads directories and everything in them, and returns when all are read or the walk was stopped.
    pub(crate) fn run(&self, jobs: Vec<WalkJob>) -> WalkEnd {
        let shared = Shared {
            walk: self,
            mounts: mount_points(),
            queue: Mutex::new(Queue { jobs, n_busy: 0, n_threads: 1 }),
            more: Condvar::new(),
            ended: AtomicBool::new(false),
            out_of_watches: AtomicBool::new(false),
        };
        let n_threads =
            std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MAX_THREADS);
        std::thread::scope(|scope| {
            let spawn = || {
                let thread = std::thread::Builder::new().name("ollmd-walk".to_owned());
                // Without a thread the walk takes longer.
                thread.spawn_scoped(scope, || shared.work(&|_| ())).is_ok()
            };
            shared.work(&|n_waiting| {
                let mut queue = shared.queue.lock();
                if n_waiting >= WAITING_FOR_THREAD && queue.n_threads < n_threads {
                    queue.n_threads += 1;
                    drop(queue);
                    spawn();
                }
            });
        });
        WalkEnd { out_of_watches: shared.out_of_watches.load(Ordering::Relaxed) }
    }
}

impl Shared<'_> {
    /// Reads directories until none is left. `grow` is called with the number of waiting ones after each.
    fn work(&self, grow: &dyn Fn(usize)) {
        while let Some(mut busy) = self.next() {
            self.read(&mut busy);
            let n_waiting = busy.finish();
            grow(n_waiting);
        }
    }

    fn next(&self) -> Option<BusyWalker<'_>> {
        let mut queue = self.queue.lock();
        loop {
            if self.ended.load(Ordering::Relaxed) || self.walk.stop.load(Ordering::Relaxed) {
                self.ended.store(true, Ordering::Relaxed);
                return None;
            }
            if let Some(job) = queue.jobs.pop() {
                queue.n_busy += 1;
                return Some(BusyWalker { shared: self, job: Some(job), found: Vec::new() });
            }
            if queue.n_busy == 0 {
                return None;
            }
            self.more.wait(&mut queue);
        }
    }

    /// Reads a directory and delivers it; its subdirectories are what the walker found.
    fn read(&self, busy: &mut BusyWalker<'_>) {
        let Some(WalkJob { dir, depth, rules }) = busy.job.take() else { return };
        let mut warnings = Vec::new();
        let path = absolute(self.walk.root, &dir);
        let mut listing = Listing::new(dir);
        let rules = self.list(&path, depth, &rules, &mut listing, &mut warnings);
        if let Some(rules) = rules {
            let is_in_depth = self.walk.max_depth.is_none_or(|max| depth + 1 < max);
            for name in listing.subdirectories().filter(|_| is_in_depth) {
                let (dir, rules) = (join(&listing.dir, name), Arc::clone(&rules));
                busy.found.push(WalkJob { dir, depth: depth + 1, rules });
            }
        }
        if (self.walk.deliver)(listing.pack(), warnings) {
            busy.found.retain(|job| (self.walk.descend)(&job.dir));
        } else {
            busy.found.clear();
        }
    }

    /// Fills the listing of a directory; returns the rules for its entries, or `None` if it cannot be read.
    fn list(
        &self,
        path: &Path,
        depth: u32,
        rules: &Arc<Rules>,
        listing: &mut Listing,
        warnings: &mut Vec<FileWarning>,
    ) -> Option<Arc<Rules>> {
        if self.walk.max_depth.is_some_and(|max| depth >= max) {
            return None;
        }
        let shown = String::from_utf8_lossy(&listing.dir).into_owned();
        let mut warn = |problem: String| warnings.push(FileWarning::new(&shown, problem));
        // Known without touching it: the machine behind a mount point may not answer.
        if !listing.dir.is_empty() && self.mounts.contains(path) {
            warn("this directory is skipped: it is another file system".to_owned());
            return None;
        }
        listing.watch = self.watch(path);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Ok(fd) => fd,
            // The directory vanished or was replaced; its parent then changed as well.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return None,
            Err(error) => {
                warn(format!("this directory is skipped: {error}"));
                return None;
            }
        };
        match rustix::fs::fstat(&fd) {
            Ok(found) if device_of(&found) != self.walk.device => {
                warn("this directory is skipped: it is another file system".to_owned());
                return None;
            }
            Ok(_) => {}
            Err(error) => warn(error.to_string()),
        }
        let mut present = PresentFiles::default();
        if let Err(error) = self.entries(fd, listing, &mut present) {
            let problem = format!("this directory is not read to its end: {error}");
            warnings.push(FileWarning::new(&String::from_utf8_lossy(&listing.dir), problem));
        }
        let (rules, exclude) = rules.child(path, present, warnings);
        listing.exclude_watch =
            exclude.as_deref().and_then(Path::parent).and_then(|dir| self.watch(dir));
        let mut entry_path = path.as_os_str().as_bytes().to_vec();
        entry_path.push(b'/');
        let base = entry_path.len();
        listing.retain(|name, kind| {
            entry_path.truncate(base);
            entry_path.extend_from_slice(name);
            !rules.ignores(
                Path::new(OsStr::from_bytes(&entry_path)),
                name,
                kind == EntryKind::Directory,
            )
        });
        Some(rules)
    }

    /// Adds all files, links and directories to a listing.
    fn entries(
        &self,
        fd: rustix::fd::OwnedFd,
        listing: &mut Listing,
        present: &mut PresentFiles,
    ) -> Result<(), Errno> {
        let mut entries = rustix::fs::Dir::new(fd)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let mut file_type = entry.file_type();
            let mut stamp = 0;
            if self.walk.stamps || file_type == FileType::Unknown {
                let Ok(found) = rustix::fs::statat(entries.fd()?, name, AtFlags::SYMLINK_NOFOLLOW)
                else {
                    continue;
                };
                file_type = FileType::from_raw_mode(found.st_mode);
                stamp = if self.walk.stamps { stamp_of(&found) } else { 0 };
            }
            let kind = match file_type {
                FileType::RegularFile => EntryKind::File,
                FileType::Symlink => EntryKind::Symlink,
                FileType::Directory => EntryKind::Directory,
                _ => continue,
            };
            present.see(name.to_bytes());
            if listing.len() >= self.walk.max_entries || !listing.push(name.to_bytes(), kind, stamp)
            {
                return Err(Errno::OVERFLOW);
            }
        }
        Ok(())
    }

    fn watch(&self, path: &Path) -> Option<i32> {
        if self.out_of_watches.load(Ordering::Relaxed) {
            return None;
        }
        match self.walk.watcher?.add(path) {
            Ok(watch) => Some(watch),
            Err(error) => {
                if !watch::is_harmless(&error) {
                    tracing::debug!(path = %path.display(), %error, "a directory is not watched");
                    self.out_of_watches.store(true, Ordering::Relaxed);
                }
                None
            }
        }
    }
}

/// A thread that reads a directory. Dropped without [`BusyWalker::finish`], in a panic, it ends the walk, so that the
/// other threads do not wait for it.
struct BusyWalker<'a> {
    shared: &'a Shared<'a>,
    job: Option<WalkJob>,
    found: Vec<WalkJob>,
}

impl BusyWalker<'_> {
    /// Returns the number of directories that wait.
    fn finish(mut self) -> usize {
        let found = std::mem::take(&mut self.found);
        let mut queue = self.shared.queue.lock();
        // The last one is read first, so the walk goes into depth and few directories wait.
        queue.jobs.extend(found.into_iter().rev());
        queue.jobs.len()
    }
}

impl Drop for BusyWalker<'_> {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        if std::thread::panicking() {
            self.shared.ended.store(true, Ordering::Relaxed);
        }
        queue.n_busy -= 1;
        drop(queue);
        self.shared.more.notify_all();
    }
}

/// Returns the directories at which other file systems begin; none if the system does not list them.
fn mount_points() -> HashSet<PathBuf> {
    // A file of the kernel, which no other machine has to answer for.
    let Ok(text) = fsutil::read_regular(Path::new("/proc/self/mountinfo")) else {
        return HashSet::new();
    };
    text.split(|byte| *byte == b'\n').filter_map(mount_point).collect()
}

/// Returns the mount point of a line of `mountinfo`, its fifth field, in which blanks are octal numbers.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let field = line.split(|byte| *byte == b' ').nth(4)?;
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let number =
            octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        path.push(number.unwrap_or(*first));
        rest = if number.is_some() { &after[3..] } else { after };
    }
    Some(PathBuf::from(OsString::from_vec(path)))
}

/// Returns the path of a directory of a root.
pub(crate) fn absolute(root: &Path, dir: &[u8]) -> PathBuf {
    if dir.is_empty() {
        return root.to_owned();
    }
    let mut path = root.as_os_str().as_bytes().to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(dir);
    PathBuf::from(OsString::from_vec(path))
}

/// Returns the file system of a file.
#[expect(clippy::unnecessary_cast, reason = "the type of the field depends on the system")]
pub(crate) fn device_of(found: &Stat) -> u64 {
    found.st_dev as u64
}

/// Returns a hash of the time, the size and the inode of a file; never 0.
fn stamp_of(found: &Stat) -> u32 {
    let mut hasher = FxHasher::default();
    hasher.write_i64(found.st_mtime);
    hasher.write_i64(found.st_mtime_nsec.cast_signed());
    hasher.write_i64(found.st_size);
    hasher.write_u64(found.st_ino);
    ((hasher.finish() >> 32) as u32).max(1)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn mount_points_have_any_name() {
        let check = |line: &str, expected: Option<&str>| {
            assert_eq!(mount_point(line.as_bytes()), expected.map(PathBuf::from), "{line}");
        };
        check("36 35 98:0 / /mnt/a\\040b\\134c rw,noatime - nfs host:/ rw", Some("/mnt/a b\\c"));
        check("22 1 0:21 / / rw - ext4 /dev/vda rw", Some("/"));
        check("22 1", None);
    }
}
