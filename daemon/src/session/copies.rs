//! The files of a session as a backup reads them: the acknowledged part of the log at one instant, and the blobs that it
//! names.
//!
//! Nothing is opened for it that others use, and no writer waits: a log is only appended to, and blobs are durable before
//! the line that names them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::Session;

use super::error::SessionError;
use super::examine::{NamedBlobs, named_blobs};
use super::index::IndexEntry;
use super::log::{LogReader, read_blob};
use super::open_session::{OpenSession, RecordReader};
use super::store::Sessions;
use crate::fsutil::{self, FsError};

/// The attempts to read a log that others write meanwhile, each after a write that was finished.
const MAX_ATTEMPTS: usize = 100;

/// The files of a session at one instant.
pub(crate) struct SessionCopy {
    /// The session as lists show it.
    pub(crate) summary: Session,
    /// The number of records.
    pub(crate) records: u64,
    /// The size of the acknowledged part of the log, which is durable, in bytes.
    pub(crate) log_bytes: u64,
    log: Arc<LogReader>,
    entries: Vec<IndexEntry>,
    reader: RecordReader,
    blobs: PathBuf,
}

impl SessionCopy {
    /// Reads the log from `offset` on; returns false if it ends before, because the session was deleted.
    pub(crate) fn read_log(&self, buffer: &mut [u8], offset: u64) -> Result<bool, FsError> {
        self.log.read_exact(buffer, offset)
    }

    /// Returns the names of the blobs: those that the log names, and perhaps some of later records.
    pub(crate) fn blob_names(&self) -> Result<Vec<String>, FsError> {
        let mut names = fsutil::file_names_if_any(&self.blobs)?;
        names.retain(|name| super::kept_files::is_hash(name));
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the blobs that records name, each with the first record, and whether it is the content of a file. Reads
    /// these records.
    pub(crate) fn named_blobs(&self) -> Result<NamedBlobs, FsError> {
        named_blobs(&self.entries, &self.reader, &self.blobs)
    }

    /// Reads a blob; returns `None` if there is none.
    pub(crate) fn read_blob(&self, name: &str) -> Result<Option<Vec<u8>>, FsError> {
        read_blob(&self.blobs.join(name))
    }
}

impl Sessions {
    /// Returns the files of a session. Blocks on the disk.
    ///
    /// **Errors**: `NotFound` also for a draft, `UpgradeRequired`, `Storage`, `Busy`.
    pub(crate) fn files(&self, id: SessionId) -> Result<SessionCopy, SessionError> {
        for _ in 0..MAX_ATTEMPTS {
            let is_synced = self.peek(id, |live| live.unsynced_from.is_none());
            let found = match is_synced {
                Some(true) => self.peek(id, |live| self.files_of(live)).flatten(),
                Some(false) => {
                    self.sync(id)?;
                    continue;
                }
                None => self.files_of_closed(id)?,
            };
            if let Some(files) = found {
                return Ok(files);
            }
            if self.peek(id, |live| live.draft.is_some()) == Some(true) {
                return Err(SessionError::NotFound { id });
            }
        }
        Err(SessionError::Busy { id, waiting: 1 })
    }

    /// Returns the files of a session that is not open; `None` if the log changed while it was read.
    fn files_of_closed(&self, id: SessionId) -> Result<Option<SessionCopy>, SessionError> {
        let path = self.shared.paths.log(id);
        if !self.shared.paths.has_log(id) {
            return Err(SessionError::NotFound { id });
        }
        let blobs = self.shared.paths.blobs(id);
        let hint = self.shared.hint(id);
        let open = || {
            let log = LogReader::open(&path)?;
            let len = log.len()?;
            OpenSession::open(id, log.limited_to(len), blobs.clone(), hint.clone(), 0)
        };
        let opened = self.shared.with_descriptors(open);
        let (session, end) = opened.map_err(|error| SessionError::log(id, &error))?;
        if end.point.records == 0 {
            return Err(SessionError::NotFound { id });
        }
        // Records that the catalog has seen were acknowledged and synced.
        if hint.is_some_and(|hint| hint.point == end.point) {
            return Ok(self.files_of(&session));
        }
        // No write is under way then, so every line that was read is acknowledged, or was when its writer was killed.
        let is_current = self.with_cell_of_log(id, |cell| cell.sync_read(&session))?;
        Ok(if is_current { self.files_of(&session) } else { None })
    }

    fn files_of(&self, session: &OpenSession) -> Option<SessionCopy> {
        let point = session.state.point();
        let summary = session.summary(self.shared.clock.now());
        Some(SessionCopy {
            records: point.records,
            log_bytes: point.bytes,
            log: session.log()?,
            entries: session.state.entries().to_vec(),
            reader: session.reader(),
            blobs: self.shared.paths.blobs(summary.session_id),
            summary,
        })
    }

    /// Returns the directory of the logs.
    pub(crate) fn dir(&self) -> &Path {
        &self.shared.paths.dir
    }

    /// Returns whether a session has a log, which is a regular file.
    pub(crate) fn has_log(&self, id: SessionId) -> bool {
        self.shared.paths.has_log(id)
    }

    /// Returns the path of the log.
    pub(crate) fn log_path(&self, id: SessionId) -> PathBuf {
        self.shared.paths.log(id)
    }

    /// Returns the path of the directory of the blobs.
    pub(crate) fn blobs_path(&self, id: SessionId) -> PathBuf {
        self.shared.paths.blobs(id)
    }

    /// Returns whether a session that was not found is lost: there is its log, and no record of it can be read. A draft has no
    /// log yet, and a session that is deleted meanwhile has none any more.
    pub(crate) fn is_lost(&self, id: SessionId) -> bool {
        let is_other = self.peek(id, |_| ()).is_some() || self.deleting().contains(&id);
        !is_other && self.has_log(id)
    }

    /// Returns whether a session with this id exists or is being deleted, or something else has the name of its log. A log
    /// without a byte and blobs without a log are left of a session that was lost, and count for nothing.
    pub(crate) fn is_taken(&self, id: SessionId) -> bool {
        let paths = &self.shared.paths;
        let log = paths.log(id).symlink_metadata();
        self.cells().contains_key(&id)
            || paths.deleting(id).symlink_metadata().is_ok()
            || log.is_ok_and(|found| !found.is_file() || found.len() > 0)
    }
}
