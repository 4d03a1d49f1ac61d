//! The daemon under a service manager of its user: started by it where it is installed, and stopped like any other.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::harness::{Sandbox, Waits as _, program, run, until};

/// The home that units are for.
fn default_home(sandbox: &Sandbox) -> PathBuf {
    sandbox.path(".ollm")
}

/// Installs the units and a manager's program that is a script of the test.
fn install(sandbox: &Sandbox, script: &str) {
    let units = sandbox.project(".config/systemd/user");
    for unit in ["ollmd.service", "ollmd.socket"] {
        drop(File::create(PathBuf::from(&units).join(unit)).unwrap());
    }
    let private = PathBuf::from(sandbox.project("run/systemd")).join("private");
    drop(File::create(private).unwrap());
    let path = PathBuf::from(sandbox.project("bin")).join("systemctl");
    let mut file = File::options().create_new(true).write(true).mode(0o755).open(path).unwrap();
    writeln!(file, "#!/bin/sh\necho \"$@\" >>{}\n{script}", sandbox.path("asked").display())
        .unwrap();
}

/// `ollmctl` of a user who sets nothing.
fn ctl(sandbox: &Sandbox, args: &[&str]) -> crate::harness::Output {
    let mut command = sandbox.command("ollmctl");
    let path = format!("{}:/usr/bin:/bin", sandbox.path("bin").display());
    let daemon = program("ollmd");
    let own = std::fs::canonicalize(daemon.parent().unwrap()).unwrap();
    command
        .env_remove("OLLM_HOME")
        .env("PATH", format!("{path}:{}", own.display()))
        .env("XDG_RUNTIME_DIR", sandbox.path("run"))
        .args(args);
    run(command, "")
}

/// What the manager was asked.
fn asked(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.path("asked")).unwrap_or_default()
}

#[test]
fn a_client_has_the_manager_start_the_daemon() {
    let sandbox = Sandbox::new();
    let daemon = program("ollmd");
    let home = default_home(&sandbox);
    // As systemd does: it returns when the daemon is ready.
    install(
        &sandbox,
        &format!(
            "OLLM_HOME={home} {daemon} --detach >/dev/null 2>&1 &\n\
             until [ -e {home}/daemon.json ]; do sleep 0.01; done",
            home = home.display(),
            daemon = daemon.display()
        ),
    );
    let started = ctl(&sandbox, &["daemon", "start"]);
    assert_eq!(started.stderr, "", "{started:?}");
    assert!(started.ok().contains(" started (process "));
    assert_eq!(asked(&sandbox), "--user start ollmd.service\n");
    assert!(!home.join("logs/ollmd.stderr").exists(), "no client started it");
    let _said = ctl(&sandbox, &["record", "hello"]).ok();
    assert_eq!(asked(&sandbox).lines().count(), 1, "a daemon that runs is not started");
    let _said = ctl(&sandbox, &["daemon", "stop"]).ok();
    // Where nothing may be started, nobody is asked either.
    let _said = ctl(&sandbox, &["--no-spawn", "sessions", "list"]).fails(6);
    assert_eq!(asked(&sandbox).lines().count(), 1);
}

#[test]
fn a_manager_that_fails_is_named_and_done_without() {
    let sandbox = Sandbox::new();
    install(&sandbox, "echo 'Job for ollmd.service failed.' >&2; exit 1");
    let started = ctl(&sandbox, &["daemon", "start"]);
    let why = "systemctl --user start ollmd.service failed (exit status: 1): Job for ollmd.service failed.";
    assert!(started.stderr.contains(why), "{started:?}");
    assert!(started.ok().contains(" started (process "));
    let _said = ctl(&sandbox, &["daemon", "stop"]).ok();
    let quiet = ctl(&sandbox, &["--json", "daemon", "start"]);
    assert_eq!(quiet.stderr, "", "a program reads only errors there");
    let _status = quiet.json();
    let _said = ctl(&sandbox, &["daemon", "stop"]).ok();
}

/// A daemon with a socket that is not its own, as a service manager starts it; killed in the end.
struct Served {
    daemon: Child,
    _listener: UnixListener,
}

impl Served {
    fn start(sandbox: &Sandbox) -> Self {
        let place = sandbox.home().join("run");
        std::fs::DirBuilder::new().mode(0o700).create(&place).unwrap();
        let listener = UnixListener::bind(place.join("ollmd.sock")).unwrap();
        let passed = OwnedFd::from(listener.try_clone().unwrap());
        let mut command = Command::new("/bin/sh");
        sandbox.clean(&mut command);
        command
            .args(["-c", "exec env LISTEN_FDS=1 LISTEN_PID=$$ \"$@\" 3<&0 </dev/null", "sh"])
            .arg(program("ollmd"))
            .stdin(Stdio::from(passed))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self { daemon: command.spawn().unwrap(), _listener: listener }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _killed = self.daemon.kill();
        let _reaped = self.daemon.wait();
    }
}

#[test]
fn a_daemon_is_stopped_though_the_socket_of_its_manager_stays() {
    let sandbox = Sandbox::new();
    let mut served = Served::start(&sandbox);
    let status = sandbox.ctl(["--no-spawn", "daemon", "status", "--json"]).json();
    assert_eq!(status["pid"], json!(served.daemon.id()), "the socket that was passed on is served");
    let _said = sandbox.ctl(["--no-spawn", "daemon", "stop"]).ok();
    let ended = until("it has ended", || served.daemon.wait_for(std::time::Duration::ZERO));
    assert!(ended.success());
    assert!(sandbox.home().join("run/ollmd.sock").exists());
}
