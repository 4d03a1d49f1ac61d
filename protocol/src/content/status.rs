//! Parts of `daemon.status` that the parts of the daemon report.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;

/// Sessions and logs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreStatus {
    /// Sessions on disk.
    pub sessions: u64,
    /// Sessions held in memory.
    pub open_sessions: u64,
    /// Records acknowledged since the start.
    pub records_written: u64,
    /// Syncs that made them durable.
    pub syncs: u64,
    /// The newest write to a session that the disk refused since the start; its caller was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failed_write: Option<FailedWrite>,
}

/// A write that the disk refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailedWrite {
    /// When.
    pub at: Timestamp,
    /// The file.
    pub path: PathBuf,
    /// What was tried, and what the system said.
    pub error: String,
}

/// The derived database.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CatalogStatus {
    /// `ready`, `rebuilding` or `unavailable`.
    pub state: String,
    /// Sessions whose newest records it does not hold yet.
    pub behind: u64,
    /// Its size on disk, in bytes.
    pub size_bytes: u64,
    /// Deleted sessions whose words may still be in its files; 0 when nothing of any deleted session is left.
    #[serde(default)]
    pub forgetting: u64,
}

/// The model server.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelServerStatus {
    /// Its address; empty where the configured one is none.
    pub host: String,
    /// Whether it answers; absent while nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reachable: Option<bool>,
    /// Its version, where it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Why it does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Timestamp>,
}
