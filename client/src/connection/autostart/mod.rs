//! Starts the daemon when no process listens, and waits until it is ready or reports why it is not.
//!
//! Several clients may do so at once: a lock in the home lets one of them start the daemon, and the daemon's own lock
//! decides in the end, so a client that loses the race connects to the other's daemon. If a service manager has a unit
//! of the daemon, it is asked first. Nothing here waits longer than [`TOTAL_LIMIT`].

mod service;

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, PipeReader, Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ollm_protocol::{ErrorKind, sanitize};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;

use super::probe::{OpenConnection, held_elsewhere, held_unreachable, probe};
use crate::address::{Address, Environment};
use crate::error::ClientError;
use service::{InstalledService, ServiceError, ServiceLocations};

/// The longest wait for a started daemon to be ready. It takes milliseconds, on a slow disk seconds.
const READY_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait for everything, another client's attempt included.
const TOTAL_LIMIT: Duration = Duration::from_secs(10);
/// The longest wait for the service manager; the rest of [`TOTAL_LIMIT`] is for starting the daemon without it.
const SERVICE_LIMIT: Duration = Duration::from_secs(4);
/// The pause between two looks at a lock that another client holds, or at a socket that is about to appear.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// The longest wait for the daemon that holds the home to answer, before another start is tried.
const HOLDER_LIMIT: Duration = Duration::from_millis(100);
/// The longest wait for a daemon that failed to end.
const EXIT_LIMIT: Duration = Duration::from_secs(1);
/// The pause between two looks whether a daemon that writes nothing has ended.
const EXIT_CHECK_PAUSE: Duration = Duration::from_millis(50);
/// The exit code of a daemon whose home another daemon owns.
const EXIT_LOCKED: i32 = 75;
/// The most bytes read from a starting daemon's pipe; it writes one line.
const MAX_READY_BYTES: usize = 64 << 10;

/// The daemon's program and its settings apart from the address.
#[derive(Clone, Debug)]
pub(super) struct DaemonProgram {
    explicit: Option<PathBuf>,
    search_path: Option<OsString>,
    config: Option<PathBuf>,
    /// Variables of this process that the daemon does not inherit.
    removed_variables: Vec<OsString>,
    /// The model server, if it is not the one of the daemon's settings.
    model_server: Option<String>,
    /// The locations of service definitions; `None` if no service manager is asked.
    services: Option<ServiceLocations>,
}

impl DaemonProgram {
    pub(super) fn new(environment: &Environment) -> Self {
        // The daemon starts in another directory, in which a relative path would name another file.
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Self {
            explicit: environment.daemon.as_ref().map(absolute),
            search_path: environment.search_path.clone(),
            config: environment.config.as_ref().map(absolute),
            removed_variables: Vec::new(),
            model_server: None,
            services: ServiceLocations::new(environment),
        }
    }

    /// Ignores the user's settings, apart from the given model server: for a temporary home.
    pub(super) fn with_default_settings(mut self, model_server: Option<String>) -> Self {
        self.model_server = model_server;
        let names = std::env::vars_os().map(|(name, _)| name);
        self.removed_variables =
            names.filter(|name| name.as_encoded_bytes().starts_with(b"OLLM_")).collect();
        self.config = None;
        self.services = None;
        self
    }

    /// Returns the command that runs the daemon of an address.
    pub(super) fn command(&self, address: &Address) -> Result<Command, ClientError> {
        let mut command = Command::new(self.find()?);
        command.arg("--home").arg(address.home());
        if let Some(socket) = address.socket() {
            command.arg("--socket").arg(socket);
        }
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        for name in &self.removed_variables {
            command.env_remove(name);
        }
        if let Some(host) = &self.model_server {
            command.env("OLLAMA_HOST", host);
        }
        Ok(command)
    }

    /// Finds the program: `OLLM_DAEMON`, else beside this program, else in `PATH`.
    fn find(&self) -> Result<PathBuf, ClientError> {
        if let Some(explicit) = &self.explicit {
            return Ok(explicit.clone());
        }
        let beside = std::env::current_exe().ok().map(|own| own.with_file_name("ollmd"));
        let directories = self.search_path.iter().flat_map(std::env::split_paths);
        let in_path = directories.map(|directory| directory.join("ollmd"));
        let mut candidates = beside.into_iter().chain(in_path);
        candidates.find(|path| is_program(path)).ok_or(ClientError::DaemonNotFound)
    }
}

