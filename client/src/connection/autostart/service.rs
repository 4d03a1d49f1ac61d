//! Asks the user's service manager to start the daemon, if a unit of it is installed for the default home.
//!
//! A daemon that a client started beside its unit would hold the home, and the unit would fail, so the manager comes
//! first. Knows systemd and launchd by the files that the README says to copy. Every wait has a deadline, and after any
//! failure the daemon is started without the manager.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::process::{read_line, wait_until};
use crate::address::{Address, Environment};

/// The systemd units, the preferred one first: starting the service also starts its socket, and reports failures.
const SYSTEMD_UNITS: [&str; 2] = ["ollmd.service", "ollmd.socket"];
const LAUNCHD_AGENT: &str = "org.ollm.ollmd";
/// The longest wait for the output of a program that has ended.
const OUTPUT_LIMIT: Duration = Duration::from_millis(100);

/// An installed service, as the command that starts it.
#[derive(Debug)]
pub(crate) struct InstalledService {
    program: PathBuf,
    arguments: Vec<String>,
    runtime_dir: PathBuf,
}

/// The service manager did not start the daemon.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    #[error("cannot run {command}: {source}")]
    Run { command: String, source: io::Error },
    #[error("{command} failed ({status}){output}")]
    Failed { command: String, status: ExitStatus, output: String },
    #[error("{command} did not end within {} s", after.as_secs_f32())]
    Timeout { command: String, after: Duration },
    #[error("{command} succeeded, but ollmd does not answer")]
    Unreachable { command: String },
}

impl InstalledService {
    /// Returns the service of the default address, for which the units are made; `None` for another address, or if the
    /// environment names a program or configuration, which no unit knows.
    pub(crate) fn find(address: &Address, environment: &Environment) -> Option<Self> {
        let user_home = environment.user_home.as_ref()?;
        let default = user_home.join(".ollm");
        let default = std::fs::canonicalize(&default).unwrap_or(default);
        let is_default = address.socket().is_none() && address.home() == default;
        if !is_default || environment.daemon.is_some() || environment.config.is_some() {
            return None;
        }
        let uid = rustix::process::geteuid().as_raw();
        // A login by cron or ssh may lack the variable although the manager runs.
        let runtime_dir = environment.runtime_dir.clone();
        let runtime_dir = runtime_dir.unwrap_or_else(|| format!("/run/user/{uid}").into());
        let service = |program: &str, arguments: &[&str]| {
            let program = environment.find_program(program)?;
            let arguments = arguments.iter().map(ToString::to_string).collect();
            Some(Self { program, arguments, runtime_dir: runtime_dir.clone() })
        };
        let config = environment.config_home.clone().unwrap_or_else(|| user_home.join(".config"));
        let units = config.join("systemd/user");
        let unit = SYSTEMD_UNITS.iter().find(|unit| units.join(unit).is_file());
        let is_running = runtime_dir.join("systemd/private").exists();
        let systemd = unit.filter(|_| is_running);
        let agents = user_home.join("Library/LaunchAgents");
        let has_agent = agents.join(format!("{LAUNCHD_AGENT}.plist")).is_file();
        let agent = format!("gui/{uid}/{LAUNCHD_AGENT}");
        systemd
            .and_then(|unit| service("systemctl", &["--user", "start", unit]))
            .or_else(|| has_agent.then(|| service("launchctl", &["kickstart", &agent]))?)
    }

