//! `daemon.*`: the daemon itself.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::content::{CatalogStatus, ModelServerStatus, StoreStatus, named_enum};
use crate::{SessionId, Timestamp};

/// The empty params of methods that need none.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoParams {}

/// The params of `daemon.hello`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DaemonHelloParams {
    /// The client's name, for the log.
    pub client: String,
    /// The client's version, for the log.
    pub version: String,
    /// The oldest protocol version that the client speaks.
    pub protocol_min: u32,
    /// The newest protocol version that the client speaks.
    pub protocol_max: u32,
}

/// The result of `daemon.hello`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonHelloResult {
    /// The protocol version to use.
    pub protocol: u32,
    /// The number of additions to this protocol version; a client omits params that are newer.
    pub schema_revision: u32,
    /// The version of the daemon.
    pub version: String,
    /// The process id of the daemon.
    pub pid: u32,
    /// The id of this run of the daemon. The numbers of events are valid within one epoch only.
    pub epoch: String,
    /// The id of the home that the daemon serves: the device and the inode of its directory as `<device>:<inode>`.
    pub home_id: Option<String>,
    /// The model server in use.
    pub model_server: Option<ModelServerAddress>,
    /// The limits of one connection and of the fields of its calls.
    pub limits: Limits,
}

/// The address of the model server in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelServerAddress {
    /// The address; empty if the configured one is invalid.
    pub host: String,
    /// Whether the configuration names it. Otherwise it is that of `OLLAMA_HOST` when the daemon started, or the default.
    pub configured: bool,
}

/// The limits of one connection and of the fields of its calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// The largest frame in bytes, in both directions.
    pub frame_bytes: u64,
    /// The most calls in one batch.
    pub batch: u32,
    /// The most subscriptions at once.
    pub subscriptions: u32,
    /// The most calls that run at once; further ones wait in the socket.
    pub in_flight: u32,
    /// The largest size of each bounded field in bytes, by the name that `tooLarge` errors use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub field_bytes: BTreeMap<String, u64>,
}

/// The result of `daemon.status`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonStatusResult {
    /// The version of the daemon.
    pub version: String,
    /// The process id of the daemon.
    pub pid: u32,
    /// The time at which the daemon started.
    pub started_at: Timestamp,
    /// The home directory.
    pub home: PathBuf,
    /// The path of the socket.
    pub socket: PathBuf,
    /// The protocol version.
    pub protocol: u32,
    /// The number of open connections.
    pub connections: u64,
    /// The status of the sessions and their logs.
    pub store: StoreStatus,
    /// The status of the catalog, the derived database for lists and search.
    pub catalog: CatalogStatus,
    /// The status of the model server, as it was last checked. A check older than 5 seconds is repeated in the
    /// background.
    #[serde(default)]
    pub model_server: ModelServerStatus,
    /// The number of subscriptions to events.
    pub subscriptions: u64,
    /// The resident memory of the process, in bytes; absent if the system does not report it.
    pub memory_bytes: Option<u64>,
    /// Settings that changed since the start and take effect only after a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restart_needed: Vec<String>,
    /// Warnings about the configuration for a person, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The result of `daemon.doctor`.
#[skip_serializing_none]
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonDoctorResult {
    /// The findings, problems first; empty if all is well.
    pub findings: Vec<DoctorFinding>,
    /// The status, as `daemon.status` returns it.
    pub status: DaemonStatusResult,
    /// The home, and the directory of the sessions if it is elsewhere.
    pub directories: Vec<DirectoryHealth>,
    /// The newest file of the daemon's own log; absent if there is none.
    pub log: Option<LogHealth>,
    /// The watches of directories; absent on systems without inotify.
    pub inotify: Option<InotifyUse>,
    /// The work of the limits for sessions since the daemon started; absent if they archived and deleted none.
    pub retention: Option<RetentionWork>,
}

/// A fact that a person should know, with what to do about it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DoctorFinding {
    /// The level.
    pub level: FindingLevel,
    /// The part that it is about, such as `disk` or `modelServer`.
    pub topic: String,
    /// A sentence for a person.
    pub text: String,
    /// A command that may help.
    pub hint: Option<String>,
}

named_enum! {
    /// The level of a finding.
    #[derive(PartialOrd, Ord)]
    pub enum FindingLevel {
        /// Something does not work.
        Problem = "problem",
        /// Something works worse than it could, or soon will not work.
        Warning = "warning",
    }
}

/// The state of a directory of the daemon. A field is absent if the system did not tell in time.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DirectoryHealth {
    /// The directory.
    pub path: PathBuf,
    /// The rights, in octal digits, such as `700`.
    pub mode: Option<String>,
    /// The id of the user that owns it.
    pub owner: Option<u32>,
    /// The bytes that this user can still write.
    pub free_bytes: Option<u64>,
    /// The time of an append with `fdatasync` in it: the median of five, in microseconds.
    pub sync_us: Option<u64>,
    /// The error of the system.
    pub error: Option<String>,
}

/// The newest file of the daemon's own log.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogHealth {
    /// The file.
    pub path: PathBuf,
    /// The newest line of the level `ERROR` near its end.
    pub last_error: Option<String>,
}

/// The sessions that the limits for sessions, such as `sessions.maxSessions`, took since the daemon started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetentionWork {
    /// The number of archived sessions.
    pub archived: u64,
    /// The number of deleted sessions.
    pub deleted: u64,
    /// The time of the last one.
    pub last_at: Timestamp,
}

/// The watches of directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InotifyUse {
    /// The watches of this daemon.
    pub watches: u64,
    /// The most watches of all processes of the user.
    pub max_watches: u64,
    /// The most instances of all processes of the user.
    pub max_instances: u64,
}

/// The result of `daemon.reload`. Settings are named `section.key`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonReloadResult {
    /// Settings that changed and took effect.
    pub applied: Vec<String>,
    /// Settings that changed and take effect after a restart.
    pub restart_needed: Vec<String>,
    /// Warnings about settings that are ignored.
    pub warnings: Vec<String>,
}

/// The params of `daemon.shutdown`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DaemonShutdownParams {
    /// Whether the daemon refuses with `busy` while it works for a client, instead of ending that work. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub if_idle: bool,
    /// Whether the caller starts the next daemon, so that subscribers are told to wait for it. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restart: bool,
}

/// Work for a client that the end of the daemon would end: an item of `running` in the error `busy` of
/// `daemon.shutdown`.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunningWork {
    /// The session.
    pub session_id: SessionId,
    /// The kind of work.
    pub work: WorkKind,
    /// The model that answers; absent for a compaction.
    pub model: Option<String>,
    /// The time at which the work began.
    pub started_at: Timestamp,
}

named_enum! {
    /// A kind of work that ends with the daemon.
    pub enum WorkKind {
        /// A chat turn: its answer so far is kept when it is ended.
        Turn = "turn",
        /// A compaction that a client asked for: nothing has changed when it is ended.
        Compaction = "compaction",
    }
}

/// The result of `daemon.shutdown`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonShutdownResult {
    /// The id of the process that stops.
    pub pid: u32,
}
