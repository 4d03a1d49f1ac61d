//! Beginning, changing and ending sessions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Session;
use crate::SessionId;
use crate::content::Meta;

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
