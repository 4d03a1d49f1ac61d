//! `context.*` and `goal.*`: building contexts of sessions, and what they hold beside the conversation.
//!
//! [`inputs::load`] gathers everything that a build depends on, `crate::context` plans the context, and [`build`]
//! records what has to be recorded. A session's goals, context entries and pins are folds of its records.

pub(crate) mod build;
mod deltas;
pub(crate) mod entries;
mod folds;
pub(crate) mod goals;
pub(super) mod inputs;
pub(crate) mod inspect;
pub(crate) mod pins;
pub(super) mod quota;
