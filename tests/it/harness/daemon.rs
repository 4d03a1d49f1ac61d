//! The daemon as a process: started until ready, ended in every way, its words shown when a test fails.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::sandbox::{Sandbox, every_file};
use super::wire::Wire;
use super::{DEADLINE, Waits as _, program};

/// Starts the daemon with its readiness pipe as descriptor 3: the shell passes on just that one, while a pipe
/// that `Command` could inherit would leak into every process that another test starts meanwhile.
const LAUNCH: &str = "exec \"$@\" 3>&1 >/dev/null";

/// The longest that a daemon takes to leave, by its own promise.
pub(crate) const LEAVING: Duration = Duration::from_secs(10);

/// A running daemon; killed when the test is over, whatever happened.
#[must_use]
pub(crate) struct Daemon {
    child: Child,
    home: PathBuf,
    socket: PathBuf,
    stderr: PathBuf,
}

impl Daemon {
    /// Starts a daemon and waits until it says that it is ready.
    ///
    /// **Panics**: when it ends or says something else.
    #[track_caller]
    pub(crate) fn start(sandbox: &Sandbox, args: &[&str]) -> Self {
        let socket = sandbox.socket();
        let mut all = vec!["--socket".to_owned(), socket.to_str().unwrap().to_owned()];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        match Self::launch(sandbox, &all) {
            Ok(daemon) => daemon,
            Err(said) => panic!("the daemon did not start: {said}"),
        }
    }

    /// Starts a daemon with variables of its own.
    #[track_caller]
    pub(crate) fn start_with(sandbox: &Sandbox, variables: &[(&str, &str)]) -> Self {
        let socket = ["--socket".to_owned(), sandbox.socket().to_str().unwrap().to_owned()];
        match Self::launch_with(sandbox, &socket, variables) {
            Ok(daemon) => daemon,
            Err(said) => panic!("the daemon did not start: {said}"),
        }
    }

    /// Starts a daemon; an error is what it said instead of being ready.
    pub(crate) fn launch(sandbox: &Sandbox, args: &[String]) -> Result<Self, String> {
        Self::launch_with(sandbox, args, &[])
    }

    fn launch_with(
        sandbox: &Sandbox,
        args: &[String],
        variables: &[(&str, &str)],
    ) -> Result<Self, String> {
        let stderr = sandbox.path("daemon.stderr");
        let mut command = Command::new("/bin/sh");
        sandbox.clean(&mut command);
        command.envs(variables.iter().copied());
        let errors = File::options().create(true).append(true).open(&stderr).unwrap();
        command
            .args(["-c", LAUNCH, "sh"])
            .arg(program("ollmd"))
            .arg("--home")
            .arg(sandbox.home())
            .args(["--ready-fd", "3"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors);
        let mut child = command.spawn().unwrap();
        let said = child.stdout.take().unwrap();
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(said).read_line(&mut line);
            send.send(read.map(|_| line)).ok()
        });
        let mut daemon = Self { child, home: sandbox.home(), socket: sandbox.socket(), stderr };
        let line =
            receive.recv_timeout(DEADLINE).expect("the daemon says how its start went").unwrap();
        if line.trim_end() == "ok" {
            let announced = std::fs::read(daemon.home.join("daemon.json")).unwrap();
            let announced: Value = serde_json::from_slice(&announced).unwrap();
            daemon.socket = announced["socket"].as_str().unwrap().into();
            return Ok(daemon);
        }
        let status = daemon.wait().expect("a daemon that does not start ends");
        Err(format!("{} ({status}) {}", line.trim_end(), daemon.errors()))
    }

    /// A connection.
    pub(crate) fn wire(&self) -> Wire {
        Wire::connect(&self.socket)
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.process(), signal).unwrap();
    }

    /// The process as the system's calls take it. The child is not reaped yet, so it is nobody else.
    pub(crate) fn process(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed()).unwrap()
    }

    /// Ends it as a power cut would.
    pub(crate) fn kill9(mut self) {
        self.child.kill().unwrap();
        let _status = self.child.wait().unwrap();
    }

    /// Asks it to leave and returns how it did.
    ///
    /// **Panics**: when it takes longer than it promises.
    #[track_caller]
    pub(crate) fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.left(LEAVING)
    }

    /// Waits until it left by itself.
    #[track_caller]
    pub(crate) fn left(&mut self, limit: Duration) -> ExitStatus {
        self.child
            .wait_for(limit)
            .unwrap_or_else(|| panic!("the daemon is still there after {limit:?}"))
    }

    /// The status, when it ends before the general deadline.
    pub(crate) fn wait(&mut self) -> Option<ExitStatus> {
        self.child.wait_for(DEADLINE)
    }

    /// What it wrote on stderr.
    pub(crate) fn errors(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Fails unless a fresh client is served.
    #[track_caller]
    pub(crate) fn assert_serves(&self) {
        let status = self.wire().call("daemon.status", json!({}));
        assert!(status.is_ok(), "a fresh client is not served: {status:?}");
    }

    /// Resident memory in bytes, as the daemon reports it.
    #[track_caller]
    pub(crate) fn memory_bytes(&self) -> u64 {
        let status = self.wire().ok("daemon.status", json!({}));
        status["memoryBytes"].as_u64().expect("the daemon knows its memory here")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- stderr of the daemon\n{}", self.errors());
            for log in every_file(&self.home.join("logs")) {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let tail = text.len().saturating_sub(8 << 10);
                let tail = (tail..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                eprintln!("--- {}\n{}", log.display(), &text[tail..]);
            }
        }
    }
}
