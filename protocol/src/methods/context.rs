//! `context.*`: building, inspecting and compacting contexts; context entries and pins.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::content::{
    BuiltContext, Checkpoint, CompactMode, CompactStrategy, CompactionMethod, ContextEntry,
    ContextScope, CountKind, RecallHit, RecallScope, RecalledRecord, RecordKind, Reliability,
    Retention, Role, WindowLimits, named_enum,
};
use crate::{CheckpointId, Seq, SessionId, Timestamp};

/// The params of `context.build`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextBuildParams {
    /// The session.
    pub session_id: SessionId,
    /// The context window in tokens, at least 2048; default that of the session, else the configured one, else that of
    /// the Modelfile, else 8192. At most the window that the model was trained for is used.
    pub context_size: Option<u32>,
    /// The model; default that of the session, else the configured one.
    pub model: Option<String>,
    /// The name of a strategy; default the first one that fits.
    pub strategy: Option<String>,
    /// The tool definitions that will be sent too, in the form that the model server accepts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    /// A user message that will follow and is not recorded yet.
    pub pending: Option<String>,
    /// Whether the build may record a new plan; default `never`.
    #[serde(default)]
    pub compact: CompactMode,
    /// Whether to add earlier messages that the pending message, or without one the newest message of the user, asks
    /// for. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recall: bool,
}

impl ContextBuildParams {
    /// Returns params with all defaults.
    pub const fn new(session_id: SessionId) -> Self {
        Self {
            session_id,
            context_size: None,
            model: None,
            strategy: None,
            tools: Vec::new(),
            pending: None,
            compact: CompactMode::Never,
            recall: false,
        }
    }
}

/// The params of `context.getBuild`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextGetBuildParams {
    /// The session.
    pub session_id: SessionId,
    /// The id of one of the last 16 builds of the session, or of its last inspection.
    pub build_id: String,
    /// Whether to return the build as `context.inspect` does, with all items. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inspect: bool,
    /// The `nextCursor` of the part before; absent for the first part.
    pub cursor: Option<String>,
}

named_enum! {
    /// The messages that `context.recall` does not return.
    pub enum RecallExclusion {
        /// Leaves out the messages that the context of the session has verbatim.
        Shown = "shown",
    }
}

/// The params of `context.recall`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextRecallParams {
    /// The question, in plain words. One without any word to search for finds nothing.
    pub query: String,
    /// The session that is asked, or that the scope is relative to.
    pub session_id: Option<SessionId>,
    /// The project that is asked; not together with `sessionId`.
    pub project_path: Option<String>,
    /// The sessions that are asked; default the narrowest one that is named: `session`, `project`, else `all`.
    pub scope: Option<RecallScope>,
    /// Restricts the search to messages of this time or later.
    pub since: Option<Timestamp>,
    /// Restricts the search to messages before this time.
    pub until: Option<Timestamp>,
    /// The maximum number of messages; default 8, at most 100.
    pub limit: Option<u32>,
    /// The maximum number of tokens that all excerpts may have together; default no limit.
    pub token_limit: Option<u64>,
    /// Whether only sessions count whose texts any model server may get, for a client that shows them to a model of its own.
    /// Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unrestricted: bool,
    /// The messages that are not returned; default none. Needs `sessionId`.
    pub exclude: Option<RecallExclusion>,
}

/// The result of `context.recall`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextRecallResult {
    /// The messages, the best first.
    pub data: Vec<RecallHit>,
    /// The tokens of all excerpts.
    pub tokens: u64,
    /// The number of sessions whose newest records are not indexed yet; absent if there are none.
    pub behind: Option<u64>,
}

/// The params of `context.compact`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextCompactParams {
    /// The session.
    pub session_id: SessionId,
    /// Whether to return the result without compacting. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The strategy; default the configured one.
    pub strategy: Option<CompactStrategy>,
    /// The user's instructions for the summary, at most 2000 characters.
    pub instructions: Option<String>,
    /// The tool definitions that later contexts are sent with; default those of the last build.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
}

impl ContextCompactParams {
    /// Returns params with all defaults.
    pub const fn new(session_id: SessionId) -> Self {
        Self { session_id, dry_run: false, strategy: None, instructions: None, tools: Vec::new() }
    }
}

