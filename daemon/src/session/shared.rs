//! What the cells of all sessions have in common: where files lie, the clock, the pool, who is told.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use ollm_protocol::content::FailedWrite;
use ollm_protocol::{SessionId, Timestamp};
use parking_lot::Mutex;

use super::index::OpenHint;
use super::log::file::OpenLogFile;
use super::pool::SyncPool;
use super::{Observer, SessionError};
use crate::clock::Clock;
use crate::fsutil;

/// Gives back what a catalog stored, so that a cold open reads only the tail.
pub(crate) trait Hints: Send + Sync {
    /// What is stored of a session; may block on the disk.
    fn hint(&self, id: SessionId) -> Option<OpenHint>;
}

/// Where the parts of sessions lie.
pub(super) struct Paths {
    /// The directory of all sessions.
    pub(super) dir: PathBuf,
}

impl Paths {
    pub(super) fn log(&self, id: SessionId) -> PathBuf {
        self.dir.join(format!("{id}.jsonl"))
    }

    /// A log on its way out; its presence makes the next start finish the deletion.
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

/// What all cells share.
pub(super) struct Shared {
    pub(super) paths: Paths,
    pub(super) clock: Arc<Clock>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) pool: SyncPool,
    pub(super) open_file: Box<OpenLogFile>,
    pub(super) stats: Stats,
    pub(super) hints: OnceLock<Arc<dyn Hints>>,
}

/// Counted since the start.
#[derive(Default)]
pub(super) struct Stats {
    pub(super) records: AtomicU64,
    pub(super) syncs: AtomicU64,
    failed_write: Mutex<Option<FailedWrite>>,
}

impl Stats {
    /// The newest write that the disk refused.
    pub(super) fn failed_write(&self) -> Option<FailedWrite> {
        self.failed_write.lock().clone()
    }
}

impl Shared {
    pub(super) fn hint(&self, id: SessionId) -> Option<OpenHint> {
        self.hints.get().and_then(|hints| hints.hint(id))
    }

    /// Keeps a write that the disk refused for whoever asks how the daemon is.
    pub(super) fn note_failed_write(&self, error: &SessionError) {
        let SessionError::Storage { path, message, .. } = error else { return };
        let (path, error) = (path.clone(), message.clone());
        let failed = FailedWrite { at: self.clock.now(), path, error };
        *self.stats.failed_write.lock() = Some(failed);
    }

    /// Moves a log without a single whole record out of the way: a crash before its first write was whole left
    /// it, and there never was a session.
    pub(super) fn set_aside_stillborn(&self, id: SessionId) {
        let aside = self.paths.torn(id, self.clock.now());
        match fsutil::rename_durably(&self.paths.log(id), &aside) {
            Ok(()) => tracing::warn!(session = %id, "set a log aside that never held a record"),
            Err(error) => tracing::warn!(session = %id, "a log without a record stays: {error}"),
        }
    }
}
