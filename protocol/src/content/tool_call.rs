//! A tool call with its result, as clients that execute tools record it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Seq, Timestamp};

/// One executed tool call.
///
/// **Shape**: `{"id":"call_1","name":"read_file","args":{"path":"a.rs"},"result":{"llmContent":"..."},"timestamp":"..."}`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolCall {
    /// Links the result to the call of the assistant message that asked for it.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments as JSON.
    pub args: Value,
    /// What came out.
    pub result: ToolResult,
    /// When it was called.
    pub timestamp: Timestamp,
    /// How long it ran, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The assistant message that asked for it, where the client knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_seq: Option<Seq>,
}

/// What a tool gave back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolResult {
    /// What the model is shown.
    pub llm_content: String,
    /// What a person is shown, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_content: Option<String>,
    /// Whether the tool did what it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
    /// Why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The exit code of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}
