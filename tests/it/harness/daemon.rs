//! `ollmd` as a process: started until ready, signaled, killed; its logs are printed when a test fails.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::sandbox::{Sandbox, files_under};
use super::wire::Wire;
use super::{ChildExt as _, DEADLINE, program};

/// Starts the daemon with its readiness pipe as descriptor 3. The shell passes on that pipe alone; a pipe that
/// `Command` lets a child inherit would leak into every process that another test starts at the same time.
const LAUNCH: &str = "exec \"$@\" 3>&1 >/dev/null";
/// The bytes of each log file that a failing test prints.
const LOG_TAIL_BYTES: usize = 8 << 10;

/// A running daemon; killed when dropped.
#[must_use]
pub(crate) struct Daemon {
    child: Child,
    home: PathBuf,
    socket: PathBuf,
    stderr: PathBuf,
}

impl Daemon {
    /// Starts a daemon on the sandbox's socket and waits until it is ready.
    ///
    /// **Panics** when it does not become ready.
    #[track_caller]
    pub(crate) fn start(sandbox: &Sandbox, variables: &[(&str, &str)]) -> Self {
        let socket = sandbox.socket();
        let args = ["--socket", socket.to_str().unwrap()];
        match Self::launch(sandbox, &args, variables) {
            Ok(daemon) => daemon,
            Err(report) => panic!("the daemon did not start: {report}"),
        }
    }

    /// Starts a daemon with only the given arguments. Returns its readiness report if it does not become ready.
    #[track_caller]
    pub(crate) fn try_start(sandbox: &Sandbox, args: &[&str]) -> Result<Self, String> {
        Self::launch(sandbox, args, &[])
    }

    #[track_caller]
    fn launch(
        sandbox: &Sandbox,
        args: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Self, String> {
        let stderr = sandbox.path("daemon.stderr");
        let mut command = Command::new("/bin/sh");
        sandbox.isolate(&mut command);
        command.envs(variables.iter().copied());
        let stderr_file = File::options().create(true).append(true).open(&stderr).unwrap();
        command
            .args(["-c", LAUNCH, "sh"])
            .arg(program("ollmd"))
            .arg("--home")
            .arg(sandbox.home())
            .args(["--ready-fd", "3"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr_file);
        let mut child = command.spawn().unwrap();
        let readiness = child.stdout.take().unwrap();
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(readiness).read_line(&mut line);
            send.send(read.map(|_| line)).ok()
        });
        let mut daemon = Self { child, home: sandbox.home(), socket: sandbox.socket(), stderr };
        let report =
            receive.recv_timeout(DEADLINE).expect("a readiness report within the deadline");
        let report = report.unwrap();
        if report.trim_end() == "ok" {
            let announcement = std::fs::read(daemon.home.join("daemon.json")).unwrap();
            let announcement: Value = serde_json::from_slice(&announcement).unwrap();
            daemon.socket = announcement["socket"].as_str().unwrap().into();
            return Ok(daemon);
        }
        let status = daemon.wait_exit();
        Err(format!("{} ({status}) {}", report.trim_end(), daemon.stderr()))
    }

    /// Opens a connection.
    pub(crate) fn wire(&self) -> Wire {
        Wire::connect(&self.socket)
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.process(), signal).unwrap();
    }

    /// Returns the process id for system calls. It cannot be reused while the child is not waited for.
    pub(crate) fn process(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed()).unwrap()
    }

    /// Ends the daemon with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        let _status = self.child.wait().unwrap();
    }

    /// Ends the daemon with SIGTERM and returns its exit status.
    #[track_caller]
    pub(crate) fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait_exit()
    }

    /// Waits for the exit and returns its status.
    #[track_caller]
    pub(crate) fn wait_exit(&mut self) -> ExitStatus {
        let status = self.child.wait_timeout(DEADLINE);
        status.unwrap_or_else(|| panic!("the daemon still runs after {DEADLINE:?}"))
    }

    /// Returns what daemons of this sandbox wrote to stderr so far.
    pub(crate) fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Checks that the daemon answers on a new connection.
    #[track_caller]
    pub(crate) fn assert_serves(&self) {
        let status = self.wire().call("daemon.status", json!({}));
        assert!(status.is_ok(), "a new connection is not served: {status:?}");
    }

    /// Returns the resident memory in bytes, as `daemon.status` reports it.
    #[track_caller]
    pub(crate) fn memory_bytes(&self) -> u64 {
        let status = self.wire().ok("daemon.status", json!({}));
        status["memoryBytes"].as_u64().expect("the daemon reports its memory on this system")
    }

    /// Returns the largest resident memory of the daemon so far.
    #[track_caller]
    pub(crate) fn peak_memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        let kib: u64 = line.trim().strip_suffix(" kB").expect("in kB").parse().unwrap();
        kib * 1024
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- stderr of the daemon\n{}", self.stderr());
            for log in files_under(&self.home.join("logs")) {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let start = text.len().saturating_sub(LOG_TAIL_BYTES);
                let start = (start..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
                eprintln!("--- {}\n{}", log.display(), &text[start..]);
            }
        }
    }
}
