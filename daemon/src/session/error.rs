//! The errors of reading and writing sessions and their logs.
//!
//! `SessionError` is in terms that callers act on. It can be cloned, because a failed batch fails every write in it. It
//! therefore holds the text of an error of the system instead of the error.

use std::path::{Path, PathBuf};

use ollm_protocol::{Seq, SessionId};

use crate::error_chain::with_sources;
use crate::fsutil::{self, FsError};
use crate::nesting::MAX_LEVELS;

/// A log could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// An operation on the log failed.
    #[error("cannot {attempt} the session log {}", path.display())]
    Io {
        /// The failed operation, as a verb.
        attempt: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The log was written by a newer version. It is not changed.
    #[error("the session log {} has records of version {found}, this daemon knows {supported}", path.display())]
    UpgradeRequired { path: PathBuf, found: u32, supported: u32 },
    /// A record could not be written as JSON.
    #[error("cannot encode a record of session log {}", path.display())]
    Encode {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    /// A record is nested deeper than its readers allow.
    #[error("a record of session log {} is nested too deeply", path.display())]
    TooDeep { path: PathBuf },
    /// A blob or a directory could not be written.
    #[error(transparent)]
    File(#[from] FsError),
}

impl LogError {
    /// Returns whether the process had no free file descriptor.
    pub(crate) fn is_out_of_descriptors(&self) -> bool {
        match self {
            Self::Io { source, .. } => fsutil::is_out_of_descriptors(source),
            Self::File(error) => fsutil::is_out_of_descriptors(&error.source),
            Self::UpgradeRequired { .. } | Self::Encode { .. } | Self::TooDeep { .. } => false,
        }
    }

    pub(crate) fn io(attempt: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { attempt, path: path.to_owned(), source }
    }
}

/// A session could not be read or written.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum SessionError {
    /// No session has this id, or it is being deleted.
    #[error("no session has the id {id}")]
    NotFound { id: SessionId },
    /// The key was used with other content.
    #[error("the key was already used in session {id} with other content, for record {seq}")]
    KeyConflict {
        id: SessionId,
        /// The record that the key created.
        seq: Seq,
    },
    /// The session has no record with this number.
    #[error("session {id} has no record {seq}")]
    RecordNotFound { id: SessionId, seq: Seq },
    /// The queue of writes is full.
    #[error("session {id} has {waiting} writes waiting")]
    Busy { id: SessionId, waiting: usize },
    /// Too many sessions were created and not used yet.
    #[error("{drafts} sessions without records, with {bytes} bytes, wait for their first record")]
    TooManyDrafts { drafts: usize, bytes: usize },
    /// The disk refused an operation; nothing that was acknowledged is lost.
    #[error("session {id}: {message}")]
    Storage {
        id: SessionId,
        path: PathBuf,
        /// The failed operation and the error of the system.
        message: String,
        /// Whether the disk or the user's quota is full.
        full: bool,
    },
    /// The log was written by a newer version.
    #[error("session {id} has records of version {found}, this daemon knows {supported}")]
    UpgradeRequired { id: SessionId, found: u32, supported: u32 },
    /// The record exists and cannot be read.
    #[error("record {seq} of session {id} is damaged")]
    Damaged { id: SessionId, seq: Seq },
    /// A record is nested deeper than its readers allow.
    #[error("a record of session {id} is nested deeper than {MAX_LEVELS} levels")]
    TooDeep { id: SessionId },
    /// The active leaf is not the one that the write expected.
    #[error("session {id} changed concurrently")]
    LeafMoved { id: SessionId },
    /// A session with this id exists with other content.
    #[error("session {id} exists already and is not this import")]
    Exists { id: SessionId },
    /// The daemon stopped before the write was answered.
    #[error("the daemon is stopping")]
    Stopping,
}

impl SessionError {
    /// Converts an error of the session's log.
    pub(crate) fn log(id: SessionId, error: &LogError) -> Self {
        match error {
            LogError::UpgradeRequired { found, supported, .. } => {
                Self::UpgradeRequired { id, found: *found, supported: *supported }
            }
            LogError::Io { path, source, .. } => {
                let full = fsutil::is_full(source);
                Self::Storage { id, path: path.clone(), message: with_sources(error), full }
            }
            LogError::Encode { path, .. } => {
                let message = with_sources(error);
                Self::Storage { id, path: path.clone(), message, full: false }
            }
            LogError::TooDeep { .. } => Self::TooDeep { id },
            LogError::File(error) => Self::fs(id, error),
        }
    }

    /// Converts an error of one of the session's files.
    pub(crate) fn fs(id: SessionId, error: &FsError) -> Self {
        let full = fsutil::is_full(&error.source);
        Self::Storage { id, path: error.path.clone(), message: with_sources(error), full }
    }
}
