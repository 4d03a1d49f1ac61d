//! The strategy `full-history`: every record, verbatim.

use super::plan::{PlanInput, PlannedHead, Strategy};
use crate::context::path::whole_range;

/// Keeps every record of the path.
pub(in crate::context) static FULL_HISTORY: Strategy = Strategy {
    name: "full-history",
    about: "every message, verbatim",
    min_tokens: 0,
    keeps_all: true,
    has_checkpoints: false,
    shrinks: false,
    plan,
};

fn plan(input: &mut PlanInput<'_, '_>, _target: u64) -> PlannedHead {
    Ok(Some(whole_range(input.build.path).into_iter().collect()))
}
