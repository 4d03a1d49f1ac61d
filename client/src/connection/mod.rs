//! Getting a connection: find the daemon, make sure it is ours, start it when it is not there.
//!
//! Invariants: no wait without a deadline; a socket whose other end belongs to somebody else is never used.

mod async_client;
mod blocking;
mod probe;
mod subscription;
mod told;

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

pub use async_client::{AsyncClient, ChatStream, EventStream};
pub use blocking::BlockingClient;
pub(crate) use blocking::decode;
use ollm_protocol::PROTOCOL_VERSION;
use ollm_protocol::address::DaemonFile;
pub use subscription::{ChatEvents, Events};

use crate::address::{Address, Environment, is_locked};
use crate::autostart;
use crate::error::{Attempt, ClientError};

/// The largest frame in bytes, in either direction: what the daemon promises in its `hello`. A larger value
/// here would only move the refusal to the daemon.
pub(crate) const MAX_FRAME_BYTES: usize = 16 << 20;

/// How long a reply is waited for unless somebody says otherwise.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes connections to the daemon of one address.
#[derive(Clone, Debug)]
pub struct Connector {
    address: Address,
    program: autostart::Program,
    spawn: bool,
    any_protocol: bool,
    timeout: Duration,
}

/// A connection whose other end is ours.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The connection, in blocking mode.
    pub(crate) stream: UnixStream,
    /// Where it leads.
    pub(crate) socket: PathBuf,
    /// What the daemon that listens there wrote about itself, where it did.
    pub(crate) daemon: Option<DaemonFile>,
    /// Whether the daemon was started for it.
    pub(crate) started: bool,
    /// What a person should know of how it was started.
    pub(crate) notice: Option<String>,
}

