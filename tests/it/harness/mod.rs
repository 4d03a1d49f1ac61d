//! The test harness: an isolated home, the real binaries as processes, and a fake model server.
//!
//! A test starts what it needs and checks what a client or a person would see:
//!
//! ```ignore
//! #[test]
//! fn recorded_message_survives_kill() {
//!     let (sandbox, daemon, mut wire) = start();
//!     let session = wire.create(json!({}));
//!     let seq = wire.record(&session, "user", "hello");
//!     daemon.kill();
//!     let (_daemon, mut wire) = sandbox.daemon_and_wire();
//!     assert_eq!(wire.records(&session).last().unwrap()["seq"], seq);
//! }
//! ```
//!
//! - [`start`]: creates a [`Sandbox`], which is a home of its own for one test, starts a [`Daemon`] in it, and
//!   connects to it; [`start_with_config`] writes a configuration first.
//! - [`Wire`]: a connection to it; `ok` and `refused` call a method and check the outcome.
//! - [`Sandbox::ctl`]: runs `ollmctl` and returns its [`Output`]; [`Follower`] reads its lines while it runs, and
//!   [`Terminal`] runs it on a pseudo-terminal, [`ScreenTerminal`] on one whose whole screen is compared.
//! - [`FakeOllama`]: a model server with scripted answers and faults, which benchmarks and unit tests share;
//!   [`ModelSession`] is a daemon that uses it.
//! - [`until`]: the only way to wait for a state that nothing announces. A test never sleeps.
//!
//! Processes end and files disappear when these values are dropped. No harness file asserts product behavior.

mod ctl;
mod daemon;
mod fake_server;
mod model_session;
mod pty;
mod sandbox;
mod screen_terminal;
mod terminal;
mod wait;
mod wire;

pub(crate) use ctl::{Follower, Output, lines_of, run};
pub(crate) use daemon::Daemon;
pub(crate) use fake_server::answer::Answer;
pub(crate) use fake_server::http::{FakeServer, Step, response as http_response};
pub(crate) use fake_server::ollama::{
    FakeOllama, Fault, RENDER, Request, VOCABULARY, count, gguf, render, tokenizer_json,
};
pub(crate) use fake_server::openai;
pub(crate) use model_session::ModelSession;
pub(crate) use sandbox::{Sandbox, files_under, fixture_path, start, start_with_config};
pub(crate) use screen_terminal::ScreenTerminal;
pub(crate) use terminal::Terminal;
pub(crate) use wait::{ChildExt, DEADLINE, Random, until, until_after_pause, until_some};
pub(crate) use wire::{
    Framing, Wire, array, assert_fields, error_kind, rpc_notification, rpc_request, text_message,
};

use std::path::PathBuf;

/// The id of a session that no test creates.
pub(crate) const UNKNOWN_SESSION: &str = "01890000-0000-7000-8000-000000000000";

/// Returns the path of a binary under test.
pub(crate) fn program(name: &str) -> PathBuf {
    if let Some(directory) = std::env::var_os("OLLM_TEST_BIN_DIR") {
        return PathBuf::from(directory).join(name);
    }
    match name {
        "ollmd" => env!("CARGO_BIN_EXE_ollmd").into(),
        "ollmctl" => env!("CARGO_BIN_EXE_ollmctl").into(),
        _ => panic!("unknown binary {name}"),
    }
}
