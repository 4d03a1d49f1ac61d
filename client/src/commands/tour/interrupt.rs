//! Signals that ask the tour to end: its daemon is killed at once, so that whatever waits for it fails, and the
//! tour tidies up on the way out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use super::super::CommandError;
use super::scratch::Daemon;

/// Whether a signal came.
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Watches for Ctrl-C, a polite kill and a terminal that closes, until this process ends.
    pub(super) fn watch(daemon: Arc<Daemon>) -> Result<Self, CommandError> {
        let came = Arc::new(AtomicBool::new(false));
        let runtime = Builder::new_current_thread().enable_io().build();
        let runtime = runtime.map_err(CommandError::Signals)?;
        let entered = runtime.enter();
        // Registered here, so that no signal is lost between this call and the start of the thread.
        let register = |kind| signal(kind).map_err(CommandError::Signals);
        let mut interrupt = register(SignalKind::interrupt())?;
        let mut terminate = register(SignalKind::terminate())?;
        let mut hangup = register(SignalKind::hangup())?;
        drop(entered);
        let told = Arc::clone(&came);
        let watch = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
            });
            told.store(true, Ordering::SeqCst);
            daemon.forbid();
        };
        let thread = std::thread::Builder::new().name("ollmctl-signals".to_owned());
        drop(thread.spawn(watch).map_err(CommandError::Signals)?);
        Ok(Self(came))
    }

    /// Whether one came.
    pub(super) fn came(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
