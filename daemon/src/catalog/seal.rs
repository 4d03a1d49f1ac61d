//! The seal of the catalog: a checksum of the whole database file, by which damage is found that SQLite does not see.
//!
//! Flipped bits in the lists of the full-text index lead to missing hits and to no error. So the file is sealed when the
//! catalog is idle and when it is closed, and checked at the next start. New transactions go to the journal and leave the
//! file as it is, so the seal stays valid until the journal is copied into the file; before that it is removed. The
//! journal has checksums of its own. A seal gives the transactions after it an identity, so that the journal of another
//! catalog is not taken for that of this one. FORMAT.md, "Catalog".

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::error::CatalogError;
use super::files::{wal_bytes, with_suffix};
use super::query::{self, fulltext};
use crate::fsutil::{self, FsError};

/// Bytes of the file that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// The seal of one catalog file, present or not.
#[derive(Debug)]
pub(super) struct CatalogSeal {
    path: PathBuf,
    /// The database. It is open as long as SQLite has it open, because closing it would end SQLite's locks on it.
    file: File,
    contents: Option<SealContents>,
    /// Whether the file was compared with the seal since the start, or is new.
    is_checked: bool,
    /// Whether a transaction has stored the identity.
    has_identity: bool,
}

/// The contents of the file of a seal: four numbers in hexadecimal digits and their checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SealContents {
    bytes: u64,
    crc: u32,
    /// The identity that the sealed file has.
    base: i64,
    /// The identity of the transactions after the seal.
    next: i64,
}

/// The result of comparing a catalog with its seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SealCheck {
    /// The file is as it was sealed, and the journal belongs to it.
    Intact,
    Broken,
    /// There is no seal, because a crash or a copy lost it.
    Unsealed,
}

impl SealContents {
    fn to_text(self) -> String {
        let Self { bytes, crc, base, next } = self;
        let numbers = format!("{bytes:x} {crc:x} {base:x} {next:x}");
        format!("{numbers} {:08x}\n", crc32c::crc32c(numbers.as_bytes()))
    }

    fn parse(text: &str) -> Option<Self> {
        let (numbers, crc) = text.strip_suffix('\n')?.rsplit_once(' ')?;
        if u32::from_str_radix(crc, 16).ok()? != crc32c::crc32c(numbers.as_bytes()) {
            return None;
        }
        let mut numbers = numbers.split(' ').map(|number| u64::from_str_radix(number, 16).ok());
        let mut next = || numbers.next().flatten();
        let (bytes, crc) = (next()?, u32::try_from(next()?).ok()?);
        Some(Self { bytes, crc, base: next()?.cast_signed(), next: next()?.cast_signed() })
    }
}

impl CatalogSeal {
    /// Reads the seal of a catalog; that of an earlier file is removed if the catalog is new.
    pub(super) fn load(path: &Path, is_new: bool) -> Result<Self, CatalogError> {
        let file =
            fsutil::open_regular(path).map_err(|source| FsError::new("open", path, source))?;
        let path_buf = path.to_owned();
        let mut seal =
            Self { path: path_buf, file, contents: None, is_checked: is_new, has_identity: false };
        if is_new {
            remove(path)?;
        } else {
            seal.contents = fsutil::read_regular(&seal_path(path))
                .ok()
                .and_then(|bytes| SealContents::parse(std::str::from_utf8(&bytes).ok()?));
        }
        Ok(seal)
    }

    pub(super) const fn exists(&self) -> bool {
        self.contents.is_some()
    }

    pub(super) const fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Compares the catalog with its seal. Reads the whole file, once.
    pub(super) fn check(&mut self, conn: &Connection) -> Result<SealCheck, CatalogError> {
        self.is_checked = true;
        let Some(contents) = self.contents else { return Ok(SealCheck::Unsealed) };
        let fail =
            |source| CatalogError::Database { attempt: "read", path: self.path.clone(), source };
        let id = fulltext::seal_id(conn).map_err(fail)?;
        let has_own_journal = id == contents.base || id == contents.next;
        let is_intact = has_own_journal && self.checksum()? == (contents.bytes, contents.crc);
        Ok(if is_intact { SealCheck::Intact } else { SealCheck::Broken })
    }

    /// Stores the identity within the open transaction, the first after the seal.
    pub(super) fn mark_transaction(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        if let Some(contents) = self.contents.filter(|_| !self.has_identity) {
            query::begin(conn)?;
            fulltext::set_seal_id(conn, contents.next)?;
            query::commit(conn)?;
            self.has_identity = true;
        }
        Ok(())
    }

    /// Removes the seal, before the file changes.
    pub(super) fn remove(&mut self) -> Result<(), CatalogError> {
        if self.contents.take().is_some() {
            remove(&self.path)?;
        }
        Ok(())
    }

    /// Seals the file if it has no seal and the journal is empty.
    pub(super) fn renew(&mut self, conn: &Connection) -> Result<(), CatalogError> {
        if self.contents.is_some() || !self.is_checked || wal_bytes(&self.path) > 0 {
            return Ok(());
        }
        let fail =
            |source| CatalogError::Database { attempt: "seal", path: self.path.clone(), source };
        let base = fulltext::seal_id(conn).map_err(fail)?;
        let next = fulltext::random_id(conn).map_err(fail)?;
        let (bytes, crc) = self.checksum()?;
        let contents = SealContents { bytes, crc, base, next };
        fsutil::replace_atomically(&seal_path(&self.path), contents.to_text().as_bytes())?;
        self.contents = Some(contents);
        self.has_identity = false;
        Ok(())
    }

    /// Returns the size of the file and its checksum.
    fn checksum(&self) -> Result<(u64, u32), FsError> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let (mut bytes, mut crc) = (0, 0);
        loop {
            let n_read = self.file.read_at(&mut chunk, bytes);
            let n_read = n_read.map_err(|source| FsError::new("read", &self.path, source))?;
            if n_read == 0 {
                return Ok((bytes, crc));
            }
            bytes += n_read as u64;
            crc = crc32c::crc32c_append(crc, &chunk[..n_read]);
        }
    }
}

/// Removes the seal of a catalog that is discarded, durably.
pub(super) fn remove(path: &Path) -> Result<(), CatalogError> {
    let seal = seal_path(path);
    if seal.exists() {
        fsutil::remove_file(&seal)?;
        fsutil::sync_dir(path.parent().unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

fn seal_path(path: &Path) -> PathBuf {
    with_suffix(path, "-seal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_survive_writing_and_no_flipped_bit_does() {
        let contents = SealContents { bytes: 4096, crc: 0xdead_beef, base: -7, next: i64::MIN };
        let text = contents.to_text();
        assert_eq!(SealContents::parse(&text), Some(contents));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let damaged = String::from_utf8(bytes).expect("is ASCII");
            assert_eq!(SealContents::parse(&damaged), None, "byte {at}");
        }
    }
}
