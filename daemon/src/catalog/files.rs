//! The files of the catalog: the names of the ones beside the database, their sizes, and those of earlier versions.

use std::path::{Path, PathBuf};

use crate::fsutil::{self, FsError};

/// Returns the path of a file beside the database, such as its journal for `-wal`.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the size of the database with its journal on disk, in bytes.
pub(super) fn size_bytes(path: &Path) -> u64 {
    fsutil::file_len(path).unwrap_or(0) + wal_bytes(path)
}

/// Returns the size of the journal on disk, in bytes.
pub(super) fn wal_bytes(path: &Path) -> u64 {
    fsutil::file_len(&with_suffix(path, "-wal")).unwrap_or(0)
}

/// Removes the damaged files that earlier versions kept, because they may contain text of a removed session.
pub(super) fn remove_kept(path: &Path) -> Result<(), FsError> {
    for file in kept_files(path)? {
        fsutil::remove_file(&file)?;
    }
    Ok(())
}

/// Returns the damaged files that earlier versions kept.
fn kept_files(path: &Path) -> Result<Vec<PathBuf>, FsError> {
    let prefix = format!("{}.corrupt-", path.file_name().unwrap_or_default().to_string_lossy());
    let dir = path.parent().unwrap_or(Path::new("."));
    let fail = |source| FsError::new("list", dir, source);
    let mut kept = Vec::new();
    for file in std::fs::read_dir(dir).map_err(fail)? {
        let file = file.map_err(fail)?;
        if file.file_name().to_string_lossy().starts_with(&prefix) {
            kept.push(file.path());
        }
    }
    Ok(kept)
}
