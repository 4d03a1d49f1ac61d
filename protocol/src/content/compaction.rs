//! Records about what a model is sent: epochs, compactions with their checkpoints, deltas, and token usage.
//!
//! **Invariant**: an epoch refers to records by number and never repeats their content.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::{CheckpointId, Seq, SessionId, Timestamp};

/// The opening of an epoch. Contexts consist of its head and of all records after it, verbatim, until the next epoch.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Epoch {
    /// The strategy that planned the head.
    pub strategy: String,
    /// The cause: `start`, `overflow`, `requested`, `compaction`, or the part of the basis that changed, such as
    /// `model`, or `window` if the window grew.
    pub cause: String,
    /// The context window that the head was planned for, in tokens.
    pub context_size: u32,
    /// The tokenizer that counted the tokens.
    pub tokenizer: String,
    /// The tokens of the head as planned.
    pub head_tokens: u64,
    /// The items of the head, in order.
    pub head: Vec<HeadItem>,
    /// The basis when the epoch was opened; a build with another basis opens a new epoch. Absent in epochs of other
    /// programs.
    pub basis: Option<EpochBasis>,
}

/// The basis of an epoch: everything that a model is sent before the conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EpochBasis {
    /// A digest of the system prompt.
    pub system: String,
    /// A digest of the mode's text.
    pub mode: String,
    /// A digest of the tool definitions.
    pub tools: String,
    /// The name of the model.
    pub model: String,
    /// The context entries: key and digest of the text, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<(String, String)>,
    /// The end of the system message as it was sent: the context entries, then the goal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub additions: String,
}

/// An item of the head of an epoch: a reference to records, and the form in which they are sent.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "as", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum HeadItem {
    /// All records on the path from one to another, both included, verbatim.
    Range {
        /// The first record.
        from: Seq,
        /// The last record.
        to: Seq,
    },
    /// The beginning and the end of one record.
    Cut {
        /// The record.
        seq: Seq,
        /// The number of characters at the beginning.
        head_chars: u32,
        /// The number of characters at the end.
        tail_chars: u32,
    },
    /// The number and size of one record, without its content.
    Handle {
        /// The record.
        seq: Seq,
    },
    /// One line in place of a tool result, which says why the result is left out.
    Stub {
        /// The record.
        seq: Seq,
        /// The reason: `superseded` by a newer read of the same file, or `duplicate` of an equal result.
        reason: String,
        /// The record with the newer or equal result.
        by: Seq,
    },
    /// A checkpoint of the compaction in force.
    Checkpoint {
        /// The checkpoint.
        id: CheckpointId,
    },
    /// An older user message, quoted as one that is already answered.
    Earlier {
        /// The record.
        seq: Seq,
        /// The number of characters at the beginning; absent for the whole text.
        head_chars: Option<u32>,
        /// The number of characters at the end; absent for the whole text.
        tail_chars: Option<u32>,
    },
    /// A pinned record, quoted.
    Pinned {
        /// The record.
        seq: Seq,
        /// The number of characters at the beginning; absent for the whole text.
        head_chars: Option<u32>,
        /// The number of characters at the end; absent for the whole text.
        tail_chars: Option<u32>,
    },
    /// A text that was derived from the records, as it was sent.
    Block {
        /// The subject: `facts`, `files`, `state`, or `memory` for checkpoints that are shortened to their room.
        topic: String,
        /// The text.
        text: String,
    },
}

/// A compaction: a summary takes the place of a range of records in all later contexts. One record is one compaction.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Compaction {
    /// The first record of the range; absent if no range was summarized or an imported file does not name it.
    pub from: Option<Seq>,
    /// The last record of the range; absent like `from`.
    pub to: Option<Seq>,
    /// The summary of a compaction of another program; otherwise absent, and the summaries are in `checkpoints`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// The tokens of the context before.
    pub tokens_before: u64,
    /// The tokens of the context after; absent if an imported file does not name them.
    pub tokens_after: Option<u64>,
    /// The tokenizer that counted the tokens.
    pub tokenizer: String,
    /// The epoch that the compaction opens; absent for a compaction of another program.
    pub epoch: Option<Epoch>,
    /// All checkpoints in force after the compaction, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<Checkpoint>,
    /// The method; absent for a compaction of another program.
    pub method: Option<CompactionMethod>,
    /// The model that wrote the summary, if a model did.
    pub model: Option<String>,
    /// The numbers of important items that the new context still names.
    pub retention: Option<Retention>,
    /// The facts of the user that a model was asked about; empty if it was not asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<AskedFact>,
}

/// A fact of the user that a model was asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AskedFact {
    /// The record that states it.
    pub seq: Seq,
    /// The digest of its text.
    pub digest: String,
    /// Whether the model chose it as one to remember.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chosen: bool,
}

/// A checkpoint: a summary that takes the place of a range of records at the beginning of every later context.
///
/// Later compactions lower its level, shorten it, or merge it into another one.
#[skip_serializing_none]
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

/// The method of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CompactionMethod {
    /// Older tool results were shortened.
    Pruned,
    /// A model summarized a range.
    Summarized,
    /// Lines of the records take the place of a model's summary, until the next compaction.
    Extracted,
    /// A range was left out without a summary.
    Truncated,
}

/// The important items that survived a compaction. Each pair has the number of items that the new context still names,
/// and the number that there were.
///
/// **Shape**: `{"task":[1,1],"pins":[2,2],"decisions":[3,3],"files":[4,5],"identifiers":[20,31],"values":[27,30]}`
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
    /// Identifiers that occur more than once in the compacted range.
    pub identifiers: (u32, u32),
    /// Numbers, paths, identifiers, quoted words and names of the notes before that no fact states. Absent if there were
    /// none.
    #[serde(default, skip_serializing_if = "is_uncounted")]
    pub values: (u32, u32),
    /// Facts that the user stated in the session: those that are neither forgotten nor too weak for a prompt. Absent if
    /// there are none.
    #[serde(default, skip_serializing_if = "is_uncounted")]
    pub facts: (u32, u32),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_uncounted(pair: &(u32, u32)) -> bool {
    pair.1 == 0
}

/// A change outside of the conversation, as it was sent to the model. Contexts repeat it at this place until the next
/// epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Delta {
    /// The changed object: `goal`, or `entry:` and the key of a context entry; `recall` for earlier messages that a
    /// message of the user brought back.
    pub topic: String,
    /// The text as it was sent.
    pub text: String,
    /// For `recall`: the messages in the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recalled: Vec<RecalledRecord>,
}

/// An earlier message that a context shows again because the newest one asks for it.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecalledRecord {
    /// The session, if it is another one.
    pub session_id: Option<SessionId>,
    /// The record.
    pub seq: Seq,
    /// The relevance: higher is better.
    pub score: f64,
}

/// A summary of a branch that is no longer on the active path.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BranchSummary {
    /// The leaf of the branch; absent if an imported file does not name it.
    pub from: Option<Seq>,
    /// The summary.
    pub summary: String,
    /// The author of the summary; absent for an imported one.
    pub by: Option<SummaryAuthor>,
}

/// The author of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SummaryAuthor {
    /// A model.
    Model,
    /// The daemon, which took lines from the records because no model answered.
    Daemon,
}

/// The token counts of the model server for one call.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Usage {
    /// The name of the model.
    pub model: Option<String>,
    /// The tokens of the prompt.
    pub prompt_tokens: u64,
    /// The tokens of the answer.
    pub answer_tokens: u64,
}
