//! Reading backups: a directory or a tar file, whose parts and manifests are checked whenever they are read.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::archive::ArchiveReader;
use super::cover::{Cover, Secret};
use super::manifest::{Manifest, checksum_of};
use super::{
    BackupError, FORMAT_FILE, Format, KEY_FILE, MANIFESTS, MAX_PART_FILE_BYTES, PARTS, is_file,
    is_part_name, max_bytes,
};
use crate::fsutil::{self, FsError};

/// The end of the name of a manifest.
pub(super) const MANIFEST_SUFFIX: &str = ".json";
/// The end of the name of an encrypted manifest, behind [`MANIFEST_SUFFIX`].
pub(super) const SEALED_SUFFIX: &str = ".age";

/// The place of backups, open for reading.
pub(crate) struct BackupSource {
    path: PathBuf,
    store: Store,
    cover: Cover,
}

/// The files of a place.
pub(super) enum Store {
    Directory(PathBuf),
    Archive(ArchiveReader),
}

/// A place that is one of backups.
pub(super) struct FoundPlace {
    /// The content of the file with its key; `None` without encryption.
    pub(super) key_file: Option<Vec<u8>>,
}

impl Store {
    /// Opens the files of a place.
    pub(super) fn open(path: &Path) -> Result<Self, BackupError> {
        if path.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        if path.symlink_metadata().is_err() {
            let source = io::Error::from(io::ErrorKind::NotFound);
            return Err(FsError::new("read", path, source).into());
        }
        match is_file(path) {
            true => Ok(Self::Archive(ArchiveReader::open(path)?)),
            false => Err(BackupError::NotABackup { path: path.to_owned() }),
        }
    }

    /// Reads a file; returns `None` if there is none.
    ///
    /// **Errors**: `Damaged` if it is larger than any of its kind.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, BackupError> {
        let dir = match self {
            Self::Archive(archive) => return archive.read(name),
            Self::Directory(dir) => dir,
        };
        let (path, max) = (dir.join(name), max_bytes(name));
        match read_up_to(&path, max + 1) {
            Ok(bytes) if bytes.len() as u64 > max => {
                Err(BackupError::damaged(dir, name, "it is larger than any file of its kind"))
            }
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(FsError::new("read", &path, source).into()),
        }
    }

    /// Returns the names of the files in a directory, with their sizes.
    pub(super) fn names_in(&self, dir: &str) -> Result<Vec<(String, u64)>, FsError> {
        let root = match self {
            Self::Archive(archive) => return Ok(archive.names_in(dir)),
            Self::Directory(root) => root.join(dir),
        };
        let sized = |name: String| {
            let len = fsutil::file_len(&root.join(&name))?;
            Some((name, len))
        };
        Ok(fsutil::file_names_if_any(&root)?.into_iter().filter_map(sized).collect())
    }

    /// Reads the file by which a place is recognized, and that of its key; returns `None` if the first one is missing.
    pub(super) fn found(&self, path: &Path) -> Result<Option<FoundPlace>, BackupError> {
        let Some(bytes) = self.read(FORMAT_FILE)? else { return Ok(None) };
        let Some(checksum) = Format::parse(&bytes, path)?.key else {
            return Ok(Some(FoundPlace { key_file: None }));
        };
        let missing = || BackupError::damaged(path, KEY_FILE, "it is missing");
        let key_file = self.read(KEY_FILE)?.ok_or_else(missing)?;
        if blake3::hash(&key_file).to_hex().as_str() != checksum {
            let problem = "it is not the one that ollm-backup.json names";
            return Err(BackupError::damaged(path, KEY_FILE, problem));
        }
        Ok(Some(FoundPlace { key_file: Some(key_file) }))
    }
}

impl BackupSource {
    /// Opens a place.
    ///
    /// **Errors**: `NotABackup`, `Newer`, `NeedsSecret`, `WrongPassphrase`, `WrongKey`, `Damaged`; `BadSecret` if a secret
    /// was given and nothing is encrypted, because somebody may have put other backups there.
    pub(crate) fn open(path: &Path, secret: &Secret) -> Result<Self, BackupError> {
        let store = Store::open(path)?;
        let not_a_backup = || BackupError::NotABackup { path: path.to_owned() };
        let FoundPlace { key_file } = store.found(path)?.ok_or_else(not_a_backup)?;
        let cover = match key_file {
            None if secret.is_empty() => Cover::Plain,
            None => {
                let problem = "the backups are not encrypted, and a passphrase or a key was given";
                return Err(BackupError::BadSecret { problem });
            }
            Some(key_file) => Cover::open(&key_file, secret, path)?,
        };
        Ok(Self { path: path.to_owned(), store, cover })
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.cover.is_sealed()
    }

