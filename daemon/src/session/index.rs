//! What is kept of a log besides its bytes: fixed-size entries that a catalog can store and give back, so that
//! a cold open parses only the tail that is newer.
//!
//! FORMAT.md, "Catalog".

use ollm_protocol::content::{Record, RecordKind, Role, Session};
use ollm_protocol::{Seq, SessionId};

/// No parent, or a hole left by a damaged record.
const NONE: u32 = u32::MAX;
/// No role.
const NO_ROLE: u8 = u8::MAX;

/// Where one record lies and what a walk over the tree must know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Offset of the line's first byte.
    pub offset: u64,
    /// Bytes of the line, its line break included; 0 for a record that is damaged.
    pub len: u32,
    parent: u32,
    /// Tokens that the record costs in a context.
    pub tokens: u32,
    kind: u8,
    role: u8,
    /// A combination of the constants below.
    pub flags: u16,
}

impl Entry {
    /// Bytes of one packed entry.
    pub(crate) const BYTES: usize = 24;
    /// An assistant message that calls tools.
    pub(crate) const CALLS_TOOLS: u16 = 1;
    /// Its parent was damaged; it continues from the nearest earlier record.
    pub(crate) const REPARENTED: u16 = 2;
    /// Contents lie out of line, in blobs.
    pub(crate) const HAS_BLOBS: u16 = 4;
    /// A message with thinking parts.
    pub(crate) const HAS_THINKING: u16 = 8;
    /// A custom record that enters the context.
    pub(crate) const IN_CONTEXT: u16 = 16;
    /// A context head that was frozen: an epoch, or a compaction that opens one.
    pub(crate) const OPENS_EPOCH: u16 = 64;
    /// It was whole once and could not be read later; it keeps its place on the path.
    const UNREADABLE: u16 = 32;

    /// The entry of a readable record.
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
            parent: parent.map_or(NONE, pack),
            tokens,
            kind: kind as u8,
            role: role.map_or(NO_ROLE, |role| role as u8),
            flags,
        }
    }

    /// The same entry after a damaged parent: it continues from `parent`.
    pub(crate) fn reparented(mut self, parent: Option<Seq>) -> Self {
        self.parent = parent.map_or(NONE, pack);
        self.flags |= Self::REPARENTED;
        self
    }

    /// The entry that holds the place of a damaged record.
    pub(crate) const fn damaged(offset: u64) -> Self {
        Self { offset, len: 0, parent: NONE, tokens: 0, kind: u8::MAX, role: NO_ROLE, flags: 0 }
    }

    /// Whether the record cannot be read.
    pub(crate) const fn is_damaged(&self) -> bool {
        self.len == 0 || self.flags & Self::UNREADABLE != 0
    }

    /// Notes that a record that was whole cannot be read any more.
    pub(super) const fn mark_unreadable(&mut self) {
        self.flags |= Self::UNREADABLE;
    }

    /// The record before it on its path.
    pub(crate) fn parent(&self) -> Option<Seq> {
        (self.parent != NONE).then_some(Seq(u64::from(self.parent)))
    }

    /// What it is; `None` for a damaged record.
    pub(crate) const fn kind(&self) -> Option<RecordKind> {
        RecordKind::from_code(self.kind)
    }

    /// For a message: who said it.
    pub(crate) const fn role(&self) -> Option<Role> {
        match self.role {
            0 => Some(Role::System),
            1 => Some(Role::User),
            2 => Some(Role::Assistant),
            3 => Some(Role::Tool),
            _ => None,
        }
    }

    /// Whether all of `flags` are set.
    pub(crate) const fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// The entry as the catalog stores it, little-endian.
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

    /// The inverse of [`Entry::to_bytes`].
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

/// A log holds at most 2^32 - 2 records, so that an entry stays small.
fn pack(seq: Seq) -> u32 {
    u32::try_from(seq.0).unwrap_or(NONE)
}

/// One idempotency key that was used, hashed so that its size is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyEntry {
    /// The first 16 bytes of blake3 over method, zero byte and key.
    pub key: [u8; 16],
    /// The first 8 bytes of blake3 over the params without the key.
    pub payload: [u8; 8],
    /// The record that the key made.
    pub seq: u32,
}

