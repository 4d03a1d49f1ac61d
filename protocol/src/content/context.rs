//! Built contexts: the messages for a model, the division of the window, and how reliable the conversation is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use super::{RecalledRecord, Retention, Role, named_enum};
use crate::{Seq, SessionId, Timestamp};

/// A context that fits into the window, with its token counts and omissions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BuiltContext {
    /// The messages to send, in order.
    pub messages: Vec<ContextMessage>,
    /// The strategy that chose the messages.
    pub strategy: String,
    /// The tokens of the whole prompt: system message, tools and conversation, as the daemon counted.
    pub context_tokens: u64,
    /// The most tokens that the prompt may have.
    pub prompt_limit: u64,
    /// The division of the window.
    pub budget: ContextBudget,
    /// The number of messages on the active path.
    pub original_message_count: u64,
    /// The number of messages that are included, whole or cut.
    pub included_message_count: u64,
    /// The number of messages that checkpoints stand for.
    pub summarized_message_count: u64,
    /// The records that are left out or shortened, with the reasons.
    pub omitted: Vec<OmittedItem>,
    /// The records that are being answered and are not whole, because they do not fit: the newest message of the user
    /// and the tool results since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<CutRecord>,
    /// The accuracy of the token counts.
    pub count_kind: CountKind,
    /// The tokens at the beginning that are the same as in the previous build, which a model server need not read
    /// again.
    pub prefix_tokens: u64,
    /// Whether the plan was not recorded, so that the next build can differ from its beginning on. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transient: bool,
    /// The context window to request from the model server.
    pub context_size: u32,
    /// The reasons for the size of the window.
    #[serde(default)]
    pub window: WindowLimits,
    /// The longest answer to request, in tokens, so that prompt and answer fit into the window.
    pub answer_limit: u32,
    /// The id of the build, for `context.inspect`.
    pub build_id: String,
    /// With `recall`: the earlier messages that were added; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recalled: Vec<RecalledRecord>,
}

/// The reasons for the size of a context window.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WindowLimits {
    /// The window that the call, the session, the configuration or the Modelfile names, in tokens, if the window is
    /// smaller.
    pub wanted_context: Option<u32>,
    /// The longest window that the model was trained for, in tokens; absent if it is unknown.
    pub trained_context: Option<u32>,
    /// Whether the model server has described the model, now or earlier. Otherwise the model may have a smaller window.
    #[serde(default)]
    pub verified: bool,
}

/// A message, in the form that a model server accepts.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContextMessage {
    /// The author.
    pub role: Role,
    /// The text.
    pub content: String,
    /// For role `assistant`: the requested tool calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ContextToolCall>,
    /// For role `tool`: the name of the tool.
    pub tool_name: Option<String>,
    /// For role `tool`: the id of the tool call.
    pub tool_call_id: Option<String>,
    /// Images, in base64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
}

impl ContextMessage {
    /// Returns a message with a text and nothing else.
    #[must_use]
    pub fn text(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            tool_calls: Vec::new(),
            tool_name: None,
            tool_call_id: None,
            images: Vec::new(),
        }
    }
}

/// A tool call, in the form that a model server accepts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContextToolCall {
    /// The id that the result refers to: nine letters and digits.
    pub id: String,
    /// The called function.
    pub function: ContextFunction,
}

/// The name and arguments of a tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContextFunction {
    /// The name of the tool.
    pub name: String,
    /// The arguments.
    pub arguments: Value,
}

/// The smallest context window in tokens. Below it, a system message, one exchange and an answer do not fit together.
pub const MIN_CONTEXT_SIZE: u32 = 2048;

/// The division of a context window, in tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextBudget {
    /// The whole window.
    pub context_size: u64,
    /// The most tokens that a prompt may have.
    pub prompt_limit: u64,
    /// The system message, with everything that the template puts before a conversation.
    pub system_prompt_tokens: u64,
    /// The tool definitions.
    pub tool_definition_tokens: u64,
    /// The checkpoints.
    pub checkpoint_tokens: u64,
    /// The reserve for the answer.
    pub reserve_for_response: u64,
    /// The most tokens that the conversation may have.
    pub available_tokens: u64,
    /// The tokens of the conversation.
    pub conversation_tokens: u64,
    /// `conversationTokens` in percent of `availableTokens`.
    pub utilization_percent: f64,
}

