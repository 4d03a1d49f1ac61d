//! Executed tool calls with their results.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Seq, Timestamp};

/// An executed tool call with its result.
///
/// **Shape**: `{"id":"call_1","name":"read_file","args":{"path":"a.rs"},"result":{"llmContent":"..."},"timestamp":"..."}`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolCall {
    /// The id of the call in the assistant message that requested it.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments as JSON.
    pub args: Value,
    /// The result.
    pub result: ToolResult,
    /// The time of the call.
    pub timestamp: Timestamp,
    /// The run time, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The record of the assistant message that requested the call, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_seq: Option<Seq>,
}

/// The result of a tool call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolResult {
    /// The text that the model reads.
    pub llm_content: String,
    /// The text that a person reads, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_content: Option<String>,
    /// Whether the tool succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
    /// The reason of a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The exit code of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}
