//! The records of a pi session as they are read: the tree of entries, the tool calls, and the losses.

use std::collections::HashMap;

use ollm_protocol::Timestamp;
use ollm_protocol::content::{Message, Part, RecordBody, RecordScope, SessionHeader};
use serde_json::Value;

use crate::session::import::imported::Losses;
use crate::session::import::spool::{ImportedRecord, RecordSpool};

/// A reader of one pi session.
pub(super) struct PiReader {
    pub(super) version: u64,
    pub(super) header: Option<SessionHeader>,
    pub(super) title: Option<String>,
    pub(super) records: RecordSpool,
    /// For each record the first record of its path.
    roots: Vec<u32>,
    by_id: HashMap<IdDigest, PackedSpan>,
    /// The entries by position in the file, including the header, as version 1 refers to them.
    by_index: Vec<PackedSpan>,
    /// The end of the path that the next record continues.
    pub(super) tail: Option<usize>,
    /// By id of a tool call, the index of the message and of the part that is the call.
    calls: HashMap<IdDigest, (u32, u32)>,
    /// The newest provider.
    pub(super) provider: Option<String>,
    /// The time of the entry that is being read; before, that of the previous entry.
    pub(super) at: Option<Timestamp>,
    pub(super) losses: Losses,
}

/// The records that an entry of the file became.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EntrySpan {
    /// The end of the path before the entry.
    pub(super) before: Option<usize>,
    /// The first record of the entry.
    pub(super) first: Option<usize>,
    /// The end of the path after the entry.
    pub(super) tail: Option<usize>,
}

/// A digest of an id, so that the memory for an entry does not depend on the length of its id.
type IdDigest = [u8; 16];

fn digest(id: &str) -> IdDigest {
    let mut digest = [0; 16];
    digest.copy_from_slice(&blake3::hash(id.as_bytes()).as_bytes()[..16]);
    digest
}

/// Returns an index in 32 bits, which are enough for the lines of the largest file.
fn short(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// An [`EntrySpan`] in less memory.
#[derive(Clone, Copy)]
struct PackedSpan([u32; 3]);

impl PackedSpan {
    const NONE: u32 = u32::MAX;

    fn new(span: EntrySpan) -> Self {
        let pack = |index: Option<usize>| index.map_or(Self::NONE, short);
        Self([pack(span.before), pack(span.first), pack(span.tail)])
    }

    fn unpack(self) -> EntrySpan {
        let [before, first, tail] =
            self.0.map(|index| (index != Self::NONE).then_some(index as usize));
        EntrySpan { before, first, tail }
    }
}

impl PiReader {
    /// Returns a reader that has read nothing and writes to `records`.
    pub(super) fn new(records: RecordSpool) -> Self {
        Self {
            version: 1,
            header: None,
            title: None,
            records,
            roots: Vec::new(),
            by_id: HashMap::new(),
            by_index: Vec::new(),
            tail: None,
            calls: HashMap::new(),
            provider: None,
            at: None,
            losses: Losses::default(),
        }
    }

    /// Remembers the records of the next entry of the file.
    pub(super) fn note_entry(&mut self, id: Option<&str>, span: EntrySpan) {
        // Entries of version 1 refer to each other by position, later ones by id.
        if self.version == 1 {
            self.by_index.push(PackedSpan::new(span));
        }
        if let Some(id) = id {
            self.by_id.insert(digest(id), PackedSpan::new(span));
        }
    }

    /// Returns the entry with an id.
    pub(super) fn entry_by_id(&self, id: &str) -> Option<EntrySpan> {
        self.by_id.get(&digest(id)).map(|span| span.unpack())
    }

    /// Returns the entry at a position in a file of version 1.
    pub(super) fn entry_at(&self, index: u64) -> Option<EntrySpan> {
        self.by_index.get(usize::try_from(index).ok()?).map(|span| span.unpack())
    }

    /// Returns the first record of the path of a record.
    pub(super) fn root_of(&self, index: usize) -> usize {
        self.roots[index] as usize
    }

    /// Appends a record at the end of the current path.
    pub(super) fn push(&mut self, body: RecordBody) {
        let (index, at) = (self.records.len(), self.now());
        self.roots.push(self.tail.map_or(short(index), |parent| self.roots[parent]));
        let on_path = body.kind().scope() == RecordScope::Path;
        self.records.push(ImportedRecord { parent: self.tail, at, body, key: None });
        if on_path {
            self.tail = Some(index);
        }
    }

    /// Returns the time of the entry that is being read.
    pub(super) fn now(&self) -> Timestamp {
        self.at.unwrap_or(Timestamp::from_unix_ms(0))
    }

    /// Remembers the tool calls of the message that becomes the next record, for the results that follow.
    pub(super) fn note_calls(&mut self, message: &Message) {
        let index = short(self.records.len());
        for (at, part) in (0..).zip(&message.parts) {
            if let Part::ToolCall { id, .. } = part {
                self.calls.insert(digest(id), (index, at));
            }
        }
    }

    /// Returns the name and the arguments of an earlier tool call.
    pub(super) fn find_call(&mut self, id: &str) -> Option<(String, Value)> {
        let &(index, at) = self.calls.get(&digest(id))?;
        let RecordBody::Message(mut message) = self.records.get(index as usize)?.body else {
            return None;
        };
        match message.parts.swap_remove(at as usize) {
            Part::ToolCall { name, args, .. } => Some((name, args)),
            _ => None,
        }
    }
}
