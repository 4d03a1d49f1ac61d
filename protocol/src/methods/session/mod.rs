//! `session.*`: creating, recording, reading, searching, changing, deleting, exporting and importing sessions.
//! [`branches`] has the methods for the paths of a session, [`files`] that for the files that it used.

pub mod branches;
pub mod files;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::content::{
    CountKind, ExportFormat, FileWriteInput, ImportReport, LoopPattern, Meta, NotKept, Part,
    Record, Role, SearchHit, SearchSort, Session, SessionStatus, SessionUsage, ToolResult, is_zero,
};
use crate::{Seq, SessionId, Timestamp};

/// The params of `session.create`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionCreateParams {
    /// The directory of the project; must exist.
    pub project_path: Option<String>,
    /// The model, as the model server names it.
    pub model: Option<String>,
    /// The provider of the model; a label of the client.
    pub provider: Option<String>,
    /// The title, at most 4 KiB.
    pub title: Option<String>,
    /// The system prompt, at most 1 MiB.
    pub system_prompt: Option<String>,
    /// The context window to request, in tokens; at least 2048.
    pub context_size: Option<u32>,
    /// The time for which the model server keeps the model in memory after a request of the session, in seconds: at most
    /// 2,592,000, 0 to unload it at once; default `ollama.keepAlive`.
    pub keep_alive_seconds: Option<u32>,
    /// The model servers that may get texts of the session, at most 64 names of the configuration; empty for all that its
    /// project allows.
    pub allowed_servers: Option<Vec<String>>,
    /// The options of each answer that `chat.send` does not set otherwise: sampling options as in its `options`, and
    /// `think`, `format` and `answerLimit` as there; at most 64 KiB of JSON.
    pub options: Option<Meta>,
    /// The mode.
    pub mode: Option<String>,
    /// Data of clients, by name; at most 256 KiB of JSON.
    pub metadata: Option<Meta>,
    /// An idempotency key: a retry with the same key returns the same session.
    pub key: Option<String>,
}

/// The result of methods that return one session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionResult {
    /// The session.
    pub session: Session,
}

/// The params of methods that need only a session.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionIdParams {
    /// The session.
    pub session_id: SessionId,
}

/// The params of `session.current`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionCurrentParams {
    /// The directory of the project.
    pub project_path: String,
    /// Further directories, of which the first with a current session counts if the project has none; at most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub else_of: Vec<String>,
}

impl SessionCurrentParams {
    /// Returns params for one directory.
    #[must_use]
    pub const fn new(project_path: String) -> Self {
        Self { project_path, else_of: Vec::new() }
    }
}

/// The result of `session.current` and `session.setCurrent`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionCurrentResult {
    /// The current session of the project; absent if it has none.
    pub session: Option<Session>,
}

/// The params of `session.setCurrent`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionSetCurrentParams {
    /// The directory of the project; must exist.
    pub project_path: String,
    /// The new current session; absent clears it.
    pub session_id: Option<SessionId>,
}

/// The params of `session.setProjectServers`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionSetProjectServersParams {
    /// The directory of the project; must exist.
    pub project_path: String,
    /// The model servers that may get texts of the project's sessions, at most 64 names of the configuration; empty for
    /// all. Absent to change nothing.
    pub allowed_servers: Option<Vec<String>>,
}

/// The result of `session.setProjectServers`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSetProjectServersResult {
    /// The canonical path of the project.
    pub project_path: String,
    /// The model servers that may get texts of its sessions; empty for all.
    pub allowed_servers: Vec<String>,
}

/// The params of `session.setMode`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionSetModeParams {
    /// The session.
    pub session_id: SessionId,
    /// The new mode.
    pub mode: String,
    /// The cause of the change; default `manual`.
    pub trigger: Option<String>,
    /// The confidence of an automatic change, from 0 to 1.
    pub confidence: Option<f64>,
}

