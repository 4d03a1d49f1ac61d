//! Subcommands of `context entries`, and `context pin`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use ollm_protocol::methods::context::ContextSource;

use super::{CURRENT_HELP, by_session};

/// Arguments of `context entries`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct EntriesArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    #[command(subcommand)]
    pub(crate) command: Option<EntriesCommand>,
}

/// Where entries hold.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(crate) struct PlaceArgs {
    /// For one session: an id, a unique beginning of one, or `last` [default: the current session of this directory's
    /// project].
    #[arg(long, global = true, value_name = "SESSION", add = by_session())]
    pub(crate) session: Option<String>,
    /// For every session of a project, by its directory.
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) project: Option<PathBuf>,
    /// For every session.
    #[arg(long, global = true)]
    pub(crate) global: bool,
}

/// What to do with context entries.
#[derive(Debug, Subcommand)]
pub(crate) enum EntriesCommand {
    /// List the entries in force, in the order in which they are sent; so does `entries` alone.
    #[command(after_help = "\
Examples:
  ollmctl context entries list --session last
  ollmctl context entries list --global")]
    List,
    /// Set an entry; one of the same key is replaced.
    #[command(after_help = "\
An entry of a session takes the place of its project's of the same key, and that of the global one.

Examples:
  ollmctl context entries add style 'Answer briefly.' --global
  ollmctl context entries add rules --project . --priority 10 'Never touch main.rs.'
  ./rules.sh | ollmctl context entries add rules --source hook -")]
    Add(EntryAddArgs),
    /// Remove an entry; one of the same key that holds more widely counts again.
    #[command(after_help = "\
Examples:
  ollmctl context entries remove style --global")]
    Remove(EntryRemoveArgs),
}

/// Arguments of `context entries add`.
#[derive(Debug, Args)]
pub(crate) struct EntryAddArgs {
    /// Names the entry.
    pub(crate) key: String,
    /// The text; `-`, or nothing behind a pipe, reads it from stdin.
    pub(crate) text: Option<String>,
    /// Lower comes first [default: 100].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,
    /// Who contributes it.
    #[arg(long, default_value = "user")]
    pub(crate) source: SourceArg,
}

/// Arguments of `context entries remove`.
#[derive(Debug, Args)]
pub(crate) struct EntryRemoveArgs {
    /// Names the entry.
    pub(crate) key: String,
}

/// Who contributes an entry.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SourceArg {
    /// A program that runs beside the conversation.
    Hook,
    /// A part of a client.
    Extension,
    /// A person.
    User,
}

impl From<SourceArg> for ContextSource {
    fn from(source: SourceArg) -> Self {
        match source {
            SourceArg::Hook => Self::Hook,
            SourceArg::Extension => Self::Extension,
            SourceArg::User => Self::User,
        }
    }
}

/// Arguments of `context pin` and `context unpin`.
#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// The number of the record, as `sessions view` shows it.
    #[arg(value_name = "N")]
    pub(crate) seq: u64,
    #[arg(long, value_name = "SESSION", help = CURRENT_HELP, add = by_session())]
    pub(crate) session: Option<String>,
}
