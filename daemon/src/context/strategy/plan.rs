//! A strategy as a value, and the input that it plans with.

use ollm_protocol::content::HeadItem;

use crate::context::input::BuildInput;
use crate::context::newest::NewestUnit;
use crate::context::path::{Bodies, ContentsError, PathItem};

/// A planner of heads: it selects what of a path a model is shown.
pub(in crate::context) struct Strategy {
    /// The name on the wire and in the log.
    pub name: &'static str,
    /// A line about the records that the strategy keeps, for the error that lists all strategies.
    pub about: &'static str,
    /// The fewest tokens of conversation with which the strategy is worth trying.
    pub min_tokens: u64,
    /// Whether the strategy keeps everything.
    pub keeps_all: bool,
    /// Whether the checkpoints in force stand before a planned head.
    pub has_checkpoints: bool,
    /// Whether a smaller target gives a smaller head.
    pub shrinks: bool,
    /// Plans a head that keeps the newest unit, and shows about as many tokens of older records as the second argument,
    /// without checkpoints.
    ///
    /// A head is a list of references. Only rendering it shows whether it fits.
    pub plan: fn(&mut PlanInput<'_, '_>, u64) -> PlannedHead,
}

/// The items of a head, or `None` if a strategy has none.
pub(super) type PlannedHead = Result<Option<Vec<HeadItem>>, ContentsError>;

/// The values that a strategy plans with.
pub(in crate::context) struct PlanInput<'a, 's> {
    pub build: &'a BuildInput<'a>,
    pub bodies: &'a mut Bodies<'s>,
    /// The unit that is being answered, which every head keeps.
    pub newest: &'a NewestUnit,
    /// The text of the checkpoints that stand before the head.
    pub notes: &'a str,
    /// Tokens that older user messages may have.
    pub user_tokens: u64,
    /// Tokens that a prompt may have; pins and file lists have shares of it.
    pub prompt_limit: u64,
}

impl PlanInput<'_, '_> {
    /// Returns the index of the first record that no checkpoint stands for, or `None` without a checkpoint.
    pub(super) fn summarized_until(&self) -> Option<usize> {
        let last = self.build.checkpoints.last()?;
        Some(self.build.path.partition_point(|item| item.seq <= last.to))
    }

    /// Returns the index of the original task, which is the first message of the user.
    pub(super) fn task(&self) -> Option<usize> {
        self.build.path.iter().position(PathItem::is_user_message)
    }

    /// Returns the index of the first record of the newest unit, or the length of the path if nothing is being answered.
    pub(super) fn newest_start(&self) -> usize {
        self.newest.items.keys().next().copied().unwrap_or(self.build.path.len())
    }
}
