//! Sessions as results show them, hits of the search, and the formats and reports of exports and imports.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::{Meta, Role};
use crate::{Seq, SessionId, Timestamp};

/// A session, without its records.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// The id of the session.
    pub session_id: SessionId,
    /// The shortest end of the id, of at least 4 hexadecimal digits, that the id of no other session has. Present in
    /// lists, and in the results of `session.get`, `session.resume` and `session.current`.
    pub short_id: Option<String>,
    /// The title that a client set, else the first 60 characters of the first paragraph of the first user message,
    /// else empty.
    pub title: String,
    /// The description that a client set, else the first 200 characters of the first user message, else empty.
    pub description: String,
    /// The directory of the project, as a canonical path.
    pub project_path: Option<String>,
    /// A short id of the project: the first 16 hex digits of the blake3 hash of its path.
    pub project_hash: Option<String>,
    /// The name of the project: the last part of its path.
    pub project_name: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// The provider of the model.
    pub provider: Option<String>,
    /// The mode in force.
    pub mode: Option<String>,
    /// The context window to request, in tokens.
    pub context_size: Option<u32>,
    /// The time for which the model server keeps the model in memory after a request of the session, in seconds,
    /// if it is not the configured one.
    pub keep_alive_seconds: Option<u32>,
    /// The model servers that may get texts of the session; empty for all that its project allows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_servers: Vec<String>,
    /// The options of each answer that `chat.send` does not set otherwise.
    #[serde(default, skip_serializing_if = "Meta::is_empty")]
    pub options: Meta,
    /// The status of the session.
    pub status: SessionStatus,
    /// Whether the session is exempt from retention and `session.cleanup`. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// The time of creation.
    pub start_time: Timestamp,
    /// The time of the newest record; building a context does not count.
    pub last_activity: Timestamp,
    /// The number of messages of all roles, on all branches.
    pub message_count: u64,
    /// The number of recorded tool calls, on all branches.
    pub tool_call_count: u64,
    /// The tokens of all messages and tool calls, on all branches.
    pub token_count: u64,
    /// The number of compactions on the active path.
    pub compression_count: u64,
    /// The session that this one was forked from.
    pub forked_from: Option<SessionId>,
    /// The source of an imported session: the format and the blake3 hash of the file, as `format:hash`.
    pub imported_from: Option<String>,
    /// The number of records that are damaged and skipped. Default 0.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub damaged_records: u64,
    /// Whether the session is a draft: nothing is on disk before its next write. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draft: bool,
    /// Data of clients, by name.
    #[serde(default, skip_serializing_if = "Meta::is_empty")]
    pub metadata: Meta,
    /// The fields that are shortened here, because the log has longer ones than a client can set. The records have them
    /// in full.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shortened: Vec<String>,
}

/// The status of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SessionStatus {
    /// Something was recorded within the last 24 hours, and no client closed the session since then.
    Active,
    /// A client closed the session, or nothing was recorded for 24 hours. Recording makes it active again.
    Closed,
    /// The session is archived, so lists omit it unless asked. Recording a message or a tool call unarchives it.
    Archived,
    /// Records of the session are damaged; they are skipped and the others are readable.
    Corrupted,
}

/// Totals of a session, on all branches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionUsage {
    /// The number of messages of all roles.
    pub message_count: u64,
    /// The tokens of all messages and tool calls.
    pub token_count: u64,
}

/// The order of the hits of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SearchSort {
    /// The newest hits first.
    #[default]
    Newest,
    /// The best hits first, among the newest 500.
    Relevance,
}

/// A hit of a search: a record that matches the query.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchHit {
    /// The session of the record.
    pub session_id: SessionId,
    /// The short form of the session's id.
    pub short_id: Option<String>,
    /// The title of the session.
    pub title: String,
    /// The record.
    pub seq: Seq,
    /// The author of the matching text.
    pub role: Role,
    /// The time of the message or call.
    pub at: Timestamp,
    /// The text around the first match, on one line, cut at word boundaries.
    pub snippet: String,
    /// The matches in `snippet`, as pairs of character offsets: start and end.
    pub matches: Vec<(u32, u32)>,
    /// The relevance: higher is better. Comparable only within one reply.
    pub score: f64,
    /// Whether the record is on another branch than the active one of its session. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub other_branch: bool,
}

/// The format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ExportFormat {
    /// The session document.
    Json,
    /// All records, one per line. An import restores the same session.
    Jsonl,
    /// A readable text in Markdown.
    Markdown,
    /// One HTML page without scripts.
    Html,
}

/// The report of an import.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportReport {
    /// The detected format, for example `pi v1`.
    pub format: String,
    /// The number of records in the file.
    pub source_records: u64,
    /// The number of records written to the session; for a dry run, those that would be written.
    pub imported_records: u64,
    /// Whether the session already has all records of the file, so that nothing is written. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub already_imported: bool,
    /// The contents of the file that were not imported, or only in part.
    pub losses: Vec<ImportLoss>,
}

/// A content of a file that was not imported, or only in part.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImportLoss {
    /// The line in the file, from 1; absent for a file that is one JSON document.
    pub line: Option<u64>,
    /// The lost content, for example `thinking_level_change`.
    pub what: String,
    /// The reason, or the part that was left out.
    pub reason: String,
}
