//! Starts the daemon when no process listens, and waits until it is ready or reports why it is not.
//!
//! Several clients may do so at once: a lock in the home lets one of them start the daemon, and the daemon's own lock
//! decides in the end, so a client that loses the race connects to the other's daemon. If a service manager has a unit
//! of the daemon, it is asked first. Nothing here waits longer than [`TOTAL_LIMIT`].

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ollm_protocol::{ErrorKind, sanitize};
use serde::Deserialize;

use super::probe::{OpenConnection, held_elsewhere, held_unreachable, probe};
use crate::address::{Address, Environment, is_home_locked, is_program, variables};
use crate::child_process::{MAX_LINE_BYTES, read_line, reap, wait_until};
use crate::error::ClientError;
use crate::own_program;
use crate::regular_file;
use crate::service::{InstalledService, ServiceError};

/// The longest wait for a started daemon to be ready. It takes milliseconds, on a slow disk seconds.
const READY_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait for everything, another client's attempt included.
const TOTAL_LIMIT: Duration = Duration::from_secs(10);
/// The longest wait for the service manager; the rest of [`TOTAL_LIMIT`] is for starting the daemon without it.
const SERVICE_LIMIT: Duration = Duration::from_secs(4);
/// The pause between two checks of a lock that another client holds, or of a socket that is about to appear.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// The longest wait for the daemon that holds the home to answer, before another start is tried.
const HOLDER_LIMIT: Duration = Duration::from_millis(100);
/// The longest wait for the system to release the locks of a daemon that was killed.
const UNLOCK_LIMIT: Duration = Duration::from_secs(1);
/// The longest wait for a daemon that failed to end.
const EXIT_LIMIT: Duration = Duration::from_secs(1);
/// The exit code of a daemon whose home another daemon owns.
const EXIT_LOCKED: i32 = 75;

/// The daemon's program and its settings apart from the address.
#[derive(Clone, Debug)]
pub(super) struct DaemonProgram {
    environment: Environment,
    /// The daemon serves a temporary home, with default settings, and without a service manager.
    is_temporary: bool,
    /// The model server, if it is not the one of the daemon's settings.
    model_server: Option<String>,
}

impl DaemonProgram {
    pub(super) fn new(environment: &Environment) -> Self {
        // The daemon starts in another directory, in which a relative path would name another file.
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let environment = Environment {
            daemon: environment.daemon.as_ref().map(absolute),
            config: environment.config.as_ref().map(absolute),
            ..environment.clone()
        };
        Self { environment, is_temporary: false, model_server: None }
    }

    /// Ignores the user's settings, apart from the given model server: for a temporary home.
    pub(super) fn with_default_settings(self, model_server: Option<String>) -> Self {
        Self { is_temporary: true, model_server, ..self }
    }

    /// Returns the command that runs the daemon of an address.
    pub(super) fn command(&self, address: &Address) -> Result<Command, ClientError> {
        let mut command = Command::new(self.find()?);
        command.arg("--home").arg(address.home());
        if let Some(socket) = address.socket() {
            command.arg("--socket").arg(socket);
        }
        if self.is_temporary {
            for (name, _) in variables() {
                if name.as_encoded_bytes().starts_with(b"OLLM_") {
                    command.env_remove(name);
                }
            }
        } else if let Some(config) = &self.environment.config {
            command.arg("--config").arg(config);
        }
        if let Some(host) = &self.model_server {
            command.env("OLLAMA_HOST", host);
        }
        Ok(command)
    }

    /// Returns the service that starts the daemon of an address, if one is installed.
    pub(super) fn service(&self, address: &Address) -> Option<InstalledService> {
        if self.is_temporary { None } else { InstalledService::find(address, &self.environment) }
    }

    /// Finds the program: `OLLM_DAEMON`, else beside this program, else in `PATH`.
    fn find(&self) -> Result<PathBuf, ClientError> {
        if let Some(explicit) = &self.environment.daemon {
            return Ok(explicit.clone());
        }
        let beside = own_program::beside("ollmd");
        let is_found = |path: &PathBuf| is_program(path);
        let found = beside.filter(is_found).or_else(|| self.environment.find_program("ollmd"));
        found.ok_or(ClientError::DaemonNotFound)
    }
}

/// The lock with which one client at a time starts the daemon of a home. Other clients wait for it, and connect to the daemon
/// that its holder started.
#[derive(Debug)]
pub(crate) struct StartLock {
    file: File,
    path: PathBuf,
}

impl StartLock {
    /// Opens the lock of a home; creates both.
    fn open(address: &Address) -> Result<Self, ClientError> {
        address.check_owner()?;
        create_private_dir(address.home())?;
        let path = start_lock_path(address.home());
        let file = open_private_file(&path).map_err(start_error("locking", &path))?;
        Ok(Self { file, path })
    }

