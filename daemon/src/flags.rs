//! The flags of `ollmd`.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};

/// The daemon of ollm: durable sessions and search for local language models, over one Unix socket.
///
/// It runs in the foreground. `ollmctl daemon start` starts it in the background, and so does any other `ollmctl` command
/// when no daemon answers.
#[derive(Debug, Parser)]
#[command(name = "ollmd", version)]
pub struct Flags {
    /// Keep all data in DIR [default: ~/.ollm].
    #[arg(long, value_name = "DIR", env = "OLLM_HOME")]
    pub home: Option<PathBuf>,
    /// Listen on PATH [default: a path derived from the home].
    #[arg(long, value_name = "PATH", env = "OLLM_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Read the configuration from FILE [default: config.yaml in the home].
    #[arg(long, value_name = "FILE", env = "OLLM_CONFIG")]
    pub config: Option<PathBuf>,
    /// Log messages of LEVEL and above: error, warn, info, debug or trace.
    #[arg(long, value_name = "LEVEL", env = "OLLM_LOG")]
    pub log_level: Option<String>,
    /// Detach from the terminal: start a new process session and log to files only.
    #[arg(long)]
    pub detach: bool,
    /// Write `ok`, or the error as one line of JSON, to the open descriptor N when the start has succeeded or failed.
    #[arg(long, value_name = "N", hide = true)]
    pub ready_fd: Option<RawFd>,
    /// Check the configuration and exit.
    #[arg(long, conflicts_with = "show_config")]
    pub check_config: bool,
    /// Print the configuration in force with the source of each value, and exit.
    #[arg(long)]
    pub show_config: bool,
    /// Print every key of the configuration with its default and what it sets, and exit.
    #[arg(long, conflicts_with_all = ["check_config", "show_config"])]
    pub list_config: bool,
    /// Print the manual page, and exit; `ollmctl man` installs it.
    #[arg(long, hide = true)]
    pub man_page: bool,
    /// Run the hook of the request on standard input, reply on standard output, and exit. The daemon starts this.
    #[arg(long, hide = true)]
    pub run_hook: bool,
    /// Print JSON, with --check-config, --show-config and --list-config.
    #[arg(long)]
    pub json: bool,
}

impl Flags {
    /// Parses the flags of this process; prints the help or the error and exits if there is one. `version` is the text of
    /// `--version`.
    #[must_use]
    pub fn of_process(version: &'static str) -> Self {
        let matches = Self::command().version(version).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    /// Returns the manual page.
    pub(crate) fn man_page() -> Vec<u8> {
        let man = clap_mangen::Man::new(Self::command())
            .source(concat!("ollm ", env!("CARGO_PKG_VERSION")))
            .manual("ollm");
        let mut page = Vec::new();
        man.render(&mut page).expect("memory takes every byte");
        page
    }
}
