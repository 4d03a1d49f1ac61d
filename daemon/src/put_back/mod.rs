//! Putting files back: removes the changes by a session's tool calls from files, or makes them again.
//!
//! [`layers`] folds the writes of a session into layers for each file. [`plan`] compares the layers with the disk and
//! decides which files can be put back. [`apply`] puts them back, with a [`journal`] that survives a crash and a [`stage`]
//! in the project; [`take_back`] reverses it, or removes the stage; one with many files moves to the [`discarded`] stages.
//!
//! **Invariants**: a file is changed only if it has exactly the bytes that the session left in it, checked again when it
//! is changed, beneath the directory of the project and without following links. No byte of anybody else is lost:
//! a file takes the place of another one, which is examined before it is removed. An interrupted change is taken back,
//! unless the record of its plan is in the log. FORMAT.md, "Putting files back".

pub(crate) mod apply;
pub(crate) mod discarded;
pub(crate) mod journal;
pub(crate) mod layers;
mod places;
pub(crate) mod plan;
pub(crate) mod stage;
pub(crate) mod take_back;
#[cfg(test)]
mod tests;
