//! Compaction as values: the range that is summarized, the request to a summarizer and the check of its answer, the
//! checkpoints that result, and what of the range survived. Pure and deterministic; must not know sessions, queues or
//! model servers.
//!
//! - `range`: where a conversation is cut, and what is read of the range; `transcript`: records as a summarizer reads
//!   them; `request`: the messages of a request.
//! - `summary`: the fixed form of a summary; `verify`: whether an answer is one; `fit`: making it shorter; `defuse`:
//!   keeping it data; `extract`: a summary without a model.
//! - `checkpoint`: levels, ageing, merging, limits; `renew`: the checkpoints after a compaction.
//! - `retention`: what must survive, and whether it did.

mod checkpoint;
mod defuse;
mod extract;
mod fit;
mod range;
mod renew;
mod request;
mod retention;
mod summary;
mod transcript;
mod verify;

pub(crate) use self::checkpoint::{CheckpointBounds, RECENT_LEVEL, tier};
pub(crate) use self::range::{
    CutPlan, RangeContents, compaction_cut, extract_records, needs_compaction, read_range,
};
pub(crate) use self::renew::{
    NewSummary, RenewOptions, checkpoint_to_update, checkpoints_to_merge, renew,
};
pub(crate) use self::request::{SummaryOptions, SummaryRequest, summary_messages};
pub(super) use self::retention::retained_percent;
pub(crate) use self::retention::{measure_retention, retention_targets};
pub(crate) use self::summary::Summary;
pub(crate) use self::transcript::TranscriptPiece;
pub(crate) use self::verify::{
    RejectedSummary, SummaryLimits, complete_summary, partial_summary, verify_summary,
};
