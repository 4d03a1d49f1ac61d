//! A home of its own for one test, and what can be said about its files.

use std::ffi::OsStr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ctl::{self, Follower, Output};
use super::daemon::Daemon;
use super::wire::Wire;
use super::{Waits as _, program};

/// A directory that goes with the test: `home` for the daemon, the rest for the test's own files.
#[must_use]
pub(crate) struct Sandbox {
    directory: tempfile::TempDir,
}

impl Sandbox {
    /// An empty home with a short path, since the path of a socket has hardly 100 bytes.
    pub(crate) fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("ol").tempdir_in("/tmp").unwrap();
        let sandbox = Self { directory };
        std::fs::DirBuilder::new().mode(0o700).create(sandbox.home()).unwrap();
        sandbox
    }

    /// The daemon's home.
    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// Where [`Sandbox::daemon`] listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("s.sock")
    }

    /// A path of the test's own, outside the home.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a directory of the test's own and returns its path as text.
    pub(crate) fn project(&self, name: &str) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        path.canonicalize().unwrap().to_str().unwrap().to_owned()
    }

    /// Writes the configuration.
    pub(crate) fn write_config(&self, text: &str) {
        std::fs::write(self.home().join("config.yaml"), text).unwrap();
    }

    /// The log of a session.
    pub(crate) fn log_of(&self, session: &str) -> PathBuf {
        self.home().join(format!("sessions/{session}.jsonl"))
    }

    /// A running daemon.
    pub(crate) fn daemon(&self) -> Daemon {
        Daemon::start(self, &[])
    }

    /// A running daemon and a connection to it.
    pub(crate) fn served(&self) -> (Daemon, Wire) {
        let daemon = self.daemon();
        let wire = daemon.wire();
        (daemon, wire)
    }

    /// A command with nothing in its environment but what a login gives.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(program(name));
        self.clean(&mut command);
        command
    }

    /// Takes everything out of a command's environment that could differ between machines.
    pub(crate) fn clean(&self, command: &mut Command) {
        command
            .env_clear()
            .env("HOME", self.directory.path())
            .env("PATH", "/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .env("OLLM_HOME", self.home())
            // Where nobody listens: a model server of this machine is none of a test's business.
            .env("OLLAMA_HOST", "127.0.0.1:9")
            .current_dir(self.directory.path());
    }

    /// Runs `ollmctl` to its end.
    pub(crate) fn ctl<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Output {
        self.ctl_with(args, "")
    }

    /// Runs `ollmctl` to its end with something to read.
    pub(crate) fn ctl_with<I: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = I>,
        input: &str,
    ) -> Output {
        let mut command = self.command("ollmctl");
        command.env("OLLM_DAEMON", program("ollmd")).args(args);
        ctl::run(command, input)
    }

    /// Starts `ollmctl` and reads its lines as they come.
    pub(crate) fn follow<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Follower {
        let mut command = self.command("ollmctl");
        command.args(args);
        Follower::start(command)
    }

    /// Every file under the home that contains a text, as it is in the file.
    pub(crate) fn files_with(&self, text: &str) -> Vec<PathBuf> {
        let holds = |path: &PathBuf| {
            let bytes = std::fs::read(path).unwrap_or_default();
            bytes.windows(text.len()).any(|window| window == text.as_bytes())
        };
        every_file(&self.home()).into_iter().filter(holds).collect()
    }
}

impl Drop for Sandbox {
    /// A daemon that a client started has no owner in the test: it is asked to leave.
    fn drop(&mut self) {
        if !self.home().join("daemon.json").exists() {
            return;
        }
        let mut command = self.command("ollmctl");
        command.args(["--no-spawn", "daemon", "stop"]);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        if let Ok(mut child) = command.spawn()
            && child.wait_for(std::time::Duration::from_secs(12)).is_none()
        {
            let _gone = child.kill();
        }
    }
}

/// Every regular file under a directory, in the order of their names.
pub(crate) fn every_file(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    files
}

/// A file that the repository carries for tests.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}
