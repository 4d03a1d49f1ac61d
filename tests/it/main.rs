//! The integration tests: black box, on the real binaries, one module per noun.
//!
//! A test gets a home of its own, runs in any order and beside all others, and waits on conditions with
//! deadlines, never for a fixed time. `OLLM_TEST_BIN_DIR` points at installed binaries instead of the built ones.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "helpers of tests fail loudly and make files with std, as a user's own tools would"
)]

mod chat;
mod chat_client;
mod compact;
mod context;
mod context_entries;
mod counts;
mod crash;
mod ctl;
mod daemon;
mod env;
mod event;
mod exec;
mod fake;
mod faults;
mod fixtures;
mod goal;
mod harness;
mod loops;
mod model;
mod search;
mod service;
mod session;
mod tidy;
mod tour;
mod wire;
