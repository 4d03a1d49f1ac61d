//! Recording what was said and done.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::{LoopPattern, Part, Role, ToolResult};
use crate::methods::context::CountKind;
use crate::{Seq, SessionId, Timestamp};

/// Records one message.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionRecordParams {
    /// The session.
    pub session_id: SessionId,
    /// The message.
    pub message: MessageInput,
    /// Makes a retry record once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A message as a client gives it: either `parts` or `content`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MessageInput {
    /// Who said it.
    pub role: Role,
    /// What was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<Part>>,
    /// Shorthand for one text part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// When it was said; default: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
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

impl MessageInput {
    /// A message of one text.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            parts: None,
            content: Some(text.into()),
            timestamp: None,
            tool_call_id: None,
            tool_name: None,
            model: None,
            finish_reason: None,
            duration_ms: None,
        }
    }
}

/// Records one executed tool call.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionRecordToolCallParams {
    /// The session.
    pub session_id: SessionId,
    /// The tool call.
    pub tool_call: ToolCallInput,
    /// Makes a retry record once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A tool call as a client gives it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolCallInput {
    /// Links the result to the call of the assistant message that asked for it.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments.
    #[serde(default)]
    pub args: Value,
    /// What came out.
    pub result: ToolResult,
    /// When it was called; default: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
    /// How long it ran, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The assistant message that asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_seq: Option<Seq>,
}

/// Records data of a client.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionRecordCustomParams {
    /// The session.
    pub session_id: SessionId,
    /// Names the client's own type, for example `editor.selection`.
    pub name: String,
    /// Any JSON.
    #[serde(default)]
    pub data: Value,
    /// A text that enters the context; absent keeps the record out of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_text: Option<String>,
    /// Makes a retry record once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Durable: the record is synced to disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionRecordResult {
    /// Its position in the log.
    pub seq: Seq,
    /// When it was recorded.
    pub timestamp: Timestamp,
    /// Tokens that it costs in a context.
    pub tokens: u32,
    /// How they were counted.
    pub count_kind: CountKind,
    /// The session's totals with this record.
    pub usage: SessionUsage,
    /// True when the `key` was known and nothing was written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
    /// What repeats, as long as that keeps the session from calling the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#loop: Option<LoopPattern>,
}

/// Totals of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionUsage {
    /// Messages of every role.
    pub message_count: u64,
    /// Tokens of all messages and tool calls.
    pub token_count: u64,
}
