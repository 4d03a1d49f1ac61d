//! Goals: the fold of a session's `goal` records, the markers that models write, and the texts that models read.
//!
//! - `state`: the goals that the records on a path give, and how one change alters them.
//! - `markers`: the parser of markers in a model's text.
//! - `block`: the texts about goals that a model is sent.
//!
//! **Invariants**: pure; at most one goal is active; a locked decision changes only by a client's step that names it;
//! equal changes give equal states. Must not know sessions, files, the wire or how tokens are counted.

pub(crate) mod block;
pub(crate) mod markers;
mod state;

pub(crate) use state::{GoalError, GoalState, MAX_ITEMS, on_one_line};

#[cfg(test)]
mod tests;
