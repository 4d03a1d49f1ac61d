//! The context engine: it selects the messages that a model is sent, within an exact budget: a frozen head, then every
//! later message verbatim.
//!
//! - [`build()`] is the entry: it keeps the head in force while it fits, else plans a new one.
//! - `input`: everything that a build depends on; `path`: the records; `budget`: arithmetic.
//! - `strategy`: planners of heads; `assemble`, `render`: from a head to messages.
//! - `newest`: the unit that is being answered, which has the first claim; `notes`: the checkpoints of a head.
//! - `cut`, `omitted`: shortened records and the list of what is left out; `ledger`: the files that tools used.
//! - `compact`: summaries and checkpoints; `reliability`: how far a compacted conversation can be trusted.
//!
//! **Invariants**: pure and deterministic: the same path, settings and counter give the same context. Must not know
//! sessions, files or the wire; [`Contents`] reads the contents of records.

mod assemble;
mod budget;
mod build;
pub(crate) mod compact;
mod cut;
mod input;
mod ledger;
mod newest;
mod notes;
mod numbers;
mod omitted;
mod path;
pub(crate) mod reliability;
mod render;
mod strategy;

pub(crate) use self::assemble::{ItemSource, ShownItem};
pub(crate) use self::budget::{prompt_limit, share, trigger};
pub(crate) use self::build::{
    Built, OVERFLOW, REQUESTED, build, build_in_epoch, is_transient, prune, truncate,
    with_checkpoints,
};
pub(crate) use self::compact::{CutPlan, compaction_cut, needs_compaction};
pub(crate) use self::compact::{defuse, defuse_all};
pub(crate) use self::input::{BuildInput, ContextError, FactSource, PreviousBuild, digest};
pub(crate) use self::ledger::{FileUse, FileUses, Ledger, UsedFile, plain_path, touches};
pub(crate) use self::newest::newest_start;
pub(crate) use self::numbers::{
    ENTRIES_PERCENT, GOAL_PERCENT, MIN_TURN_TOKENS, PIN_PERCENT, RECALL_RESULT_PERCENT,
};
pub(crate) use self::omitted::OmitReason;
pub(crate) use self::path::{Contents, ContentsError, PathItem, newest_tokens};
pub(crate) use self::render::RECALL_TOPIC;

/// Returns whether a strategy, by its name, keeps every record.
pub(crate) fn keeps_all(strategy: &str) -> bool {
    strategy == self::strategy::FULL_HISTORY.name
}

#[cfg(test)]
mod tests;
