//! `chat.*`: whole turns with a model, from a user's message to the final answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::session::MessageInput;
use crate::content::{CountKind, Reliability, ToolResult};
use crate::{Seq, SessionId};

/// Begins a turn.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatSendParams {
    /// The session.
    pub session_id: SessionId,
    /// The user's message, which is durable before the model is asked; absent: what is recorded is answered,
    /// for example after a turn that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<MessageInput>,
    /// The model; default: the session's own, else the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Definitions of the tools that the client executes, as the model server takes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    /// How the next token is chosen: `temperature`, `seed`, `top_p`, `stop` and the like.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
    /// The longest answer in tokens, at least 1; default: what the window leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Whether the model thinks first; default: as the model does by itself. Another value than before makes the
    /// server read the whole prompt again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub think: Option<Think>,
    /// `"json"` or a JSON Schema that the answer must follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Value>,
    /// Goes on when this client leaves.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detach: bool,
    /// Makes a retry record the message once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl ChatSendParams {
    /// Answers what is recorded, in all as the session and the model have it.
    #[must_use]
    pub fn new(session_id: SessionId) -> Self {
        Self {
            session_id,
            message: None,
            model: None,
            tools: Vec::new(),
            options: Map::new(),
            max_tokens: None,
            think: None,
            format: None,
            detach: false,
            key: None,
        }
    }
}

/// Whether a model thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Think {
    /// At all.
    Flag(bool),
    /// How much.
    Level(ThinkLevel),
}

/// How much a model thinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ThinkLevel {
    /// A little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
    /// As much as it can.
    Max,
}

/// What happens in a turn, as it happens; `done` or `error` comes last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ChatEvent {
    /// The message is durable.
    Accepted {
        /// Its record; absent where no message was given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<Seq>,
        /// True when the `key` was known and nothing was written.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        duplicate: bool,
        /// The model that answers.
        model: String,
    },
    /// The turn is at another step.
    Phase {
        /// Which one.
        name: ChatPhase,
        /// For `reading`: tokens of the prompt that the server has to read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokens: Option<u64>,
        /// For `reading`: how long that takes, by what this model needed before, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expected_ms: Option<u64>,
        /// For `queued`: how many go before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ahead: Option<u64>,
    },
    /// A piece of the answer: exactly one of the two.
    Delta {
        /// Text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// Thinking.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        thinking: Option<String>,
    },
    /// The model wants tools called; `chat.submitToolResults` answers.
    ToolCalls {
        /// The recorded message that calls them.
        seq: Seq,
        /// The calls, whole.
        calls: Vec<ChatToolCall>,
        /// How long the results are waited for, in milliseconds.
        timeout_ms: u64,
    },
    /// What one call to the model cost.
    Usage {
        /// The numbers.
        usage: ChatUsage,
    },
    /// The answer is recorded.
    Done {
        /// Its record.
        seq: Seq,
        /// Why it ended, in the model server's word: `stop`, `length`.
        finish_reason: String,
        /// What the last call to the model cost; absent where nothing was asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<ChatUsage>,
    },
    /// The turn failed or was canceled. What was answered until then is recorded and marked.
    Error {
        /// As in an error reply.
        code: i32,
        /// For a person.
        message: String,
        /// As in an error reply; `seq` is the record of the partial answer, where there is one.
        data: Value,
    },
}

/// A step of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ChatPhase {
    /// Others talk to the model.
    Queued,
    /// The context is made smaller.
    Compacting,
    /// The server loads the model.
    Loading,
    /// The model reads the prompt.
    Reading,
    /// The model answers.
    Answering,
}

/// A tool that a model wants called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatToolCall {
    /// Links the result to the call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments: an object, or whatever the model made of it.
    pub args: Value,
}

/// What one call to a model cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatUsage {
    /// Tokens of the prompt, as the server counted; absent where it did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Of those, tokens that it still had from before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer, thinking included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_tokens: Option<u64>,
    /// Compactions on the active path.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub compression_count: u64,
    /// How far the conversation can be trusted, once it was compacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reliability: Option<Reliability>,
    /// Tokens of the context that was sent, as the daemon counted.
    pub context_tokens: u64,
    /// The most that may be sent.
    pub prompt_limit: u64,
    /// How the context was counted.
    pub count_kind: Option<CountKind>,
    /// The window that was asked for, in tokens.
    pub requested_context: u32,
    /// The longest window that the model was trained for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained_context: Option<u32>,
    /// The window that the server really uses, where it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_context: Option<u32>,
    /// Loading the model, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_ms: Option<u64>,
    /// Reading the prompt, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reading_ms: Option<u64>,
    /// Answering, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answering_ms: Option<u64>,
}

/// Results of tools that a turn waits for.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatSubmitToolResultsParams {
    /// The session.
    pub session_id: SessionId,
    /// One or more of the results; the turn goes on when none is missing.
    pub results: Vec<ChatToolResult>,
}

/// The result of one tool call.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatToolResult {
    /// The call.
    pub id: String,
    /// What came out.
    pub result: ToolResult,
    /// How long it ran, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

/// Durable: the results are synced to disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatSubmitToolResultsResult {
    /// The records of the results, in the order they were given.
    pub seqs: Vec<Seq>,
    /// Calls whose results are still missing.
    pub missing: Vec<String>,
}

/// What became of a turn that was to be canceled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatCancelResult {
    /// False when no turn was going on.
    pub canceled: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}
