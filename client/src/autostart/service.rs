//! Asks the user's service manager to start the daemon, where a unit of it is installed for the default home.
//!
//! A daemon that a client started beside its unit would hold the home, and the unit would fail; so the manager
//! comes first. Knows systemd and launchd by the files that the README says to copy. Every wait has a deadline,
//! and whatever goes wrong is only a reason to start the daemon without the manager.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::{is_program, last_words};
use crate::address::{Address, Environment};

/// The units of systemd, the better one first: starting the service starts its socket too, and tells of failure.
const UNITS: [&str; 2] = ["ollmd.service", "ollmd.socket"];
/// The agent of launchd.
const AGENT: &str = "org.ollm.ollmd";
/// How often the manager's program is looked at.
const PAUSE: Duration = Duration::from_millis(5);
/// How long the words of a program that has ended may take to be read.
const WORDS: Duration = Duration::from_millis(100);

/// Where a service may be installed.
#[derive(Clone, Debug)]
pub(super) struct Places {
    user_home: PathBuf,
    units: PathBuf,
    runtime_dir: PathBuf,
    search_path: Option<OsString>,
}

/// An installed service, and the command that starts it.
#[derive(Debug)]
pub(super) struct Service {
    program: PathBuf,
    arguments: Vec<String>,
    runtime_dir: PathBuf,
}

/// Why the manager did not start the daemon.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    /// Its program cannot be run.
    #[error("{command} cannot be run: {source}")]
    Run { command: String, source: io::Error },
    /// Its program said no.
    #[error("{command} failed ({status}){said}")]
    Failed { command: String, status: ExitStatus, said: String },
    /// Its program did not end.
    #[error("{command} was not done after {} s", after.as_secs_f32())]
    Timeout { command: String, after: Duration },
    /// It was started, and nobody answers.
    #[error("{command} succeeded, but nobody answers")]
    Silent { command: String },
}

impl Places {
    /// Where to look; `None` where the environment asks for a program or settings that no unit knows of.
    pub(super) fn new(environment: &Environment) -> Option<Self> {
        if environment.daemon.is_some() || environment.config.is_some() {
            return None;
        }
        let user_home = environment.user_home.clone()?;
        let config = environment.config_home.clone();
        let uid = rustix::process::geteuid().as_raw();
        Some(Self {
            units: config.unwrap_or_else(|| user_home.join(".config")).join("systemd/user"),
            // A login by cron or ssh may lack the variable, and the manager runs all the same.
            runtime_dir: environment
                .runtime_dir
                .clone()
                .unwrap_or_else(|| format!("/run/user/{uid}").into()),
            search_path: environment.search_path.clone(),
            user_home,
        })
    }

    /// The service of an address: of the default home only, since that is the one the units are for.
    pub(super) fn service(&self, address: &Address) -> Option<Service> {
        let default = self.user_home.join(".ollm");
        let default = std::fs::canonicalize(&default).unwrap_or(default);
        if address.socket().is_some() || address.home() != default {
            return None;
        }
        self.systemd().or_else(|| self.launchd())
    }

    fn systemd(&self) -> Option<Service> {
        let unit = UNITS.iter().find(|unit| self.units.join(unit).is_file())?;
        let reachable = self.runtime_dir.join("systemd/private").exists();
        reachable.then(|| self.command("systemctl", ["--user", "start", unit]))?
    }

    fn launchd(&self) -> Option<Service> {
        let agents = self.user_home.join("Library/LaunchAgents");
        if !agents.join(format!("{AGENT}.plist")).is_file() {
            return None;
        }
        let target = format!("gui/{}/{AGENT}", rustix::process::geteuid().as_raw());
        self.command("launchctl", ["kickstart", &target])
    }

    fn command<const N: usize>(&self, name: &str, arguments: [&str; N]) -> Option<Service> {
        let places = self.search_path.iter().flat_map(std::env::split_paths);
        let program = places.map(|place| place.join(name)).find(|path| is_program(path))?;
        let arguments = arguments.map(str::to_owned).to_vec();
        Some(Service { program, arguments, runtime_dir: self.runtime_dir.clone() })
    }
}

impl Service {
    /// Lets the manager start it, and waits until the manager says that it has.
    pub(super) fn start(&self, wait: Duration) -> Result<(), ServiceError> {
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
        let Some(status) = ended(&mut child, Instant::now() + wait).map_err(run)? else {
            // It may have ended in this moment.
            child.kill().ok();
            child.wait().map_err(run)?;
            return Err(ServiceError::Timeout { command, after: wait });
        };
        if status.success() {
            return Ok(());
        }
        let words = last_words(&mut reader, Instant::now() + WORDS, &mut || false).ok().flatten();
        let words = String::from_utf8_lossy(&words.unwrap_or_default()).into_owned();
        let first = words.lines().next().unwrap_or_default().trim().to_owned();
        let said = if first.is_empty() { first } else { format!(": {first}") };
        Err(ServiceError::Failed { command, status, said })
    }