/// Starts the daemon of an address, unless another client is faster, and connects.
pub(super) fn start(
    address: &Address,
    program: &DaemonProgram,
) -> Result<OpenConnection, ClientError> {
    let deadline = Instant::now() + TOTAL_LIMIT;
    create_private_dir(address.home())?;
    let address = address.canonical();
    let log = address.home().join("logs/ollmd.stderr");
    let lock_path = address.home().join("start.lock");
    let lock_failed =
        |source| ClientError::Start { action: "locking", path: lock_path.clone(), source };
    let lock = open_private_file(&lock_path).map_err(lock_failed)?;
    loop {
        let locked = match lock.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(source)) => return Err(lock_failed(source)),
        };
        // The client that held the lock has probably started the daemon.
        if let Ok(connection) = probe(&address) {
            return Ok(connection);
        }
        if locked {
            break;
        }
        if Instant::now() >= deadline {
            return Err(ClientError::StartTimeout { after: TOTAL_LIMIT, log });
        }
        std::thread::sleep(RETRY_PAUSE);
    }
    let service = program.services.as_ref().and_then(|locations| locations.find(&address));
    let notice = match service.map(|service| start_service(&address, &service)) {
        Some(Ok(connection)) => return Ok(connection),
        Some(Err(error)) => Some(format!("{error}; starting ollmd without it")),
        None => None,
    };
    let connection = spawn_until_answered(&address, program, deadline, log)?;
    Ok(OpenConnection { notice, ..connection })
}

/// Lets the service manager start the daemon, and connects.
fn start_service(
    address: &Address,
    service: &InstalledService,
) -> Result<OpenConnection, ServiceError> {
    let deadline = Instant::now() + SERVICE_LIMIT;
    service.start(SERVICE_LIMIT)?;
    loop {
        match probe(address) {
            Ok(connection) => return Ok(OpenConnection { started: true, ..connection }),
            Err(_) if Instant::now() >= deadline => {
                return Err(ServiceError::Unreachable { command: service.to_string() });
            }
            Err(_) => std::thread::sleep(RETRY_PAUSE),
        }
    }
}

/// Starts the daemon and connects. Repeats that while another process holds the home and does not answer: a daemon
/// that was just killed holds its lock until the system has cleaned it up.
fn spawn_until_answered(
    address: &Address,
    program: &DaemonProgram,
    deadline: Instant,
    log: PathBuf,
) -> Result<OpenConnection, ClientError> {
    loop {
        let started = match spawn(address, program, &log, deadline)? {
            StartOutcome::Ready => true,
            StartOutcome::LostRace => match held_elsewhere(address) {
                Some(error) => return Err(error),
                None => false,
            },
        };
        let next_start = Instant::now() + HOLDER_LIMIT;
        loop {
            match probe(address) {
                Ok(connection) => return Ok(OpenConnection { started, ..connection }),
                Err(attempts) if started => return Err(ClientError::Unreachable { attempts }),
                Err(_) if Instant::now() >= deadline => {
                    let timeout = ClientError::StartTimeout { after: TOTAL_LIMIT, log };
                    return Err(held_unreachable(address).unwrap_or(timeout));
                }
                Err(_) if Instant::now() >= next_start => break,
                Err(_) => std::thread::sleep(RETRY_PAUSE),
            }
        }
    }
}

enum StartOutcome {
    Ready,
    /// Another daemon owns the home.
    LostRace,
}

