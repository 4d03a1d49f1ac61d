//! Planners of heads, and the one table of them.
//!
//! A plan is a list of references; whether it fits is decided by rendering it, not by the planner.

mod checkpointed;
mod floor;
mod full_history;
mod head;
mod keep;
mod minimal_state;
mod opening;
mod pruned_tools;

pub(super) use checkpointed::RECENT_PERCENT;
use ollm_protocol::Seq;
use ollm_protocol::content::{Checkpoint, HeadItem};
pub(crate) use opening::PIN_PERCENT;

use super::ContextError;
use super::contents::{Bodies, ContentsError};
use super::units::PathItem;
use crate::tokens::Counter;

/// Plans what of a path a model is shown.
pub(crate) trait Strategy: Sync {
    /// Names it on the wire and in the log.
    fn name(&self) -> &'static str;

    /// One line on what it keeps, for whoever asks for one that there is not.
    fn about(&self) -> &'static str;

    /// Tokens that the conversation must have for it to be worth trying.
    fn min_tokens(&self) -> u64;

    /// Whether it keeps everything.
    fn keeps_all(&self) -> bool {
        false
    }

    /// Whether its heads begin with the checkpoints in force.
    fn has_checkpoints(&self) -> bool {
        false
    }

    /// Whether a smaller target gives a smaller head.
    fn shrinks(&self) -> bool {
        true
    }

    /// A head of about `target` tokens at most, checkpoints not counted; `None` when there is none.
    fn plan(
        &self,
        ground: &mut Ground<'_, '_>,
        target: u64,
    ) -> Result<Option<Vec<HeadItem>>, ContentsError>;
}

/// What a strategy plans with.
pub(crate) struct Ground<'a, 's> {
    /// The path from the root to the active leaf.
    pub(super) path: &'a [PathItem],
    /// The contents.
    pub(super) bodies: &'a mut Bodies<'s>,
    /// Who counts.
    pub(super) counter: &'a Counter,
    /// The checkpoints in force, oldest first.
    pub(super) checkpoints: &'a [Checkpoint],
    /// Pinned records, in the order of pinning.
    pub(super) pins: &'a [Seq],
    /// Decisions that the goal locks.
    pub(super) decisions: &'a [String],
    /// The project's directory.
    pub(super) project: Option<&'a str>,
    /// The most that user messages may have, in tokens.
    pub(super) user_tokens: u64,
    /// The most that a prompt may have, in tokens; pins and file lists have shares of it.
    pub(super) prompt_limit: u64,
}

/// Every strategy, in the order in which they are tried.
pub(crate) const STRATEGIES: &[&dyn Strategy] = &[
    &full_history::FullHistory,
    &pruned_tools::PrunedTools,
    &checkpointed::Checkpointed,
    &minimal_state::MinimalState,
    &floor::Floor,
];

/// Other names under which a strategy is known.
const ALIASES: &[(&str, &str)] = &[("recent-plus-summary", checkpointed::NAME)];

/// The strategy in force where no epoch was recorded: everything, verbatim.
pub(super) const IMPLICIT: &str = full_history::NAME;

/// The strategy of a name.
pub(super) fn by_name(name: &str) -> Result<&'static dyn Strategy, ContextError> {
    let own = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, own)| own);
    STRATEGIES.iter().copied().find(|strategy| strategy.name() == own).ok_or_else(|| {
        let known = STRATEGIES.iter().map(|strategy| (strategy.name(), strategy.about())).collect();
        ContextError::UnknownStrategy { name: name.to_owned(), known }
    })
}

/// The strategy that begins with the checkpoints in force.
pub(super) const CHECKPOINTED: &dyn Strategy = &checkpointed::Checkpointed;
/// The strategy that shortens old tool results.
pub(super) const PRUNED: &dyn Strategy = &pruned_tools::PrunedTools;
/// The strategy that needs no summary.
pub(super) const MINIMAL: &dyn Strategy = &minimal_state::MinimalState;
/// The strategy that always fits.
pub(super) const FLOOR: &dyn Strategy = &floor::Floor;
