//! Ctrl-C while a turn runs, and the terminal's echo. While a line is typed Ctrl-C is a key of the line editor.

use std::io::stdin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::command_error::CommandError;

/// The signal during a turn that ends the process; the turn handles the first two.
const LAST_DURING_TURN: u32 = 3;
/// The signal between turns that ends the process; the first may have been meant for a turn that just ended.
const LAST_BETWEEN_TURNS: u32 = 2;

/// Counts the Ctrl-C signals since a turn started or ended.
pub(super) struct InterruptCounter(Arc<InterruptState>);

#[derive(Default)]
struct InterruptState {
    count: AtomicU32,
    in_turn: AtomicBool,
}

/// Marks the time in which Ctrl-C is counted for a turn; also turns the terminal's echo off.
pub(super) struct TurnGuard {
    state: Arc<InterruptState>,
    _echo: Option<EchoOff>,
}

impl InterruptCounter {
    /// Counts signals in a thread until this process ends.
    pub(super) fn start() -> Result<Self, CommandError> {
        let runtime = Builder::new_current_thread().enable_io().build();
        let runtime = runtime.map_err(CommandError::Signals)?;
        let entered = runtime.enter();
        // Registered before the thread starts, so that no signal in between is lost.
        let mut signals = signal(SignalKind::interrupt()).map_err(CommandError::Signals)?;
        drop(entered);
        let state = Arc::<InterruptState>::default();
        let counter = Arc::clone(&state);
        let count = move || {
            runtime.block_on(async {
                while signals.recv().await.is_some() {
                    counter.count_signal();
                }
            });
        };
        let thread = std::thread::Builder::new().name("ollmctl-signals".to_owned());
        drop(thread.spawn(count).map_err(CommandError::Thread)?);
        Ok(Self(state))
    }

    /// Starts a turn; it ends when the guard is dropped. Turns the echo off if `is_terminal`, because the reader of a
    /// pipe may use the same terminal with settings of its own.
    pub(super) fn start_turn(&self, is_terminal: bool) -> TurnGuard {
        self.0.set_in_turn(true);
        let echo = if is_terminal { EchoOff::new() } else { None };
        TurnGuard { state: Arc::clone(&self.0), _echo: echo }
    }

    /// Returns the number of signals since the turn started.
    pub(super) fn count(&self) -> u32 {
        self.0.count.load(Ordering::SeqCst)
    }
}

impl InterruptState {
    fn set_in_turn(&self, in_turn: bool) {
        self.in_turn.store(in_turn, Ordering::SeqCst);
        self.count.store(0, Ordering::SeqCst);
    }

    fn count_signal(&self) {
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        let in_turn = self.in_turn.load(Ordering::SeqCst);
        if count >= if in_turn { LAST_DURING_TURN } else { LAST_BETWEEN_TURNS } {
            // Something hangs. Ending at once is safe, because the daemon keeps the conversation.
            kill_process(getpid(), Signal::TERM).ok();
        }
    }
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        self.state.set_in_turn(false);
    }
}

/// A terminal that does not show what is typed, so that it is not mixed into an answer. The next line begins with it.
struct EchoOff {
    saved: Termios,
}

impl EchoOff {
    /// Turns the echo off until the value is dropped; `None` if stdin is no terminal.
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
