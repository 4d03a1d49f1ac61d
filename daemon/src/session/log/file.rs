//! The bytes of one log, behind a trait so that a test can make every write and sync fail.
//!
//! **Invariant**: after any failed write or sync the file answers nothing but `PreviousIo` until it is reopened
//! and cut back to what was acknowledged: after a failed sync nobody knows what the disk holds.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// The operations that a writer needs.
pub(crate) trait LogFile: Send {
    /// Writes at the end.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes all that was written durable.
    fn sync(&mut self) -> io::Result<()>;
    /// Bytes in the file.
    fn len(&self) -> io::Result<u64>;
    /// Cuts the file and makes that durable.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    /// Fills `buffer` from `offset` on.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

/// How a writer gets at its file; the real one, or a faulty twin.
pub(crate) type OpenLogFile = dyn Fn(&Path, bool) -> io::Result<Box<dyn LogFile>> + Send + Sync;

/// A file of the system.
pub(crate) struct RealLogFile {
    file: File,
    failed: bool,
}

/// Opens a log; with `create` it must not exist yet.
pub(crate) fn open_real(path: &Path, create: bool) -> io::Result<Box<dyn LogFile>> {
    let file =
        OpenOptions::new().read(true).append(true).create_new(create).mode(0o600).open(path)?;
    Ok(Box::new(RealLogFile { file, failed: false }))
}

impl RealLogFile {
    fn guarded<T>(&mut self, work: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
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
        self.guarded(|file| file.write_all(bytes))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.guarded(|file| file.sync_data())
    }

    fn len(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
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
