//! `ollmctl tour`: it succeeds, and however it ends it leaves no process and no file.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::harness::{
    Answer, ChildExt as _, DEADLINE, FakeOllama, Fault, Follower, Sandbox, program, run, until,
};

/// Returns the command of a tour, and the directory in which it creates its scratch home.
fn tour(sandbox: &Sandbox) -> (Command, PathBuf) {
    let scratch = PathBuf::from(sandbox.project_dir("t"));
    let mut command = sandbox.command("ollmctl");
    command.env("OLLM_DAEMON", program("ollmd")).env("TMPDIR", &scratch).arg("tour");
    (command, scratch)
}

#[track_caller]
fn assert_empty(scratch: &Path) {
    let entries = std::fs::read_dir(scratch).unwrap();
    let remaining: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(remaining.is_empty(), "{remaining:?}");
}

/// Waits until a process has ended; a zombie has.
fn wait_for_exit(pid: &str) {
    until("the daemon has ended", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
}

#[test]
fn tour_succeeds_without_a_model_server() {
    let sandbox = Sandbox::new();
    let (command, scratch) = tour(&sandbox);
    let printed = run(command, "").ok();
    assert!(printed.contains("Every check passed"), "{printed}");
    assert_empty(&scratch);
}

#[test]
fn tour_uses_the_model_server_of_the_environment_or_of_the_configuration() {
    for from_environment in [true, false] {
        let fake = FakeOllama::new();
        fake.script(Answer::text("Paris"));
        let sandbox = Sandbox::new();
        let (mut command, scratch) = tour(&sandbox);
        if from_environment {
            command.env("OLLAMA_HOST", fake.host());
        } else {
            sandbox.write_config(&format!("ollama:\n  host: {}\n", fake.host()));
        }
        let printed = run(command, "").ok();
        let answer = "asked for the capital of France: \"Paris\"";
        assert!(printed.contains(answer) && printed.contains("Every check passed"), "{printed}");
        let requests = fake.requests("/api/chat");
        assert_eq!(requests.len(), 1);
        let num_predict = &requests[0].body["options"]["num_predict"];
        assert!(num_predict.as_u64().unwrap() <= 32, "{num_predict}");
        assert_empty(&scratch);
    }
}

#[test]
fn signal_ends_the_tour_and_its_daemon() {
    for (signal, step) in
        [(Signal::INT, "start"), (Signal::TERM, "import"), (Signal::HUP, "recover")]
    {
        let sandbox = Sandbox::new();
        let (mut command, scratch) = tour(&sandbox);
        // A model that never answers keeps the tour from finishing before the signal.
        let fake = FakeOllama::new();
        fake.inject("/api/chat", &[Fault::Hang]);
        command.env("OLLAMA_HOST", fake.host());
        let tour = Follower::start(command);
        let first = tour.line();
        let pid = first.split("process ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        let mut line = first.clone();
        while !line.contains(step) {
            line = tour.line();
        }
        tour.signal(signal);
        assert_eq!(tour.exit_code(), Some(130), "{signal:?}");
        assert_empty(&scratch);
        wait_for_exit(pid);
    }
}

#[test]
fn tour_with_closed_stdout_leaves_nothing() {
    let sandbox = Sandbox::new();
    let (mut command, scratch) = tour(&sandbox);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // The first step cannot be printed.
    drop(child.stdout.take());
    let status = child.wait_timeout(DEADLINE);
    assert!(status.is_some(), "the tour ends");
    assert_empty(&scratch);
}
