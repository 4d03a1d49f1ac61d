//! Sessions: append-only logs, the folds of their records, and one writer for each session.
//!
//! [`Sessions`] is the API for the rest of the daemon. An open session consists of a queue of writes, the fold in
//! memory ([`OpenSession`]) and the writer of its log, which one thread of the sync pool runs at a time. Readers take
//! the lock of the fold for a moment and read contents from the file without it.
//!
//! **Invariants**: a reply to a write means that its records are synced; the writes of one caller keep their order; an
//! id reaches a path only as a parsed UUID. This module knows no contexts, models, SQL or methods of the wire.

mod cell;
mod copies;
pub(crate) mod document;
mod error;
mod examine;
pub(crate) mod export;
mod fork;
pub(crate) mod import;
pub(crate) mod index;
mod kept_files;
mod log;
mod open_session;
pub(crate) mod operations;
mod pending;
mod plan;
mod pool;
mod remove;
mod shared;
mod source;
mod state;
mod store;
mod write;

pub(crate) use copies::SessionCopy;
pub(crate) use error::SessionError;
pub(crate) use examine::{CatalogView, SessionExam};
pub(crate) use fork::NewFork;
pub(crate) use open_session::OpenSession;
pub(crate) use state::{IDLE_CLOSE_MS, NO_SERVER, SessionState, project_hash};
pub(crate) use store::Sessions;
pub(crate) use write::{
    Appended, IdempotencyKey, KeptContent, KeptFiles, NewRecord, NewSession, Observer, Parent,
    SessionChange,
};

#[cfg(test)]
pub(crate) use log::ReadFaults;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(test), expect(dead_code, reason = "the checks of fuzzing use a part of it"))]
mod testing;
#[cfg(test)]
mod tests;
