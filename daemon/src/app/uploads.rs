//! Imports that arrive in chunks, each kept in a private file without a name until its last chunk, and the imports that
//! are being written.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use parking_lot::{Condvar, Mutex};

use super::error::{AppError, Result};
use crate::fsutil::FsError;

/// The largest file that can be imported: far more than a session has, and a bound for the disk that an import takes.
const MAX_UPLOAD_BYTES: u64 = 1024 * 1024 * 1024;
/// The most imports that can be open at once.
const MAX_UPLOADS: usize = 8;
/// An upload without a chunk for this long is dropped.
const UPLOAD_IDLE: Duration = Duration::from_secs(600);

/// The open uploads.
pub(crate) struct Uploads {
    dir: PathBuf,
    open: Mutex<HashMap<String, Upload>>,
}

struct Upload {
    file: File,
    bytes: u64,
    last_chunk: Instant,
}

impl Uploads {
    /// Keeps uploads in `dir`.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, open: Mutex::default() }
    }

    /// Opens an upload and returns its id.
    pub(crate) fn begin(&self, id: String) -> Result<String> {
        let mut open = self.open.lock();
        open.retain(|_, upload| upload.last_chunk.elapsed() < UPLOAD_IDLE);
        if open.len() >= MAX_UPLOADS {
            return Err(AppError::Upload { id, problem: "too many imports arrive at once" });
        }
        let file = self.temporary_file().map_err(|source| self.file_error(source))?;
        open.insert(id.clone(), Upload { file, bytes: 0, last_chunk: Instant::now() });
        Ok(id)
    }

    /// Appends a chunk; after an error the upload is closed.
    pub(crate) fn append(&self, id: &str, data: &str) -> Result<()> {
        let mut open = self.open.lock();
        let upload = open.get_mut(id).ok_or_else(|| unknown(id))?;
        upload.bytes += data.len() as u64;
        upload.last_chunk = Instant::now();
        if upload.bytes > MAX_UPLOAD_BYTES {
            open.remove(id);
            return Err(AppError::Upload { id: id.to_owned(), problem: "is larger than 1 GiB" });
        }
        let written = upload.file.write_all(data.as_bytes());
        written.map_err(|source| {
            // Part of the chunk may be written: appending the next one would corrupt the file.
            open.remove(id);
            FsError::new("write to", &self.dir, source).into()
        })
    }

    /// Closes an upload and returns its file.
    pub(crate) fn take(&self, id: &str) -> Result<File> {
        let upload = self.open.lock().remove(id).ok_or_else(|| unknown(id))?;
        Ok(upload.file)
    }

    /// Makes a private file without a name, which cannot outlive a crash.
    pub(crate) fn temporary_file(&self) -> io::Result<File> {
        tempfile::tempfile_in(&self.dir)
    }

    /// Returns the error of a temporary file.
    pub(crate) fn file_error(&self, source: io::Error) -> AppError {
        FsError::new("use a temporary file in", &self.dir, source).into()
    }
}

fn unknown(id: &str) -> AppError {
    AppError::Upload { id: id.to_owned(), problem: "is not known" }
}

/// The sessions that are being imported. Two imports of one session run one after the other; imports of different
/// sessions do not wait for each other.
#[derive(Default)]
pub(crate) struct RunningImports {
    sessions: Mutex<HashSet<SessionId>>,
    ended: Condvar,
}

impl RunningImports {
    /// Waits until no other import of the session runs. Blocks the thread.
    pub(crate) fn begin(&self, id: SessionId) -> RunningImport<'_> {
        let mut sessions = self.sessions.lock();
        while !sessions.insert(id) {
            self.ended.wait(&mut sessions);
        }
        RunningImport { imports: self, id }
    }

    /// Returns whether an import of the session runs.
    pub(crate) fn is_running(&self, id: SessionId) -> bool {
        self.sessions.lock().contains(&id)
    }

    /// Returns whether any import runs.
    pub(crate) fn is_any(&self) -> bool {
        !self.sessions.lock().is_empty()
    }
}

/// The import of one session; ended by its drop.
pub(crate) struct RunningImport<'a> {
    imports: &'a RunningImports,
    id: SessionId,
}

impl Drop for RunningImport<'_> {
    fn drop(&mut self) {
        self.imports.sessions.lock().remove(&self.id);
        self.imports.ended.notify_all();
    }
}
