//! The service manager of this user: found by its program and its socket, asked with a deadline.
//!
//! **Source**: the outputs and exit codes of `systemctl --user` are those of systemd 252, recorded with a user instance;
//! those of `launchctl` are from launchctl(1).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{LAUNCHD_AGENT, ServedDaemon};
use crate::address::Environment;
use crate::child_process::{read_to_end, wait_until};
use crate::regular_file;

/// The longest wait for the output of a program that has ended.
const OUTPUT_LIMIT: Duration = Duration::from_millis(100);
/// The longest wait for the manager to read, enable or report something; it takes milliseconds.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The longest wait for a service to stop: longer than the units allow.
const STOP_LIMIT: Duration = Duration::from_secs(25);
/// The unit of systemd that listens for the daemon.
const SOCKET_UNIT: &str = "ollmd.socket";
/// The links in the directory of the units that make systemd start them.
pub(crate) const LINKS: [&str; 2] =
    ["default.target.wants/ollmd.service", "sockets.target.wants/ollmd.socket"];
/// The exit codes of `launchctl bootout` for an agent that is not loaded: `ESRCH`, and that of a missing service.
const NOT_LOADED: [i32; 2] = [3, 113];

/// A kind of service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ManagerKind {
    Systemd,
    Launchd,
}

impl ManagerKind {
    /// Returns the kind of this system, or the one whose program alone is there.
    pub(crate) fn of_system(environment: &Environment) -> Self {
        let has = |name| environment.find_program(name).is_some();
        if cfg!(target_os = "macos") || (has("launchctl") && !has("systemctl")) {
            Self::Launchd
        } else {
            Self::Systemd
        }
    }

    /// Returns the names of the files of a service.
    pub(crate) const fn file_names(self) -> &'static [&'static str] {
        match self {
            Self::Systemd => &["ollmd.service", "ollmd.socket"],
            Self::Launchd => &["org.ollm.ollmd.plist"],
        }
    }

    /// Returns the directory of the files of a user's services.
    pub(crate) fn directory(self, environment: &Environment) -> Option<PathBuf> {
        let user_home = environment.user_home.as_ref()?;
        Some(match self {
            Self::Systemd => {
                let config = environment.config_home.clone();
                config.unwrap_or_else(|| user_home.join(".config")).join("systemd/user")
            }
            Self::Launchd => user_home.join("Library/LaunchAgents"),
        })
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Systemd => "systemd",
            Self::Launchd => "launchd",
        }
    }

    /// Returns the commands of an installation, as a person would type them.
    pub(crate) fn commands(self, files: &[PathBuf]) -> Vec<String> {
        match self {
            Self::Systemd => vec![
                "systemctl --user daemon-reload".to_owned(),
                "systemctl --user enable ollmd.service ollmd.socket".to_owned(),
                "systemctl --user start ollmd.service".to_owned(),
            ],
            Self::Launchd => {
                let file = files.first().map(|file| file.to_string_lossy()).unwrap_or_default();
                vec![
                    format!("launchctl enable {}", agent()),
                    format!("launchctl bootstrap {} '{file}'", domain()),
                ]
            }
        }
    }

    /// Returns the name of the manager's program.
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Self::Systemd => "systemctl",
            Self::Launchd => "launchctl",
        }
    }

    /// Returns the files of the installed service: those in the user's directory, or those that a package installed and the
    /// user enabled.
    pub(crate) fn installed_files(self, environment: &Environment) -> Vec<PathBuf> {
        let Some(directory) = self.directory(environment) else { return Vec::new() };
        let in_directory = |directory: &Path| -> Vec<PathBuf> {
            self.file_names().iter().map(|name| directory.join(name)).collect()
        };
        let own = in_directory(&directory);
        if own[0].is_file() || self == Self::Launchd {
            return own.into_iter().filter(|path| path.is_file()).collect();
        }
        let linked = LINKS.iter().find_map(|link| std::fs::canonicalize(directory.join(link)).ok());
        let packaged = linked.as_deref().and_then(Path::parent).map(in_directory);
        packaged.unwrap_or_default().into_iter().filter(|path| path.is_file()).collect()
    }

    /// Reads the daemon of the installed service; `None` if none is installed, or if its files say no program.
    pub(crate) fn installed(self, environment: &Environment) -> Option<ServedDaemon> {
        let read = |path: &PathBuf| {
            let bytes = regular_file::read_input(path).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let mut texts: Vec<String> = self.installed_files(environment).iter().map(read).collect();
        // A service without a socket makes its own.
        texts.resize(self.file_names().len(), String::new());
        ServedDaemon::parse(self, &texts, environment.user_home.as_ref()?)
    }
}

