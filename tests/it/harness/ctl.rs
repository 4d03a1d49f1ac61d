//! `ollmctl` as a process.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{DEADLINE, Waits as _};

/// What a command that ended left behind.
#[derive(Debug)]
#[must_use]
pub(crate) struct Output {
    /// The exit code; `None` after a signal.
    pub(crate) code: Option<i32>,
    /// What it printed.
    pub(crate) stdout: String,
    /// What it complained about.
    pub(crate) stderr: String,
}

impl Output {
    /// Fails unless the command succeeded; returns what it printed.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self.stdout
    }

    /// Fails unless the command succeeded and printed one JSON value, which is returned.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in\n{text}"))
    }

    /// Fails unless the command ended with a code and kept stdout for data; returns the complaint.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(!self.stderr.trim().is_empty(), "a failure says why: {self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self.stderr
    }
}

/// Runs a command to its end.
///
/// **Panics**: when it takes longer than the deadline.
#[track_caller]
pub(crate) fn run(mut command: Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let feed = std::thread::spawn(move || {
        // A command need not read its input.
        stdin.write_all(input.as_bytes()).ok()
    });
    let stdout = collect(child.stdout.take().unwrap());
    let stderr = collect(child.stderr.take().unwrap());
    let Some(status) = child.wait_for(DEADLINE) else {
        child.kill().unwrap();
        panic!("still running after {DEADLINE:?}: {command:?}");
    };
    let _fed = feed.join().unwrap();
    Output { code: status.code(), stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).expect("what is printed is UTF-8")
    })
}

/// A command that prints a line at a time until it is stopped.
#[must_use]
pub(crate) struct Follower {
    child: Child,
    lines: Receiver<String>,
}

impl Follower {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines() {
                if send.send(line.unwrap()).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// The next line.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("another line in time")
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().cast_signed()).unwrap(), signal).unwrap();
    }

    /// Its exit code, when it has ended; `None` after a signal.
    #[track_caller]
    pub(crate) fn end(mut self) -> Option<i32> {
        self.child.wait_for(DEADLINE).expect("it ends in time").code()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
