//! Syncs of a whole file system, each in place of the syncs of many files.
//!
//! A sync of each of ten thousand files takes minutes; a sync of their file system takes about as long as writing them.
//! But it also writes what others wrote, and not every system promises as much as for a single file.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::beneath::Dir;
use super::disk::{self, Change, carry_out};
use super::{FsError, TemporaryFile, TemporaryName, replace_synced, sync_dir};

/// The number of files from which on their file system is synced as a whole. Fewer files take less time one by one than
/// the bytes that other programs may have written meanwhile. Tests have few files and need both ways.
const MANY_FILES: usize = if cfg!(test) { 3 } else { 64 };

/// The way in which several files of a directory become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncMethod {
    /// Each file is synced when it is written.
    Each,
    /// All are synced at the end by [`Dir::sync_file_system`].
    Whole,
}

impl SyncMethod {
    /// Chooses the way for a number of files.
    pub(crate) fn of(n_files: usize, dir: &Dir) -> Self {
        choose(n_files, || is_reliable(dir))
    }
}

fn choose(n_files: usize, is_reliable: impl FnOnce() -> bool) -> SyncMethod {
    if n_files >= MANY_FILES && is_reliable() { SyncMethod::Whole } else { SyncMethod::Each }
}

impl Dir {
    /// Makes everything durable that was changed on the file system of this directory, if [`SyncMethod::of`] chose this.
    #[cfg(target_os = "linux")]
    pub(crate) fn sync_file_system(&self) -> io::Result<()> {
        carry_out(Change::SyncWhole(self.path()), || Ok(rustix::fs::syncfs(self)?))
    }

    /// Fails: the system has no such call.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn sync_file_system(&self) -> io::Result<()> {
        carry_out(Change::SyncWhole(self.path()), || Err(io::ErrorKind::Unsupported.into()))
    }
}

/// Files of one directory that get new contents together.
///
/// Many of them are made durable at once, between writing and renaming, so that each has its old content or the new one.
pub(crate) struct Replacements {
    dir: Dir,
    sync: SyncMethod,
    /// Complete contents that are not durable yet, each with the name that it gets.
    pending: Vec<(TemporaryName, PathBuf)>,
}

impl Replacements {
    /// Begins to replace about `n_files` files of a directory.
    pub(crate) fn begin(dir: &Path, n_files: usize) -> Result<Self, FsError> {
        let dir = Dir::open(dir).map_err(|source| FsError::new("open", dir, source))?;
        let sync = SyncMethod::of(n_files, &dir);
        Ok(Self { dir, sync, pending: Vec::new() })
    }

    /// Writes the new content of a file.
    pub(crate) fn add(&mut self, path: PathBuf, content: &[u8]) -> Result<(), FsError> {
        if self.sync == SyncMethod::Each {
            return replace_synced(&path, |out| out.write_all(content));
        }
        let written = TemporaryFile::write(&path, |out| out.write_all(content));
        let written = written.map_err(|source| FsError::new("write", &path, source))?;
        self.pending.push((written.close(), path));
        Ok(())
    }

    /// Replaces the files, durably. After an error some of them may be.
    pub(crate) fn finish(self) -> Result<(), FsError> {
        let Self { dir, sync, pending } = self;
        if sync == SyncMethod::Whole {
            let synced = dir.sync_file_system();
            synced.map_err(|source| FsError::new("sync", dir.path(), source))?;
        }
        for (name, path) in pending {
            disk::rename(&name.0, &path).map_err(|source| FsError::new("write", &path, source))?;
            name.was_renamed();
        }
        sync_dir(dir.path())
    }
}

impl TemporaryFile {
    /// Closes the file and returns its name.
    fn close(mut self) -> TemporaryName {
        self.is_renamed = true;
        TemporaryName::of(self.file.path().to_owned())
    }
}

/// Returns whether a sync of the file system of a directory promises as much as a sync of each file.
#[cfg(target_os = "linux")]
fn is_reliable(dir: &Dir) -> bool {
    use std::sync::LazyLock;

    static REPORTS_ERRORS: LazyLock<bool> = LazyLock::new(|| {
        let release = super::read_linked_text(Path::new("/proc/sys/kernel/osrelease"));
        release.is_ok_and(|release| reports_errors(&release))
    });
    let kind = || rustix::fs::fstatfs(dir).map(|found| super::file_system_kind(&found));
    *REPORTS_ERRORS && kind().is_ok_and(is_reliable_kind)
}

#[cfg(not(target_os = "linux"))]
fn is_reliable(_: &Dir) -> bool {
    false
}

/// Returns whether a kernel reports bytes that could not be written to the caller of `syncfs`: from Linux 5.8 on.
#[cfg(any(target_os = "linux", test))]
fn reports_errors(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map(|part| part.trim().parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (5, 8)
}

/// Returns whether a file system of a kind writes everything at a sync.
///
/// Others hand it to a server or to a program that is not asked to write (9p, FUSE), or to another file system whose errors
/// they do not report (overlays).
#[cfg(any(target_os = "linux", test))]
const fn is_reliable_kind(kind: i64) -> bool {
    const EXT: i64 = 0xEF53;
    const XFS: i64 = 0x5846_5342;
    const BTRFS: i64 = 0x9123_683E;
    const F2FS: i64 = 0xF2F5_2010;
    const MEMORY: i64 = 0x0102_1994;
    matches!(kind, EXT | XFS | BTRFS | F2FS | MEMORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_file_system_is_synced_for_many_files_where_that_is_reliable() {
        let check = |n_files, is_reliable: bool, expect| {
            assert_eq!(choose(n_files, || is_reliable), expect, "{n_files}, {is_reliable}");
        };
        check(0, true, SyncMethod::Each);
        check(MANY_FILES - 1, true, SyncMethod::Each);
        check(MANY_FILES, true, SyncMethod::Whole);
        check(20_000, true, SyncMethod::Whole);
        check(20_000, false, SyncMethod::Each);
    }

    #[test]
    fn sync_of_a_file_system_is_reliable_on_known_ones_of_newer_kernels() {
        for (release, expect) in [
            ("5.8.0-generic", true),
            ("6.18.44-x\n", true),
            ("5.7.19", false),
            ("4.19.0", false),
            ("", false),
            ("x.y", false),
        ] {
            assert_eq!(reports_errors(release), expect, "{release}");
        }
        // Of 9p, FUSE, NFS and overlays.
        for kind in [0x0102_1997, 0x6573_5546, 0x6969, 0x794c_7630] {
            assert!(!is_reliable_kind(kind), "{kind:x}");
        }
        assert!(is_reliable_kind(0xEF53));
    }
}
