//! The program that runs one hook: `ollmd --run-hook`, a process beside the daemon.
//!
//! The daemon's service forbids memory that is writable and executable, and many system calls, also to every process that the
//! daemon starts. Programs with a compiler at run time could not run. So systemd starts this program without these
//! restrictions, and where there are none, the daemon does.
//!
//! A request is a line of JSON on stdin, and the reply one on stdout. The end of stdin means that the daemon is gone or does
//! not wait any more: then the hook is killed.
//!
//! **Invariant**: however a run ends, the process group of the hook was killed, and on Linux every process that it started.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::descendants;

/// The most bytes that a hook may write to stdout.
pub(crate) const MAX_OUTPUT_BYTES: usize = 64 * 1024;
/// The bytes of a hook's stderr that are kept, from the end.
const STDERR_BYTES: usize = 2048;
/// The time for reading the rest of the output after a hook has ended. What it started may hold the pipes open.
const REST_LIMIT: Duration = Duration::from_millis(200);
/// The longest wait for a file that is being written, in which case it cannot be executed.
const BUSY_LIMIT: Duration = Duration::from_secs(2);
/// The pause between two attempts to execute such a file.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// A hook to run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HookRequest {
    pub(crate) program: PathBuf,
    pub(crate) directory: PathBuf,
    /// All variables of its environment.
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) input: String,
    pub(crate) limit: Duration,
}

/// The end of a hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HookOutcome {
    Success,
    /// The exit status, in words.
    Failed(String),
    TimedOut,
    /// It wrote more than it may.
    Flooded,
    /// It could not be started, for a reason.
    NotStarted(String),
}

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HookReply {
    pub(crate) outcome: HookOutcome,
    pub(crate) output: String,
    /// The end of its stderr.
    pub(crate) stderr: String,
    pub(crate) duration_ms: u64,
}

/// Runs the hook of the request on stdin.
pub(crate) fn serve() -> ExitCode {
    descendants::adopt();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    let served = runtime.block_on(serve_request());
    // A thread may wait for stdin.
    runtime.shutdown_background();
    if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn serve_request() -> io::Result<()> {
    let mut stdin = BufReader::new(tokio::io::stdin());
    let mut line = String::new();
    stdin.read_line(&mut line).await?;
    let request: HookRequest = serde_json::from_str(&line)?;
    let mut rest = Vec::new();
    let reply = tokio::select! {
        reply = run(&request) => reply,
        _ = stdin.read_to_end(&mut rest) => return Err(io::ErrorKind::BrokenPipe.into()),
    };
    let mut stdout = tokio::io::stdout();
    stdout.write_all(serde_json::to_string(&reply)?.as_bytes()).await?;
    stdout.write_all(b"\n").await?;
    stdout.flush().await
}

/// Runs a hook to its end or its limit.
async fn run(request: &HookRequest) -> HookReply {
    let begun = Instant::now();
    let mut captured = Captured::default();
    let outcome = match start(request).await {
        Ok((child, mut group)) => {
            let limit =
                tokio::time::timeout(request.limit, captured.follow(child, &mut group, request));
            limit.await.unwrap_or(HookOutcome::TimedOut)
        }
        Err(error) => HookOutcome::NotStarted(error.to_string()),
    };
    let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (output, stderr) = (text(&captured.output), text(&captured.stderr).trim().to_owned());
    HookReply { outcome, output, stderr, duration_ms }
}

/// The process group of a hook. It is killed when dropped, with everything else that the hook started.
struct Group(Option<Pid>);

impl Group {
    fn kill(&mut self) {
        // Only once: another group can get its number later.
        if let Some(leader) = self.0.take() {
            // Fails if no process of it is left.
            kill_process_group(leader, Signal::KILL).ok();
        }
        descendants::kill_all();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn start(request: &HookRequest) -> io::Result<(Child, Group)> {
    let mut command = Command::new(&request.program);
    command
        .current_dir(&request.directory)
        .env_clear()
        .envs(&request.variables)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let begun = Instant::now();
    loop {
        match command.spawn() {
            Ok(child) => {
                let leader = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
                return Ok((child, Group(leader)));
            }
            // An editor may still write the file.
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy
                    && begun.elapsed() < BUSY_LIMIT =>
            {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The output of a hook so far.
#[derive(Default)]
struct Captured {
    output: Vec<u8>,
    stderr: Vec<u8>,
}

impl Captured {
    /// Gives a hook its input and reads what it writes, until it ends. Then what it started is killed.
    async fn follow(
        &mut self,
        mut child: Child,
        group: &mut Group,
        request: &HookRequest,
    ) -> HookOutcome {
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(mut stdout), Some(mut stderr)) = (stdin, stdout, stderr) else {
            unreachable!("all three are pipes")
        };
        let write = async move {
            // A hook may end without reading.
            stdin.write_all(request.input.as_bytes()).await.ok();
            drop(stdin);
            std::future::pending::<()>().await;
        };
        tokio::pin!(write);
        let (mut out, mut err) = ([0; 8192], [0; 2048]);
        let (mut is_out_open, mut is_err_open) = (true, true);
        let mut ended: Option<(io::Result<ExitStatus>, Instant)> = None;
        while is_out_open || is_err_open || ended.is_none() {
            let rest_ends = ended.as_ref().map_or_else(Instant::now, |(_, at)| *at + REST_LIMIT);
            tokio::select! {
                status = child.wait(), if ended.is_none() => {
                    group.kill();
                    ended = Some((status, Instant::now()));
                }
                read = stdout.read(&mut out), if is_out_open => {
                    let n = read.unwrap_or(0);
                    is_out_open = n > 0;
                    self.output.extend_from_slice(&out[..n]);
                    if self.output.len() > MAX_OUTPUT_BYTES {
                        return HookOutcome::Flooded;
                    }
                }
                read = stderr.read(&mut err), if is_err_open => {
                    let n = read.unwrap_or(0);
                    is_err_open = n > 0;
                    self.stderr.extend_from_slice(&err[..n]);
                    let n_early = self.stderr.len().saturating_sub(STDERR_BYTES);
                    self.stderr.drain(..n_early);
                }
                () = tokio::time::sleep_until(rest_ends), if ended.is_some() => break,
                () = &mut write => {}
            }
        }
        match ended {
            Some((Ok(status), _)) if status.success() => HookOutcome::Success,
            Some((Ok(status), _)) => HookOutcome::Failed(status.to_string()),
            Some((Err(error), _)) => HookOutcome::Failed(error.to_string()),
            None => unreachable!("the loop waits for the end"),
        }
    }
}
