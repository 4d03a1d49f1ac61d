//! The parts that all sessions of a directory share: the paths of files, the clock, the pool and the observer.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ollm_protocol::content::FailedWrite;
use ollm_protocol::{SessionId, Timestamp};
use parking_lot::Mutex;

use super::error::{LogError, SessionError};
use super::index::{HintSource, OpenHint};
use super::log::OpenLogFile;
use super::pool::SyncPool;
use super::write::Observer;
use crate::clock::Clock;
use crate::fsutil;

/// The pause before another attempt to get a file descriptor while every session is in use.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of these pauses in one operation, together a second.
const MAX_PAUSES: u32 = 50;

/// The paths of the files of sessions. FORMAT.md, "Directories and modes".
pub(super) struct SessionPaths {
    /// The directory of all sessions.
    pub(super) dir: PathBuf,
}

impl SessionPaths {
    pub(super) fn log(&self, id: SessionId) -> PathBuf {
        self.dir.join(format!("{id}.jsonl"))
    }

    /// Returns whether a session has a log. Anything else by that name, such as a directory, a link or a pipe, is not
    /// opened: reading a pipe would wait for a writer.
    pub(super) fn has_log(&self, id: SessionId) -> bool {
        self.log(id).symlink_metadata().is_ok_and(|file| file.is_file())
    }

    /// Returns the path of a log that is being deleted. Its existence makes the next start finish the deletion.
    pub(super) fn deleting(&self, id: SessionId) -> PathBuf {
        self.dir.join(format!("{id}.jsonl.deleting"))
    }

    pub(super) fn blobs(&self, id: SessionId) -> PathBuf {
        self.dir.join(format!("{id}.blobs"))
    }

    pub(super) fn document(&self, id: SessionId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    pub(super) fn torn(&self, id: SessionId, at: Timestamp) -> PathBuf {
        self.dir.join(format!("{id}.torn-{}", at.unix_ms()))
    }
}

/// The parts that all sessions share.
pub(super) struct StoreShared {
    pub(super) paths: SessionPaths,
    pub(super) clock: Arc<Clock>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) pool: SyncPool,
    pub(super) open_file: Box<OpenLogFile>,
    /// The number of records written since the start.
    pub(super) n_records: AtomicU64,
    /// The number of syncs since the start.
    pub(super) n_syncs: AtomicU64,
    /// Failed forks whose logs could not be removed. The next fork removes them, so that a retry makes no second one.
    pub(super) failed_forks: Mutex<Vec<SessionId>>,
    /// The newest write that the disk refused.
    pub(super) failed_write: Mutex<Option<FailedWrite>>,
    /// Closes unused sessions and returns their number; set by the owner of the cells.
    pub(super) close_unused: OnceLock<Box<dyn Fn() -> usize + Send + Sync>>,
    pub(super) hints: OnceLock<Arc<dyn HintSource>>,
    /// The names of logs that are no regular files and were reported.
    pub(super) foreign_names: Mutex<HashSet<SessionId>>,
}

impl StoreShared {
    pub(super) fn hint(&self, id: SessionId) -> Option<OpenHint> {
        self.hints.get().and_then(|hints| hints.hint(id))
    }

    /// Reports a name of a log that is no regular file, once.
    pub(super) fn report_foreign_name(&self, id: SessionId) {
        if self.foreign_names.lock().insert(id) {
            let path = self.paths.log(id);
            tracing::warn!(path = %path.display(), "not a regular file, so it is not a session");
        }
    }

    /// Calls `open`, and calls it again after unused sessions were closed if the process has no free descriptor.
    ///
    /// When every session is in use, it waits a moment: most descriptors are in use only for one operation. Blocks.
    pub(super) fn with_descriptors<T>(
        &self,
        open: impl FnMut() -> Result<T, LogError>,
    ) -> Result<T, LogError> {
        self.retry_with_descriptors(LogError::is_out_of_descriptors, open)
    }

    /// Calls `open` like [`StoreShared::with_descriptors`]; `is_out` recognizes the error.
    pub(super) fn retry_with_descriptors<T, E>(
        &self,
        is_out: impl Fn(&E) -> bool,
        mut open: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut n_pauses = 0;
        loop {
            let error = match open() {
                Err(error) if is_out(&error) => error,
                result => return result,
            };
            let closed = self.close_unused.get().map_or(0, |close| close());
            if closed > 0 {
                tracing::debug!(closed, "closed unused sessions, because no descriptor was free");
            } else if n_pauses < MAX_PAUSES {
                n_pauses += 1;
                std::thread::sleep(DESCRIPTOR_PAUSE);
            } else {
                return Err(error);
            }
        }
    }

    /// Remembers a write that the disk refused, for `daemon.status`.
    pub(super) fn note_failed_write(&self, error: &SessionError) {
        let SessionError::Storage { path, message, .. } = error else { return };
        let (path, error) = (path.clone(), message.clone());
        let failed = FailedWrite { at: self.clock.now(), path, error };
        *self.failed_write.lock() = Some(failed);
    }

    /// Renames a log without an intact record, which a crash left before the first write was complete.
    pub(super) fn set_aside_empty_log(&self, id: SessionId) {
        let aside = self.paths.torn(id, self.clock.now());
        match fsutil::rename_durably(&self.paths.log(id), &aside) {
            Ok(()) => tracing::warn!(session = %id, "set aside a log without a record"),
            Err(error) => {
                tracing::warn!(session = %id, "cannot set aside a log without a record: {error}");
            }
        }
    }
}
