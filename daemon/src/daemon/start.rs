//! Starting: from flags to a configuration and a log, and the report of a failed start.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ollm_protocol::ErrorKind;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

use crate::catalog::CatalogError;
use crate::config::{self, Config, ConfigError, FlagOverrides};
use crate::env::EnvironmentRules;
use crate::error_chain::with_sources;
use crate::flags::Flags;
use crate::fsutil::{self, FsError};
use crate::rpc::error::RpcError;
use crate::server::listener::ListenError;
use crate::server::lock::LockError;

/// The beginning of the names of the log's files; the date follows.
pub(super) const LOG_FILE: &str = "ollmd.log";
/// The most log lines that wait for the disk; further ones are dropped. The queue is allocated at once, and the
/// library's default of 128,000 lines costs 4 MB.
const MAX_WAITING_LOG_LINES: usize = 2048;
/// The threads of a daemon besides those of the runtime: the log, the catalog, the signals, the watch of the
/// configuration, and one for work that blocks.
const OTHER_THREADS: usize = 5;
/// `EX_TEMPFAIL`: another daemon owns the home.
const EXIT_LOCKED: u8 = 75;
/// `EX_CONFIG`: the configuration is invalid.
const EXIT_CONFIG: u8 = 78;

/// A home that this process must not use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HomeError {
    /// Neither a flag nor the environment names the home.
    #[error("no home: give --home DIR or set HOME")]
    Unknown,
    /// JSON, and so the protocol, cannot carry such a path.
    #[error("the path {} is not valid UTF-8", path.display())]
    NotUtf8 { path: PathBuf },
    /// Files that this process creates would lock the owner out, or it could not use those of the owner.
    #[error("{} belongs to user {owner}, and this process runs as user {user}", path.display())]
    Foreign {
        path: PathBuf,
        owner: u32,
        user: u32,
        /// The directory to give to this user.
        dir: PathBuf,
    },
}

impl HomeError {
    /// Returns the command that mends the cause.
    pub(super) fn hint(&self) -> String {
        match self {
            Self::Unknown | Self::NotUtf8 { .. } => "export OLLM_HOME=DIRECTORY".to_owned(),
            Self::Foreign { owner, user: 0, .. } => {
                format!("sudo -u '#{owner}' ollmd  # or give --home")
            }
            Self::Foreign { user, dir, .. } => format!("sudo chown -R {user} {}", dir.display()),
        }
    }
}

/// The daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The home must not be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// Another daemon owns the home.
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    File(#[from] FsError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot write the log in {}", dir.display())]
    Log {
        dir: PathBuf,
        #[source]
        source: tracing_appender::rolling::InitError,
    },
    #[error("--log-level must be error, warn, info, debug or trace, not {level:?}")]
    LogLevel { level: String },
    /// The system refused threads.
    #[error("cannot start threads")]
    Threads(#[source] std::io::Error),
    /// The catalog can neither be used nor replaced.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Listen(#[from] ListenError),
}

impl StartError {
    pub(super) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Lock(LockError::Held { .. }) => ExitCode::from(EXIT_LOCKED),
            Self::Config(_) | Self::LogLevel { .. } => ExitCode::from(EXIT_CONFIG),
            _ => ExitCode::FAILURE,
        }
    }

    /// Returns the error for the client that started the daemon.
    pub(super) fn to_rpc(&self) -> RpcError {
        let message = with_sources(self);
        match self {
            Self::Lock(LockError::Held { .. }) => {
                RpcError::new(ErrorKind::Locked, message).with_hint("ollmctl daemon status")
            }
            Self::Config(_) | Self::LogLevel { .. } => {
                RpcError::new(ErrorKind::Config, message).with_hint("ollmctl config check")
            }
            Self::Threads(_) => RpcError::new(ErrorKind::Storage, message)
                .with_hint("ulimit -u  # the limit of processes and threads"),
            Self::Home(error) => RpcError::new(ErrorKind::Storage, message).with_hint(error.hint()),
            _ => RpcError::new(ErrorKind::Storage, message),
        }
    }
}

/// Prints a failed start to standard error.
#[expect(clippy::print_stderr, reason = "there may be no log yet")]
pub(super) fn print_error(error: &StartError) {
    let error = error.to_rpc();
    eprintln!("ollmd: {}", error.message);
    if let Some(hint) = error.hint {
        eprintln!("try: {hint}");
    }
}

/// The sources of the configuration, which is read at the start and at every reload.
pub(super) struct ConfigSource {
    home: PathBuf,
    explicit: Option<PathBuf>,
    overrides: FlagOverrides,
}

impl ConfigSource {
    pub(super) fn new(flags: &Flags, home: &Path) -> Self {
        let overrides = flags.log_level.iter().map(|level| ("log.level".to_owned(), level.clone()));
        let overrides = FlagOverrides(overrides.collect());
        let explicit = flags
            .config
            .as_ref()
            .map(|file| std::path::absolute(file).unwrap_or_else(|_| file.clone()));
        Self { home: home.to_owned(), explicit, overrides }
    }

