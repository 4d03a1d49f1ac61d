//! Compaction, as far as it is a matter of values: what goes, what stays, and the head that comes of it. Pure.

mod plan;

pub(crate) use self::plan::{
    CutPlan, compaction_cut, needs_compaction, prune, truncate, with_checkpoints,
};