    /// Waits for the lock of a home, so that no other client starts a daemon until this value is dropped.
    pub(super) fn hold(address: &Address) -> Result<Self, ClientError> {
        let deadline = Instant::now() + TOTAL_LIMIT;
        let lock = Self::open(address)?;
        while !lock.try_lock()? {
            if Instant::now() >= deadline {
                let source = io::ErrorKind::TimedOut.into();
                return Err(start_error("waiting for another start with", &lock.path)(source));
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        Ok(lock)
    }

    fn try_lock(&self) -> Result<bool, ClientError> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(source)) => Err(start_error("locking", &self.path)(source)),
        }
    }
}

fn start_lock_path(home: &Path) -> PathBuf {
    home.join("start.lock")
}

/// Returns whether a client starts or replaces the daemon of a home.
pub(super) fn is_starting(home: &Path) -> bool {
    regular_file::is_locked(&start_lock_path(home))
}

/// Starts the daemon of an address, unless another client or the service manager is faster, and connects. `held` is the lock
/// of starts, if the caller holds it.
pub(super) fn start(
    address: &Address,
    program: &DaemonProgram,
    held: Option<&StartLock>,
) -> Result<OpenConnection, ClientError> {
    let deadline = Instant::now() + TOTAL_LIMIT;
    if held.is_some() {
        let probed = probe(&address.canonical(), READY_LIMIT);
        return probed.or_else(|_| start_locked(address, program, deadline));
    }
    let lock = StartLock::open(address)?;
    loop {
        let is_locked = lock.try_lock()?;
        // The client that held the lock has probably started the daemon.
        if let Ok(connection) = probe(&address.canonical(), READY_LIMIT) {
            return Ok(connection);
        }
        if is_locked {
            return start_locked(address, program, deadline);
        }
        if Instant::now() >= deadline {
            let log = start_log(address.home());
            return Err(ClientError::StartTimeout { after: TOTAL_LIMIT, log });
        }
        std::thread::sleep(RETRY_PAUSE);
    }
}

fn start_locked(
    address: &Address,
    program: &DaemonProgram,
    deadline: Instant,
) -> Result<OpenConnection, ClientError> {
    let address = address.canonical();
    let service = program.service(&address);
    let notice = match service.map(|service| start_service(&address, &service)) {
        Some(Ok(connection)) => return Ok(connection),
        Some(Err(error)) => Some(format!("{error}; starting ollmd without it")),
        None => None,
    };
    let log = start_log(address.home());
    let attempt = StartAttempt { address, program, log, deadline };
    Ok(OpenConnection { notice, ..attempt.spawn_until_answered()? })
}

/// Returns the file with the stderr of daemons that clients start.
fn start_log(home: &Path) -> PathBuf {
    home.join("logs/ollmd.stderr")
}

/// Lets the service manager start the daemon, and connects.
fn start_service(
    address: &Address,
    service: &InstalledService,
) -> Result<OpenConnection, ServiceError> {
    let deadline = Instant::now() + SERVICE_LIMIT;
    service.start(SERVICE_LIMIT)?;
    loop {
        match probe(address, SERVICE_LIMIT) {
            Ok(connection) => return Ok(OpenConnection { started: true, ..connection }),
            Err(_) if Instant::now() >= deadline => {
                return Err(ServiceError::Unreachable { command: service.to_string() });
            }
            Err(_) => std::thread::sleep(RETRY_PAUSE),
        }
    }
}

/// An attempt to start the daemon without a service manager.
struct StartAttempt<'a> {
    address: Address,
    program: &'a DaemonProgram,
    /// The file with the daemon's stderr.
    log: PathBuf,
    deadline: Instant,
}

enum StartOutcome {
    Ready,
    /// Another daemon owns the home, or the directory of its sessions.
    LostRace(ClientError),
}

