//! Checkpoints: the compacted stand-ins for ranges of records.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CheckpointId, Seq, Timestamp};

/// A range of records, compacted into a summary that every later context begins with.
///
/// Ageing and merging replace a checkpoint; there is exactly one copy of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// Names it; ageing keeps the name.
    pub id: CheckpointId,
    /// How detailed it is: 3 recent, 2 old, 1 ancient, 0 merged from others.
    pub level: u8,
    /// The first record that it stands for.
    pub from: Seq,
    /// The last record that it stands for.
    pub to: Seq,
    /// The summary as models are sent it.
    pub summary: String,
    /// When the range was summarized.
    pub created_at: Timestamp,
    /// When it was last made shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compressed_at: Option<Timestamp>,
    /// Tokens of the records that it stands for.
    pub original_tokens: u64,
    /// Tokens of the summary.
    pub current_tokens: u64,
    /// How often it was compacted, the first time included.
    pub compression_count: u32,
    /// Decisions that the summary names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_decisions: Vec<String>,
    /// Files that tools changed in the range, by the records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files_modified: Vec<String>,
    /// Files that tools only read in the range, by the records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files_read: Vec<String>,
    /// What the summary says comes next.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next_steps: Vec<String>,
    /// The checkpoints that were merged into it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<CheckpointId>,
    /// It was made without a model, and is made anew from the log once one answers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub provisional: bool,
}
