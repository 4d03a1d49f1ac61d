//! Sessions as lists, searches, exports and imports show them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Meta, Role};
use crate::{Seq, SessionId, Timestamp};

/// A session as lists and replies show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// Its id.
    pub session_id: SessionId,
    /// Set by someone, else the beginning of the first user message, else empty.
    pub title: String,
    /// Set by someone, else a longer beginning of the first user message, else empty.
    pub description: String,
    /// The project's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
    /// Names the project's directory in 16 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_hash: Option<String>,
    /// The project's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_name: Option<String>,
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model's provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The context window to ask for, in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_size: Option<u32>,
    /// Where it is in its life.
    pub status: SessionStatus,
    /// Exempt from retention.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// When it began.
    pub start_time: Timestamp,
    /// When something was last recorded; building a context does not count.
    pub last_activity: Timestamp,
    /// Messages of every role, on every branch.
    pub message_count: u64,
    /// Recorded tool calls, on every branch.
    pub tool_call_count: u64,
    /// Tokens of all messages and tool calls, on every branch.
    pub token_count: u64,
    /// Compactions on the active path.
    pub compression_count: u64,
    /// The session that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SessionId>,
    /// Where it was imported from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported_from: Option<String>,
    /// Records that are damaged and skipped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub damaged_records: u64,
    /// Nothing is on disk yet: the first other acknowledged write makes the files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draft: bool,
    /// Client data.
    #[serde(default, skip_serializing_if = "Meta::is_empty")]
    pub metadata: Meta,
}

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SessionStatus {
    /// In use.
    Active,
    /// At rest; recording makes it active again.
    Closed,
    /// Put away; listed only when asked for. Recording a message or a tool call brings it back.
    Archived,
    /// Readable, with records that are damaged and skipped.
    Corrupted,
}

/// Totals of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionUsage {
    /// Messages of every role.
    pub message_count: u64,
    /// Tokens of all messages and tool calls.
    pub token_count: u64,
}

/// The order of hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SearchSort {
    /// Newest first.
    #[default]
    Newest,
    /// Best first, among the newest 500 hits.
    Relevance,
}

/// One record that matches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchHit {
    /// Its session.
    pub session_id: SessionId,
    /// The session's title.
    pub title: String,
    /// The record.
    pub seq: Seq,
    /// Who said it.
    pub role: Role,
    /// When it was said.
    pub at: Timestamp,
    /// The text around the first match, on one line, cut at word boundaries.
    pub snippet: String,
    /// The matches in `snippet` as pairs of character offsets, start and end.
    pub matches: Vec<(u32, u32)>,
    /// Higher is better; comparable within one reply only.
    pub score: f64,
}

/// The forms of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ExportFormat {
    /// The session document.
    Json,
    /// Every record, one a line; an import gives the same session back.
    Jsonl,
    /// For reading.
    Markdown,
    /// For a browser; one page without scripts.
    Html,
}

/// What an import carried over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportReport {
    /// The format that was found, for example `pi v1`.
    pub format: String,
    /// Records in the file.
    pub source_records: u64,
    /// Records written to the session.
    pub imported_records: u64,
    /// True when this file was imported before and nothing was written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub already_imported: bool,
    /// What could not be carried over, or only in part.
    pub losses: Vec<ImportLoss>,
}

/// Something that an import could not carry over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportLoss {
    /// The line of the file, from 1; absent for a file that is one document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// What it was, for example `thinking_level_change`.
    pub what: String,
    /// Why it was not carried over, or what was left out.
    pub reason: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}
