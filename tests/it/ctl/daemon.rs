//! How `ollmctl` finds, starts, stops and replaces the daemon.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::json;

use super::n_sessions;
use crate::harness::{
    Answer, ChildExt as _, DEADLINE, FakeOllama, Fault, ModelSession, Sandbox, Wire, assert_fields,
    program, run,
};

#[test]
fn without_daemon_and_autostart_the_error_has_a_hint() {
    let sandbox = Sandbox::new();
    let error = sandbox.ctl(["--no-spawn", "sessions", "list"]).fails(6);
    assert!(error.contains(sandbox.home().to_str().unwrap()) || error.contains(".sock"), "{error}");
    assert!(error.contains("ollmctl daemon start"), "{error}");
    let mut command = sandbox.command("ollmctl");
    let output = command.env("OLLM_NO_SPAWN", "1").args(["sessions", "list"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert!(!sandbox.home().join("ollmd.lock").exists(), "no daemon was started");

    std::fs::write(sandbox.socket(), "not a socket").unwrap();
    let error = sandbox
        .ctl(["--no-spawn", "--socket", sandbox.socket().to_str().unwrap(), "socket"])
        .fails(6);
    assert!(error.contains(sandbox.socket().to_str().unwrap()), "{error}");
}

#[test]
fn doctor_names_what_is_wrong_and_the_command_that_helps() {
    let sandbox = Sandbox::new();
    let doctor = || {
        let mut command = sandbox.command("ollmctl");
        command.env("OLLM_API_KEY", "sk-secret").args(["doctor", "--json"]);
        run(command, "")
    };
    let report = |code: i32| {
        let output = doctor();
        assert_eq!(output.code, Some(code), "{output:?}");
        let text = output.stdout;
        assert!(!text.contains("sk-secret") && text.contains("OLLM_API_KEY"), "{text}");
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    let finding = |report: &serde_json::Value, topic: &str| {
        let findings = report["findings"].as_array().unwrap();
        findings.iter().find(|one| one["topic"] == topic).cloned().unwrap_or_default()
    };
    let found = report(0);
    assert_eq!(finding(&found, "daemon")["hint"], "ollmctl daemon start", "{found}");
    assert!(!sandbox.home().join("ollmd.lock").exists(), "no daemon was started");

    let daemon = sandbox.daemon();
    let found: serde_json::Value = serde_json::from_str(&doctor().stdout).unwrap();
    assert!(finding(&found, "daemon").is_null(), "{found}");
    assert_eq!(found["daemon"]["status"]["pid"], daemon.pid(), "{found}");
    assert_eq!(
        found["home"]["holder"].as_u64(),
        cfg!(target_os = "linux").then(|| daemon.pid().into())
    );
    assert!(found["socket"]["roundTripUs"].as_u64().unwrap() > 0, "{found}");

    daemon.kill();
    let found = report(0);
    assert_eq!(found["home"]["leftFile"], true, "{found}");
    sandbox.write_config("ollama: { host: 7 }\n");
    let found = report(5);
    assert_eq!(finding(&found, "configuration")["hint"], "ollmctl config check", "{found}");
}

#[test]
fn other_model_server_of_the_shell_is_named_with_the_command_that_changes_it() {
    let sandbox = Sandbox::new();
    let _daemon = sandbox.daemon();
    let ctl = |host: &str, args: &[&str]| {
        let mut command = sandbox.command("ollmctl");
        command.env("OLLAMA_HOST", host).args(args);
        run(command, "")
    };
    let other =
        "the daemon uses http://127.0.0.1:9, and OLLAMA_HOST of this shell is http://127.0.0.1:8";
    let output = ctl("127.0.0.1:8", &["models", "list"]);
    assert!(output.stderr.contains(other), "{output:?}");
    assert!(output.stderr.trim_end().ends_with("try: ollmctl daemon restart"), "{output:?}");
    let output = ctl("http://127.0.0.1:9/", &["models", "list"]);
    assert!(!output.stderr.contains("OLLAMA_HOST of this shell"), "{output:?}");
    let doctor = ctl("127.0.0.1:8", &["doctor"]).stdout;
    assert!(
        doctor.contains(&format!("warning: {other}\n  try: ollmctl daemon restart")),
        "{doctor}"
    );
}

#[test]
fn timeout_ends_a_call_that_is_never_answered() {
    let sandbox = Sandbox::new();
    let listener = std::os::unix::net::UnixListener::bind(sandbox.socket()).unwrap();
    let output = sandbox.ctl([
        "--no-spawn",
        "--timeout",
        "0.5",
        "--socket",
        sandbox.socket().to_str().unwrap(),
        "sessions",
        "list",
    ]);
    assert!(output.code.is_some_and(|code| code != 0), "{output:?}");
    assert!(output.stderr.contains("0.5 s"), "{output:?}");
    drop(listener);
}

#[test]
fn concurrent_clients_start_one_daemon() {
    let sandbox = Sandbox::new();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|n| {
                let sandbox = &sandbox;
                scope.spawn(move || sandbox.ctl(["record", "--new", &format!("message {n}")]).ok())
            })
            .collect();
        for client in clients {
            let _printed = client.join().unwrap();
        }
    });
    assert_eq!(n_sessions(&sandbox), 6);
    let before = sandbox.ctl(["daemon", "status", "--json"]).json()["pid"].clone();
    sandbox.ctl(["daemon", "restart"]).ok();
    let after = sandbox.ctl(["daemon", "status", "--json"]).json()["pid"].clone();
    assert_ne!(before, after);
    assert_eq!(n_sessions(&sandbox), 6);
}

