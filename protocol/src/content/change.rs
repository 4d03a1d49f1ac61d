//! The bodies of small records: settings, mode, leaf, labels, loops, context entries, pins and data of clients.
//!
//! A [`ContextEntry`] and a [`LoopCall`] are not bodies. They are parts of results, derived from these records.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::{Seq, SnapshotId, Timestamp};

/// Data of clients that belongs to a session: any JSON, by name.
pub type Meta = BTreeMap<String, Value>;

/// Changed fields of a session; an absent field stays as it is.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetaPatch {
    /// The title; empty removes it.
    pub title: Option<String>,
    /// The description; empty removes it.
    pub description: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// The provider of the model.
    pub provider: Option<String>,
    /// The system prompt; empty removes it.
    pub system_prompt: Option<String>,
    /// The context window to request, in tokens.
    pub context_size: Option<u32>,
    /// The time for which the model server keeps the model in memory after a request of the session, in seconds.
    pub keep_alive_seconds: Option<u32>,
    /// The model servers that may get texts of the session; empty for all.
    pub allowed_servers: Option<Vec<String>>,
    /// The options of each answer to merge in; null removes one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: Meta,
    /// The directory of the project, as a canonical path.
    pub project_path: Option<String>,
    /// Whether the session is exempt from retention and `session.cleanup`.
    pub pinned: Option<bool>,
    /// Whether the session is archived: lists omit it unless asked.
    pub archived: Option<bool>,
    /// Data of clients to merge in; null removes a name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: Meta,
}

/// A change of the mode.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModeChange {
    /// The mode before; absent if there was none.
    pub from: Option<String>,
    /// The new mode.
    pub to: String,
    /// The time of the change.
    pub timestamp: Timestamp,
    /// The cause of the change, for example `manual` or `auto`.
    pub trigger: String,
    /// The confidence of an automatic change, from 0 to 1.
    pub confidence: Option<f64>,
}

/// A move of the active leaf to another record.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeafMove {
    /// The new leaf; null for the position before the first record.
    #[serialize_always]
    pub to: Option<Seq>,
    /// The cause of the move: one of the constants of this type, or that of a later version.
    pub cause: String,
}

impl LeafMove {
    /// The conversation continues after another record.
    pub const BRANCH: &str = "branch";
    /// An operation is undone.
    pub const UNDO: &str = "undo";
    /// An operation is redone.
    pub const REDO: &str = "redo";
    /// The session returns to a snapshot.
    pub const RESTORE: &str = "restore";
    /// An answer is given again.
    pub const RETRY: &str = "retry";
    /// A fork begins where the copied records end.
    pub const FORK: &str = "fork";
    /// An import has recorded all branches.
    pub const IMPORT: &str = "import";
}

/// A label of a record.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Label {
    /// The labeled record.
    pub target: Seq,
    /// The label; absent removes it.
    pub name: Option<String>,
}

/// A mark of the state before a change of the context.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotMark {
    /// The id of the snapshot.
    pub snapshot_id: SnapshotId,
    /// The active leaf at that time; null before the first record.
    #[serialize_always]
    pub leaf: Option<Seq>,
    /// The change that follows: `compaction`, `epoch`, `modeChange`, `branch`, `undo`, `redo`, `retry` or `restore`; `manual`
    /// for a request of a client, or `threshold` for a full context.
    pub reason: String,
    /// For `restore`: the snapshot to which the session returns.
    pub restores: Option<SnapshotId>,
    /// The line for people that the client gave.
    pub summary: Option<String>,
    /// Set if the client asked for a pinned snapshot. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
}

impl SnapshotMark {
    /// Returns a mark of the state with this leaf.
    #[must_use]
    pub fn new(snapshot_id: SnapshotId, leaf: Option<Seq>, reason: &str) -> Self {
        Self {
            snapshot_id,
            leaf,
            reason: reason.to_owned(),
            restores: None,
            summary: None,
            pinned: false,
        }
    }

    /// The reason of a snapshot that a client requested, unless it names another one.
    pub const MANUAL: &str = "manual";
    /// The reason of a snapshot that was taken because the context became full.
    pub const THRESHOLD: &str = "threshold";
    /// The reason of a snapshot that was taken before an import added records to the session.
    pub const IMPORT: &str = "import";
    /// The reasons of the daemon, which clients do not give.
    pub const AUTOMATIC: [&str; 10] = [
        Self::THRESHOLD,
        "compaction",
        "epoch",
        "modeChange",
        "branch",
        "undo",
        "redo",
        "retry",
        "restore",
        Self::IMPORT,
    ];

    /// Returns whether a client requested the snapshot with this reason.
    #[must_use]
    pub fn is_requested(reason: &str) -> bool {
        !Self::AUTOMATIC.contains(&reason)
    }
}

/// A detected loop, or a reset of the loop detection.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoopMark {
    /// The loop; absent for a reset.
    pub pattern: Option<LoopPattern>,
}

