//! `session.*`: conversations and what is recorded of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::{
    CountKind, ExportFormat, ImportReport, LoopPattern, Meta, Part, Record, Role, SearchHit,
    SearchSort, Session, SessionStatus, SessionUsage, ToolResult,
};
use crate::{Seq, SessionId, Timestamp};

/// Begins a session; nothing reaches the disk before the first record.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionCreateParams {
    /// The project's directory; must exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model's provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The context window to ask for, in tokens; at least 2048.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_size: Option<u32>,
    /// The mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Client data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Meta>,
    /// Makes a retry return the same session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// One session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionResult {
    /// The session.
    pub session: Session,
}

/// Names one session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionIdParams {
    /// The session.
    pub session_id: SessionId,
}

/// Names a project.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionCurrentParams {
    /// The project's directory.
    pub project_path: String,
}

/// The session that a project goes on with.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionCurrentResult {
    /// The session; absent when the project has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
}

/// Sets the session that a project goes on with.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionSetCurrentParams {
    /// The project's directory.
    pub project_path: String,
    /// The session; absent forgets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
}

/// Changes the mode of a session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionSetModeParams {
    /// The session.
    pub session_id: SessionId,
    /// The mode from here on.
    pub mode: String,
    /// What changes it; default `manual`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// How sure an automatic change is, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
}

/// Changes fields of a session; an absent field stays as it is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionUpdateParams {
    /// The session.
    pub session_id: SessionId,
    /// The title; empty goes back to the beginning of the first user message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The description; empty goes back to the beginning of the first user message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model's provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The system prompt; empty removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The context window to ask for, in tokens; at least 2048.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_size: Option<u32>,
    /// The project's directory; must exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
    /// Exempt from retention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<bool>,
    /// Client data to merge in; a `null` removes the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Meta>,
}

impl SessionUpdateParams {
    /// Changes nothing yet.
    #[must_use]
    pub const fn new(session_id: SessionId) -> Self {
        Self {
            session_id,
            title: None,
            description: None,
            model: None,
            provider: None,
            system_prompt: None,
            context_size: None,
            project_path: None,
            pinned: None,
            metadata: None,
        }
    }
}

/// What was deleted.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionDeleteResult {
    /// The session.
    pub session_id: SessionId,
    /// Sessions that were forked from it and keep their copies of its records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forks: Vec<SessionId>,
    /// `pending` while words of the session may still be in the files of the search index, from which they are
    /// being taken out in the background; absent when nothing of it is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index_cleanup: Option<IndexCleanup>,
}

/// How far the search index is with forgetting a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum IndexCleanup {
    /// Under way; `daemon.status` says in `catalog.forgetting` when it is done. A restart goes on with it.
    Pending,
}

/// Deletes every session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionClearParams {
    /// Must be true: a call without it changes nothing.
    pub all: bool,
}

/// Deletes old sessions.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionCleanupParams {
    /// How many of the most recently active to keep; pinned and archived ones stay and do not count.
    pub keep: u32,
    /// Only say what would go.
    #[serde(default)]
    pub dry_run: bool,
}

/// The sessions that went, or would go.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionCleanupResult {
    /// The sessions.
    pub deleted: Vec<Session>,
    /// How many were kept.
    pub kept: u64,
    /// Those that could not be deleted, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<CleanupFailure>,
    /// True when nothing was deleted because nothing was to be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// A session that could not be deleted.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CleanupFailure {
    /// The session.
    pub session_id: SessionId,
    /// Why.
    pub message: String,
}

/// The session document was written.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSaveResult {
    /// The file.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
}

/// Records one message.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionRecordParams {
    /// The session.
    pub session_id: SessionId,
    /// The message.
    pub message: MessageInput,
    /// Makes a retry record once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A message as a client gives it: either `parts` or `content`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MessageInput {
    /// Who said it.
    pub role: Role,
    /// What was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<Part>>,
    /// Shorthand for one text part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// When it was said; default: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
    /// For role `tool`: the call that this answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// For role `tool`: the name of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<String>,
    /// For role `assistant`: the model that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// For role `assistant`: why it stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// How long it took, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

impl MessageInput {
    /// A message of one text.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            parts: None,
            content: Some(text.into()),
            timestamp: None,
            tool_call_id: None,
            tool_name: None,
            model: None,
            finish_reason: None,
            duration_ms: None,
        }
    }
}

