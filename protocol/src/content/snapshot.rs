//! Snapshots: the context of a session at one instant, as files hold it and as lists show it. FORMAT.md, "Snapshots",
//! describes the files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use super::change::ContextEntry;
use super::compaction::Checkpoint;
use super::document::{DocumentMessage, DocumentToolCall};
use super::goal::Goal;
use super::is_zero;
use super::record::Record;
use crate::{GoalId, Seq, SessionId, SnapshotId, Timestamp};

/// A snapshot file: everything that the context of a session held, with every message in full.
///
/// Unknown fields are ignored. Only `sessionId` and `messages` are needed, so files of other programs can be read.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotDocument {
    /// The version of the file; absent in files of other programs.
    pub version: Option<u32>,
    /// The id of the snapshot. In files of other programs it may be any text.
    #[serde(default)]
    pub id: String,
    /// The session.
    pub session_id: SessionId,
    /// The time of the snapshot; absent in some files of other programs.
    pub timestamp: Option<Timestamp>,
    /// The tokens of the context.
    #[serde(default)]
    pub token_count: u64,
    /// A line for people.
    #[serde(default)]
    pub summary: String,
    /// The messages of the user in the context, in full.
    #[serde(default)]
    pub user_messages: Vec<SnapshotMessage>,
    /// Always empty: no message of the user is archived.
    #[serde(default)]
    pub archived_user_messages: Vec<Value>,
    /// The other messages in the context; in old files, all messages.
    pub messages: Vec<SnapshotMessage>,
    /// The executed tool calls in the context, with their results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<SnapshotToolCall>,
    /// The goals.
    pub goal_stack: Option<GoalStack>,
    /// The thinking of the models, which `messages` are without.
    pub reasoning_storage: Option<ReasoningStorage>,
    /// The checkpoints in force, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<Checkpoint>,
    /// The context entries of the session, of its project and of all sessions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context_entries: Vec<ContextEntry>,
    /// The pinned records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<Seq>,
    /// The mode.
    pub mode: Option<String>,
    /// The other records of the context: its head, and what was sent since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<Record>,
    /// Counts and settings.
    #[serde(default)]
    pub metadata: SnapshotMetadata,
}

impl SnapshotDocument {
    /// The newest version that this crate describes.
    pub const VERSION: u32 = 1;
}

/// A message in a snapshot file.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotMessage {
    /// The record with the message; absent in files of other programs.
    pub seq: Option<Seq>,
    /// The message.
    #[serde(flatten)]
    pub message: DocumentMessage,
}

/// A tool call in a snapshot file.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotToolCall {
    /// The record with the tool call.
    pub seq: Seq,
    /// The message that requested the call, if it is known.
    pub message_seq: Option<Seq>,
    /// The tool call.
    #[serde(flatten)]
    pub call: DocumentToolCall,
}

/// The goals in a snapshot file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GoalStack {
    /// All goals, the oldest first.
    pub goals: Vec<Goal>,
}

/// The thinking of models in a snapshot file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReasoningStorage {
    /// The traces in the order of their messages.
    pub traces: Vec<ReasoningTrace>,
}

/// The text of one thinking part of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReasoningTrace {
    /// The record with the message.
    pub seq: Seq,
    /// The position among the parts of the message, from 0.
    pub part: u32,
    /// The text.
    pub text: String,
}

/// Counts and settings in a snapshot file.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotMetadata {
    /// The model; empty if none was set.
    pub model: String,
    /// The context window in tokens.
    pub context_size: u64,
    /// The tokens of the context, divided by those of all records that it stands for; 1 without a compaction.
    pub compression_ratio: f64,
    /// The messages of the user on the active path, also those that are not in the context.
    pub total_user_messages: u64,
    /// The active goal.
    pub active_goal_id: Option<GoalId>,
    /// The completed goals.
    pub total_goals_completed: u64,
    /// The checkpoints in force.
    pub total_checkpoints: u64,
    /// Whether a model wrote thinking.
    pub is_reasoning_model: bool,
    /// An estimate of the tokens of that thinking.
    pub total_thinking_tokens: u64,
    /// The reason, as in the `snapshot` record.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Whether the snapshot is exempt from the cleanup of automatic ones.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// The `snapshot` record.
    pub seq: Option<Seq>,
    /// The active leaf; absent before the first record.
    pub leaf: Option<Seq>,
    /// The system prompt.
    pub system_prompt: Option<String>,
    /// The title of the session.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// The directory of the project.
    pub project_path: Option<String>,
    /// The model servers that may get texts of the session; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_servers: Vec<String>,
}

/// A snapshot as lists show it.
///
/// **Shape**: `{"snapshotId":"...","sessionId":"...","timestamp":"...","reason":"manual","summary":"before the port",
/// "tokenCount":812,"messageCount":7,"userMessageCount":3,"sizeBytes":9216}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotInfo {
    /// The id. That of a file of another program, whose id is no UUID, follows from its name.
    pub snapshot_id: SnapshotId,
    /// The shortest end of the id, of at least 4 hexadecimal digits, that the id of no other snapshot has. Present in
    /// lists.
    pub short_id: Option<String>,
    /// The session.
    pub session_id: SessionId,
    /// The time of the snapshot.
    pub timestamp: Timestamp,
    /// The reason: `manual`, `threshold`, or the change that followed, such as `compaction`; `import` for a file of another
    /// program.
    pub reason: String,
    /// Whether the snapshot is exempt from the cleanup of automatic ones; manual ones are exempt without it. Default
    /// false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// A line for people.
    pub summary: String,
    /// The tokens of the context.
    pub token_count: u64,
    /// The messages in the file, also those of the user.
    pub message_count: u64,
    /// The messages of the user in the file.
    pub user_message_count: u64,
    /// The checkpoints in force. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub checkpoint_count: u64,
    /// The mode.
    pub mode: Option<String>,
    /// The description of the active goal.
    pub goal: Option<String>,
    /// The `snapshot` record of the session; absent for a file of another program.
    pub seq: Option<Seq>,
    /// The active leaf at that time; absent before the first record.
    pub leaf: Option<Seq>,
    /// The size of the file in bytes.
    pub size_bytes: u64,
}

/// A file among the snapshots of a session that cannot be used, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SkippedSnapshot {
    /// The session.
    pub session_id: SessionId,
    /// The name of the file.
    pub file: String,
    /// The reason in words.
    pub reason: String,
}

/// The state of a session's context, without its messages.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextState {
    /// The active leaf; absent before the first record.
    pub leaf: Option<Seq>,
    /// The tokens of the messages and tool calls on the path, as counted when they were recorded.
    pub tokens: u64,
    /// The messages on the path.
    pub messages: u64,
    /// The checkpoints in force.
    pub checkpoints: u64,
    /// The description of the active goal.
    pub goal: Option<String>,
    /// All goals.
    pub goals: u64,
    /// The context entries of the session.
    pub entries: u64,
    /// The pinned records.
    pub pins: u64,
    /// The mode.
    pub mode: Option<String>,
}
