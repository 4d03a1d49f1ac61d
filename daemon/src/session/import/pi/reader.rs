//! The records of a pi session as they are read: the tree of entries, the tool calls, and the losses.

use std::collections::HashMap;

use ollm_protocol::Timestamp;
use ollm_protocol::content::{Part, RecordBody, RecordScope, SessionHeader};
use serde_json::Value;

use crate::session::import::imported::{ImportedRecord, Losses};

/// A reader of one pi session.
#[derive(Default)]
pub(super) struct PiReader {
    pub(super) version: u64,
    pub(super) header: Option<SessionHeader>,
    pub(super) title: Option<String>,
    pub(super) records: Vec<ImportedRecord>,
    /// For each record the first record of its path.
    pub(super) roots: Vec<usize>,
    pub(super) by_id: HashMap<String, EntrySpan>,
    /// The entries by position in the file, including the header, as version 1 refers to them.
    pub(super) by_index: Vec<EntrySpan>,
    /// The end of the path that the next record continues.
    pub(super) tail: Option<usize>,
    /// By id of a tool call, the index of the message and of the part that is the call.
    pub(super) calls: HashMap<String, (usize, usize)>,
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

impl PiReader {
    /// Appends a record at the end of the current path and returns its index.
    pub(super) fn push(&mut self, body: RecordBody) -> usize {
        let (index, at) = (self.records.len(), self.now());
        self.roots.push(self.tail.map_or(index, |parent| self.roots[parent]));
        let on_path = body.kind().scope() == RecordScope::Path;
        self.records.push(ImportedRecord { parent: self.tail, at, body, key: None });
        if on_path {
            self.tail = Some(index);
        }
        index
    }

    /// Returns the time of the entry that is being read.
    pub(super) fn now(&self) -> Timestamp {
        self.at.unwrap_or(Timestamp::from_unix_ms(0))
    }

    /// Remembers the tool calls of a message for the results that follow.
    pub(super) fn note_calls(&mut self, index: usize) {
        let RecordBody::Message(message) = &self.records[index].body else { return };
        for (at, part) in message.parts.iter().enumerate() {
            if let Part::ToolCall { id, .. } = part {
                self.calls.insert(id.clone(), (index, at));
            }
        }
    }

    /// Returns the name and the arguments of an earlier tool call.
    pub(super) fn find_call(&self, id: &str) -> Option<(String, Value)> {
        let &(index, at) = self.calls.get(id)?;
        let RecordBody::Message(message) = &self.records[index].body else { return None };
        match &message.parts[at] {
            Part::ToolCall { name, args, .. } => Some((name.clone(), args.clone())),
            _ => None,
        }
    }
}
