//! The types of writing: new sessions and records, the results of writes, and the changes that observers receive.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use ollm_protocol::content::{FileHash, NotKept, RecordBody, Session, SessionHeader, SessionUsage};
use ollm_protocol::{Seq, SessionId, Timestamp};

use super::index::KeyEntry;

/// A session to be created.
#[derive(Clone, Debug)]
pub(crate) struct NewSession {
    pub header: SessionHeader,
    /// The key of `session.create`.
    pub key: Option<IdempotencyKey>,
}

/// A record to be appended.
#[derive(Clone, Debug)]
pub(crate) struct NewRecord {
    pub body: RecordBody,
    /// The tokens that the record costs in a context, with the tokenizer that counted them.
    pub tokens: Option<(u32, Arc<str>)>,
    /// The time of the record, or `None` for the current time. Set by imports only.
    pub at: Option<Timestamp>,
    pub parent: Parent,
    /// The key that an imported record had in its file.
    pub key: Option<IdempotencyKey>,
    /// The contents of files that the record refers to.
    pub files: KeptFiles,
}

impl NewRecord {
    /// Returns a record that follows the active leaf and is recorded now.
    pub(crate) fn new(body: RecordBody, tokens: Option<(u32, Arc<str>)>) -> Self {
        let files = KeptFiles::default();
        Self { body, tokens, at: None, parent: Parent::Leaf, key: None, files }
    }
}

/// Contents to keep with a record.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptFiles {
    /// The contents by hash.
    pub(crate) contents: HashMap<FileHash, KeptContent>,
    /// The most bytes that all blobs of the session may have.
    pub(crate) quota_bytes: u64,
    /// The files of the record that are not kept for reasons that the caller knows.
    pub(crate) not_kept: NotKept,
}

/// The content of a file.
#[derive(Clone, Debug)]
pub(crate) enum KeptContent {
    Bytes(Vec<u8>),
    /// The content of another file, which has the hash.
    File(PathBuf),
}

/// The parent of a new record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    /// The active leaf, or the previous record of the same write.
    Leaf,
    /// No parent: the record starts a branch at the root.
    Root,
    /// An existing record, or an earlier one of the same write.
    Record(Seq),
}

/// An idempotency key and its digests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdempotencyKey {
    /// The key as the client gave it.
    pub text: String,
    /// The digests; their `seq` is set by the write.
    pub digest: KeyEntry,
}

impl IdempotencyKey {
    /// Digests a key with the method and the payload that it is used for.
    pub(crate) fn new(method: &str, text: String, payload: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(method.as_bytes()).update(&[0]).update(text.as_bytes());
        let mut digest = KeyEntry { key: [0; 16], payload: [0; 8], seq: 0 };
        digest.key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        digest.payload.copy_from_slice(&blake3::hash(payload).as_bytes()[..8]);
        Self { text, digest }
    }
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Appended {
    /// The first record of the write, or the record that a known key created earlier.
    pub seq: Seq,
    /// The time of that record.
    pub at: Timestamp,
    /// The tokens of that record.
    pub tokens: u32,
    /// The totals of the session after the write.
    pub usage: SessionUsage,
    /// Whether nothing was written, because the key was known.
    pub duplicate: bool,
    /// The files whose contents were not kept.
    pub not_kept: NotKept,
}

/// A change of a session, announced when it is durable and before the caller receives its reply.
#[derive(Debug)]
pub(crate) enum SessionChange<'a> {
    /// The log of a new session exists.
    Created(&'a Session),
    /// A record was appended.
    Recorded { seq: Seq, at: Timestamp, body: &'a RecordBody, tokens: u32 },
    /// A log was found damaged or torn.
    Recovered {
        /// Size of the torn tail in bytes.
        torn_bytes: u64,
        /// Number of damaged places.
        damaged: u64,
    },
    /// A scan for the catalog found damage, which the catalog knows.
    Damaged {
        /// Number of damaged places.
        damaged: u64,
    },
    /// Records that could not be read can be read again.
    Healed {
        /// Their number.
        records: u64,
    },
}

/// A receiver of changes. It is called on the writer's thread, so it must return quickly and never block.
pub(crate) trait Observer: Send + Sync {
    /// Receives one change.
    fn changed(&self, id: SessionId, change: &SessionChange<'_>);
}

/// Ignores all changes.
impl Observer for () {
    fn changed(&self, _: SessionId, _: &SessionChange<'_>) {}
}
