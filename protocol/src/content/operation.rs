//! Operations and trees: the history of a session as results show it, derived from its log.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{RecordKind, Role, is_zero, named_enum};
use crate::{Seq, Timestamp};

named_enum! {
    /// The kind of an operation.
    pub enum OperationKind {
        /// A message of the user with everything up to its answer, or other messages and tool calls.
        Turn = "turn",
        /// A compaction outside of a turn.
        Compaction = "compaction",
        /// A change of the mode.
        Mode = "mode",
        /// A change of the goals by a client.
        Goal = "goal",
        /// A context entry was set or removed.
        Entry = "entry",
        /// A record was pinned or unpinned.
        Pin = "pin",
        /// The active leaf moved to another record, perhaps with a summary of the branch that was left.
        Branch = "branch",
        /// The active leaf moved back to a snapshot.
        Restore = "restore",
        /// An incomplete answer left the active path, and another one took its place.
        Retry = "retry",
        /// An operation was undone.
        Undo = "undo",
        /// An undone operation was redone.
        Redo = "redo",
    }
}

named_enum! {
    /// Whether an operation can be undone or redone.
    pub enum OperationState {
        /// The operation is in force; `session.undo` can undo it.
        Applied = "applied",
        /// The operation was undone; `session.redo` can redo it.
        Undone = "undone",
        /// The operation was undone, and a later one took its place.
        Dropped = "dropped",
    }
}

/// An operation: a change of the active path of a session, which can be undone as a whole.
///
/// **Shape**: `{"seq":4,"throughSeq":6,"kind":"turn","state":"applied","at":"...","text":"How do I ...","leafBefore":3,
/// "leafAfter":6,"added":{"records":3,"messages":2,"tokens":120}}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// The first record of the operation, by which it is identified.
    pub seq: Seq,
    /// The last record of the operation.
    pub through_seq: Seq,
    /// The kind.
    pub kind: OperationKind,
    /// Whether the operation can be undone or redone; absent for `undo` and `redo`, which are reversed by each other.
    pub state: Option<OperationState>,
    /// The time of the first record; absent if it is damaged.
    pub at: Option<Timestamp>,
    /// A line for people: the beginning of the message, or what changed.
    pub text: String,
    /// The operation that an `undo` or a `redo` reversed.
    pub target: Option<Seq>,
    /// The active leaf before the operation; absent for the position before the first record.
    pub leaf_before: Option<Seq>,
    /// The active leaf after the operation; absent for the position before the first record.
    pub leaf_after: Option<Seq>,
    /// The records that came onto the active path.
    #[serde(default, skip_serializing_if = "PathRecords::is_empty")]
    pub added: PathRecords,
    /// The records that left the active path.
    #[serde(default, skip_serializing_if = "PathRecords::is_empty")]
    pub removed: PathRecords,
    /// The files that the tool calls of the operation wrote, or that it put back; absent if there are none.
    pub files: Option<OperationFiles>,
}

/// The files of an operation.
///
/// **Shape**: `{"count":2,"paths":["src/a.rs","src/b.rs"]}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OperationFiles {
    /// The number of files.
    pub count: u64,
    /// The first paths: at most 20, and together at most 4 KiB.
    pub paths: Vec<String>,
}

/// The numbers of records that an operation brought onto the active path, or that left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PathRecords {
    /// All records.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub records: u64,
    /// Messages.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub messages: u64,
    /// Tool calls.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tool_calls: u64,
    /// Tool calls that say which files they wrote.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub file_calls: u64,
    /// The tokens of the messages and tool calls, as counted when they were recorded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tokens: u64,
}

impl PathRecords {
    /// Returns whether there are no records.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records == 0
    }
}

/// A node of the tree of a session: a record on some path from the root.
///
/// **Shape**: `{"seq":4,"parent":3,"type":"message","role":"user","at":"...","text":"How do I ...","tokens":12,
/// "label":"before the port","active":true,"children":2}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TreeNode {
    /// The record.
    pub seq: Seq,
    /// The record before it; absent for a root.
    pub parent: Option<Seq>,
    /// The kind of the record.
    #[serde(rename = "type")]
    pub kind: RecordKind,
    /// The role of a message.
    pub role: Option<Role>,
    /// The time of recording; absent if the record is damaged.
    pub at: Option<Timestamp>,
    /// The beginning of the content on one line; empty if the record is damaged.
    pub text: String,
    /// The tokens of the record, as counted when it was recorded; absent if it never enters a context.
    pub tokens: Option<u32>,
    /// The label of the record.
    pub label: Option<String>,
    /// Whether the record is on the active path.
    pub active: bool,
    /// The number of records that follow it directly; more than one where branches begin.
    pub children: u32,
}

/// The counts of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TreeCounts {
    /// All nodes.
    pub nodes: u64,
    /// The nodes on the active path.
    pub active: u64,
    /// The branches: nodes that no record follows.
    pub branches: u64,
    /// The labeled nodes.
    pub labels: u64,
}
