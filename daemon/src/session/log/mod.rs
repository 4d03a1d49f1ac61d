//! The session log: one record a line, only ever appended to.
//!
//! FORMAT.md, "The session log". **Invariant**: what this module reports as read was checksummed; what it cuts
//! lies above everything that was ever acknowledged.

pub(crate) mod blobs;
pub(crate) mod file;
pub(crate) mod recover;
mod v1;

use std::path::{Path, PathBuf};

use ollm_protocol::content::{Record, RecordBody, RecordKind, Role};
use ollm_protocol::{Seq, Timestamp};

pub(crate) use v1::LineFields;

use super::index::{Entry, KeyEntry};

/// Reading or writing a log failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The system refused.
    #[error("cannot {attempt} the session log {}", path.display())]
    Io {
        /// What was tried, as a verb.
        attempt: &'static str,
        /// The log.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The log was written by a newer version; it is left as it is.
    #[error("the session log {} has records of version {found}, this daemon knows {supported}", path.display())]
    UpgradeRequired {
        /// The log.
        path: PathBuf,
        /// The version found.
        found: u32,
        /// The newest version known.
        supported: u32,
    },
    /// A record cannot be written as JSON.
    #[error("cannot encode a record of session log {}", path.display())]
    Encode {
        /// The log.
        path: PathBuf,
        /// What serde said.
        #[source]
        source: serde_json::Error,
    },
    /// A blob could not be stored.
    #[error(transparent)]
    Blob(#[from] crate::fsutil::FsError),
}

impl LogError {
    /// Wraps what the system said.
    pub(crate) fn io(attempt: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { attempt, path: path.to_owned(), source }
    }
}

/// A record as a scan sees it: enough for the index, with the body only where the fold asked for it.
#[derive(Debug)]
pub(crate) struct Scanned {
    /// Its number.
    pub seq: Seq,
    /// When it was recorded.
    pub at: Timestamp,
    /// Where it lies and what a walk must know.
    pub entry: Entry,
    /// The idempotency key that made it.
    pub key: Option<KeyEntry>,
    /// The body, where the fold asked for it.
    pub body: Option<RecordBody>,
}

/// Reads one checked line back as a record; `None` when it is damaged.
///
/// `line` includes its line break. Blobs are put back from `blobs`.
pub(crate) fn decode_line(line: &[u8], blobs: &Path) -> Option<Record> {
    v1::decode(v1::checked(line)?, blobs)
}

/// The checksum of a line that is whole.
pub(crate) fn line_crc(line: &[u8]) -> Option<u32> {
    v1::checked_with_crc(line).map(|(_, crc)| crc)
}

/// Encodes one record as a line with its checksum and its line break; large texts go out of line first.
///
/// **Errors**: `Encode`, `Blob`. Blobs are synced when this returns.
pub(crate) fn encode_line(
    fields: &LineFields<'_>,
    blobs: &Path,
    out: &mut Vec<u8>,
) -> Result<Encoded, LogError> {
    v1::encode(fields, blobs, out)
}

/// What encoding found out about a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoded {
    /// Bytes of the line.
    pub len: u32,
    /// Its checksum.
    pub crc: u32,
    /// Whether contents went out of line.
    pub has_blobs: bool,
}

/// The flags of an entry that follow from its body.
pub(crate) fn flags_of(body: &RecordBody) -> u16 {
    use ollm_protocol::content::Part;
    match body {
        RecordBody::Message(message) => message.parts.iter().fold(0, |flags, part| match part {
            Part::ToolCall { .. } if message.role == Role::Assistant => flags | Entry::CALLS_TOOLS,
            Part::Thinking { .. } => flags | Entry::HAS_THINKING,
            _ => flags,
        }),
        RecordBody::Custom(custom) if custom.context_text.is_some() => Entry::IN_CONTEXT,
        RecordBody::Compaction(compaction) if compaction.epoch.is_some() => Entry::OPENS_EPOCH,
        RecordBody::Epoch(_) => Entry::OPENS_EPOCH,
        _ => 0,
    }
}

/// The role of a record's author, for kinds that have one.
pub(crate) fn role_of(body: &RecordBody) -> Option<Role> {
    match body {
        RecordBody::Message(message) => Some(message.role),
        _ => None,
    }
}

/// Kinds that say what a session is; the fold needs their bodies, and they are small.
pub(crate) const fn folds_body(kind: RecordKind) -> bool {
    matches!(
        kind,
        RecordKind::Session
            | RecordKind::Meta
            | RecordKind::ModeChange
            | RecordKind::Leaf
            | RecordKind::Close
    )
}
