//! `ollmctl acp -- AGENT`: a proxy between an editor and an agent, which records what they say.
//!
//! - `pump`: the two streams of bytes. `rewrite`: the lines that `--recall` and `--mcp` extend.
//! - `tap`: the bounded queue from the streams to the recorder. `frames`: lines from its pieces.
//! - `conversation`: what the messages of ACP mean, as steps to record. `recorder`: carries them out with the daemon.
//!
//! **Invariants**: the editor and the agent see what they would see without this program: every byte in order, the end of
//! each stream, the exit code or signal of the agent. No stream ever waits for the recorder or the daemon; only `--recall`
//! waits, for at most [`recall::LIMIT`]. What could not be recorded is counted.

mod conversation;
mod frames;
mod pump;
mod recall;
mod recorder;
mod rewrite;
mod tap;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use ollm_protocol::sanitize;
use rustix::process::{Pid, Signal, getpid, kill_process};
use tokio::signal::unix::SignalKind;

use self::pump::{Pump, PumpProgress};
use self::recall::PromptRecall;
use self::recorder::{KnownSessions, Recorder};
use self::rewrite::{AddedServer, Rewriter};
use self::tap::{AcpSide, Tap};
use crate::background::watch_signals;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};

/// The exit codes of shells for a program that cannot be run and for a missing one.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
/// The wait for more output after the agent's end: a program that the agent left running can keep the pipe open forever.
const LINGER: Duration = Duration::from_millis(250);
/// The wait for the recorder after the agent's end. The editor waits for this program meanwhile.
const RECORDING_LIMIT: Duration = Duration::from_secs(10);
/// The signals that end a program, which are the agent's.
const FORWARDED: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
const PAUSE: Duration = Duration::from_millis(2);

/// The arguments of the proxy.
#[derive(Debug, Args)]
pub(super) struct ProxyArgs {
    /// Put what earlier conversations say about a prompt before it, unless it begins with /, as commands do.
    #[arg(long, requires = "agent")]
    recall: bool,
    /// Give the agent the tools of `ollmctl mcp`.
    #[arg(long, requires = "agent")]
    mcp: bool,
    /// The command line of another agent, which answers then.
    #[arg(last = true, num_args = 1.., value_name = "AGENT")]
    pub(super) agent: Vec<OsString>,
}

/// Runs the agent to its end.
///
/// **Errors**: the exit code of the agent, or that it cannot be run.
pub(super) fn run(args: &ProxyArgs, ctx: &CommandContext<'_>) -> CommandResult {
    let (program, rest) =
        args.agent.split_first().ok_or_else(|| CommandError::usage("the agent is missing", ""))?;
    let mut command = Command::new(program);
    command.args(rest).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let name = sanitize::one_line(&program.to_string_lossy());
            ctx.terminal.eprintln(&format!("ollmctl acp: cannot run {name}: {error}"));
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            return Err(CommandError::CommandExit {
                code: if is_missing { NOT_FOUND } else { CANNOT_RUN },
            });
        }
    };
    let is_urged = Arc::new(AtomicBool::new(false));
    forward_signals(&child, Arc::clone(&is_urged))?;
    let tap = Arc::new(Tap::default());
    let name =
        std::path::Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
    let known = KnownSessions::default();
    let recorder =
        Recorder::new(ctx.connector().clone(), name, known.clone()).start(Arc::clone(&tap))?;
    let rewriter = rewriter(args, known, ctx)?;
    let (editor, agent) = (AcpSide::FromEditor, AcpSide::FromAgent);
    let stdin = child.stdin.take().map(|pipe| File::from(std::os::fd::OwnedFd::from(pipe)));
    let stdout = child.stdout.take().map(|pipe| File::from(std::os::fd::OwnedFd::from(pipe)));
    let (Some(to_agent), Some(from_agent)) = (stdin, stdout) else { return Ok(()) };
    let of_editor = Pump::new(copy_of(io::stdin())?, to_agent, Arc::clone(&tap), editor);
    // It ends with the editor or with this process.
    let _reading: JoinHandle<()> = of_editor.start(rewriter)?;
    let of_agent = Pump::new(from_agent, copy_of(io::stdout())?, Arc::clone(&tap), agent);
    let progress = of_agent.progress();
    let writing = of_agent.start(None)?;
    let status = child.wait().map_err(CommandError::Input)?;
    finish_output(&writing, &progress, &is_urged);
    tap.close();
    let lost = recorder.finish(RECORDING_LIMIT);
    if let Some(problem) = lost {
        ctx.terminal.eprintln(&format!("ollmctl acp: {problem}"));
    }
    end_like(status)
}

