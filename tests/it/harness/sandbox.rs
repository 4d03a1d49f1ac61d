//! An isolated home for one test, and the files in it.

use std::ffi::OsStr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::ctl::{self, Follower, Output};
use super::daemon::Daemon;
use super::wire::Wire;
use super::{ChildExt as _, DEADLINE, program};

/// A temporary directory, removed with the test: `home` belongs to the daemon, the rest to the test.
#[must_use]
pub(crate) struct Sandbox {
    directory: tempfile::TempDir,
}

impl Sandbox {
    /// Creates an empty home. Its path is short, because the path of a socket is limited to about 100 bytes.
    pub(crate) fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("ol").tempdir_in("/tmp").unwrap();
        let sandbox = Self { directory };
        std::fs::DirBuilder::new().mode(0o700).create(sandbox.home()).unwrap();
        sandbox
    }

    /// Returns the daemon's home directory.
    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// Returns the socket path of [`Sandbox::daemon`].
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("s.sock")
    }

    /// Returns a path outside of the home, for a file of the test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates a directory outside of the home and returns its canonical path.
    pub(crate) fn project_dir(&self, name: &str) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        path.canonicalize().unwrap().to_str().unwrap().to_owned()
    }

    /// Replaces `config.yaml` atomically, so that a running daemon never reads half of it.
    pub(crate) fn write_config(&self, text: &str) {
        let temporary = self.path("config.yaml.new");
        std::fs::write(&temporary, text).unwrap();
        std::fs::rename(temporary, self.home().join("config.yaml")).unwrap();
    }

    /// Returns the path of a session's log.
    pub(crate) fn log_path(&self, session: &str) -> PathBuf {
        self.home().join(format!("sessions/{session}.jsonl"))
    }

    /// Removes the catalog database, which the daemon then rebuilds.
    pub(crate) fn remove_catalog(&self) {
        for suffix in ["", "-wal", "-shm"] {
            let _absent =
                std::fs::remove_file(self.home().join(format!("catalog.sqlite3{suffix}")));
        }
    }

    /// Starts a daemon.
    pub(crate) fn daemon(&self) -> Daemon {
        Daemon::start(self, &[])
    }

    /// Starts a daemon and connects to it.
    pub(crate) fn daemon_and_wire(&self) -> (Daemon, Wire) {
        let daemon = self.daemon();
        let wire = daemon.wire();
        (daemon, wire)
    }

    /// Returns a command for a binary under test, with the environment of [`Sandbox::isolate`].
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(program(name));
        self.isolate(&mut command);
        command
    }

    /// Replaces a command's environment by a fixed one, so that the test behaves alike on every machine.
    pub(crate) fn isolate(&self, command: &mut Command) {
        command
            .env_clear()
            .env("HOME", self.directory.path())
            .env("PATH", "/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .env("OLLM_HOME", self.home())
            // A closed port: a test must not reach a model server of this machine.
            .env("OLLAMA_HOST", "127.0.0.1:9")
            .current_dir(self.directory.path());
    }

    /// Runs `ollmctl` to its end.
    pub(crate) fn ctl<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Output {
        self.ctl_with_input(args, "")
    }

    /// Runs `ollmctl` to its end, with `input` on its stdin.
    pub(crate) fn ctl_with_input<I: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = I>,
        input: &str,
    ) -> Output {
        let mut command = self.command("ollmctl");
        command.env("OLLM_DAEMON", program("ollmd")).args(args);
        ctl::run(command, input)
    }

    /// Starts `ollmctl` and reads its lines while it runs.
    pub(crate) fn follow<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Follower {
        let mut command = self.command("ollmctl");
        command.args(args);
        Follower::start(command)
    }

    /// Returns every file under the home whose bytes contain a text.
    pub(crate) fn files_containing(&self, text: &str) -> Vec<PathBuf> {
        let contains = |path: &PathBuf| {
            let bytes = std::fs::read(path).unwrap_or_default();
            bytes.windows(text.len()).any(|window| window == text.as_bytes())
        };
        files_under(&self.home()).into_iter().filter(contains).collect()
    }
}

impl Drop for Sandbox {
    /// Stops a daemon that `ollmctl` started, which no [`Daemon`] value owns.
    fn drop(&mut self) {
        if !self.home().join("daemon.json").exists() {
            return;
        }
        let mut command = self.command("ollmctl");
        command.args(["--no-spawn", "daemon", "stop"]).stdout(Stdio::null()).stderr(Stdio::null());
        if let Ok(mut child) = command.spawn()
            && child.wait_timeout(DEADLINE).is_none()
        {
            let _killed = child.kill();
        }
    }
}

/// Creates a sandbox, starts a daemon in it, and connects to the daemon.
pub(crate) fn start() -> (Sandbox, Daemon, Wire) {
    start_with_config("")
}

/// As [`start`], with a configuration.
pub(crate) fn start_with_config(config: &str) -> (Sandbox, Daemon, Wire) {
    let sandbox = Sandbox::new();
    if !config.is_empty() {
        sandbox.write_config(config);
    }
    let (daemon, wire) = sandbox.daemon_and_wire();
    (sandbox, daemon, wire)
}

/// Returns every regular file under a directory, sorted by path.
pub(crate) fn files_under(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries {
            let entry = entry.unwrap();
            let file_type = entry.file_type().unwrap();
            if file_type.is_dir() {
                pending.push(entry.path());
            } else if file_type.is_file() {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    files
}

/// Returns the path of a file in `tests/fixtures`.
pub(crate) fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}
