//! The strategy `checkpointed`: summaries of older turns, earlier messages of the user, and the newest turns verbatim.
//!
//! The newest turns may have six tenths of the target; files, pins and earlier user messages have their shares of the
//! rest, and the tokens that they leave go to the turns again. If the newest turns begin in the middle of a turn, the
//! user message of that turn stands before them as the message that is being answered.

use super::head::HeadBuilder;
use super::plan::{PlanInput, PlannedHead, Strategy};
use crate::context::path::split_units;

/// Keeps the checkpoints in force and the newest of the records that they do not stand for.
pub(in crate::context) static CHECKPOINTED: Strategy = Strategy {
    name: "checkpointed",
    about: "summaries of older turns, what the user said, and the newest turns",
    min_tokens: 1500,
    keeps_all: false,
    has_checkpoints: true,
    shrinks: true,
    plan,
};

fn plan(input: &mut PlanInput<'_, '_>, target: u64) -> PlannedHead {
    let Some(start) = input.summarized_until() else { return Ok(None) };
    let all = split_units(input.build.path);
    let units = &all[all.partition_point(|unit| unit.start < start)..];
    let mut head = HeadBuilder::new(input, target);
    let reserved = head.reserve(start)?;
    head.keep_conversation(units, &reserved, 0)?;
    Ok(Some(head.into_items()))
}
