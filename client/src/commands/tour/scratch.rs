//! A home of its own for the tour, with a daemon that ends with it.

use std::io;
use std::path::Path;
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

/// A scratch home; its daemon is killed when this is dropped, whatever happened.
pub(super) struct Scratch {
    dir: TempDir,
    connector: Connector,
    pid: Option<Pid>,
}

impl Scratch {
    pub(super) fn new(environment: &Environment) -> Result<Self, CommandError> {
        let dir = tempfile::Builder::new()
            .prefix("ollm-tour-")
            .tempdir()
            .map_err(|source| failed("make a scratch home in", &std::env::temp_dir(), source))?;
        let socket = dir.path().join("tour.sock");
        let address = Address::new(Some(dir.path().to_owned()), Some(socket), environment)?;
        let connector = Connector::new(address, environment).with_default_settings();
        Ok(Self { dir, connector, pid: None })
    }

    /// Where it is.
    pub(super) fn home(&self) -> &Path {
        self.dir.path()
    }

    /// How others connect to the daemon without starting it.
    pub(super) fn connector(&self) -> Connector {
        self.connector.clone().without_spawn()
    }

    /// Connects, starting the daemon where it does not run.
    pub(super) fn connect(&mut self) -> Result<BlockingClient, CommandError> {
        let mut client = BlockingClient::connect(&self.connector)?;
        let status = client.call::<DaemonStatus>(&NoParams {})?;
        self.pid = i32::try_from(status.pid).ok().and_then(Pid::from_raw);
        Ok(client)
    }

    /// Ends the daemon with SIGKILL, as a crash would.
    pub(super) fn kill(&mut self) -> Result<(), CommandError> {
        let Some(pid) = self.pid.take() else { return Err(broken("no daemon to kill")) };
        kill_process(pid, Signal::KILL)
            .map_err(|error| failed("kill the daemon of", self.home(), error.into()))
    }

    /// Asks the daemon to leave, and removes the home.
    pub(super) fn remove(mut self) -> Result<(), CommandError> {
        let mut client = BlockingClient::connect(&self.connector())?;
        client.call::<DaemonShutdown>(&NoParams {})?;
        let lock = std::fs::File::open(self.dir.path().join("ollmd.lock"));
        // The lock is free when the daemon is gone; the daemon's own limit is ten seconds.
        let deadline = Instant::now() + Duration::from_secs(15);
        if let Ok(lock) = lock {
            while lock.try_lock_shared().is_err() {
                if Instant::now() >= deadline {
                    return Err(broken("the daemon does not leave"));
                }
                std::thread::sleep(PAUSE);
            }
        }
        self.pid = None;
        let home = self.home().to_owned();
        std::fs::remove_dir_all(&home).map_err(|source| failed("remove", &home, source))
    }
}

/// A file operation of the tour itself that failed.
fn failed(action: &'static str, path: &Path, source: io::Error) -> CommandError {
    CommandError::File { action, path: path.to_owned(), source }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(pid) = self.pid.take() {
            // It may be gone already; nothing else can be done about it here.
            kill_process(pid, Signal::KILL).ok();
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
