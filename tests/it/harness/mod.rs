//! What every test needs: a home, a daemon, a client, raw bytes.
//!
//! Nothing here knows a noun of the product beyond what it takes to start, reach and stop the daemon.

mod ctl;
mod daemon;
mod fake_ollama;
mod person;
mod sandbox;
mod wait;
mod wire;

pub(crate) use ctl::{Follower, Output, run};
pub(crate) use daemon::Daemon;
pub(crate) use fake_ollama::{
    Answer, FakeOllama, Fault, RENDER, Seen, VOCABULARY, count, gguf, render,
};
pub(crate) use person::Person;
pub(crate) use sandbox::{Sandbox, every_file, fixture};
pub(crate) use wait::{DEADLINE, Random, Waits, until};
pub(crate) use wire::{Framing, Wire, kind_of, text_message};

use std::path::PathBuf;

/// The path of a binary under test.
pub(crate) fn program(name: &str) -> PathBuf {
    if let Some(directory) = std::env::var_os("OLLM_TEST_BIN_DIR") {
        return PathBuf::from(directory).join(name);
    }
    match name {
        "ollmd" => env!("CARGO_BIN_EXE_ollmd").into(),
        "ollmctl" => env!("CARGO_BIN_EXE_ollmctl").into(),
        _ => panic!("there is no binary {name}"),
    }
}
