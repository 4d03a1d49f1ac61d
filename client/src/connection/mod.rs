//! Getting a connection: find the daemon, make sure it is ours, start it when it is not there.
//!
//! Invariants: no wait without a deadline; a socket whose other end belongs to somebody else is never used.

mod async_client;
mod blocking;
mod probe;

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

pub use async_client::{AsyncClient, EventStream};
pub(crate) use blocking::decode;
pub use blocking::{BlockingClient, Events};
use ollm_protocol::PROTOCOL_VERSION;

use crate::address::{Address, Environment};
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
    timeout: Duration,
}

/// A connection whose other end is ours.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The connection, in blocking mode.
    pub(crate) stream: UnixStream,
    /// Where it leads.
    pub(crate) socket: PathBuf,
    /// Whether the daemon was started for it.
    pub(crate) started: bool,
}

impl Connector {
    /// A connector that starts the daemon when it is not there, unless `OLLM_NO_SPAWN` says otherwise.
    #[must_use]
    pub fn new(address: Address, environment: &Environment) -> Self {
        Self {
            address,
            program: autostart::Program::new(environment),
            spawn: !environment.no_spawn,
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Never starts a daemon.
    #[must_use]
    pub fn without_spawn(mut self) -> Self {
        self.spawn = false;
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
        match probe(&self.address)? {
            Ok(opened) => Ok(opened),
            Err(attempts) if self.spawn && attempts.iter().all(Attempt::means_not_running) => {
                autostart::start(&self.address, &self.program)
            }
            Err(attempts) => Err(ClientError::Unreachable { attempts }),
        }
    }
}

/// Tries every socket of an address once.
///
/// **Errors**: only what no other socket can mend; sockets that were tried in vain are the inner error.
pub(crate) fn probe(address: &Address) -> Result<Result<Opened, Vec<Attempt>>, ClientError> {
    let sockets = address.sockets();
    let mut attempts = Vec::new();
    for path in sockets.paths {
        match probe::connect(&path) {
            Ok(stream) => {
                // Only what was written by whoever listens there counts: after a crash the file is stale.
                if let Some(daemon) = sockets.daemon.as_ref().filter(|file| file.socket == path)
                    && daemon.protocol != PROTOCOL_VERSION
                {
                    return Err(ClientError::ProtocolMismatch {
                        version: daemon.version.clone(),
                        protocol: daemon.protocol,
                    });
                }
                return Ok(Ok(Opened { stream, socket: path, started: false }));
            }
            Err(cause) => attempts.push(Attempt { path, cause }),
        }
    }
    Ok(Err(attempts))
}
