//! Snapshots: taking them, their files, and the new sessions that are made of these.
//!
//! A snapshot is a small record in the log, and for some time a file. The record is enough to return to it (`branches`);
//! the file also survives the loss of the log. The content of a file follows from the log, so it is written after the
//! record, and for automatic snapshots in the background.
//!
//! **Invariants**: a record is durable before its file exists; at most `snapshots.maxCount` automatic snapshots of a session
//! have files, those that are pinned or requested not counted; no file is written while its session is deleted.

pub(crate) mod automatic;
mod content;
pub(crate) mod create;
mod files;
pub(crate) mod manage;
pub(crate) mod new_session;

pub(super) use files::{publish_unrecorded, save};

#[cfg(test)]
mod tests;