/// A record, or a run of consecutive records, that a context leaves out or shortens.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OmittedItem {
    /// The record, or the first one of a run.
    pub seq: Seq,
    /// The last record of a run; absent for a single record.
    pub through_seq: Option<Seq>,
    /// The tokens that are left out; 0 for `controlTokens`, `goal` and `contextEntry`.
    pub tokens: u64,
    /// The reason: `budget`, `summarized`, `cut`, `controlTokens`, `image`, `noVision`, `thinking`, `duplicate`, `empty`,
    /// `superseded`, `deferred`, `damaged`, `goal` or `contextEntry`.
    pub reason: String,
    /// For `goal` and `contextEntry`, the number of items that the system message does not show.
    pub item_count: Option<u64>,
}

/// A record of which a context shows a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CutRecord {
    /// The record.
    pub seq: Seq,
    /// The tokens that are shown; 0 if nothing is.
    pub shown_tokens: u64,
    /// The tokens of the whole record.
    pub total_tokens: u64,
}

named_enum! {
    /// The sessions that a question is asked of.
    pub enum RecallScope {
        /// One session.
        Session = "session",
        /// All sessions of a project.
        Project = "project",
        /// All sessions.
        All = "all",
    }
}

/// A message that answers a question.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecallHit {
    /// The session of the message.
    pub session_id: SessionId,
    /// The short form of the session's id.
    pub short_id: Option<String>,
    /// The title of the session.
    pub title: String,
    /// The record.
    pub seq: Seq,
    /// The author.
    pub role: Role,
    /// The time of the message or call.
    pub at: Timestamp,
    /// Whole sentences around the match. If the message before or after explains it, both, each on a line after its
    /// role, such as `user: Which port?`.
    pub excerpt: String,
    /// The relevance: higher is better. Comparable only within one reply.
    pub score: f64,
    /// The words of the question that the message contains, in this or another form; none if only its neighbors do.
    pub matched: Vec<String>,
    /// Whether the record is on another branch than the active one of its session. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub other_branch: bool,
}

/// The accuracy of a token count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CountKind {
    /// Counted with the vocabulary and template of the model, as the model server counts.
    Exact,
    /// Texts are counted with the vocabulary of the model and the tokens around them are estimated, or an estimate is
    /// corrected by earlier counts of the model server.
    Calibrated,
    /// Estimated from the characters of the text.
    Estimated,
}

/// Whether a build may record a new plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CompactMode {
    /// Record nothing; a context with an unrecorded plan is `transient`.
    #[default]
    Never,
    /// Record a new plan, so that later contexts begin with this one.
    Auto,
}

/// The strategy of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CompactStrategy {
    /// A model summarizes older records.
    Summarize,
    /// Older records are left out.
    Truncate,
    /// Older tool results are shortened; if that is not enough, a model summarizes older records.
    Hybrid,
}

/// The reliability of a conversation after compactions: how much of what matters its model is still shown.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reliability {
    /// The share in percent of what the last compaction was measured by that the model is still shown. Without a
    /// measurement, a rule of thumb from the size of the model, the number of compactions and the accuracy of counts.
    pub score: f64,
    /// The level of the score; `high` if nothing is lost that a person should know of.
    pub level: ReliabilityLevel,
    /// The level as a colored symbol.
    pub icon: String,
    /// The reason for a person: what is lost and what to do, or what is still shown.
    #[serde(default)]
    pub reason: String,
    /// The important items that survived the last compaction, if they were measured.
    pub retention: Option<Retention>,
}

/// The level of a reliability score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ReliabilityLevel {
    /// A score of 85 or more.
    High,
    /// A score of 60 or more.
    Medium,
    /// A score of 40 or more.
    Low,
    /// A score below 40.
    Critical,
}