/// The params of `session.update`, with at least one field to change. An absent field stays as it is.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionUpdateParams {
    /// The session.
    pub session_id: SessionId,
    /// The title, at most 4 KiB; empty restores the beginning of the first user message.
    pub title: Option<String>,
    /// The description, at most 4 KiB; empty restores the beginning of the first user message.
    pub description: Option<String>,
    /// The model.
    pub model: Option<String>,
    /// The provider of the model.
    pub provider: Option<String>,
    /// The system prompt, at most 1 MiB; empty removes it.
    pub system_prompt: Option<String>,
    /// The context window to request, in tokens; at least 2048.
    pub context_size: Option<u32>,
    /// The time for which the model server keeps the model in memory after a request of the session, in seconds: at most
    /// 2,592,000, 0 to unload it at once; default `ollama.keepAlive`.
    pub keep_alive_seconds: Option<u32>,
    /// The model servers that may get texts of the session, at most 64 names of the configuration; empty for all that its
    /// project allows.
    pub allowed_servers: Option<Vec<String>>,
    /// The options of each answer to merge in: sampling options as in `options` of `chat.send`, and `think`, `format` and
    /// `answerLimit` as there; in all at most 64 KiB of JSON; null removes one.
    pub options: Option<Meta>,
    /// The directory of the project; must exist.
    pub project_path: Option<String>,
    /// Whether the session is exempt from retention and `session.cleanup`.
    pub pinned: Option<bool>,
    /// Data of clients to merge in, in all at most 256 KiB of JSON; null removes a name.
    pub metadata: Option<Meta>,
}

impl SessionUpdateParams {
    /// Returns params without a change.
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
            keep_alive_seconds: None,
            allowed_servers: None,
            options: None,
            project_path: None,
            pinned: None,
            metadata: None,
        }
    }
}

/// The result of `session.delete`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionDeleteResult {
    /// The session.
    pub session_id: SessionId,
    /// The sessions that were forked from it; they keep their copies of its records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forks: Vec<SessionId>,
    /// `pending` if words of the session may still be in the files of the search index; absent if nothing is left.
    pub index_cleanup: Option<IndexCleanup>,
}

/// The progress of removing a session from the search index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum IndexCleanup {
    /// The removal continues in the background, also after a restart. `catalog.forgetting` in `daemon.status` counts
    /// the sessions for which it does.
    Pending,
}

/// The params of `session.clear`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionClearParams {
    /// A confirmation that must be true.
    pub all: bool,
}

/// The params of `session.cleanup`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionCleanupParams {
    /// The number of the most recently active sessions to keep. Pinned and archived ones stay and do not count.
    pub keep: u32,
    /// Whether to return the sessions without deleting them. Default false.
    #[serde(default)]
    pub dry_run: bool,
}

/// The result of `session.clear` and `session.cleanup`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionCleanupResult {
    /// The sessions that were deleted, or would be. Many sessions are without their metadata and descriptions.
    pub deleted: Vec<Session>,
    /// The number of sessions that were kept, without pinned and archived ones.
    pub kept: u64,
    /// The number of further deleted sessions, for which `deleted` has no room. Default 0.
    #[serde(default, skip_serializing_if = "crate::content::is_zero")]
    pub more_deleted: u64,
    /// The sessions that could not be deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<CleanupFailure>,
    /// Whether this was a dry run, which deletes nothing. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// A session that could not be deleted.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CleanupFailure {
    /// The session.
    pub session_id: SessionId,
    /// The reason.
    pub message: String,
}

/// The result of `session.save`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSaveResult {
    /// The path of the session document.
    pub path: String,
    /// The size of the session document, in bytes.
    pub size_bytes: u64,
}

/// The params of `session.record`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionRecordParams {
    /// The session.
    pub session_id: SessionId,
    /// The message.
    pub message: MessageInput,
    /// An idempotency key: a retry with the same key records nothing again.
    pub key: Option<String>,
}

/// A message from a client, with either `parts` or `content`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MessageInput {
    /// The author.
    pub role: Role,
    /// The content, in order.
    pub parts: Option<Vec<Part>>,
    /// The content as a text, short for one text part.
    pub content: Option<String>,
    /// The time of the message; default now.
    pub timestamp: Option<Timestamp>,
    /// For role `tool`: the id of the tool call that this message answers.
    pub tool_call_id: Option<String>,
    /// For role `tool`: the name of the tool.
    pub tool_name: Option<String>,
    /// For role `assistant`: the model that answered.
    pub model: Option<String>,
    /// For role `assistant`: the reason for the end of the answer.
    pub finish_reason: Option<String>,
    /// The time that it took to answer, in milliseconds.
    pub duration_ms: Option<u64>,
}

