//! `ollmctl exec --track`: the files that a command wrote are recorded, and undone with it.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::harness::{Daemon, Follower, Output, Sandbox, Wire, run, start, until};

/// A session of a project in which commands run.
struct TrackedProject {
    sandbox: Sandbox,
    _daemon: Daemon,
    wire: Wire,
    root: String,
    session: String,
}

impl TrackedProject {
    fn new() -> Self {
        let (sandbox, daemon, mut wire) = start();
        let root = sandbox.project_dir("p");
        let session = wire.create(json!({ "projectPath": root }));
        wire.record(&session, "user", "work");
        Self { sandbox, _daemon: daemon, wire, root, session }
    }

    fn ctl(&self, args: &[&str]) -> Command {
        let mut command = self.sandbox.command("ollmctl");
        command.args(args).current_dir(&self.root);
        command
    }

    /// Runs a script as a tracked command.
    fn track(&self, script: &str) -> Command {
        self.ctl(&["exec", "--session", &self.session, "--track", "--", "sh", "-c", script])
    }

    fn undo(&self, args: &[&str]) -> Output {
        let mut all = vec!["undo", "--session", &self.session];
        all.extend(args);
        run(self.ctl(&all), "")
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        fs::write(format!("{}/{path}", self.root), bytes).unwrap();
    }

    fn read(&self, path: &str) -> Option<Vec<u8>> {
        fs::read(format!("{}/{path}", self.root)).ok()
    }
}

#[test]
fn contents_of_control_bytes_are_recorded_and_put_back() {
    let project = TrackedProject::new();
    let names = ["nul", "escapes", "bells"];
    let contents = [0, 0x1b, 7].map(|byte| vec![byte; 1024 * 1024]);
    for (name, content) in names.iter().zip(&contents) {
        project.write(name, content);
    }
    let output = run(project.track("for file in *; do echo x > $file; done"), "");
    assert_eq!(output.stderr, "");
    output.ok();
    assert_eq!(project.read("nul").unwrap(), b"x\n");
    project.undo(&["--files", "--yes"]).ok();
    for (name, content) in names.iter().zip(&contents) {
        assert!(project.read(name).as_ref() == Some(content), "{name}");
    }
}

#[test]
fn command_whose_client_was_killed_stops_the_undo_of_files() {
    let mut project = TrackedProject::new();
    run(project.track("echo first > a"), "").ok();
    let killed = Follower::start(project.track("echo second > a; echo $$; exec sleep 1000"));
    let command: i32 = killed.line().parse().unwrap();
    killed.signal(Signal::KILL);
    assert_eq!(killed.exit_code(), None);
    kill_process(Pid::from_raw(command).unwrap(), Signal::KILL).unwrap();
    let start = project.wire.records(&project.session).pop().unwrap();
    assert_eq!(start["custom"]["name"], "ollm.toolStart");
    let error = project.undo(&["--files", "--yes"]).fails(4);
    assert!(error.contains("its result is not recorded"), "{error}");
    let hint = format!("try: ollmctl undo 1 --session {}", project.session);
    assert!(error.trim_end().ends_with(&hint), "{error}");
    let error = project.undo(&["2", "--files", "--yes"]).fails(4);
    assert!(error.trim_end().ends_with(&hint), "{error}");
    let preview = project.undo(&["--files", "preview"]).ok();
    assert!(preview.contains("what shell wrote: its result is not recorded"), "{preview}");
    assert_eq!(project.read("a").unwrap(), b"second\n", "nothing was put back");
    project.undo(&[]).ok();
    let undone = project.undo(&["--files", "--yes"]).ok();
    assert!(undone.contains("conflict    a"), "{undone}");
    assert_eq!(project.read("a").unwrap(), b"second\n", "somebody else's content stays");
}

#[test]
fn start_and_result_are_one_operation_and_an_undo_takes_both() {
    let project = TrackedProject::new();
    run(project.track("echo one > a"), "").ok();
    run(project.track("echo two > a"), "").ok();
    for expect in [Some(b"one\n".to_vec()), None] {
        project.undo(&["--files", "--yes"]).ok();
        assert_eq!(project.read("a"), expect);
    }
}

#[test]
fn signal_ends_the_reading_of_files_after_the_command() {
    let project = TrackedProject::new();
    // Sparse files whose hashes take longer than the test waits.
    let script = "for n in $(seq 1000); do truncate -s 1G huge$n; done; echo written";
    let mut command = project.track(script);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let last = format!("{}/huge1000", project.root);
    until("the files are there", || fs::metadata(&last).is_ok());
    let mut status = None;
    until("a signal ends the client", || {
        // The first ones may still be passed on to the command.
        kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), Signal::TERM).ok();
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(128 + 15));
    let error = project.undo(&["--files", "--yes"]).fails(4);
    assert!(error.contains("its result is not recorded"), "{error}");
}