impl Connector {
    /// A connector that starts the daemon when it is not there, unless `OLLM_NO_SPAWN` says otherwise.
    #[must_use]
    pub fn new(address: Address, environment: &Environment) -> Self {
        Self {
            address,
            program: autostart::Program::new(environment),
            spawn: !environment.no_spawn,
            any_protocol: false,
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Never starts a daemon.
    #[must_use]
    pub fn without_spawn(mut self) -> Self {
        self.spawn = false;
        self
    }

    /// Starts a daemon even where `OLLM_NO_SPAWN` forbids it: somebody asked for exactly that.
    pub(crate) fn with_spawn(mut self) -> Self {
        self.spawn = true;
        self
    }

    /// Starts a daemon with default settings, whatever this user has set, but for the model server: for a scratch home.
    pub(crate) fn with_default_settings(mut self, model_server: Option<String>) -> Self {
        self.program = self.program.with_default_settings(model_server);
        self.with_spawn()
    }

    /// Connects to a daemon of another protocol too: it must at least be possible to stop it.
    pub(crate) fn with_any_protocol(mut self) -> Self {
        self.any_protocol = true;
        self
    }

    /// Waits at most this long for each reply; 30 s unless set.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Where this connector leads.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// How long a reply is waited for.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The program that would be started.
    pub(crate) fn program(&self) -> &autostart::Program {
        &self.program
    }

    /// Connects, starting the daemon if it is not running and that is allowed.
    pub(crate) fn open(&self) -> Result<Opened, ClientError> {
        let opened = match probe(&self.address) {
            Ok(opened) => opened,
            Err(attempts) if attempts.iter().all(Attempt::means_not_running) => {
                if let Some(error) = held_elsewhere(&self.address) {
                    return Err(error);
                }
                if !self.spawn {
                    return Err(ClientError::Unreachable { attempts });
                }
                autostart::start(&self.address, &self.program)?
            }
            Err(attempts) => return Err(ClientError::Unreachable { attempts }),
        };
        match &opened.daemon {
            Some(daemon) if daemon.protocol != PROTOCOL_VERSION && !self.any_protocol => {
                Err(ClientError::ProtocolMismatch {
                    version: daemon.version.clone(),
                    protocol: daemon.protocol,
                })
            }
            _ => Ok(opened),
        }
    }
}

/// Tries every socket of an address once.
///
/// **Errors**: what was tried, in order.
pub(crate) fn probe(address: &Address) -> Result<Opened, Vec<Attempt>> {
    let sockets = address.sockets();
    let mut attempts = Vec::new();
    for path in sockets.paths {
        match probe::connect(&path) {
            Ok(stream) => {
                // After a crash the file is about another daemon than the one that answers.
                let daemon = sockets.daemon.filter(|file| file.socket == path);
                return Ok(Opened { stream, socket: path, daemon, started: false, notice: None });
            }
            Err(cause) => attempts.push(Attempt { path, cause }),
        }
    }
    Err(attempts)
}

/// The error for a socket that somebody insists on, while the daemon of the home listens at another one: no
/// daemon can be started there, since one owns the home.
pub(crate) fn held_elsewhere(address: &Address) -> Option<ClientError> {
    let asked = address.socket()?;
    let daemon = address.daemon_file().filter(|daemon| daemon.socket != asked)?;
    // A daemon that is gone may have left the file.
    drop(probe::connect(&daemon.socket).ok()?);
    Some(ClientError::ListensElsewhere {
        home: address.home().to_owned(),
        pid: daemon.pid,
        socket: daemon.socket,
        asked: asked.to_owned(),
    })
}

/// The error for a home whose daemon runs and cannot be reached: its socket was removed, or it is just leaving.
pub(crate) fn held_unreachable(address: &Address) -> Option<ClientError> {
    let home = address.home().to_owned();
    is_locked(&home.join("ollmd.lock"))
        .then(|| ClientError::Held { home, pid: address.daemon_file().map(|daemon| daemon.pid) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_daemon_of_another_protocol_is_only_good_for_being_stopped() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("s.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let file = serde_json::json!({
            "socket": socket, "pid": 1, "version": "9.9.9", "protocol": 77,
            "startedAt": "2026-01-27T10:00:00Z"
        });
        serde_json::to_writer(
            std::fs::File::create(scratch.path().join("daemon.json")).unwrap(),
            &file,
        )
        .unwrap();
        let environment = Environment { no_spawn: true, ..Environment::default() };
        let address = Address::new(Some(scratch.path().into()), None, &environment).unwrap();
        let connector = Connector::new(address, &environment);
        let error = connector.open().unwrap_err();
        assert!(matches!(error, ClientError::ProtocolMismatch { protocol: 77, .. }), "{error}");
        assert_eq!(connector.with_any_protocol().open().unwrap().socket, socket);
    }

    #[test]
    fn a_daemon_that_listens_elsewhere_is_named_at_once() {
        let scratch = crate::testing::Scratch::new();
        let asked = scratch.directory.path().join("asked.sock");
        let home = scratch.directory.path().to_owned();
        let file = serde_json::json!({
            "socket": scratch.socket(), "pid": 4711, "version": "0.1.0", "protocol": 1,
            "startedAt": "2026-01-27T10:00:00Z"
        });
        serde_json::to_writer(std::fs::File::create(home.join("daemon.json")).unwrap(), &file)
            .unwrap();
        let environment = Environment::default();
        let address = Address::new(Some(home), Some(asked), &environment).unwrap();
        assert!(held_elsewhere(&address).is_none(), "it is gone");
        let listener = UnixListener::bind(scratch.socket()).unwrap();
        let connector = Connector::new(address.clone(), &environment);
        for connector in [connector.clone(), connector.without_spawn()] {
            let error = connector.open().unwrap_err();
            assert!(matches!(error, ClientError::ListensElsewhere { pid: 4711, .. }), "{error}");
            assert!(error.hint().unwrap().contains(&scratch.socket().display().to_string()));
        }
        drop(listener);
    }
}
