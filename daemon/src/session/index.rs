//! The index of a log: one fixed-size entry for each record and each idempotency key.
//!
//! A catalog stores the index and the fold beside it, so that opening a session parses only the lines that are newer.
//! This file owns the packed shapes (FORMAT.md, "Catalog") and the traits by which sessions and a catalog exchange
//! them; neither side knows the other.

use ollm_protocol::content::{
    ContextEntry, Custom, GoalSource, Part, Record, RecordBody, RecordKind, RecordScope, Role,
    Session,
};
use ollm_protocol::{Seq, SessionId, Timestamp};

/// The packed `parent` of a record without parent.
const NO_PARENT: u32 = u32::MAX;
/// The packed `role` of a record that is not a message.
const NO_ROLE: u8 = u8::MAX;
/// The packed `kind` of a damaged record.
const NO_KIND: u8 = u8::MAX;

/// The position of one record in the log, and the properties that a walk over the tree needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    /// The offset of the first byte of the line.
    pub offset: u64,
    /// The length of the line in bytes, including its line break; 0 for a damaged record.
    pub len: u32,
    parent: u32,
    /// The tokens that the record costs in a context.
    pub tokens: u32,
    kind: u8,
    role: u8,
    /// A combination of the flags below.
    pub flags: u16,
}

impl IndexEntry {
    /// The size of a packed entry in bytes.
    pub(crate) const BYTES: usize = 24;
    /// The record is an assistant message that calls tools.
    pub(crate) const CALLS_TOOLS: u16 = 1;
    /// The parent was damaged; the record continues from the nearest earlier record.
    pub(crate) const REPARENTED: u16 = 2;
    /// Some texts of the record are stored in blobs.
    pub(crate) const HAS_BLOBS: u16 = 4;
    /// The record is a message with thinking parts.
    pub(crate) const HAS_THINKING: u16 = 8;
    /// The record is a custom record that enters the context.
    pub(crate) const IN_CONTEXT: u16 = 16;
    /// The record is a piece of an answer that was being written.
    pub(crate) const PARTIAL: u16 = 32;
    /// The record freezes a context head: an epoch, or a compaction that opens one.
    pub(crate) const OPENS_EPOCH: u16 = 64;
    /// The record is the start of a tool call.
    pub(crate) const STARTS_CALL: u16 = 128;
    /// The record is a change of the goals by the markers of a message, and belongs to that message.
    pub(crate) const BY_MARKER: u16 = 256;
    /// The record is a tool call that says which files it wrote.
    pub(crate) const LISTS_WRITES: u16 = 512;
    /// The record is a change of a context entry by a hook, which nobody undoes on purpose.
    pub(crate) const BY_HOOK: u16 = 1024;

    /// Returns the entry of a readable record.
    pub(crate) fn new(
        (offset, len): (u64, u32),
        parent: Option<Seq>,
        kind: RecordKind,
        role: Option<Role>,
        tokens: u32,
        flags: u16,
    ) -> Self {
        Self {
            offset,
            len,
            parent: parent.map_or(NO_PARENT, pack),
            tokens,
            kind: kind as u8,
            role: role.map_or(NO_ROLE, |role| role as u8),
            flags,
        }
    }

    /// Returns the flags that follow from the body of a record.
    pub(crate) fn flags_of(body: &RecordBody) -> u16 {
        match body {
            RecordBody::Message(message) => {
                message.parts.iter().fold(0, |flags, part| match part {
                    Part::ToolCall { .. } if message.role == Role::Assistant => {
                        flags | Self::CALLS_TOOLS
                    }
                    Part::Thinking { .. } => flags | Self::HAS_THINKING,
                    _ => flags,
                })
            }
            RecordBody::ToolCall(call) if call.writes.is_some() => Self::LISTS_WRITES,
            RecordBody::Custom(custom) if custom.context_text.is_some() => Self::IN_CONTEXT,
            RecordBody::Custom(custom) if custom.name == Custom::PARTIAL_ANSWER => Self::PARTIAL,
            RecordBody::Custom(custom) if custom.name == Custom::TOOL_START => Self::STARTS_CALL,
            RecordBody::Compaction(compaction) if compaction.epoch.is_some() => Self::OPENS_EPOCH,
            RecordBody::Epoch(_) => Self::OPENS_EPOCH,
            RecordBody::Goal(change) if change.source == GoalSource::Marker => Self::BY_MARKER,
            RecordBody::ContextEntry(change)
                if change.key.starts_with(ContextEntry::HOOK_PREFIX) =>
            {
                Self::BY_HOOK
            }
            _ => 0,
        }
    }

