//! A backup in one tar file: entries of fixed headers, so that every byte of the file is known or covered by a checksum.
//!
//! Any program reads the file. This reader accepts only what [`ArchiveWriter`] writes: a changed byte in a header or between
//! two entries is damage too.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{BackupError, max_bytes};
use crate::fsutil::{self, DiskFile, FsError, TemporaryName};

/// The size of a header, and the unit of sizes in a tar file.
const BLOCK: u64 = 512;
/// The blocks of zeros at the end.
const END_BLOCKS: u64 = 2;
/// The bytes that are written at once.
const BUFFER_BYTES: usize = 256 * 1024;

/// A tar file that gets its name when it is complete.
pub(super) struct ArchiveWriter {
    path: PathBuf,
    out: BufWriter<DiskFile>,
    temporary: TemporaryName,
}

impl ArchiveWriter {
    /// Begins a file, which must not exist.
    pub(super) fn create(path: &Path) -> Result<Self, BackupError> {
        if path.symlink_metadata().is_ok() {
            return Err(BackupError::Exists { path: path.to_owned() });
        }
        let unnamed = fsutil::temporary_beside(path);
        let file = DiskFile::create(&unnamed);
        let file = file.map_err(|source| FsError::new("create", path, source))?;
        let out = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Self { path: path.to_owned(), out, temporary: TemporaryName::of(unnamed) })
    }

    /// Adds an entry.
    pub(super) fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), FsError> {
        let mut write = || {
            self.out.write_all(header(name, bytes.len() as u64)?.as_bytes())?;
            self.out.write_all(bytes)?;
            self.out.write_all(&vec![0; padding(bytes.len() as u64) as usize])
        };
        write().map_err(|source| FsError::new("write", &self.path, source))
    }

    /// Ends the file, makes it durable and gives it its name.
    pub(super) fn finish(self) -> Result<(), FsError> {
        let Self { path, mut out, temporary } = self;
        let fail = |source| FsError::new("write", &path, source);
        out.write_all(&[0; (END_BLOCKS * BLOCK) as usize])
            .and_then(|()| out.flush())
            .map_err(fail)?;
        let (mut file, _nothing) = out.into_parts();
        file.sync_all().and_then(|()| file.rename_new(&path)).map_err(fail)?;
        temporary.was_renamed();
        fsutil::sync_parent(&path).inspect_err(|_| {
            // Nobody was told that the backup is there. If it stays, it is whole.
            drop(fsutil::remove_file(&path));
        })
    }
}

/// A tar file with the positions of its entries.
pub(super) struct ArchiveReader {
    path: PathBuf,
    file: File,
    /// The offset and the size of the content of each entry.
    entries: BTreeMap<String, (u64, u64)>,
}

impl ArchiveReader {
    /// Opens a file and examines everything but the contents.
    pub(super) fn open(path: &Path) -> Result<Self, BackupError> {
        let fail = |source| FsError::new("read", path, source);
        let file = fsutil::open_regular(path).map_err(fail)?;
        let len = file.metadata().map_err(fail)?.len();
        let mut reader = Self { path: path.to_owned(), file, entries: BTreeMap::new() };
        let mut at = 0;
        loop {
            let block = reader.read_at(at, BLOCK)?;
            if block.iter().all(|byte| *byte == 0) {
                reader.require_zeros(at, END_BLOCKS * BLOCK)?;
                if at + END_BLOCKS * BLOCK != len {
                    return Err(reader.damaged(at, "bytes follow its end"));
                }
                return Ok(reader);
            }
            let entry = entry_of(&block).filter(|(name, size)| *size <= max_bytes(name));
            let (name, size) = entry.ok_or_else(|| match at {
                0 => BackupError::NotABackup { path: path.to_owned() },
                at => reader.damaged(at, "an entry does not begin here"),
            })?;
            let content = at + BLOCK;
            let end = content + size;
            if end > len {
                return Err(reader.damaged(len, "it was cut off"));
            }
            reader.require_zeros(end, padding(size))?;
            if reader.entries.insert(name, (content, size)).is_some() {
                return Err(reader.damaged(at, "an entry is there twice"));
            }
            at = end + padding(size);
        }
    }

    /// Returns the names of the entries in a directory, with their sizes.
    pub(super) fn names_in(&self, dir: &str) -> Vec<(String, u64)> {
        let in_dir = |(name, (_, size)): (&String, &(u64, u64))| {
            Some((name.strip_prefix(dir)?.strip_prefix('/')?.to_owned(), *size))
        };
        self.entries.iter().filter_map(in_dir).collect()
    }

    /// Returns the position of an entry's content, in bytes.
    pub(super) fn offset(&self, name: &str) -> Option<u64> {
        self.entries.get(name).map(|(offset, _)| *offset)
    }

    /// Reads an entry; returns `None` if there is none.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, BackupError> {
        self.entries.get(name).map(|(offset, size)| self.read_at(*offset, *size)).transpose()
    }

    fn read_at(&self, at: u64, size: u64) -> Result<Vec<u8>, BackupError> {
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        match self.file.read_exact_at(&mut bytes, at) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged(at, "it was cut off"))
            }
            Err(source) => Err(FsError::new("read", &self.path, source).into()),
        }
    }

    fn require_zeros(&self, at: u64, size: u64) -> Result<(), BackupError> {
        let bytes = self.read_at(at, size)?;
        match bytes.iter().position(|byte| *byte != 0) {
            None => Ok(()),
            Some(first) => Err(self.damaged(at + first as u64, "a byte between entries changed")),
        }
    }

    fn damaged(&self, offset: u64, problem: &'static str) -> BackupError {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = self.path.parent().unwrap_or(Path::new("/")).to_owned();
        BackupError::Damaged { path, name, offset: Some(offset), problem }
    }
}

/// Returns the bytes between the end of a content and the next header.
const fn padding(size: u64) -> u64 {
    size.next_multiple_of(BLOCK) - size
}

/// Returns the header of an entry, which follows from its name and size alone.
fn header(name: &str, size: u64) -> io::Result<tar::Header> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name)?;
    header.set_size(size);
    header.set_mode(0o600);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    Ok(header)
}

/// Returns the name and the size of a header; `None` if it is not one that [`header`] returns.
fn entry_of(block: &[u8]) -> Option<(String, u64)> {
    let mut found = tar::Header::new_ustar();
    found.as_mut_bytes().copy_from_slice(block);
    let name = String::from_utf8(found.path_bytes().into_owned()).ok()?;
    let size = found.entry_size().ok()?;
    let expected = header(&name, size).ok()?;
    (expected.as_bytes()[..] == *block).then_some((name, size))
}
