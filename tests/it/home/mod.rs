//! The home of a daemon: whose daemon a client reaches, who holds the lock, and which files are used.

mod special_files;
mod users;

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{
    ChildExt as _, Daemon, Output, Sandbox, program, rpc_request, run, start, until,
};

/// Runs `ollmctl` with the given home and no socket.
fn ctl_at(sandbox: &Sandbox, home: &Path, args: &[&str]) -> Output {
    let mut command = sandbox.command("ollmctl");
    command.env("OLLM_HOME", home).env("OLLM_DAEMON", program("ollmd")).args(args);
    run(command, "")
}

/// Copies the home of a sandbox with all attributes, as a backup does.
fn copy_home(sandbox: &Sandbox) -> PathBuf {
    let copy = sandbox.path("copy");
    let copied = Command::new("cp").arg("-a").arg(sandbox.home()).arg(&copy).status().unwrap();
    assert!(copied.success());
    copy
}

fn n_sessions_at(sandbox: &Sandbox, home: &Path) -> usize {
    let listed = ctl_at(sandbox, home, &["sessions", "list", "--json"]).json();
    listed["data"].as_array().unwrap().len()
}

#[test]
fn copied_home_has_a_daemon_of_its_own() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "keep me");
    let copy = copy_home(&sandbox);

    let refused = ctl_at(&sandbox, &copy, &["--no-spawn", "sessions", "list"]).fails(6);
    assert!(refused.contains("cannot connect"), "{refused}");
    ctl_at(&sandbox, &copy, &["sessions", "clear", "--all", "--yes"]).ok();
    assert_eq!(wire.records(&session).len(), 2, "the original is unchanged");
    assert_eq!(n_sessions_at(&sandbox, &copy), 0);
    assert_eq!(n_sessions_at(&sandbox, &sandbox.home()), 1);
    ctl_at(&sandbox, &copy, &["daemon", "stop"]).ok();
    daemon.assert_serves();
    let status = ctl_at(&sandbox, &copy, &["daemon", "status"]);
    assert_eq!((status.stdout.as_str(), status.code), ("ollmd is not running\n", Some(6)));
}

#[test]
fn socket_of_another_home_is_refused_if_a_home_is_given() {
    let (sandbox, daemon, _wire) = start();
    let other = PathBuf::from(sandbox.project_dir("other"));
    let socket = daemon.socket().to_str().unwrap();
    let refused = ctl_at(&sandbox, &other, &["--socket", socket, "sessions", "list"]).fails(6);
    assert!(refused.contains(other.to_str().unwrap()), "{refused}");
    assert!(refused.contains(sandbox.home().to_str().unwrap()), "{refused}");
    ctl_at(&sandbox, &other, &["--socket", socket, "daemon", "stop"]).fails(6);
    daemon.assert_serves();
    // Without a home, the socket alone decides.
    let mut command = sandbox.command("ollmctl");
    command.env_remove("OLLM_HOME").args(["--no-spawn", "--socket", socket, "daemon", "status"]);
    let status = run(command, "").ok();
    assert!(status.contains(sandbox.home().to_str().unwrap()), "{status}");
}

#[test]
fn linked_or_moved_home_reaches_its_daemon() {
    let (sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "hello");
    let link = sandbox.path("link");
    symlink(sandbox.home(), &link).unwrap();
    let list = |home: &Path| ctl_at(&sandbox, home, &["--no-spawn", "sessions", "list"]).ok();
    assert!(list(&link).contains("hello"));
    let moved = sandbox.path("moved");
    std::fs::rename(sandbox.home(), &moved).unwrap();
    assert!(list(&moved).contains("hello"));
    std::fs::rename(&moved, sandbox.home()).unwrap();
}

#[test]
fn hello_and_daemon_json_name_the_home() {
    use std::os::unix::fs::MetadataExt as _;

    let (sandbox, _daemon, mut wire) = start();
    let home = sandbox.home().metadata().unwrap();
    let expected = format!("{}:{}", home.dev(), home.ino());
    let hello = json!({ "client": "it", "version": "1", "protocolMin": 1, "protocolMax": 1 });
    assert_eq!(wire.ok("daemon.hello", hello)["homeId"], expected);
    let file = std::fs::read(sandbox.home().join("daemon.json")).unwrap();
    let file: serde_json::Value = serde_json::from_slice(&file).unwrap();
    assert_eq!(file["homeId"], expected);
}

#[test]
fn process_in_the_hint_is_that_of_the_lock() {
    let sandbox = Sandbox::new();
    let daemon = sandbox.daemon();
    daemon.signal(Signal::STOP);
    std::fs::remove_file(daemon.socket()).unwrap();
    // The file of a daemon that crashed before this one started; the system has reused its pid since.
    let file = sandbox.home().join("daemon.json");
    let stale = std::fs::read_to_string(&file).unwrap();
    let stranger = std::process::id().to_string();
    let stale = stale.replace(&format!("\"pid\":{}", daemon.pid()), &format!("\"pid\":{stranger}"));
    std::fs::write(&file, stale).unwrap();
    let error = sandbox.ctl(["--timeout", "0.3", "daemon", "status"]).fails(6);
    assert!(error.contains(&format!("try: kill {}\n", daemon.pid())), "{error}");
    assert!(!error.contains(&stranger), "{error}");
}

