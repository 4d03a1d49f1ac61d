//! Sessions: append-only logs, their fold, and the one writer of each.
//!
//! [`Sessions`] is the API that everyone else uses. A session is a *cell*: a queue of writes, the fold, and a
//! writer that one thread of the sync pool drives at a time. Reads take the fold's lock for a moment and read
//! contents from the file without it.
//!
//! **Invariants**: a reply to a write means its records are synced; records of one caller keep their order; an
//! id reaches a path only as a parsed UUID. Deliberately absent: contexts, models, SQL, the wire's errors.

mod cell;
mod command;
pub(crate) mod document;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod index;
mod live;
pub(crate) mod log;
mod plan;
mod pool;
pub(crate) mod project;
mod remove;
mod shared;
mod source;
mod state;
mod store;

use std::path::PathBuf;
use std::sync::Arc;

use ollm_protocol::content::{RecordBody, Session, SessionHeader, SessionUsage};
use ollm_protocol::{Seq, SessionId, Timestamp};

pub(crate) use live::Live;
pub(crate) use shared::Hints;
pub(crate) use state::{IDLE_CLOSE_MS, SessionState};
pub(crate) use store::{Sessions, SessionsOptions};

use self::index::KeyEntry;
use self::log::LogError;
use crate::error_chain::with_sources;
use crate::fsutil::{self, FsError};

/// A session could not be read or written.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum SessionError {
    /// There is none.
    #[error("no session has the id {id}")]
    NotFound {
        /// The id.
        id: SessionId,
    },
    /// The key was used with other content.
    #[error("the key was already used in session {id} with other content, for record {seq}")]
    KeyConflict {
        /// The session.
        id: SessionId,
        /// The record that the key made.
        seq: Seq,
    },
    /// The record is missing.
    #[error("session {id} has no record {seq}")]
    RecordNotFound {
        /// The session.
        id: SessionId,
        /// The number asked for.
        seq: Seq,
    },
    /// More writes wait than the queue holds.
    #[error("session {id} has {waiting} writes waiting")]
    Busy {
        /// The session.
        id: SessionId,
        /// The writes that wait.
        waiting: usize,
    },
    /// The disk refused; nothing that was acknowledged is lost.
    #[error("session {id}: {message}")]
    Storage {
        /// The session.
        id: SessionId,
        /// The file.
        path: PathBuf,
        /// What was tried and what the system said.
        message: String,
        /// The disk has no room.
        full: bool,
    },
    /// The log was written by a newer version.
    #[error("session {id} has records of version {found}, this daemon knows {supported}")]
    UpgradeRequired {
        /// The session.
        id: SessionId,
        /// The version found.
        found: u32,
        /// The newest version known.
        supported: u32,
    },
    /// The record is there and cannot be read.
    #[error("record {seq} of session {id} is damaged")]
    Damaged {
        /// The session.
        id: SessionId,
        /// The record.
        seq: Seq,
    },
    /// Something was recorded, or the leaf was moved, since the write was planned.
    #[error("session {id} went on meanwhile")]
    LeafMoved {
        /// The session.
        id: SessionId,
    },
    /// A session with this id exists with other content.
    #[error("session {id} exists already and is not this import")]
    Exists {
        /// The session.
        id: SessionId,
    },
    /// The daemon is leaving.
    #[error("the daemon is leaving")]
    Stopping,
}

impl SessionError {
    /// Tells a log's failure as the session's.
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
            LogError::Blob(fs) => Self::fs(id, fs),
        }
    }

    /// Tells a file's failure as the session's.
    pub(crate) fn fs(id: SessionId, error: &FsError) -> Self {
        let full = fsutil::is_full(&error.source);
        Self::Storage { id, path: error.path.clone(), message: with_sources(error), full }
    }
}

/// What precedes a new record on its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// The active leaf, or the record before it in the same write.
    Leaf,
    /// Nothing: it begins a branch at the root.
    Root,
    /// A record that was written before, or earlier in the same write.
    Record(Seq),
}

/// One record to be written.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    /// What it says.
    pub body: RecordBody,
    /// Tokens that it costs in a context, with the tokenizer that counted.
    pub tokens: Option<(u32, Arc<str>)>,
    /// When it is recorded; default: now. Only an import sets it.
    pub at: Option<Timestamp>,
    /// What precedes it.
    pub parent: Parent,
    /// The key that an imported record had.
    pub key: Option<KeyUse>,
}

impl Draft {
    /// A record that follows the active leaf now.
    pub(crate) fn new(body: RecordBody, tokens: Option<(u32, Arc<str>)>) -> Self {
        Self { body, tokens, at: None, parent: Parent::Leaf, key: None }
    }
}

/// An idempotency key with the digests that stand for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyUse {
    /// The key as the client gave it.
    pub text: String,
    /// Its digests; `seq` is set when it is written.
    pub digest: KeyEntry,
}

impl KeyUse {
    /// Digests a key together with its method and what it is used for.
    pub(crate) fn new(method: &str, text: String, payload: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(method.as_bytes()).update(&[0]).update(text.as_bytes());
        let mut digest = KeyEntry { key: [0; 16], payload: [0; 8], seq: 0 };
        digest.key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        digest.payload.copy_from_slice(&blake3::hash(payload).as_bytes()[..8]);
        Self { text, digest }
    }
}

/// What a write did.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Appended {
    /// The first record that it made; for a known key the one made before.
    pub seq: Seq,
    /// When it was recorded.
    pub at: Timestamp,
    /// Tokens of that record.
    pub tokens: u32,
    /// The session's totals.
    pub usage: SessionUsage,
    /// Nothing was written, because the key was known.
    pub duplicate: bool,
}

/// What a session is born with.
#[derive(Clone, Debug)]
pub(crate) struct Birth {
    /// The header.
    pub header: SessionHeader,
    /// The key of `session.create`.
    pub key: Option<KeyUse>,
}

/// What observers are told, after it is durable and before the caller is.
#[derive(Debug)]
pub(crate) enum Change<'a> {
    /// A session's files exist.
    Created(&'a Session),
    /// A record was written.
    Recorded {
        /// Its number.
        seq: Seq,
        /// When.
        at: Timestamp,
        /// What it says.
        body: &'a RecordBody,
        /// Tokens that it costs in a context.
        tokens: u32,
    },
    /// A log was found damaged or torn.
    Recovered {
        /// Bytes of the torn tail that were cut.
        torn_bytes: u64,
        /// Damaged places.
        damaged: u64,
    },
}

/// Who is told; called on the writer's thread, so it must be quick and never block.
pub(crate) trait Observer: Send + Sync {
    /// Something changed.
    fn changed(&self, id: SessionId, change: &Change<'_>);
}

#[cfg(test)]
mod tests;
