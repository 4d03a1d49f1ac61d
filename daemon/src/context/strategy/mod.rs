//! Planners of heads, and the one table of them.
//!
//! A plan is a list of references; whether it fits is decided by rendering it, not by the planner.

mod floor;
mod full_history;

use ollm_protocol::content::HeadItem;

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

    /// Whether it keeps everything, so that a smaller target changes nothing.
    fn keeps_all(&self) -> bool {
        false
    }

    /// A head of about `target` tokens at most; `None` when there is none.
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
    /// The most that user messages may have, in tokens.
    pub(super) user_tokens: u64,
}

/// Every strategy, in the order in which they are tried.
pub(crate) const STRATEGIES: &[&dyn Strategy] = &[&full_history::FullHistory, &floor::Floor];

/// The strategy in force where no epoch was recorded: everything, verbatim.
pub(super) const IMPLICIT: &str = full_history::NAME;

/// The strategy of a name.
pub(super) fn by_name(name: &str) -> Result<&'static dyn Strategy, ContextError> {
    STRATEGIES.iter().copied().find(|strategy| strategy.name() == name).ok_or_else(|| {
        let known = STRATEGIES.iter().map(|strategy| (strategy.name(), strategy.about())).collect();
        ContextError::UnknownStrategy { name: name.to_owned(), known }
    })
}
