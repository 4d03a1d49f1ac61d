//! Operations on files: create, replace, rename, remove. [`disk`] has the system calls.
//!
//! Directories are created with mode 0700 and files with 0600. A crash leaves the old content of a replaced file or
//! the new one, and perhaps a temporary file beside it. Every error carries its path.

mod disk;
#[cfg(test)]
pub(crate) mod trace;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub(crate) use disk::{DiskFile, open_to_read, sync_file};

/// The prefix of the names of temporary files.
const TEMPORARY: &str = ".tmp-";

/// A failed file operation.
#[derive(Debug, thiserror::Error)]
#[error("cannot {attempt} {}", path.display())]
pub(crate) struct FsError {
    /// The failed operation, as a verb.
    pub attempt: &'static str,
    /// The file or directory of the operation.
    pub path: PathBuf,
    /// The error of the system.
    #[source]
    pub source: io::Error,
}

impl FsError {
    pub(crate) fn new(attempt: &'static str, path: &Path, source: io::Error) -> Self {
        Self { attempt, path: path.to_owned(), source }
    }
}

/// Returns whether an error says that the disk or the user's quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Creates a directory and its missing parents with mode 0700, or makes an existing directory private.
///
/// Its name is durable afterwards, also that of an existing directory: a crash may have interrupted its creation.
pub(crate) fn create_private_dir(path: &Path) -> Result<(), FsError> {
    let missing: Vec<&Path> = path.ancestors().take_while(|dir| !dir.exists()).collect();
    disk::create_dirs(path).map_err(|source| FsError::new("create the directory", path, source))?;
    make_private(path, 0o700)?;
    if missing.is_empty() {
        return match sync_dir(parent_of(path)) {
            // A parent that this user cannot read is not ours, and the directory was there before.
            Err(error) if error.source.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            result => result,
        };
    }
    missing.into_iter().try_for_each(|dir| sync_dir(parent_of(dir)))
}

/// Sets the mode of a file or directory if group or others have any right on it.
pub(crate) fn make_private(path: &Path, mode: u32) -> Result<(), FsError> {
    let metadata = fs::metadata(path).map_err(|source| FsError::new("examine", path, source))?;
    if metadata.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    disk::set_mode(path, mode).map_err(|source| FsError::new("make private", path, source))
}

/// Opens a file for reading and writing; creates a missing one with mode 0600.
pub(crate) fn open_private(path: &Path) -> Result<File, FsError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|source| FsError::new("open", path, source))
}

/// Replaces the content of a file: temporary file, sync, rename, sync of the directory.
pub(crate) fn replace_atomically(path: &Path, content: &[u8]) -> Result<(), FsError> {
    replace_with(path, |out| out.write_all(content))
}

/// Replaces the content of a file like [`replace_atomically`] with what `write` writes.
pub(crate) fn replace_with(
    path: &Path,
    write: impl FnOnce(&mut io::BufWriter<DiskFile>) -> io::Result<()>,
) -> Result<(), FsError> {
    let fail = |source| FsError::new("write", path, source);
    let temporary = TemporaryFile::write(path, write).map_err(fail)?;
    temporary.file.sync_all().map_err(fail)?;
    temporary.rename(path).map_err(fail)?;
    sync_dir(parent_of(path))
}

/// Replaces the content of a file without syncing it; a power cut may leave neither the old nor the new content.
///
/// For files that are valid only while this process runs.
pub(crate) fn replace_unsynced(path: &Path, content: &[u8]) -> Result<(), FsError> {
    TemporaryFile::write(path, |out| out.write_all(content))
        .and_then(|temporary| temporary.rename(path))
        .map_err(|source| FsError::new("write", path, source))
}

/// A file with the content that another one will have. It is removed unless it is renamed.
struct TemporaryFile {
    file: DiskFile,
    is_renamed: bool,
}

impl TemporaryFile {
    /// Writes a temporary file in the directory of `path`.
    fn write(
        path: &Path,
        write: impl FnOnce(&mut io::BufWriter<DiskFile>) -> io::Result<()>,
    ) -> io::Result<Self> {
        let named = tempfile::Builder::new()
            .prefix(TEMPORARY)
            .make_in(parent_of(path), DiskFile::create)?;
        let (file, name) = named.into_parts();
        name.keep().map_err(|failed| failed.error)?;
        let mut out = io::BufWriter::with_capacity(64 * 1024, file);
        let written = write(&mut out).and_then(|()| out.flush());
        let (file, _unwritten) = out.into_parts();
        // Removed here if it could not be written.
        let temporary = Self { file, is_renamed: false };
        written.map(|()| temporary)
    }