/// Records one executed tool call.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionRecordToolCallParams {
    /// The session.
    pub session_id: SessionId,
    /// The tool call.
    pub tool_call: ToolCallInput,
    /// Makes a retry record once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A tool call as a client gives it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolCallInput {
    /// Links the result to the call of the assistant message that asked for it.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments.
    #[serde(default)]
    pub args: Value,
    /// What came out.
    pub result: ToolResult,
    /// When it was called; default: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
    /// How long it ran, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The assistant message that asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_seq: Option<Seq>,
}

/// Records data of a client.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionRecordCustomParams {
    /// The session.
    pub session_id: SessionId,
    /// Names the client's own type, for example `editor.selection`.
    pub name: String,
    /// Any JSON.
    #[serde(default)]
    pub data: Value,
    /// A text that enters the context; absent keeps the record out of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_text: Option<String>,
    /// Makes a retry record once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Durable: the record is synced to disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionRecordResult {
    /// Its position in the log.
    pub seq: Seq,
    /// When it was recorded.
    pub timestamp: Timestamp,
    /// Tokens that it costs in a context.
    pub tokens: u32,
    /// How they were counted.
    pub count_kind: CountKind,
    /// The session's totals with this record.
    pub usage: SessionUsage,
    /// True when the `key` was known and nothing was written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
    /// What repeats, as long as that keeps the session from calling the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#loop: Option<LoopPattern>,
}

/// Reads records in the order of the log.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionGetParams {
    /// The session.
    pub session_id: SessionId,
    /// The first record; default: the first. A negative number counts from the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<i64>,
    /// The most records, 1 to 1000; default 100. A page also ends before it fills a frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Which records: all in the order of the log, or only those of the active path.
    #[serde(default)]
    pub branch: BranchFilter,
}

/// Which branches a read covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum BranchFilter {
    /// Every record; those off the active path carry `active: false`.
    #[default]
    All,
    /// Only records in force.
    Active,
}

/// A page of records.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionGetResult {
    /// The session.
    pub session: Session,
    /// The records, oldest first.
    pub records: Vec<Record>,
    /// Where the next page begins; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_from: Option<i64>,
}

/// Lists sessions, the most recently active first.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionListParams {
    /// Only those of one project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
    /// Only those of one status; default: all but the archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<SessionStatus>,
    /// Only those whose id begins so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<String>,
    /// The most sessions, 1 to 1000; default 25.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Continue after an earlier page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of sessions.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionListResult {
    /// The sessions.
    pub data: Vec<Session>,
    /// Where the next page begins; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// The catalog is being rebuilt; sessions may be missing from the list.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub behind: bool,
}

/// Finds text in everything that was recorded.
///
/// Words are joined by AND; `"a phrase"` in quotes must stand so, and words joined by single dots or hyphens
/// (`os.path`, `2024-06-01`) too; `word*` matches beginnings of three letters and more; names like `foo_bar` and
/// `camelCase` are found whole and by their parts, Chinese and Japanese by any substring.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionSearchParams {
    /// The words.
    pub query: String,
    /// Only in one session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Only in one project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
    /// Only what one role said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Only from an instant on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Only before an instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The order of the hits.
    #[serde(default)]
    pub sort: SearchSort,
    /// The most hits, 1 to 200; default 25.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Continue after an earlier page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of hits.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSearchResult {
    /// The hits.
    pub data: Vec<SearchHit>,
    /// Where the next page begins; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Sessions whose newest records are not searched yet; absent when none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<u64>,
}

/// The last page of a session, made ready to go on.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionResumeParams {
    /// The session.
    pub session_id: SessionId,
    /// The most records of the last page, 1 to 1000; default 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Reads a session as a file, chunk by chunk.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionExportParams {
    /// The session.
    pub session_id: SessionId,
    /// The form.
    pub format: ExportFormat,
    /// Continue after an earlier chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A chunk of an export; all chunks show the session as it was at the first.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionExportResult {
    /// The text to append to the file.
    pub data: String,
    /// Where the next chunk begins; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Records written so far.
    pub done_records: u64,
    /// Records in all.
    pub total_records: u64,
}

/// Gives the daemon a file to import, chunk by chunk; the format is found from the content.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionImportParams {
    /// The upload that this chunk continues; absent for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_id: Option<String>,
    /// The text of this chunk.
    pub data: String,
    /// True for the last chunk: the import happens now.
    pub last: bool,
    /// The project's directory; default: what the file says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_path: Option<String>,
    /// Only say what would be imported.
    #[serde(default)]
    pub dry_run: bool,
}

/// Either the upload to continue, or what was imported.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionImportResult {
    /// Set until the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_id: Option<String>,
    /// The imported session; absent until the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    /// What was carried over and what was not; absent until the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<ImportReport>,
}
