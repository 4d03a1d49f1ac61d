//! The strategies that plan heads, and the one table of them.
//!
//! Adding a strategy is one file with an implementation of [`Strategy`] and one line in [`STRATEGIES`].

mod checkpointed;
mod floor;
mod full_history;
mod head;
mod minimal_state;
mod opening;
mod plan;
mod pruned_tools;

pub(crate) use opening::PIN_PERCENT;
pub(super) use plan::{PlanInput, RECENT_PERCENT, Strategy};

use super::error::ContextError;

/// Every strategy, in the order in which they are tried.
pub(super) const STRATEGIES: &[&dyn Strategy] = &[
    &full_history::FullHistory,
    &pruned_tools::PrunedTools,
    &checkpointed::Checkpointed,
    &minimal_state::MinimalState,
    &floor::Floor,
];

/// The strategy that shortens old tool results.
pub(super) const PRUNED: &dyn Strategy = &pruned_tools::PrunedTools;
/// The strategy that begins with the checkpoints in force.
pub(super) const CHECKPOINTED: &dyn Strategy = &checkpointed::Checkpointed;
/// The strategy that needs no summary.
pub(super) const MINIMAL: &dyn Strategy = &minimal_state::MinimalState;
/// The strategy that always fits.
pub(super) const FLOOR: &dyn Strategy = &floor::Floor;

/// Other names of strategies.
const ALIASES: &[(&str, &str)] = &[("recent-plus-summary", checkpointed::NAME)];

/// The name of the strategy in force without an epoch: everything is shown verbatim.
pub(super) const IMPLICIT: &str = full_history::NAME;

/// Returns the strategy of a name or an alias.
pub(super) fn by_name(name: &str) -> Result<&'static dyn Strategy, ContextError> {
    let own = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, own)| own);
    STRATEGIES.iter().copied().find(|strategy| strategy.name() == own).ok_or_else(|| {
        let known = STRATEGIES.iter().map(|strategy| (strategy.name(), strategy.about())).collect();
        ContextError::UnknownStrategy { name: name.to_owned(), known }
    })
}