    /// Returns the path of the configuration file.
    pub(super) fn file(&self) -> PathBuf {
        self.explicit.clone().unwrap_or_else(|| self.home.join(config::FILE_NAME))
    }

    /// Reads the configuration; also returns its warnings.
    pub(super) fn load(&self) -> Result<(Config, Vec<String>), ConfigError> {
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let explicit = self.explicit.as_deref();
        let (config, warnings) = Config::load(&self.home, explicit, environment, &self.overrides)?;
        let mut warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        warnings.extend_from_slice(EnvironmentRules::new(&config.environment).warnings());
        Ok((config, warnings))
    }
}

/// Checks that the system allows the threads of a start: libraries panic if it does not.
pub(super) fn require_threads(workers: usize) -> std::io::Result<()> {
    let gate = parking_lot::Mutex::new(());
    std::thread::scope(|scope| {
        // All of them must exist at once.
        let closed = gate.lock();
        let mut threads = 0..workers + OTHER_THREADS;
        let started = threads.try_for_each(|_| {
            let thread = std::thread::Builder::new();
            thread.spawn_scoped(scope, || drop(gate.lock())).map(drop)
        });
        drop(closed);
        started
    })
}

/// Logs the warnings of a configuration.
pub(super) fn log_warnings(warnings: &[String]) {
    for warning in warnings {
        tracing::warn!("configuration: {warning}");
    }
}

/// Returns the directory of the daemon's own log.
pub(super) fn log_dir(home: &Path) -> PathBuf {
    home.join("logs")
}

/// Starts logging to daily files in the home, and to standard error unless the daemon is detached.
pub(super) fn start_logging(
    home: &Path,
    config: &Config,
    detached: bool,
) -> Result<WorkerGuard, StartError> {
    let level: LevelFilter = config
        .log
        .level
        .parse()
        .map_err(|_| StartError::LogLevel { level: config.log.level.clone() })?;
    let dir = log_dir(home);
    fsutil::create_private_dir(&dir)?;
    check_log_files(&dir)?;
    let file = RollingFileAppender::builder()
        .rotation(Rotation::DAILY)
        .filename_prefix(LOG_FILE)
        .max_log_files(config.log.keep_days.max(1) as usize)
        .build(&dir)
        .map_err(|source| StartError::Log { dir, source })?;
    let (file, guard) =
        NonBlockingBuilder::default().buffered_lines_limit(MAX_WAITING_LOG_LINES).finish(file);
    let to_file = fmt::layer().with_ansi(false).with_writer(file);
    let to_terminal =
        (!detached).then(|| fmt::layer().with_ansi(false).with_writer(std::io::stderr));
    // Fails only in a test that starts two daemons in one process; the first subscriber stays.
    drop(tracing_subscriber::registry().with(level).with(to_file).with(to_terminal).try_init());
    Ok(guard)
}

/// Refuses links and pipes in place of log files, which the library would follow or wait for.
fn check_log_files(dir: &Path) -> Result<(), FsError> {
    let fail = |source| FsError::new("list", dir, source);
    for file in std::fs::read_dir(dir).map_err(fail)? {
        fsutil::check_regular(&file.map_err(fail)?.path())?;
    }
    Ok(())
}

/// Prints the manual page, for `--man-page`.
pub(super) fn print_man_page() -> ExitCode {
    match std::io::stdout().write_all(&Flags::man_page()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Prints every key of the configuration, for `--list-config`.
#[expect(clippy::print_stdout, reason = "the flag asks for it")]
pub(super) fn list_config(json: bool) -> ExitCode {
    if json {
        println!("{}", Config::keys_as_json());
    } else {
        print!("{}", Config::keys_as_text());
    }
    ExitCode::SUCCESS
}

/// Prints the configuration of a home or the result of its check, for `--check-config` and `--show-config`.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "the flags ask for it")]
pub(super) fn report_config(flags: &Flags, home: Result<PathBuf, StartError>) -> ExitCode {
    let loaded = home.and_then(|home| Ok(ConfigSource::new(flags, &home).load()?));
    let (config, warnings) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            let text = with_sources(&error);
            if flags.json {
                println!("{}", serde_json::json!({ "ok": false, "error": text }));
            } else {
                text.lines().for_each(|line| eprintln!("error: {line}"));
            }
            return error.exit_code();
        }
    };
    for warning in &warnings {
        eprintln!("warning: {warning}");
    }
    match (flags.show_config, flags.json) {
        (true, true) => println!("{}", config.to_json()),
        (true, false) => print!("{}", config.to_yaml()),
        (false, true) => println!("{}", serde_json::json!({ "ok": true, "warnings": warnings })),
        (false, false) if warnings.is_empty() => println!("the configuration is valid"),
        (false, false) => {
            println!("the configuration is valid; settings with a warning have no effect")
        }
    }
    ExitCode::SUCCESS
}