    fn rename(mut self, to: &Path) -> io::Result<()> {
        disk::rename(self.file.path(), to)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // The next start removes a file that is left.
        if !self.is_renamed
            && let Err(error) = disk::remove_file(self.file.path())
        {
            tracing::warn!(path = %self.file.path().display(), "cannot remove a file: {error}");
        }
    }
}

/// Removes the temporary files in a directory that were modified before `before`; returns their number.
///
/// Such files remain when a process is killed while it replaces a file.
pub(crate) fn sweep_temporaries(dir: &Path, before: SystemTime) -> Result<usize, FsError> {
    let fail = |source| FsError::new("list", dir, source);
    let mut swept = 0;
    for file in fs::read_dir(dir).map_err(fail)? {
        let file = file.map_err(fail)?;
        let is_temporary = file.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes());
        let is_old =
            || file.metadata().and_then(|data| data.modified()).is_ok_and(|at| at < before);
        if is_temporary && is_old() {
            remove_file(&file.path())?;
            swept += 1;
        }
    }
    Ok(swept)
}

/// Makes creations, renames and removals in a directory durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), FsError> {
    disk::sync_dir(path).map_err(|source| FsError::new("sync the directory", path, source))
}

/// Makes the name of a file durable.
pub(crate) fn sync_parent(path: &Path) -> Result<(), FsError> {
    sync_dir(parent_of(path))
}

/// Renames a file within its directory and makes the rename durable.
pub(crate) fn rename_durably(from: &Path, to: &Path) -> Result<(), FsError> {
    disk::rename(from, to).map_err(|source| FsError::new("rename", from, source))?;
    sync_dir(parent_of(to))
}

/// Returns the size of a file in bytes, or `None` if it cannot be examined.
pub(crate) fn file_len(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.len())
}

/// Removes a file if it exists.
pub(crate) fn remove_file(path: &Path) -> Result<(), FsError> {
    unless_missing(disk::remove_file(path)).map_err(|source| FsError::new("remove", path, source))
}

/// Removes a directory and all its content if it exists.
pub(crate) fn remove_dir_all(path: &Path) -> Result<(), FsError> {
    unless_missing(disk::remove_dir_all(path))
        .map_err(|source| FsError::new("remove", path, source))
}

/// Truncates a file to zero bytes, durably, if it exists.
pub(crate) fn empty_file(path: &Path) -> Result<(), FsError> {
    let empty = |file: DiskFile| {
        file.set_len(0)?;
        file.sync_all()
    };
    unless_missing(DiskFile::open(path).and_then(empty))
        .map_err(|source| FsError::new("empty", path, source))
}

/// Turns the error of a missing file into success.
fn unless_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_files_are_private_and_leave_no_temporary_file() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let dir = home.path().join("a/b");
        create_private_dir(&dir).expect("creates");
        let file = dir.join("x.json");
        replace_atomically(&file, b"one").expect("writes");
        replace_atomically(&file, b"two").expect("replaces");
        assert_eq!(fs::read(&file).expect("reads"), b"two");
        replace_unsynced(&file, b"three").expect("replaces");
        assert_eq!(fs::read(&file).expect("reads"), b"three");
        assert_eq!(fs::metadata(&file).expect("exists").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&dir).expect("exists").permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&dir).expect("lists").count(), 1, "no temporary file is left");
    }

    #[test]
    fn sweep_removes_old_temporary_files_only() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let file = dir.path().join("x.json");
        replace_atomically(&file, b"one").expect("writes");
        drop(open_private(&dir.path().join(".tmp-killed")).expect("creates"));
        let count = |before| sweep_temporaries(dir.path(), before).expect("sweeps");
        assert_eq!(count(SystemTime::UNIX_EPOCH), 0, "a younger file may be in use");
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        assert_eq!((count(later), count(later)), (1, 0));
        assert!(file.exists());
    }
}
