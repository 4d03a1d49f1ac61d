//! The status of the parts of the daemon, which `daemon.status` returns together.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// The status of the sessions and their logs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreStatus {
    /// The number of sessions on disk.
    pub sessions: u64,
    /// The number of sessions in memory.
    pub open_sessions: u64,
    /// The number of records acknowledged since the start of the daemon.
    pub records_written: u64,
    /// The number of syncs since the start of the daemon; one sync can cover many records.
    pub syncs: u64,
    /// The newest failed write to a session since the start of the daemon. Its call failed with `storage`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failed_write: Option<FailedWrite>,
}

/// A failed write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedWrite {
    /// The time of the failure.
    pub at: Timestamp,
    /// The file.
    pub path: PathBuf,
    /// The operation, and the error of the system.
    pub error: String,
}

/// The status of the catalog, the derived database for lists and search.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CatalogStatus {
    /// `ready`, `rebuilding` or `unavailable`.
    pub state: String,
    /// The number of sessions whose newest records are not in the catalog yet.
    pub behind: u64,
    /// The size on disk, in bytes.
    pub size_bytes: u64,
    /// The number of deleted sessions whose words may still be in the files of the search index.
    #[serde(default)]
    pub forgetting: u64,
}

/// The status of the model server, as it was last checked.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelServerStatus {
    /// The address; empty if the configured one is invalid.
    pub host: String,
    /// Whether the server answers; absent before the first check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reachable: Option<bool>,
    /// The version of the server, if it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The error, if the server does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The time of the check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Timestamp>,
}
