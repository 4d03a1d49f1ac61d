//! The session document: a session as one readable JSON file. FORMAT.md, "Session document", describes the file.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use super::change::{Meta, ModeChange};
use super::message::{Part, Role, ToolResult};
use crate::{SessionId, Timestamp};

/// A session document: all messages in the order of the log, regardless of compactions.
///
/// Unknown fields are ignored; an import reports them as losses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionDocument {
    /// The id of the session.
    pub session_id: SessionId,
    /// The time of creation.
    pub start_time: Timestamp,
    /// The time of the newest record.
    pub last_activity: Timestamp,
    /// The model; empty if none is set.
    #[serde(default)]
    pub model: String,
    /// The provider of the model; empty if none is set.
    #[serde(default)]
    pub provider: String,
    /// All messages, in the order of the log.
    pub messages: Vec<DocumentMessage>,
    /// All recorded tool calls with their results, in the order of the log.
    #[serde(default)]
    pub tool_calls: Vec<DocumentToolCall>,
    /// Counts and settings.
    #[serde(default)]
    pub metadata: DocumentMetadata,
}

/// A message in a session document.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DocumentMessage {
    /// The author.
    pub role: Role,
    /// The content, in order.
    pub parts: Vec<Part>,
    /// The time of the message.
    pub timestamp: Timestamp,
    /// False for a record off the active path; otherwise absent.
    pub active: Option<bool>,
    /// For role `tool`: the id of the tool call that this message answers.
    pub tool_call_id: Option<String>,
    /// For role `tool`: the name of the tool.
    pub tool_name: Option<String>,
    /// For role `assistant`: the model that answered.
    pub model: Option<String>,
    /// For role `assistant`: the reason for the end of the answer.
    pub finish_reason: Option<String>,
    /// The time that it took to answer, in milliseconds.
    pub duration_ms: Option<u64>,
}

/// A tool call in a session document.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DocumentToolCall {
    /// The id of the call in the assistant message that requested it.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments as JSON.
    #[serde(default)]
    pub args: Value,
    /// The result.
    pub result: ToolResult,
    /// The time of the call.
    pub timestamp: Timestamp,
    /// False for a record off the active path; otherwise absent.
    pub active: Option<bool>,
    /// The number of messages before the call. Absent in files of other programs, whose timestamps decide the order.
    pub after_messages: Option<u64>,
    /// The run time, in milliseconds.
    pub duration_ms: Option<u64>,
}

/// Counts and settings in a session document.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DocumentMetadata {
    /// The tokens of all messages and tool calls.
    pub token_count: u64,
    /// The number of compactions on the active path.
    pub compression_count: u64,
    /// The changes of the mode on the active path, the oldest first.
    pub mode_history: Vec<ModeChange>,
    /// The title.
    pub title: Option<String>,
    /// The description.
    pub description: Option<String>,
    /// The directory of the project.
    pub project_path: Option<String>,
    /// The system prompt.
    pub system_prompt: Option<String>,
    /// The time of the last message.
    pub last_message_at: Option<Timestamp>,
    /// The number of messages of role `user`.
    pub user_message_count: u64,
    /// The context window, in tokens.
    pub context_window: Option<u32>,
    /// The time for which the model server keeps the model in memory after a request of the session, in seconds.
    pub keep_alive_seconds: Option<u32>,
    /// The model servers that may get texts of the session; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_servers: Vec<String>,
    /// The options of each answer that `chat.send` does not set otherwise.
    #[serde(skip_serializing_if = "Meta::is_empty")]
    pub options: Meta,
    /// Data of clients, by name.
    #[serde(rename = "client", skip_serializing_if = "Meta::is_empty")]
    pub client_metadata: Meta,
}
