//! The files of the catalog: the names of those beside the database, and their sizes.

use std::path::{Path, PathBuf};

use crate::fsutil;

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
