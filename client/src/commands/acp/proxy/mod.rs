//! `ollmctl acp -- AGENT`: a proxy between an editor and an agent, which records what they say.
//!
//! - `pump`: the two streams of bytes. `rewrite`: the lines that `--recall` and `--mcp` extend.
//! - `tap`: the bounded queue from the streams to the recorder. `frames`: lines from its pieces. `recorder`: the thread of all
//!   that follows.
//! - `conversation`: the messages of ACP as steps to record. `contents`: their texts and tool calls.
//! - `backlog`: the bounded queue of steps that the daemon does not have yet. `writer`: carries them out with the daemon.
//!
//! **Invariants**: the editor and the agent see what they would see without this program: every byte in order, the end of the
//! editor's stream, and the end of the agent with its exit code or signal. The end of a stream that an agent closes before is
//! seen only then. No stream ever waits for the recorder or the daemon; only `--recall`
//! waits, for at most [`recall::LIMIT`]. What could not be recorded is counted.

mod backlog;
mod contents;
mod conversation;
mod frames;
mod pump;
mod recall;
mod recorder;
mod rewrite;
mod tap;
mod writer;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::Args;
use ollm_protocol::sanitize;
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::SignalKind;

use self::pump::{Pump, PumpProgress};
use self::recall::PromptRecall;
use self::recorder::RunningRecorder;
use self::rewrite::{AddedServer, Rewriter};
use self::tap::{AcpSide, Tap};
use self::writer::{KnownSessions, StepWriter};
use crate::address::Environment;
use crate::background::watch_signals;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::connection::Connector;

/// The exit codes of shells for a program that cannot be run and for a missing one.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;
/// The wait for more output after the agent's end: a program that the agent left running can keep the pipe open forever.
const LINGER: Duration = Duration::from_millis(250);
/// The signals that end a program, which are the agent's.
const FORWARDED: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];
/// The time between the arrivals of a signal that is sent to this program and the agent at once.
const GROUP_LIMIT: Duration = Duration::from_millis(500);
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

/// The signals that arrived, as far as they matter here.
#[derive(Default)]
struct ProxySignals {
    /// Set at the first one.
    is_urged: AtomicBool,
    agent_ended: OnceLock<Instant>,
    /// Set at one that comes after the agent's end, and so is for this program.
    is_hurried: AtomicBool,
}

/// Runs the agent to its end.
///
/// **Errors**: the exit code of the agent, or that it cannot be run.
pub(super) fn run(args: &ProxyArgs, ctx: &CommandContext<'_>) -> CommandResult {
    let (program, rest) =
        args.agent.split_first().ok_or_else(|| CommandError::usage("the agent is missing", ""))?;
    // Nothing but the agent writes while it runs.
    let connector = ctx.connector().clone().with_show_waiting(|_| Box::new(|| {}));
    let known = KnownSessions::default();
    let rewriter = rewriter(args, &connector, &known, ctx.environment)?;
    let mut child = start_agent(program, rest, ctx)?;
    let signals = Arc::new(ProxySignals::default());
    forward_signals(&child, Arc::clone(&signals))?;
    let tap = Arc::new(Tap::default());
    let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
    let writer = StepWriter::new(connector, name, known);
    let recorder = RunningRecorder::start(writer, Arc::clone(&tap))?;
    let (editor, agent) = (AcpSide::FromEditor, AcpSide::FromAgent);
    let stdin = child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    let stdout = child.stdout.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    let (Some(to_agent), Some(from_agent)) = (stdin, stdout) else { return Ok(()) };
    let of_editor = Pump::new(copy_of(io::stdin())?, to_agent, Arc::clone(&tap), editor);
    // It ends with the editor or with this process.
    let _reading: JoinHandle<()> = of_editor.start(rewriter)?;
    let of_agent = Pump::new(from_agent, copy_of(io::stdout())?, Arc::clone(&tap), agent);
    let progress = of_agent.progress();
    let writing = of_agent.start(None)?;
    let status = child.wait().map_err(CommandError::Input)?;
    signals.agent_ended.set(Instant::now()).ok();
    finish_output(&writing, &progress, &signals.is_urged);
    tap.close();
    if let Some(problem) = recorder.finish(&signals.is_hurried) {
        ctx.terminal.eprintln(&format!("ollmctl acp: {}", sanitize::one_line(&problem)));
    }
    end_like(status)
}

/// Starts the agent.
///
/// **Errors**: the exit code of shells, after a message.
fn start_agent(
    program: &OsStr,
    args: &[OsString],
    ctx: &CommandContext<'_>,
) -> CommandResult<Child> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().map_err(|error| {
        let name = sanitize::one_line(&program.to_string_lossy());
        ctx.terminal.eprintln(&format!("ollmctl acp: cannot run {name}: {error}"));
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        CommandError::CommandExit { code: if is_missing { NOT_FOUND } else { CANNOT_RUN } }
    })
}

fn rewriter(
    args: &ProxyArgs,
    connector: &Connector,
    known: &KnownSessions,
    environment: &Environment,
) -> CommandResult<Option<Rewriter>> {
    if !args.recall && !args.mcp {
        return Ok(None);
    }
    let recall = args.recall.then(|| PromptRecall::new(connector.clone(), known.clone()));
    let server = args.mcp.then(|| AddedServer::new(connector.address(), environment));
    Ok(Some(Rewriter::new(recall.transpose()?, server.transpose()?)))
}

/// Returns another descriptor of a stream of this process, which is not buffered.
fn copy_of(stream: impl AsFd) -> CommandResult<File> {
    let copy = stream.as_fd().try_clone_to_owned().map_err(CommandError::Input)?;
    Ok(File::from(copy))
}

/// Passes the signals that end a program on to the agent, whose end then ends this program, and notes that one came.
fn forward_signals(child: &Child, signals: Arc<ProxySignals>) -> CommandResult {
    let kinds = FORWARDED.map(|signal| SignalKind::from_raw(signal.as_raw()));
    let pid = Pid::from_raw(child.id().cast_signed());
    watch_signals(&kinds, move |arrived| {
        signals.is_urged.store(true, Ordering::Relaxed);
        if let Some(ended) = signals.agent_ended.get() {
            // Another process can have the agent's number now.
            signals.is_hurried.fetch_or(ended.elapsed() > GROUP_LIMIT, Ordering::Relaxed);
        } else if let Some(pid) = pid {
            // Fails if the agent has just ended. No other process gets its number that soon.
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
        end_by(signal);
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

/// Ends this process by a signal. Some are caught here, others ignored or taken for a fault of this program; a program that
/// takes the place of this one does nothing of that. The agent has left the dump of its memory, if it leaves one.
fn end_by(signal: i32) {
    let kill = format!("ulimit -c 0; kill -{signal} $$");
    // Returns only if there is no shell; the exit code then says the same.
    drop(Command::new("/bin/sh").args(["-c", &kill]).exec());
}
