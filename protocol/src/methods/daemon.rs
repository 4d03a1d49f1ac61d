//! `daemon.*`: the process itself.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::content::{CatalogStatus, ModelServerStatus, StoreStatus};

/// Takes nothing.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoParams {}

/// Says who calls and which protocols it speaks.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DaemonHelloParams {
    /// The client's name, for the log.
    pub client: String,
    /// The client's version, for the log.
    pub version: String,
    /// The oldest protocol the client speaks.
    pub protocol_min: u32,
    /// The newest protocol the client speaks.
    pub protocol_max: u32,
}

/// What was agreed on.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonHelloResult {
    /// The protocol to use.
    pub protocol: u32,
    /// Counts additive changes within the protocol; a client omits parameters newer than it.
    pub schema_revision: u32,
    /// The daemon's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// Changes with every start of the daemon; event numbers hold only within one.
    pub epoch: String,
    /// What one connection may do.
    pub limits: Limits,
}

/// What one connection may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// The largest frame, in bytes, in either direction.
    pub frame_bytes: u64,
    /// The most calls in one batch.
    pub batch: u32,
    /// The most subscriptions of one connection.
    pub subscriptions: u32,
    /// The most calls of one connection that run at once; further ones wait in the socket.
    pub in_flight: u32,
}

/// How the daemon is.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonStatusResult {
    /// The daemon's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// The home directory.
    pub home: PathBuf,
    /// The socket.
    pub socket: PathBuf,
    /// The protocol.
    pub protocol: u32,
    /// Open connections.
    pub connections: u64,
    /// Sessions and logs.
    pub store: StoreStatus,
    /// The derived database.
    pub catalog: CatalogStatus,
    /// The model server, as far as it is known; asking for the status asks it again for the next one.
    #[serde(default)]
    pub model_server: ModelServerStatus,
    /// Live subscriptions to events.
    pub subscriptions: u64,
    /// Resident memory of the process, in bytes; absent where the system does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Settings that changed on disk and take effect only after a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restart_needed: Vec<String>,
    /// What a person should know, most recent last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// What the reload did.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonReloadResult {
    /// Settings that changed and hold from now on.
    pub applied: Vec<String>,
    /// Settings that changed and hold after a restart.
    pub restart_needed: Vec<String>,
    /// Settings that were not understood and are ignored.
    pub warnings: Vec<String>,
}

/// The daemon is on its way out.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonShutdownResult {
    /// The process that leaves.
    pub pid: u32,
}
