//! Writing a backup: parts first, its manifest last.
//!
//! A part that is there already is not written again. After an error or a kill, a directory has perhaps some parts that no
//! backup needs, which the next backup uses if it can, and temporary files, which it removes; a tar file has no name yet.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::archive::ArchiveWriter;
use super::cover::{Cover, Secret};
use super::manifest::{Manifest, backup_id};
use super::source::{Store, manifest_suffix};
use super::{
    BackupError, FORMAT_FILE, Format, KEY_FILE, MANIFESTS, MAX_MANIFEST_BYTES, PART_BYTES, PARTS,
    is_file, is_part_name,
};
use crate::fsutil::{self, FsError, Replacements};

/// The file that a process locks while it writes to a directory.
const LOCK_FILE: &str = "lock";
/// The parts that become durable together: so many that one sync of the file system is worth it, and so few that a
/// backup which is repeated after a kill finds most of its parts.
const BATCH_PARTS: usize = 1024;
/// The files of a place of which a crash left only the beginning, before it was one.
const UNFINISHED: [&str; 4] = [LOCK_FILE, PARTS, MANIFESTS, KEY_FILE];

/// The place of a backup that is being written.
pub(crate) struct BackupTarget {
    out: Out,
    cover: Cover,
    /// The sizes of the files of all parts, in bytes.
    known: HashMap<String, u64>,
    counts: PartCounts,
    /// Set if public keys were given for a directory whose readers are decided.
    ignores_recipients: bool,
}

/// The parts of a backup so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartCounts {
    pub(crate) new: u64,
    /// The bytes of the new parts before encryption.
    pub(crate) new_bytes: u64,
    /// The parts that were there already.
    pub(crate) known: u64,
}

enum Out {
    Directory { path: PathBuf, batch: Option<(Replacements, usize)>, _lock: File },
    Archive(ArchiveWriter),
}

impl BackupTarget {
    /// Opens a directory, or begins a file if the path names one.
    ///
    /// **Errors**: `Exists`, `NotEmpty`, `Locked`, and those of a source.
    pub(crate) fn open(path: &Path, secret: &Secret) -> Result<Self, BackupError> {
        match is_file(path) {
            true => Self::in_file(path, secret),
            false => Self::in_directory(path, secret),
        }
    }

    fn in_file(path: &Path, secret: &Secret) -> Result<Self, BackupError> {
        let mut archive = ArchiveWriter::create(path)?;
        let (cover, key_file) = Cover::create(secret)?;
        archive.add(FORMAT_FILE, &Format::new(key_file.as_deref()).to_bytes())?;
        if let Some(key_file) = key_file {
            archive.add(KEY_FILE, &key_file)?;
        }
        let (out, known, ignores_recipients) = (Out::Archive(archive), HashMap::new(), false);
        Ok(Self { out, cover, known, counts: PartCounts::default(), ignores_recipients })
    }

    fn in_directory(path: &Path, secret: &Secret) -> Result<Self, BackupError> {
        // The disk may have no modes, as those of cameras and many sticks.
        fsutil::create_dir(path)?;
        let store = Store::open(path)?;
        let mut found = store.found(path)?;
        let lock = prepare(path, found.is_none())?;
        // Another process may have finished it before the lock.
        if found.is_none() {
            found = store.found(path)?;
        }
        let is_encrypted = found.as_ref().is_some_and(|found| found.key_file.is_some());
        let ignores_recipients = is_encrypted && secret.has_recipients();
        let cover = match found.map(|found| found.key_file) {
            Some(Some(key_file)) => Cover::open(&key_file, secret, path)?,
            Some(None) if secret.is_empty() => Cover::Plain,
            Some(None) => {
                let problem = "the backups of this directory are not encrypted; an encrypted one \
                               needs a directory of its own";
                return Err(BackupError::BadSecret { problem });
            }
            None => begin(path, secret)?,
        };
        let mut known: HashMap<String, u64> = store.names_in(PARTS)?.into_iter().collect();
        known.retain(|name, _| is_part_name(name));
        let out = Out::Directory { path: path.to_owned(), batch: None, _lock: lock };
        Ok(Self { out, cover, known, counts: PartCounts::default(), ignores_recipients })
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.cover.is_sealed()
    }

    /// Returns whether the public keys of the secret were of no use.
    pub(crate) const fn ignores_recipients(&self) -> bool {
        self.ignores_recipients
    }