/// The result of `context.compact`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextCompactResult {
    /// Whether the session was compacted. Always false for a dry run.
    pub compacted: bool,
    /// The reason if it was not: `dryRun`, `nothing` (there is nothing to compact), or `unchanged` (the context would
    /// not have become shorter).
    pub reason: Option<String>,
    /// The record of the compaction, if it was recorded.
    pub seq: Option<Seq>,
    /// The method; absent if the session was not compacted and this is no dry run.
    pub method: Option<CompactionMethod>,
    /// The strategy that was used.
    pub strategy: CompactStrategy,
    /// The first record that a new summary stands for, if there is one.
    pub from: Option<Seq>,
    /// The last record that a new summary stands for, if there is one.
    pub to: Option<Seq>,
    /// The number of messages from `from` to `to`.
    pub summarized_message_count: u64,
    /// The number of messages in the context after the compaction.
    pub kept_message_count: u64,
    /// The tokens of the context before.
    pub tokens_before: u64,
    /// The tokens of the context after; an estimate for a dry run.
    pub tokens_after: u64,
    /// The difference between `tokensBefore` and `tokensAfter`.
    pub freed_tokens: u64,
    /// The model that wrote the summary, if a model did.
    pub model: Option<String>,
    /// The checkpoints in force, the oldest first.
    pub checkpoints: Vec<Checkpoint>,
    /// The numbers of important items that the new context still names.
    pub retention: Option<Retention>,
    /// The reliability of the conversation; absent without a compaction.
    pub reliability: Option<Reliability>,
}

/// The result of `context.checkpoints`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextCheckpointsResult {
    /// The checkpoints in force on the active path, the oldest first.
    pub checkpoints: Vec<Checkpoint>,
    /// The tokens of all checkpoints.
    pub tokens: u64,
    /// The number of compactions on the active path.
    pub compression_count: u64,
    /// The tier of the session's window, from 1 to 5.
    pub tier: u8,
    /// The name of the tier: `rollover`, `smart`, `progressive`, `structured` or `ultra`.
    pub tier_name: String,
    /// The most checkpoints in this tier; beyond it the oldest ones are merged.
    pub checkpoint_limit: u64,
    /// The reliability of the conversation; absent without a compaction.
    pub reliability: Option<Reliability>,
}

/// The params of `context.inspect`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextInspectParams {
    /// The session.
    pub session_id: SessionId,
    /// The id of one of the last 16 builds of the session; default a new build, which writes nothing.
    pub build_id: Option<String>,
    /// The model of a new build; default that of the session, else the configured one.
    pub model: Option<String>,
    /// The tool definitions of a new build; default those of the last build.
    pub tools: Option<Vec<Value>>,
}

/// The result of `context.inspect`: a context, with everything in it and everything left out.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextInspectResult {
    /// The context, as `context.build` returns it.
    pub build: BuiltContext,
    /// The tokens of each message, in order. With those of the tool definitions they add up to `contextTokens`.
    pub message_tokens: Vec<u32>,
    /// The items in the context, in order, then those that are left out.
    pub items: Vec<ContextItem>,
    /// The epoch in force; absent if the context has all records verbatim.
    pub epoch: Option<EpochSummary>,
    /// Whether the system prompt, the configuration or the tokenizer changed since the build `buildId`, so that this
    /// context differs from it. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
}

/// An item that a context contains or leaves out.
///
/// **Shape**: `{"what":"record","seq":12,"kind":"message","role":"user","form":"whole","tokens":40,"message":3}`
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextItem {
    /// The sort of the item: `system`, `tools`, `checkpoint`, `facts`, `files`, `state`, `leftOut` (the text that names omitted
    /// records), `pending`, `record`, or `goal` and `contextEntry` (the parts of them that the system message does not show;
    /// `build.omitted` counts them).
    pub what: String,
    /// For a record its number; for a run of records and for a checkpoint the number of the first.
    pub seq: Option<Seq>,
    /// For a run of records and for a checkpoint: the number of the last.
    pub through_seq: Option<Seq>,
    /// For a checkpoint: its id.
    pub checkpoint_id: Option<CheckpointId>,
    /// For a record in the context: its kind.
    pub kind: Option<RecordKind>,
    /// For a message in the context: its author.
    pub role: Option<Role>,
    /// The form of the item: `whole`, `cut`, `stub` (one line in place of a tool result), `quoted`, `pinned`, or
    /// `out` if it is left out.
    pub form: String,
    /// For a `delta` with recalled messages: these messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recalled: Vec<RecalledRecord>,
    /// For the result of a call that read a file: whether something else changed or removed the file since. It is not
    /// examined for a build that is read in parts. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
    /// The reasons why the item is not whole or is left out: those of `omitted`, separated by commas.
    pub reason: Option<String>,
    /// The tokens of the item, or those that are saved if it is left out. Tokens around the text of a record count
    /// only in `messageTokens`.
    pub tokens: u64,
    /// The position of its message in `build.messages`, from 0.
    pub message: Option<u32>,
    /// For the block of facts: the facts in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub facts: Vec<FactRef>,
}

