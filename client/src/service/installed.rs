//! The installed service that starts the daemon of an address, which autostart asks before it starts a daemon itself.
//!
//! A daemon that a client started beside its service would hold the home, and the service would fail, so the manager comes
//! first. After any failure the daemon is started without the manager.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::systemd::socket_of;
use super::{Manager, ManagerKind, ServedDaemon, ServiceError};
use crate::address::{Address, Environment};

/// An installed service whose manager runs.
#[derive(Debug)]
pub(crate) struct InstalledService {
    manager: Manager,
}

impl InstalledService {
    /// Returns the service that runs the daemon of an address; `None` if there is none, or if the environment names another
    /// program or configuration than the service.
    pub(crate) fn find(address: &Address, environment: &Environment) -> Option<Self> {
        let daemon = ManagerKind::of_system(environment).installed(environment)?;
        let serves = daemon.serves(address, environment);
        let agrees = |given: Option<&PathBuf>, own: Option<&Path>| {
            given.is_none_or(|given| own.is_some_and(|own| is_same(given, own)))
        };
        let is_meant = agrees(environment.daemon.as_ref(), Some(&daemon.program))
            && agrees(environment.config.as_ref(), daemon.config.as_deref());
        // The files are looked at first, because most users have none.
        let manager = (serves && is_meant).then(|| Manager::find(environment).ok())??;
        Some(Self { manager })
    }

    /// Returns its manager.
    pub(crate) fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Lets the manager start the service, and waits until the manager reports that it is started.
    pub(crate) fn start(&self, limit: Duration) -> Result<(), ServiceError> {
        let words = self.manager.start_words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.manager.run(&words, limit).map(drop)
    }
}

impl ServedDaemon {
    /// Returns whether this is the daemon of an address.
    pub(crate) fn serves(&self, address: &Address, environment: &Environment) -> bool {
        let home = self.home.clone().or_else(|| environment.default_home());
        let Some(home) = home else { return false };
        let has_socket = match (address.socket(), self.socket.as_deref()) {
            (Some(given), Some(own)) => given == own,
            (Some(given), None) => is_socket_of(given, &home),
            // A client that was given no socket finds that of the running daemon in its home.
            (None, _) => true,
        };
        has_socket && is_same(&home, address.home())
    }
}

/// Returns whether a path is the socket of a service of a home whose definition names no other one.
pub(crate) fn is_socket_of(socket: &Path, home: &Path) -> bool {
    is_same(socket, &socket_of(home))
}

/// Returns whether two paths are the same, with links resolved where they exist.
pub(crate) fn is_same(left: &Path, right: &Path) -> bool {
    let resolve = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    left == right || resolve(left) == resolve(right)
}

