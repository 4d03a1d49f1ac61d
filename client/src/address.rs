//! The address of a daemon: its home and the sockets at which it may listen.
//!
//! The rule for socket paths is `ollm_protocol::address`; this file adds the file system: the canonical home,
//! `daemon.json` and the daemon's lock. It connects to nothing. No other file of this crate reads the environment.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ollm_protocol::address::{DaemonFile, MAX_SOCKET_PATH_BYTES, candidates};

use crate::error::ClientError;

/// The pause between two checks of the daemon's lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The environment variables of this process that matter; an empty variable counts as unset.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `OLLM_HOME`: the daemon's home directory.
    pub home: Option<PathBuf>,
    /// `OLLM_SOCKET`: the only socket to use.
    pub socket: Option<PathBuf>,
    /// `OLLM_CONFIG`: the configuration file.
    pub config: Option<PathBuf>,
    /// `OLLM_DAEMON`: the daemon's program.
    pub daemon: Option<PathBuf>,
    /// `OLLM_NO_SPAWN`: never start a daemon; set to anything but `0`.
    pub no_spawn: bool,
    /// `PATH`: the directories in which programs are searched.
    pub search_path: Option<OsString>,
    /// The user's home directory.
    pub user_home: Option<PathBuf>,
    /// `XDG_CONFIG_HOME`: the directory that contains the units of the user's service manager.
    pub config_home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`: the directory of the service manager's socket.
    pub runtime_dir: Option<PathBuf>,
}

/// Returns every variable of this process, for a command that it runs.
pub(crate) fn variables() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

impl Environment {
    /// Finds a program in `PATH`.
    pub(crate) fn find_program(&self, name: &str) -> Option<PathBuf> {
        let mut directories = self.search_path.iter().flat_map(std::env::split_paths);
        directories.find_map(|directory| Some(directory.join(name)).filter(|path| is_program(path)))
    }

    /// Reads the variables of this process.
    #[must_use]
    pub fn read() -> Self {
        let path = |name| {
            std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from)
        };
        Self {
            home: path("OLLM_HOME"),
            socket: path("OLLM_SOCKET"),
            config: path("OLLM_CONFIG"),
            daemon: path("OLLM_DAEMON"),
            no_spawn: path("OLLM_NO_SPAWN").is_some_and(|value| value != Path::new("0")),
            search_path: std::env::var_os("PATH"),
            user_home: std::env::home_dir().filter(|home| !home.as_os_str().is_empty()),
            config_home: path("XDG_CONFIG_HOME"),
            runtime_dir: path("XDG_RUNTIME_DIR"),
        }
    }
}

/// Returns whether a path is a file that can be run.
pub(crate) fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The home of a daemon, and the socket to use if one was given.
#[derive(Clone, Debug)]
pub struct Address {
    home: PathBuf,
    socket: Option<PathBuf>,
}

/// The sockets to try, and the running daemon's description of itself.
#[derive(Debug)]
pub(crate) struct SocketCandidates {
    /// The sockets, in the order of the attempts.
    pub(crate) paths: Vec<PathBuf>,
    /// The content of `daemon.json`, if it can be read.
    pub(crate) daemon: Option<DaemonFile>,
}

impl Address {
    /// Returns the address of a home: the argument, else `OLLM_HOME`, else `~/.ollm`. The socket is the argument, else
    /// `OLLM_SOCKET`, else found from the home.
    ///
    /// **Errors**: [`ClientError::NoHome`] if no home is known, [`ClientError::SocketPathTooLong`].
    pub fn new(
        home: Option<PathBuf>,
        socket: Option<PathBuf>,
        environment: &Environment,
    ) -> Result<Self, ClientError> {
        let home = home
            .or_else(|| environment.home.clone())
            .or_else(|| environment.user_home.as_ref().map(|user| user.join(".ollm")))
            .ok_or(ClientError::NoHome)?;
        let socket = socket.or_else(|| environment.socket.clone()).map(absolute);
        if let Some(path) = &socket
            && path.as_os_str().len() > MAX_SOCKET_PATH_BYTES
        {
            return Err(ClientError::SocketPathTooLong { path: path.clone() });
        }
        // The daemon hashes the canonical path. A home that does not exist has no canonical path and no daemon.
        let home = std::fs::canonicalize(&home).unwrap_or_else(|_| absolute(home));
        Ok(Self { home, socket })
    }

    /// Returns the daemon's home directory.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Returns the socket to use, if one was given.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Resolves the home again, after it was created: its path may contain links.
    pub(crate) fn canonical(&self) -> Self {
        let home = std::fs::canonicalize(&self.home).unwrap_or_else(|_| self.home.clone());
        Self { home, socket: self.socket.clone() }
    }

    /// Returns the sockets at which the daemon may listen now.
    pub(crate) fn sockets(&self) -> SocketCandidates {
        if let Some(socket) = &self.socket {
            return SocketCandidates { paths: vec![socket.clone()], daemon: None };
        }
        let daemon = self.daemon_file();
        let mut paths: Vec<PathBuf> = daemon.iter().map(|file| file.socket.clone()).collect();
        for path in candidates(&self.home, rustix::process::geteuid().as_raw()) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        SocketCandidates { paths, daemon }
    }

    /// Reads `daemon.json`; `None` if that fails, because the sockets can be tried without it.
    pub(crate) fn daemon_file(&self) -> Option<DaemonFile> {
        let bytes = std::fs::read(self.home.join("daemon.json")).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}

/// Returns whether a daemon holds the lock of a home, by trying to take a shared lock for an instant.
pub(crate) fn is_home_locked(home: &Path) -> bool {
    let Ok(file) = File::open(home.join("ollmd.lock")) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

/// Waits until no daemon holds the lock of a home; returns false at the limit.
pub(crate) fn wait_until_unlocked(home: &Path, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while is_home_locked(home) {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    true
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::write_daemon_file;

    fn environment(home: &Path) -> Environment {
        Environment { user_home: Some(home.to_owned()), ..Environment::default() }
    }

    #[test]
    fn home_is_argument_then_variable_then_user_home() {
        let mut variables = environment(Path::new("/nowhere/ada"));
        let home = |argument: Option<&str>, variables: &Environment| {
            Address::new(argument.map(PathBuf::from), None, variables).unwrap().home
        };
        assert_eq!(home(None, &variables), Path::new("/nowhere/ada/.ollm"));
        variables.home = Some("/nowhere/other".into());
        assert_eq!(home(None, &variables), Path::new("/nowhere/other"));
        assert_eq!(home(Some("/nowhere/third"), &variables), Path::new("/nowhere/third"));
        let empty = Environment::default();
        assert!(matches!(Address::new(None, None, &empty), Err(ClientError::NoHome)));
    }

    #[test]
    fn socket_of_daemon_file_is_tried_first_and_once() {
        let scratch = tempfile::tempdir().unwrap();
        let address =
            Address::new(Some(scratch.path().into()), None, &Environment::default()).unwrap();
        let without_file = address.sockets();
        assert!(without_file.daemon.is_none());
        let socket = without_file.paths.last().unwrap().clone();
        write_daemon_file(address.home(), &socket, 1, 1);
        let found = address.sockets();
        assert_eq!(found.daemon.unwrap().socket, socket);
        assert_eq!(found.paths.first(), Some(&socket));
        assert_eq!(found.paths.len(), without_file.paths.len());
    }

    #[test]
    fn lock_is_seen_without_being_kept() {
        let scratch = tempfile::tempdir().unwrap();
        let home = scratch.path();
        assert!(!is_home_locked(home));
        let file = File::create(home.join("ollmd.lock")).unwrap();
        assert!(!is_home_locked(home));
        file.lock().unwrap();
        assert!(is_home_locked(home) && !wait_until_unlocked(home, Duration::ZERO));
        file.unlock().unwrap();
        assert!(!is_home_locked(home) && wait_until_unlocked(home, Duration::ZERO));
        file.try_lock().unwrap();
    }

    #[test]
    fn given_socket_is_the_only_candidate_and_must_be_short() {
        let variables = environment(Path::new("/nowhere"));
        let address = Address::new(None, Some("/nowhere/s.sock".into()), &variables).unwrap();
        assert_eq!(address.sockets().paths, [PathBuf::from("/nowhere/s.sock")]);
        let long = PathBuf::from(format!("/{}", "s".repeat(MAX_SOCKET_PATH_BYTES)));
        assert!(matches!(
            Address::new(None, Some(long), &variables),
            Err(ClientError::SocketPathTooLong { .. })
        ));
    }
}
