//! What scripts rely on: arguments, stdin, exit codes, JSON, clean output, and pipes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::process::Command;

use serde_json::{Value, json};

use super::two_sessions;
use crate::harness::{Sandbox, UNKNOWN_SESSION, assert_fields, fixture_path, program, start};

#[test]
fn json_flag_prints_one_value_on_stdout_and_errors_on_stderr() {
    let sandbox = Sandbox::new();
    let [_, id] = two_sessions(&sandbox);
    let _daemon = sandbox.daemon();
    let status = sandbox.ctl(["daemon", "status", "--json"]).json();
    assert_eq!(status["store"]["sessions"], 2);
    assert_eq!(
        sandbox.ctl(["--json", "sessions", "view", &id]).json()["session"]["sessionId"],
        id.as_str()
    );
    let failed = sandbox.ctl(["--json", "sessions", "view", UNKNOWN_SESSION]).fails(3);
    let error: Value = serde_json::from_str(&failed).unwrap_or_else(|e| panic!("{e}: {failed}"));
    assert!(error.to_string().contains("sessionNotFound"), "{error}");
    let failed = sandbox.ctl(["--json", "sessions", "lst"]).fails(2);
    let _error: Value = serde_json::from_str(&failed).unwrap_or_else(|e| panic!("{e}: {failed}"));
}

#[test]
fn exit_code_is_that_of_the_error_class() {
    let sandbox = Sandbox::new();
    sandbox.ctl(["--no-spawn", "sessions", "list"]).fails(6);
    let status = sandbox.ctl(["daemon", "status"]);
    assert_eq!((status.code, status.stdout.as_str()), (Some(6), "ollmd is not running\n"));
    let daemon = sandbox.daemon();
    sandbox.ctl(["sessions", "frobnicate"]).fails(2);
    sandbox.ctl(["call", "session.list", "{\"limt\": 1}"]).fails(2);
    sandbox.ctl(["call", "session.list", "{"]).fails(2);
    let unknown = sandbox.ctl(["call", "session.lst"]).fails(2);
    assert!(unknown.contains("session.list"), "the error suggests a method: {unknown}");
    let _gone = sandbox
        .ctl(["call", "session.get", "{\"sessionId\": \"01890000-0000-7000-8000-000000000000\"}"])
        .fails(3);
    let id =
        sandbox.ctl(["call", "session.create", "{\"key\": \"k\"}"]).json()["session"]["sessionId"]
            .clone();
    assert!(id.is_string());
    sandbox.ctl(["call", "session.create", "{\"key\": \"k\", \"title\": \"other\"}"]).fails(4);
    sandbox.write_config("sessions:\n  maxSesions: 3\n");
    let config = sandbox.ctl(["call", "daemon.reload"]).fails(5);
    assert!(config.contains("maxSesions"), "{config}");
    let checked = sandbox.ctl(["config", "check"]).fails(5);
    assert!(
        checked.contains("config.yaml") && checked.contains("maxSesions") && checked.contains('2'),
        "{checked}"
    );
    drop(daemon);
    let start = sandbox.ctl(["daemon", "start"]);
    assert_eq!(start.code, Some(5), "the error is that of the daemon: {start:?}");
    assert!(start.stderr.contains("maxSesions"), "{start:?}");
}

#[test]
fn call_reads_params_from_stdin() {
    let sandbox = Sandbox::new();
    let _daemon = sandbox.daemon();
    let created = sandbox
        .ctl_with_input(["call", "session.create", "-"], "{\"title\": \"from a pipe\"}")
        .json();
    assert_eq!(created["session"]["title"], "from a pipe");
    let id = created["session"]["sessionId"].as_str().unwrap();
    let params =
        json!({ "sessionId": id, "message": { "role": "user", "content": "x".repeat(300_000) } });
    let recorded =
        sandbox.ctl_with_input(["call", "session.record", "-"], &params.to_string()).json();
    assert_eq!(recorded["seq"], 1);
    let status = sandbox.ctl(["call", "daemon.status"]).json();
    assert!(status["pid"].is_u64());
}

