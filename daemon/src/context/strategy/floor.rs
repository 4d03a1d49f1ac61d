//! What always fits: the original task, the last thing the user said, and the newest whole units.
//!
//! Shares of the target: the original task a quarter, the last user message a half (all, when nothing follows it),
//! the block that names what is left out a tenth, the newest units the rest. A record or unit that is larger than
//! its share keeps head and tail.

use ollm_protocol::content::HeadItem;

use super::keep::Keeper;
use super::{Ground, Strategy};
use crate::context::contents::ContentsError;
use crate::context::units::{PathItem, split};

/// Tokens under which nothing useful can be kept.
const MIN_TARGET: u64 = 96;

/// Keeps the original task and the newest units.
pub(super) struct Floor;

impl Strategy for Floor {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn about(&self) -> &'static str {
        "the original task and the newest turns, at most half of the room"
    }

    fn min_tokens(&self) -> u64 {
        256
    }

    fn plan(
        &self,
        ground: &mut Ground<'_, '_>,
        target: u64,
    ) -> Result<Option<Vec<HeadItem>>, ContentsError> {
        if target < MIN_TARGET {
            return Ok(None);
        }
        let path = ground.path;
        let mut keeper = Keeper::new(ground, target);
        let task = path.iter().position(PathItem::is_user_message);
        let newest = path.iter().rposition(PathItem::is_user_message);
        let is_last = |at: usize| path[at + 1..].iter().all(|item| !item.enters());
        // What the user said last may have everything where nothing follows it.
        let share = |at: usize, left: u64| if is_last(at) { left } else { target / 2 };
        if let Some(at) = task {
            let share = if newest == task { share(at, keeper.left) } else { target / 4 };
            if !keeper.keep_user(at, share)? {
                return Ok(None);
            }
        }
        if let Some(at) = newest
            && newest != task
        {
            keeper.keep_user(at, share(at, keeper.left))?;
        }
        let room = keeper.left;
        keeper.keep_newest(&split(path), room)?;
        Ok(Some(keeper.into_head(false)))
    }
}