impl KeyEntry {
    /// Bytes of one packed key.
    pub(crate) const BYTES: usize = 28;

    /// The key as the catalog stores it.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.key);
        bytes[16..24].copy_from_slice(&self.payload);
        bytes[24..].copy_from_slice(&self.seq.to_le_bytes());
        bytes
    }

    /// The inverse of [`KeyEntry::to_bytes`].
    pub(crate) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let mut entry = Self { key: [0; 16], payload: [0; 8], seq: 0 };
        entry.key.copy_from_slice(&bytes[..16]);
        entry.payload.copy_from_slice(&bytes[16..24]);
        entry.seq = u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
        entry
    }
}

/// How far a log has been read and found whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanPoint {
    /// Bytes of the log up to here.
    pub bytes: u64,
    /// Records up to here, damaged ones included.
    pub records: u64,
    /// Checksum of the last line up to here; 0 for an empty log.
    pub last_crc: u32,
}

/// What a catalog gives back for a cold open.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenHint {
    /// How far the rest describes the log.
    pub point: ScanPoint,
    /// One entry a record.
    pub entries: Vec<Entry>,
    /// The idempotency keys.
    pub keys: Vec<KeyEntry>,
    /// The folded state at `point`, opaque to the catalog.
    pub carry: Vec<u8>,
}

/// What changed in a session since a catalog last saw it.
#[derive(Clone, Debug)]
pub(crate) struct IndexUpdate {
    /// The session as lists show it.
    pub session: Session,
    /// Set when what the catalog had does not describe this log: drop it and take this as the whole.
    pub restart: bool,
    /// The number of the first of `entries`; 0 with `restart`.
    pub first: u64,
    /// The entries from `first` on.
    pub entries: Vec<Entry>,
    /// The number of the first of `keys`.
    pub first_key: u64,
    /// The keys from `first_key` on.
    pub keys: Vec<KeyEntry>,
    /// How far all of this describes the log.
    pub point: ScanPoint,
    /// The folded state at `point`, to be stored and given back.
    pub carry: Vec<u8>,
    /// The key of `session.create`, hashed like [`KeyEntry::key`] with its payload; absent when it had none.
    pub create_key: Option<KeyEntry>,
}

/// What a catalog already holds of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// How far it has read.
    pub point: ScanPoint,
    /// How many keys it holds.
    pub keys: u64,
}

/// Where a catalog reads from: the open sessions and the logs on disk. Every call may block on the disk.
pub(crate) trait IndexSource: Send + Sync {
    /// Every session with a log, and the log's size in bytes, in no order.
    fn logs(&self) -> std::io::Result<Vec<(SessionId, u64)>>;

    /// What is new since `known`; `None` when the session is gone.
    fn update(&self, id: SessionId, known: Known) -> std::io::Result<Option<IndexUpdate>>;

    /// The records behind `entries`, blobs put back, each `None` where it cannot be read. So is one whose line
    /// `wants` refuses, as it is stored and unchecked, before it costs more; a line with contents out of line is
    /// always wanted.
    fn records(
        &self,
        id: SessionId,
        entries: &[(Seq, Entry)],
        wants: &dyn Fn(&[u8]) -> bool,
    ) -> std::io::Result<Vec<Option<Record>>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_survives_packing() {
        let entry = Entry::new(
            (5_000_000_000, 321),
            Some(Seq(7)),
            RecordKind::Message,
            Some(Role::Assistant),
            99,
            Entry::CALLS_TOOLS | Entry::HAS_BLOBS,
        );
        let back = Entry::from_bytes(&entry.to_bytes());
        assert_eq!(back, entry);
        assert_eq!(back.parent(), Some(Seq(7)));
        assert_eq!(back.role(), Some(Role::Assistant));
        assert!(back.has(Entry::CALLS_TOOLS) && !back.has(Entry::REPARENTED));
        assert_eq!(Entry::damaged(9).kind(), None);
    }

    #[test]
    fn a_key_survives_packing() {
        let key = KeyEntry { key: [7; 16], payload: [9; 8], seq: 70_000 };
        assert_eq!(KeyEntry::from_bytes(&key.to_bytes()), key);
    }
}