/// The service manager of this user.
#[derive(Clone, Debug)]
pub(crate) struct Manager {
    pub(crate) kind: ManagerKind,
    pub(super) program: PathBuf,
    pub(super) runtime_dir: PathBuf,
}

/// A command of the manager that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    #[error("cannot run {command}: {source}")]
    Run { command: String, source: io::Error },
    #[error("{command} failed ({status}){output}")]
    Failed { command: String, status: ExitStatus, output: String },
    #[error("{command} did not end within {} s", after.as_secs_f32())]
    Timeout { command: String, after: Duration },
    #[error("{command} succeeded, but ollmd does not answer")]
    Unreachable { command: String },
}

/// The state of the service, as its manager reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServiceState {
    /// The manager has read the definition.
    pub(crate) loaded: bool,
    /// The service starts at login.
    pub(crate) enabled: bool,
    /// The manager's word for the state, such as `active` or `failed`.
    pub(crate) state: String,
    /// The process, if it runs.
    pub(crate) pid: Option<u32>,
    /// The files changed since the manager read them.
    pub(crate) outdated: bool,
}

impl Manager {
    /// Finds the manager of this user.
    ///
    /// **Errors**: no manager runs for this user, with the reason and what to do instead.
    pub(crate) fn find(environment: &Environment) -> Result<Self, NoManager> {
        let kind = ManagerKind::of_system(environment);
        let runtime_dir = runtime_dir(environment);
        let is_running =
            kind == ManagerKind::Launchd || runtime_dir.join("systemd/private").exists();
        match environment.find_program(kind.program()) {
            Some(program) if is_running => Ok(Self { kind, program, runtime_dir }),
            found => Err(NoManager::explain(kind, found.is_some(), Path::new("/"))),
        }
    }

    /// Makes the manager read the files, and start the service at each login. Changes nothing that runs.
    pub(crate) fn enable(&self) -> Result<(), ServiceError> {
        if self.kind == ManagerKind::Systemd {
            self.answer(&["--user", "daemon-reload"])?;
            self.answer(&["--user", "enable", "ollmd.service", "ollmd.socket"])?;
        }
        Ok(())
    }

    /// Ends what the manager runs of an earlier definition, when no daemon runs any more; `written` are those of the files that
    /// changed. launchd reads its file and starts the agent here, because it does both at once.
    pub(crate) fn renew(&self, files: &[PathBuf], written: &[PathBuf]) -> Result<(), ServiceError> {
        match self.kind {
            // A socket keeps the path that it was started with. An unchanged one may have started the next daemon already,
            // which would end with it.
            ManagerKind::Systemd if written.iter().any(|path| path.ends_with(SOCKET_UNIT)) => {
                self.answer(&["--user", "stop", SOCKET_UNIT]).map(drop)
            }
            ManagerKind::Systemd => Ok(()),
            ManagerKind::Launchd => {
                self.unload_agent()?;
                let file = files.first().map(|file| file.to_string_lossy()).unwrap_or_default();
                self.answer(&["enable", &agent()])?;
                self.answer(&["bootstrap", &domain(), &file]).map(drop)
            }
        }
    }

    /// Stops the service, and makes the manager not start it any more.
    pub(crate) fn disable(&self) -> Result<(), ServiceError> {
        match self.kind {
            ManagerKind::Systemd => {
                let words = ["--user", "disable", "--now", "ollmd.service", "ollmd.socket"];
                self.run(&words, STOP_LIMIT).map(drop)
            }
            ManagerKind::Launchd => self.unload_agent(),
        }
    }

    /// Makes the manager forget files that are removed.
    pub(crate) fn forget(&self) -> Result<(), ServiceError> {
        if self.kind == ManagerKind::Systemd {
            self.answer(&["--user", "daemon-reload"])?;
            // Fails for units that have not failed.
            drop(self.answer(&["--user", "reset-failed", "ollmd.service", "ollmd.socket"]));
        }
        Ok(())
    }

    /// Stops the agent of launchd, if it is loaded.
    fn unload_agent(&self) -> Result<(), ServiceError> {
        match self.run(&["bootout", &agent()], STOP_LIMIT) {
            Err(ServiceError::Failed { status, .. })
                if status.code().is_some_and(|code| NOT_LOADED.contains(&code)) =>
            {
                Ok(())
            }
            done => done.map(drop),
        }
    }

    /// Returns the words of the command that starts the service.
    pub(super) fn start_words(&self) -> Vec<String> {
        let words: [&str; 3] = match self.kind {
            ManagerKind::Systemd => ["--user", "start", "ollmd.service"],
            ManagerKind::Launchd => return vec!["kickstart".to_owned(), agent()],
        };
        words.map(str::to_owned).to_vec()
    }

