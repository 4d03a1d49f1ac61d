//! Params and results of the methods: one file per noun, however short, so that a method is found by its name.
//!
//! **Invariant**: params refuse unknown fields, so that a misspelled option is an error and never a silent default.

pub mod chat;
pub mod context;
pub mod daemon;
pub mod env;
pub mod event;
pub mod files;
pub mod goal;
pub mod loops;
pub mod model;
pub mod session;
pub mod snapshot;
