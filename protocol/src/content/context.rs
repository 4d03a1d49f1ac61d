//! Records that say what a model was sent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Checkpoint;
use crate::{CheckpointId, Seq};

/// One element of a frozen head, by reference: history is never embedded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "as", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HeadItem {
    /// Every path record from one to another, both included, verbatim.
    Range {
        /// The first record.
        from: Seq,
        /// The last record.
        to: Seq,
    },
    /// One record of which only the beginning and the end are shown.
    Cut {
        /// The record.
        seq: Seq,
        /// Characters kept at the beginning.
        head_chars: u32,
        /// Characters kept at the end.
        tail_chars: u32,
    },
    /// One record of which only its number and size are shown.
    Handle {
        /// The record.
        seq: Seq,
    },
    /// A tool result of which one line says why it is not shown.
    Stub {
        /// The record.
        seq: Seq,
        /// Why: `superseded` by a newer read of the same file, or `duplicate` of an equal result.
        reason: String,
        /// The record that shows it instead.
        by: Seq,
    },
    /// A checkpoint of the compaction in force.
    Checkpoint {
        /// Which one.
        id: CheckpointId,
    },
    /// An earlier user message, quoted as already answered.
    Earlier {
        /// The record.
        seq: Seq,
        /// Characters kept at the beginning; absent keeps all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        head_chars: Option<u32>,
        /// Characters kept at the end; absent keeps all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tail_chars: Option<u32>,
    },
    /// A pinned record, quoted.
    Pinned {
        /// The record.
        seq: Seq,
        /// Characters kept at the beginning; absent keeps all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        head_chars: Option<u32>,
        /// Characters kept at the end; absent keeps all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tail_chars: Option<u32>,
    },
    /// A text made from the records, frozen as it was sent.
    Block {
        /// What it is: `files` or `state`.
        topic: String,
        /// The text.
        text: String,
    },
}

/// A context head was frozen: what precedes the records that follow this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Epoch {
    /// The strategy that planned the head.
    pub strategy: String,
    /// Why the epoch was opened, for example `overflow` or `model`.
    pub cause: String,
    /// The context window it was planned for, in tokens.
    pub context_size: u32,
    /// The tokenizer whose counts it was planned with.
    pub tokenizer: String,
    /// Tokens of the head as planned.
    pub head_tokens: u64,
    /// What the head holds, in order; the records after this one follow verbatim.
    pub head: Vec<HeadItem>,
    /// What the head was opened with; a build that finds another value opens a new epoch. Absent in epochs of older
    /// versions and of other programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<EpochBasis>,
}

/// What stands before the conversation, as an epoch froze it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EpochBasis {
    /// A digest of the system prompt.
    pub system: String,
    /// A digest of the mode's text.
    pub mode: String,
    /// A digest of the tool definitions.
    pub tools: String,
    /// The model.
    pub model: String,
    /// The context entries as they were rendered: key and digest of the text, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<(String, String)>,
    /// The additions to the system message as they were sent: entries, then the goal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub additions: String,
}

/// A range was replaced by a summary; one record is one whole compaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Compaction {
    /// The first record that the summary stands for; absent where a foreign file does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Seq>,
    /// The last record that the summary stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Seq>,
    /// The summary, where another program made it; else it is in `checkpoints`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// Tokens of the context before.
    pub tokens_before: u64,
    /// Tokens of the context after; absent where a foreign file does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_after: Option<u64>,
    /// The tokenizer that counted.
    pub tokenizer: String,
    /// The epoch that it opens; absent for compactions that another program made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// Every checkpoint in force after it, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<Checkpoint>,
    /// How it was made; absent for compactions that another program made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<CompactionMethod>,
    /// The model that wrote the summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How much of what matters the new context still names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
}

/// How a compaction made room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CompactionMethod {
    /// Old tool results were shortened.
    Pruned,
    /// A model summarized a range.
    Summarized,
    /// A range was summarized without a model, for the time being.
    Extracted,
    /// A range was left out.
    Truncated,
}

/// What survived a compaction: each pair counts what the new context still names and what there was.
///
/// **Shape**: `{"task":[1,1],"pins":[2,2],"decisions":[3,3],"files":[4,5],"identifiers":[20,31]}`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retention {
    /// The original task.
    pub task: (u32, u32),
    /// Pinned records.
    pub pins: (u32, u32),
    /// Locked decisions.
    pub decisions: (u32, u32),
    /// Paths of files that tools changed.
    pub files: (u32, u32),
    /// Identifiers that occur more than once in what was compacted.
    pub identifiers: (u32, u32),
}

/// Volatile text that was sent at this place and is resent verbatim until the epoch ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Delta {
    /// What it is about, for example `goal` or `entry`.
    pub topic: String,
    /// The text as it was sent.
    pub text: String,
}

/// What became of a branch that was left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BranchSummary {
    /// The leaf that was left; absent where a foreign file does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Seq>,
    /// The summary.
    pub summary: String,
}

/// What the model server counted for one call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Usage {
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the answer.
    pub answer_tokens: u64,
}
