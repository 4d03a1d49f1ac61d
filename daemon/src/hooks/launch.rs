//! The start of the program that runs a hook: by the daemon, or by the systemd instance of the user, whose services do not
//! have the restrictions of the daemon's.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use super::HookError;
use super::runner::{HookReply, HookRequest};

/// The time, besides the limit of a hook, for the start of the program that runs it and for the reply.
const START_LIMIT: Duration = Duration::from_secs(5);
/// The most bytes of a reply: the output of a hook as JSON, in which a byte can become six.
const MAX_REPLY_BYTES: u64 = 512 * 1024;
/// The bytes of a report about a program that did not run the hook.
const MAX_REPORT_BYTES: u64 = 2048;
/// The program that asks systemd to run another one.
const SYSTEMD_RUN: &str = "systemd-run";

/// The starter of the program that runs hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunBy {
    Daemon,
    Systemd,
}

/// Starts the program that runs a hook.
#[derive(Clone, Debug)]
pub(crate) struct Launcher {
    /// The program of this process; a new one may have taken its place.
    program: PathBuf,
}

impl Launcher {
    /// Returns the launcher of this program.
    pub(crate) fn of_process() -> Self {
        let program = std::env::current_exe().unwrap_or_else(|_| "ollmd".into());
        Self { program }
    }

    /// Runs a hook and returns how it ended.
    ///
    /// **Cancel safety**: a hook whose run is dropped is killed.
    pub(crate) async fn run(
        &self,
        run_by: RunBy,
        request: &HookRequest,
    ) -> Result<HookReply, HookError> {
        let mut command = match run_by {
            RunBy::Daemon => self.own_command(),
            RunBy::Systemd => self.systemd_command(request.limit),
        };
        let name = command.as_std().get_program().to_owned();
        // In a group of its own, it is not ended by an interrupt on the daemon's terminal before it has killed the hook.
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child =
            command.spawn().map_err(|source| HookError::Start { program: name.into(), source })?;
        let limit = request.limit + START_LIMIT;
        let answer = tokio::time::timeout(limit, exchange(&mut child, request)).await;
        let (reply, report) = answer.unwrap_or_default();
        reply.ok_or_else(|| HookError::NoReply {
            program: match run_by {
                RunBy::Daemon => "ollmd --run-hook".to_owned(),
                RunBy::Systemd => SYSTEMD_RUN.to_owned(),
            },
            report,
        })
    }

    /// Returns the command that runs this program as it is now, also after an update replaced its file.
    fn own_command(&self) -> Command {
        let running = Path::new("/proc/self/exe");
        let program = if running.exists() { running } else { &self.program };
        let mut command = Command::new(program);
        command.env_clear().arg("--run-hook");
        command
    }

    /// Returns the command that lets systemd run this program, with its stdin and stdout.
    fn systemd_command(&self, limit: Duration) -> Command {
        let program = self.program.to_string_lossy();
        // The name that Linux gives to a program whose file was replaced.
        let program = program.strip_suffix(" (deleted)").unwrap_or(&program);
        let seconds = (limit + START_LIMIT).as_secs() + 1;
        let mut command = Command::new(SYSTEMD_RUN);
        command
            .args(["--user", "--pipe", "--wait", "--collect", "--quiet", "--service-type=exec"])
            .args(["--description=A hook of ollmd", "--property=TimeoutStopSec=2"])
            .arg(format!("--property=RuntimeMaxSec={seconds}"))
            .args(["--", program, "--run-hook"]);
        command
    }
}

/// Sends a request and returns the reply, or what the program wrote to stderr. The pipe to the program is closed at the end,
/// also if this is dropped, and then the program kills the hook.
async fn exchange(child: &mut Child, request: &HookRequest) -> (Option<HookReply>, String) {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        unreachable!("all three are pipes")
    };
    let mut line = serde_json::to_string(request).expect("a request becomes JSON");
    line.push('\n');
    // A program that ended says why on stderr.
    stdin.write_all(line.as_bytes()).await.ok();
    let (mut reply, mut report) = (Vec::new(), Vec::new());
    let (mut stdout, mut stderr) = (stdout.take(MAX_REPLY_BYTES), stderr.take(MAX_REPORT_BYTES));
    let (_, _) = tokio::join!(stdout.read_to_end(&mut reply), stderr.read_to_end(&mut report));
    let report = String::from_utf8_lossy(&report).trim().to_owned();
    (serde_json::from_slice(&reply).ok(), report)
}
