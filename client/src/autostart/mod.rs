//! Starts the daemon when nobody listens, and waits until it can answer or says why not.
//!
//! Several clients may want this at once: a lock in the home lets one of them start it, and the daemon's own
//! lock decides in the end, so that losing the race only means to connect again. The user's service manager is
//! asked first where it has a unit of the daemon. Nothing here waits longer than [`TOTAL`].

mod service;

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, PipeReader, Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ollm_protocol::ErrorKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;

use crate::address::{Address, Environment};
use crate::connection::{Opened, held_elsewhere, held_unreachable, probe};
use crate::error::ClientError;

/// How long a started daemon may take to be ready. It takes milliseconds; a slow disk may take seconds.
const READY: Duration = Duration::from_secs(5);
/// How long all of it may take, waiting for another client's attempt included.
const TOTAL: Duration = Duration::from_secs(10);
/// How long the service manager may take; what is left of [`TOTAL`] is for starting the daemon without it.
const MANAGED: Duration = Duration::from_secs(4);
/// How often a lock held by another client, or a socket that is about to appear, is tried again.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the daemon that holds the home may take to answer before it is tried again to start one.
const AGAIN: Duration = Duration::from_millis(100);
/// What the daemon ends with when another one owns the home.
const EXIT_LOCKED: i32 = 75;
/// The most bytes of a daemon's last words; it writes one line.
const MAX_READY_BYTES: usize = 64 << 10;

/// The daemon's program and what it must be told besides the address.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    explicit: Option<PathBuf>,
    search_path: Option<OsString>,
    config: Option<PathBuf>,
    /// Variables of this process that the daemon is not to see.
    hidden: Vec<OsString>,
    /// The model server, where the daemon's settings are not to say.
    model_server: Option<String>,
    /// Where a service manager may have it; `None` where none is to be asked.
    managed: Option<service::Places>,
}

impl Program {
    pub(crate) fn new(environment: &Environment) -> Self {
        // The daemon is started in another directory, where a relative path would mean another file.
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Self {
            explicit: environment.daemon.as_ref().map(absolute),
            search_path: environment.search_path.clone(),
            config: environment.config.as_ref().map(absolute),
            hidden: Vec::new(),
            model_server: None,
            managed: service::Places::new(environment),
        }
    }

    /// A daemon whose settings are the defaults, whatever this user has set, but for the model server: for a scratch
    /// home.
    pub(crate) fn with_default_settings(mut self, model_server: Option<String>) -> Self {
        self.model_server = model_server;
        let names = std::env::vars_os().map(|(name, _)| name);
        self.hidden = names.filter(|name| name.as_encoded_bytes().starts_with(b"OLLM_")).collect();
        self.config = None;
        self.managed = None;
        self
    }

    /// Finds the program: `OLLM_DAEMON`, else beside this program, else in `PATH`.
    pub(crate) fn find(&self) -> Result<PathBuf, ClientError> {
        if let Some(explicit) = &self.explicit {
            return Ok(explicit.clone());
        }
        let beside = std::env::current_exe().ok().map(|own| own.with_file_name("ollmd"));
        let in_path = self
            .search_path
            .iter()
            .flat_map(std::env::split_paths)
            .map(|directory| directory.join("ollmd"));
        beside
            .into_iter()
            .chain(in_path)
            .find(|path| is_program(path))
            .ok_or(ClientError::DaemonNotFound)
    }

    /// The command that runs the daemon of an address.
    pub(crate) fn command(&self, address: &Address) -> Result<Command, ClientError> {
        let mut command = Command::new(self.find()?);
        command.arg("--home").arg(address.home());
        if let Some(socket) = address.socket() {
            command.arg("--socket").arg(socket);
        }
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        for name in &self.hidden {
            command.env_remove(name);
        }
        if let Some(host) = &self.model_server {
            command.env("OLLAMA_HOST", host);
        }
        Ok(command)
    }
}

