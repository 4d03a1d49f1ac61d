//! The address of a daemon: its home and the sockets at which it may listen.
//!
//! The rule for socket paths is `ollm_protocol::address`; this file adds the file system: the canonical home,
//! `daemon.json` and the daemon's lock. It connects to nothing. No other file of this crate reads the environment.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ollm_protocol::address::{self, DaemonFile, MAX_SOCKET_PATH_BYTES, candidates};
use rustix::process::{Flock, FlockType, fcntl_getlk};
use serde::Serialize;

use crate::error::ClientError;
use crate::regular_file;

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
    /// `OLLAMA_HOST`: the address of the model server that a daemon started from this shell uses.
    pub ollama_host: Option<String>,
    /// `XDG_RUNTIME_DIR`: the directory of the service manager's socket.
    pub runtime_dir: Option<PathBuf>,
    /// `TERM`: the kind of the terminal.
    pub terminal: Option<String>,
}

/// Returns every variable of this process, for a command that it runs.
pub(crate) fn variables() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

impl Environment {
    /// Returns whether the terminal can move its cursor.
    pub(crate) fn can_move_cursor(&self) -> bool {
        self.terminal.as_deref().is_some_and(|kind| kind != "dumb")
    }

    /// Returns the home of a daemon that is given no other one.
    pub(crate) fn default_home(&self) -> Option<PathBuf> {
        self.user_home.as_ref().map(|user_home| user_home.join(".ollm"))
    }

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
            ollama_host: std::env::var("OLLAMA_HOST").ok().filter(|host| !host.trim().is_empty()),
            runtime_dir: path("XDG_RUNTIME_DIR"),
            terminal: std::env::var("TERM").ok().filter(|kind| !kind.is_empty()),
        }
    }
}

/// Returns whether a path is a file that can be run.
pub(crate) fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The source of a part of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum AddressSource {
    /// An argument, such as `--home`.
    Argument,
    /// A variable, such as `OLLM_HOME`.
    Environment,
    /// The default.
    Default,
}

/// The home of a daemon, and the socket to use if one was given.
#[derive(Clone, Debug)]
pub struct Address {
    home: PathBuf,
    home_source: AddressSource,
    socket: Option<PathBuf>,
    socket_source: AddressSource,
}

impl Address {
    /// Returns the address of a home: the argument, else `OLLM_HOME`, else `~/.ollm`. The socket is the argument, else
    /// `OLLM_SOCKET`, else found from the home.
    ///
    /// Only a daemon of this home is used, except if a socket is given and no home: then the socket decides.
    ///
    /// **Errors**: [`ClientError::NoHome`] if no home is known, [`ClientError::SocketPathTooLong`].
    pub fn new(
        home: Option<PathBuf>,
        socket: Option<PathBuf>,
        environment: &Environment,
    ) -> Result<Self, ClientError> {
        let home_source = source_of(home.as_ref(), environment.home.as_ref());
        let socket_source = source_of(socket.as_ref(), environment.socket.as_ref());
        let home = home
            .or_else(|| environment.home.clone())
            .or_else(|| environment.default_home())
            .ok_or(ClientError::NoHome)?;
        let socket = socket.or_else(|| environment.socket.clone()).map(absolute);
        if let Some(path) = &socket
            && path.as_os_str().len() > MAX_SOCKET_PATH_BYTES
        {
            return Err(ClientError::SocketPathTooLong { path: path.clone() });
        }
        // The daemon hashes the canonical path. A home that does not exist has no canonical path and no daemon.
        let home = std::fs::canonicalize(&home).unwrap_or_else(|_| absolute(home));
        Ok(Self { home, home_source, socket, socket_source })
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

    /// Returns the sources of the home's path and of the socket's path.
    pub(crate) fn sources(&self) -> (AddressSource, AddressSource) {
        (self.home_source, self.socket_source)
    }

    /// Resolves the home again, after it was created: its path may contain links.
    pub(crate) fn canonical(&self) -> Self {
        let home = std::fs::canonicalize(&self.home).unwrap_or_else(|_| self.home.clone());
        Self { home, ..self.clone() }
    }

    /// Returns the flags that give this address to another process of the same environment.
    pub(crate) fn flags(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = Vec::new();
        if self.home_source == AddressSource::Argument {
            flags.extend(["--home".into(), self.home.clone().into_os_string()]);
        }
        if let Some(socket) = &self.socket
            && self.socket_source == AddressSource::Argument
        {
            flags.extend(["--socket".into(), socket.clone().into_os_string()]);
        }
        flags
    }

    /// Returns whether only a daemon of this home may be used.
    pub(crate) fn requires_home(&self) -> bool {
        self.home_source != AddressSource::Default || self.socket.is_none()
    }

    /// Refuses the home of another user before anything is created in it, because files of another user would lock its
    /// owner out; and a home with such files.
    pub(crate) fn check_owner(&self) -> Result<(), ClientError> {
        let home = &self.home;
        let user = rustix::process::geteuid();
        if user.is_root() {
            return match home.parent() {
                // With the variables of another user, for example under `sudo`, root would create that user's home.
                Some(parent) if self.home_source == AddressSource::Default && !home.exists() => {
                    self.require_own(parent)
                }
                _ => self.require_own(home),
            };
        }
        self.require_own(home)?;
        ["ollmd.lock", "start.lock", "logs"]
            .iter()
            .try_for_each(|name| self.require_own(&home.join(name)))
    }

    /// Refuses an existing path that belongs to another user.
    fn require_own(&self, path: &Path) -> Result<(), ClientError> {
        let user = rustix::process::geteuid().as_raw();
        match path.metadata().map(|found| found.uid()) {
            Ok(owner) if owner != user => {
                let (path, home) = (path.to_owned(), self.home.clone());
                Err(ClientError::ForeignHome { path, home, owner, user })
            }
            _ => Ok(()),
        }
    }

    /// Returns the sockets at which the daemon may listen now, in the order of the attempts.
    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        if let Some(socket) = &self.socket {
            return vec![socket.clone()];
        }
        let mut paths: Vec<PathBuf> =
            self.daemon_file().map(|file| file.socket).into_iter().collect();
        for path in candidates(&self.home, rustix::process::geteuid().as_raw()) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        paths
    }

