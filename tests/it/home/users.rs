//! Homes and files of another user, and limits of the user. These tests need root and say so when they are skipped.

use std::fs::File;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Daemon, Sandbox, program, run};

/// A user id without an account.
const OTHER: u32 = 61_234;

/// Returns whether this process can act as another user; prints the reason if it cannot.
fn can_be_other_user(sandbox: &Sandbox) -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give files to another user");
        return false;
    }
    // The sandbox is a private directory.
    std::fs::set_permissions(sandbox.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut runs = Command::new(program("ollmctl"));
    let runs = runs.arg("--version").uid(OTHER).output().is_ok();
    if !runs {
        eprintln!("skipped: another user cannot run the binaries");
    }
    runs
}

/// Returns `ollmctl` as another user.
fn ctl_as_other(sandbox: &Sandbox, args: &[&str]) -> Command {
    let mut command = sandbox.command("ollmctl");
    command.env("OLLM_DAEMON", program("ollmd")).args(args).uid(OTHER).gid(OTHER);
    command
}

fn give(path: &Path) {
    chown(path, Some(OTHER), Some(OTHER)).unwrap();
}

#[test]
fn home_of_another_user_is_refused_and_nothing_is_written() {
    let sandbox = Sandbox::new();
    if !can_be_other_user(&sandbox) {
        return;
    }
    give(&sandbox.home());
    let report = Daemon::try_start(&sandbox, &[]).err().expect("the home is another user's");
    assert!(report.contains("belongs to user 61234"), "{report}");
    let error = sandbox.ctl(["daemon", "start"]).fails(6);
    assert!(error.contains("belongs to user 61234"), "{error}");
    assert_eq!(std::fs::read_dir(sandbox.home()).unwrap().count(), 0, "nothing is created");

    // A `dataDir` elsewhere.
    let sandbox = Sandbox::new();
    let data = sandbox.project_dir("data");
    give(Path::new(&data));
    sandbox.write_config(&format!("sessions:\n  dataDir: {data}\n"));
    let report = Daemon::try_start(&sandbox, &[]).err().expect("the directory is another user's");
    assert!(report.contains(&data) && report.contains("belongs to user 61234"), "{report}");
}

#[test]
fn home_of_root_is_refused_with_the_command_that_gives_it_back() {
    let sandbox = Sandbox::new();
    if !can_be_other_user(&sandbox) {
        return;
    }
    sandbox.daemon().kill();
    let home = sandbox.home();
    let command = format!(
        "ollmctl --home DIR ...  # or, if it is yours: sudo chown -R {OTHER} {}",
        home.display()
    );
    let error = run(ctl_as_other(&sandbox, &["daemon", "start"]), "").fails(6);
    assert!(error.contains(&format!("try: {command}")), "{error}");

    // The directory was given back, the files in it were not.
    give(&home);
    let error = run(ctl_as_other(&sandbox, &["daemon", "start"]), "").fails(6);
    assert!(error.contains(&format!("try: {command}")), "{error}");
    assert!(
        error.contains(home.to_str().unwrap()) && error.contains("belongs to user 0"),
        "{error}"
    );

    let fixed = Command::new("chown").arg("-R").arg(OTHER.to_string()).arg(&home).status().unwrap();
    assert!(fixed.success());
    run(ctl_as_other(&sandbox, &["daemon", "start"]), "").ok();
    assert_eq!(home.join("ollmd.lock").metadata().unwrap().uid(), OTHER);
    run(ctl_as_other(&sandbox, &["daemon", "stop"]), "").ok();
}

#[test]
fn root_with_the_home_of_another_user_creates_nothing() {
    let sandbox = Sandbox::new();
    if !can_be_other_user(&sandbox) {
        return;
    }
    let user_home = sandbox.project_dir("ada");
    give(Path::new(&user_home));
    for program in ["ollmctl", "ollmd"] {
        let mut command = sandbox.command(program);
        command.env_remove("OLLM_HOME").env("HOME", &user_home);
        if program == "ollmctl" {
            command.env("OLLM_DAEMON", crate::harness::program("ollmd")).args(["daemon", "start"]);
        }
        let output = run(command, "");
        assert!(output.code.is_some_and(|code| code != 0), "{output:?}");
        assert!(output.stderr.contains("belongs to user 61234"), "{output:?}");
        assert!(!Path::new(&user_home).join(".ollm").exists());
    }
}

#[test]
fn doctor_names_a_home_of_another_user_or_without_rights_once() {
    let sandbox = Sandbox::new();
    if !can_be_other_user(&sandbox) {
        return;
    }
    let doctor = |home: &Path| {
        let mut command = ctl_as_other(&sandbox, &["--json", "doctor"]);
        command.env("OLLM_HOME", home);
        let output = run(command, "");
        let report: Value = serde_json::from_str(&output.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap().iter();
        let problems = findings.filter(|finding| finding["level"] == "problem");
        problems.map(|finding| finding["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let home = sandbox.home();
    sandbox.daemon().kill();
    let expect =
        format!("{} belongs to user 0, and this process runs as user {OTHER}", home.display());
    assert_eq!(doctor(&home), [expect]);
    // The home is not there yet, and only root may make it.
    let parent = sandbox.project_dir("closed");
    let expect = format!("{parent} cannot be written, so ollmd cannot keep anything there");
    assert_eq!(doctor(&Path::new(&parent).join("home")), [expect]);
}

#[test]
fn refused_threads_are_an_error_and_not_a_panic() {
    let sandbox = Sandbox::new();
    if !can_be_other_user(&sandbox) {
        return;
    }
    give(&sandbox.home());
    for limit in 1..=6 {
        let log = File::create(sandbox.path("limited.stderr")).unwrap();
        let mut command = Command::new("prlimit");
        sandbox.isolate(&mut command);
        command
            .arg(format!("--nproc={limit}"))
            .args(["timeout", "1"])
            .arg(program("ollmd"))
            .uid(OTHER)
            .gid(OTHER)
            .stderr(log);
        let _status = command.status().unwrap();
        let stderr = std::fs::read_to_string(sandbox.path("limited.stderr")).unwrap();
        assert!(!stderr.contains("panicked"), "with {limit} threads: {stderr}");
    }
}