/// A session whose model has written a part of its answer, and waits.
fn answering() -> (FakeOllama, ModelSession) {
    let fake = FakeOllama::new();
    fake.script(Answer::text("one two three"));
    fake.inject("/api/chat", &[Fault::Stall { after: 2 }]);
    let mut chat = ModelSession::create(&fake.config("tiny"), json!({ "title": "Numbers" }));
    chat.send(chat.message("count"));
    let _first = chat.events_until("delta");
    (fake, chat)
}

#[test]
fn restart_waits_for_the_answer_and_a_follower_of_events_gets_one_resync() {
    let (fake, mut chat) = answering();
    let mut other = chat.daemon.wire();
    let busy = other.refused("daemon.shutdown", json!({ "ifIdle": true }), "busy");
    let work = &busy["data"]["running"][0];
    assert_fields(work, json!({ "sessionId": chat.id, "work": "turn", "model": "tiny" }));
    let follower = chat.sandbox.follow(["events", "--json"]);
    let files = chat.sandbox.follow(["files", "watch", "--json"]);
    assert!(files.line().contains("watching"));
    other.wait_for_count("subscriptions", 1);

    let mut command = chat.sandbox.command("ollmctl");
    command.env("OLLM_DAEMON", program("ollmd")).args(["daemon", "restart"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut restart = command.spawn().unwrap();
    let mut stderr = BufReader::new(restart.stderr.take().unwrap());
    let mut waiting = String::new();
    stderr.read_line(&mut waiting).unwrap();
    assert_eq!(waiting, "waiting (--now ends it) for 1 answer: Numbers (tiny)\n");
    fake.resume();
    let done = chat.events_until("done");
    let text: String = done.iter().filter_map(|event| event["text"].as_str()).collect();
    assert!("one two three".ends_with(&text), "{text}");
    assert!(restart.wait_timeout(DEADLINE).expect("the restart ends").success());
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");

    let mut lines: Vec<String> = Vec::new();
    while lines.last().is_none_or(|line| !line.contains("\"resync\"")) {
        lines.push(follower.line());
    }
    chat.sandbox.ctl(["record", "--session", &chat.id, "after"]).ok();
    let next = follower.line();
    assert!(next.contains("message-recorded"), "one `resync`, then events: {next}");
    while !files.line().contains("\"resync\"") {}
}

#[test]
fn restart_now_keeps_what_the_answer_has() {
    let (_fake, mut chat) = answering();
    chat.sandbox.ctl(["daemon", "restart", "--now"]).ok();
    let error = chat.events_until("error").pop().unwrap();
    assert_eq!(error["data"]["kind"], "canceled");
    let socket = chat.sandbox.ctl(["socket"]).ok();
    let records = Wire::connect(Path::new(socket.trim_end())).records(&chat.id);
    assert!(records.iter().any(|record| record.to_string().contains("one")), "{records:?}");
}

#[test]
fn restart_that_waits_too_long_stops_nothing() {
    let (_fake, chat) = answering();
    let error = chat.sandbox.ctl(["--timeout", "0.1", "daemon", "restart"]).fails(4);
    assert!(error.contains("still works on 1 answer: Numbers (tiny)"), "{error}");
    assert!(error.contains("try: ollmctl daemon restart --now"), "{error}");
    chat.daemon.assert_serves();
}

#[test]
fn versions_name_commit_and_profile() {
    let sandbox = Sandbox::new();
    for name in ["ollmctl", "ollmd"] {
        let mut command = sandbox.command(name);
        command.arg("--version");
        let version = run(command, "").ok();
        let start = format!("{name} {} (", env!("CARGO_PKG_VERSION"));
        assert!(version.starts_with(&start), "{version}");
        let profile = version.trim_end().trim_end_matches(')').rsplit([' ', '(']).next();
        assert!(matches!(profile, Some("debug" | "release")), "{version}");
    }
}

#[test]
fn unreachable_daemon_is_reported_with_its_process() {
    let sandbox = Sandbox::new();
    let daemon = sandbox.daemon();
    // A running daemon would notice that its socket is missing, and exit.
    daemon.signal(Signal::STOP);
    std::fs::remove_file(daemon.socket()).unwrap();
    for command in ["status", "stop"] {
        let error = sandbox.ctl(["daemon", command]).fails(6);
        assert!(error.contains(&format!("process {}) holds ", daemon.pid())), "{error}");
        assert!(error.contains(&format!("try: kill {}", daemon.pid())), "{error}");
    }
}

/// A daemon with an inherited socket, as a service manager starts it; killed when dropped.
struct SocketActivated {
    daemon: Child,
    _listener: UnixListener,
}

impl SocketActivated {
    fn start(sandbox: &Sandbox) -> Self {
        let directory = sandbox.home().join("run");
        std::fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
        let listener = UnixListener::bind(directory.join("ollmd.sock")).unwrap();
        let passed = OwnedFd::from(listener.try_clone().unwrap());
        let mut command = Command::new("/bin/sh");
        sandbox.isolate(&mut command);
        command
            .args(["-c", "exec env LISTEN_FDS=1 LISTEN_PID=$$ \"$@\" 3<&0 </dev/null", "sh"])
            .arg(program("ollmd"))
            .stdin(Stdio::from(passed))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self { daemon: command.spawn().unwrap(), _listener: listener }
    }
}

impl Drop for SocketActivated {
    fn drop(&mut self) {
        let _killed = self.daemon.kill();
        let _reaped = self.daemon.wait();
    }
}

#[test]
fn socket_activated_daemon_stops_and_keeps_its_socket() {
    let sandbox = Sandbox::new();
    let mut activated = SocketActivated::start(&sandbox);
    // `daemon status` does not wait for a daemon that does not hold its home yet.
    sandbox.ctl(["--no-spawn", "sessions", "list"]).ok();
    let status = sandbox.ctl(["--no-spawn", "daemon", "status", "--json"]).json();
    assert_eq!(status["pid"], json!(activated.daemon.id()), "the inherited socket is served");
    sandbox.ctl(["--no-spawn", "daemon", "stop"]).ok();
    let status = activated.daemon.wait_timeout(DEADLINE).expect("the daemon ends");
    assert!(status.success());
    assert!(sandbox.home().join("run/ollmd.sock").exists());
}

#[test]
fn status_and_stop_do_not_connect_to_a_socket_without_a_daemon() {
    let sandbox = Sandbox::new();
    let directory = sandbox.home().join("run");
    std::fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
    // A service manager that listens here would start the daemon at the first connection.
    let listener = UnixListener::bind(directory.join("ollmd.sock")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let status = sandbox.ctl(["daemon", "status"]);
    assert_eq!((status.stdout.as_str(), status.code), ("ollmd is not running\n", Some(6)));
    assert_eq!(sandbox.ctl(["daemon", "stop"]).ok(), "ollmd is not running\n");
    let accepted = listener.accept().map_err(|error| error.kind());
    assert_eq!(accepted.err(), Some(std::io::ErrorKind::WouldBlock), "nothing connected");
}