#[test]
fn non_utf8_argument_is_a_path_or_an_error() {
    let sandbox = Sandbox::new();
    let _daemon = sandbox.daemon();
    let name = OsString::from_vec(b"caf\xe9.jsonl".to_vec());
    let arguments = |line: &str| -> Vec<OsString> {
        line.split(' ').map(OsString::from).chain([name.clone()]).collect()
    };
    sandbox.ctl(arguments("sessions view")).fails(2);
    sandbox.ctl(arguments("call")).fails(2);
    sandbox.ctl(arguments("sessions import")).fails(3);
    // A path in the file system need not be UTF-8.
    std::fs::copy(fixture_path("import/pi-v3.jsonl"), sandbox.path("").join(&name)).unwrap();
    sandbox.ctl(arguments("sessions import")).ok();
    let exported = sandbox.path("").join(OsString::from_vec(b"out\xff.md".to_vec()));
    let mut all: Vec<OsString> =
        ["sessions", "export", "last", "--output"].map(OsString::from).to_vec();
    all.push(exported.clone().into());
    sandbox.ctl(all).ok();
    assert!(exported.exists());
}

#[test]
fn sessions_subcommand_without_its_prefix_gets_hint() {
    let sandbox = Sandbox::new();
    let error = sandbox.ctl(["search", "foo"]).fails(2);
    assert!(error.contains("try: ollmctl sessions search --help"), "{error}");
    let error = sandbox.ctl(["--json", "view", "last"]).fails(2);
    let error: Value = serde_json::from_str(&error).unwrap();
    assert_eq!(error["error"]["hint"], "ollmctl sessions view --help");
    let error = sandbox.ctl(["nonsense"]).fails(2);
    assert!(error.contains("try: ollmctl --help"), "{error}");
    let error = sandbox.ctl(["sesions", "list"]).fails(2);
    assert!(error.contains("try: ollmctl sessions list") && !error.contains("tip:"), "{error}");
}

#[test]
fn control_characters_of_messages_are_not_printed() {
    let (sandbox, _daemon, mut wire) = start();
    let hostile = "\u{1b}]0;owned\u{7}\u{1b}[31mred\u{9b}2J\r\u{202e}end";
    let session = wire.create(json!({ "title": hostile }));
    wire.record(&session, "user", hostile);
    wire.record(&session, "assistant", hostile);
    for command in [
        &["sessions", "view", "last"][..],
        &["sessions", "list"],
        &["--json", "sessions", "view", "last"],
        &["call", "session.list"],
    ] {
        let mut with_color = vec!["--color", "never"];
        with_color.extend(command);
        let printed = sandbox.ctl(&with_color).ok();
        for control in ['\u{1b}', '\u{7}', '\u{9b}', '\r', '\u{202e}'] {
            assert!(!printed.contains(control), "{command:?} printed {control:?}: {printed:?}");
        }
        assert!(printed.contains("end"));
    }
}

#[test]
fn closed_pipe_is_success() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    for n in 0..300 {
        wire.record(&session, "user", &format!("line {n} {}", "words ".repeat(100)));
    }
    for command in
        ["sessions view last --full", "call rpc.discover", "sessions export last --format jsonl"]
    {
        let mut shell = Command::new("/bin/sh");
        sandbox.isolate(&mut shell);
        let ctl = program("ollmctl");
        let script = format!(
            "{{ '{}' {command}; echo \"exit $?\" >&2; }} | head -n 1 >/dev/null",
            ctl.display()
        );
        let output = shell.args(["-c", &script]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr.trim(), "exit 0", "{command}");
    }
}

#[test]
fn events_are_json_lines_that_follow_the_subscription() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "before");
    let other = wire.create(json!({}));
    wire.record(&other, "user", "elsewhere");
    let follower =
        sandbox.follow(["events", "--session", &session, "--kind", "message-recorded", "--json"]);
    wire.wait_for_count("subscriptions", 1);
    wire.record(&other, "user", "elsewhere");
    let seq = wire.record(&session, "assistant", "now");
    let event: Value = serde_json::from_str(&follower.line()).unwrap();
    assert_fields(&event, json!({ "kind": "message-recorded", "seq": seq }));
    assert_eq!(event["sessionId"], session.as_str());
}