    /// Reads `daemon.json` if it describes a running daemon of this home: the home is locked, and the file is not a
    /// copy of another home's. `None` if it cannot be read, because the sockets can be tried without it.
    pub(crate) fn daemon_file(&self) -> Option<DaemonFile> {
        let bytes = regular_file::read(&self.home.join("daemon.json")).ok()?;
        let file: DaemonFile = serde_json::from_slice(&bytes).ok()?;
        let is_own = file.home_id.is_none() || file.home_id == home_id(&self.home);
        (is_own && is_home_locked(&self.home)).then_some(file)
    }
}

fn source_of(argument: Option<&PathBuf>, variable: Option<&PathBuf>) -> AddressSource {
    match (argument, variable) {
        (Some(_), _) => AddressSource::Argument,
        (None, Some(_)) => AddressSource::Environment,
        (None, None) => AddressSource::Default,
    }
}

/// Returns the id of a home; `None` if it does not exist.
pub(crate) fn home_id(home: &Path) -> Option<String> {
    let found = home.metadata().ok()?;
    Some(address::home_id(found.dev(), found.ino()))
}

fn lock_path(home: &Path) -> PathBuf {
    home.join("ollmd.lock")
}

/// Returns whether a daemon holds the lock of a home.
pub(crate) fn is_home_locked(home: &Path) -> bool {
    regular_file::is_locked(&lock_path(home))
}

/// Returns the process that holds the lock of a home, if the system reports it.
///
/// Texts in files may name a process that ended long ago, and whose number another process has now. The kernel names
/// the owner of a record lock, which a daemon holds besides its lock of the whole file.
pub(crate) fn lock_holder(home: &Path) -> Option<u32> {
    // Other systems report the two locks as one, without a process.
    if !cfg!(target_os = "linux") {
        return None;
    }
    let file = regular_file::open(OpenOptions::new().read(true), &lock_path(home)).ok()?;
    let lock = fcntl_getlk(&file, &Flock::from(FlockType::ReadLock)).ok()??;
    u32::try_from(lock.pid?.as_raw_nonzero().get()).ok()
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
    use std::fs::File;

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
        let requires_home = |home: Option<&str>, socket: Option<&str>| {
            let (home, socket) = (home.map(PathBuf::from), socket.map(PathBuf::from));
            Address::new(home, socket, &variables).unwrap().requires_home()
        };
        assert!(requires_home(None, None) && requires_home(Some("/nowhere"), Some("/s.sock")));
        assert!(!requires_home(None, Some("/s.sock")), "the socket decides");
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
        let socket = without_file.last().unwrap().clone();
        write_daemon_file(address.home(), &socket, 1, 1);
        assert_eq!(address.sockets(), without_file, "no daemon holds the lock");
        let lock = File::create(address.home().join("ollmd.lock")).unwrap();
        lock.lock().unwrap();
        let found = address.sockets();
        assert_eq!(found.first(), Some(&socket));
        assert_eq!(found.len(), without_file.len());
    }

    #[test]
    fn copied_daemon_file_is_ignored() {
        let scratch = tempfile::tempdir().unwrap();
        let address =
            Address::new(Some(scratch.path().into()), None, &Environment::default()).unwrap();
        let lock = File::create(address.home().join("ollmd.lock")).unwrap();
        lock.lock().unwrap();
        let write = |home_id: Option<String>| {
            let file = serde_json::json!({
                "socket": "/s.sock", "homeId": home_id, "pid": 1, "version": "1", "protocol": 1,
                "startedAt": "2026-01-27T10:00:00Z"
            });
            let path = address.home().join("daemon.json");
            serde_json::to_writer(File::create(path).unwrap(), &file).unwrap();
            address.daemon_file().is_some()
        };
        assert!(write(home_id(address.home())) && write(None));
        assert!(!write(Some("1:2".to_owned())));
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
        assert_eq!(address.sockets(), [PathBuf::from("/nowhere/s.sock")]);
        let long = PathBuf::from(format!("/{}", "s".repeat(MAX_SOCKET_PATH_BYTES)));
        assert!(matches!(
            Address::new(None, Some(long), &variables),
            Err(ClientError::SocketPathTooLong { .. })
        ));
    }
}
