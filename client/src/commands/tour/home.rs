//! The temporary home of the tour, and its daemon, which ends with it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::method::{DaemonShutdown, DaemonStatus};
use ollm_protocol::methods::daemon::{DaemonShutdownParams, NoParams};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::signal::unix::SignalKind;

use super::report::check;
use crate::address::{Address, Environment, is_home_locked, lock_holder, wait_until_unlocked};
use crate::background::watch_signals;
use crate::command_error::{CommandError, CommandResult};
use crate::connection::{BlockingClient, Connector};

/// The longest wait for the catalog to index a session of a few hundred records.
const INDEX_LIMIT: Duration = Duration::from_secs(20);
/// The longest wait for the daemon to shut down; its own limit is ten seconds.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(15);
/// The longest wait for the system to clean up a killed daemon.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(5);

/// A temporary home. When it is dropped its daemon is killed and it is removed.
pub(super) struct TourHome {
    dir: TempDir,
    connector: Connector,
    daemon: TourDaemon,
}

/// The daemon's process, shared with the thread that watches for signals.
#[derive(Clone, Default)]
struct TourDaemon(Arc<Mutex<DaemonState>>);

#[derive(Default)]
struct DaemonState {
    pid: Option<Pid>,
    /// Every daemon is killed from now on.
    is_ended: bool,
}

impl TourDaemon {
    /// Kills the daemon, and each later one in [`TourDaemon::started`].
    fn end(&self) {
        let mut state = self.0.lock();
        state.is_ended = true;
        if let Some(pid) = state.pid.take() {
            kill(pid);
        }
    }

    /// Remembers a running daemon.
    ///
    /// **Errors**: the tour was interrupted; the daemon is killed then.
    fn started(&self, pid: Pid) -> CommandResult {
        let mut state = self.0.lock();
        if state.is_ended {
            kill(pid);
            return Err(CommandError::Interrupted);
        }
        state.pid = Some(pid);
        Ok(())
    }

    fn take(&self) -> Option<Pid> {
        self.0.lock().pid.take()
    }
}

/// Kills a process; ignores the failure for one that has ended.
fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).ok();
}

impl TourHome {
    /// Creates the home. From then on a signal kills its daemon, so that the tour fails and can clean up. The daemon
    /// uses the given model server, else the one of the environment.
    pub(super) fn new(
        environment: &Environment,
        model_server: Option<String>,
    ) -> CommandResult<Self> {
        let dir = tempfile::Builder::new().prefix("ollm-tour-").tempdir();
        let dir = dir.map_err(|source| {
            file_error("create a temporary home in", &std::env::temp_dir(), source)
        })?;
        let socket = dir.path().join("tour.sock");
        let address = Address::new(Some(dir.path().to_owned()), Some(socket), environment)?;
        let connector = Connector::new(address, environment).with_default_settings(model_server);
        let daemon = TourDaemon::default();
        let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let on_signal = daemon.clone();
        watch_signals(&signals, move |_| on_signal.end())?;
        Ok(Self { dir, connector, daemon })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns whether a signal ended the tour.
    pub(super) fn is_interrupted(&self) -> bool {
        self.daemon.0.lock().is_ended
    }

    /// Returns a connector that does not start the daemon.
    pub(super) fn connector(&self) -> Connector {
        self.connector.clone().without_spawn()
    }

    /// Connects; starts the daemon if it does not run.
    pub(super) fn connect(&mut self) -> CommandResult<BlockingClient> {
        let mut client = BlockingClient::connect(&self.connector)?;
        let status = client.call::<DaemonStatus>(&NoParams {})?;
        if let Some(pid) = i32::try_from(status.pid).ok().and_then(Pid::from_raw) {
            self.daemon.started(pid)?;
        }
        Ok(client)
    }

    /// Kills the daemon, as a crash would.
    pub(super) fn kill_daemon(&mut self) -> CommandResult {
        let pid = self.daemon.take();
        check(pid.is_some(), "no daemon to kill")?;
        pid.map_or(Ok(()), |pid| kill_process(pid, Signal::KILL))
            .map_err(|error| file_error("kill the daemon of", self.path(), error.into()))
    }

    /// Asks the daemon to shut down, and removes the home.
    pub(super) fn shut_down_and_remove(&self) -> CommandResult {
        let mut client = BlockingClient::connect(&self.connector())?;
        client.call::<DaemonShutdown>(&DaemonShutdownParams::default())?;
        let is_ended = wait_until_unlocked(self.path(), SHUTDOWN_LIMIT);
        check(is_ended, "the daemon does not shut down")?;
        self.daemon.take();
        self.remove()?;
        check(!self.path().exists(), "the temporary home was not removed")
    }

    /// Kills the daemon, if it runs, and removes the home, if it exists.
    pub(super) fn discard(&self) -> CommandResult {
        self.end_daemon();
        if self.path().exists() { self.remove() } else { Ok(()) }
    }

    /// Kills the daemon and waits until it has released the home, to which it may write until then.
    fn end_daemon(&self) {
        self.daemon.end();
        let deadline = Instant::now() + KILL_LIMIT;
        while is_home_locked(self.path()) && Instant::now() < deadline {
            // A daemon that has not replied yet is identified by its lock.
            let pid = lock_holder(self.path());
            if let Some(pid) = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
                kill(pid);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn remove(&self) -> CommandResult {
        std::fs::remove_dir_all(self.path())
            .map_err(|source| file_error("remove", self.path(), source))
    }
}

impl Drop for TourHome {
    fn drop(&mut self) {
        if self.path().exists() {
            self.end_daemon();
        }
    }
}

/// Waits until everything recorded can be found by a search.
pub(super) fn wait_until_indexed(client: &mut BlockingClient) -> CommandResult {
    let deadline = Instant::now() + INDEX_LIMIT;
    loop {
        let status = client.call::<DaemonStatus>(&NoParams {})?;
        if status.catalog.behind == 0 && status.catalog.state == "ready" {
            return Ok(());
        }
        check(Instant::now() < deadline, "the catalog does not catch up")?;
        std::thread::sleep(PAUSE);
    }
}

fn file_error(action: &'static str, path: &Path, source: io::Error) -> CommandError {
    CommandError::File { action, path: path.to_owned(), source }
}
