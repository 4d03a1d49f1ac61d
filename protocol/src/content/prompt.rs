//! Contexts as a model is sent them, and how far they can be trusted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Retention, Role};
use crate::Seq;

/// One message as a model server takes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContextMessage {
    /// Who speaks.
    pub role: Role,
    /// The text.
    pub content: String,
    /// Calls that an assistant message makes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ContextToolCall>,
    /// For role `tool`: the tool that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// For role `tool`: the call that is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Pictures in base64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
}

/// A tool call as a model server takes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContextToolCall {
    /// Links the call to its result.
    pub id: String,
    /// The call.
    pub function: ContextFunction,
}

/// Name and arguments of a tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContextFunction {
    /// The tool's name.
    pub name: String,
    /// The arguments.
    pub arguments: Value,
}

/// How the window is divided; all in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextBudget {
    /// The whole window.
    pub model_context_window: u64,
    /// The most that may be sent.
    pub prompt_limit: u64,
    /// The system message.
    pub system_prompt_tokens: u64,
    /// The tool definitions.
    pub tool_definition_tokens: u64,
    /// The checkpoints.
    pub checkpoint_tokens: u64,
    /// Kept free for the answer.
    pub reserve_for_response: u64,
    /// Left for the conversation.
    pub available_tokens: u64,
    /// Used by the conversation.
    pub current_conversation_tokens: u64,
    /// `currentConversationTokens` of `availableTokens`, in percent.
    pub utilization_percent: f64,
}

/// A record, or a run of records, that a context leaves out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OmittedItem {
    /// The first record; `session.get {from}` returns it.
    pub seq: Seq,
    /// The last record of a run left out for one reason; absent for a single one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through_seq: Option<Seq>,
    /// Tokens left out.
    pub tokens: u64,
    /// Why, for example `budget` or `thinking`.
    pub reason: String,
}

/// How far a token count can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CountKind {
    /// Counted with the model's own vocabulary, as the engine counts.
    Exact,
    /// Texts counted with the model's own vocabulary, what stands around them estimated.
    Calibrated,
    /// Estimated from the text.
    Estimated,
}

/// Whether a build may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CompactMode {
    /// Write nothing; a plan that is not recorded is marked `transient`.
    #[default]
    Never,
    /// Record the new plan, so that later builds begin with this one.
    Auto,
}

/// How a compaction makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CompactStrategy {
    /// A model summarizes what is old.
    Summarize,
    /// What is old is left out.
    Truncate,
    /// Old tool results are shortened; where that is not enough, a model summarizes.
    Hybrid,
}

/// How far a conversation can be trusted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reliability {
    /// In percent, by the model's size, the number of compactions and the kind of counting: a rule of thumb.
    pub score: f64,
    /// The score in a word.
    pub level: ReliabilityLevel,
    /// The level as a sign.
    pub icon: String,
    /// What survived the last compaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// The same as one number, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained_percent: Option<u32>,
    /// What a person should know; by what was measured, not by the score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// The score in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ReliabilityLevel {
    /// From 85 %.
    High,
    /// From 60 %.
    Medium,
    /// From 40 %.
    Low,
    /// Below.
    Critical,
}
