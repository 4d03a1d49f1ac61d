//! `ollmctl tour`: it holds, and however it ends it leaves nothing behind.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::harness::{FakeOllama, Follower, Sandbox, program, run, until};

/// A tour whose scratch home lies in a directory of the test's own.
fn tour(sandbox: &Sandbox) -> (Command, PathBuf) {
    let place = PathBuf::from(sandbox.project("t"));
    let mut command = sandbox.command("ollmctl");
    command.env("OLLM_DAEMON", program("ollmd")).env("TMPDIR", &place).arg("tour");
    (command, place)
}

#[track_caller]
fn check_nothing_is_left(place: &PathBuf) {
    let left: Vec<_> =
        std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Waits until a process is gone or only waits for its parent to notice.
fn until_gone(pid: &str) {
    until("the daemon is gone", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
}

#[test]
fn every_claim_of_the_tour_holds() {
    let sandbox = Sandbox::new();
    let (command, place) = tour(&sandbox);
    let said = run(command, "").ok();
    assert!(said.contains("Every check passed"), "{said}");
    check_nothing_is_left(&place);
}

#[test]
fn the_tour_asks_the_model_server_that_is_configured() {
    let fake = FakeOllama::start("0.33.0");
    let sandbox = Sandbox::new();
    sandbox.write_config(&format!("ollama:\n  host: {}\n", fake.host()));
    let (command, place) = tour(&sandbox);
    let said = run(command, "").ok();
    assert!(said.contains("asked for the capital of France: \"ok\""), "{said}");
    assert_eq!(fake.requests("/api/chat").len(), 1);
    check_nothing_is_left(&place);
}

#[test]
fn a_signal_ends_the_tour_and_nothing_is_left() {
    for (signal, after) in
        [(Signal::INT, "start"), (Signal::TERM, "import"), (Signal::HUP, "recover")]
    {
        let sandbox = Sandbox::new();
        let (command, place) = tour(&sandbox);
        let tour = Follower::start(command);
        let first = tour.line();
        let pid = first.split("process ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        let mut line = first.clone();
        while !line.contains(after) {
            line = tour.line();
        }
        tour.signal(signal);
        assert_eq!(tour.end(), Some(130), "{signal:?}");
        check_nothing_is_left(&place);
        until_gone(pid);
    }
}

#[test]
fn a_tour_that_cannot_go_on_leaves_nothing() {
    let sandbox = Sandbox::new();
    let (mut command, place) = tour(&sandbox);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // Nobody reads: the first step cannot be told.
    drop(child.stdout.take());
    let _status = child.wait().unwrap();
    check_nothing_is_left(&place);
}
