//! `ollmctl exec`: what the command gets, what passes through, what is recorded, how it ends.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{DEADLINE, Sandbox, Waits as _, Wire};

/// The tool calls of a session.
#[track_caller]
fn tool_calls(wire: &mut Wire, session: &str) -> Vec<Value> {
    let records = wire.records(session).into_iter();
    records
        .filter(|record| record["type"] == "toolCall")
        .map(|mut record| record["toolCall"].take())
        .collect()
}

/// A command that can be given an environment and signals.
fn exec(sandbox: &Sandbox, session: &str, command: &[&str]) -> Command {
    let mut ctl = sandbox.command("ollmctl");
    ctl.args(["exec", "--session", session, "--"]).args(command);
    ctl.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ctl
}

/// Waits for the end and returns the exit code.
#[track_caller]
fn ended(child: &mut Child) -> Option<i32> {
    let status = child.wait_for(DEADLINE).expect("it ends in time");
    assert_eq!(status.signal(), None, "it ends by itself");
    status.code()
}

#[test]
fn a_command_runs_without_secrets_and_is_recorded_with_its_output() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let script = "echo out; echo err >&2; echo \"[$A_TOKEN] [$PLAIN] [$PROXY]\"; pwd; cat; exit 3";
    let mut ctl = exec(&sandbox, &session, &["sh", "-c", script]);
    ctl.env("A_TOKEN", "hunter2").env("PLAIN", "seen").env("PROXY", "http://a:hunter2@b");
    ctl.stdin(Stdio::piped());
    let mut child = ctl.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"from stdin").unwrap();
    let done = child.wait_with_output().unwrap();
    let here = sandbox.path("").canonicalize().unwrap();
    let here = here.to_str().unwrap();
    let printed = format!("out\n[] [seen] []\n{here}\nfrom stdin");
    assert_eq!(
        (String::from_utf8(done.stdout).unwrap(), done.status.code()),
        (printed.clone(), Some(3))
    );
    assert_eq!(String::from_utf8(done.stderr).unwrap(), "err\n");
    let calls = tool_calls(&mut wire, &session);
    let [call] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!(call["name"], "shell");
    assert_eq!(call["args"], json!({ "command": format!("sh -c '{script}'"), "cwd": here }));
    let output = format!("{printed}\n[stderr]\nerr\n");
    assert_eq!(call["result"], json!({ "llmContent": output, "success": false, "exitCode": 3 }));
    assert!(call["durationMs"].is_u64() && call["timestamp"].is_string(), "{call}");
    assert!(sandbox.files_with("hunter2").is_empty());
}

#[test]
fn bytes_pass_unchanged_and_are_recorded_as_harmless_text() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let script =
        r"printf '\033[31mred\033[0m \377\000\n10 %%\r100 %%\n'; printf '\033]0;title\007x' >&2";
    let done = exec(&sandbox, &session, &["sh", "-c", script]).output().unwrap();
    assert_eq!(done.stdout, b"\x1b[31mred\x1b[0m \xff\0\n10 %\r100 %\n");
    assert_eq!(done.stderr, b"\x1b]0;title\x07x");
    let call = tool_calls(&mut wire, &session).remove(0);
    assert_eq!(call["result"]["llmContent"], "red \u{fffd}\n100 %\n[stderr]\nx");
    let log = std::fs::read_to_string(sandbox.log_of(&session)).unwrap();
    assert!(log.contains("100 %") && !log.contains("u001b"), "{log}");

    // More than is recorded still passes whole.
    let done = exec(&sandbox, &session, &["seq", "1000000"]).output().unwrap();
    assert_eq!(done.stdout.len(), 6_888_896);
    let call = tool_calls(&mut wire, &session).remove(1);
    let text = call["result"]["llmContent"].as_str().unwrap();
    assert!(text.len() < 32 * 1024 && text.starts_with("1\n2\n") && text.ends_with("\n1000000\n"));
    assert!(text.contains(" bytes left out ...]\n"), "{text}");
}

#[test]
fn variables_that_are_no_text_pass_without_loss_or_not_at_all() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let raw = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let mut ctl = exec(&sandbox, &session, &["env", "-0"]);
    ctl.env("LATIN", raw(b"na\xefve")).env(raw(b"N\xefVE"), "name");
    ctl.env(raw(b"A\xff_TOKEN"), "hunter2").env("B_KEY", raw(b"\xff"));
    let done = ctl.output().unwrap();
    let has = |variable: &[u8]| done.stdout.split(|byte| *byte == 0).any(|found| found == variable);
    assert!(has(b"LATIN=na\xefve") && has(b"N\xefVE=name"), "{:?}", done.stdout);
    assert!(
        !done.stdout.windows(7).any(|bytes| bytes == b"hunter2" || bytes.starts_with(b"B_KEY"))
    );
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let plain = sandbox.path("plain");
    std::fs::write(&plain, "no program").unwrap();
    let plain = plain.to_str().unwrap();
    let check = |command: &[&str], code: i32| {
        let done = exec(&sandbox, &session, command).output().unwrap();
        assert_eq!(done.status.code(), Some(code), "{command:?} {done:?}");
    };
    check(&["true"], 0);
    check(&["sh", "-c", "exit 255"], 255);
    check(&["sh", "-c", "kill -9 $$"], 137);
    check(&["sh", "-c", "kill -TERM $$"], 143);
    check(&["no-such-program-anywhere"], 127);
    check(&[plain], 126);
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
fn signals_reach_the_command_and_the_record_is_made() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    // One that dies of it, and one that ends in its own way.
    let dies = ["sh", "-c", "echo ready; exec sleep 1000"];
    let ends =
        ["sh", "-c", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done"];
    for (command, signal, code) in [(dies, Signal::INT, 130), (ends, Signal::TERM, 7)] {
        let mut child = exec(&sandbox, &session, &command).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        kill_process(Pid::from_raw(child.id().cast_signed()).unwrap(), signal).unwrap();
        assert_eq!(ended(&mut child), Some(code));
        stdout.read_to_string(&mut line).unwrap();
    }
    let calls = tool_calls(&mut wire, &session);
    let contents: Vec<&Value> = calls.iter().map(|call| &call["result"]["llmContent"]).collect();
    assert_eq!(contents, [&json!("ready\n"), &json!("ready\nbye\n")]);
}

