//! The strategy `floor`, which always fits: the original task, the newest message of the user, and the newest units.
//!
//! Shares of the target: a quarter for the original task, half for the newest user message (everything if nothing
//! follows it), a tenth for the block that names what is left out, and the rest for the newest units. A record or unit
//! that is larger than its share keeps its beginning and its end.

use super::head::HeadBuilder;
use super::plan::{PlanInput, PlannedHead, Strategy};
use crate::context::path::split_units;

/// Tokens below which nothing useful can be kept.
const MIN_TARGET: u64 = 96;

/// Keeps the original task and the newest units.
pub(in crate::context) static FLOOR: Strategy = Strategy {
    name: "floor",
    about: "the original task and the newest turns, at most half of the room",
    // Half of it is the target.
    min_tokens: 2 * MIN_TARGET,
    keeps_all: false,
    has_checkpoints: false,
    shrinks: true,
    plan,
};

fn plan(input: &mut PlanInput<'_, '_>, target: u64) -> PlannedHead {
    if target < MIN_TARGET {
        return Ok(None);
    }
    let (task, newest) = (input.task(), input.newest_user_message());
    let is_last = newest.is_some_and(|at| input.is_last(at));
    let units = split_units(input.build.path);
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
    Ok(Some(head.into_items()))
}