impl fmt::Display for InstalledService {
    /// Writes the command that starts the service, as a person would type it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.manager.kind.program();
        write!(out, "{name} {}", self.manager.start_words().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    /// A user's home with service definitions, and programs in place of the managers.
    struct UserHome(tempfile::TempDir);

    impl UserHome {
        fn with_files(names: &[&str]) -> Self {
            let home = Self(tempfile::tempdir().unwrap());
            names.iter().for_each(|name| home.write(name, ""));
            home
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.path().join(name);
            std::fs::DirBuilder::new().recursive(true).create(path.parent().unwrap()).unwrap();
            let mut options = std::fs::OpenOptions::new();
            let mut file =
                options.create(true).write(true).truncate(true).mode(0o700).open(path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }

        fn environment(&self) -> Environment {
            Environment {
                user_home: Some(self.0.path().to_owned()),
                runtime_dir: Some(self.0.path().join("run")),
                search_path: Some(self.0.path().join("bin").into()),
                ..Environment::default()
            }
        }

        /// Returns the command that starts the service of an address.
        fn service(&self, home: Option<&str>, socket: Option<&str>) -> Option<String> {
            self.service_with(home, socket, &self.environment())
        }

        fn service_with(
            &self,
            home: Option<&str>,
            socket: Option<&str>,
            environment: &Environment,
        ) -> Option<String> {
            let home = home.map(PathBuf::from);
            let address = Address::new(home, socket.map(PathBuf::from), environment).unwrap();
            let service = InstalledService::find(&address, environment);
            service.map(|service| service.to_string())
        }
    }

    const SERVICE: &str = ".config/systemd/user/ollmd.service";
    const START: &str = "systemctl --user start ollmd.service";

    #[test]
    fn systemd_unit_is_used_for_the_address_that_it_serves() {
        let user = UserHome::with_files(&["bin/systemctl", "run/systemd/private"]);
        assert_eq!(user.service(None, None), None, "no unit");
        user.write(SERVICE, "[Service]\nExecStart=%h/.cargo/bin/ollmd\n");
        assert_eq!(user.service(None, None).as_deref(), Some(START));
        assert_eq!(user.service(Some("/nowhere/else"), None), None, "another home");
        assert_eq!(user.service(None, Some("/nowhere/s.sock")), None, "another socket");
        let default = user.0.path().join(".ollm/run/ollmd.sock");
        assert_eq!(user.service(None, default.to_str()).as_deref(), Some(START));
        user.write(SERVICE, "[Service]\nExecStart=/bin/ollmd --home /nowhere/else\n");
        let socket = ".config/systemd/user/ollmd.socket";
        user.write(socket, "[Socket]\nListenStream=/nowhere/s.sock\n");
        assert_eq!(user.service(None, None), None, "another home");
        for socket in [None, Some("/nowhere/s.sock")] {
            assert_eq!(user.service(Some("/nowhere/else"), socket).as_deref(), Some(START));
        }
        std::fs::remove_file(user.0.path().join("run/systemd/private")).unwrap();
        assert_eq!(user.service(Some("/nowhere/else"), None), None, "no manager");
    }

    #[test]
    fn packaged_unit_counts_once_it_is_enabled() {
        let user = UserHome::with_files(&["bin/systemctl", "run/systemd/private"]);
        user.write("lib/ollmd.service", "[Service]\nExecStart=/usr/bin/ollmd\n");
        assert_eq!(user.service(None, None), None);
        let wants = user.0.path().join(".config/systemd/user/sockets.target.wants");
        std::fs::DirBuilder::new().recursive(true).create(&wants).unwrap();
        user.write("lib/ollmd.socket", "[Socket]\nListenStream=%h/.ollm/run/ollmd.sock\n");
        let packaged = user.0.path().join("lib/ollmd.socket");
        std::os::unix::fs::symlink(packaged, wants.join("ollmd.socket")).unwrap();
        assert_eq!(user.service(None, None).as_deref(), Some(START));
    }

    #[test]
    fn launchd_agent_is_kickstarted() {
        let agent = "<key>ProgramArguments</key><array><string>/bin/ollmd</string></array>";
        let user = UserHome::with_files(&[]);
        user.write("Library/LaunchAgents/org.ollm.ollmd.plist", agent);
        assert_eq!(user.service(None, None), None, "no program");
        user.write("bin/launchctl", "");
        let uid = rustix::process::geteuid().as_raw();
        let expected = format!("launchctl kickstart gui/{uid}/org.ollm.ollmd");
        assert_eq!(user.service(None, None), Some(expected));
    }

    #[test]
    fn other_program_or_configuration_rules_out_a_service() {
        let user = UserHome::with_files(&["bin/systemctl", "run/systemd/private"]);
        user.write(SERVICE, "[Service]\nExecStart=/bin/ollmd --config /etc/own.yaml\n");
        let default = user.environment();
        let found = |environment: &Environment| user.service_with(None, None, environment);
        assert_eq!(found(&default).as_deref(), Some(START));
        for (daemon, config, expected) in [
            (Some("/nowhere/ollmd"), None, None),
            (None, Some("/nowhere/config.yaml"), None),
            (Some("/bin/ollmd"), Some("/etc/own.yaml"), Some(START)),
        ] {
            let environment = Environment {
                daemon: daemon.map(PathBuf::from),
                config: config.map(PathBuf::from),
                ..default.clone()
            };
            assert_eq!(found(&environment).as_deref(), expected, "{daemon:?} {config:?}");
        }
    }
}
