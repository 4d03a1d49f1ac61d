//! The strategy `floor`, which always fits: the unit that is being answered, the original task, pins, facts, and the newest
//! units before them.
//!
//! The original task may have half of the target. Pins and facts may each have a quarter of what it leaves, within their own
//! shares, and the newest units have the rest. A record or unit that is larger than its share keeps its beginning and its
//! end.

use super::head::HeadBuilder;
use super::plan::{PlanInput, PlannedHead, Strategy};
use crate::context::numbers::*;
use crate::context::path::split_units;

/// Keeps the original task, pins, facts and the newest units.
pub(in crate::context) static FLOOR: Strategy = Strategy {
    name: "floor",
    about: "the original task, pins, facts and the newest turns, at most half of the room",
    // Half of it is the target.
    min_tokens: 2 * FLOOR_TOKENS,
    keeps_all: false,
    has_checkpoints: false,
    shrinks: true,
    plan,
};

fn plan(input: &mut PlanInput<'_, '_>, target: u64) -> PlannedHead {
    let is_answering = !input.newest.items.is_empty();
    if target < FLOOR_TOKENS && !is_answering {
        return Ok(None);
    }
    let task = input.task();
    let units = split_units(&input.build.path[..input.newest_start()]);
    let mut head = HeadBuilder::new(input, target);
    if let Some(at) = task.filter(|at| !head.has(*at)) {
        let share = (head.left / 2).max(MIN_SHARE);
        head.quote_user(at, share)?;
    }
    let part = head.left / PART_DIVISOR;
    head.quote_pins(part)?;
    head.keep_facts(part);
    let room = head.left;
    head.keep_newest(&units, room)?;
    Ok(Some(head.into_items()))
}