    /// Asks for the state of the service.
    pub(crate) fn state(&self) -> Result<ServiceState, ServiceError> {
        match self.kind {
            ManagerKind::Systemd => {
                let properties = "LoadState,ActiveState,UnitFileState,MainPID,NeedDaemonReload";
                let words = ["--user", "show", "-p", properties, "ollmd.service"];
                Ok(systemd_state(&self.answer(&words)?))
            }
            ManagerKind::Launchd => match self.answer(&["print", &agent()]) {
                Ok(output) => Ok(launchd_state(&output)),
                Err(ServiceError::Failed { .. }) => {
                    Ok(ServiceState { state: "not loaded".to_owned(), ..ServiceState::default() })
                }
                Err(error) => Err(error),
            },
        }
    }

    fn answer(&self, words: &[&str]) -> Result<String, ServiceError> {
        self.run(words, ANSWER_LIMIT)
    }

    /// Runs the manager's program and returns its output.
    pub(super) fn run(&self, words: &[&str], limit: Duration) -> Result<String, ServiceError> {
        self.run_program(&self.program, words, limit)
    }

    /// Runs another program of the manager and returns its output.
    pub(crate) fn run_other(&self, program: &Path, words: &[&str]) -> Result<String, ServiceError> {
        self.run_program(program, words, ANSWER_LIMIT)
    }

    fn run_program(
        &self,
        program: &Path,
        words: &[&str],
        limit: Duration,
    ) -> Result<String, ServiceError> {
        let name = program.file_name().map(Path::new).unwrap_or(program);
        let command = format!("{} {}", name.display(), words.join(" "));
        let run = |source| ServiceError::Run { command: command.clone(), source };
        let (mut out, out_end) = io::pipe().map_err(run)?;
        let (mut err, err_end) = io::pipe().map_err(run)?;
        let mut child = Command::new(program)
            .args(words)
            .env("XDG_RUNTIME_DIR", &self.runtime_dir)
            // The outputs are read.
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(out_end)
            .stderr(err_end)
            .spawn()
            .map_err(run)?;
        let Some(status) = wait_until(&mut child, Instant::now() + limit).map_err(run)? else {
            // The program may have ended since the last check.
            child.kill().ok();
            child.wait().map_err(run)?;
            return Err(ServiceError::Timeout { command, after: limit });
        };
        let read = |pipe: &mut io::PipeReader| {
            let bytes = read_to_end(pipe, Instant::now() + OUTPUT_LIMIT).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        if status.success() {
            return Ok(read(&mut out));
        }
        let output = read(&mut err);
        let first = output.lines().map(str::trim).find(|line| !line.is_empty());
        let output = first.map_or_else(String::new, |line| format!(": {line}"));
        Err(ServiceError::Failed { command, status, output })
    }
}

/// Returns the directory of the manager's socket. A login by cron or ssh may lack the variable although the manager runs.
fn runtime_dir(environment: &Environment) -> PathBuf {
    let uid = rustix::process::geteuid().as_raw();
    let given = environment.runtime_dir.clone();
    given.unwrap_or_else(|| format!("/run/user/{uid}").into())
}

/// Returns the domain of a user's agents.
fn domain() -> String {
    format!("gui/{}", rustix::process::geteuid().as_raw())
}

fn agent() -> String {
    format!("{}/{LAUNCHD_AGENT}", domain())
}

/// Reads `Key=value` lines of `systemctl show`.
fn systemd_state(output: &str) -> ServiceState {
    let values: BTreeMap<&str, &str> =
        output.lines().filter_map(|line| line.split_once('=')).collect();
    let value = |key| values.get(key).copied().unwrap_or_default();
    ServiceState {
        loaded: value("LoadState") == "loaded",
        enabled: value("UnitFileState").starts_with("enabled"),
        state: value("ActiveState").to_owned(),
        pid: value("MainPID").parse().ok().filter(|pid| *pid != 0),
        outdated: value("NeedDaemonReload") == "yes",
    }
}

/// Reads the lines `state = running` and `pid = 42` of `launchctl print`, at their first occurrence.
fn launchd_state(output: &str) -> ServiceState {
    let value = |key: &str| {
        let mut pairs = output.lines().filter_map(|line| line.trim().split_once(" = "));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value.trim())
    };
    ServiceState {
        loaded: true,
        enabled: true,
        state: value("state").unwrap_or("unknown").to_owned(),
        pid: value("pid").and_then(|pid| pid.parse().ok()),
        outdated: false,
    }
}

/// No service manager runs for this user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct NoManager {
    pub(crate) reason: String,
    /// The commands that help instead.
    pub(crate) instead: String,
}