    /// Returns the ids of all backups, the newest first.
    pub(crate) fn ids(&self) -> Result<Vec<String>, BackupError> {
        let names = self.store.names_in(MANIFESTS)?;
        let suffix = self.manifest_suffix();
        let id = |(name, _): (String, u64)| {
            let id = name.strip_suffix(&suffix)?;
            checksum_of(id).map(|_| id.to_owned())
        };
        let mut ids: Vec<String> = names.into_iter().filter_map(id).collect();
        ids.sort_unstable_by(|one, other| other.cmp(one));
        Ok(ids)
    }

    fn manifest_suffix(&self) -> String {
        manifest_suffix(&self.cover)
    }

    /// Returns the name of the file of a backup's manifest.
    pub(crate) fn manifest_name(&self, id: &str) -> String {
        format!("{MANIFESTS}/{id}{}", self.manifest_suffix())
    }

    /// Reads the manifest of a backup.
    ///
    /// **Errors**: `NoSuchBackup`, `Newer`, `Damaged`.
    pub(crate) fn manifest(&self, id: &str) -> Result<Manifest, BackupError> {
        let missing = || BackupError::NoSuchBackup { path: self.path.clone(), id: id.to_owned() };
        let checksum = checksum_of(id).ok_or_else(missing)?;
        let name = self.manifest_name(id);
        let stored = self.store.read(&name)?.ok_or_else(missing)?;
        let bytes = self.cover.opened(stored);
        let bytes = bytes.filter(|bytes| self.cover.name_of(bytes).starts_with(checksum));
        let bytes = bytes.ok_or_else(|| self.damaged(&name, "its checksum is wrong"))?;
        Manifest::parse(&bytes, &self.path, &name)
    }

    /// Reads a part, which has `len` bytes if that is known.
    ///
    /// **Errors**: `Damaged` also if it is missing.
    pub(crate) fn part(&self, name: &str, len: Option<u64>) -> Result<Vec<u8>, BackupError> {
        let file = format!("{PARTS}/{name}");
        let missing = || self.damaged(&file, "it is missing");
        let stored = self.store.read(&file)?.ok_or_else(missing)?;
        let bytes = self.cover.opened(stored);
        let is_whole = |bytes: &Vec<u8>| {
            len.is_none_or(|len| bytes.len() as u64 == len) && self.cover.name_of(bytes) == name
        };
        bytes.filter(is_whole).ok_or_else(|| self.damaged(&file, "its checksum is wrong"))
    }

    /// Returns the names of all parts and the sizes of their files in bytes.
    pub(crate) fn parts(&self) -> Result<Vec<(String, u64)>, BackupError> {
        let mut names = self.store.names_in(PARTS)?;
        names.retain(|(name, _)| is_part_name(name));
        Ok(names)
    }

    fn damaged(&self, name: &str, problem: &'static str) -> BackupError {
        let (path, name) = (self.path.clone(), name.to_owned());
        let offset = match &self.store {
            Store::Archive(archive) => archive.offset(&name),
            Store::Directory(_) => None,
        };
        BackupError::Damaged { path, name, offset, problem }
    }
}

/// Returns the end of the names of manifests.
pub(super) fn manifest_suffix(cover: &Cover) -> String {
    let sealed = if cover.is_sealed() { SEALED_SUFFIX } else { "" };
    format!("{MANIFEST_SUFFIX}{sealed}")
}

/// Reads a file, at most its first `limit` bytes. A size that the system states may be any number.
fn read_up_to(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = fsutil::open_regular(path)?;
    let len = file.metadata().map_or(0, |metadata| metadata.len()).min(MAX_PART_FILE_BYTES);
    let mut bytes = Vec::with_capacity(len as usize + 1);
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}
