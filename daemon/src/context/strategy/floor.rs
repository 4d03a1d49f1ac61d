//! The strategy `floor`, which always fits: the original task, the newest message of the user, and the newest units.
//!
//! Shares of the target: a quarter for the original task, half for the newest user message (everything if nothing
//! follows it), a tenth for the block that names what is left out, and the rest for the newest units. A record or unit
//! that is larger than its share keeps its beginning and its end.

use ollm_protocol::content::HeadItem;

use super::head::HeadBuilder;
use super::plan::{PlanInput, Strategy};
use crate::context::error::ContentsError;
use crate::context::path::split_units;

/// Tokens below which nothing useful can be kept.
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
        input: &mut PlanInput<'_, '_>,
        target: u64,
    ) -> Result<Option<Vec<HeadItem>>, ContentsError> {
        if target < MIN_TARGET {
            return Ok(None);
        }
        let (task, newest) = (input.task(), input.newest_user_message());
        let is_last = newest.is_some_and(|at| input.is_last(at));
        let units = split_units(input.path);
        let mut head = HeadBuilder::new(input, target);
        let newest_share = |left: u64| if is_last { left } else { target / 2 };
        if let Some(at) = task {
            let share = if newest == task { newest_share(head.left) } else { target / 4 };
            if !head.keep_user(at, share)? {
                return Ok(None);
            }
        }
        if let Some(at) = newest.filter(|_| newest != task) {
            head.keep_user(at, newest_share(head.left))?;
        }
        let room = head.left;
        head.keep_newest(&units, room)?;
        Ok(Some(head.into_items(false)))
    }
}
