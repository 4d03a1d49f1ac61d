//! A home of its own for the tour, with a daemon that ends with it.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::method::{DaemonShutdown, DaemonStatus};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::session::{BranchFilter, SessionGetParams};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::super::CommandError;
use super::broken;
use crate::address::{Address, Environment};
use crate::connection::{BlockingClient, Connector};

/// How long the catalog may take to take in a session of a few hundred records.
const INDEXED: Duration = Duration::from_secs(20);
/// How often it is asked meanwhile.
const PAUSE: Duration = Duration::from_millis(5);

/// How long a daemon that was asked to leave may take; its own limit is ten seconds.
const LEAVE: Duration = Duration::from_secs(15);
/// How long the system may take to clear away a daemon that was killed.
const CLEARED: Duration = Duration::from_secs(5);

/// A scratch home; its daemon is killed and it is removed when this is dropped, whatever happened.
pub(super) struct Scratch {
    dir: TempDir,
    connector: Connector,
    daemon: Arc<Daemon>,
}

/// The daemon of a scratch home, for whoever has to end it.
#[derive(Default)]
pub(super) struct Daemon(Mutex<State>);

#[derive(Default)]
struct State {
    pid: Option<Pid>,
    forbidden: bool,
}

impl Daemon {
    /// Ends it, now and whenever another one becomes known.
    pub(super) fn forbid(&self) {
        let mut state = self.state();
        state.forbidden = true;
        if let Some(pid) = state.pid.take() {
            // It may be gone already.
            kill_process(pid, Signal::KILL).ok();
        }
    }

    /// Makes a running one known; an error when it may not run any more, and was ended.
    fn started(&self, pid: Pid) -> Result<(), CommandError> {
        self.state().pid = Some(pid);
        if self.state().forbidden {
            self.forbid();
            return Err(CommandError::Interrupted);
        }
        Ok(())
    }

    fn take(&self) -> Option<Pid> {
        self.state().pid.take()
    }

    /// Held for an assignment or a signal, never across a wait.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Scratch {
    /// `model_server`: where that is, if not where the environment says.
    pub(super) fn new(
        environment: &Environment,
        model_server: Option<String>,
    ) -> Result<Self, CommandError> {
        let dir = tempfile::Builder::new()
            .prefix("ollm-tour-")
            .tempdir()
            .map_err(|source| failed("make a scratch home in", &std::env::temp_dir(), source))?;
        let socket = dir.path().join("tour.sock");
        let address = Address::new(Some(dir.path().to_owned()), Some(socket), environment)?;
        let connector = Connector::new(address, environment).with_default_settings(model_server);
        Ok(Self { dir, connector, daemon: Arc::default() })
    }

    /// Where it is.
    pub(super) fn home(&self) -> &Path {
        self.dir.path()
    }

    /// Its daemon, for a watcher.
    pub(super) fn daemon(&self) -> Arc<Daemon> {
        Arc::clone(&self.daemon)
    }

    /// How others connect to the daemon without starting it.
    pub(super) fn connector(&self) -> Connector {
        self.connector.clone().without_spawn()
    }

    /// Connects, starting the daemon where it does not run.
    pub(super) fn connect(&mut self) -> Result<BlockingClient, CommandError> {
        let mut client = BlockingClient::connect(&self.connector)?;
        let status = client.call::<DaemonStatus>(&NoParams {})?;
        if let Some(pid) = i32::try_from(status.pid).ok().and_then(Pid::from_raw) {
            self.daemon.started(pid)?;
        }
        Ok(client)
    }

    /// Ends the daemon with SIGKILL, as a crash would.
    pub(super) fn kill(&mut self) -> Result<(), CommandError> {
        let Some(pid) = self.daemon.take() else { return Err(broken("no daemon to kill")) };
        kill_process(pid, Signal::KILL)
            .map_err(|error| failed("kill the daemon of", self.home(), error.into()))
    }

    /// Asks the daemon to leave, and removes the home.
    pub(super) fn remove(&self) -> Result<(), CommandError> {
        let mut client = BlockingClient::connect(&self.connector())?;
        client.call::<DaemonShutdown>(&NoParams {})?;
        if !self.is_left_within(LEAVE) {
            return Err(broken("the daemon does not leave"));
        }
        self.daemon.take();
        self.remove_home()
    }

    /// Kills the daemon wherever the tour was, and removes the home.
    pub(super) fn discard(&self) -> Result<(), CommandError> {
        self.end();
        if self.home().exists() { self.remove_home() } else { Ok(()) }
    }

    /// Kills the daemon and waits until it has cleared away: it writes to the home until then.
    fn end(&self) {
        self.daemon.forbid();
        let deadline = Instant::now() + CLEARED;
        while !self.is_left() && Instant::now() < deadline {
            // One that was started and not heard of yet writes down who it is.
            let unheard = self.connector.address().daemon_file().map(|file| file.pid);
            if let Some(pid) = unheard.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
                // It may be gone already; nothing else can be done about it here.
                kill_process(pid, Signal::KILL).ok();
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn is_left_within(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while !self.is_left() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }

    /// Whether no daemon holds the home: its lock is free.
    fn is_left(&self) -> bool {
        let lock = File::open(self.home().join("ollmd.lock"));
        lock.map_or(true, |lock| lock.try_lock_shared().is_ok())
    }

    fn remove_home(&self) -> Result<(), CommandError> {
        std::fs::remove_dir_all(self.home()).map_err(|source| failed("remove", self.home(), source))
    }
}

/// A file operation of the tour itself that failed.
fn failed(action: &'static str, path: &Path, source: io::Error) -> CommandError {
    CommandError::File { action, path: path.to_owned(), source }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.home().exists() {
            self.end();
        }
    }
}

/// Waits until everything recorded can be found.
pub(super) fn wait_until_indexed(client: &mut BlockingClient) -> Result<(), CommandError> {
    let deadline = Instant::now() + INDEXED;
    loop {
        let status = client.call::<DaemonStatus>(&NoParams {})?;
        if status.catalog.behind == 0 && status.catalog.state == "ready" {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(broken("the catalog does not catch up"));
        }
        std::thread::sleep(PAUSE);
    }
}

/// The beginning of a session.
pub(super) fn first_page(id: SessionId) -> SessionGetParams {
    SessionGetParams { session_id: id, from: None, limit: Some(1), branch: BranchFilter::All }
}
