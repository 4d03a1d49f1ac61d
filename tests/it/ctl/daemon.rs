//! How `ollmctl` finds, starts and stops the daemon, alone and with a service manager of the user.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::json;

use super::n_sessions;
use crate::harness::{ChildExt as _, DEADLINE, Output, Sandbox, program, run};

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

/// Returns the default home of the user, which is the home of the units.
fn default_home(sandbox: &Sandbox) -> PathBuf {
    sandbox.path(".ollm")
}

/// Installs the units and a `systemctl` that logs its arguments and runs a script.
fn install(sandbox: &Sandbox, script: &str) {
    let units = sandbox.project_dir(".config/systemd/user");
    for unit in ["ollmd.service", "ollmd.socket"] {
        drop(File::create(PathBuf::from(&units).join(unit)).unwrap());
    }
    let private = PathBuf::from(sandbox.project_dir("run/systemd")).join("private");
    drop(File::create(private).unwrap());
    let path = PathBuf::from(sandbox.project_dir("bin")).join("systemctl");
    let mut file = File::options().create_new(true).write(true).mode(0o755).open(path).unwrap();
    writeln!(
        file,
        "#!/bin/sh\necho \"$@\" >>{}\n{script}",
        sandbox.path("systemctl.log").display()
    )
    .unwrap();
}

/// Runs `ollmctl` as a user who sets no variables.
fn ctl_of_user(sandbox: &Sandbox, args: &[&str]) -> Output {
    let mut command = sandbox.command("ollmctl");
    let systemctl = sandbox.path("bin");
    let ollmd = std::fs::canonicalize(program("ollmd").parent().unwrap()).unwrap();
    command
        .env_remove("OLLM_HOME")
        .env("PATH", format!("{}:/usr/bin:/bin:{}", systemctl.display(), ollmd.display()))
        .env("XDG_RUNTIME_DIR", sandbox.path("run"))
        .args(args);
    run(command, "")
}

/// Returns the arguments of the `systemctl` calls, a line each.
fn systemctl_log(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.path("systemctl.log")).unwrap_or_default()
}

#[test]
fn installed_service_is_started_by_its_manager() {
    let sandbox = Sandbox::new();
    let daemon = program("ollmd");
    let home = default_home(&sandbox);
    // Returns when the daemon is ready, as systemd does.
    install(
        &sandbox,
        &format!(
            "OLLM_HOME={home} {daemon} --detach >/dev/null 2>&1 &\n\
             until [ -e {home}/daemon.json ]; do sleep 0.01; done",
            home = home.display(),
            daemon = daemon.display()
        ),
    );
    let started = ctl_of_user(&sandbox, &["daemon", "start"]);
    assert_eq!(started.stderr, "", "{started:?}");
    assert!(started.ok().contains(" started (process "));
    assert_eq!(systemctl_log(&sandbox), "--user start ollmd.service\n");
    assert!(!home.join("logs/ollmd.stderr").exists(), "the client started no daemon");
    ctl_of_user(&sandbox, &["record", "hello"]).ok();
    assert_eq!(systemctl_log(&sandbox).lines().count(), 1, "a running daemon is not started");
    ctl_of_user(&sandbox, &["daemon", "stop"]).ok();
    ctl_of_user(&sandbox, &["--no-spawn", "sessions", "list"]).fails(6);
    assert_eq!(systemctl_log(&sandbox).lines().count(), 1, "`--no-spawn` starts no service");
}

#[test]
fn failing_service_manager_is_reported_and_replaced_by_autostart() {
    let sandbox = Sandbox::new();
    install(&sandbox, "echo 'Job for ollmd.service failed.' >&2; exit 1");
    let started = ctl_of_user(&sandbox, &["daemon", "start"]);
    let reason = "systemctl --user start ollmd.service failed (exit status: 1): Job for ollmd.service failed.";
    assert!(started.stderr.contains(reason), "{started:?}");
    assert!(started.ok().contains(" started (process "));
    ctl_of_user(&sandbox, &["daemon", "stop"]).ok();
    let quiet = ctl_of_user(&sandbox, &["--json", "daemon", "start"]);
    assert_eq!(quiet.stderr, "", "with `--json`, stderr is for errors");
    let _status = quiet.json();
    ctl_of_user(&sandbox, &["daemon", "stop"]).ok();
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
    let status = sandbox.ctl(["--no-spawn", "daemon", "status", "--json"]).json();
    assert_eq!(status["pid"], json!(activated.daemon.id()), "the inherited socket is served");
    sandbox.ctl(["--no-spawn", "daemon", "stop"]).ok();
    let status = activated.daemon.wait_timeout(DEADLINE).expect("the daemon ends");
    assert!(status.success());
    assert!(sandbox.home().join("run/ollmd.sock").exists());
}