/// Starts the daemon in the background and waits until it is ready.
fn spawn(
    address: &Address,
    program: &DaemonProgram,
    log: &Path,
    deadline: Instant,
) -> Result<StartOutcome, ClientError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ClientError::Start { action, path, source }
    };
    create_private_dir(&address.home().join("logs"))?;
    let mut stderr = open_private_file(log).map_err(failed("opening", log))?;
    let log_start = stderr.seek(SeekFrom::End(0)).map_err(failed("opening", log))?;
    let (mut reader, writer) = io::pipe().map_err(failed("creating a pipe for", address.home()))?;
    let mut command = program.command(address)?;
    // The daemon leaves this terminal session by itself; it could not if it were made a group leader here.
    command.arg("--detach").arg("--ready-fd").arg(writer.as_raw_fd().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    // A daemon must not keep a file system busy that somebody wants to unmount.
    command.current_dir("/");
    let path = PathBuf::from(command.get_program());
    rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty())
        .map_err(|error| failed("preparing", &path)(error.into()))?;
    let mut child = command.spawn().map_err(failed("running", &path))?;
    // The daemon should hold the only writing end, so that its death ends the pipe. A process that another thread
    // spawned in the same instant may hold one too, so the daemon's end is also checked for.
    drop(writer);
    let wait = READY_LIMIT.min(deadline.saturating_duration_since(Instant::now()));
    let mut has_failed = || matches!(child.try_wait(), Ok(Some(status)) if !status.success());
    let line = read_line(&mut reader, Instant::now() + wait, &mut has_failed)
        .map_err(failed("reading from", &path))?;
    match line {
        None => {
            reap(child);
            Err(ClientError::StartTimeout { after: wait, log: log.to_owned() })
        }
        Some(line) if line.trim_ascii() == b"ok" => {
            reap(child);
            Ok(StartOutcome::Ready)
        }
        Some(line) => start_failure(child, &line, log, log_start),
    }
}

/// Reads from a pipe up to the first line break, the end of the pipe, or the failure of the writer; `None` at the
/// deadline.
fn read_line(
    reader: &mut PipeReader,
    deadline: Instant,
    has_failed: &mut dyn FnMut() -> bool,
) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let mut chunk = [0_u8; 4096];
    while !line.contains(&b'\n') && line.len() < MAX_READY_BYTES {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left.min(EXIT_CHECK_PAUSE)).map_err(io::Error::other)?;
        let mut watched = [PollFd::new(&*reader, PollFlags::IN)];
        match poll(&mut watched, Some(&timeout)) {
            Ok(0) if has_failed() => break,
            Ok(0) if left <= EXIT_CHECK_PAUSE => return Ok(None),
            Ok(0) => continue,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match reader.read(&mut chunk)? {
            0 => break,
            read => line.extend_from_slice(&chunk[..read]),
        }
    }
    Ok(Some(line))
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
    if status.and_then(|status| status.code()) == Some(EXIT_LOCKED) {
        return Ok(StartOutcome::LostRace);
    }
    let (kind, message, hint) = match serde_json::from_slice::<StartFailureLine>(line) {
        Ok(failure) => (failure.kind, failure.message, failure.hint),
        Err(_) => (None, unexplained_exit(status, log, log_start), None),
    };
    let kind = kind.as_deref().and_then(ErrorKind::from_name);
    if kind == Some(ErrorKind::Locked) {
        return Ok(StartOutcome::LostRace);
    }
    Err(ClientError::StartFailed {
        kind,
        message: sanitize::one_line(&message),
        hint: hint.map(|hint| sanitize::one_line(&hint)),
        log: log.to_owned(),
    })
}

/// Describes a daemon that ended without a line on its pipe, by its status and its last line of stderr.
fn unexplained_exit(status: Option<ExitStatus>, log: &Path, log_start: u64) -> String {
    let ended = status.map_or_else(
        || "it closed its pipe".to_owned(),
        |status| format!("it ended with {status}"),
    );
    let mut written = String::new();
    let read = File::open(log).and_then(|mut file| {
        file.seek(SeekFrom::Start(log_start))?;
        file.take(MAX_READY_BYTES as u64).read_to_string(&mut written)
    });
    let last = written.lines().rfind(|line| !line.trim().is_empty());
    match (read, last) {
        (Ok(_), Some(line)) => format!("{ended}: {}", line.trim()),
        _ => ended,
    }
}

/// Waits for the end of a process; `None` at the deadline.
fn wait_until(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= deadline {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Collects the daemon's exit status in a thread, so that a program that outlives the daemon keeps no zombie.
fn reap(mut child: Child) {
    let thread = std::thread::Builder::new().name("ollmd-reaper".to_owned());
    // Without the thread the system collects the status when this process ends.
    drop(thread.spawn(move || child.wait()));
}

fn create_private_dir(path: &Path) -> Result<(), ClientError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| {
        ClientError::Start { action: "creating the directory", path: path.to_owned(), source }
    })
}

fn open_private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(path)
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests;