#[test]
fn lock_without_a_known_process_names_none() {
    let sandbox = Sandbox::new();
    let path = sandbox.home().join("ollmd.lock");
    std::fs::write(&path, format!("pid {}, ollmd 0.1.0\n", std::process::id())).unwrap();
    let lock = File::open(&path).unwrap();
    lock.lock().unwrap();
    let mut command = sandbox.command("ollmctl");
    command.args(["daemon", "status"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut status = command.spawn().unwrap();
    // A daemon that starts holds its lock before it listens, so the command waits for it.
    assert!(status.wait_timeout(Duration::from_millis(300)).is_none(), "it waits for the holder");
    drop(lock);
    let output = status.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "ollmd is not running\n");
    assert_eq!(output.status.code(), Some(6));
}

#[test]
fn status_during_a_start_never_fails() {
    let sandbox = Sandbox::new();
    for _ in 0..8 {
        let mut command = sandbox.command("ollmd");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut daemon = command.spawn().unwrap();
        until("the daemon answers", || {
            let status = sandbox.ctl(["--no-spawn", "daemon", "status"]);
            assert_eq!(status.stderr, "", "{status:?}");
            assert!(status.code == Some(0) || status.stdout.contains("not running"), "{status:?}");
            status.code == Some(0)
        });
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }
}

#[test]
fn instant_lock_of_a_client_does_not_prevent_the_start() {
    let sandbox = Sandbox::new();
    let path = sandbox.home().join("ollmd.lock");
    let file = File::create(&path).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Clients examine the lock by taking a shared one for an instant.
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                if file.try_lock_shared().is_ok() {
                    std::thread::sleep(Duration::from_millis(4));
                    file.unlock().unwrap();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let started: Vec<_> = (0..4).map(|_| Daemon::try_start(&sandbox, &[]).err()).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(started.iter().all(Option::is_none), "{started:?}");
    });
}

#[test]
fn home_that_is_not_utf8_is_refused_with_its_name() {
    let sandbox = Sandbox::new();
    let home = sandbox.path("caf").into_os_string().into_encoded_bytes();
    let home = PathBuf::from(OsStr::from_bytes(&[&home, &b"\xe9"[..]].concat()));
    let error = ctl_at(&sandbox, &home, &["daemon", "start"]).fails(6);
    assert!(error.contains("is not valid UTF-8") && error.contains("OLLM_HOME"), "{error}");
    let mut command = sandbox.command("ollmd");
    let output = command.env("OLLM_HOME", &home).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is not valid UTF-8"), "{output:?}");
}

#[test]
fn open_rights_of_existing_files_are_removed() {
    let (sandbox, daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", &"x".repeat(200 << 10));
    wire.ok("session.save", json!({ "sessionId": session }));
    wire.ok("context.addEntry", json!({ "scope": "global", "key": "style", "content": "tabs" }));
    drop(wire);
    assert!(daemon.terminate().success());
    let vocabulary = PathBuf::from(sandbox.project_dir("home/vocab")).join("0123");
    std::fs::write(&vocabulary, "derived").unwrap();
    let outside = sandbox.path("outside");
    std::fs::write(&outside, "not ours").unwrap();
    let link = sandbox.home().join("vocab/link");
    symlink(&outside, &link).unwrap();
    let chmod = |mode: &str, path: &Path| {
        assert!(Command::new("chmod").arg("-R").arg(mode).arg(path).status().unwrap().success());
    };
    chmod("a+rX", &sandbox.home());
    chmod("644", &outside);
    let _daemon = sandbox.daemon();
    let is_open = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o077 != 0;
    let open_files = || {
        let listed = Command::new("find").arg(sandbox.home()).output().unwrap().stdout;
        let listed = String::from_utf8(listed).unwrap();
        let paths = listed.lines().map(PathBuf::from).filter(|path| *path != link);
        paths.filter(|path| path.exists() && is_open(path)).collect::<Vec<_>>()
    };
    until("all files are private", || open_files().is_empty());
    assert!(is_open(&outside), "the target of a link is not changed");
}

#[test]
fn second_signal_ends_a_daemon_whose_clients_never_read() {
    let sandbox = Sandbox::new();
    let (mut daemon, mut wire) = sandbox.daemon_and_wire();
    let session = wire.create(json!({}));
    for _ in 0..24 {
        wire.record(&session, "user", &"x".repeat(30 << 10));
    }
    let floods: Vec<_> = (0..40)
        .map(|_| {
            let mut flood = daemon.wire();
            flood.set_write_timeout(Duration::from_millis(20));
            let get = rpc_request(1, "session.get", json!({ "sessionId": session, "limit": 24 }));
            while flood.try_send_bytes(format!("{get}\n").repeat(100).as_bytes()) {}
            flood
        })
        .collect();
    daemon.signal(Signal::TERM);
    // Signals that arrive together are one; the socket is removed when the first has arrived.
    until("the daemon is stopping", || !daemon.socket().exists());
    let second = Instant::now();
    daemon.signal(Signal::TERM);
    assert!(daemon.wait_exit().success());
    // The drain alone takes five seconds with these clients.
    assert!(second.elapsed() < Duration::from_secs(3), "{:?}", second.elapsed());
    drop(floods);
}
