//! Compaction, as far as it is a matter of values: what goes, what stays, what a summarizer is asked, what of its
//! answer is taken, and what becomes of checkpoints.
//!
//! Pure and deterministic; must not know sessions, queues or model servers.
//!
//! - `plan`: where a conversation is cut, and the heads that a compaction may open.
//! - `sections`: the fixed form of a summary; `verify`: whether an answer is one; `fit`: making it shorter.
//! - `prompt`: what a summarizer is sent; `transcript`: records as it reads them; `defuse`: data that stays data.
//! - `extract`: a summary without a model; `retention`: what must survive, and whether it did.
//! - `gather`: one pass over a range; `checkpoint`: levels, ageing, merging, limits; `renew`: those after a compaction.

pub(crate) mod checkpoint;
mod defuse;
pub(crate) mod extract;
pub(crate) mod fit;
pub(crate) mod gather;
mod plan;
pub(crate) mod prompt;
pub(crate) mod renew;
pub(crate) mod retention;
pub(crate) mod sections;
pub(crate) mod transcript;
pub(crate) mod verify;

pub(crate) use self::plan::{
    CutPlan, compaction_cut, needs_compaction, prune, truncate, with_checkpoints,
};