/// A fact in a context.
#[skip_serializing_none]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FactRef {
    /// The record that states it.
    pub seq: Seq,
    /// The number of the fact among those of its record, from 0.
    pub index: u32,
    /// The record whose fact this one replaced.
    pub supersedes: Option<Seq>,
}

/// The epoch in force: a frozen beginning of the context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EpochSummary {
    /// The record that opened the epoch.
    pub seq: Seq,
    /// The strategy that planned the head.
    pub strategy: String,
    /// The cause, for example `overflow` or `compaction`.
    pub cause: String,
    /// The tokens of the head as planned.
    pub head_tokens: u64,
}

/// The params of `context.status`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextStatusParams {
    /// The session.
    pub session_id: SessionId,
    /// The context window in tokens, at least 2048; default that of the session, else the configured one, else that of
    /// the Modelfile, else 8192. At most the window that the model was trained for is used.
    pub context_size: Option<u32>,
}

/// The result of `context.status`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextStatusResult {
    /// The model that the tokens are counted for, if one is known.
    pub model: Option<String>,
    /// The context window to request from the model server, in tokens.
    pub context_size: u32,
    /// The reasons for the size of the window.
    #[serde(default)]
    pub window: WindowLimits,
    /// The most tokens that a prompt may have.
    pub prompt_limit: u64,
    /// The tokens of the next prompt.
    pub context_tokens: u64,
    /// The most tokens that the conversation may have.
    pub available_tokens: u64,
    /// The tokens of the conversation.
    pub conversation_tokens: u64,
    /// The tokens of the conversation from which on it is compacted automatically.
    pub trigger_tokens: u64,
    /// `contextTokens` in percent of `promptLimit`.
    pub used_percent: f64,
    /// The parts of the window, in the order of a prompt. Their tokens add up to the whole window.
    pub parts: Vec<ContextPart>,
    /// The accuracy of the token counts.
    pub count_kind: CountKind,
    /// The strategy in force.
    pub strategy: String,
    /// The epoch in force; absent if the context has all records verbatim.
    pub epoch: Option<EpochSummary>,
    /// The number of compactions on the active path.
    pub compression_count: u64,
    /// The number of checkpoints in force.
    pub checkpoint_count: u64,
    /// The reliability of the conversation.
    pub reliability: Option<Reliability>,
}

/// A part of a context window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextPart {
    /// The name of the part: `system`, `entries`, `goals`, `tools`, `checkpoints`, `user`, `recent` (the rest of the
    /// conversation), `free` or `reserve` (for the answer).
    pub name: String,
    /// The tokens of the part.
    pub tokens: u64,
}

/// The params of `context.addEntry`. They name a session, a project, or the scope `global`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextAddEntryParams {
    /// The session that the entry applies to.
    pub session_id: Option<SessionId>,
    /// The directory of the project that the entry applies to; must exist.
    pub project_path: Option<String>,
    /// The scope: `global` for an entry of all sessions; otherwise optional, as it follows from the other params.
    pub scope: Option<ContextScope>,
    /// The key, 1 to 256 bytes on one line. An entry with the same key and scope is replaced.
    pub key: String,
    /// The text; must not be empty.
    pub content: String,
    /// The position among the entries: lower comes first. Default 100.
    pub priority: Option<i32>,
    /// The origin of the entry; default `user`.
    pub source: Option<ContextSource>,
}

named_enum! {
    /// The origin of a context entry.
    pub enum ContextSource {
        /// A program that runs beside the conversation.
        Hook = "hook",
        /// A part of a client.
        Extension = "extension",
        /// A person.
        User = "user",
    }
}

/// The result of `context.addEntry`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextAddEntryResult {
    /// The entry as it is stored.
    pub entry: ContextEntry,
    /// Whether the call changed anything: false if the same entry was there already.
    pub changed: bool,
    /// The tokens of all entries in force in this scope.
    pub tokens: u64,
    /// The most tokens that these entries may have.
    pub token_limit: u64,
}

/// The params of `context.removeEntry`. They name a session, a project, or the scope `global`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextRemoveEntryParams {
    /// The session that the entry applies to.
    pub session_id: Option<SessionId>,
    /// The directory of the project that the entry applies to; must exist.
    pub project_path: Option<String>,
    /// The scope: `global` for an entry of all sessions; otherwise optional, as it follows from the other params.
    pub scope: Option<ContextScope>,
    /// The key of the entry.
    pub key: String,
}