/// Starts the daemon of an address, unless somebody else is faster, and connects.
pub(crate) fn start(address: &Address, program: &Program) -> Result<Opened, ClientError> {
    let deadline = Instant::now() + TOTAL;
    let home = address.home();
    create_private_dir(home)?;
    let address = address.canonical();
    let log = address.home().join("logs/ollmd.stderr");
    let lock_path = address.home().join("start.lock");
    let lock_failed =
        |source| ClientError::Start { action: "locking", path: lock_path.clone(), source };
    let lock = private_file(&lock_path).map_err(lock_failed)?;
    loop {
        let locked = match lock.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock) => false,
            Err(TryLockError::Error(source)) => return Err(lock_failed(source)),
        };
        // Whoever held the lock before has probably started it.
        if let Ok(opened) = probe(&address) {
            return Ok(opened);
        }
        if locked {
            break;
        }
        if Instant::now() >= deadline {
            return Err(ClientError::StartTimeout { after: TOTAL, log });
        }
        std::thread::sleep(PAUSE);
    }
    let service = program.managed.as_ref().and_then(|places| places.service(&address));
    let notice = match service.map(|service| by_service(&address, &service)) {
        Some(Ok(opened)) => return Ok(opened),
        Some(Err(error)) => Some(format!("{error}; ollmd is started without it")),
        None => None,
    };
    let opened = run_until_answered(&address, program, deadline, log)?;
    Ok(Opened { notice, ..opened })
}

