//! A record of a log in the forms that do not depend on the version of its line, and the errors of a log.

use std::path::{Path, PathBuf};

use ollm_protocol::content::RecordBody;
use ollm_protocol::{Seq, Timestamp};

use crate::fsutil::FsError;
use crate::session::index::{IndexEntry, KeyEntry};

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
    /// A blob or a directory could not be written.
    #[error(transparent)]
    File(#[from] FsError),
}

impl LogError {
    pub(crate) fn io(attempt: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { attempt, path: path.to_owned(), source }
    }
}

/// The content of a line to be written.
pub(crate) struct LineFields<'a> {
    pub seq: Seq,
    pub parent: Option<Seq>,
    /// The highest number that is known to be synced.
    pub durable: Option<Seq>,
    pub at: Timestamp,
    /// The tokens that the record costs in a context, with the tokenizer that counted them.
    pub tokens: Option<(u32, &'a str)>,
    /// The idempotency key and its digests.
    pub key: Option<(&'a str, KeyEntry)>,
    pub body: &'a RecordBody,
}

/// The properties of a line that was encoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodedLine {
    /// The length in bytes, including the line break.
    pub len: u32,
    pub crc: u32,
    /// Whether some texts were written to blobs.
    pub has_blobs: bool,
}

/// A record as the fold receives it, from a scan or after it was written.
#[derive(Debug)]
pub(crate) struct ScannedRecord {
    pub seq: Seq,
    pub at: Timestamp,
    pub entry: IndexEntry,
    pub key: Option<KeyEntry>,
    /// The body, absent if a scan was not asked for it.
    pub body: Option<RecordBody>,
}
