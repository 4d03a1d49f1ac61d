//! `context.*`: what a model is sent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::{
    BuiltContext, Checkpoint, CompactMode, CompactStrategy, CompactionMethod, ContextEntry,
    ContextScope, CountKind, RecordKind, Reliability, Retention, Role,
};
use crate::{CheckpointId, Seq, SessionId};

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

/// Which session to compact, and how.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextCompactParams {
    /// The session.
    pub session_id: SessionId,
    /// Tells what would be done, and does nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// How to make room; default: the configured way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<CompactStrategy>,
    /// What the summary should keep above all, in the user's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Tool definitions that will be sent along with the conversation, as the model server takes them; default: those
    /// of the last build.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
}

impl ContextCompactParams {
    /// A compaction in the configured way.
    pub const fn new(session_id: SessionId) -> Self {
        Self { session_id, dry_run: false, strategy: None, instructions: None, tools: Vec::new() }
    }
}

/// What a compaction did, or would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextCompactResult {
    /// Whether the context is a shorter one now. Always false for a dry run.
    pub compacted: bool,
    /// Why not, where it is not: `dryRun`, `nothing` to summarize, `recent` compaction, or `unchanged` because it
    /// would not have become shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The record of the compaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// How it was done, or would be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<CompactionMethod>,
    /// What was asked for.
    pub strategy: CompactStrategy,
    /// The first record that a summary now stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Seq>,
    /// The last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Seq>,
    /// Messages between them.
    pub summarized_message_count: u64,
    /// Messages that stay as they are; for a dry run and after a compaction.
    pub kept_message_count: u64,
    /// Tokens of the context before.
    pub tokens_before: u64,
    /// Tokens of the context after; for a dry run, as far as it can be told before.
    pub tokens_after: u64,
    /// Tokens that are free now.
    pub freed_tokens: u64,
    /// The model that wrote the summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The checkpoints in force, oldest first.
    pub checkpoints: Vec<Checkpoint>,
    /// How much of what matters the new context still names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// How far the conversation can be trusted.
    pub reliability: Reliability,
}

/// The checkpoints of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextCheckpointsResult {
    /// Those in force on the active path, oldest first.
    pub checkpoints: Vec<Checkpoint>,
    /// Tokens of all of them.
    pub tokens: u64,
    /// Compactions on the active path.
    pub compression_count: u64,
    /// The class of the session's window, from 1 to 5.
    pub tier: u8,
    /// Its name: `rollover`, `smart`, `progressive`, `structured` or `ultra`.
    pub tier_name: String,
    /// Most checkpoints that a window of this class keeps; then the oldest are merged.
    pub limit: u64,
    /// How far the conversation can be trusted.
    pub reliability: Reliability,
}

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
    pub build: BuiltContext,
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

/// A context entry to set, and where it holds.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextAddEntryParams {
    /// The session that it holds for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The directory of the project that it holds for, absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
    /// `global` where it holds for every session; otherwise it follows from what is named and can be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ContextScope>,
    /// Names the entry; a second one of the same key and scope replaces the first. 1 to 256 bytes on one line.
    pub key: String,
    /// The text.
    pub content: String,
    /// Lower comes first; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Who contributes it: `hook`, `extension` or `user`, the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ContextSource>,
}

/// Who contributes a context entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ContextSource {
    /// A program that runs beside the conversation.
    Hook,
    /// A part of a client.
    Extension,
    /// A person.
    User,
}

impl ContextSource {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hook => "hook",
            Self::Extension => "extension",
            Self::User => "user",
        }
    }
}

/// What became of a context entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextAddEntryResult {
    /// The entry as it is kept.
    pub entry: ContextEntry,
    /// False where the same was there already.
    pub changed: bool,
    /// Tokens of all entries that hold where this one does.
    pub tokens: u64,
    /// The most that they may have.
    pub limit: u64,
}

/// Which context entry goes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextRemoveEntryParams {
    /// The session that it holds for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The directory of the project that it holds for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
    /// `global` where it holds for every session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<ContextScope>,
    /// Its key.
    pub key: String,
}

/// Whether there was such an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextRemoveEntryResult {
    /// False where there was none.
    pub removed: bool,
}

/// Whose context entries are listed: those of a session, with those of its project and the global ones; those of a
/// project, with the global ones; else the global ones.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextListEntriesParams {
    /// The session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The directory of the project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
}

/// The context entries in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextListEntriesResult {
    /// In the order in which they are sent: lower priority first, then by key.
    pub data: Vec<ContextEntry>,
    /// What they add to the system message; empty where there are none.
    pub addition: String,
    /// Tokens of the addition.
    pub tokens: u64,
    /// The most that it may have.
    pub limit: u64,
}

/// Which record is pinned or released.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextPinParams {
    /// The session.
    pub session_id: SessionId,
    /// The record: a message or a tool call of the active path.
    pub seq: Seq,
}

/// What is pinned after the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextPinResult {
    /// The pinned records, in the order of pinning.
    pub data: Vec<PinnedRecord>,
    /// False where nothing was to be done.
    pub changed: bool,
    /// Tokens of all of them.
    pub tokens: u64,
    /// The most that they may have.
    pub limit: u64,
}

/// A record that every later context quotes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PinnedRecord {
    /// The record.
    pub seq: Seq,
    /// Its tokens.
    pub tokens: u64,
}
