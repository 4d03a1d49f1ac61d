//! The system calls that change files.
//!
//! Every change of a file goes through [`carry_out`], which makes it and nothing else. Tests replace this function by
//! one that also records the change, or lets it fail (`trace`), so that a simulated crash or a full disk can be tried
//! at each of them. Exceptions are SQLite, the daemon's own log, the lock and unnamed temporary files, of which no
//! acknowledged record depends on any.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::open_file;
#[cfg(test)]
use super::trace::carry_out;

/// A change of a file or directory, or the opening of a file.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests read the fields"))]
pub(super) enum Change<'a> {
    /// A directory and its missing parents.
    CreateDirs(&'a Path),
    Create(&'a Path),
    Open(&'a Path),
    Append(&'a Path, &'a [u8]),
    SetLen(&'a Path, u64),
    Sync(&'a Path),
    Rename(&'a Path, &'a Path),
    Remove(&'a Path),
    /// A directory with all its content.
    RemoveTree(&'a Path),
    SyncDir(&'a Path),
    SetMode(&'a Path),
}

/// Makes a change.
#[cfg(not(test))]
fn carry_out<T>(_: Change<'_>, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    make()
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

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
    }

    /// Fills `buffer` with the bytes from `offset` on.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    pub(super) fn path(&self) -> &Path {
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
