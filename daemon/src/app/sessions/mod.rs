//! `session.*`: recording, reading, listing, changing, deleting and transferring sessions.

pub(crate) mod blame;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod documents;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod input;
pub(crate) mod list;
pub(crate) mod read;
pub(crate) mod retention;

pub(crate) mod update;

#[cfg(test)]
mod read_faults;
