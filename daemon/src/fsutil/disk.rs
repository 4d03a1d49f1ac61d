//! The system calls that change files.
//!
//! Every change of a file goes through [`carry_out`], which makes it and nothing else. Tests replace this function by
//! one that also records the change, or lets it fail (`trace`), so that a simulated crash or a full disk can be tried
//! at each of them. Exceptions are SQLite, the daemon's own log, the lock and unnamed temporary files, of which no
//! acknowledged record depends on any.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

#[cfg(test)]
pub(super) use super::trace::{carry_out, check_ability, check_read};
use super::{note_leftover, open_file};

/// Bytes that are written over themselves at once.
const REWRITE_BYTES: u64 = 256 * 1024;

/// A change of a file or directory, or the opening of a file.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests read the fields"))]
pub(super) enum Change<'a> {
    /// A second name of a file, in another directory.
    Link(&'a Path, &'a Path),
    /// The first bytes of a file, at the end of another one.
    Copy(&'a Path, u64, &'a Path),
    /// A directory and its missing parents.
    CreateDirs(&'a Path),
    Create(&'a Path),
    Open(&'a Path),
    Append(&'a Path, &'a [u8]),
    /// Bytes at an offset, over those that are there.
    Overwrite(&'a Path, u64, &'a [u8]),
    SetLen(&'a Path, u64),
    Sync(&'a Path),
    Rename(&'a Path, &'a Path),
    /// A file or directory that moves to another directory.
    Move(&'a Path, &'a Path),
    /// Two files that take each other's place.
    Exchange(&'a Path, &'a Path),
    Remove(&'a Path),
    /// An empty directory.
    RemoveDir(&'a Path),
    /// A directory with all its content.
    RemoveTree(&'a Path),
    SyncDir(&'a Path),
    /// The file system of a directory.
    SyncWhole(&'a Path),
    SetMode(&'a Path),
}

/// An ability that a file system may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ability {
    /// Renames that exchange two files, or that never replace one.
    RenameFlags,
    /// Second names of a file.
    Links,
}

/// Makes a change.
#[cfg(not(test))]
pub(super) fn carry_out<T>(_: Change<'_>, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    make()
}

/// Fails if a test lets a read in this directory fail.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "that of tests fails")]
pub(super) const fn check_read(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Fails with the kind `Unsupported` if a test says that the file system of a directory lacks an ability.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "that of tests fails")]
pub(super) const fn check_ability(_: &Path, _: Ability) -> io::Result<()> {
    Ok(())
}

/// A file that is open for reading and for appending.
#[derive(Debug)]
pub(crate) struct DiskFile {
    file: File,
    path: PathBuf,
}

impl DiskFile {
    /// Creates a file with mode 0600, which must not exist.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create_new(true);
        let file = carry_out(Change::Create(path), || open_file(&mut options, path))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Creates a file with the first `len` bytes of another one. A file system that can do so shares them.
    ///
    /// **Errors**: also if the other file is shorter. The new file may exist then.
    pub(crate) fn create_copy(from: &Path, len: u64, path: &Path) -> io::Result<Self> {
        let source = open_file(OpenOptions::new().read(true), from)?;
        let mut options = OpenOptions::new();
        // Bytes are not shared with a file that is open for appending.
        options.write(true).create_new(true);
        let mut file = carry_out(Change::Create(path), || open_file(&mut options, path))?;
        carry_out(Change::Copy(from, len, path), || {
            let n_copied = io::copy(&mut source.take(len), &mut file)?;
            if n_copied == len { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
        })?;
        Self::open(path)
    }

    /// Opens a file, which must exist.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).append(true);
        let file = carry_out(Change::Open(path), || open_file(&mut options, path))?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Appends bytes. After an error some of them may be in the file.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        carry_out(Change::Append(&self.path, bytes), || self.file.write_all(bytes))
    }

    /// Truncates the file, or extends it with zeros.
    pub(crate) fn set_len(&self, len: u64) -> io::Result<()> {
        carry_out(Change::SetLen(&self.path, len), || self.file.set_len(len))
    }

    /// Makes the content durable, and the properties that are needed to read it.
    pub(crate) fn sync_data(&self) -> io::Result<()> {
        carry_out(Change::Sync(&self.path), || self.file.sync_data())
    }

    /// Makes the content and all properties durable.
    pub(crate) fn sync_all(&self) -> io::Result<()> {
        carry_out(Change::Sync(&self.path), || self.file.sync_all())
    }

    /// Gives the file another name in its directory, which must not be taken.
    ///
    /// **Errors**: of kind `AlreadyExists` if it is, and then nothing changes.
    pub(crate) fn rename_new(&mut self, to: &Path) -> io::Result<()> {
        carry_out(Change::Rename(&self.path, to), || rename_new(&self.path, to))?;
        to.clone_into(&mut self.path);
        Ok(())
    }

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
    }

    /// Fills `buffer` with the bytes from `offset` on.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Write for DiskFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map(|()| bytes.len())
    }

    /// Does nothing, because no bytes are held back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the bytes of a part of a file over themselves, so that the next sync of the returned file writes them to the
/// disk.
///
/// After a sync that failed, the system counts the bytes as written although the disk may not have them, and another
/// sync does nothing for them.
pub(crate) fn rewrite(path: &Path, part: Range<u64>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Without `append`, because with it bytes are written to the end whatever the offset is.
    options.read(true).write(true);
    let file = carry_out(Change::Open(path), || open_file(&mut options, path))?;
    let mut buffer = vec![0; REWRITE_BYTES.min(part.end.saturating_sub(part.start)) as usize];
    for start in part.clone().step_by(REWRITE_BYTES as usize) {
        let bytes = &mut buffer[..REWRITE_BYTES.min(part.end - start) as usize];
        file.read_exact_at(bytes, start)?;
        carry_out(Change::Overwrite(path, start, bytes), || file.write_all_at(bytes, start))?;
    }
    Ok(file)
}

/// Creates a directory and its missing parents with mode 0700.
pub(super) fn create_dirs(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    carry_out(Change::CreateDirs(path), || builder.recursive(true).mode(0o700).create(path))
}

pub(super) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let permissions = fs::Permissions::from_mode(mode);
    carry_out(Change::SetMode(path), || fs::set_permissions(path, permissions))
}

/// Renames a file within its directory.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "the caller decides about the sync")]
    carry_out(Change::Rename(from, to), || fs::rename(from, to))
}

/// Renames a file within its directory unless the name is taken.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // An old kernel or a file system that cannot do it.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
        renamed => return renamed.map_err(io::Error::from),
    }
    rename_by_link(from, to)
}

/// Renames a file as [`rename_new`] does, in two steps: a crash between them leaves both names.
fn rename_by_link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => {}
        Err(error) if is_without_links(&error) => {
            // Only the process that holds the lock of the directory creates files in it.
            if fs::symlink_metadata(to).is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            #[expect(clippy::disallowed_methods, reason = "the caller syncs the directory")]
            return fs::rename(from, to);
        }
        Err(error) => return Err(error),
    }
    // The file has its new name, so the other one is a temporary file that is removed later.
    if fs::remove_file(from).is_err() {
        note_leftover(from);
    }
    Ok(())
}

/// Returns whether an error says that a file system has no hard links.
fn is_without_links(error: &io::Error) -> bool {
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    is(Errno::PERM) || is(Errno::NOTSUP) || is(Errno::NOSYS)
}

/// Moves a file or directory to another directory unless the name is taken there.
pub(super) fn move_new(from: &Path, to: &Path) -> io::Result<()> {
    carry_out(Change::Move(from, to), || rename_new(from, to))
}

/// Gives a file a second name.
pub(super) fn link(from: &Path, to: &Path) -> io::Result<()> {
    carry_out(Change::Link(from, to), || fs::hard_link(from, to))
}

pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    carry_out(Change::Remove(path), || fs::remove_file(path))
}

