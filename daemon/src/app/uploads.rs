//! Imports that arrive in chunks, each kept in a private file without a name until its last chunk.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::error::{AppError, Result};
use crate::fsutil::FsError;

/// The largest file that can be imported; an import reads it into memory.
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
        // A file without a name cannot outlive a crash.
        let file = tempfile::tempfile_in(&self.dir)
            .map_err(|source| FsError::new("make a file in", &self.dir, source))?;
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

    /// Closes an upload and returns its text.
    pub(crate) fn take(&self, id: &str) -> Result<String> {
        let mut upload = self.open.lock().remove(id).ok_or_else(|| unknown(id))?;
        let mut text = String::new();
        let read = upload.file.rewind().and_then(|()| upload.file.read_to_string(&mut text));
        read.map_err(|source| FsError::new("read from", &self.dir, source))?;
        Ok(text)
    }
}

fn unknown(id: &str) -> AppError {
    AppError::Upload { id: id.to_owned(), problem: "is not known" }
}
