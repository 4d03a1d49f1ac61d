//! The interface of a strategy and the values that it plans with.

use ollm_protocol::Seq;
use ollm_protocol::content::{Checkpoint, HeadItem};

use crate::context::error::ContentsError;
use crate::context::path::{Bodies, PathItem};
use crate::tokens::Counter;

/// Percent of a target that the newest turns may have where summaries, files, pins and earlier messages stand too.
pub(in crate::context) const RECENT_PERCENT: u64 = 60;

/// A planner of heads: it selects what of a path a model is shown.
///
/// A plan is a list of references. Whether it fits is found out by rendering it.
pub(in crate::context) trait Strategy: Sync {
    /// Returns the name on the wire and in the log.
    fn name(&self) -> &'static str;

    /// Returns one line on what the strategy keeps, for the error that lists all strategies.
    fn about(&self) -> &'static str;

    /// Returns the fewest tokens of conversation with which the strategy is worth trying.
    fn min_tokens(&self) -> u64;

    /// Whether the strategy keeps everything.
    fn keeps_all(&self) -> bool {
        false
    }

    /// Whether the heads begin with the checkpoints in force.
    fn has_checkpoints(&self) -> bool {
        false
    }

    /// Whether a smaller target gives a smaller head.
    fn shrinks(&self) -> bool {
        true
    }

    /// Plans a head of about `target` tokens at most, checkpoints not counted; returns `None` if there is none.
    fn plan(
        &self,
        input: &mut PlanInput<'_, '_>,
        target: u64,
    ) -> Result<Option<Vec<HeadItem>>, ContentsError>;
}

/// The values that a strategy plans with.
pub(in crate::context) struct PlanInput<'a, 's> {
    /// The path from the root to the active leaf.
    pub path: &'a [PathItem],
    pub bodies: &'a mut Bodies<'s>,
    pub counter: &'a Counter,
    /// The checkpoints in force, oldest first.
    pub checkpoints: &'a [Checkpoint],
    /// Pinned records, in the order of pinning.
    pub pins: &'a [Seq],
    /// The decisions that the goal locks.
    pub decisions: &'a [String],
    pub project_path: Option<&'a str>,
    /// Tokens that user messages may have.
    pub user_tokens: u64,
    /// Tokens that a prompt may have; pins and file lists have shares of it.
    pub prompt_limit: u64,
}

impl PlanInput<'_, '_> {
    /// Returns the index of the first record that no checkpoint stands for, or `None` without a checkpoint.
    pub(super) fn summarized_until(&self) -> Option<usize> {
        let last = self.checkpoints.last()?;
        Some(self.path.partition_point(|item| item.seq <= last.to))
    }

    /// Returns the index of the original task, which is the first message of the user.
    pub(super) fn task(&self) -> Option<usize> {
        self.path.iter().position(PathItem::is_user_message)
    }

    /// Returns the index of the newest message of the user.
    pub(super) fn newest_user_message(&self) -> Option<usize> {
        self.path.iter().rposition(PathItem::is_user_message)
    }

    /// Whether no record behind an index enters a context.
    pub(super) fn is_last(&self, at: usize) -> bool {
        !self.path[at + 1..].iter().any(PathItem::enters)
    }
}
