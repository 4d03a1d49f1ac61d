//! `context.status` and `context.inspect`: how full a context is, and why each thing is in it or not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::compaction::Reliability;
use super::context::{ContextBuildResult, CountKind};
use crate::content::{RecordKind, Role};
use crate::{CheckpointId, Seq, SessionId};

/// Which context: the next one of a session, or one that was built.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextInspectParams {
    /// The session.
    pub session_id: SessionId,
    /// One of the last builds of the session; default: what a model would be sent now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
    /// The model, for a context that was not built; default: the session's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tool definitions, for a context that was not built; default: those of the last build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Value>>,
}

/// A context with the reason for everything in it and for everything left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextInspectResult {
    /// The context: the exact messages, and how the window is divided.
    pub build: ContextBuildResult,
    /// Tokens of each message, in order; with the tool definitions they add up to `tokensUsed`.
    pub message_tokens: Vec<u32>,
    /// Everything that is in it or was left out: first what stands before the conversation, then by place.
    pub items: Vec<ContextItem>,
    /// The head that precedes the newest records; absent where everything is verbatim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<EpochSummary>,
    /// True when something outside the log (prompt, configuration, tokenizer) changed since the build that was asked
    /// for, so that this is what it would be now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
}

/// One thing that a context holds or leaves out.
///
/// **Shape**: `{"what":"record","seq":12,"kind":"message","role":"user","form":"whole","tokens":40,"message":3}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextItem {
    /// What it is: `system`, `tools`, `checkpoint`, `files`, `state`, `leftOut` (the block that says what is not
    /// there), `pending`, or `record`.
    pub what: String,
    /// For a record: its number; for a run of records, and for a checkpoint, that of the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// The last record of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through_seq: Option<Seq>,
    /// For a checkpoint: its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_id: Option<CheckpointId>,
    /// For a record: its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<RecordKind>,
    /// For a message: who said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// How it is there: `whole`, `cut`, `stub`, `quoted`, `pinned`; `out` where it is not.
    pub form: String,
    /// Why it is not, or not whole; the words of `omitted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Tokens that it takes, or that are saved where it is out. A record by itself; what stands around it in a
    /// message is in `messageTokens`.
    pub tokens: u64,
    /// The message that it is in, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<u32>,
}

/// The frozen head of a context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EpochSummary {
    /// The record that froze it.
    pub seq: Seq,
    /// The strategy that planned it.
    pub strategy: String,
    /// Why it was opened.
    pub cause: String,
    /// Its tokens as planned.
    pub head_tokens: u64,
}

/// Which session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextStatusParams {
    /// The session.
    pub session_id: SessionId,
    /// The context window in tokens; default: the session's own, else the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_size: Option<u32>,
}

/// How full the context of a session is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextStatusResult {
    /// The model that counts are for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The whole window, in tokens.
    pub num_ctx: u32,
    /// The most that a prompt may have.
    pub prompt_limit: u64,
    /// What the next one has.
    pub tokens_used: u64,
    /// The most that the conversation may have.
    pub available_tokens: u64,
    /// What it has.
    pub conversation_tokens: u64,
    /// From so many on it is compacted.
    pub trigger_tokens: u64,
    /// `tokensUsed` of `promptLimit`, in percent.
    pub used_percent: f64,
    /// The window by part, in the order in which they stand in a prompt; together they are the whole window.
    pub parts: Vec<ContextPart>,
    /// How the tokens were counted.
    pub count_kind: CountKind,
    /// The strategy in force.
    pub strategy: String,
    /// The head in force; absent where everything is verbatim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<EpochSummary>,
    /// Compactions on the active path.
    pub compression_count: u64,
    /// Checkpoints in force.
    pub checkpoint_count: u64,
    /// How far the conversation can be trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reliability: Option<Reliability>,
}

/// A part of a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextPart {
    /// `system`, `entries`, `goals`, `tools`, `checkpoints`, `user`, `recent` (answers, tool results and what stands
    /// between them), `free`, `reserve` (kept for the answer).
    pub name: String,
    /// Its tokens.
    pub tokens: u64,
}
