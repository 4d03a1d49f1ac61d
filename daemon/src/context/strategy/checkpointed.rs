//! The strategy `checkpointed`: summaries of older turns, earlier messages of the user, and the newest turns verbatim.
//!
//! Older turns before the unit that is being answered may have six tenths of the target; facts, files, pins and earlier
//! user messages have their shares of the rest, and the tokens that they leave go to the turns again. If the turns begin
//! in the middle of one, the user message of that turn stands before them.

use super::head::HeadBuilder;
use super::plan::{PlanInput, PlannedHead, Strategy};
use crate::context::path::split_units;

/// Keeps the checkpoints in force and the newest of the records that they do not stand for.
pub(in crate::context) static CHECKPOINTED: Strategy = Strategy {
    name: "checkpointed",
    about: "summaries of older turns, what the user said, and the newest turns",
    min_tokens: 400,
    keeps_all: false,
    has_checkpoints: true,
    shrinks: true,
    plan,
};

fn plan(input: &mut PlanInput<'_, '_>, target: u64) -> PlannedHead {
    let Some(start) = input.summarized_until() else { return Ok(None) };
    let all = split_units(&input.build.path[..input.newest_start()]);
    let units = &all[all.partition_point(|unit| unit.start < start)..];
    let mut head = HeadBuilder::new(input, target);
    let reserved = head.reserve(start)?;
    head.keep_conversation(units, &reserved, 0)?;
    Ok(Some(head.into_items()))
}
