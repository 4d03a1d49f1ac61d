//! Tests of starting a daemon.

use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;

use parking_lot::{Mutex, MutexGuard};

use super::*;
use crate::connection::{BlockingClient, Connector};
use crate::testing::TestHome;

/// Lets one test at a time run a script: while another test forks, its child may still hold the script open for
/// writing, and then it cannot be run.
static SCRIPT_LOCK: Mutex<()> = Mutex::new(());

/// Returns an environment whose daemon is a shell script; `$fd` is the script's end of the pipe.
fn script(home: &TestHome, script: &str) -> (Environment, MutexGuard<'static, ()>) {
    let lock = SCRIPT_LOCK.lock();
    let path = home.path().join("fake-ollmd");
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o700).open(&path).unwrap();
    let find_fd = "while [ $# -gt 0 ]; do [ \"$1\" = --ready-fd ] && fd=/dev/fd/$2; shift; done";
    writeln!(file, "#!/bin/sh\n{find_fd}\n{script}").unwrap();
    drop(file);
    (Environment { daemon: Some(path), ..Environment::default() }, lock)
}

fn connect_error(connector: &Connector) -> ClientError {
    BlockingClient::connect(connector).unwrap_err()
}

/// Waits until the client has probed the socket; it creates the log after that.
fn wait_for_start(daemon_home: &Path) {
    while !daemon_home.join("logs/ollmd.stderr").exists() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn ready_daemon_is_connected() {
    let home = TestHome::new();
    // This test binds the socket, before the script reports ready.
    let go = home.path().join("go");
    let lines = format!("while [ ! -e {} ]; do sleep 0.01; done; echo ok >$fd", go.display());
    let (environment, _lock) = script(&home, &lines);
    let connector = home.connector_with(&environment);
    let socket = home.socket();
    let daemon_home = connector.address().home().to_owned();
    let binder = std::thread::spawn(move || {
        wait_for_start(&daemon_home);
        let listener = UnixListener::bind(socket).unwrap();
        drop(File::create(go).unwrap());
        listener
    });
    let client = BlockingClient::connect(&connector).unwrap();
    assert!(client.started_daemon());
    drop(binder.join().unwrap());
    let mode = |path: &str| {
        let path = connector.address().home().join(path);
        path.metadata().unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode("."), mode("start.lock"), mode("logs/ollmd.stderr")), (0o700, 0o600, 0o600));
}

#[test]
fn reason_of_daemon_is_passed_on() {
    let home = TestHome::new();
    let line = r#"{"kind":"config","message":"config.yaml:3: bad \u001b[2Jsize","hint":"ollmctl config check"}"#;
    let (environment, _lock) = script(&home, &format!("echo '{line}' >$fd; exit 5"));
    let connector = home.connector_with(&environment);
    let error = connect_error(&connector);
    assert_eq!(error.to_string(), "ollmd did not start: config.yaml:3: bad size");
    assert_eq!(error.hint().as_deref(), Some("ollmctl config check"));
    assert_eq!((error.kind(), error.exit()), ("config", crate::Exit::Config));
}

#[test]
fn reasons_on_several_lines_are_parts_of_one() {
    let home = TestHome::new();
    let line = r#"{"kind":"config","message":"config.yaml:3: bad\nconfig.yaml:4: worse\n"}"#;
    let (environment, _lock) = script(&home, &format!("printf '%s\\n' '{line}' >$fd; exit 5"));
    let error = connect_error(&home.connector_with(&environment));
    let expect = "ollmd did not start: config.yaml:3: bad; config.yaml:4: worse";
    assert_eq!(error.to_string(), expect);
}

#[test]
fn daemon_without_reason_is_described_by_status_and_log() {
    let home = TestHome::new();
    let (environment, _lock) = script(&home, "echo 'cannot load library' >&2; exit 3");
    let connector = home.connector_with(&environment);
    let error = connect_error(&connector);
    let text = error.to_string();
    assert!(text.contains("exit status: 3: cannot load library"), "{text}");
    assert!(error.hint().unwrap().contains("ollmd.stderr"));
}

#[test]
fn lost_race_connects_to_the_winner() {
    let home = TestHome::new();
    let (environment, _lock) = script(&home, "exit 75");
    let connector = home.connector_with(&environment);
    let (socket, daemon_home) = (home.socket(), connector.address().home().to_owned());
    let winner = std::thread::spawn(move || {
        wait_for_start(&daemon_home);
        UnixListener::bind(socket).unwrap()
    });
    let client = BlockingClient::connect(&connector).unwrap();
    assert!(!client.started_daemon());
    drop(winner.join().unwrap());
}

#[test]
fn client_that_waits_for_the_lock_connects_to_the_started_daemon() {
    let home = TestHome::new();
    let ran = home.path().join("ran");
    let (environment, _lock) = script(&home, &format!(": >{}; exit 1", ran.display()));
    let connector = home.connector_with(&environment);
    let daemon_home = connector.address().home().to_owned();
    create_private_dir(&daemon_home).unwrap();
    let lock = open_private_file(&daemon_home.join("start.lock")).unwrap();
    lock.lock().unwrap();
    let program = DaemonProgram::new(&environment);
    let waiting = std::thread::spawn(move || start(connector.address(), &program, None));
    let _listener = UnixListener::bind(home.socket()).unwrap();
    assert!(!waiting.join().unwrap().unwrap().started);
    assert!(!ran.exists());
    drop(lock);
}

#[test]
fn nothing_is_started_without_permission_or_program() {
    let home = TestHome::new();
    let refused = connect_error(&home.connector());
    assert!(matches!(refused, ClientError::Unreachable { .. }));
    assert!(refused.to_string().contains(&home.socket().display().to_string()));
    assert!(!home.path().join("home").exists());
    let no_program = home.connector_with(&Environment::default());
    assert!(matches!(connect_error(&no_program), ClientError::DaemonNotFound));
    let missing = Environment { daemon: Some("/nowhere/ollmd".into()), ..Environment::default() };
    let error = connect_error(&home.connector_with(&missing));
    assert!(
        matches!(&error, ClientError::Start { path, .. } if path == Path::new("/nowhere/ollmd"))
    );
}

#[test]
fn path_that_is_no_socket_does_not_start_the_daemon() {
    let home = TestHome::new();
    // A plain file refuses connections like a stale socket; a directory does not.
    DirBuilder::new().create(home.socket()).unwrap();
    let error = connect_error(&home.connector_with(&Environment::default()));
    assert!(
        matches!(error, ClientError::Unreachable { .. } | ClientError::DaemonNotFound),
        "{error}"
    );
}