fn rewriter(
    args: &ProxyArgs,
    known: KnownSessions,
    ctx: &CommandContext<'_>,
) -> CommandResult<Option<Rewriter>> {
    if !args.recall && !args.mcp {
        return Ok(None);
    }
    let recall =
        args.recall.then(|| PromptRecall::new(ctx.connector().clone(), known)).transpose()?;
    let server = args.mcp.then(|| AddedServer::new(ctx.connector().address())).transpose()?;
    Ok(Some(Rewriter::new(recall, server)))
}

/// Returns another descriptor of a stream of this process, which is not buffered.
fn copy_of(stream: impl AsFd) -> CommandResult<File> {
    let copy = stream.as_fd().try_clone_to_owned().map_err(CommandError::Input)?;
    Ok(File::from(copy))
}

/// Passes the signals that end a program on to the agent, whose end then ends this program, and notes that one came.
fn forward_signals(child: &Child, is_urged: Arc<AtomicBool>) -> CommandResult {
    let kinds = FORWARDED.map(|signal| SignalKind::from_raw(signal.as_raw()));
    let pid = Pid::from_raw(child.id().cast_signed());
    watch_signals(&kinds, move |arrived| {
        is_urged.store(true, Ordering::Relaxed);
        if let Some(pid) = pid {
            // Fails if the agent has just ended. Until this process ends, no other one gets its number soon.
            kill_process(pid, FORWARDED[arrived]).ok();
        }
    })
}

/// Waits until everything that the agent wrote has passed.
fn finish_output(writing: &JoinHandle<()>, progress: &PumpProgress, is_urged: &AtomicBool) {
    let (mut seen, mut deadline) = (progress.n_bytes(), Instant::now() + LINGER);
    while !writing.is_finished() && Instant::now() < deadline {
        std::thread::sleep(PAUSE);
        let now = progress.n_bytes();
        // An editor that reads slowly still gets all of it. One that reads nothing is waited for until a signal comes.
        if now != seen || (progress.is_writing() && !is_urged.load(Ordering::Relaxed)) {
            (seen, deadline) = (now, Instant::now() + LINGER);
        }
    }
}

/// Ends as the agent ended: with its exit code, or by its signal.
fn end_like(status: ExitStatus) -> CommandResult {
    if let Some(signal) = status.signal() {
        if let Some(signal) = Signal::from_named_raw(signal) {
            end_by(signal);
        }
        return Err(CommandError::CommandExit {
            code: u8::try_from(128 + signal).unwrap_or(u8::MAX),
        });
    }
    match u8::try_from(status.code().unwrap_or(1)) {
        Ok(0) => Ok(()),
        Ok(code) => Err(CommandError::CommandExit { code }),
        Err(_) => Err(CommandError::CommandExit { code: u8::MAX }),
    }
}

/// Ends this process by a signal. Those that are passed on to the agent are caught here, and a program that takes the place of
/// this one catches none.
fn end_by(signal: Signal) {
    if FORWARDED.contains(&signal) {
        let kill = format!("kill -{} $$", signal.as_raw());
        // Returns only if there is no shell; the exit code then says the same.
        drop(Command::new("/bin/sh").args(["-c", &kill]).exec());
    } else {
        kill_process(getpid(), signal).ok();
    }
}
