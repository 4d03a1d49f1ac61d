//! Sessions.

pub(crate) mod document;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod index;