pub(super) fn remove_dir_all(path: &Path) -> io::Result<()> {
    carry_out(Change::RemoveTree(path), || fs::remove_dir_all(path))
}

/// Makes the content of an open file durable, which any process may have written.
pub(crate) fn sync_content(file: &File, path: &Path) -> io::Result<()> {
    carry_out(Change::Sync(path), || file.sync_data())
}

/// Makes creations, renames and removals in a directory durable.
pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    // Opening a pipe in place of the directory fails instead of waiting.
    let flags = OFlags::DIRECTORY.bits().cast_signed();
    let open = || OpenOptions::new().read(true).custom_flags(flags).open(path);
    carry_out(Change::SyncDir(path), || open()?.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_name_is_never_taken_from_another_file() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        for rename in [rename_new, rename_by_link] {
            let (from, to) = (dir.path().join("from"), dir.path().join("to"));
            DiskFile::create(&from).and_then(|mut file| file.append(b"new")).expect("writes");
            DiskFile::create(&to).and_then(|mut file| file.append(b"old")).expect("writes");
            let taken = rename(&from, &to).expect_err("the name is taken");
            assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read(&to).expect("reads"), b"old");
            assert_eq!(fs::read(&from).expect("reads"), b"new");
            fs::remove_file(&to).expect("removes");
            rename(&from, &to).expect("renames");
            assert_eq!(fs::read(&to).expect("reads"), b"new");
            assert!(!from.exists(), "it has one name");
            fs::remove_file(&to).expect("removes");
        }
    }

    #[test]
    fn rewritten_part_keeps_its_bytes() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..700_000u32).map(|at| at as u8).collect();
        DiskFile::create(&path).and_then(|mut file| file.append(&bytes)).expect("writes");
        for part in [0..0, 5..6, 1..700_000, 699_999..700_000] {
            rewrite(&path, part).and_then(|file| file.sync_data()).expect("rewrites");
            assert!(fs::read(&path).expect("reads") == bytes);
        }
        rewrite(&path, 0..700_001).expect_err("the file is shorter");
        assert!(fs::read(&path).expect("reads") == bytes);
    }
}
