//! Where to look for the daemon of a home.
//!
//! The rule itself is `ollm_protocol::address`; this file adds what needs the file system: the canonical home
//! and `daemon.json`. It connects to nothing. The environment is read here and nowhere else.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use ollm_protocol::address::{DaemonFile, MAX_SOCKET_PATH_BYTES, candidates};

use crate::error::ClientError;

/// The variables that matter, as they were when the process started. An empty one counts as absent.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `OLLM_HOME`: the daemon's home directory.
    pub home: Option<PathBuf>,
    /// `OLLM_SOCKET`: the one socket to use.
    pub socket: Option<PathBuf>,
    /// `OLLM_CONFIG`: the configuration file.
    pub config: Option<PathBuf>,
    /// `OLLM_DAEMON`: the program to start.
    pub daemon: Option<PathBuf>,
    /// `OLLM_NO_SPAWN`: never start a daemon; anything but empty and `0`.
    pub no_spawn: bool,
    /// `PATH`: where to look for the program.
    pub search_path: Option<OsString>,
    /// The user's home directory.
    pub user_home: Option<PathBuf>,
    /// `XDG_CONFIG_HOME`: where units of the user's own service manager are installed.
    pub config_home: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`: where that manager listens.
    pub runtime_dir: Option<PathBuf>,
}

/// Every variable of this process, for a command that it runs.
pub(crate) fn variables() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

impl Environment {
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

/// A home and, where someone insists, the one socket to use.
#[derive(Clone, Debug)]
pub struct Address {
    home: PathBuf,
    socket: Option<PathBuf>,
}

/// Where to try, and what the daemon left behind about itself.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// In the order in which they are tried.
    pub(crate) paths: Vec<PathBuf>,
    /// What `daemon.json` says, if it can be read.
    pub(crate) daemon: Option<DaemonFile>,
}

impl Address {
    /// The address of a home: the argument, else `OLLM_HOME`, else `~/.ollm`; the socket likewise.
    ///
    /// **Errors**: [`ClientError::NoHome`] where neither is known, [`ClientError::SocketPathTooLong`].
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
        // The daemon hashes the canonical path; a home that does not exist yet has none, and no daemon either.
        let home = std::fs::canonicalize(&home).unwrap_or_else(|_| absolute(home));
        Ok(Self { home, socket })
    }

    /// The daemon's home directory.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The one socket to use, where someone insists.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// The same address once the home exists: a link in its path may lead elsewhere than it seemed.
    pub(crate) fn canonical(&self) -> Self {
        let home = std::fs::canonicalize(&self.home).unwrap_or_else(|_| self.home.clone());
        Self { home, socket: self.socket.clone() }
    }

    /// Where to try now.
    pub(crate) fn sockets(&self) -> Sockets {
        if let Some(socket) = &self.socket {
            return Sockets { paths: vec![socket.clone()], daemon: None };
        }
        let daemon = self.daemon_file();
        let mut paths: Vec<PathBuf> = daemon.iter().map(|file| file.socket.clone()).collect();
        for path in candidates(&self.home, rustix::process::geteuid().as_raw()) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        Sockets { paths, daemon }
    }

    /// What the running daemon wrote about itself. A file that cannot be read is as good as none: the
    /// candidates are tried anyway.
    pub(crate) fn daemon_file(&self) -> Option<DaemonFile> {
        let bytes = std::fs::read(self.home.join("daemon.json")).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}

/// Whether a daemon holds this lock. A shared lock held for an instant is enough to know.
pub(crate) fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(home: &Path) -> Environment {
        Environment { user_home: Some(home.to_owned()), ..Environment::default() }
    }

    #[test]
    fn arguments_win_over_variables_and_those_over_the_user_home() {
        let mut variables = environment(Path::new("/nowhere/ada"));
        let home = |argument: Option<&str>, variables: &Environment| {
            Address::new(argument.map(PathBuf::from), None, variables).unwrap().home
        };
        assert_eq!(home(None, &variables), Path::new("/nowhere/ada/.ollm"));
        variables.home = Some("/nowhere/other".into());
        assert_eq!(home(None, &variables), Path::new("/nowhere/other"));
        assert_eq!(home(Some("/nowhere/third"), &variables), Path::new("/nowhere/third"));
        let nothing = Environment::default();
        assert!(matches!(Address::new(None, None, &nothing), Err(ClientError::NoHome)));
    }

    #[test]
    fn what_the_daemon_wrote_is_tried_first_and_only_once() {
        let scratch = tempfile::tempdir().unwrap();
        let address =
            Address::new(Some(scratch.path().into()), None, &Environment::default()).unwrap();
        let plain = address.sockets();
        assert!(plain.daemon.is_none());
        let socket = plain.paths.last().unwrap().clone();
        let file = DaemonFile {
            socket: socket.clone(),
            pid: 1,
            version: "0.1.0".into(),
            protocol: 1,
            started_at: ollm_protocol::Timestamp::from_unix_ms(0),
        };
        let json = serde_json::to_vec(&file).unwrap();
        std::io::Write::write_all(
            &mut std::fs::File::create(address.home().join("daemon.json")).unwrap(),
            &json,
        )
        .unwrap();
        let found = address.sockets();
        assert_eq!(found.daemon, Some(file));
        assert_eq!(found.paths.first(), Some(&socket));
        assert_eq!(found.paths.len(), plain.paths.len());
    }

    #[test]
    fn a_lock_is_seen_without_being_taken() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("ollmd.lock");
        assert!(!is_locked(&path));
        let held = File::create(&path).unwrap();
        assert!(!is_locked(&path));
        held.lock().unwrap();
        assert!(is_locked(&path));
        held.unlock().unwrap();
        assert!(!is_locked(&path));
        held.try_lock().unwrap();
    }

    #[test]
    fn an_explicit_socket_is_the_only_one_and_must_be_short() {
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
