//! Params and results, one file a noun.
//!
//! Params refuse names they do not know, so a misspelled option is an error and never a silent default.

pub mod chat;
pub mod context;
pub mod daemon;
pub mod env;
pub mod event;
pub mod goal;
pub mod loops;
pub mod model;
pub mod session;
