//! Backups: immutable parts that are named by their content, and one manifest for each backup, in a directory or in one
//! tar file. FORMAT.md, "Backups".
//!
//! This module knows the shape of backups and no session: the caller brings the bytes of files and takes them back.
//!
//! **Invariants**: a part or a manifest is never changed; a manifest is written last, when everything that it names is
//! durable. A path of a manifest has one of the shapes of [`HomeFile`], so a file is never restored elsewhere. No secret is
//! in an error or a log.

mod archive;
mod cover;
mod manifest;
mod prune;
mod source;
mod stage;
mod target;

use std::path::{Path, PathBuf};

pub(crate) use cover::Secret;
pub(crate) use manifest::{HomeFile, Manifest, ManifestFile, ManifestSession};
pub(crate) use prune::PruneTarget;
pub(crate) use source::BackupSource;
pub(crate) use stage::{RestoreStage, finish_at_start, finish_or_discard};
pub(crate) use target::BackupTarget;

use crate::fsutil::{self, FsError};

/// The size of all parts of a file but the last one, in bytes. A log that grew has one new part and one changed one. With
/// larger parts more of it is written again, with smaller ones a backup has more files.
pub(crate) const PART_BYTES: usize = 1024 * 1024;
/// The newest version of a backup that is read, and the one that is written.
const VERSION: u32 = 1;
/// The most bytes of the file of a part: its content, and what encryption adds.
const MAX_PART_FILE_BYTES: u64 = PART_BYTES as u64 + 64 * 1024;
/// The most bytes of a manifest, which has some million files then.
const MAX_MANIFEST_BYTES: u64 = 1 << 30;
/// The most bytes of any other file. [`KEY_FILE`] has about 100 bytes for each of at most [`MAX_KEYS`].
const MAX_SMALL_BYTES: u64 = 128 * 1024;
/// The most keys that a backup can be encrypted for.
const MAX_KEYS: usize = 1000;
/// The file by which a backup is recognized.
const FORMAT_FILE: &str = "ollm-backup.json";
/// The secret key of an encrypted backup, which a passphrase or a key of the user opens.
const KEY_FILE: &str = "key.age";
/// The directory of parts.
const PARTS: &str = "parts";
/// The directory of manifests.
const MANIFESTS: &str = "backups";
/// The end of the name of a backup in one file.
const FILE_SUFFIX: &str = ".tar";

/// A backup could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackupError {
    #[error(transparent)]
    File(#[from] FsError),
    /// There is no backup in this place.
    #[error("{} is not a backup", path.display())]
    NotABackup { path: PathBuf },
    /// Backups are never overwritten.
    #[error("there is already a file {}", path.display())]
    Exists { path: PathBuf },
    /// The one backup of a file cannot be removed from it.
    #[error("{} has one backup; to remove it, remove the file", path.display())]
    OneFile { path: PathBuf },
    /// A new backup would be mixed with other files.
    #[error("{} has other files; name a new or an empty directory", path.display())]
    NotEmpty { path: PathBuf },
    /// A newer version of the daemon wrote the backup.
    #[error("{} has version {found}, and this daemon reads up to {VERSION}", path.display())]
    Newer { path: PathBuf, found: u32 },
    /// Another process writes to the directory.
    #[error("another backup is being written to {}", path.display())]
    Locked { path: PathBuf },
    /// A file of the backup is not what was written.
    #[error("{name} in {} is damaged{}: {problem}", path.display(), at_byte(*offset))]
    Damaged {
        path: PathBuf,
        /// The file in the backup.
        name: String,
        /// The position in a tar file.
        offset: Option<u64>,
        problem: &'static str,
    },
    #[error("{} is encrypted with a {}", path.display(), if *with_passphrase { "passphrase" } else { "key" })]
    NeedsSecret { path: PathBuf, with_passphrase: bool },
    #[error("the passphrase does not open {}", path.display())]
    WrongPassphrase { path: PathBuf },
    #[error("none of the given keys opens {}", path.display())]
    WrongKey { path: PathBuf },
    /// The secret is of no use for what was asked.
    #[error("{problem}")]
    BadSecret { problem: &'static str },
    #[error("{} has no backup {id}", path.display())]
    NoSuchBackup { path: PathBuf, id: String },
}

impl BackupError {
    /// Returns whether one file cannot be used, and others perhaps can.
    pub(crate) fn is_of_one_file(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::Newer { .. } => true,
            Self::File(error) => !fsutil::is_out_of_descriptors(&error.source),
            _ => false,
        }
    }

    fn damaged(path: &Path, name: &str, problem: &'static str) -> Self {
        Self::Damaged { path: path.to_owned(), name: name.to_owned(), offset: None, problem }
    }
}

fn at_byte(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at byte {offset}"))
}

/// Returns whether a path names a backup in one file, and not a directory of backups.
pub(crate) fn is_file(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(FILE_SUFFIX.as_bytes())
}

/// Returns the most bytes of a file of a backup. A larger one is damage, and is not read into memory.
fn max_bytes(name: &str) -> u64 {
    match name.split_once('/') {
        Some((PARTS, _)) => MAX_PART_FILE_BYTES,
        Some((MANIFESTS, _)) => MAX_MANIFEST_BYTES,
        _ => MAX_SMALL_BYTES,
    }
}

/// Returns whether a text is the name of a part.
fn is_part_name(name: &str) -> bool {
    name.len() == blake3::OUT_LEN * 2 && is_hex(name)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The content of [`FORMAT_FILE`], which is the same for all backups of a place.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Format {
    format: String,
    version: u32,
    part_bytes: usize,
    /// The blake3 of [`KEY_FILE`]; absent without encryption.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl Format {
    fn new(key_file: Option<&[u8]>) -> Self {
        Self {
            format: "ollm-backup".to_owned(),
            version: VERSION,
            part_bytes: PART_BYTES,
            key: key_file.map(|bytes| blake3::hash(bytes).to_hex().to_string()),
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("plain fields are JSON");
        bytes.push(b'\n');
        bytes
    }

    /// Reads the file. Any byte that was not written is damage.
    fn parse(bytes: &[u8], path: &Path) -> Result<Self, BackupError> {
        let damaged = || BackupError::damaged(path, FORMAT_FILE, "it cannot be read");
        let format: Self = serde_json::from_slice(bytes).map_err(|_| damaged())?;
        if format.version > VERSION {
            return Err(BackupError::Newer { path: path.to_owned(), found: format.version });
        }
        let is_whole = format.format == "ollm-backup"
            && format.version == VERSION
            && format.part_bytes == PART_BYTES
            && format.to_bytes() == bytes;
        is_whole.then_some(format).ok_or_else(damaged)
    }
}

#[cfg(test)]
mod tests;
