//! `chat.*`: chat turns, from a user's message to the final answer of the model.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use super::session::MessageInput;
use crate::content::{
    CountKind, CutRecord, FileWriteInput, NotKept, RecalledRecord, Reliability, TokenLogprob,
    ToolResult, is_zero,
};
use crate::{Seq, SessionId, Timestamp};

/// The params of `chat.send`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatSendParams {
    /// The session.
    pub session_id: SessionId,
    /// The user's message, which is recorded before the model is called. Absent to answer the recorded conversation,
    /// for example after a failed turn.
    pub message: Option<MessageInput>,
    /// The model; default that of the session, else the configured one.
    pub model: Option<String>,
    /// The definitions of the tools that the client executes, in the form that the model server accepts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    /// The sampling options: `temperature`, `seed`, `top_p`, `stop` and so on. They win over those of the session; null
    /// removes one of the session, also its `think`, `format` or `answerLimit`, for this turn.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub options: Map<String, Value>,
    /// The longest answer in tokens, at least 1; default `context.answerLimit`, else the rest of the window.
    pub answer_limit: Option<u32>,
    /// Whether the model thinks before it answers; default as the model does by itself. A change makes the server read
    /// the whole prompt again.
    pub think: Option<Think>,
    /// The format of the answer: `"json"` or a JSON Schema.
    pub format: Option<Value>,
    /// Whether the probabilities of the tokens of the answer are reported, as events `logprobs`. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub logprobs: bool,
    /// With `logprobs`: the number of the most likely tokens to report at each position, at most 20; default none.
    pub top_logprobs: Option<u8>,
    /// Whether the turn continues when the client leaves. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detach: bool,
    /// An idempotency key: a retry with the same key records the message only once.
    pub key: Option<String>,
}

impl ChatSendParams {
    /// Returns params with all defaults, which answer the recorded conversation.
    #[must_use]
    pub fn new(session_id: SessionId) -> Self {
        Self {
            session_id,
            message: None,
            model: None,
            tools: Vec::new(),
            options: Map::new(),
            answer_limit: None,
            think: None,
            format: None,
            logprobs: false,
            top_logprobs: None,
            detach: false,
            key: None,
        }
    }
}

/// Whether, and how much, a model thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Think {
    /// Whether the model thinks.
    Flag(bool),
    /// The level of thinking.
    Level(ThinkLevel),
}

/// The amount of thinking before an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ThinkLevel {
    /// Little thinking.
    Low,
    /// Some thinking.
    Medium,
    /// Much thinking.
    High,
    /// As much thinking as the model can do.
    Max,
}

/// An event of a chat turn. The last one is `done` or `error`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ChatEvent {
    /// The user's message is recorded.
    Accepted {
        /// The record of the message; absent without a message.
        seq: Option<Seq>,
        /// Whether the key was used before, so that nothing was written. Default false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        duplicate: bool,
        /// The model that answers.
        model: String,
    },
    /// The turn entered a phase.
    Phase {
        /// The phase.
        name: ChatPhase,
        /// For `reading`: the tokens of the prompt that the server has to read.
        tokens: Option<u64>,
        /// For `reading`, and for `queued` behind `server`: the expected time in milliseconds, from the speed of this model
        /// so far. For `queued` behind `limit`: the time that the server asks to wait.
        expected_ms: Option<u64>,
        /// For `queued`: the number of calls ahead in the queue of the model.
        ahead: Option<u64>,
        /// For `queued`: what the turn waits for.
        waits_for: Option<WaitsFor>,
    },
    /// The model is shown a part of a record that it has to answer, because the record does not fit. Sent once for each
    /// record, before the model reads it.
    Cut {
        /// The message of the user or the tool result, and the parts of its tokens.
        #[serde(flatten)]
        cut: CutRecord,
    },
    /// Another server of the model is asked, because one failed before it answered. Sent before the prompt is built for it.
    Failover {
        /// The server that failed.
        from: String,
        /// The server that is asked instead.
        to: String,
        /// The stable name of the reason: as in `data.reason` of an error, or `failedBefore`.
        reason: String,
        /// The reason for a person.
        message: String,
    },
    /// A piece of the answer: either text or thinking.
    Delta {
        /// A piece of the text.
        text: Option<String>,
        /// A piece of the thinking.
        thinking: Option<String>,
    },
    /// The probabilities of the last tokens, if they were asked for and the server reports them. They are not recorded.
    Logprobs {
        /// The tokens, in their order.
        tokens: Vec<TokenLogprob>,
    },
    /// The model requests tool calls. The client executes them and calls `chat.submitToolResults`, unless the daemon
    /// does.
    ToolCalls {
        /// The record of the assistant message with the calls.
        seq: Seq,
        /// The requested calls.
        calls: Vec<ChatToolCall>,
        /// The time within which the turn needs the results, in milliseconds.
        timeout_ms: u64,
        /// Who answers the calls; absent for the client.
        by: Option<ToolExecutor>,
    },
    /// A call to the model ended.
    Usage {
        /// The tokens and times of the call.
        usage: ChatUsage,
    },
    /// The answer is recorded. The last event of a successful turn.
    Done {
        /// The record of the answer.
        seq: Seq,
        /// The reason for the end of the answer, as the model server names it: `stop` or `length`.
        finish_reason: String,
        /// The usage of the last call to the model; absent if the model was not called.
        usage: Option<ChatUsage>,
    },
    /// The turn failed or was canceled. The last event. The partial answer, if there is one, is recorded.
    Error {
        /// The code of the error, as in an error reply.
        code: i32,
        /// The message for a person.
        message: String,
        /// The data of the error, as in an error reply. `seq` is the record of the partial answer, if there is one.
        data: Value,
    },
}

