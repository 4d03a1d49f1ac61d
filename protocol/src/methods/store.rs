//! `store.*`: everything that the daemon keeps on the disk.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use super::daemon::FindingLevel;
use crate::{Seq, SessionId};

/// The params of `store.verify`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoreVerifyParams {
    /// Whether derived files that are wrong are made again. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repair: bool,
}

/// The result of `store.verify`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreVerifyResult {
    /// Whether nothing is wrong that was not repaired.
    pub ok: bool,
    /// The number of sessions that were read.
    pub sessions: u64,
    /// The number of their records.
    pub records: u64,
    /// What is wrong, problems first, at most 1,000 findings.
    pub findings: Vec<StoreFinding>,
    /// The number of all findings.
    pub finding_count: u64,
    /// The space on the disk by kind, the largest first.
    pub space: Vec<StoreUsage>,
    /// The sessions that take most of it, at most 10, the largest first.
    pub largest: Vec<SessionSpace>,
}

/// Something wrong on the disk.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreFinding {
    /// `problem` if something is lost or wrong, `warning` if nothing is.
    pub level: FindingLevel,
    /// The file.
    pub path: String,
    /// The session that it belongs to.
    pub session_id: Option<SessionId>,
    /// The record.
    pub seq: Option<Seq>,
    /// The position in the file, in bytes.
    pub offset: Option<u64>,
    /// A sentence for a person: what is wrong, and what is lost.
    pub text: String,
    /// A command that may help.
    pub hint: Option<String>,
    /// Whether it was repaired.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repaired: bool,
}

/// The space that files of a kind take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreUsage {
    /// The kind, such as `logs` or `blobs`.
    pub kind: String,
    /// The number of files.
    pub files: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

/// The space that a session takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionSpace {
    /// The session.
    pub session_id: SessionId,
    /// Its title.
    pub title: String,
    /// The size of its log, its blobs, its document and its snapshots in bytes.
    pub bytes: u64,
}
