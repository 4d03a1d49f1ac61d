//! Operations on files: create, replace, rename, remove.
//!
//! Directories are created with mode 0700 and files with 0600. A crash leaves the old content of a replaced file or
//! the new one, and perhaps a temporary file beside it. Every error carries its path.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use tempfile::NamedTempFile;

/// The prefix of the names of temporary files.
const TEMPORARY: &str = ".tmp-";
/// The prefix of the temporary files of this process: its id, and a random number, because ids are used again.
static OWN_TEMPORARY: LazyLock<String> = LazyLock::new(|| {
    let random = RandomState::new().build_hasher().finish();
    format!("{TEMPORARY}{}-{random:016x}-", std::process::id())
});

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
pub(crate) fn create_private_dir(path: &Path) -> Result<(), FsError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| FsError::new("create the directory", path, source))?;
    make_private(path, 0o700)
}

/// Sets the mode of a file or directory if group or others have any right on it.
pub(crate) fn make_private(path: &Path, mode: u32) -> Result<(), FsError> {
    let metadata = fs::metadata(path).map_err(|source| FsError::new("examine", path, source))?;
    if metadata.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|source| FsError::new("make private", path, source))
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
    write: impl FnOnce(&mut io::BufWriter<&File>) -> io::Result<()>,
) -> Result<(), FsError> {
    let fail = |source| FsError::new("write", path, source);
    let temporary = write_temporary(path, write)?;
    temporary.as_file().sync_all().map_err(fail)?;
    temporary.persist(path).map_err(|failed| fail(failed.error))?;
    sync_dir(parent_of(path))
}

/// Replaces the content of a file without syncing it; a power cut may leave neither the old nor the new content.
///
/// For files that are valid only while this process runs.
pub(crate) fn replace_unsynced(path: &Path, content: &[u8]) -> Result<(), FsError> {
    let temporary = write_temporary(path, |out| out.write_all(content))?;
    temporary.persist(path).map_err(|failed| FsError::new("write", path, failed.error))?;
    Ok(())
}

/// Writes a temporary file in the directory of `path`.
fn write_temporary(
    path: &Path,
    write: impl FnOnce(&mut io::BufWriter<&File>) -> io::Result<()>,
) -> Result<NamedTempFile, FsError> {
    let fail = |source| FsError::new("write", path, source);
    // tempfile creates the file with mode 0600 and removes it when anything below fails.
    let builder = tempfile::Builder::new().prefix(&*OWN_TEMPORARY).tempfile_in(parent_of(path));
    let temporary = builder.map_err(fail)?;
    let mut out = io::BufWriter::with_capacity(64 * 1024, temporary.as_file());
    write(&mut out).and_then(|()| out.flush()).map_err(fail)?;
    drop(out);
    Ok(temporary)
}

/// Removes the temporary files in a directory that another process created; returns their number.
///
/// Such files remain when a process is killed while it replaces a file. The caller holds the lock of the directory, so no
/// other process uses them. Their times say nothing, because a clock may have been wrong.
pub(crate) fn sweep_temporaries(dir: &Path) -> Result<usize, FsError> {
    let fail = |source| FsError::new("list", dir, source);
    let mut swept = 0;
    for file in fs::read_dir(dir).map_err(fail)? {
        let file = file.map_err(fail)?;
        let name = file.file_name();
        let has_prefix = |prefix: &str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
        if has_prefix(TEMPORARY) && !has_prefix(&OWN_TEMPORARY) {
            remove_file(&file.path())?;
            swept += 1;
        }
    }
    Ok(swept)
}

/// Makes creations, renames and removals in a directory durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), FsError> {
    File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(|source| FsError::new("sync the directory", path, source))
}

/// Renames a file within its directory and makes the rename durable.
pub(crate) fn rename_durably(from: &Path, to: &Path) -> Result<(), FsError> {
    #[expect(clippy::disallowed_methods, reason = "the directory is synced right after")]
    let renamed = fs::rename(from, to);
    renamed.map_err(|source| FsError::new("rename", from, source))?;
    sync_dir(parent_of(to))
}

/// Returns the size of a file in bytes, or `None` if it cannot be examined.
pub(crate) fn file_len(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.len())
}

/// Removes a file if it exists.
pub(crate) fn remove_file(path: &Path) -> Result<(), FsError> {
    unless_missing(fs::remove_file(path)).map_err(|source| FsError::new("remove", path, source))
}

/// Removes a directory and all its content if it exists.
pub(crate) fn remove_dir_all(path: &Path) -> Result<(), FsError> {
    unless_missing(fs::remove_dir_all(path)).map_err(|source| FsError::new("remove", path, source))
}

/// Truncates a file to zero bytes, durably, if it exists.
pub(crate) fn empty_file(path: &Path) -> Result<(), FsError> {
    let emptied = OpenOptions::new().write(true).truncate(true).open(path);
    unless_missing(emptied.and_then(|file| file.sync_all()))
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
    path.parent().unwrap_or(Path::new("."))
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
    fn sweep_removes_temporary_files_of_other_processes_only() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let file = dir.path().join("x.json");
        replace_atomically(&file, b"one").expect("writes");
        let killed = open_private(&dir.path().join(".tmp-killed")).expect("creates");
        let future = std::time::SystemTime::now() + std::time::Duration::from_secs(86_400);
        killed.set_modified(future).expect("sets the time");
        let in_use = write_temporary(&file, |_| Ok(())).expect("writes");
        let count = || sweep_temporaries(dir.path()).expect("sweeps");
        assert_eq!((count(), count()), (1, 0));
        assert!(file.exists() && in_use.path().exists());
    }
}
