//! From flags to a locked home, a configuration and a log; and how a start that fails says so.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ollm_protocol::ErrorKind;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

use crate::catalog::CatalogError;
use crate::causes::with_causes;
use crate::config::{self, Config, ConfigError, FlagOverrides};
use crate::env::EnvironmentRules;
use crate::flags::Flags;
use crate::fsutil::{self, FsError};
use crate::rpc::error::RpcError;
use crate::server::listener::ListenError;
use crate::server::lock::{InstanceLock, LockError};

/// The home when nothing else is said, below the user's own directory.
const DEFAULT_HOME: &str = ".ollm";
/// Lines of the log that may wait for the disk; what exceeds them is dropped rather than waited for. The queue is
/// allocated at once: the library's own default of 128,000 lines costs 4 MB.
const LOG_LINES_WAITING: usize = 2048;
/// `EX_TEMPFAIL`: another daemon owns the home.
const EXIT_LOCKED: u8 = 75;
/// `EX_CONFIG`: the configuration is wrong.
const EXIT_CONFIG: u8 = 78;

/// The daemon does not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    /// Neither a flag nor the environment says where the home is.
    #[error("no home: give --home DIR or set HOME")]
    NoHome,
    /// Another daemon owns it.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A file or directory cannot be used.
    #[error(transparent)]
    File(#[from] FsError),
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log cannot be written.
    #[error("cannot write the log in {}", dir.display())]
    Log {
        /// The directory.
        dir: PathBuf,
        /// Why not.
        #[source]
        source: tracing_appender::rolling::InitError,
    },
    /// The level is not one.
    #[error("--log-level must be error, warn, info, debug or trace, not {level:?}")]
    LogLevel {
        /// As it was given.
        level: String,
    },
    /// The system gave no threads.
    #[error("cannot start the runtime")]
    Runtime(#[source] std::io::Error),
    /// The catalog can neither be used nor replaced.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// There is no place to listen in.
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

    /// The error as the client that started us shows it.
    pub(super) fn to_rpc(&self) -> RpcError {
        let message = with_causes(self);
        match self {
            Self::Lock(LockError::Held { .. }) => {
                RpcError::new(ErrorKind::Locked, message).with_hint("ollmctl daemon status")
            }
            Self::Config(_) | Self::LogLevel { .. } => {
                RpcError::new(ErrorKind::Config, message).with_hint("ollmctl config check")
            }
            _ => RpcError::new(ErrorKind::Storage, message),
        }
    }
}

/// Says on standard error why the daemon does not start.
#[expect(clippy::print_stderr, reason = "there may be no log yet")]
pub(super) fn complain(error: &StartError) {
    let error = error.to_rpc();
    eprintln!("ollmd: {}", error.message);
    if let Some(hint) = error.hint {
        eprintln!("try: {hint}");
    }
}

/// The directories of this daemon, locked.
pub(super) struct Home {
    /// The home, canonical.
    pub(super) dir: PathBuf,
    /// The logs of sessions, which may lie elsewhere.
    pub(super) sessions_dir: PathBuf,
    /// Held for life; the first one is the home's.
    pub(super) locks: Vec<InstanceLock>,
}

impl Home {
    /// Makes the home where it is missing and locks it; nothing in it was read before.
    pub(super) fn prepare(flags: &Flags) -> Result<Self, StartError> {
        let dir = home_dir(flags)?;
        fsutil::create_private_dir(&dir)?;
        let dir = dir.canonicalize().map_err(|source| FsError::new("find", &dir, source))?;
        let mut locks = vec![InstanceLock::acquire(&dir)?];
        let (config, _) = ConfigSource::new(flags, &dir).load()?;
        let sessions_dir = config.sessions.data_dir;
        fsutil::create_private_dir(&sessions_dir)?;
        let sessions_dir = sessions_dir
            .canonicalize()
            .map_err(|source| FsError::new("find", &sessions_dir, source))?;
        // Another home may name this very directory as its `dataDir`.
        if sessions_dir != dir {
            locks.push(InstanceLock::acquire(&sessions_dir)?);
        }
        Ok(Self { dir, sessions_dir, locks })
    }
}

fn home_dir(flags: &Flags) -> Result<PathBuf, StartError> {
    if let Some(home) = &flags.home {
        return std::path::absolute(home)
            .map_err(|source| FsError::new("find", home, source).into());
    }
    std::env::home_dir().map(|dir| dir.join(DEFAULT_HOME)).ok_or(StartError::NoHome)
}

/// Where the configuration comes from, to be read now and again.
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

    /// The file that is read.
    pub(super) fn file(&self) -> PathBuf {
        self.explicit.clone().unwrap_or_else(|| self.home.join(config::FILE_NAME))
    }

    /// Reads it; warnings as texts.
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

/// The configuration of this start, with what it warns of.
pub(super) fn load_config(flags: &Flags, home: &Path) -> Result<(Config, Vec<String>), StartError> {
    Ok(ConfigSource::new(flags, home).load()?)
}

/// Tells the log what a configuration warns of.
pub(super) fn log_warnings(warnings: &[String]) {
    for warning in warnings {
        tracing::warn!("the configuration: {warning}");
    }
}

/// Logs to a file a day in the home, and to standard error unless the daemon left the terminal.
pub(super) fn log_to(
    home: &Path,
    config: &Config,
    detached: bool,
) -> Result<WorkerGuard, StartError> {
    let level: LevelFilter = config
        .log
        .level
        .parse()
        .map_err(|_| StartError::LogLevel { level: config.log.level.clone() })?;
    let dir = home.join("logs");
    fsutil::create_private_dir(&dir)?;
    let file = RollingFileAppender::builder()
        .rotation(Rotation::DAILY)
        .filename_prefix("ollmd.log")
        .max_log_files(config.log.keep_days.max(1) as usize)
        .build(&dir)
        .map_err(|source| StartError::Log { dir, source })?;
    let (file, guard) =
        NonBlockingBuilder::default().buffered_lines_limit(LOG_LINES_WAITING).finish(file);
    let to_file = fmt::layer().with_ansi(false).with_writer(file);
    let to_terminal =
        (!detached).then(|| fmt::layer().with_ansi(false).with_writer(std::io::stderr));
    // A second subscriber exists only in a test that starts two daemons; the first one keeps logging.
    drop(tracing_subscriber::registry().with(level).with(to_file).with(to_terminal).try_init());
    Ok(guard)
}

/// `--check-config` and `--show-config`.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is what the flags are for")]
pub(super) fn report_config(flags: &Flags) -> ExitCode {
    let loaded = home_dir(flags).and_then(|home| load_config(flags, &home));
    let (config, warnings) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            let text = with_causes(&error);
            if flags.json {
                println!("{}", serde_json::json!({ "ok": false, "error": text }));
            } else {
                eprintln!("error: {text}");
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
        (false, false) if warnings.is_empty() => println!("the configuration is fine"),
        (false, false) => println!("no errors; what is warned of has no effect"),
    }
    ExitCode::SUCCESS
}