    /// What to say when it was started and cannot be reached.
    pub(super) fn silent(&self) -> ServiceError {
        ServiceError::Silent { command: self.to_string() }
    }
}

impl std::fmt::Display for Service {
    /// The command as a person would type it.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.program.file_name().map(Path::new).unwrap_or(&self.program);
        write!(out, "{} {}", name.display(), self.arguments.join(" "))
    }
}

fn ended(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= deadline {
            return Ok(status);
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    /// A user's home with an installed unit, and programs that stand for the managers.
    struct User(tempfile::TempDir);

    impl User {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self, name: &str) {
            let path = self.0.path().join(name);
            std::fs::DirBuilder::new().recursive(true).create(path.parent().unwrap()).unwrap();
            let mut options = std::fs::OpenOptions::new();
            drop(options.create(true).append(true).mode(0o700).open(path).unwrap());
        }

        fn service(&self, home: Option<&str>, socket: Option<&str>) -> Option<String> {
            let environment = Environment {
                user_home: Some(self.0.path().to_owned()),
                runtime_dir: Some(self.0.path().join("run")),
                search_path: Some(self.0.path().join("bin").into()),
                ..Environment::default()
            };
            let home = home.map(PathBuf::from);
            let address = Address::new(home, socket.map(PathBuf::from), &environment).unwrap();
            let service = Places::new(&environment).unwrap().service(&address);
            service.map(|service| service.to_string())
        }
    }

    #[test]
    fn a_manager_is_asked_where_its_unit_is_installed_for_this_home() {
        let user = User::new();
        user.file("bin/systemctl");
        user.file("run/systemd/private");
        assert_eq!(user.service(None, None), None, "no unit");
        user.file(".config/systemd/user/ollmd.socket");
        let socket = "systemctl --user start ollmd.socket";
        assert_eq!(user.service(None, None).as_deref(), Some(socket));
        user.file(".config/systemd/user/ollmd.service");
        let service = "systemctl --user start ollmd.service";
        assert_eq!(user.service(None, None).as_deref(), Some(service));
        assert_eq!(user.service(Some("/nowhere/else"), None), None, "another home");
        assert_eq!(user.service(None, Some("/nowhere/s.sock")), None, "another socket");
        std::fs::remove_file(user.0.path().join("run/systemd/private")).unwrap();
        assert_eq!(user.service(None, None), None, "no manager");
    }

    #[test]
    fn an_agent_is_kicked() {
        let user = User::new();
        user.file("Library/LaunchAgents/org.ollm.ollmd.plist");
        assert_eq!(user.service(None, None), None, "no program");
        user.file("bin/launchctl");
        let uid = rustix::process::geteuid().as_raw();
        let expected = format!("launchctl kickstart gui/{uid}/org.ollm.ollmd");
        assert_eq!(user.service(None, None), Some(expected));
    }

    #[test]
    fn a_program_or_settings_of_ones_own_are_not_left_to_a_unit() {
        let home = Some(PathBuf::from("/nowhere"));
        let plain = Environment { user_home: home, ..Environment::default() };
        assert!(Places::new(&plain).is_some());
        let daemon = Environment { daemon: Some("/nowhere/ollmd".into()), ..plain.clone() };
        assert!(Places::new(&daemon).is_none());
        let config = Environment { config: Some("/nowhere/config.yaml".into()), ..plain };
        assert!(Places::new(&config).is_none());
    }

    #[test]
    fn a_manager_that_says_no_or_nothing_is_not_waited_for() {
        let start = |script: &str, wait| {
            let service = Service {
                program: "/bin/sh".into(),
                arguments: vec!["-c".into(), script.into()],
                runtime_dir: "/nowhere".into(),
            };
            service.start(wait).map_err(|error| error.to_string())
        };
        let long = Duration::from_secs(20);
        assert_eq!(start("[ $XDG_RUNTIME_DIR = /nowhere ]", long), Ok(()));
        let refused = start("echo 'Job failed.' >&2; exit 4", long).unwrap_err();
        assert!(refused.ends_with("failed (exit status: 4): Job failed."), "{refused}");
        let silent = start("sleep 1000", Duration::from_millis(20)).unwrap_err();
        assert!(silent.ends_with("was not done after 0.02 s"), "{silent}");
    }
}
