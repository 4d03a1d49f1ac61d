//! `context.*`: what a model is sent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::Role;
use crate::{Seq, SessionId};

/// Which session, and for which call.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextBuildParams {
    /// The session.
    pub session_id: SessionId,
    /// The context window in tokens, at least 2048; default: the session's own, else the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_size: Option<u32>,
    /// The model; default: the session's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// A strategy by name; default: the first that fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// Tool definitions that will be sent along, as the model server takes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    /// A user message that will follow and is not recorded yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<String>,
    /// Whether the build may record a new epoch when the old one no longer fits.
    #[serde(default)]
    pub compact: CompactMode,
}

impl ContextBuildParams {
    /// A build that writes nothing and asks for nothing in particular.
    pub const fn new(session_id: SessionId) -> Self {
        Self {
            session_id,
            context_size: None,
            model: None,
            strategy: None,
            tools: Vec::new(),
            pending: None,
            compact: CompactMode::Never,
        }
    }
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

/// A context that fits, and how it came about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextBuildResult {
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