#[test]
fn a_time_limit_ends_the_command_and_what_it_left_running_is_not_waited_for() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let limited = ["--timeout", "0.2", "exec", "--session", &session, "--", "sleep", "1000"];
    let said = sandbox.ctl(limited);
    assert_eq!(said.code, Some(124), "{said:?}");
    let leaves = ["exec", "--session", &session, "--", "sh", "-c", "sleep 30 & echo $!; echo done"];
    let said = sandbox.ctl(leaves).ok();
    let (pid, done) = said.split_once('\n').unwrap();
    kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(done, "done\n");
    let calls = tool_calls(&mut wire, &session);
    assert!(
        calls[0]["result"]["error"].as_str().unwrap().contains("longer than 0.2 s"),
        "{calls:?}"
    );
    assert_eq!(calls[1]["result"]["exitCode"], 0);
}

#[test]
fn a_reader_that_leaves_ends_the_command_as_in_any_pipe() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let mut child = exec(&sandbox, &session, &["yes"]).spawn().unwrap();
    let mut some = [0; 4];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!(ended(&mut child), Some(128 + 13));
    assert_eq!(tool_calls(&mut wire, &session).len(), 1);
}

#[test]
fn nothing_runs_where_the_environment_cannot_be_judged() {
    let sandbox = Sandbox::new();
    let marker = sandbox.path("it-ran");
    let touch = ["--", "touch", marker.to_str().unwrap()];
    let away = sandbox.ctl(["--no-spawn", "exec"].iter().chain(&touch)).fails(6);
    assert!(away.contains("ollmctl daemon start"), "{away}");
    let (daemon, mut wire) = sandbox.served();
    let missing = "01890000-0000-7000-8000-000000000000";
    let _gone = sandbox.ctl(["exec", "--session", missing].iter().chain(&touch)).fails(3);
    let _usage = sandbox.ctl(["exec"]).fails(2);
    assert!(!marker.exists(), "a refused command does not run");
    // What cannot be recorded afterwards still ends as the command did.
    let session = wire.create(json!({}));
    let _seq = wire.record(&session, "user", "Stop it.");
    let kill = format!("kill -9 {}; echo done; exit 5", daemon.pid());
    let said = sandbox.ctl(["--no-spawn", "exec", "--session", &session, "--", "sh", "-c", &kill]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(5), "done\n"));
    assert!(said.stderr.contains("warning: the command ran but is not recorded"), "{said:?}");
}

#[test]
fn a_program_gets_one_value_and_a_project_its_session() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let run = |args: &[&str]| {
        let mut ctl = sandbox.command("ollmctl");
        ctl.env("A_TOKEN", "hunter2").args(["--json", "exec", "--"]).args(args);
        let done = ctl.output().unwrap();
        let value: Value = serde_json::from_slice(&done.stdout).expect("one value");
        (value, String::from_utf8(done.stderr).unwrap(), done.status.code())
    };
    let (value, errors, code) = run(&["sh", "-c", "echo out; echo err >&2; exit 2"]);
    assert_eq!((code, value["exitCode"].as_i64()), (Some(2), Some(2)));
    assert!(errors.contains("out\n") && errors.contains("err\n"), "{errors}");
    assert_eq!(value["output"], "out\n[stderr]\nerr\n");
    assert_eq!(value["removed"], json!([{ "name": "A_TOKEN", "rule": "*_TOKEN" }]));
    assert_eq!(
        (&value["recorded"], &value["stdoutBytes"], &value["cut"]),
        (&json!(true), &json!(4), &json!(false))
    );
    let session = value["sessionId"].as_str().unwrap().to_owned();
    let project = sandbox.path("").canonicalize().unwrap();
    let current = wire.ok("session.current", json!({ "projectPath": project }));
    assert_eq!(current["session"]["sessionId"], session.as_str());
    let (again, _, _) = run(&["true"]);
    assert_eq!(again["sessionId"], session.as_str(), "the next one goes on there");
    // The third equal command is told to be a loop.
    let (_, _, _) = run(&["true"]);
    let (third, errors, _) = run(&["true"]);
    assert_eq!(third["loop"]["kind"], "call", "{third}");
    assert!(errors.contains("ollmctl loop reset"), "{errors}");
}
