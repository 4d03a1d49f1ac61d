//! `ollmctl`: its commands, what scripts rely on, and its ways to reach the daemon.
//!
//! Commands for goals, models, loops and compaction are tested beside the methods that they call.

mod branches;
mod chat;
mod completions;
mod daemon;
mod exec;
mod files;
mod guide;
mod man;
mod memory;
mod scripting;
mod service;
mod sessions;
mod tour;
mod track;
mod ui;
mod workspace;

use serde_json::json;

use crate::harness::{Sandbox, array};

/// Records two short sessions with a daemon that then stops; returns their ids, the oldest first.
fn two_sessions(sandbox: &Sandbox) -> [String; 2] {
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    let ids = ["parsing tables", "rendering trees"].map(|title| {
        let session = wire.create(json!({ "title": title }));
        wire.record(&session, "user", &format!("Tell me about {title}."));
        wire.record(&session, "assistant", &format!("Here is all about {title}."));
        session
    });
    assert!(daemon.terminate().success());
    ids
}

/// Returns the number of sessions that `ollmctl sessions list` prints.
#[track_caller]
fn n_sessions(sandbox: &Sandbox) -> usize {
    let list = sandbox.ctl(["sessions", "list", "--json"]).json();
    array(&list["data"]).len()
}
