//! Removing backups of a directory: their manifests first, then the parts that no other backup needs.
//!
//! After an error or a kill there are perhaps parts that no backup needs, which the next prune removes.
//!
//! **Invariant**: a part is removed only when every manifest that is left was read whole and does not name it, and the
//! removal of the other manifests is durable. Files with other names stay.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::cover::Secret;
use super::manifest::{Manifest, checksum_of};
use super::source::{BackupSource, MANIFEST_SUFFIX, SEALED_SUFFIX};
use super::target::prepare;
use super::{BackupError, MANIFESTS, PARTS, is_file};
use crate::fsutil;

/// A directory whose backups can be removed.
pub(crate) struct PruneTarget {
    path: PathBuf,
    source: BackupSource,
    _lock: Option<File>,
}

impl PruneTarget {
    /// Opens a directory, and locks it unless it is a `dry_run`, which changes nothing.
    ///
    /// **Errors**: `OneFile`, `Locked`, and those of a source.
    pub(crate) fn open(path: &Path, secret: &Secret, dry_run: bool) -> Result<Self, BackupError> {
        if is_file(path) && !path.is_dir() {
            return Err(BackupError::OneFile { path: path.to_owned() });
        }
        // Before the lock, which only a directory of backups gets.
        let source = BackupSource::open(path, secret)?;
        let lock = if dry_run { None } else { Some(prepare(path, false)?) };
        Ok(Self { path: path.to_owned(), source, _lock: lock })
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.source.is_encrypted()
    }

    /// Returns the ids of all backups, also of those whose manifests cannot be examined: parts of a backup that were not
    /// counted would be removed.
    ///
    /// **Errors**: `Damaged` if there is a manifest of another encryption.
    pub(crate) fn ids(&self) -> Result<Vec<String>, BackupError> {
        let mut ids = Vec::new();
        for file in fsutil::file_names_if_any(&self.path.join(MANIFESTS))? {
            let unsealed = file.strip_suffix(SEALED_SUFFIX).unwrap_or(&file);
            let id = unsealed.strip_suffix(MANIFEST_SUFFIX).filter(|id| checksum_of(id).is_some());
            let Some(id) = id else { continue };
            let name = format!("{MANIFESTS}/{file}");
            if self.source.manifest_name(id) != name {
                let problem = "it is not encrypted as the directory is";
                return Err(BackupError::damaged(&self.path, &name, problem));
            }
            ids.push(id.to_owned());
        }
        Ok(ids)
    }

    /// Reads the manifest of a backup.
    ///
    /// **Errors**: as those of [`BackupSource::manifest`].
    pub(crate) fn manifest(&self, id: &str) -> Result<Manifest, BackupError> {
        self.source.manifest(id)
    }

    /// Returns the parts that none of the backups `kept` needs, with the sizes of their files in bytes.
    ///
    /// **Errors**: one of these backups cannot be read.
    pub(crate) fn unneeded_parts<'a>(
        &self,
        kept: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<(String, u64)>, BackupError> {
        let mut needed = HashSet::new();
        for id in kept {
            let files = self.manifest(id)?.files;
            needed.extend(files.into_iter().flat_map(|file| file.parts));
        }
        let mut parts = self.source.parts()?;
        parts.retain(|(name, _)| !needed.contains(name));
        Ok(parts)
    }

    /// Removes the manifests of some backups, durably.
    pub(crate) fn remove_backups<'a>(
        &self,
        ids: impl Iterator<Item = &'a str>,
    ) -> Result<(), BackupError> {
        let dir = self.path.join(MANIFESTS);
        // A process that was killed may have left the names of those that stay in the system's cache only.
        fsutil::sync_dir(&dir)?;
        for id in ids {
            fsutil::remove_file(&self.path.join(self.source.manifest_name(id)))?;
        }
        Ok(fsutil::sync_dir(&dir)?)
    }

    /// Removes a part that no backup needs. The removal is durable after [`Self::finish`].
    pub(crate) fn remove_part(&self, name: &str) -> Result<(), BackupError> {
        Ok(fsutil::remove_file(&self.path.join(PARTS).join(name))?)
    }

    /// Makes the removal of parts durable.
    pub(crate) fn finish(self) -> Result<(), BackupError> {
        Ok(fsutil::sync_dir(&self.path.join(PARTS))?)
    }
}
