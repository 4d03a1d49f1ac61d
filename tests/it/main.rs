//! The integration tests: black-box tests of the real binaries, one module per noun or topic.
//!
//! Each test has a home of its own, runs in any order and beside all others, and waits for conditions with deadlines,
//! never for a fixed time. Start with [`harness`] to write one. `OLLM_TEST_BIN_DIR` names a directory of installed
//! binaries to test instead of the built ones.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "test helpers fail by panic and write files with std, as tools of a user do"
)]

mod acp;
mod acp_proxy;
mod affinity;
mod allowed_servers;
mod backup;
mod chat;
mod compaction;
mod config;
mod context;
mod crash;
mod ctl;
mod daemon;
mod env;
mod event;
mod examples;
mod fake_ollama;
mod files;
mod fixtures;
mod goal;
mod harness;
mod history;
mod home;
mod hooks;
mod images;
mod limits;
mod loops;
mod mcp;
mod model;
mod placement;
mod search;
mod server_counts;
mod servers;
mod session;
mod snapshot;
mod storage_faults;
mod store;
mod tidy;
mod tokens;
mod windows;
mod wire;