    /// Returns whether the record is about the log itself, so that no client sees it.
    pub(crate) fn is_of_log(&self) -> bool {
        self.kind().is_some_and(|kind| kind.scope() == RecordScope::Log)
    }

    /// Returns whether the record says which files it wrote or put back.
    pub(crate) fn names_files(&self) -> bool {
        self.has(Self::LISTS_WRITES) || self.kind() == Some(RecordKind::PutBack)
    }

    /// Returns the entry with another parent in place of a damaged one.
    pub(crate) fn reparented(mut self, parent: Option<Seq>) -> Self {
        self.parent = parent.map_or(NO_PARENT, pack);
        self.flags |= Self::REPARENTED;
        self
    }

    /// Returns the entry of a damaged record.
    pub(crate) const fn damaged(offset: u64) -> Self {
        let (kind, role) = (NO_KIND, NO_ROLE);
        Self { offset, len: 0, parent: NO_PARENT, tokens: 0, kind, role, flags: 0 }
    }

    /// Returns whether the scan of the log found the record damaged.
    pub(crate) const fn is_damaged(&self) -> bool {
        self.len == 0
    }

    /// Returns the previous record on the path.
    pub(crate) fn parent(&self) -> Option<Seq> {
        (self.parent != NO_PARENT).then_some(Seq(u64::from(self.parent)))
    }

    /// Returns the kind, or `None` for a damaged record.
    pub(crate) const fn kind(&self) -> Option<RecordKind> {
        RecordKind::from_code(self.kind)
    }

    /// Returns the role of a message, or `None` for other kinds.
    pub(crate) const fn role(&self) -> Option<Role> {
        match self.role {
            0 => Some(Role::System),
            1 => Some(Role::User),
            2 => Some(Role::Assistant),
            3 => Some(Role::Tool),
            _ => None,
        }
    }

    /// Returns whether all of `flags` are set.
    pub(crate) const fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// Packs the entry, little-endian.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.parent.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.tokens.to_le_bytes());
        bytes[20] = self.kind;
        bytes[21] = self.role;
        bytes[22..].copy_from_slice(&self.flags.to_le_bytes());
        bytes
    }

    /// Unpacks what [`IndexEntry::to_bytes`] packed.
    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self {
            offset: u64::from(word(0)) | u64::from(word(4)) << 32,
            len: word(8),
            parent: word(12),
            tokens: word(16),
            kind: bytes[20],
            role: bytes[21],
            flags: u16::from_le_bytes([bytes[22], bytes[23]]),
        }
    }
}

/// Returns the position of the header of a session. The records before it are those of the session that it was forked from.
pub(crate) fn own_header(entries: &[IndexEntry]) -> usize {
    let is_header = |entry: &IndexEntry| entry.kind() == Some(RecordKind::Session);
    entries.iter().rposition(is_header).unwrap_or_default()
}

/// Packs a number into 4 bytes: a log holds at most 2^32 - 2 records.
fn pack(seq: Seq) -> u32 {
    u32::try_from(seq.0).unwrap_or(NO_PARENT)
}

/// The digests of a used idempotency key, and the record that the key created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyEntry {
    /// The first 16 bytes of blake3 over method, zero byte and key.
    pub key: [u8; 16],
    /// The first 8 bytes of blake3 over the params without the key.
    pub payload: [u8; 8],
    /// The record that the key created.
    pub seq: u32,
}

impl KeyEntry {
    /// The size of a packed key in bytes.
    pub(crate) const BYTES: usize = 28;

    /// Packs the digests and the number, little-endian.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.key);
        bytes[16..24].copy_from_slice(&self.payload);
        bytes[24..].copy_from_slice(&self.seq.to_le_bytes());
        bytes
    }

    /// Unpacks what [`KeyEntry::to_bytes`] packed.
    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut entry = Self { key: [0; 16], payload: [0; 8], seq: 0 };
        entry.key.copy_from_slice(&bytes[..16]);
        entry.payload.copy_from_slice(&bytes[16..24]);
        entry.seq = u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
        entry
    }
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
    /// Whether the body, which the fold may need, lacks a blob.
    pub lacks_body: bool,
}

