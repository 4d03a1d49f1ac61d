//! Runs a command: passes its output on and captures it, passes signals to it, and waits for its end.
//!
//! The command inherits stdin. Its stdout and stderr go through pipes, because they are captured.

use std::io::{self, IsTerminal as _, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::SignalKind;

use super::capture::OutputCapture;
use crate::background::{Signals, watch_signals};
use crate::command_error::CommandResult;

/// Bytes of one read: the capacity of a pipe.
const CHUNK_BYTES: usize = 64 * 1024;
/// The longest wait for more output after the command's end. A program that the command left running may keep the pipes
/// open forever; the command's own output has arrived by then.
const LINGER: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// The time between SIGTERM and SIGKILL for a command at its time limit.
const GRACE: Duration = Duration::from_secs(5);
/// The length of a wait for a command without a time limit.
const NO_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// A process that has ended, and its output.
pub(super) struct FinishedProcess {
    pub(super) status: ExitStatus,
    pub(super) stdout: OutputCapture,
    pub(super) stderr: OutputCapture,
    pub(super) duration: Duration,
    /// The process was stopped at its time limit.
    pub(super) timed_out: bool,
}

impl FinishedProcess {
    /// Returns the exit code as shells do: that of the command, or 128 plus the number of the signal.
    pub(super) fn code(&self) -> i32 {
        let signal = self.status.signal().map(|signal| 128 + signal);
        self.status.code().or(signal).unwrap_or(1)
    }
}

/// The stream of this program that gets the command's stdout.
#[derive(Clone, Copy)]
pub(super) enum StdoutTarget {
    Stdout,
    Stderr,
}

/// Runs a command to its end or its time limit.
///
/// **Errors**: the command cannot be started or waited for.
pub(super) fn run(
    command: &mut Command,
    target: StdoutTarget,
    limit: Option<Duration>,
) -> io::Result<FinishedProcess> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // From now on no signal ends this program before the command has ended.
    let mut signals = {
        let _entered = runtime.enter();
        CommandSignals::listen()?
    };
    let (exited, exit_writer) = io::pipe()?;
    let started = Instant::now();
    let pass_stdout = move |bytes: &[u8]| match target {
        StdoutTarget::Stdout => write_all(&mut io::stdout().lock(), bytes),
        StdoutTarget::Stderr => write_all(&mut io::stderr().lock(), bytes),
    };
    let pass_stderr = |bytes: &[u8]| write_all(&mut io::stderr().lock(), bytes);
    // The threads start before the command, so that a refused thread leaves no command behind.
    let (stdout_pipe, stdout_writer) = io::pipe()?;
    let (stderr_pipe, stderr_writer) = io::pipe()?;
    let stdout = copy(stdout_pipe, exited.try_clone(), pass_stdout)?;
    let stderr = copy(stderr_pipe, exited.try_clone(), pass_stderr)?;
    command.stdin(Stdio::inherit()).stdout(stdout_writer).stderr(stderr_writer);
    let spawned = command.spawn();
    // The pipes end with the command only if nobody else holds their writing ends.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = spawned?;
    let (status, timed_out) = runtime.block_on(signals.wait_for(&mut child, limit))?;
    let duration = started.elapsed();
    drop(exit_writer);
    let captured = |copy: JoinHandle<OutputCapture>| copy.join().unwrap_or_default();
    let (stdout, stderr) = (captured(stdout), captured(stderr));
    Ok(FinishedProcess { status, stdout, stderr, duration, timed_out })
}

/// Lets signals end this program at once, as if nothing caught them. A hangup does not: it can arrive twice when a terminal
/// is closed, and the command's record must not be lost for that.
#[expect(
    clippy::disallowed_methods,
    reason = "main may wait for a disk or the daemon, and nothing is left to clean up"
)]
pub(super) fn end_at_signals() -> CommandResult {
    let ending = [Signal::INT, Signal::QUIT, Signal::TERM];
    let kinds = ending.map(|signal| SignalKind::from_raw(signal.as_raw()));
    watch_signals(&kinds, move |arrived| std::process::exit(128 + ending[arrived].as_raw()))
}