/// Lets the service manager start it, and waits until somebody answers.
fn by_service(
    address: &Address,
    service: &service::Service,
) -> Result<Opened, service::ServiceError> {
    let deadline = Instant::now() + MANAGED;
    service.start(MANAGED)?;
    loop {
        match probe(address) {
            Ok(opened) => return Ok(Opened { started: true, ..opened }),
            Err(_) if Instant::now() >= deadline => return Err(service.silent()),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Runs the daemon, and again as long as another process holds the home and nobody answers: a daemon that was
/// just killed holds its lock until the system has cleared it away.
fn run_until_answered(
    address: &Address,
    program: &Program,
    deadline: Instant,
    log: PathBuf,
) -> Result<Opened, ClientError> {
    loop {
        let started = match run(address, program, &log, deadline)? {
            Outcome::Ready => true,
            Outcome::LostRace => match held_elsewhere(address) {
                Some(error) => return Err(error),
                None => false,
            },
        };
        let give_up = Instant::now() + AGAIN;
        loop {
            match probe(address) {
                Ok(opened) => return Ok(Opened { started, ..opened }),
                Err(attempts) if started => return Err(ClientError::Unreachable { attempts }),
                Err(_) if Instant::now() >= deadline => {
                    let silent = ClientError::StartTimeout { after: TOTAL, log };
                    return Err(held_unreachable(address).unwrap_or(silent));
                }
                Err(_) if Instant::now() >= give_up => break,
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}

enum Outcome {
    Ready,
    LostRace,
}

fn run(
    address: &Address,
    program: &Program,
    log: &Path,
    deadline: Instant,
) -> Result<Outcome, ClientError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ClientError::Start { action, path, source }
    };
    create_private_dir(&address.home().join("logs"))?;
    let mut stderr = private_file(log).map_err(failed("opening", log))?;
    let log_start = stderr.seek(SeekFrom::End(0)).map_err(failed("opening", log))?;
    let (mut reader, writer) = io::pipe().map_err(failed("making a pipe for", address.home()))?;
    let mut command = program.command(address)?;
    // It leaves this session by itself, which it could not if it were made the leader of a group here.
    command.arg("--detach").arg("--ready-fd").arg(writer.as_raw_fd().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    // A daemon must not keep a directory busy that somebody wants to unmount or remove.
    command.current_dir("/");
    let path = PathBuf::from(command.get_program());
    rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty())
        .map_err(|error| failed("preparing", &path)(error.into()))?;
    let mut child = command.spawn().map_err(failed("running", &path))?;
    // The daemon should hold the only writing end, so that its death ends the pipe at once; who was started in the
    // same instant by another thread may hold one too, so its end is looked for besides.
    drop(writer);
    let wait = READY.min(deadline.saturating_duration_since(Instant::now()));
    let mut has_failed = || matches!(child.try_wait(), Ok(Some(status)) if !status.success());
    let said = last_words(&mut reader, Instant::now() + wait, &mut has_failed)
        .map_err(failed("hearing", &path))?;
    match said {
        None => {
            reap(child);
            Err(ClientError::StartTimeout { after: wait, log: log.to_owned() })
        }
        Some(line) if line.trim_ascii() == b"ok" => {
            reap(child);
            Ok(Outcome::Ready)
        }
        Some(line) => why(child, &line, log, log_start),
    }
}

/// How often it is looked whether a daemon that says nothing has ended.
const LOOK: Duration = Duration::from_millis(50);

/// What the daemon says on the pipe up to the first line end or its death; `None` when it says nothing in time.
fn last_words(
    reader: &mut PipeReader,
    deadline: Instant,
    has_failed: &mut dyn FnMut() -> bool,
) -> io::Result<Option<Vec<u8>>> {
    let mut said = Vec::new();
    let mut chunk = [0_u8; 4096];
    while !said.contains(&b'\n') && said.len() < MAX_READY_BYTES {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left.min(LOOK)).map_err(io::Error::other)?;
        let mut watched = [PollFd::new(&*reader, PollFlags::IN)];
        match poll(&mut watched, Some(&timeout)) {
            Ok(0) if has_failed() => break,
            Ok(0) if left <= LOOK => return Ok(None),
            Ok(0) => continue,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        match reader.read(&mut chunk)? {
            0 => break,
            read => said.extend_from_slice(&chunk[..read]),
        }
    }
    Ok(Some(said))
}

#[derive(Deserialize)]
struct LastWords {
    #[serde(default)]
    kind: Option<String>,
    message: String,
    #[serde(default)]
    hint: Option<String>,
}

/// Turns what a daemon that did not get ready said, and how it ended, into an outcome.
fn why(mut child: Child, line: &[u8], log: &Path, log_start: u64) -> Result<Outcome, ClientError> {
    // It closed its pipe or explained itself; it is on its way out.
    let status = wait_briefly(&mut child);
    if status.and_then(|status| status.code()) == Some(EXIT_LOCKED) {
        return Ok(Outcome::LostRace);
    }
    let (kind, message, hint) = match serde_json::from_slice::<LastWords>(line) {
        Ok(words) => (words.kind, words.message, words.hint),
        Err(_) => (None, silent_end(status, log, log_start), None),
    };
    let kind = kind.as_deref().and_then(ErrorKind::from_name);
    if kind == Some(ErrorKind::Locked) {
        return Ok(Outcome::LostRace);
    }
    let clean = |text: String| ollm_protocol::sanitize::one_line(&text);
    Err(ClientError::StartFailed {
        kind,
        message: clean(message),
        hint: hint.map(clean),
        log: log.to_owned(),
    })
}

/// The best that can be said of a daemon that died without a word on the pipe.
fn silent_end(status: Option<ExitStatus>, log: &Path, log_start: u64) -> String {
    let ended =
        status.map_or_else(|| "it hung up".to_owned(), |status| format!("it ended with {status}"));
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

fn wait_briefly(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            _ => return None,
        }
    }
}

/// Lets a thread collect the daemon's end, so that a program which outlives it keeps no zombie.
fn reap(mut child: Child) {
    let waiting = std::thread::Builder::new().name("ollmd-reaper".to_owned());
    // Without the thread the system collects it when this process ends.
    drop(waiting.spawn(move || child.wait()));
}

fn create_private_dir(path: &Path) -> Result<(), ClientError> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| {
        ClientError::Start { action: "making the directory", path: path.to_owned(), source }
    })
}

fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(path)
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests;
