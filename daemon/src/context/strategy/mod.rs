//! The strategies that plan heads, and the one table of them.
//!
//! Adding a strategy is one file with a [`Strategy`] and one line in [`STRATEGIES`].

mod checkpointed;
mod floor;
mod full_history;
mod head;
mod minimal_state;
mod opening;
mod plan;
mod pruned_tools;

pub(super) use checkpointed::CHECKPOINTED;
pub(super) use floor::FLOOR;
pub(super) use full_history::FULL_HISTORY;
pub(super) use head::{common_cap, turn};
pub(super) use minimal_state::MINIMAL_STATE;
pub(super) use opening::beside_notes;
pub(super) use plan::{PlanInput, Strategy};
pub(super) use pruned_tools::PRUNED_TOOLS;

use super::input::ContextError;

/// Every strategy, in the order in which they are tried. The last one always fits.
pub(super) static STRATEGIES: [&Strategy; 5] =
    [&FULL_HISTORY, &PRUNED_TOOLS, &CHECKPOINTED, &MINIMAL_STATE, &FLOOR];

/// Returns the strategy of a name or an alias.
pub(super) fn by_name(name: &str) -> Result<&'static Strategy, ContextError> {
    let own = if name == "recent-plus-summary" { CHECKPOINTED.name } else { name };
    STRATEGIES.into_iter().find(|strategy| strategy.name == own).ok_or_else(|| {
        let known = STRATEGIES.map(|strategy| (strategy.name, strategy.about)).to_vec();
        ContextError::UnknownStrategy { name: name.to_owned(), known }
    })
}
