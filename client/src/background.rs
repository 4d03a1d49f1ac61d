//! Work in threads of its own, which end with the work or with this process; and the arrival of signals.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::command_error::{CommandError, CommandResult};

/// Runs `work` in a thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> CommandResult {
    let thread = std::thread::Builder::new().name(name.to_owned());
    drop(thread.spawn(work).map_err(CommandError::Thread)?);
    Ok(())
}

/// Calls `on_signal` in a thread at each arrival of one of the signals, with its position in the list. From now on they do
/// not end this process.
pub(crate) fn watch_signals(
    kinds: &[SignalKind],
    mut on_signal: impl FnMut(usize) + Send + 'static,
) -> CommandResult {
    let runtime = Builder::new_current_thread().enable_io().build();
    let runtime = runtime.map_err(CommandError::Signals)?;
    let entered = runtime.enter();
    // Registered before the thread starts, so that no signal in between is lost.
    let mut signals = Signals::listen(kinds).map_err(CommandError::Signals)?;
    drop(entered);
    spawn("ollmctl-signals", move || {
        runtime.block_on(async {
            loop {
                on_signal(signals.next().await);
            }
        });
    })
}

/// The arrivals of some signals.
pub(crate) struct Signals(Vec<Signal>);

impl Signals {
    /// Registers the signals with the current tokio runtime. From now on they do not end this process.
    pub(crate) fn listen(kinds: &[SignalKind]) -> io::Result<Self> {
        kinds.iter().map(|kind| signal(*kind)).collect::<io::Result<_>>().map(Self)
    }

    /// Waits for the next signal and returns its position in the list of kinds.
    pub(crate) async fn next(&mut self) -> usize {
        poll_fn(|task| {
            let arrived = self.0.iter_mut().position(|one| one.poll_recv(task).is_ready());
            arrived.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