impl MessageInput {
    /// Returns a message with one text.
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

/// The params of `session.recordToolCall`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionRecordToolCallParams {
    /// The session.
    pub session_id: SessionId,
    /// The tool call.
    pub tool_call: ToolCallInput,
    /// An idempotency key: a retry with the same key records nothing again.
    pub key: Option<String>,
}

/// An executed tool call from a client.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolCallInput {
    /// The id of the call in the assistant message that requested it.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// The arguments as JSON; default null.
    #[serde(default)]
    pub args: Value,
    /// The result.
    pub result: ToolResult,
    /// The time of the call; default now.
    pub timestamp: Option<Timestamp>,
    /// The run time, in milliseconds.
    pub duration_ms: Option<u64>,
    /// The record of the assistant message that requested the call.
    pub message_seq: Option<Seq>,
    /// The files that the call wrote, an empty list if none; absent if the client does not know.
    pub writes: Option<Vec<FileWriteInput>>,
    /// The number of files that the call wrote beyond those in `writes`. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub writes_omitted: u64,
}

/// The params of `session.recordCustom`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionRecordCustomParams {
    /// The session.
    pub session_id: SessionId,
    /// The client's own type of the data, for example `editor.selection`.
    pub name: String,
    /// Any JSON; default null.
    #[serde(default)]
    pub data: Value,
    /// A text that enters the context as a user turn; absent to keep the record out of the context.
    pub context_text: Option<String>,
    /// An idempotency key: a retry with the same key records nothing again.
    pub key: Option<String>,
}

/// The result of methods that record something: the record is on disk.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionRecordResult {
    /// The number of the record.
    pub seq: Seq,
    /// The time of recording.
    pub at: Timestamp,
    /// The tokens that the record takes in a context.
    pub tokens: u32,
    /// The accuracy of `tokens`.
    pub count_kind: CountKind,
    /// The totals of the session, including this record.
    pub usage: SessionUsage,
    /// Whether the key was used before, so that nothing was written. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub duplicate: bool,
    /// The loop that keeps the session from calling its model; absent if there is none.
    pub r#loop: Option<LoopPattern>,
    /// The files of a tool call whose content before the call was not kept, so that they cannot be put back; absent if
    /// there are none.
    pub not_kept: Option<NotKept>,
}

/// The params of `session.get`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionGetParams {
    /// The session.
    pub session_id: SessionId,
    /// The first record of the page; default 0. A negative number counts from the end, those of `branch` only.
    pub from: Option<i64>,
    /// The most records of the page, 1 to 1000; default 100. A page also ends at 6 MiB.
    pub limit: Option<u32>,
    /// The branches to read; default `all`.
    #[serde(default)]
    pub branch: BranchFilter,
}

/// The branches that a page of records covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum BranchFilter {
    /// All records in the order of the log; those off the active path have `active: false`.
    #[default]
    All,
    /// Only records in force: those on the active path, and those that hold wherever the active leaf is.
    Active,
}

/// The result of `session.get` and `session.resume`: a page of records.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionGetResult {
    /// The session.
    pub session: Session,
    /// The records in the order of the log, without damaged ones.
    pub records: Vec<Record>,
    /// The first record of the next page; absent at the end.
    pub next_from: Option<i64>,
}

/// The params of `session.getRecord`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionGetRecordParams {
    /// The session.
    pub session_id: SessionId,
    /// The record.
    pub seq: Seq,
    /// The `nextCursor` of the part before; absent for the first part.
    pub cursor: Option<String>,
}