/// The end of the part of a log that was read and is intact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanPoint {
    /// The length of that part in bytes.
    pub bytes: u64,
    /// The number of its records, including damaged ones.
    pub records: u64,
    /// The checksum of its last line; 0 for an empty log.
    pub last_crc: u32,
}

/// The index and the fold of a log up to a point, as a catalog stored them.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenHint {
    /// The point of the log up to which all fields are valid.
    pub point: ScanPoint,
    /// One entry for each record.
    pub entries: Vec<IndexEntry>,
    pub keys: Vec<KeyEntry>,
    /// The rest of the fold at `point`, opaque to the catalog.
    pub carry: Vec<u8>,
}

/// A source of the hints that sessions are opened with.
pub(crate) trait HintSource: Send + Sync {
    /// Returns the stored hint of a session. May block on the disk.
    fn hint(&self, id: SessionId) -> Option<OpenHint>;
}

/// The part of a session's index that a catalog does not have yet.
#[derive(Clone, Debug)]
pub(crate) struct IndexUpdate {
    pub session: Session,
    /// Whether the catalog must drop its index of the session, because it describes another log; the update is then
    /// the whole index.
    pub restart: bool,
    pub entries: Vec<IndexEntry>,
    pub keys: Vec<KeyEntry>,
    /// The point of the log up to which the index is valid with this update.
    pub point: ScanPoint,
    /// The rest of the fold at `point`, see [`OpenHint::carry`].
    pub carry: Vec<u8>,
    /// The key of `session.create`, if it had one.
    pub create_key: Option<KeyEntry>,
}

/// The part of a session's index that a catalog has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IndexProgress {
    pub point: ScanPoint,
    /// The number of keys.
    pub keys: u64,
}

/// The part of a log that an update describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpdateScope {
    /// The records that the catalog does not have.
    New,
    /// All records, as the log has them now, whatever was known of it before.
    Whole,
}

/// A log could not be read for a catalog.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    /// The system could not read the file; a later attempt may succeed.
    #[error(transparent)]
    Unreadable(std::io::Error),
    /// The file is not a log that this version can read, and will not become one until somebody changes it.
    #[error(transparent)]
    Unusable(std::io::Error),
}

/// A source of records and index entries for a catalog. Every call may block on the disk.
pub(crate) trait IndexSource: Send + Sync {
    /// Returns every session that has a log, with the size of the log in bytes, in no order.
    fn logs(&self) -> Result<Vec<(SessionId, u64)>, SourceError>;

    /// Returns the part of the index that is missing in `known`, or `None` if the session does not exist.
    ///
    /// A whole update has `restart` set.
    fn update(
        &self,
        id: SessionId,
        known: IndexProgress,
        scope: UpdateScope,
    ) -> Result<Option<IndexUpdate>, SourceError>;

    /// Returns the records of `entries` with their blobs, `None` for each record that cannot be read.
    ///
    /// `wants` receives the stored line before it is checked and parsed, and drops the record by returning false. A
    /// line with blobs is not passed to it, because its text is elsewhere.
    fn records(
        &self,
        id: SessionId,
        entries: &[(Seq, IndexEntry)],
        wants: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<Option<Record>>, SourceError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_survives_packing() {
        let entry = IndexEntry::new(
            (5_000_000_000, 321),
            Some(Seq(7)),
            RecordKind::Message,
            Some(Role::Assistant),
            99,
            IndexEntry::CALLS_TOOLS | IndexEntry::HAS_BLOBS,
        );
        let back = IndexEntry::from_bytes(&entry.to_bytes());
        assert_eq!(back, entry);
        assert_eq!(back.parent(), Some(Seq(7)));
        assert_eq!(back.role(), Some(Role::Assistant));
        assert!(back.has(IndexEntry::CALLS_TOOLS) && !back.has(IndexEntry::REPARENTED));
        assert_eq!(IndexEntry::damaged(9).kind(), None);
    }

    #[test]
    fn key_survives_packing() {
        let key = KeyEntry { key: [7; 16], payload: [9; 8], seq: 70_000 };
        assert_eq!(KeyEntry::from_bytes(&key.to_bytes()), key);
    }
}