fn write_all(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// Copies a stream in a thread, until it ends, until nothing more arrives after the command's end, or until `pass`
/// fails. The pipe is closed then, as if the command wrote to the reader itself.
fn copy(
    mut pipe: impl Read + AsFd + Send + 'static,
    exited: io::Result<PipeReader>,
    pass: impl Fn(&[u8]) -> io::Result<()> + Send + 'static,
) -> io::Result<JoinHandle<OutputCapture>> {
    thread::Builder::new().spawn(move || {
        let mut capture = OutputCapture::default();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut exited = exited.ok();
        while wait_for_bytes(&pipe, &mut exited) {
            match pipe.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => {
                    capture.push(&chunk[..read]);
                    if pass(&chunk[..read]).is_err() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        capture
    })
}

/// Waits until a read does not block; returns false if the command has ended and nothing arrives for [`LINGER`].
/// `exited` becomes readable with the command's end and is `None` from then on.
fn wait_for_bytes(pipe: &impl AsFd, exited: &mut Option<PipeReader>) -> bool {
    loop {
        let stream = PollFd::new(pipe, PollFlags::IN);
        let Some(end) = exited else {
            match poll(&mut [stream], Some(&LINGER)) {
                Err(rustix::io::Errno::INTR) => continue,
                ready => return ready != Ok(0),
            }
        };
        let mut both = [stream, PollFd::new(end, PollFlags::IN)];
        match poll(&mut both, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return true,
            Ok(_) if !both[0].revents().is_empty() => return true,
            Ok(_) => *exited = None,
        }
    }
}

/// The signals that matter while a command runs.
struct CommandSignals {
    signals: Signals,
    /// The signals to send to the command, one for each received signal; `None` if the command receives it anyway.
    pass_on: [Option<Signal>; 5],
}

impl CommandSignals {
    fn listen() -> io::Result<Self> {
        let at_terminal =
            io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal();
        // A terminal sends its signals to all processes in its foreground, the command included.
        let from_terminal = |number| (!at_terminal).then_some(number);
        let signals = Signals::listen(&[
            SignalKind::child(),
            SignalKind::interrupt(),
            SignalKind::quit(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ])?;
        let (interrupt, quit) = (from_terminal(Signal::INT), from_terminal(Signal::QUIT));
        let pass_on = [None, interrupt, quit, Some(Signal::TERM), Some(Signal::HUP)];
        Ok(Self { signals, pass_on })
    }

    /// Waits for the end of the command; stops it at its time limit. Returns whether it was stopped.
    async fn wait_for(
        &mut self,
        child: &mut Child,
        limit: Option<Duration>,
    ) -> io::Result<(ExitStatus, bool)> {
        let mut deadline = limit.map(|limit| tokio::time::Instant::now() + limit);
        let mut timed_out = false;
        loop {
            // Only this line reaps the process, so its id cannot belong to another process when a signal is sent below.
            if let Some(status) = child.try_wait()? {
                return Ok((status, timed_out));
            }
            let until = deadline.unwrap_or_else(|| tokio::time::Instant::now() + NO_LIMIT);
            let to_send = tokio::select! {
                arrived = self.signals.next() => self.pass_on[arrived],
                () = tokio::time::sleep_until(until) => {
                    let is_over = deadline.is_some();
                    let to_send = if timed_out { Signal::KILL } else { Signal::TERM };
                    timed_out |= is_over;
                    deadline = deadline.map(|_| tokio::time::Instant::now() + GRACE);
                    is_over.then_some(to_send)
                }
            };
            if let (Some(signal), Some(pid)) = (to_send, Pid::from_raw(child.id().cast_signed())) {
                // Fails if the process has just ended.
                kill_process(pid, signal).ok();
            }
        }
    }
}
