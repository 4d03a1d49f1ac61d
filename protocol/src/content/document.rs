//! The session document: a whole session as one readable JSON file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::change::{Meta, ModeChange};
use super::message::{Part, Role};
use super::tool_call::ToolResult;
use crate::{SessionId, Timestamp};

/// A whole session: every message in the order of the log, untouched by compaction.
///
/// Fields that this version does not know are kept out, and an import reports them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionDocument {
    /// The session.
    pub session_id: SessionId,
    /// When it began.
    pub start_time: Timestamp,
    /// When something was last recorded.
    pub last_activity: Timestamp,
    /// The model; empty where none was named.
    #[serde(default)]
    pub model: String,
    /// The model's provider; empty where none was named.
    #[serde(default)]
    pub provider: String,
    /// Every message, in the order of the log.
    pub messages: Vec<DocumentMessage>,
    /// Every tool call that was recorded with its result, in the order of the log.
    #[serde(default)]
    pub tool_calls: Vec<DocumentToolCall>,
    /// Counts and settings.
    #[serde(default)]
    pub metadata: DocumentMetadata,
}

/// A message in a session document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DocumentMessage {
    /// Who said it.
    pub role: Role,
    /// What was said.
    pub parts: Vec<Part>,
    /// When it was said.
    pub timestamp: Timestamp,
    /// False where it lies off the active path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// For role `tool`: the call that this answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// For role `tool`: the name of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// For role `assistant`: the model that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// For role `assistant`: why it stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// How long it took, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

/// A tool call in a session document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DocumentToolCall {
    /// Links it to the call of an assistant message.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments.
    #[serde(default)]
    pub args: Value,
    /// What came out.
    pub result: ToolResult,
    /// When it was called.
    pub timestamp: Timestamp,
    /// False where it lies off the active path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// How many messages stood before it; absent in foreign files, where the timestamp decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_messages: Option<u64>,
    /// How long it ran, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

/// Counts and settings in a session document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DocumentMetadata {
    /// Tokens of everything recorded.
    pub token_count: u64,
    /// Compactions so far.
    pub compression_count: u64,
    /// Changes of mode, oldest first.
    pub mode_history: Vec<ModeChange>,
    /// The title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The project's directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
    /// The system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// When the last message was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_message_at: Option<Timestamp>,
    /// Messages of role `user`.
    pub user_message_count: u64,
    /// The context window, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u32>,
    /// Client data.
    #[serde(rename = "client", skip_serializing_if = "Meta::is_empty")]
    pub client_metadata: Meta,
}
