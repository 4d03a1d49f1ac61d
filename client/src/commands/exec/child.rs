//! Running a command: its output is handed on as it comes and kept within bounds, signals reach it, and its end is
//! waited for.
//!
//! The command reads this program's stdin itself. Its output goes through a pipe each, because it is recorded.

use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{Signal as Listener, SignalKind, signal};

use super::capture::Capture;

/// Bytes that are handed on at once: what a pipe holds.
const CHUNK_BYTES: usize = 64 * 1024;
/// A program that the command left running may hold its output open for ever. When the command has ended and
/// nothing came for this long, nothing of the command is missing.
const LINGER: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// How long a command that ran out of time may take to leave before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// How a command ended, and what it printed.
pub(super) struct Ran {
    pub(super) status: ExitStatus,
    pub(super) stdout: Capture,
    pub(super) stderr: Capture,
    pub(super) took: Duration,
    /// It was stopped because its time was over.
    pub(super) timed_out: bool,
}

impl Ran {
    /// The exit code as a shell tells it: that of the command, or 128 and the number of the signal.
    pub(super) fn code(&self) -> i32 {
        let signal = self.status.signal().map(|signal| 128 + signal);
        self.status.code().or(signal).unwrap_or(1)
    }
}

/// Where the command's stdout goes.
#[derive(Clone, Copy)]
pub(super) enum StdoutTo {
    Stdout,
    /// Where stdout is kept for something else.
    Stderr,
}

/// Runs a command to its end, or until its time is over.
///
/// **Errors**: it could not be started, or not be waited for.
pub(super) fn run(
    command: &mut Command,
    stdout_to: StdoutTo,
    limit: Option<Duration>,
) -> io::Result<Ran> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // From here on no signal ends this program before the command and its record.
    let mut signals = {
        let _entered = runtime.enter();
        Signals::listen()?
    };
    let (exited, exits) = io::pipe()?;
    let begun = Instant::now();
    let mut child =
        command.stdin(Stdio::inherit()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pass_stdout = move |bytes: &[u8]| match stdout_to {
        StdoutTo::Stdout => pass_on(&mut io::stdout().lock(), bytes),
        StdoutTo::Stderr => pass_on(&mut io::stderr().lock(), bytes),
    };
    let pass_stderr = |bytes: &[u8]| pass_on(&mut io::stderr().lock(), bytes);
    let stdout = child.stdout.take().map(|from| copy(from, exited.try_clone(), pass_stdout));
    let stderr = child.stderr.take().map(|from| copy(from, exited.try_clone(), pass_stderr));
    let (status, timed_out) = runtime.block_on(signals.until_end(&mut child, limit))?;
    let took = begun.elapsed();
    drop(exits);
    let captured = |copy: Option<JoinHandle<Capture>>| {
        copy.and_then(|copy| copy.join().ok()).unwrap_or_default()
    };
    Ok(Ran { status, stdout: captured(stdout), stderr: captured(stderr), took, timed_out })
}

fn pass_on(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// Hands a stream on and keeps a copy, until it ends, until the command has ended and nothing more comes, or until
/// nobody takes it any more; then the pipe is closed, which the command notices as it would without us.
fn copy(
    mut from: impl Read + AsFd + Send + 'static,
    exited: io::Result<PipeReader>,
    pass: impl Fn(&[u8]) -> io::Result<()> + Send + 'static,
) -> JoinHandle<Capture> {
    thread::spawn(move || {
        let mut capture = Capture::default();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut exited = exited.ok();
        while is_ready(&from, &mut exited) {
            match from.read(&mut chunk) {
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

/// Waits for bytes or the end of a stream; false when the command has ended and neither came for a while.
/// `exited` becomes readable with the command's end and is then forgotten.
fn is_ready(from: &impl AsFd, exited: &mut Option<PipeReader>) -> bool {
    loop {
        let stream = PollFd::new(from, PollFlags::IN);
        let Some(end) = exited else {
            match poll(&mut [stream], Some(&LINGER)) {
                Err(rustix::io::Errno::INTR) => continue,
                came => return came != Ok(0),
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
struct Signals {
    child: Listener,
    /// What a terminal sends to everything in its foreground, the command included.
    from_terminal: [(Listener, Signal); 2],
    /// What is sent to this program alone.
    for_us: [(Listener, Signal); 2],
    at_terminal: bool,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        use std::io::IsTerminal as _;
        let heard = |kind, of| Ok::<_, io::Error>((signal(kind)?, of));
        Ok(Self {
            child: signal(SignalKind::child())?,
            from_terminal: [
                heard(SignalKind::interrupt(), Signal::INT)?,
                heard(SignalKind::quit(), Signal::QUIT)?,
            ],
            for_us: [
                heard(SignalKind::terminate(), Signal::TERM)?,
                heard(SignalKind::hangup(), Signal::HUP)?,
            ],
            at_terminal: io::stdin().is_terminal()
                || io::stdout().is_terminal()
                || io::stderr().is_terminal(),
        })
    }

    /// The next signal that the command must be sent; it is there already for those that a terminal sent.
    async fn next_for_command(&mut self) -> Option<Signal> {
        let [(interrupt, int), (quit, quits)] = &mut self.from_terminal;
        let [(terminate, term), (hangup, hup)] = &mut self.for_us;
        tokio::select! {
            _ = interrupt.recv() => (!self.at_terminal).then_some(*int),
            _ = quit.recv() => (!self.at_terminal).then_some(*quits),
            _ = terminate.recv() => Some(*term),
            _ = hangup.recv() => Some(*hup),
            _ = self.child.recv() => None,
        }
    }

    /// Waits for the end of the command, and sees to it when its time is over.
    async fn until_end(
        &mut self,
        child: &mut Child,
        limit: Option<Duration>,
    ) -> io::Result<(ExitStatus, bool)> {
        let mut deadline = limit.map(|limit| tokio::time::Instant::now() + limit);
        let mut timed_out = false;
        loop {
            // It is reaped here alone, so whatever is sent below reaches it and nobody else.
            if let Some(status) = child.try_wait()? {
                return Ok((status, timed_out));
            }
            let until = deadline.unwrap_or_else(|| tokio::time::Instant::now() + FAR);
            let send = tokio::select! {
                signal = self.next_for_command() => signal,
                () = tokio::time::sleep_until(until) => {
                    let is_over = deadline.is_some();
                    let send = if timed_out { Signal::KILL } else { Signal::TERM };
                    timed_out |= is_over;
                    deadline = deadline.map(|_| tokio::time::Instant::now() + GRACE);
                    is_over.then_some(send)
                }
            };
            if let (Some(send), Some(pid)) = (send, Pid::from_raw(child.id().cast_signed())) {
                // It may have ended this instant, which the next look shows.
                kill_process(pid, send).ok();
            }
        }
    }
}

/// Longer than any wait; a timer needs an end.
const FAR: Duration = Duration::from_secs(24 * 60 * 60);
