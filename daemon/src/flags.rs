//! The flags of `ollmd`.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::Parser;

/// The daemon of ollm: durable sessions and search for local language models, over one Unix socket.
///
/// It stays in the foreground; `ollmctl daemon start` starts it in the background, and any other `ollmctl`
/// command does so by itself when no daemon answers.
#[derive(Debug, Parser)]
#[command(name = "ollmd", version)]
pub struct Flags {
    /// Keep everything in DIR [default: ~/.ollm].
    #[arg(long, value_name = "DIR", env = "OLLM_HOME")]
    pub home: Option<PathBuf>,
    /// Listen on PATH instead of the place that follows from the home.
    #[arg(long, value_name = "PATH", env = "OLLM_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Read the configuration from FILE [default: config.yaml in the home].
    #[arg(long, value_name = "FILE", env = "OLLM_CONFIG")]
    pub config: Option<PathBuf>,
    /// Log from LEVEL on: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", env = "OLLM_LOG")]
    pub log_level: Option<String>,
    /// Leave the terminal: a session of its own, log to the file only.
    #[arg(long)]
    pub detach: bool,
    /// Write `ok` or one line of JSON with the error to the open descriptor N once it is known.
    #[arg(long, value_name = "N", hide = true)]
    pub ready_fd: Option<RawFd>,
    /// Check the configuration and leave.
    #[arg(long, conflicts_with = "show_config")]
    pub check_config: bool,
    /// Print the configuration in force, with where each value comes from, and leave.
    #[arg(long)]
    pub show_config: bool,
    /// With the two above: print JSON.
    #[arg(long)]
    pub json: bool,
}

impl Flags {
    /// The flags of this process; prints help or what is wrong with them, and leaves.
    #[must_use]
    pub fn of_process() -> Self {
        Self::parse()
    }
}
