//! Flags of the commands around tool calls: running them, and loops.

use std::ffi::OsString;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};

use super::{WhichArgs, by_session};

/// Arguments of `exec`.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The session to record in, as other commands take it [default: the current session of this directory's project,
    /// else a new one].
    #[arg(long, value_name = "SESSION", add = by_session())]
    pub(crate) session: Option<String>,
    /// The name of the tool in the record.
    #[arg(long, value_name = "NAME", default_value = "shell", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) tool_name: String,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Subcommands of `loop`.
#[derive(Debug, Subcommand)]
pub(crate) enum LoopCommand {
    /// Show the loop that keeps a session from calling the model, if there is one, and its newest tool calls.
    #[command(after_help = "\
Equal calls have equal digests, and so have results that differ in numbers and white space only.

Examples:
  ollmctl loop status
  ollmctl loop status last --json")]
    Status(WhichArgs),
    /// Let a session go on after a loop; the next one must build up anew.
    #[command(after_help = "\
A new message of the user does the same.

Examples:
  ollmctl loop reset")]
    Reset(WhichArgs),
}
