//! Contexts as a model is sent them, and how far they can be trusted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Retention, Role};
use crate::Seq;

/// A context that fits, and how it came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuiltContext {
    /// What to send, in order.
    pub messages: Vec<ContextMessage>,
    /// The strategy that chose them.
    pub strategy: String,
    /// Tokens of everything sent: system message, tools and conversation.
    pub tokens_used: u64,
    /// The most that may be sent, in tokens.
    pub token_budget: u64,
    /// How the window is divided.
    pub budget: ContextBudget,
    /// Messages on the active path.
    pub original_message_count: u64,
    /// Those that were included, whole or cut.
    pub included_message_count: u64,
    /// Those that a summary stands for.
    pub summarized_message_count: u64,
    /// What was left out, and why.
    pub omitted: Vec<OmittedItem>,
    /// How the tokens were counted.
    pub count_kind: CountKind,
    /// Tokens of the previous build that this one begins with; what a model server need not read again.
    pub prefix_tokens: u64,
    /// True when the plan was not recorded, so that the next build may differ from its beginning on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transient: bool,
    /// The context window to request from the model server.
    pub num_ctx: u32,
    /// The longest answer to request, so that prompt and answer stay within the window.
    pub num_predict: u32,
    /// Names this build.
    pub build_id: String,
}

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

/// The smallest context window that anything here works with, in tokens: below it, a system message, one exchange and
/// the room for an answer do not fit together.
pub const MIN_CONTEXT_SIZE: u32 = 2048;

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
