//! The small records: what changes a session or its state without being said by anyone.

use std::collections::BTreeMap;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Seq, SnapshotId, Timestamp};

/// Client data attached to a session: any JSON by name.
pub type Meta = BTreeMap<String, Value>;

/// Changes fields of a session; a field that is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MetaPatch {
    /// The title, set by someone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The description, set by someone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The model from here on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model's provider from here on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The system prompt from here on; empty removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The context window to ask for, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_size: Option<u32>,
    /// The project's directory, as a canonical path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
    /// Exempt from retention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
    /// Put away: not listed unless asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<bool>,
    /// Client data to merge in; a `null` removes the name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: Meta,
}

/// The session's mode changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModeChange {
    /// The mode before; absent where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The mode from here on.
    pub to: String,
    /// When it changed.
    pub timestamp: Timestamp,
    /// What changed it, for example `manual` or `auto`.
    pub trigger: String,
    /// How sure an automatic change was, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

/// The active leaf moved: branch, undo or restore.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeafMove {
    /// The record that is the leaf from here on; absent puts it before the first.
    pub to: Option<Seq>,
    /// Why it moved, for example `undo` or `import`.
    pub cause: String,
}

/// A name for a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Label {
    /// The record.
    pub target: Seq,
    /// The name; absent removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A snapshot was taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotMark {
    /// The snapshot.
    pub snapshot_id: SnapshotId,
    /// The active leaf at that instant.
    pub leaf: Option<Seq>,
    /// Why it was taken.
    pub reason: String,
}

/// Repetition was found, or somebody decided to go on after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoopMark {
    /// What repeats; absent resets the detection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<LoopPattern>,
}

/// What repeats in a session.
///
/// **Shape**: `{"kind":"call","tools":["read_file"],"count":3}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoopPattern {
    /// How it repeats.
    pub kind: LoopKind,
    /// The tool, or those of a cycle in their order; empty where no tool is involved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// Equal calls, rounds of a cycle, alike outputs, or model calls since the last user message.
    pub count: u32,
}

/// How something repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LoopKind {
    /// One tool with equal arguments, time after time.
    Call,
    /// Two to four calls in turn, round after round.
    Cycle,
    /// Results of tools, or answers, that say the same.
    Output,
    /// More calls of the model than are allowed without a word from the user.
    Turns,
}

/// The session was closed; recording opens it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Close {
    /// Who closed it.
    pub reason: CloseReason,
}

/// Who closed a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CloseReason {
    /// A client asked.
    Client,
    /// Nothing was recorded for a day.
    Idle,
    /// It came from a file, complete.
    Import,
}

/// Where a context entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ContextScope {
    /// Every session of this home.
    Global,
    /// Every session of a project.
    Project,
    /// One session.
    Session,
}

/// A keyed text for the system message was set or removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextEntryChange {
    /// Names the entry; a second one of the same key replaces the first.
    pub key: String,
    /// The text; absent removes the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Lower comes first; absent: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Who contributed it: `hook`, `extension` or `user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// A keyed text for the system message, as it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextEntry {
    /// Names the entry within its scope; the narrower scope wins.
    pub key: String,
    /// The text.
    pub content: String,
    /// Lower comes first; equal ones are ordered by key.
    pub priority: i32,
    /// Who contributed it: `hook`, `extension` or `user`.
    pub source: String,
    /// Where it holds.
    pub scope: ContextScope,
}

impl ContextEntry {
    /// The priority of an entry that names none; there is room before and behind it.
    pub const DEFAULT_PRIORITY: i32 = 100;
    /// The source of an entry that names none.
    pub const DEFAULT_SOURCE: &str = "user";
}

/// A record was pinned into, or released from, every later context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pin {
    /// The record.
    pub target: Seq,
    /// True pins, false releases.
    pub pinned: bool,
}

/// Data of a client that the daemon keeps and does not read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Custom {
    /// Names the client's own type, for example `editor.selection`.
    pub name: String,
    /// Any JSON.
    #[serde(default)]
    pub data: Value,
    /// A text that enters the context as a user turn; absent keeps the record out of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_text: Option<String>,
}

impl fmt::Display for LoopPattern {
    /// Writes a clause such as `read was called 3 times with equal arguments`. Names of tools come from models: who
    /// prints to a terminal sanitizes the whole.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, tools, count } = self;
        let tools = tools.join(", ");
        match kind {
            LoopKind::Call => write!(out, "{tools} was called {count} times with equal arguments"),
            LoopKind::Cycle => write!(out, "{tools} went round {count} times"),
            LoopKind::Output if tools.is_empty() => {
                write!(out, "{count} answers in a row say the same")
            }
            LoopKind::Output => {
                write!(out, "{count} results in a row say the same, the last of {tools}")
            }
            LoopKind::Turns => write!(out, "{count} model calls since the last user message"),
        }
    }
}

/// One tool call as the detection compares it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoopCall {
    /// The record that completed the call, or that asked for it where no result came.
    pub seq: Seq,
    /// The tool.
    pub tool: String,
    /// Digest of tool and arguments: equal for equal calls.
    pub call: String,
    /// Digest of the result, numbers and white space apart; absent where none was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}
