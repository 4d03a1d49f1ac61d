//! Reading logs and blobs. Every byte of a session that is read from the disk is read here.
//!
//! **Invariant**: a file that could not be read is an error of the system and not damage. Damage is a content that was
//! read and is not what was written, or a blob that does not exist.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::fsutil::{self, FsError};

/// A log that is open for reading.
#[derive(Debug)]
pub(crate) struct LogReader {
    file: File,
    path: PathBuf,
    /// The bytes from here on are not read.
    end: u64,
}

impl LogReader {
    /// Opens a log.
    pub(crate) fn open(path: &Path) -> Result<Self, FsError> {
        let fail = |source| FsError::new("open", path, source);
        check(path)
            .and_then(|()| fsutil::open_regular(path))
            .map(|file| Self::new(file, path))
            .map_err(fail)
    }

    /// Returns a reader of a log that is open already.
    pub(crate) fn new(file: File, path: &Path) -> Self {
        Self { file, path: path.to_owned(), end: u64::MAX }
    }

    /// Returns the reader of the first `end` bytes.
    pub(crate) fn limited_to(self, end: u64) -> Self {
        Self { end, ..self }
    }

    /// Returns the reader of a log that was renamed.
    pub(crate) fn renamed(self, path: &Path) -> Self {
        Self { path: path.to_owned(), ..self }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the size of the readable part in bytes.
    pub(crate) fn len(&self) -> Result<u64, FsError> {
        let fail = |source| FsError::new("examine", &self.path, source);
        self.file.metadata().map(|data| data.len().min(self.end)).map_err(fail)
    }

    /// Makes all bytes that were read durable.
    pub(crate) fn sync(&self) -> Result<(), FsError> {
        fsutil::sync_content(&self.file, &self.path)
            .map_err(|source| FsError::new("sync", &self.path, source))
    }

    /// Fills `buffer` with the bytes from `offset` on; returns false if the log ends before.
    pub(crate) fn read_exact(&self, buffer: &mut [u8], offset: u64) -> Result<bool, FsError> {
        match check(&self.path).and_then(|()| self.file.read_exact_at(buffer, offset)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(FsError::new("read", &self.path, error)),
        }
    }

    /// Returns a stream of the bytes from `offset` on.
    pub(crate) const fn stream(&self, offset: u64) -> LogStream<'_> {
        LogStream { log: self, offset }
    }
}

/// The bytes of a log from an offset on.
pub(crate) struct LogStream<'a> {
    log: &'a LogReader,
    offset: u64,
}

impl Read for LogStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        check(&self.log.path)?;
        let left = self.log.end.saturating_sub(self.offset);
        let len = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let n_read = self.log.file.read_at(&mut buffer[..len], self.offset)?;
        self.offset += n_read as u64;
        Ok(n_read)
    }
}

/// Reads a blob; returns `None` if there is no such file.
pub(crate) fn read_blob(path: &Path) -> Result<Option<Vec<u8>>, FsError> {
    // A link or a pipe in place of a blob is no blob.
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound};
    match check(path).and_then(|()| fsutil::read_regular(path)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error)
            if matches!(error.kind(), InvalidInput | NotFound | NotADirectory | IsADirectory) =>
        {
            Ok(None)
        }
        Err(error) => Err(FsError::new("read", path, error)),
    }
}

/// The reason why a line is not a record.
#[derive(Debug)]
pub(super) enum DecodeError {
    /// The line is not a record of this version, or a blob is missing or has another content.
    Damaged,
    /// A blob could not be read.
    Unreadable(FsError),
}

impl From<FsError> for DecodeError {
    fn from(error: FsError) -> Self {
        Self::Unreadable(error)
    }
}

impl From<serde_json::Error> for DecodeError {
    fn from(_: serde_json::Error) -> Self {
        Self::Damaged
    }
}

/// Fails if a test lets the reads of this file fail.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "it fails in tests")]
const fn check(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
pub(crate) use faults::{ReadFaults, check};

/// Reads that fail on purpose.
#[cfg(test)]
mod faults {
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use parking_lot::Mutex;

    /// A planned failure of the reads below a directory.
    #[derive(Debug)]
    pub(crate) struct ReadFaults {
        dir: PathBuf,
        state: Mutex<FaultState>,
    }

    #[derive(Debug)]
    struct FaultState {
        n_reads: u64,
        /// The numbers of the reads that fail, and the error number that they fail with.
        fails: Option<(std::ops::Range<u64>, i32)>,
    }

    /// The plans of all tests that run, each for a directory of its own.
    static PLANS: Mutex<Vec<Arc<ReadFaults>>> = Mutex::new(Vec::new());

    impl ReadFaults {
        /// Begins to count the reads below a directory.
        pub(crate) fn watch(dir: &Path) -> Arc<Self> {
            let state = Mutex::new(FaultState { n_reads: 0, fails: None });
            let plan = Arc::new(Self { dir: dir.to_owned(), state });
            PLANS.lock().push(Arc::clone(&plan));
            plan
        }

        /// Lets reads fail from now on, counted from 0.
        pub(crate) fn fail(&self, reads: std::ops::Range<u64>, errno: i32) {
            *self.state.lock() = FaultState { n_reads: 0, fails: Some((reads, errno)) };
        }

        /// Ends the failures and returns the number of reads since they began.
        pub(crate) fn lift(&self) -> u64 {
            let mut state = self.state.lock();
            state.fails = None;
            std::mem::take(&mut state.n_reads)
        }
    }

    pub(crate) fn check(path: &Path) -> io::Result<()> {
        let plan = PLANS.lock().iter().find(|plan| path.starts_with(&plan.dir)).cloned();
        let Some(plan) = plan else { return Ok(()) };
        let mut state = plan.state.lock();
        let at = state.n_reads;
        state.n_reads += 1;
        match &state.fails {
            Some((reads, errno)) if reads.contains(&at) => {
                Err(io::Error::from_raw_os_error(*errno))
            }
            _ => Ok(()),
        }
    }
}
