//! Summaries of what was, what the user said, and the newest turns verbatim.
//!
//! Of the target, the newest turns may have six tenths; files, pins and earlier user messages have their shares of
//! the rest, and what they leave goes to the turns again. Where the newest turns begin in the middle of a turn, the
//! message that began it stands before them as what is being answered.

use ollm_protocol::content::HeadItem;

use super::keep::Keeper;
use super::{Ground, Strategy};
use crate::context::contents::ContentsError;
use crate::context::units::split;

/// Its name.
pub(super) const NAME: &str = "checkpointed";
/// Percent of the target for the newest turns.
pub(crate) const RECENT_PERCENT: u64 = 60;

/// Keeps the checkpoints in force and what they do not stand for.
pub(super) struct Checkpointed;

impl Strategy for Checkpointed {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "summaries of older turns, what the user said, and the newest turns"
    }

    fn min_tokens(&self) -> u64 {
        1500
    }

    fn has_checkpoints(&self) -> bool {
        true
    }

    fn plan(
        &self,
        ground: &mut Ground<'_, '_>,
        target: u64,
    ) -> Result<Option<Vec<HeadItem>>, ContentsError> {
        let Some(start) = summarized(ground) else { return Ok(None) };
        let path = ground.path;
        let all = split(path);
        let units = &all[all.partition_point(|unit| unit.start < start)..];
        let mut keeper = Keeper::new(ground, target);
        let reserve = keeper.reserve(start)?;
        let room = keeper.left * RECENT_PERCENT / 100;
        keeper.keep_newest(units, room)?;
        let (first, share) = (keeper.first_turn(), keeper.left.min(target / 2));
        keeper.keep_begun(first, share)?;
        keeper.keep_opening(&reserve)?;
        keeper.keep_earlier(keeper.first_turn(), &reserve)?;
        keeper.keep_rest(units)?;
        Ok(Some(keeper.into_head(true)))
    }
}

/// Where the records begin that no checkpoint stands for; `None` without a checkpoint.
pub(super) fn summarized(ground: &Ground<'_, '_>) -> Option<usize> {
    let last = ground.checkpoints.last()?;
    Some(ground.path.partition_point(|item| item.seq <= last.to))
}
