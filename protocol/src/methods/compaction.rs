//! `context.compact` and `context.checkpoints`: making a conversation shorter, and what stands for its beginning.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::content::{Checkpoint, CompactionMethod, Retention};
use crate::{Seq, SessionId};

/// Which session to compact, and how.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContextCompactParams {
    /// The session.
    pub session_id: SessionId,
    /// Tells what would be done, and does nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// How to make room; default: the configured way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<CompactStrategy>,
    /// What the summary should keep above all, in the user's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Tool definitions that will be sent along with the conversation, as the model server takes them; default: those
    /// of the last build.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
}

impl ContextCompactParams {
    /// A compaction in the configured way.
    pub const fn new(session_id: SessionId) -> Self {
        Self { session_id, dry_run: false, strategy: None, instructions: None, tools: Vec::new() }
    }
}

/// How a compaction makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum CompactStrategy {
    /// A model summarizes what is old.
    Summarize,
    /// What is old is left out.
    Truncate,
    /// Old tool results are shortened; where that is not enough, a model summarizes.
    Hybrid,
}

/// What a compaction did, or would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextCompactResult {
    /// Whether the context is a shorter one now. Always false for a dry run.
    pub compacted: bool,
    /// Why not, where it is not: `dryRun`, `nothing` to summarize, `recent` compaction, or `unchanged` because it
    /// would not have become shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The record of the compaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<Seq>,
    /// How it was done, or would be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<CompactionMethod>,
    /// What was asked for.
    pub strategy: CompactStrategy,
    /// The first record that a summary now stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Seq>,
    /// The last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Seq>,
    /// Messages between them.
    pub summarized_message_count: u64,
    /// Messages that stay as they are; for a dry run and after a compaction.
    pub kept_message_count: u64,
    /// Tokens of the context before.
    pub tokens_before: u64,
    /// Tokens of the context after; for a dry run, as far as it can be told before.
    pub tokens_after: u64,
    /// Tokens that are free now.
    pub freed_tokens: u64,
    /// The model that wrote the summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The checkpoints in force, oldest first.
    pub checkpoints: Vec<Checkpoint>,
    /// How much of what matters the new context still names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// How far the conversation can be trusted.
    pub reliability: Reliability,
}

/// The checkpoints of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextCheckpointsResult {
    /// Those in force on the active path, oldest first.
    pub checkpoints: Vec<Checkpoint>,
    /// Tokens of all of them.
    pub tokens: u64,
    /// Compactions on the active path.
    pub compression_count: u64,
    /// The class of the session's window, from 1 to 5.
    pub tier: u8,
    /// Its name: `rollover`, `smart`, `progressive`, `structured` or `ultra`.
    pub tier_name: String,
    /// Most checkpoints that a window of this class keeps; then the oldest are merged.
    pub limit: u64,
    /// How far the conversation can be trusted.
    pub reliability: Reliability,
}

/// How far a conversation can be trusted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reliability {
    /// In percent, by the model's size, the number of compactions and the kind of counting: a rule of thumb.
    pub score: f64,
    /// The score in a word.
    pub level: ReliabilityLevel,
    /// The level as a sign.
    pub icon: String,
    /// What survived the last compaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// The same as one number, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained_percent: Option<u32>,
    /// What a person should know; by what was measured, not by the score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// The score in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ReliabilityLevel {
    /// From 85 %.
    High,
    /// From 60 %.
    Medium,
    /// From 40 %.
    Low,
    /// Below.
    Critical,
}
