//! Ctrl-C while something is waited for. While a line is typed it is a key, and the line editor's business.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::process::{Signal, getpid, kill_process};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use super::super::CommandError;

/// Signals within a turn after which nobody listens any more: two are heard by the turn.
const DEAF_IN_TURN: u32 = 3;
/// Outside of one the first may have been meant for a turn that just ended.
const DEAF_OUTSIDE: u32 = 2;

/// Counts the signals since a turn began or ended.
pub(super) struct Interrupts(Arc<State>);

#[derive(Default)]
struct State {
    count: AtomicU32,
    in_turn: AtomicBool,
}

impl Interrupts {
    /// Counts until this process ends.
    pub(super) fn watch() -> Result<Self, CommandError> {
        let runtime = Builder::new_current_thread().enable_io().build();
        let runtime = runtime.map_err(CommandError::Signals)?;
        let entered = runtime.enter();
        // Registered here, so that no signal is lost between this call and the start of the thread.
        let mut signals = signal(SignalKind::interrupt()).map_err(CommandError::Signals)?;
        drop(entered);
        let state = Arc::<State>::default();
        let counted = Arc::clone(&state);
        let watch = move || {
            runtime.block_on(async {
                while signals.recv().await.is_some() {
                    counted.heard();
                }
            });
        };
        let thread = std::thread::Builder::new().name("ollmctl-signals".to_owned());
        drop(thread.spawn(watch).map_err(CommandError::Signals)?);
        Ok(Self(state))
    }

    /// A turn begins, or has ended.
    pub(super) fn set_in_turn(&self, in_turn: bool) {
        self.0.in_turn.store(in_turn, Ordering::SeqCst);
        self.0.count.store(0, Ordering::SeqCst);
    }

    /// How many came since.
    pub(super) fn count(&self) -> u32 {
        self.0.count.load(Ordering::SeqCst)
    }
}

impl State {
    fn heard(&self) {
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        let in_turn = self.in_turn.load(Ordering::SeqCst);
        if count >= if in_turn { DEAF_IN_TURN } else { DEAF_OUTSIDE } {
            // Something hangs. The daemon keeps what was said, so that this may simply end.
            kill_process(getpid(), Signal::TERM).ok();
        }
    }
}
