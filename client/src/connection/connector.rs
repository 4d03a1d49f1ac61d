//! The settings of a connection: the address, whether the daemon may be started, the timeout and the accepted protocol.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::PROTOCOL_VERSION;

use super::autostart::{self, DaemonProgram, StartLock};
use super::probe::{OpenConnection, held_elsewhere, held_unreachable, means_not_running, probe};
use crate::address::{Address, Environment, is_home_locked, lock_holder};
use crate::error::ClientError;

/// The longest wait for a reply unless [`Connector::with_timeout`] sets another.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for a daemon that holds its home and does not listen yet; it takes milliseconds, on a slow disk
/// seconds.
const START_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait for a daemon that does not listen any more to end; mostly it takes milliseconds.
const END_LIMIT: Duration = Duration::from_secs(2);
/// The longest wait for a daemon that another client replaces: the longest shutdown and the start of the next one.
const REPLACE_LIMIT: Duration = Duration::from_secs(15);
/// The pause between two attempts to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Starts to show that the client waits; the returned function is called at least every 20 ms.
pub(crate) type ShowWaiting = fn(message: &str) -> Box<dyn FnMut()>;

/// Connects to the daemon of one address.
#[derive(Clone, Debug)]
pub struct Connector {
    address: Address,
    program: DaemonProgram,
    spawn: bool,
    any_protocol: bool,
    timeout: Duration,
    show_waiting: ShowWaiting,
    /// The lock of starts, if this client holds it.
    start_lock: Option<Arc<StartLock>>,
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
            show_waiting: |_| Box::new(|| {}),
            start_lock: None,
        }
    }

    /// Shows a person that the client waits for a daemon.
    pub(crate) fn with_show_waiting(mut self, show_waiting: ShowWaiting) -> Self {
        self.show_waiting = show_waiting;
        self
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
        if self.address.requires_home() {
            self.address.check_owner()?;
        }
        let connection = match self.find()? {
            Ok(connection) => connection,
            Err(error) if !self.spawn => return Err(error),
            Err(_) => autostart::start(&self.address, &self.program, self.start_lock.as_deref())?,
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

    /// Keeps other clients from starting a daemon until the lock is dropped. Meanwhile they wait.
    pub(crate) fn hold_starts(&self) -> Result<StartLock, ClientError> {
        StartLock::hold(&self.address)
    }

    /// Starts the daemon as the holder of the lock.
    pub(crate) fn with_start_lock(mut self, lock: StartLock) -> Self {
        self.start_lock = Some(Arc::new(lock));
        self
    }

    /// Connects to the daemon that follows one that said so; waits until it listens.
    pub(crate) fn open_successor(&self) -> Result<OpenConnection, ClientError> {
        let deadline = Instant::now() + REPLACE_LIMIT;
        let mut show_waiting = (self.show_waiting)("waiting for the next ollmd");
        loop {
            match self.open() {
                Err(ClientError::Unreachable { .. }) if Instant::now() < deadline => {
                    show_waiting();
                    std::thread::sleep(RETRY_PAUSE);
                }
                opened => return opened,
            }
        }
    }

    /// Returns whether a daemon may run at this address; connects to nothing. The locks in the home decide, unless the given
    /// socket may be that of another home: a service manager may listen at the socket, and starts the daemon at the first
    /// connection.
    pub(crate) fn may_be_running(&self) -> bool {
        let address = &self.address;
        let is_of_home = address.socket().is_none() || self.program.service(address).is_some();
        !is_of_home || self.is_home_used()
    }

    /// Returns whether a daemon holds the home, or another client starts or replaces it.
    fn is_home_used(&self) -> bool {
        let home = self.address.home();
        // A client that starts a daemon keeps the lock of starts until the daemon holds the home, so that lock is examined
        // first.
        let is_starting = self.start_lock.is_none() && autostart::is_starting(home);
        is_starting || is_home_locked(home)
    }

    /// Connects to the running daemon, or returns the error that shows that none runs. Waits for a daemon that is
    /// starting or ending.
    ///
    /// **Errors**: a daemon runs and cannot be used.
    fn find(&self) -> Result<Result<OpenConnection, ClientError>, ClientError> {
        let mut missing = match probe(&self.address, self.timeout) {
            Err(error) if means_not_running(&self.address, &error) => error,
            found => return found.map(Ok),
        };
        if let Some(error) = held_elsewhere(&self.address) {
            return Err(error);
        }
        let home = self.address.home();
        let limit = self.timeout.min(self.holder_limit());
        let deadline = Instant::now() + limit;
        let mut show_waiting: Option<Box<dyn FnMut()>> = None;
        // A client that may start a daemon waits for other starts in `autostart`.
        let is_awaited = || if self.spawn { is_home_locked(home) } else { self.is_home_used() };
        while is_awaited() {
            if Instant::now() >= deadline {
                return held_unreachable(&self.address).map_or(Ok(Err(missing)), Err);
            }
            show_waiting.get_or_insert_with(|| (self.show_waiting)("waiting for ollmd"))();
            std::thread::sleep(RETRY_PAUSE);
            missing = match probe(&self.address, self.timeout) {
                Err(error) if means_not_running(&self.address, &error) => error,
                found => return found.map(Ok),
            };
        }
        Ok(Err(missing))
    }

    /// Returns the longest wait for the daemon that holds the home. A daemon that is ready has written its
    /// `daemon.json`.
    fn holder_limit(&self) -> Duration {
        if autostart::is_starting(self.address.home()) {
            return REPLACE_LIMIT;
        }
        let file = self.address.daemon_file();
        let holder = lock_holder(self.address.home());
        match file {
            Some(file) if holder.is_none_or(|pid| pid == file.pid) => END_LIMIT,
            _ => START_LIMIT,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::json;

    use super::*;
    use crate::address::home_id;
    use crate::testing::{TestHome, reply, write_daemon_file};

    #[test]
    fn daemon_of_other_protocol_is_accepted_only_on_request() {
        let home = TestHome::new();
        let environment = Environment { no_spawn: true, ..Environment::default() };
        let address = Address::new(Some(home.path().into()), Some(home.socket()), &environment);
        let connector = Connector::new(address.unwrap(), &environment);
        let hello = json!({
            "protocol": 77, "schemaRevision": 1, "version": "9", "pid": 1, "epoch": "e",
            "homeId": home_id(home.path()),
            "limits": {"frameBytes": 1, "batch": 1, "subscriptions": 1, "inFlight": 1}
        });
        let serve = || {
            let hello = hello.clone();
            home.serve(move |request, stream| reply(stream, request, &hello))
        };
        let _server = serve();
        let error = connector.open().unwrap_err();
        assert!(matches!(error, ClientError::ProtocolMismatch { protocol: 77, .. }), "{error}");
        std::fs::remove_file(home.socket()).unwrap();
        let _server = serve();
        assert_eq!(connector.with_any_protocol().open().unwrap().socket, home.socket());
    }

    #[test]
    fn client_that_starts_nothing_waits_while_another_one_replaces_the_daemon() {
        static WAITS: AtomicBool = AtomicBool::new(false);
        let home = TestHome::new();
        let connector = home.connector().with_show_waiting(|_| {
            WAITS.store(true, Ordering::Relaxed);
            Box::new(|| {})
        });
        let lock = connector.hold_starts().unwrap();
        let replacing = connector.clone().with_start_lock(lock);
        let refused = replacing.open().unwrap_err();
        assert!(matches!(refused, ClientError::Unreachable { .. }), "{refused}");
        assert!(!WAITS.load(Ordering::Relaxed), "the client that replaces it does not wait");
        let client = std::thread::spawn(move || connector.open());
        while !WAITS.load(Ordering::Relaxed) {
            assert!(!client.is_finished(), "it waits");
            std::thread::sleep(Duration::from_millis(2));
        }
        let _listener = UnixListener::bind(home.socket()).unwrap();
        assert_eq!(client.join().unwrap().unwrap().socket, home.socket());
        drop(replacing);
    }

    #[test]
    fn daemon_on_other_socket_is_named_without_spawning() {
        let home = TestHome::new();
        let requested = home.path().join("requested.sock");
        write_daemon_file(home.path(), &home.socket(), 4711, PROTOCOL_VERSION);
        let lock = std::fs::File::create(home.path().join("ollmd.lock")).unwrap();
        lock.lock().unwrap();
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