    pub(crate) const fn counts(&self) -> PartCounts {
        self.counts
    }

    /// Adds a part of at most [`PART_BYTES`] and returns its name.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Result<String, BackupError> {
        debug_assert!(bytes.len() <= PART_BYTES, "files are cut into parts");
        let name = self.cover.name_of(bytes);
        let len = bytes.len() as u64;
        if self.known.get(&name).is_some_and(|stored| self.cover.fits(*stored, len)) {
            self.counts.known += 1;
            return Ok(name);
        }
        let stored = self.cover.close(bytes);
        self.known.insert(name.clone(), stored.len() as u64);
        self.counts.new += 1;
        self.counts.new_bytes += len;
        match &mut self.out {
            Out::Archive(archive) => archive.add(&format!("{PARTS}/{name}"), &stored)?,
            Out::Directory { path, batch, .. } => {
                let dir = path.join(PARTS);
                let (mut parts, n_parts) = match batch.take() {
                    Some(batch) => batch,
                    None => (Replacements::begin(&dir, BATCH_PARTS)?, 0),
                };
                parts.add(dir.join(&name), &stored)?;
                if n_parts + 1 == BATCH_PARTS {
                    parts.finish()?;
                } else {
                    *batch = Some((parts, n_parts + 1));
                }
            }
        }
        Ok(name)
    }

    /// Makes all parts durable, and then the manifest; returns the id of the backup.
    pub(crate) fn finish(self, manifest: &Manifest) -> Result<String, BackupError> {
        let Self { out, cover, .. } = self;
        let bytes = manifest.to_bytes();
        let id = backup_id(manifest.created_at, &cover.name_of(&bytes));
        let name = format!("{MANIFESTS}/{id}{}", manifest_suffix(&cover));
        let stored = cover.close(&bytes);
        if stored.len() as u64 > MAX_MANIFEST_BYTES {
            // No daemon would read it.
            let source = std::io::Error::other("the backup has too many files");
            return Err(FsError::new("write", Path::new(&name), source).into());
        }
        match out {
            Out::Archive(mut archive) => {
                archive.add(&name, &stored)?;
                archive.finish()?;
            }
            Out::Directory { path, batch, .. } => {
                if let Some((parts, _)) = batch {
                    parts.finish()?;
                }
                // Parts of an interrupted backup may have names that are not durable yet.
                fsutil::sync_dir(&path.join(PARTS))?;
                fsutil::replace_atomically(&path.join(name), &stored)?;
            }
        }
        Ok(id)
    }
}

/// Locks a directory and makes it ready for parts. A new one must have no files of others.
pub(super) fn prepare(path: &Path, is_new: bool) -> Result<File, BackupError> {
    // Listed before the lock is looked for, which another process may be creating.
    let names = if is_new { fsutil::file_names(path)? } else { Vec::new() };
    let was_begun = fsutil::file_len(&path.join(LOCK_FILE)).is_some();
    // Without the lock, even a file with one of our names is of somebody else.
    let is_ours = |name: &String| {
        was_begun && (UNFINISHED.contains(&name.as_str()) || name.starts_with(".tmp-"))
    };
    if !names.iter().all(is_ours) {
        return Err(BackupError::NotEmpty { path: path.to_owned() });
    }
    let lock = lock(path)?;
    for dir in [PARTS, MANIFESTS] {
        fsutil::create_dir(&path.join(dir))?;
    }
    if was_begun {
        for dir in [path.to_owned(), path.join(PARTS), path.join(MANIFESTS)] {
            fsutil::sweep_temporaries(&dir)?;
        }
    }
    Ok(lock)
}

/// Makes a directory a place of backups.
fn begin(path: &Path, secret: &Secret) -> Result<Cover, BackupError> {
    let (cover, key_file) = Cover::create(secret)?;
    if let Some(key_file) = &key_file {
        fsutil::replace_atomically(&path.join(KEY_FILE), key_file)?;
    }
    let format = Format::new(key_file.as_deref()).to_bytes();
    fsutil::replace_atomically(&path.join(FORMAT_FILE), &format)?;
    Ok(cover)
}

/// Locks a directory against other writers, where its file system has locks.
fn lock(path: &Path) -> Result<File, BackupError> {
    let file = fsutil::open_private(&path.join(LOCK_FILE))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) | Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(BackupError::Locked { path: path.to_owned() }),
        Err(error) => Err(FsError::new("lock", path, error.into()).into()),
    }
}