    /// Lets the manager start the service, and waits until the manager reports that it is started.
    pub(super) fn start(&self, limit: Duration) -> Result<(), ServiceError> {
        let command = self.to_string();
        let run = |source| ServiceError::Run { command: command.clone(), source };
        let (mut reader, writer) = io::pipe().map_err(run)?;
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .env("XDG_RUNTIME_DIR", &self.runtime_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(writer)
            .spawn()
            .map_err(run)?;
        let Some(status) = wait_until(&mut child, Instant::now() + limit).map_err(run)? else {
            // The program may have ended since the last check.
            child.kill().ok();
            child.wait().map_err(run)?;
            return Err(ServiceError::Timeout { command, after: limit });
        };
        if status.success() {
            return Ok(());
        }
        let output = read_line(&mut reader, Instant::now() + OUTPUT_LIMIT, &mut || false);
        let output = output.ok().flatten().unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let first = output.lines().next().map(str::trim).filter(|line| !line.is_empty());
        let output = first.map_or_else(String::new, |line| format!(": {line}"));
        Err(ServiceError::Failed { command, status, output })
    }
}

impl std::fmt::Display for InstalledService {
    /// Writes the command as a person would type it.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.program.file_name().map(Path::new).unwrap_or(&self.program);
        write!(out, "{} {}", name.display(), self.arguments.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    /// A user's home with service definitions, and programs in place of the managers.
    struct UserHome(tempfile::TempDir);

    impl UserHome {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn add_file(&self, name: &str) {
            let path = self.0.path().join(name);
            std::fs::DirBuilder::new().recursive(true).create(path.parent().unwrap()).unwrap();
            let mut options = std::fs::OpenOptions::new();
            drop(options.create(true).append(true).mode(0o700).open(path).unwrap());
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
            let environment = self.environment();
            let home = home.map(PathBuf::from);
            let address = Address::new(home, socket.map(PathBuf::from), &environment).unwrap();
            let service = InstalledService::find(&address, &environment);
            service.map(|service| service.to_string())
        }
    }

    #[test]
    fn systemd_unit_is_used_for_the_default_address() {
        let user = UserHome::new();
        user.add_file("bin/systemctl");
        user.add_file("run/systemd/private");
        assert_eq!(user.service(None, None), None, "no unit");
        user.add_file(".config/systemd/user/ollmd.socket");
        let socket = "systemctl --user start ollmd.socket";
        assert_eq!(user.service(None, None).as_deref(), Some(socket));
        user.add_file(".config/systemd/user/ollmd.service");
        let service = "systemctl --user start ollmd.service";
        assert_eq!(user.service(None, None).as_deref(), Some(service));
        assert_eq!(user.service(Some("/nowhere/else"), None), None, "another home");
        assert_eq!(user.service(None, Some("/nowhere/s.sock")), None, "another socket");
        std::fs::remove_file(user.0.path().join("run/systemd/private")).unwrap();
        assert_eq!(user.service(None, None), None, "no manager");
    }

    #[test]
    fn launchd_agent_is_kickstarted() {
        let user = UserHome::new();
        user.add_file("Library/LaunchAgents/org.ollm.ollmd.plist");
        assert_eq!(user.service(None, None), None, "no program");
        user.add_file("bin/launchctl");
        let uid = rustix::process::geteuid().as_raw();
        let expected = format!("launchctl kickstart gui/{uid}/org.ollm.ollmd");
        assert_eq!(user.service(None, None), Some(expected));
    }

    #[test]
    fn explicit_program_or_configuration_rules_out_a_service() {
        let user = UserHome::new();
        user.add_file("bin/systemctl");
        user.add_file("run/systemd/private");
        user.add_file(".config/systemd/user/ollmd.service");
        let default = user.environment();
        let address = Address::new(None, None, &default).unwrap();
        assert!(InstalledService::find(&address, &default).is_some());
        let daemon = Environment { daemon: Some("/nowhere/ollmd".into()), ..default.clone() };
        assert!(InstalledService::find(&address, &daemon).is_none());
        let config = Environment { config: Some("/nowhere/config.yaml".into()), ..default };
        assert!(InstalledService::find(&address, &config).is_none());
    }

    #[test]
    fn failing_or_hanging_manager_is_an_error() {
        let start = |script: &str, limit| {
            let service = InstalledService {
                program: "/bin/sh".into(),
                arguments: vec!["-c".into(), script.into()],
                runtime_dir: "/nowhere".into(),
            };
            service.start(limit).map_err(|error| error.to_string())
        };
        let long = Duration::from_secs(20);
        assert_eq!(start("[ $XDG_RUNTIME_DIR = /nowhere ]", long), Ok(()));
        let refused = start("echo 'Job failed.' >&2; exit 4", long).unwrap_err();
        assert!(refused.ends_with("failed (exit status: 4): Job failed."), "{refused}");
        let hanging = start("sleep 1000", Duration::from_millis(20)).unwrap_err();
        assert!(hanging.ends_with("did not end within 0.02 s"), "{hanging}");
    }
}
