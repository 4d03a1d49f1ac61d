//! The parts of the daemon: the status of each, which `daemon.status` returns together, and the environment variables
//! that it filters for tools.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::Timestamp;

/// The status of the sessions and their logs.
#[skip_serializing_none]
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
    /// The number of sessions whose log cannot be used until it is changed, for example because a newer version wrote it
    /// or because it is no file. Lists and searches do not show its newest records; the log of the daemon names it.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub unusable: u64,
}

/// The status of the model server, as it was last checked.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelServerStatus {
    /// The address; empty if the configured one is invalid.
    pub host: String,
    /// Whether the server answers; absent before the first check.
    pub reachable: Option<bool>,
    /// The version of the server, if it answers.
    pub version: Option<String>,
    /// The error, if the server does not answer.
    pub error: Option<String>,
    /// The time of the check.
    pub checked_at: Option<Timestamp>,
}

/// Environment variables: values by name.
///
/// Neither `Debug` nor a deserialization error shows a value.
#[derive(Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Variables(pub BTreeMap<String, String>);

impl fmt::Debug for Variables {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Variables({})", self.0.len())
    }
}

impl<'de> Deserialize<'de> for Variables {
    /// Deserializes any JSON first, because the errors of serde's own types quote the value.
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let Value::Object(fields) = Value::deserialize(input)? else {
            return Err(de::Error::custom("variables must be an object with strings by name"));
        };
        let read = fields.into_iter().map(|(name, value)| match value {
            Value::String(text) => Ok((name, text)),
            _ => Err(de::Error::custom("the value of every variable must be a string")),
        });
        Ok(Self(read.collect::<Result<_, _>>()?))
    }
}

/// A variable that was filtered out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemovedVariable {
    /// The name of the variable.
    pub name: String,
    /// The pattern that the name matches, or `url-credentials` for the value.
    pub rule: String,
}
