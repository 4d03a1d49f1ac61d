//! `context.addEntry`, `context.pin` and their kin: what is sent with every context beside the conversation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::content::{ContextEntry, ContextScope};
use crate::{Seq, SessionId};

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
