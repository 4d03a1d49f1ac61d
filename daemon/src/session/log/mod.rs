//! The session log: one record a line, only ever appended to. FORMAT.md, "The session log".
//!
//! This is the only module that knows the shape of a line. One file holds each version: `v1` is the only one so far and
//! therefore also the one that is written; a second version adds a match on the version here. The file of a log is a
//! trait, so that a test can make every write and every sync fail.
//!
//! **Invariants**: a record that is returned had a correct checksum; a torn tail starts after the last acknowledged
//! record. After a failed write or sync, every further write fails until the file is opened again and truncated to the
//! last acknowledged byte, because the content of the disk is unknown after a failed sync.

mod blobs;
mod flipped_bit;
mod reading;
pub(super) mod recover;
mod v1;

use std::io;
use std::ops::Range;
use std::path::Path;

#[cfg(test)]
pub(crate) use reading::ReadFaults;
pub(super) use reading::{LogReader, read_blob};
#[cfg(any(test, fuzzing))]
pub(super) use v1::seal_line;
pub(super) use v1::{
    EncodedLine, LineFields, decode_line, encode_line, line_blobs, line_crc, line_tokenizer,
};

use super::error::LogError;
use crate::fsutil::{self, DiskFile};

/// The operations that a writer needs.
pub(crate) trait LogFile: Send {
    /// Appends bytes.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes all appended bytes durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Gives the file the name `to`, which must not be taken.
    fn rename_new(&mut self, to: &Path) -> io::Result<()>;
    /// Returns the size in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Truncates the file to `len` bytes, durably.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    /// Fills `buffer` with the bytes from `offset` on.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

/// A function that opens a log; the flag says whether to create it. Tests replace it.
pub(crate) type OpenLogFile = dyn Fn(&Path, bool) -> io::Result<Box<dyn LogFile>> + Send + Sync;

/// Opens a log on disk; with `create` it must not exist yet.
pub(crate) fn open_real(path: &Path, create: bool) -> io::Result<Box<dyn LogFile>> {
    let file = if create { DiskFile::create(path) } else { DiskFile::open(path) }?;
    Ok(Box::new(RealLogFile { file, failed: false }))
}

/// Writes a part of a log over itself, as [`fsutil::rewrite`] does; the caller syncs the log.
pub(super) fn rewrite(path: &Path, part: Range<u64>) -> Result<(), LogError> {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    if part.is_empty() {
        return Ok(());
    }
    match fsutil::rewrite(path, part) {
        // A log that this process must not write was not written by one like it either.
        Err(error) if matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem) => Ok(()),
        rewritten => {
            rewritten.map(drop).map_err(|source| LogError::io("rewrite the end of", path, source))
        }
    }
}

/// A log on disk.
struct RealLogFile {
    file: DiskFile,
    failed: bool,
}

impl RealLogFile {
    /// Runs an operation unless an earlier one failed.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut DiskFile) -> io::Result<T>) -> io::Result<T> {
        if self.failed {
            return Err(io::Error::other("an earlier write failed and the log was not reopened"));
        }
        let done = work(&mut self.file);
        self.failed = done.is_err();
        done
    }
}

impl LogFile for RealLogFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.guarded(|file| file.append(bytes))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.guarded(|file| file.sync_data())
    }

    fn rename_new(&mut self, to: &Path) -> io::Result<()> {
        self.guarded(|file| file.rename_new(to))
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.guarded(|file| {
            file.set_len(len)?;
            file.sync_all()
        })
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}