/// An event of `chat.follow`. The first one is `running`; the last one is `done` or `error`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[expect(clippy::large_enum_variant, reason = "most are the large one, and each is read once")]
pub enum FollowEvent {
    /// The turn as it is now, which replaces everything that the client knows of it: the first event, and again after a
    /// client was so slow that it missed events. The last `phase` follows if the answer has not begun, and `toolCalls` with
    /// the calls without a result if the turn waits for some.
    Running {
        /// The record of the user's message; absent without a message, and before it is recorded.
        seq: Option<Seq>,
        /// The model that answers.
        model: String,
        /// The start of the turn.
        started_at: Timestamp,
        /// The thinking of the newest answer so far; empty if there is none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        thinking: String,
        /// The text of the newest answer so far; empty if there is none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
        /// The record of the newest answer, if it is recorded as a message already. Then the next `delta` begins another
        /// answer.
        answer_seq: Option<Seq>,
    },
    /// An event of the turn.
    #[serde(untagged)]
    Event(ChatEvent),
}

/// The side that answers tool calls instead of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ToolExecutor {
    /// The daemon: the calls are those of the tools by which a model recalls earlier messages.
    Daemon,
}

/// What a queued turn waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum WaitsFor {
    /// Another chat with the model.
    Chat,
    /// A summary or another call in the background, which gives way.
    Background,
    /// The model server, which still reads a prompt whose call has ended.
    Server,
    /// The model server, which refuses requests for a time, as it says.
    Limit,
}

/// A phase of a chat turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ChatPhase {
    /// The turn waits for other calls to the model, or for the rest of one that has ended.
    Queued,
    /// The context is compacted.
    Compacting,
    /// The server loads the model.
    Loading,
    /// The model reads the prompt.
    Reading,
    /// The model answers.
    Answering,
}

/// A tool call that a model requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatToolCall {
    /// The id of the call, for its result.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments: normally an object, but the model can have written any JSON.
    pub args: Value,
}

/// The tokens and times of one call to a model.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatUsage {
    /// The tokens of the prompt, as the server counted; absent if it does not report them.
    pub prompt_tokens: Option<u64>,
    /// The tokens of the prompt that the server had cached; absent if it does not report them.
    pub cached_tokens: Option<u64>,
    /// The tokens of the answer with its thinking; absent if the server does not report them.
    pub answer_tokens: Option<u64>,
    /// The number of compactions on the active path. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub compression_count: u64,
    /// The reliability of the conversation; absent without a compaction.
    pub reliability: Option<Reliability>,
    /// The tokens of the prompt, as the daemon counted.
    pub context_tokens: u64,
    /// The most tokens that the prompt may have.
    pub prompt_limit: u64,
    /// The accuracy of `contextTokens`.
    #[serialize_always]
    pub count_kind: Option<CountKind>,
    /// The tokens by which the prompt may be longer than `contextTokens`. Default 0, for an exact count.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub margin: u64,
    /// The earlier messages of the session that the user's message brought back into the prompt; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recalled: Vec<Seq>,
    /// The messages of other sessions that the user's message brought back; empty if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recalled_elsewhere: Vec<RecalledRecord>,
    /// The longest answer that the call allowed, in tokens.
    pub answer_limit: Option<u32>,
    /// The limit that cut the answer; absent for an answer that the model ended.
    pub cut_by: Option<AnswerCut>,
    /// The context window of the request, in tokens.
    pub context_size: u32,
    /// The longest window that the model was trained for, in tokens; absent if it is unknown.
    pub trained_context: Option<u32>,
    /// The window that the server uses, in tokens; absent if it does not report it.
    pub effective_context: Option<u32>,
    /// The time to load the model, in milliseconds.
    pub load_ms: Option<u64>,
    /// The time to read the prompt, in milliseconds.
    pub reading_ms: Option<u64>,
    /// The time to generate the answer, in milliseconds.
    pub answering_ms: Option<u64>,
}

/// A limit that cuts answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AnswerCut {
    /// `answerLimit` of the call.
    Call,
    /// The setting `context.answerLimit`.
    Config,
    /// The end of the window.
    Window,
}

/// The params of `chat.submitToolResults`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatSubmitToolResultsParams {
    /// The session.
    pub session_id: SessionId,
    /// The results, or some of them. The turn continues when no result is missing.
    pub results: Vec<ChatToolResult>,
}

/// The result of one tool call of a turn.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChatToolResult {
    /// The id of the call.
    pub id: String,
    /// The result.
    pub result: ToolResult,
    /// The run time, in milliseconds.
    pub duration_ms: Option<u64>,
    /// The files that the call wrote, an empty list if none; absent if the client does not know.
    pub writes: Option<Vec<FileWriteInput>>,
    /// The number of files that the call wrote beyond those in `writes`. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub writes_omitted: u64,
}

/// The result of `chat.submitToolResults`: the tool results are on disk.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatSubmitToolResultsResult {
    /// The records of the tool results, in the order of the params.
    pub seqs: Vec<Seq>,
    /// The ids of the calls whose results are still missing.
    pub missing: Vec<String>,
    /// The files whose content before a call was not kept, so that they cannot be put back; absent if there are none.
    pub not_kept: Option<NotKept>,
}

/// The result of `chat.cancel`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChatCancelResult {
    /// Whether there was a turn to cancel.
    pub canceled: bool,
}