/// The result of `context.removeEntry`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextRemoveEntryResult {
    /// Whether there was such an entry.
    pub removed: bool,
}

/// The params of `context.listEntries`.
///
/// With a session: its entries in force, including those of its project and global ones. With a project: its entries
/// and global ones. Without both: global ones.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextListEntriesParams {
    /// The session.
    pub session_id: Option<SessionId>,
    /// The directory of the project. Not together with `sessionId`.
    pub project_path: Option<String>,
}

/// The result of `context.listEntries`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextListEntriesResult {
    /// The entries in the order in which they are sent: by priority, lower first, then by key.
    pub data: Vec<ContextEntry>,
    /// The text that the entries add to the system message; empty without entries.
    pub addition: String,
    /// The tokens of `addition`.
    pub tokens: u64,
    /// The most tokens that these entries may have.
    pub token_limit: u64,
}

/// The params of `context.facts`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextFactsParams {
    /// The session.
    pub session_id: SessionId,
    /// Whether to list facts that were suppressed, too. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_forgotten: bool,
    /// The most facts of the page, 1 to 500; default 100. A page also ends at 6 MiB.
    pub limit: Option<u32>,
    /// The `nextCursor` of the page before; absent for the first page.
    pub cursor: Option<String>,
}

impl ContextFactsParams {
    /// Returns params with all defaults.
    #[must_use]
    pub const fn new(session_id: SessionId) -> Self {
        Self { session_id, include_forgotten: false, limit: None, cursor: None }
    }
}

/// The result of `context.facts`: a page of facts.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextFactsResult {
    /// The facts, the newest first.
    pub data: Vec<ContextFact>,
    /// The number of facts on all pages.
    pub total: u64,
    /// The cursor of the next page; absent at the end.
    pub next_cursor: Option<String>,
}

named_enum! {
    /// The origin of a fact.
    pub enum FactOrigin {
        /// A message of the user.
        Message = "message",
        /// A context entry of the session that the user set.
        Entry = "entry",
    }
}

/// A fact: something that the user stated, and that nothing said later replaced.
///
/// **Shape**: `{"seq":12,"index":0,"at":"...","text":"The staging port is 48213.","values":["48213"],"score":1.5,"source":"message"}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextFact {
    /// The record that states it.
    pub seq: Seq,
    /// The number of the fact among those of its record, from 0.
    pub index: u32,
    /// The time of the record.
    pub at: Timestamp,
    /// The sentence that states it.
    pub text: String,
    /// The values in it: numbers, paths, addresses, names and the like.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// Whether it is a rule: it demands or forbids something. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rule: bool,
    /// The logarithm of the odds that the sentence lasts. Facts compete by it for their share of a prompt.
    pub score: f64,
    /// The origin.
    pub source: FactOrigin,
    /// The key of the context entry that states it.
    pub entry_key: Option<String>,
    /// Whether its record is pinned. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// The number of times that the user said the same again. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u32,
    /// The record whose fact this one replaced.
    pub supersedes: Option<Seq>,
    /// Whether it was suppressed by `context.forgetFact`. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forgotten: bool,
    /// Whether the epoch in force shows it in its block of facts. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shown: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// The params of `context.forgetFact`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextForgetFactParams {
    /// The session.
    pub session_id: SessionId,
    /// The record that states the fact.
    pub seq: Seq,
    /// The number of the fact among those of its record, from 0; default all of them.
    pub index: Option<u32>,
    /// Whether to undo the suppression. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restore: bool,
    /// An idempotency key: a retry with the same key changes nothing again.
    pub key: Option<String>,
}

/// The result of `context.forgetFact`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextForgetFactResult {
    /// The facts of the record after the call.
    pub data: Vec<ContextFact>,
    /// Whether the call changed anything.
    pub changed: bool,
    /// Whether an earlier call with this key had written the change. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
}

/// The params of `context.pin` and `context.unpin`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextPinParams {
    /// The session.
    pub session_id: SessionId,
    /// The record. Only messages and tool calls on the active path can be pinned.
    pub seq: Seq,
}

/// The result of `context.pin` and `context.unpin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextPinResult {
    /// All pinned records, in the order of pinning.
    pub data: Vec<PinnedRecord>,
    /// Whether the call changed anything.
    pub changed: bool,
    /// The tokens of all pinned records.
    pub tokens: u64,
    /// The most tokens that pinned records may have.
    pub token_limit: u64,
}

/// A pinned record, which every later context contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PinnedRecord {
    /// The record.
    pub seq: Seq,
    /// The tokens of the record.
    pub tokens: u64,
}
