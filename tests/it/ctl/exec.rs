//! `ollmctl exec`: the environment and the output of a command, its record, and its end.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{
    ChildExt as _, DEADLINE, Sandbox, UNKNOWN_SESSION, Wire, assert_fields, start,
};

/// Returns the recorded tool calls of a session.
#[track_caller]
fn tool_calls(wire: &mut Wire, session: &str) -> Vec<Value> {
    let records = wire.records(session).into_iter();
    records
        .filter(|record| record["type"] == "toolCall")
        .map(|mut record| record["toolCall"].take())
        .collect()
}

#[test]
fn command_needs_no_dashes_before_it() {
    let sandbox = Sandbox::new();
    let _daemon = sandbox.daemon();
    let output = sandbox.ctl(["exec", "sh", "-c", "echo $0 $1; exit 3", "--json", "-x"]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(3), "--json -x\n"), "{output:?}");
}

/// Returns `ollmctl exec` of a command, for a test that sets variables or sends signals.
fn exec(sandbox: &Sandbox, session: &str, command: &[&str]) -> Command {
    let mut ctl = sandbox.command("ollmctl");
    ctl.args(["exec", "--session", session, "--"]).args(command);
    ctl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ctl
}

/// Waits for `ollmctl` to exit by itself and returns its exit code.
#[track_caller]
fn exit_code(child: &mut Child) -> Option<i32> {
    let status = child.wait_timeout(DEADLINE).expect("the command ends within the deadline");
    assert_eq!(status.signal(), None, "the command ends by itself");
    status.code()
}

#[test]
fn command_runs_without_secrets_and_is_recorded_with_its_output() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let script = "echo out; echo err >&2; echo \"[$A_TOKEN] [$PLAIN] [$PROXY]\"; pwd; cat; exit 3";
    let mut ctl = exec(&sandbox, &session, &["sh", "-c", script]);
    ctl.env("A_TOKEN", "hunter2").env("PLAIN", "seen").env("PROXY", "http://a:hunter2@b");
    ctl.stdin(Stdio::piped());
    let mut child = ctl.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"from stdin").unwrap();
    let output = child.wait_with_output().unwrap();
    let cwd = sandbox.project_dir("");
    let stdout = format!("out\n[] [seen] []\n{cwd}\nfrom stdin");
    assert_eq!(
        (String::from_utf8(output.stdout).unwrap(), output.status.code()),
        (stdout.clone(), Some(3))
    );
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "err\n");
    let calls = tool_calls(&mut wire, &session);
    let [call] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!(call["name"], "shell");
    assert_eq!(call["args"], json!({ "command": format!("sh -c '{script}'"), "cwd": cwd }));
    let content = format!("{stdout}\n[stderr]\nerr\n");
    assert_eq!(call["result"], json!({ "llmContent": content, "success": false, "exitCode": 3 }));
    assert!(call["durationMs"].is_u64() && call["timestamp"].is_string(), "{call}");
    assert!(sandbox.files_containing("hunter2").is_empty());
}

#[test]
fn output_passes_unchanged_and_is_recorded_without_control_characters() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let script =
        r"printf '\033[31mred\033[0m \377\000\n10 %%\r100 %%\n'; printf '\033]0;title\007x' >&2";
    let output = exec(&sandbox, &session, &["sh", "-c", script]).output().unwrap();
    assert_eq!(output.stdout, b"\x1b[31mred\x1b[0m \xff\0\n10 %\r100 %\n");
    assert_eq!(output.stderr, b"\x1b]0;title\x07x");
    let call = tool_calls(&mut wire, &session).remove(0);
    assert_eq!(call["result"]["llmContent"], "red \u{fffd}\n100 %\n[stderr]\nx");
    let log = std::fs::read_to_string(sandbox.log_path(&session)).unwrap();
    assert!(log.contains("100 %") && !log.contains("u001b"), "{log}");

    // Output beyond the limit of a record still passes completely.
    let output = exec(&sandbox, &session, &["seq", "1000000"]).output().unwrap();
    assert_eq!(output.stdout.len(), 6_888_896);
    let call = tool_calls(&mut wire, &session).remove(1);
    let text = call["result"]["llmContent"].as_str().unwrap();
    assert!(text.len() < 32 * 1024 && text.starts_with("1\n2\n") && text.ends_with("\n1000000\n"));
    assert!(text.contains(" bytes left out ...]\n"), "{text}");
}

#[test]
fn non_utf8_variable_passes_unchanged_or_is_removed() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let raw = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let mut ctl = exec(&sandbox, &session, &["env", "-0"]);
    ctl.env("LATIN", raw(b"na\xefve")).env(raw(b"N\xefVE"), "name");
    ctl.env(raw(b"A\xff_TOKEN"), "hunter2").env("B_KEY", raw(b"\xff"));
    let output = ctl.output().unwrap();
    let has =
        |variable: &[u8]| output.stdout.split(|byte| *byte == 0).any(|found| found == variable);
    assert!(has(b"LATIN=na\xefve") && has(b"N\xefVE=name"), "{:?}", output.stdout);
    assert!(
        !output.stdout.windows(7).any(|bytes| bytes == b"hunter2" || bytes.starts_with(b"B_KEY"))
    );
}

