//! Reading, listing and searching.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Session, SessionStatus};
use crate::content::{Record, Role};
use crate::{Seq, SessionId, Timestamp};

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
