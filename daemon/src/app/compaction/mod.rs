//! Compaction as one transaction: survey, snapshot, summary, verification, and one record; or nothing at all.
//!
//! `policy` decides by values alone, `crate::context` plans, and `task` carries out the decisions and the plans. A
//! compaction that fails leaves the context byte for byte as it was while it fits, and is tried again later. Only a
//! context that does not fit, or that the next message would probably overflow, is summarized by extraction; the next
//! compaction replaces that by a model's summary. A part whose summaries are refused again and again is extracted for
//! good.
//!
//! **Invariants**: at most one compaction per session at a time; a range that a model summarized is not summarized
//! again; automatic compactions yield to chats; recording and building never wait for a compaction.

mod automatic;
mod branch_summary;
mod commit;
mod events;
mod policy;
mod read_ahead;
pub(crate) mod request;
mod selection;
mod summarizer;
mod summary;
mod survey;
mod task;

pub(super) use automatic::CompactionInTurn;
pub(crate) use automatic::{follow, follow_turn, run};
pub(super) use branch_summary::summarize_branch;
pub(super) use policy::is_noticed;
pub(super) use summarizer::summarizes_itself;

#[cfg(test)]
mod tests;
