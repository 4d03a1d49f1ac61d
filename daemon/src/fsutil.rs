//! Creating, replacing and removing files so that a crash leaves the old or the new, and nobody else reads them.
//!
//! Every error carries its path. Directories are made with mode 0700, files with 0600.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::NamedTempFile;

/// How the names of files begin that are not yet what they are to be.
const TEMPORARY: &str = ".tmp-";

/// A file operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {attempt} {}", path.display())]
pub(crate) struct FsError {
    /// What was tried, as a verb.
    pub attempt: &'static str,
    /// On what.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

impl FsError {
    /// Wraps what the system said.
    pub(crate) fn new(attempt: &'static str, path: &Path, source: io::Error) -> Self {
        Self { attempt, path: path.to_owned(), source }
    }
}

/// Whether the disk, or what this user may have of it, is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Makes a directory and its missing parents, each with mode 0700, and makes an existing one private.
pub(crate) fn create_private_dir(path: &Path) -> Result<(), FsError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| FsError::new("create the directory", path, source))?;
    make_private(path, 0o700)
}

/// Takes every right of group and others from a file or directory that has any.
pub(crate) fn make_private(path: &Path, mode: u32) -> Result<(), FsError> {
    let metadata = fs::metadata(path).map_err(|source| FsError::new("examine", path, source))?;
    if metadata.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|source| FsError::new("make private", path, source))
}

/// Opens a file for reading and writing, making it with mode 0600 where it is missing.
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

/// Replaces a file's content in one step: temporary file, sync, rename, sync of the directory.
pub(crate) fn replace_atomically(path: &Path, content: &[u8]) -> Result<(), FsError> {
    replace_with(path, |out| out.write_all(content))
}

/// Like [`replace_atomically`], with content that is written piece by piece.
pub(crate) fn replace_with(
    path: &Path,
    write: impl FnOnce(&mut io::BufWriter<&File>) -> io::Result<()>,
) -> Result<(), FsError> {
    let fail = |source| FsError::new("write", path, source);
    let temporary = write_beside(path, write)?;
    temporary.as_file().sync_all().map_err(fail)?;
    temporary.persist(path).map_err(|failed| fail(failed.error))?;
    sync_dir(parent_of(path))
}

/// Replaces a file that says what is true only while this process runs: readers see the old or the new, and a
/// loss of power may leave neither. It saves two syncs.
pub(crate) fn replace_unsynced(path: &Path, content: &[u8]) -> Result<(), FsError> {
    let temporary = write_beside(path, |out| out.write_all(content))?;
    temporary.persist(path).map_err(|failed| FsError::new("write", path, failed.error))?;
    Ok(())
}

fn parent_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// Writes a temporary file in the directory of `path`, to be renamed.
fn write_beside(
    path: &Path,
    write: impl FnOnce(&mut io::BufWriter<&File>) -> io::Result<()>,
) -> Result<NamedTempFile, FsError> {
    let fail = |source| FsError::new("write", path, source);
    // tempfile makes the file with mode 0600 and removes it when anything below fails.
    let builder = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(parent_of(path));
    let temporary = builder.map_err(fail)?;
    let mut out = io::BufWriter::with_capacity(64 * 1024, temporary.as_file());
    write(&mut out).and_then(|()| out.flush()).map_err(fail)?;
    drop(out);
    Ok(temporary)
}

/// Removes what [`replace_atomically`] left in a directory when it was killed before `before`; returns how many.
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

/// Makes renames, creations and removals in a directory durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), FsError> {
    File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(|source| FsError::new("sync the directory", path, source))
}

/// Renames a file and makes that durable; both must lie in one directory.
pub(crate) fn rename_durably(from: &Path, to: &Path) -> Result<(), FsError> {
    #[expect(clippy::disallowed_methods, reason = "the directory is synced right after")]
    let renamed = fs::rename(from, to);
    renamed.map_err(|source| FsError::new("rename", from, source))?;
    sync_dir(to.parent().unwrap_or(Path::new(".")))
}

/// The size of a file in bytes; `None` where there is none.
pub(crate) fn file_len(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.len())
}

/// Removes a file; one that is missing is no error.
pub(crate) fn remove_file(path: &Path) -> Result<(), FsError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(FsError::new("remove", path, source))
        }
        _ => Ok(()),
    }
}

/// Takes all content out of a file and makes that durable; one that is missing is no error.
pub(crate) fn empty_file(path: &Path) -> Result<(), FsError> {
    let emptied = OpenOptions::new().write(true).truncate(true).open(path);
    match emptied.and_then(|file| file.sync_all()) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(FsError::new("empty", path, source))
        }
        _ => Ok(()),
    }
}

/// Removes a directory and all in it; one that is missing is no error.
pub(crate) fn remove_dir_all(path: &Path) -> Result<(), FsError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(FsError::new("remove", path, source))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_is_private_and_replaced_whole() {
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
        drop(open_private(&dir.join(".tmp-killed")).expect("creates"));
        let count = |before| sweep_temporaries(&dir, before).expect("sweeps");
        assert_eq!(count(SystemTime::UNIX_EPOCH), 0, "a younger one may be in use");
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        assert_eq!((count(later), count(later)), (1, 0));
        assert!(file.exists());
    }
}
