//! `session.*`: conversations and what is recorded of them.

mod exchange;
mod life;
mod read;
mod record;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::content::Meta;
use crate::{SessionId, Timestamp};

pub use exchange::*;
pub use life::*;
pub use read::*;
pub use record::*;

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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(value: &u64) -> bool {
    *value == 0
}
