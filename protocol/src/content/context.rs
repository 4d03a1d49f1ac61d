//! Records that say what a model was sent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Seq;

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
    /// The summary.
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
