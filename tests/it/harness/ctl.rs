//! `ollmctl` as a process without a terminal: run to its end, or read line by line.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{ChildExt as _, DEADLINE};

/// The result of a command that ended.
#[derive(Debug)]
#[must_use]
pub(crate) struct Output {
    /// The exit code; `None` after a signal.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Checks that the command succeeded, and returns its stdout.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self.stdout
    }

    /// Checks that the command succeeded and printed one JSON value, and returns that value.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in\n{text}"))
    }

    /// Checks that the command failed with an exit code and an error message, and returns its stderr.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(!self.stderr.trim().is_empty(), "a failure has a message: {self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self.stderr
    }
}

/// Runs a command to its end, with `input` on its stdin.
///
/// **Panics** when it takes longer than the deadline.
#[track_caller]
pub(crate) fn run(mut command: Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || {
        // A command need not read its input.
        stdin.write_all(input.as_bytes()).ok()
    });
    let stdout = read_all(child.stdout.take().unwrap());
    let stderr = read_all(child.stderr.take().unwrap());
    let Some(status) = child.wait_timeout(DEADLINE) else {
        child.kill().unwrap();
        panic!("still running after {DEADLINE:?}: {command:?}");
    };
    let _written = writer.join().unwrap();
    Output { code: status.code(), stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).expect("output is UTF-8")
    })
}

/// Returns the lines that a program writes, read in a thread.
pub(crate) fn lines_of(child: &mut Child) -> Receiver<String> {
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in stdout.lines() {
            if send.send(line.unwrap()).is_err() {
                return;
            }
        }
    });
    lines
}

/// A running command whose stdout is read line by line; killed when dropped.
#[must_use]
pub(crate) struct Follower {
    child: Child,
    lines: Receiver<String>,
}

impl Follower {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let lines = lines_of(&mut child);
        Self { child, lines }
    }

    /// Waits for the next line.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("another line within the deadline")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().cast_signed()).unwrap(), signal).unwrap();
    }

    /// Waits for the end and returns the exit code, or `None` after a signal.
    #[track_caller]
    pub(crate) fn exit_code(mut self) -> Option<i32> {
        self.child.wait_timeout(DEADLINE).expect("the command ends within the deadline").code()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
