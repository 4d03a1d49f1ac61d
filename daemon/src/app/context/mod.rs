//! `context.*` and `goal.*`: contexts of sessions, and the goals, entries and pins that they contain.
//!
//! [`inputs::load`] reads everything that a build depends on, `crate::context` plans the context, and [`build`]
//! records the epoch and the deltas. A session's goals, context entries, pins and facts are folds of its records.

pub(crate) mod build;
mod deltas;
pub(crate) mod entries;
pub(crate) mod facts;
pub(super) mod folds;
pub(crate) mod goals;
mod head;
pub(super) mod inputs;
pub(crate) mod inspect;
pub(crate) mod pins;
pub(super) mod quota;
pub(crate) mod recall;
pub(super) mod recalled_block;
pub(super) mod state;
pub(crate) mod turn_recall;
pub(crate) mod used_files;
