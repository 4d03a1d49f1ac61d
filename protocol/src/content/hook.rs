//! Hooks: programs of the user that the daemon runs on some occasions, and the JSON that they read and write.
//!
//! PROTOCOL.md, section 8.14.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{is_zero, named_enum};
use crate::{Seq, SessionId, Timestamp};

named_enum! {
    /// The occasion on which a hook runs; the name of its file.
    pub enum HookOccasion {
        /// A new session got its first record.
        SessionStart = "session-start",
        /// Records of a session are about to be replaced by a summary.
        BeforeCompaction = "before-compaction",
        /// A chat turn ended.
        AfterTurn = "after-turn",
        /// Files of the session's project changed.
        FilesChanged = "files-changed",
    }
}

impl HookOccasion {
    /// All occasions.
    pub const ALL: [Self; 4] =
        [Self::SessionStart, Self::BeforeCompaction, Self::AfterTurn, Self::FilesChanged];
}

named_enum! {
    /// The place of a hook.
    pub enum HookOrigin {
        /// `hooks` in the daemon's home.
        Home = "home",
        /// `.ollm/hooks` in the project.
        Project = "project",
    }
}

named_enum! {
    /// Whether a hook runs.
    pub enum HookState {
        /// The hook runs.
        Ready = "ready",
        /// The hook of a project was never trusted.
        Untrusted = "untrusted",
        /// The hook of a project changed since it was trusted.
        Changed = "changed",
        /// The file cannot run, or other users could change it.
        Unusable = "unusable",
    }
}

/// The input of a hook: one line of JSON.
///
/// **Shape**: `{"occasion":"session-start","sessionId":"...","projectPath":"/home/ada/parser","model":"qwen3:8b"}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookInput {
    /// The occasion.
    pub occasion: HookOccasion,
    /// The session.
    pub session_id: SessionId,
    /// The directory of its project.
    pub project_path: Option<String>,
    /// Its model.
    pub model: Option<String>,
    /// The turn that ended.
    pub turn: Option<HookTurn>,
    /// The records that are about to be summarized.
    pub compaction: Option<HookCompaction>,
    /// The files of the project that changed, relative to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// The number of further changed files.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_paths: u64,
}

/// A turn that ended, as a hook reads it.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookTurn {
    /// The record of the answer.
    pub seq: Option<Seq>,
    /// The reason why the answer ended.
    pub finish_reason: Option<String>,
    /// The text of the error if the turn failed.
    pub error: Option<String>,
}

/// The records that a compaction is about to summarize, as a hook reads them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookCompaction {
    /// The first record.
    pub from: Seq,
    /// The last record.
    pub to: Seq,
    /// The number of messages and tool calls.
    pub messages: u64,
    /// Their tokens.
    pub tokens: u64,
}

/// The output of a hook; no output is an empty object.
///
/// **Shape**: `{"context":[{"name":"branch","text":"The branch is main."}],"instructions":"...","keep":["..."]}`
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookOutput {
    /// The context entries to set, at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<HookEntry>,
    /// The instructions for the summary, at most 2000 characters; only before a compaction.
    pub instructions: Option<String>,
    /// The lines that the summary has to contain, at most 8 of 300 characters; only before a compaction.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<String>,
}

/// A context entry of a hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookEntry {
    /// The name. The key of the entry is `hook:NAME`, and an earlier entry with this key is replaced.
    pub name: String,
    /// The text; an empty one removes the entry.
    pub text: String,
}

/// The last run of a hook.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookRun {
    /// The time at which it ended.
    pub at: Timestamp,
    /// The duration in milliseconds.
    pub duration_ms: u64,
    /// The problem for which its output was not used.
    pub error: Option<String>,
    /// The end of what it wrote to standard error.
    pub stderr: Option<String>,
}