impl NoManager {
    /// Finds the reason by the files beneath `root`, the root of the file system.
    fn explain(kind: ManagerKind, has_program: bool, root: &Path) -> Self {
        let has = |path: &str| root.join(path).exists();
        let release = regular_file::read_input(&root.join("proc/sys/kernel/osrelease"));
        let release = String::from_utf8_lossy(&release.unwrap_or_default()).to_ascii_lowercase();
        let without = "ollmctl daemon start  # any other command starts ollmd too";
        let (reason, instead) = if kind == ManagerKind::Launchd {
            ("launchctl is not in PATH", without)
        } else if has("run/systemd/system") && has_program {
            (
                "systemd runs, but not for this user: there is no login session",
                "loginctl enable-linger  # then log in again, not with su or sudo",
            )
        } else if has(".dockerenv") || has("run/.containerenv") {
            (
                "this is a container without a service manager",
                "ollmd  # as the container's command, or: ollmctl daemon start",
            )
        } else if release.contains("microsoft") {
            (
                "this WSL distribution does not run systemd",
                "printf '[boot]\\nsystemd=true\\n' | sudo tee -a /etc/wsl.conf  # then, in Windows: wsl --shutdown",
            )
        } else if has("run/openrc") {
            (
                "OpenRC has no services of users that ollmctl can install",
                "ollmctl daemon start  # in ~/.profile it starts ollmd at login",
            )
        } else {
            ("no service manager was found: systemd and launchd are supported", without)
        };
        Self { reason: reason.to_owned(), instead: instead.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{DirBuilder, File};

    use super::*;

    #[test]
    fn missing_manager_is_explained_by_the_machine() {
        let check = |files: &[&str], has_program: bool, reason: &str, instead: &str| {
            let root = tempfile::tempdir().unwrap();
            for file in files {
                let path = root.path().join(file);
                DirBuilder::new().recursive(true).create(path.parent().unwrap()).unwrap();
                if file.ends_with("osrelease") {
                    let release = "6.6.87.2-microsoft-standard-WSL2\n";
                    io::Write::write_all(&mut File::create(path).unwrap(), release.as_bytes())
                        .unwrap();
                } else {
                    drop(File::create(path).unwrap());
                }
            }
            let found = NoManager::explain(ManagerKind::Systemd, has_program, root.path());
            assert!(found.reason.contains(reason), "{found:?}");
            assert!(found.instead.contains(instead), "{found:?}");
        };
        check(&[], false, "no service manager", "ollmctl daemon start");
        check(&[".dockerenv"], true, "container", "ollmd ");
        check(&["run/.containerenv"], false, "container", "ollmd ");
        check(&["proc/sys/kernel/osrelease"], true, "WSL", "systemd=true");
        check(&["run/openrc"], false, "OpenRC", "~/.profile");
        check(&["run/systemd/system"], true, "not for this user", "enable-linger");
    }

    #[test]
    fn states_are_read_as_the_managers_print_them() {
        let active = "MainPID=59\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\nNeedDaemonReload=yes\n";
        let expected = ServiceState {
            loaded: true,
            enabled: true,
            state: "active".to_owned(),
            pid: Some(59),
            outdated: true,
        };
        assert_eq!(systemd_state(active), expected);
        let missing = "MainPID=0\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\nNeedDaemonReload=no\n";
        let expected = ServiceState { state: "inactive".to_owned(), ..ServiceState::default() };
        assert_eq!(systemd_state(missing), expected);
        let agent = "gui/501/org.ollm.ollmd = {\n\tactive count = 1\n\tstate = running\n\n\tpid = 812\n\
                     \tspawn type = daemon\n\tendpoints = {\n\t\tstate = other\n\t}\n}\n";
        let found = launchd_state(agent);
        assert_eq!((found.state.as_str(), found.pid), ("running", Some(812)));
    }

    #[test]
    fn failing_or_hanging_manager_is_an_error() {
        let manager = Manager {
            kind: ManagerKind::Systemd,
            program: "/bin/sh".into(),
            runtime_dir: "/nowhere".into(),
        };
        let run = |script: &str, limit| {
            manager.run(&["-c", script], limit).map_err(|error| error.to_string())
        };
        let long = Duration::from_secs(20);
        let answer = run("[ $XDG_RUNTIME_DIR = /nowhere ] && echo a && echo b", long);
        assert_eq!(answer.as_deref(), Ok("a\nb\n"));
        let refused = run("echo 'Job failed.' >&2; exit 4", long).unwrap_err();
        assert!(refused.ends_with("failed (exit status: 4): Job failed."), "{refused}");
        let hanging = run("sleep 1000", Duration::from_millis(20)).unwrap_err();
        assert!(hanging.ends_with("did not end within 0.02 s"), "{hanging}");
    }
}