/// The params of `session.list`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionListParams {
    /// Restricts the list to the project in this directory.
    pub project_path: Option<String>,
    /// Restricts the list to one status; default all except `archived`.
    pub status: Option<SessionStatus>,
    /// Restricts the list to ids that begin with this text; case and hyphens are ignored.
    pub id_prefix: Option<String>,
    /// Restricts the list to titles that contain each word of this text, at most 4096 bytes, in any case and order. A
    /// word can be a part of one in the title.
    pub title: Option<String>,
    /// Restricts the list to ids that end with this text; case and hyphens are ignored.
    pub id_end: Option<String>,
    /// The most sessions of the page, 1 to 1000; default 25.
    pub limit: Option<u32>,
    /// The `nextCursor` of the page before; absent for the first page.
    pub cursor: Option<String>,
}

/// The result of `session.list`: a page of sessions.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionListResult {
    /// The sessions, the most recently active first.
    pub data: Vec<Session>,
    /// The cursor of the next page; absent at the end.
    pub next_cursor: Option<String>,
    /// Whether the catalog is being rebuilt, so that sessions may be missing. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub behind: bool,
}

/// The params of `session.search`.
///
/// A record must contain all words of the query. `"a phrase"` in quotes must occur as it is, and so must words joined
/// by single dots or hyphens (`os.path`, `2024-06-01`). `word*` matches words that begin so, from three letters on.
/// Names like `foo_bar` and `camelCase` match as a whole and by their parts, and `UserName` matches every name with
/// these parts in a row, such as `getUserName` and `user_name`; Chinese, Japanese and Korean texts match by any substring.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionSearchParams {
    /// The words to search for, at most 4096 bytes.
    pub query: String,
    /// Restricts the search to one session.
    pub session_id: Option<SessionId>,
    /// Restricts the search to the project in this directory.
    pub project_path: Option<String>,
    /// Restricts the search to texts of one role.
    pub role: Option<Role>,
    /// Restricts the search to texts of this time or later.
    pub since: Option<Timestamp>,
    /// Restricts the search to texts before this time.
    pub until: Option<Timestamp>,
    /// The order of the hits; default `newest`.
    #[serde(default)]
    pub sort: SearchSort,
    /// The most hits of the page, 1 to 200; default 25.
    pub limit: Option<u32>,
    /// The `nextCursor` of the page before; absent for the first page.
    pub cursor: Option<String>,
}

/// The result of `session.search`: a page of hits.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSearchResult {
    /// The hits.
    pub data: Vec<SearchHit>,
    /// The cursor of the next page; absent at the end.
    pub next_cursor: Option<String>,
    /// The number of sessions whose newest records are not searched yet; absent if there are none.
    pub behind: Option<u64>,
}

/// The params of `session.resume`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionResumeParams {
    /// The session.
    pub session_id: SessionId,
    /// The most records of the page, 1 to 1000; default 50.
    pub limit: Option<u32>,
}

/// The params of `session.export`. All parts cover the records that the session had at the first one.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionExportParams {
    /// The session.
    pub session_id: SessionId,
    /// The format of the file.
    pub format: ExportFormat,
    /// The branches to export; default `all` for `json` and `jsonl`, and `active` for `markdown` and `html`. All parts
    /// have those of the first one.
    pub branch: Option<BranchFilter>,
    /// The `nextCursor` of the part before; absent for the first part.
    pub cursor: Option<String>,
}

/// The params of `session.import`: a chunk of a file. The daemon detects the format from the content.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionImportParams {
    /// The `uploadId` of the first chunk's result; absent for the first chunk.
    pub upload_id: Option<String>,
    /// The text of the chunk.
    pub data: String,
    /// Whether this is the last chunk, with which the file is imported.
    pub last: bool,
    /// The directory of the project; default that of the file. Must exist.
    pub project_path: Option<String>,
    /// Whether to return the report without importing the file. Default false.
    #[serde(default)]
    pub dry_run: bool,
}

/// The result of `session.import`: an upload to continue, or the imported session.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionImportResult {
    /// The id of the upload; absent after the last chunk.
    pub upload_id: Option<String>,
    /// The imported session; absent before the last chunk, and for a dry run of a new session.
    pub session: Option<Session>,
    /// The report; absent before the last chunk.
    pub report: Option<ImportReport>,
}
