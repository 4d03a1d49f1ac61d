//! The settings of a connection: the address, whether the daemon may be started, the timeout and the accepted protocol.

use std::time::Duration;

use ollm_protocol::PROTOCOL_VERSION;

use super::autostart::{self, DaemonProgram};
use super::probe::{OpenConnection, held_elsewhere, probe};
use crate::address::{Address, Environment};
use crate::error::{Attempt, ClientError};

/// The longest wait for a reply unless [`Connector::with_timeout`] sets another.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to the daemon of one address.
#[derive(Clone, Debug)]
pub struct Connector {
    address: Address,
    program: DaemonProgram,
    spawn: bool,
    any_protocol: bool,
    timeout: Duration,
}

impl Connector {
    /// Returns a connector that starts the daemon if it does not run, unless `OLLM_NO_SPAWN` is set.
    #[must_use]
    pub fn new(address: Address, environment: &Environment) -> Self {
        Self {
            address,
            program: DaemonProgram::new(environment),
            spawn: !environment.no_spawn,
            any_protocol: false,
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Never starts the daemon.
    #[must_use]
    pub fn without_spawn(mut self) -> Self {
        self.spawn = false;
        self
    }

    /// Starts the daemon even if `OLLM_NO_SPAWN` is set.
    pub(crate) fn with_spawn(mut self) -> Self {
        self.spawn = true;
        self
    }

    /// Starts the daemon with default settings, apart from the given model server: for a temporary home.
    pub(crate) fn with_default_settings(mut self, model_server: Option<String>) -> Self {
        self.program = self.program.with_default_settings(model_server);
        self.with_spawn()
    }

    /// Accepts a daemon of another protocol version too, because it must be possible to stop it.
    pub(crate) fn with_any_protocol(mut self) -> Self {
        self.any_protocol = true;
        self
    }

    /// Sets the longest wait for each reply; the default is 30 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the address of the daemon.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the command that runs the daemon of this address in the foreground.
    ///
    /// **Errors**: [`ClientError::DaemonNotFound`].
    pub(crate) fn daemon_command(&self) -> Result<std::process::Command, ClientError> {
        self.program.command(&self.address)
    }

    /// Connects; starts the daemon if it does not run and may be started.
    pub(crate) fn open(&self) -> Result<OpenConnection, ClientError> {
        let connection = match probe(&self.address) {
            Ok(connection) => connection,
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
        match &connection.daemon {
            Some(daemon) if daemon.protocol != PROTOCOL_VERSION && !self.any_protocol => {
                Err(ClientError::ProtocolMismatch {
                    version: daemon.version.clone(),
                    protocol: daemon.protocol,
                })
            }
            _ => Ok(connection),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::testing::{TestHome, write_daemon_file};

    #[test]
    fn daemon_of_other_protocol_is_accepted_only_on_request() {
        let home = TestHome::new();
        let _listener = UnixListener::bind(home.socket()).unwrap();
        write_daemon_file(home.path(), &home.socket(), 1, 77);
        let environment = Environment { no_spawn: true, ..Environment::default() };
        let address = Address::new(Some(home.path().into()), None, &environment).unwrap();
        let connector = Connector::new(address, &environment);
        let error = connector.open().unwrap_err();
        assert!(matches!(error, ClientError::ProtocolMismatch { protocol: 77, .. }), "{error}");
        assert_eq!(connector.with_any_protocol().open().unwrap().socket, home.socket());
    }

    #[test]
    fn daemon_on_other_socket_is_named_without_spawning() {
        let home = TestHome::new();
        let requested = home.path().join("requested.sock");
        write_daemon_file(home.path(), &home.socket(), 4711, PROTOCOL_VERSION);
        let environment = Environment::default();
        let address =
            Address::new(Some(home.path().into()), Some(requested), &environment).unwrap();
        assert!(held_elsewhere(&address).is_none(), "the file was left by a daemon that ended");
        let listener = UnixListener::bind(home.socket()).unwrap();
        let connector = Connector::new(address.clone(), &environment);
        for connector in [connector.clone(), connector.without_spawn()] {
            let error = connector.open().unwrap_err();
            assert!(matches!(error, ClientError::ListensElsewhere { pid: 4711, .. }), "{error}");
            assert!(error.hint().unwrap().contains(&home.socket().display().to_string()));
        }
        drop(listener);
    }
}
