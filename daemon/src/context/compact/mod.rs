//! Compaction as values: summaries of ranges of records, the requests for them, and the checkpoints that hold them. Pure
//! and deterministic; must not know sessions, queues or model servers.
//!
//! - `range`: the range that is summarized, and what is read of its records; `request`: the messages to a summarizer.
//! - `summary`: the fixed form of a summary, and shortening it; `mend`: answers in other forms; `verify`: the check of an
//!   answer; `carry`: lines of earlier notes that an answer lost; `values`: numbers, names and the like; `defuse`:
//!   keeping text data; `extract`: a summary without a model.
//! - `checkpoint`: levels, ageing, merging, limits, and the checkpoints after a compaction.
//! - `retention`: the texts and names that must survive, and the number of those that did.

mod carry;
mod checkpoint;
mod defuse;
mod extract;
mod grounds;
mod mend;
mod numbers;
mod range;
mod request;
mod retention;
mod summary;
mod values;
mod verify;

pub(crate) use self::checkpoint::{
    CheckpointBounds, NewSummary, RenewOptions, checkpoint_to_update, checkpoints_to_merge,
    drop_outdated, renew, tier,
};
pub(super) use self::checkpoint::{merged_summaries, shown_summary};
pub(crate) use self::defuse::{defuse, defuse_all};
pub(crate) use self::extract::Extractor;
pub(crate) use self::numbers::{MAX_INSTRUCTIONS, RECENT_LEVEL};
pub(crate) use self::range::{
    CutPlan, RangeNames, RangePieces, compaction_cut, extract_records, needs_compaction,
    read_names, read_pieces,
};
pub(crate) use self::request::{
    ChatPrompt, ShownRecords, SummaryOptions, SummaryRequest, TranscriptPiece, behind_chat,
    summary_messages,
};
pub(crate) use self::retention::{
    MeasuredTexts, measure_retention, prompt_text, recount_facts, retained_percent,
    retention_targets,
};
pub(crate) use self::summary::Summary;
pub(super) use self::summary::fit as fit_summary;
pub(crate) use self::verify::{
    RejectedSummary, SummaryLimits, complete_summary, partial_summary, verify_summary,
};
