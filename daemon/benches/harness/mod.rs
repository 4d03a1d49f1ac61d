//! Shared parts of the benchmark programs: arguments, a daemon with its client, a model server, generated data, and reports.
//!
//! Each program prints JSON rows to stdout and a table to stderr. It measures only under `cargo bench`.
#![allow(dead_code, unused_imports, reason = "each program uses a part of it")]

pub(crate) mod arguments;
pub(crate) mod daemon;
pub(crate) mod generate;
pub(crate) mod model_server;
pub(crate) mod report;
pub(crate) mod session;
