//! What a model is sent: a frozen head, then every later message verbatim, within an exact budget.
//!
//! Pure and deterministic: the same path, settings and counter give the same context. Must not know sessions,
//! files or the wire; contents come through [`Contents`].
//!
//! - [`build()`]: the one entry. It keeps the head in force while it fits, else plans a new one.
//! - `budget`: arithmetic; `units`: what no cut separates; `strategy`: planners of heads.
//! - `steps`, `assemble`, `render`, `link`: references to messages; `cut`, `omitted`: what is not shown, and saying so.

mod assemble;
mod basis;
mod budget;
mod build;
pub(crate) mod compact;
mod contents;
mod cut;
mod ledger;
mod link;
mod omitted;
mod previous;
pub(crate) mod reliability;
mod render;
mod steps;
mod strategy;
mod units;

use ollm_protocol::Seq;
use ollm_protocol::content::{BuiltContext, Checkpoint, CompactMode, Epoch};
use serde_json::Value;

pub(crate) use self::assemble::{Piece, What};
pub(crate) use self::basis::digest;
pub(crate) use self::budget::{prompt_limit, trigger};
pub(crate) use self::build::{OVERFLOW, REQUESTED, build};
pub(crate) use self::compact::{
    CutPlan, compaction_cut, needs_compaction, prune, truncate, with_checkpoints,
};
pub(crate) use self::contents::{Contents, ContentsError};
pub(crate) use self::previous::PreviousBuild;
pub(crate) use self::strategy::PIN_PERCENT;
pub(crate) use self::units::PathItem;
use crate::tokens::Counter;

/// Everything that a build depends on.
pub(crate) struct BuildInput<'a> {
    /// The path from the root to the active leaf, oldest first.
    pub path: &'a [PathItem],
    /// The session's system prompt.
    pub system_prompt: Option<&'a str>,
    /// The text of the session's mode.
    pub mode_text: Option<&'a str>,
    /// What the system message ends with: context entries, then the goal.
    pub additions: &'a str,
    /// The context entries in it: key and digest.
    pub entries: &'a [(String, String)],
    /// The context entries that were told since the epoch in force was opened, with it included.
    pub told_entries: &'a [(String, String)],
    /// Decisions that the goal locks.
    pub decisions: &'a [String],
    /// Pinned records, in the order of pinning.
    pub pins: &'a [Seq],
    /// The project's directory.
    pub project_path: Option<&'a str>,
    /// The model that is asked, where one is known.
    pub model: Option<&'a str>,
    /// Tool definitions that will be sent along.
    pub tools: &'a [Value],
    /// A user message that will follow and is not recorded.
    pub pending: Option<&'a str>,
    /// The window in tokens.
    pub context_size: u32,
    /// Tokens to keep free for the answer.
    pub answer_reserve: u32,
    /// The share of the conversation that user messages may have in a head, from 0 to 1.
    pub user_share: f64,
    /// A strategy by name; `None`: the first that fits.
    pub strategy: Option<&'a str>,
    /// Whether the caller will record a new epoch.
    pub compact: CompactMode,
    /// The checkpoints in force on the path, oldest first.
    pub checkpoints: &'a [Checkpoint],
    /// The epoch in force on the path and the record that opened it.
    pub epoch: Option<(Seq, &'a Epoch)>,
    /// The build before this one.
    pub previous: Option<&'a PreviousBuild>,
    /// Who counts.
    pub counter: Counter,
    /// Names the build.
    pub build_id: String,
}

/// A context, and what to do about it.
#[derive(Debug)]
pub(crate) struct Built {
    /// The reply.
    pub result: BuiltContext,
    /// The epoch to record when the caller may; the next build then begins with this one.
    pub new_epoch: Option<Epoch>,
    /// To be given to the next build as `previous`.
    pub build: PreviousBuild,
    /// Tokens of each message.
    pub tokens: Vec<u32>,
    /// What the system message ends with.
    pub additions: String,
    /// What the conversation holds, in order.
    pub pieces: Vec<Piece>,
}

/// A context cannot be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContextError {
    /// What cannot be left out does not fit.
    #[error("the {what} needs {needed} tokens of {available}")]
    Overflow {
        /// Tokens that are needed at least.
        needed: u64,
        /// Tokens that there are.
        available: u64,
        /// What is too large.
        what: &'static str,
    },
    /// No strategy has this name.
    #[error("no strategy is named {name}; there are {}", listed(known))]
    UnknownStrategy {
        /// The name.
        name: String,
        /// The names that there are, each with what it keeps.
        known: Vec<(&'static str, &'static str)>,
    },
    /// The window is smaller than anything can be built for.
    #[error("a context window of {size} tokens is too small; the least is {minimum}")]
    WindowTooSmall {
        /// What was asked for.
        size: u32,
        /// The least.
        minimum: u32,
    },
    /// The records could not be read.
    #[error(transparent)]
    Contents(#[from] ContentsError),
}

/// Names with what they stand for, on one line.
fn listed(known: &[(&str, &str)]) -> String {
    let lines: Vec<String> =
        known.iter().map(|(name, about)| format!("{name} ({about})")).collect();
    lines.join(", ")
}

#[cfg(test)]
mod tests;
