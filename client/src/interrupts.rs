//! Ctrl-C during a call that it cancels. While a line is typed, Ctrl-C is a key of the line editor.

use std::io::stdin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::SignalKind;

use crate::background::watch_signals;
use crate::command_error::CommandResult;
use crate::render::terminal::Terminal;

/// The number of the Ctrl-C during a call that ends the process; the call handles the first two.
const LAST_DURING_CALL: u32 = 3;
/// The number of the Ctrl-C between calls that ends the process; the first may have been meant for a call that just ended.
const LAST_BETWEEN_CALLS: u32 = 2;

/// Counts the Ctrl-C signals since a call started or ended.
#[derive(Default)]
pub(crate) struct Interrupts {
    count: AtomicU32,
    in_call: AtomicBool,
}

impl Interrupts {
    /// Counts Ctrl-C in a thread until this process ends.
    pub(crate) fn watch() -> CommandResult<Arc<Self>> {
        let interrupts = Arc::<Self>::default();
        let counter = Arc::clone(&interrupts);
        watch_signals(&[SignalKind::interrupt()], move |_| counter.count_signal())?;
        Ok(interrupts)
    }

    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Starts a call; it ends when the guard is dropped. Turns the echo off if stdout is a terminal, because the reader of
    /// a pipe may use the same terminal with settings of its own.
    pub(crate) fn begin(self: &Arc<Self>, terminal: &Terminal) -> InterruptGuard {
        self.set_in_call(true);
        let echo = if terminal.out_is_terminal() { EchoOff::new() } else { None };
        InterruptGuard { interrupts: Arc::clone(self), _echo: echo }
    }

    fn set_in_call(&self, in_call: bool) {
        self.in_call.store(in_call, Ordering::SeqCst);
        self.count.store(0, Ordering::SeqCst);
    }

    fn count_signal(&self) {
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        let in_call = self.in_call.load(Ordering::SeqCst);
        if count >= if in_call { LAST_DURING_CALL } else { LAST_BETWEEN_CALLS } {
            // The client or the daemon hangs. Ending at once is safe, because the daemon keeps the conversation.
            kill_process(getpid(), Signal::TERM).ok();
        }
    }
}

/// A guard of a call: until it is dropped, Ctrl-C is counted for the call and the terminal's echo is off.
pub(crate) struct InterruptGuard {
    interrupts: Arc<Interrupts>,
    _echo: Option<EchoOff>,
}

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        self.interrupts.set_in_call(false);
    }
}

/// A terminal with its echo off, so that typed text is not mixed into an answer. The next line begins with that text.
struct EchoOff {
    saved: Termios,
}

impl EchoOff {
    /// Turns the echo off until the value is dropped; `None` if stdin is not a terminal.
    fn new() -> Option<Self> {
        let saved = tcgetattr(stdin()).ok()?;
        let mut modes = saved.clone();
        modes.local_modes.remove(LocalModes::ECHO);
        tcsetattr(stdin(), OptionalActions::Now, &modes).ok()?;
        Some(Self { saved })
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        // Fails only if the terminal is closed.
        tcsetattr(stdin(), OptionalActions::Now, &self.saved).ok();
    }
}