impl StartAttempt<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    fn timeout(&self, after: Duration) -> ClientError {
        ClientError::StartTimeout { after, log: self.log.clone() }
    }

    /// Starts the daemon and connects. Repeats that while another process holds the home and does not answer: a daemon
    /// that was just killed holds its lock until the system has cleaned it up.
    fn spawn_until_answered(&self) -> Result<OpenConnection, ClientError> {
        let give_up = Instant::now() + UNLOCK_LIMIT;
        loop {
            let started = match self.spawn()? {
                StartOutcome::Ready => true,
                StartOutcome::LostRace(error) => {
                    // The daemon of another home may use the same directory of sessions.
                    let is_free = !is_home_locked(self.address.home());
                    if is_free && Instant::now() >= give_up {
                        return Err(error);
                    }
                    match held_elsewhere(&self.address) {
                        Some(error) => return Err(error),
                        None => false,
                    }
                }
            };
            let next_start = Instant::now() + HOLDER_LIMIT;
            loop {
                match probe(&self.address, READY_LIMIT) {
                    Ok(connection) => return Ok(OpenConnection { started, ..connection }),
                    Err(error) if started => return Err(error),
                    Err(_) if self.is_over() => {
                        let held = held_unreachable(&self.address);
                        return Err(held.unwrap_or_else(|| self.timeout(TOTAL_LIMIT)));
                    }
                    Err(_) if Instant::now() >= next_start => break,
                    Err(_) => std::thread::sleep(RETRY_PAUSE),
                }
            }
        }
    }

    /// Starts the daemon in the background and waits until it is ready.
    fn spawn(&self) -> Result<StartOutcome, ClientError> {
        let (home, log) = (self.address.home(), &self.log);
        create_private_dir(&home.join("logs"))?;
        let mut stderr = open_private_file(log).map_err(start_error("opening", log))?;
        let log_start = stderr.seek(SeekFrom::End(0)).map_err(start_error("opening", log))?;
        let (mut reader, writer) = io::pipe().map_err(start_error("creating a pipe for", home))?;
        let mut command = self.program.command(&self.address)?;
        // The daemon leaves this terminal session by itself; it could not if it were made a group leader here.
        command.arg("--detach").arg("--ready-fd").arg(writer.as_raw_fd().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        // In another directory the daemon would keep its file system from being unmounted.
        command.current_dir("/");
        let path = PathBuf::from(command.get_program());
        rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty())
            .map_err(|error| start_error("preparing", &path)(error.into()))?;
        let mut child = command.spawn().map_err(start_error("running", &path))?;
        // The daemon should hold the only writing end, so that its death ends the pipe. A process that another thread
        // spawned in the same instant may hold one too, so the daemon's end is also checked for.
        drop(writer);
        let wait = READY_LIMIT.min(self.deadline.saturating_duration_since(Instant::now()));
        let mut has_failed = || matches!(child.try_wait(), Ok(Some(status)) if !status.success());
        let line = read_line(&mut reader, Instant::now() + wait, &mut has_failed)
            .map_err(start_error("reading from", &path))?;
        match line {
            None => {
                reap(child);
                Err(self.timeout(wait))
            }
            Some(line) if line.trim_ascii() == b"ok" => {
                reap(child);
                Ok(StartOutcome::Ready)
            }
            Some(line) => start_failure(child, &line, log, log_start),
        }
    }
}

/// Returns a function that makes the error of a failed operation.
fn start_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ClientError {
    move |source| ClientError::Start { action, path: path.to_owned(), source }
}

/// The line that a daemon writes to its pipe when it cannot start.
#[derive(Deserialize)]
struct StartFailureLine {
    #[serde(default)]
    kind: Option<String>,
    message: String,
    #[serde(default)]
    hint: Option<String>,
}

/// Returns the outcome of a daemon that did not get ready, from its line and its exit status.
fn start_failure(
    mut child: Child,
    line: &[u8],
    log: &Path,
    log_start: u64,
) -> Result<StartOutcome, ClientError> {
    let status = wait_until(&mut child, Instant::now() + EXIT_LIMIT).ok().flatten();
    let (kind, message, hint) = match serde_json::from_slice::<StartFailureLine>(line) {
        Ok(failure) => (failure.kind, failure.message, failure.hint),
        Err(_) => (None, unexplained_exit(status, log, log_start), None),
    };
    let kind = kind.as_deref().and_then(ErrorKind::from_name);
    let error = ClientError::StartFailed {
        kind,
        // Each mistake of a configuration is on a line.
        message: sanitize::one_line(&message.trim_end().replace('\n', "; ")),
        hint: hint.map(|hint| sanitize::one_line(&hint)),
        log: log.to_owned(),
    };
    let is_locked = status.and_then(|status| status.code()) == Some(EXIT_LOCKED)
        || kind == Some(ErrorKind::Locked);
    if is_locked { Ok(StartOutcome::LostRace(error)) } else { Err(error) }
}

/// Describes a daemon that ended without a line on its pipe, by its status and its last line of stderr.
fn unexplained_exit(status: Option<ExitStatus>, log: &Path, log_start: u64) -> String {
    let ended = status.map_or_else(
        || "it closed its pipe".to_owned(),
        |status| format!("it ended with {status}"),
    );
    let mut written = String::new();
    let read = regular_file::open(OpenOptions::new().read(true), log).and_then(|mut file| {
        file.seek(SeekFrom::Start(log_start))?;
        file.take(MAX_LINE_BYTES as u64).read_to_string(&mut written)
    });
    let last = written.lines().rfind(|line| !line.trim().is_empty());
    match (read, last) {
        (Ok(_), Some(line)) => format!("{ended}: {}", line.trim()),
        _ => ended,
    }
}

fn create_private_dir(path: &Path) -> Result<(), ClientError> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
    created.map_err(start_error("creating the directory", path))
}

fn open_private_file(path: &Path) -> io::Result<File> {
    regular_file::open(OpenOptions::new().create(true).append(true).read(true), path)
}

#[cfg(test)]
mod tests;
