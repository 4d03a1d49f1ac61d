//! Checkpoints: summaries that take the place of ranges of records.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CheckpointId, Seq, Timestamp};

/// A checkpoint: a summary that takes the place of a range of records at the beginning of every later context.
///
/// Later compactions lower its level, shorten it, or merge it into another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// The id of the checkpoint; it stays the same when the level changes.
    pub id: CheckpointId,
    /// The level of detail: 3 for a new checkpoint, then 2 and 1; 0 for one that was merged from others.
    pub level: u8,
    /// The first record of the range.
    pub from: Seq,
    /// The last record of the range.
    pub to: Seq,
    /// The summary, as it is sent to models.
    pub summary: String,
    /// The time of the first summary of the range.
    pub created_at: Timestamp,
    /// The time at which the summary was last shortened; absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compressed_at: Option<Timestamp>,
    /// The tokens of the records of the range.
    pub original_tokens: u64,
    /// The tokens of the summary.
    pub current_tokens: u64,
    /// The number of times that the range was compacted, including the first.
    pub compression_count: u32,
    /// The decisions that the summary names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_decisions: Vec<String>,
    /// The files that tools changed in the range, according to the records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files_modified: Vec<String>,
    /// The files that tools only read in the range, according to the records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files_read: Vec<String>,
    /// The next steps that the summary names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next_steps: Vec<String>,
    /// The checkpoints that were merged into this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<CheckpointId>,
    /// Whether the summary consists of lines of the records, because no model wrote one. The next compaction replaces
    /// it. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub provisional: bool,
}
