//! Ctrl-Z: this process stops after it has put the terminal back, and goes on when the shell continues it.
//!
//! The terminal sends SIGTSTP to all processes of a job, and its default action stops them at once. During an answer there is
//! something to put back first, so this process handles the signal, and then stops itself by SIGTTIN: as after SIGTSTP, and
//! unlike after SIGSTOP, a process that no shell could continue does not stop.

use std::io::stdin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Signal, getpgrp, getpid, kill_current_process_group, kill_process};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetpgrp, tcsetattr};
use tokio::signal::unix::SignalKind;

use crate::background::watch_signals;
use crate::command_error::CommandResult;

/// The longest wait for a signal that this process sends to itself, and the pause between two looks.
const SIGNAL_WAIT: Duration = Duration::from_secs(1);
const SIGNAL_PAUSE: Duration = Duration::from_millis(2);

/// The treatment of Ctrl-Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StopState {
    /// The process stops at once.
    #[default]
    Unguarded,
    /// The terminal is put back first, by the owner of the guard.
    Guarded,
    /// The same, and Ctrl-Z has arrived.
    Wanted,
}

/// The Ctrl-Z of the terminal.
#[derive(Debug, Default)]
pub(super) struct StopKey(Mutex<StopState>);

/// A guard: until it is dropped, Ctrl-Z waits for [`StopGuard::take`].
#[must_use]
pub(super) struct StopGuard<'a>(&'a StopKey);

impl StopKey {
    /// Handles Ctrl-Z in a thread until this process ends.
    pub(super) fn watch() -> CommandResult<Arc<Self>> {
        let key = Arc::<Self>::default();
        let watched = Arc::clone(&key);
        let kinds = [SignalKind::from_raw(Signal::TSTP.as_raw())];
        watch_signals(&kinds, move |_| watched.arrived())?;
        Ok(key)
    }

    fn arrived(&self) {
        let is_guarded = {
            let mut state = self.0.lock();
            let is_guarded = *state != StopState::Unguarded;
            if is_guarded {
                *state = StopState::Wanted;
            }
            is_guarded
        };
        if !is_guarded {
            stop_process();
        }
    }

    /// Lets Ctrl-Z wait until the terminal is put back.
    pub(super) fn guard(&self) -> StopGuard<'_> {
        *self.0.lock() = StopState::Guarded;
        StopGuard(self)
    }

    /// Stops all processes of the shell's job, as the terminal does, and returns when they continue. For a key that the
    /// terminal does not turn into a signal.
    pub(super) fn stop_job(&self) {
        let guard = self.guard();
        kill_current_process_group(Signal::TSTP).ok();
        // The signal comes to this process as well, in another thread.
        let end = Instant::now() + SIGNAL_WAIT;
        while !guard.take() && Instant::now() < end {
            std::thread::sleep(SIGNAL_PAUSE);
        }
        stop();
    }
}

impl StopGuard<'_> {
    /// Returns whether Ctrl-Z has arrived since the last call.
    pub(super) fn take(&self) -> bool {
        let mut state = self.0.0.lock();
        std::mem::replace(&mut *state, StopState::Guarded) == StopState::Wanted
    }
}

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        let before = std::mem::take(&mut *self.0.0.lock());
        if before == StopState::Wanted {
            stop();
        }
    }
}

/// Stops this process with the echo of the terminal on, and returns when it continues.
pub(super) fn stop() {
    let stdin = stdin();
    // Another job may have the terminal already; to change its modes would stop this process a second time.
    let is_ours = tcgetpgrp(&stdin).is_ok_and(|group| group == getpgrp());
    let modes = if is_ours { tcgetattr(&stdin).ok() } else { None };
    if let Some(modes) = &modes {
        let mut echoing = modes.clone();
        echoing.local_modes.insert(LocalModes::ECHO);
        tcsetattr(&stdin, OptionalActions::Now, &echoing).ok();
    }
    stop_process();
    if let Some(modes) = modes {
        tcsetattr(&stdin, OptionalActions::Now, &modes).ok();
    }
}

fn stop_process() {
    kill_process(getpid(), Signal::TTIN).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_waits_for_its_guard() {
        let key = StopKey::default();
        let guard = key.guard();
        assert!(!guard.take());
        key.arrived();
        assert!(guard.take());
        assert!(!guard.take());
        drop(guard);
        assert_eq!(*key.0.lock(), StopState::Unguarded);
    }
}