/// A loop: the repetition that was detected in a session.
///
/// **Shape**: `{"kind":"call","tools":["read_file"],"count":3}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoopPattern {
    /// The kind of repetition.
    pub kind: LoopKind,
    /// The tool, or the tools of a cycle in their order; empty if the loop involves no tool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// The number of equal calls, rounds of a cycle, nearly equal outputs, or model calls since the last user message.
    pub count: u32,
}

impl fmt::Display for LoopPattern {
    /// Writes a clause such as `read was called 3 times with equal arguments`. A model chose the names of the tools,
    /// so the text must be sanitized before it is printed to a terminal.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, tools, count } = self;
        let tools = tools.join(", ");
        match kind {
            LoopKind::Call => write!(out, "{tools} was called {count} times with equal arguments"),
            LoopKind::Cycle => write!(out, "{tools} were called in turn {count} times"),
            LoopKind::Output if tools.is_empty() => {
                write!(out, "{count} answers in a row are nearly equal")
            }
            LoopKind::Output => {
                write!(out, "{count} results in a row are nearly equal, the last of {tools}")
            }
            LoopKind::Turns => write!(out, "{count} model calls since the last user message"),
        }
    }
}

/// The kind of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LoopKind {
    /// A tool was called with equal arguments several times in a row.
    Call,
    /// Two to four tool calls were repeated in turn.
    Cycle,
    /// Consecutive tool results, or consecutive answers, were nearly equal.
    Output,
    /// The model was called too often since the last user message.
    Turns,
}

/// A tool call, as the loop detection compares it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoopCall {
    /// The record with the result of the call, or the one that requested it if no result was recorded.
    pub seq: Seq,
    /// The name of the tool.
    pub tool: String,
    /// A digest of the tool and its arguments: equal for equal calls.
    pub call: String,
    /// A digest of the result without numbers and white space; absent if no result was recorded.
    pub output: Option<String>,
}

/// The end of a session; a later record opens it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Close {
    /// The reason.
    pub reason: CloseReason,
}

/// The reason of a `close` record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CloseReason {
    /// A client closed the session.
    Client,
}

/// The scope of a context entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ContextScope {
    /// All sessions of the home directory.
    Global,
    /// All sessions of a project.
    Project,
    /// One session.
    Session,
}

/// A change of a context entry of the session.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextEntryChange {
    /// The key of the entry; an entry with the same key is replaced.
    pub key: String,
    /// The text; absent removes the entry.
    pub content: Option<String>,
    /// The position among the entries: lower comes first. Default 100.
    pub priority: Option<i32>,
    /// The origin of the entry: `hook`, `extension` or `user`. Default `user`.
    pub source: Option<String>,
}

/// A context entry in force: a keyed text at the end of the system message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextEntry {
    /// The key of the entry, unique within its scope. Among equal keys the narrowest scope wins.
    pub key: String,
    /// The text.
    pub content: String,
    /// The position among the entries: lower comes first, and equal priorities are ordered by key.
    pub priority: i32,
    /// The origin of the entry: `hook`, `extension` or `user`.
    pub source: String,
    /// The sessions that it applies to.
    pub scope: ContextScope,
    /// Whether the texts are shortened here, because the list does not fit into a frame. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shortened: bool,
}

impl ContextEntry {
    /// The beginning of the keys of entries that hooks set, so that no hook replaces an entry of a person.
    pub const HOOK_PREFIX: &str = "hook:";
    /// The priority of an entry without one. There is room before and after it.
    pub const DEFAULT_PRIORITY: i32 = 100;
    /// The source of an entry without one.
    pub const DEFAULT_SOURCE: &str = "user";
}

/// A change of the pinned records, which every later context contains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pin {
    /// The record.
    pub target: Seq,
    /// True to pin the record, false to unpin it.
    pub pinned: bool,
}

/// The mark that a log gets when its session rests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RestMark {}

impl Custom {
    /// The name of the daemon's own records that hold pieces of an answer while it is written.
    pub const PARTIAL_ANSWER: &'static str = "ollm.partialAnswer";
    /// The name of the records of clients that hold a [`ToolStart`].
    pub const TOOL_START: &'static str = "ollm.toolStart";
}

/// The start of a tool call, recorded before the tool runs: without the call's record, nobody knows what the tool wrote.
///
/// **Shape**: the `data` of a [`Custom`] record with the name [`Custom::TOOL_START`]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolStart {
    /// The id that the record of the call will have.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments as JSON.
    #[serde(default)]
    pub args: Value,
}

/// Data of a client, which the daemon stores without reading it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Custom {
    /// The client's own type of the data, for example `editor.selection`.
    pub name: String,
    /// Any JSON.
    #[serde(default)]
    pub data: Value,
    /// A text that enters the context as a user turn; absent to keep the record out of the context.
    pub context_text: Option<String>,
}
