use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::sync::{Mutex, MutexGuard};

use super::*;
use crate::connection::{BlockingClient, Connector};
use crate::testing::Scratch;

/// A script that is still open for writing in a process that another test is just forking cannot be run, so
/// these tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A connector whose daemon is a shell script; `$fd` is its end of the pipe.
fn daemon(scratch: &Scratch, script: &str) -> Connector {
    let path = scratch.directory.path().join("fake-ollmd");
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o700).open(&path).unwrap();
    let find_fd = "while [ $# -gt 0 ]; do [ \"$1\" = --ready-fd ] && fd=/dev/fd/$2; shift; done";
    writeln!(file, "#!/bin/sh\n{find_fd}\n{script}").unwrap();
    drop(file);
    scratch.connector_with(&Environment { daemon: Some(path), ..Environment::default() })
}

fn error(connector: &Connector) -> ClientError {
    BlockingClient::connect(connector).unwrap_err()
}

#[test]
fn a_ready_daemon_is_connected_to() {
    let _turn = turn();
    let scratch = Scratch::new();
    // The script says ready at once; the socket is bound by this test, as a daemon would before.
    let go = scratch.directory.path().join("go");
    let connector = daemon(
        &scratch,
        &format!("while [ ! -e {} ]; do sleep 0.01; done; echo ok >$fd", go.display()),
    );
    let socket = scratch.socket();
    let home = connector.address().home().to_owned();
    let binder = std::thread::spawn(move || {
        // The lock shows that the first look at the socket is over.
        while !home.join("logs/ollmd.stderr").exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
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
fn what_the_daemon_says_is_passed_on() {
    let _turn = turn();
    let scratch = Scratch::new();
    let words = r#"{"kind":"config","message":"config.yaml:3: bad \u001b[2Jsize","hint":"ollmctl config check"}"#;
    let error = error(&daemon(&scratch, &format!("echo '{words}' >$fd; exit 5")));
    assert_eq!(error.to_string(), "ollmd did not start: config.yaml:3: bad size");
    assert_eq!(error.hint().as_deref(), Some("ollmctl config check"));
    assert_eq!((error.kind(), error.exit()), ("config", crate::Exit::Config));
}

#[test]
fn a_daemon_that_dies_silently_is_explained_by_its_end_and_its_log() {
    let _turn = turn();
    let scratch = Scratch::new();
    let error = error(&daemon(&scratch, "echo 'cannot load library' >&2; exit 3"));
    let text = error.to_string();
    assert!(text.contains("exit status: 3: cannot load library"), "{text}");
    assert!(error.hint().unwrap().contains("ollmd.stderr"));
}

#[test]
fn losing_the_race_means_to_connect_to_the_winner() {
    let _turn = turn();
    let scratch = Scratch::new();
    let connector = daemon(&scratch, "exit 75");
    let (socket, home) = (scratch.socket(), connector.address().home().to_owned());
    let winner = std::thread::spawn(move || {
        while !home.join("logs/ollmd.stderr").exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
        UnixListener::bind(socket).unwrap()
    });
    let client = BlockingClient::connect(&connector).unwrap();
    assert!(!client.started_daemon());
    drop(winner.join().unwrap());
}

#[test]
fn whoever_waits_for_the_lock_connects_to_what_the_other_started() {
    let _turn = turn();
    let scratch = Scratch::new();
    let ran = scratch.directory.path().join("ran");
    let connector = daemon(&scratch, &format!(": >{}; exit 1", ran.display()));
    let home = connector.address().home().to_owned();
    create_private_dir(&home).unwrap();
    let lock = private_file(&home.join("start.lock")).unwrap();
    lock.lock().unwrap();
    let socket = scratch.socket();
    let waiting = std::thread::spawn(move || start(connector.address(), connector.program()));
    let _listener = UnixListener::bind(socket).unwrap();
    assert!(!waiting.join().unwrap().unwrap().started);
    assert!(!ran.exists());
    drop(lock);
}

#[test]
fn without_permission_or_program_nothing_is_started() {
    let scratch = Scratch::new();
    let refused = error(&scratch.connector());
    assert!(matches!(refused, ClientError::Unreachable { .. }));
    assert!(refused.to_string().contains(&scratch.socket().display().to_string()));
    assert!(!scratch.directory.path().join("home").exists());
    let nowhere = scratch.connector_with(&Environment::default());
    assert!(matches!(error(&nowhere), ClientError::DaemonNotFound));
    let missing = Environment { daemon: Some("/nowhere/ollmd".into()), ..Environment::default() };
    let missing = error(&scratch.connector_with(&missing));
    assert!(
        matches!(&missing, ClientError::Start { path, .. } if path == Path::new("/nowhere/ollmd"))
    );
}

#[test]
fn a_socket_that_is_there_and_forbidden_is_not_a_reason_to_start() {
    let scratch = Scratch::new();
    drop(File::create(scratch.socket()).unwrap());
    // A plain file refuses connections like a stale socket; a directory in its place does not.
    std::fs::remove_file(scratch.socket()).unwrap();
    DirBuilder::new().create(scratch.socket()).unwrap();
    let connector = scratch.connector_with(&Environment::default());
    let error = error(&connector);
    assert!(
        matches!(error, ClientError::Unreachable { .. } | ClientError::DaemonNotFound),
        "{error}"
    );
}

#[test]
fn the_pipe_is_read_up_to_a_line_an_end_or_the_deadline() {
    let check = |written: &[u8], hang_up: bool, expect: Option<&[u8]>| {
        let (mut reader, mut writer) = io::pipe().unwrap();
        writer.write_all(written).unwrap();
        let held = (!hang_up).then_some(writer);
        let deadline = Instant::now() + Duration::from_millis(30);
        assert_eq!(last_words(&mut reader, deadline, &mut || false).unwrap().as_deref(), expect);
        drop(held);
    };
    check(b"ok\n", false, Some(b"ok\n"));
    check(b"ok", true, Some(b"ok"));
    check(b"", true, Some(b""));
    check(b"", false, None);
    check(b"half a line", false, None);
}