#[test]
fn exit_code_is_that_of_the_command() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let not_executable = sandbox.path("text");
    std::fs::write(&not_executable, "no program").unwrap();
    let not_executable = not_executable.to_str().unwrap();
    let check = |command: &[&str], code: i32| {
        let output = exec(&sandbox, &session, command).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{command:?} {output:?}");
    };
    check(&["true"], 0);
    check(&["sh", "-c", "exit 255"], 255);
    check(&["sh", "-c", "kill -9 $$"], 137);
    check(&["sh", "-c", "kill -TERM $$"], 143);
    check(&["no-such-program-anywhere"], 127);
    check(&[not_executable], 126);
    let results: Vec<Value> =
        tool_calls(&mut wire, &session).into_iter().map(|mut call| call["result"].take()).collect();
    let codes: Vec<i64> =
        results.iter().map(|result| result["exitCode"].as_i64().unwrap()).collect();
    assert_eq!(codes, [0, 255, 137, 143, 127, 126]);
    assert_eq!((&results[0]["success"], &results[1]["success"]), (&json!(true), &json!(false)));
    assert_eq!(results[2]["error"], "ended by signal 9");
    assert!(results[4]["error"].as_str().unwrap().contains("no-such-program-anywhere"));
}

#[test]
fn signal_reaches_the_command_and_its_output_is_recorded() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let killed = ["sh", "-c", "echo ready; exec sleep 1000"];
    let trapping =
        ["sh", "-c", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done"];
    for (command, signal, code) in [(killed, Signal::INT, 130), (trapping, Signal::TERM, 7)] {
        let mut child = exec(&sandbox, &session, &command).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
        assert_eq!(exit_code(&mut child), Some(code));
        stdout.read_to_string(&mut line).unwrap();
    }
    let calls = tool_calls(&mut wire, &session);
    let contents: Vec<&Value> = calls.iter().map(|call| &call["result"]["llmContent"]).collect();
    assert_eq!(contents, [&json!("ready\n"), &json!("ready\nbye\n")]);
}

#[test]
fn timeout_ends_the_command_and_background_processes_are_not_awaited() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    // The limit holds for the calls to the daemon too, so it leaves them some time.
    let limited = ["--timeout", "2", "exec", "--session", &session, "--", "sleep", "1000"];
    let output = sandbox.ctl(limited);
    assert_eq!(output.code, Some(124), "{output:?}");
    let in_background =
        ["exec", "--session", &session, "--", "sh", "-c", "sleep 30 & echo $!; echo done"];
    let printed = sandbox.ctl(in_background).ok();
    let (pid, rest) = printed.split_once('\n').unwrap();
    kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(rest, "done\n");
    let calls = tool_calls(&mut wire, &session);
    assert!(calls[0]["result"]["error"].as_str().unwrap().contains("longer than 2 s"), "{calls:?}");
    assert_eq!(calls[1]["result"]["exitCode"], 0);
}

#[test]
fn closed_stdout_ends_the_command_with_sigpipe() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    let mut child = exec(&sandbox, &session, &["yes"]).spawn().unwrap();
    let mut some = [0; 4];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!(exit_code(&mut child), Some(128 + 13));
    assert_eq!(tool_calls(&mut wire, &session).len(), 1);
}

#[test]
fn command_does_not_run_without_daemon_or_session() {
    let sandbox = Sandbox::new();
    let witness = sandbox.path("the-command-ran");
    let touch = ["--", "touch", witness.to_str().unwrap()];
    let error = sandbox.ctl(["--no-spawn", "exec"].iter().chain(&touch)).fails(6);
    assert!(error.contains("ollmctl daemon start"), "{error}");
    let (daemon, mut wire) = sandbox.daemon_and_wire();
    sandbox.ctl(["exec", "--session", UNKNOWN_SESSION].iter().chain(&touch)).fails(3);
    sandbox.ctl(["exec"]).fails(2);
    assert!(!witness.exists(), "a refused command does not run");
    // A command that cannot be recorded afterwards keeps its exit code.
    let session = wire.create(json!({}));
    wire.record(&session, "user", "Stop it.");
    let kill = format!("kill -9 {}; echo done; exit 5", daemon.pid());
    let output =
        sandbox.ctl(["--no-spawn", "exec", "--session", &session, "--", "sh", "-c", &kill]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(5), "done\n"));
    let warning = "warning: the command ran but is not recorded";
    assert!(output.stderr.contains(warning), "{output:?}");
}

#[test]
fn json_flag_prints_one_value_and_project_keeps_its_session() {
    let (sandbox, _daemon, mut wire) = start();
    let run = |args: &[&str]| {
        let mut ctl = sandbox.command("ollmctl");
        ctl.env("A_TOKEN", "hunter2").args(["--json", "exec", "--"]).args(args);
        let output = ctl.output().unwrap();
        let value: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
        (value, String::from_utf8(output.stderr).unwrap(), output.status.code())
    };
    let (value, stderr, code) = run(&["sh", "-c", "echo out; echo err >&2; exit 2"]);
    assert_eq!((code, value["exitCode"].as_i64()), (Some(2), Some(2)));
    assert!(stderr.contains("out\n") && stderr.contains("err\n"), "{stderr}");
    assert_eq!(value["output"], "out\n[stderr]\nerr\n");
    assert_eq!(value["removed"], json!([{ "name": "A_TOKEN", "rule": "*_TOKEN" }]));
    assert_fields(&value, json!({ "recorded": true, "stdoutBytes": 4, "cut": false }));
    let session = value["sessionId"].as_str().unwrap().to_owned();
    let project = sandbox.project_dir("");
    let current = wire.ok("session.current", json!({ "projectPath": project }));
    assert_eq!(current["session"]["sessionId"], session.as_str());
    let (again, _, _) = run(&["true"]);
    assert_eq!(
        again["sessionId"],
        session.as_str(),
        "the next command is recorded in the same session"
    );
    // The third identical command is reported as a loop.
    let (_, _, _) = run(&["true"]);
    let (third, stderr, _) = run(&["true"]);
    assert_eq!(third["loop"]["kind"], "call", "{third}");
    assert!(stderr.contains("ollmctl loop reset"), "{stderr}");
}
