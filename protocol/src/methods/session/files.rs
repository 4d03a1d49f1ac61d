//! `session.files`: the files that a session read and changed, and what became of them on the disk; `session.blame`: the
//! sessions that used a file; `session.getFileContent`: the contents of files that a session keeps.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::content::FileHash;
use crate::{Seq, SessionId, Timestamp};

/// The params of `session.files`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionFilesParams {
    /// The session.
    pub session_id: SessionId,
    /// Whether only files that something else changed or removed since are returned. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
    /// The most files of the page, 1 to 1000; default 200.
    pub limit: Option<u32>,
    /// The `nextCursor` of the page before; absent for the first page.
    pub cursor: Option<String>,
}

/// The result of `session.files`: a page of files, those that were used last first.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionFilesResult {
    /// The project of the session, which relative paths belong to.
    pub root: Option<String>,
    /// The files.
    pub data: Vec<SessionFile>,
    /// The number of files that the session used on its active path, at most 2000.
    pub total: u64,
    /// Other files of the project that were modified after the newest record of the session, at most 200, in the order of
    /// their names; on the first page. Absent if the daemon does not follow the project: it does during `files.watch`, and
    /// for ten minutes after `files.discover` and `files.search`.
    pub changed_later: Option<Vec<String>>,
    /// The cursor of the next page; absent at the end.
    pub next_cursor: Option<String>,
}

/// A file that tool calls of a session read or changed.
///
/// **Shape**: `{"path":"src/a.rs","readSeq":12,"at":"...","onDisk":"changed"}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionFile {
    /// The path: relative to the project if the file is in it, else as the tool was given it.
    pub path: String,
    /// The newest record of a call that read it.
    pub read_seq: Option<Seq>,
    /// The newest record of a call that changed it.
    pub modified_seq: Option<Seq>,
    /// The time of the newer of the two.
    pub at: Timestamp,
    /// The file now, compared with that time.
    pub on_disk: FileOnDisk,
}

/// A file on the disk, compared with the last use that a session made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum FileOnDisk {
    /// The file was not modified since.
    Current,
    /// The file was modified since, by something else than a recorded call of the session.
    Changed,
    /// There is no such file.
    Missing,
    /// The file was not examined: it is outside of the project, behind a link, or the disk did not answer in time.
    Unknown,
}

impl FileOnDisk {
    /// Returns whether the session knows an outdated content of the file.
    pub const fn is_stale(self) -> bool {
        matches!(self, Self::Changed | Self::Missing)
    }
}

/// The params of `session.getFileContent`. The `data` of the result is base64, and its parts joined are that of the whole
/// content; `done` and `total` are bytes of the content.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionGetFileContentParams {
    /// The session.
    pub session_id: SessionId,
    /// The content, as a write of a tool call or a plan names it.
    pub hash: FileHash,
    /// The `nextCursor` of the part before; absent for the first part.
    pub cursor: Option<String>,
}

/// The params of `session.blame`.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SessionBlameParams {
    /// The path of the file: relative to its project, or absolute; at most 2048 bytes. The file need not exist.
    pub path: String,
    /// Restricts the search to sessions of the project in this directory.
    pub project_path: Option<String>,
    /// Whether only sessions count whose texts any model server may get, for a client that shows them to a model of its own.
    /// Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unrestricted: bool,
    /// The most turns of the page, 1 to 100; default 20.
    pub limit: Option<u32>,
    /// The `nextCursor` of the page before; absent for the first page.
    pub cursor: Option<String>,
}

/// The result of `session.blame`: a page of turns, the newest first.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionBlameResult {
    /// The turns. A page can have fewer than its limit before the end, and a turn with many calls can be on two pages.
    pub data: Vec<BlamedTurn>,
    /// The cursor of the next page; absent at the end.
    pub next_cursor: Option<String>,
    /// The number of sessions whose newest records are not indexed yet; absent if there are none.
    pub behind: Option<u64>,
}

/// A turn that used a file.
///
/// **Shape**: `{"sessionId":"...","title":"Port","seq":12,"at":"...","touch":"changed","tool":"edit","request":{...}}`
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlamedTurn {
    /// The session.
    pub session_id: SessionId,
    /// The short form of the session's id.
    pub short_id: Option<String>,
    /// The title of the session.
    pub title: String,
    /// The record with the call: the newest that changed the file, else the newest that read it.
    pub seq: Seq,
    /// The time of that record.
    pub at: Timestamp,
    /// The use of the file.
    pub touch: TouchKind,
    /// The name of the tool.
    pub tool: String,
    /// The message of the user that the call follows; absent if there is none.
    pub request: Option<BlameRequest>,
    /// Whether the record is on another branch than the active one of its session. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub other_branch: bool,
}

/// The use that a turn made of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum TouchKind {
    /// The file was read.
    Read,
    /// The file was changed, created or removed.
    Changed,
}

/// The message of the user that led to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlameRequest {
    /// The record of the message.
    pub seq: Seq,
    /// The first 600 bytes of its text.
    pub text: String,
}
