//! `session.branch`, `tree`, `label`, `fork`, `undo`, `redo` and `operations`: the paths of a session, and moving between
//! them.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_with::skip_serializing_none;

use crate::content::{
    FilePlan, FilesMode, Operation, PathRecords, Session, SummaryAuthor, TreeCounts, TreeNode,
};
use crate::{PlanId, Seq, SessionId};

/// The params of `session.branch`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionBranchParams {
    /// The session.
    pub session_id: SessionId,
    /// The record after which the conversation continues; null for the position before the first record.
    #[serialize_always]
    #[serde(deserialize_with = "required")]
    pub to_seq: Option<Seq>,
    /// Whether a summary of the records that leave the path is recorded after the move. Default false.
    #[serde(default)]
    pub summarize: bool,
    /// An idempotency key: a retry with the same key moves nothing again.
    pub key: Option<String>,
}

/// Reads a field that may be null and must not be absent: a forgotten one would move a session to its beginning.
fn required<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Seq>, D::Error> {
    Option::deserialize(input)
}

/// The result of `session.branch`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionBranchResult {
    /// The record that the leaf moved to, without the summary; absent for the position before the first record.
    pub leaf: Option<Seq>,
    /// Whether the leaf is not `toSeq` but the end of its unit: a message with its tool calls and results. Default
    /// false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moved_to_unit_end: bool,
    /// The record of the move; absent if the leaf was there already.
    pub seq: Option<Seq>,
    /// The record with the summary of the branch that was left.
    pub summary_seq: Option<Seq>,
    /// The author of the summary; absent without one.
    pub summary_by: Option<SummaryAuthor>,
    /// The records that came onto the active path.
    #[serde(default, skip_serializing_if = "PathRecords::is_empty")]
    pub added: PathRecords,
    /// The records that left the active path.
    #[serde(default, skip_serializing_if = "PathRecords::is_empty")]
    pub removed: PathRecords,
    /// Whether the key was used before, so that nothing was written. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// The params of `session.tree`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionTreeParams {
    /// The session.
    pub session_id: SessionId,
    /// The most nodes of the page, 1 to 1000; default 200. A page also ends when it has read 6 MiB.
    pub limit: Option<u32>,
    /// The `nextCursor` of the page before; absent for the first page.
    pub cursor: Option<String>,
}

/// The result of `session.tree`: a page of nodes.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionTreeResult {
    /// The nodes in the order of the log, so that a parent comes before its children.
    pub data: Vec<TreeNode>,
    /// The active leaf; absent for the position before the first record.
    pub leaf: Option<Seq>,
    /// The counts of the whole tree.
    pub counts: TreeCounts,
    /// The cursor of the next page; absent at the end.
    pub next_cursor: Option<String>,
}

/// The params of `session.label`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionLabelParams {
    /// The session.
    pub session_id: SessionId,
    /// The record to label.
    pub seq: Seq,
    /// The label, at most 512 bytes; absent or empty to remove it.
    pub label: Option<String>,
}

/// The result of `session.label`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionLabelResult {
    /// The labeled record.
    pub seq: Seq,
    /// Its label; absent if it has none.
    pub label: Option<String>,
    /// Whether the label changed.
    pub changed: bool,
}

/// The params of `session.undo` and `session.redo`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionUndoParams {
    /// The session.
    pub session_id: SessionId,
    /// The number of operations, 1 to 1000; default 1.
    pub steps: Option<u32>,
    /// The first operation to undo or redo, by its first record; default the next one when the call arrives. If another one
    /// comes first when the leaf moves, the call is refused with `busy`.
    pub operation: Option<Seq>,
    /// What to do with the files that the operations wrote; default `skip`.
    #[serde(default, skip_serializing_if = "FilesMode::is_skip")]
    pub files: FilesMode,
    /// For `files: "apply"`: the plan of a preview with the same steps.
    pub plan_id: Option<PlanId>,
    /// An idempotency key: a retry with the same key moves nothing again.
    pub key: Option<String>,
}

impl SessionUndoParams {
    /// Returns the params that undo or redo a number of operations and do not examine files.
    #[must_use]
    pub const fn new(session_id: SessionId, steps: u32) -> Self {
        let (steps, operation, files) = (Some(steps), None, FilesMode::Skip);
        Self { session_id, steps, operation, files, plan_id: None, key: None }
    }
}

/// The result of `session.undo` and `session.redo`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionUndoResult {
    /// The active leaf after the move, of a preview after the call; absent for the position before the first record.
    pub leaf: Option<Seq>,
    /// The operations that were undone or redone, or would be, in the order in which that happens.
    pub operations: Vec<Operation>,
    /// The number of operations that can be undone now.
    pub undoable: u64,
    /// The number of operations that can be redone now.
    pub redoable: u64,
    /// The plan of a preview, or what became of the files.
    pub files: Option<FilePlan>,
    /// Whether the key was used before, so that nothing was written. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// The params of `session.operations`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionOperationsParams {
    /// The session.
    pub session_id: SessionId,
    /// The most operations of the page, 1 to 1000; default 50.
    pub limit: Option<u32>,
    /// The `nextCursor` of the page before; absent for the first page.
    pub cursor: Option<String>,
}

/// The result of `session.operations`: a page of operations.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionOperationsResult {
    /// The operations, the newest first.
    pub data: Vec<Operation>,
    /// The number of operations that can be undone.
    pub undoable: u64,
    /// The number of operations that can be redone.
    pub redoable: u64,
    /// The cursor of the next page; absent at the end.
    pub next_cursor: Option<String>,
}

/// The params of `session.fork`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionForkParams {
    /// The session to copy.
    pub session_id: SessionId,
    /// The last record to copy, with the rest of its unit; default the active leaf.
    pub at_seq: Option<Seq>,
    /// The title of the new session, at most 4 KiB; default that of the copied one with `(fork N)`.
    pub title: Option<String>,
    /// An idempotency key: a retry with the same key returns the same session.
    pub key: Option<String>,
}

/// The result of `session.fork`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionForkResult {
    /// The new session.
    pub session: Session,
    /// The active leaf of the new session: the last record that was copied onto its path.
    pub leaf: Seq,
    /// Whether the leaf is not the requested record but the end of its unit. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moved_to_unit_end: bool,
}
