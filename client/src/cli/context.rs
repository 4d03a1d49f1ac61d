//! Subcommands of `context`, and their arguments.

use clap::{Args, Subcommand, ValueEnum};

use super::{EntriesArgs, PinArgs, WhichArgs};

/// Subcommands of `context`.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    /// Show how full a session's window is, part by part.
    #[command(after_help = "\
Examples:
  ollmctl context status
  ollmctl context status last --size 4096
  ollmctl context status --json")]
    Status(ContextStatusArgs),
    /// Show everything that is in a context and everything that is not, and why.
    #[command(after_help = "\
Examples:
  ollmctl context inspect
  ollmctl context inspect last --messages
  ollmctl context inspect last --build 019ad1a2-7c51-7a90-8b41-6f1e5f0f2d11")]
    Inspect(ContextInspectArgs),
    /// Choose what fits a window and show how the window is divided.
    #[command(after_help = "\
Writes nothing unless --auto is given.

Examples:
  ollmctl context build last --size 4096
  ollmctl context build last --pending 'And in Rust?' --messages
  ollmctl context build last --json")]
    Build(ContextBuildArgs),
    /// See and set the texts that every context begins with.
    #[command(after_help = "\
An entry holds for a session, for a project, or everywhere. Lower priorities come first.

Examples:
  ollmctl context entries
  ollmctl context entries add style 'Answer briefly.' --global
  ollmctl context entries remove style --global")]
    Entries(EntriesArgs),
    /// Keep a message or a tool call in every later context.
    #[command(after_help = "\
Examples:
  ollmctl context pin 12
  ollmctl context pin 12 --session last")]
    Pin(PinArgs),
    /// Release what was pinned.
    #[command(after_help = "\
Examples:
  ollmctl context unpin 12")]
    Unpin(PinArgs),
    /// Make a conversation shorter: shorten old tool results, have a model summarize what is old.
    #[command(after_help = "\
Everything that was said stays in the log; only what the model is sent becomes shorter.
Ctrl-C ends it, and then nothing was changed.

Examples:
  ollmctl context compact --dry-run
  ollmctl context compact last --instructions 'keep the error codes'
  ollmctl context compact last --strategy truncate")]
    Compact(ContextCompactArgs),
    /// List the summaries that stand for the beginning of a conversation.
    #[command(after_help = "\
Examples:
  ollmctl context checkpoints
  ollmctl context checkpoints last --summaries")]
    Checkpoints(ContextCheckpointsArgs),
}

/// Arguments of `context compact`.
#[derive(Debug, Args)]
pub(crate) struct ContextCompactArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Tell what would be done, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// How to make room [default: as configured].
    #[arg(long, value_enum)]
    pub(crate) strategy: Option<StrategyArg>,
    /// What the summary should keep above all.
    #[arg(long, value_name = "TEXT")]
    pub(crate) instructions: Option<String>,
}

/// How a compaction makes room.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum StrategyArg {
    /// A model summarizes what is old.
    Summarize,
    /// What is old is left out.
    Truncate,
    /// Old tool results are shortened; where that is not enough, a model summarizes.
    Hybrid,
}

/// Arguments of `context checkpoints`.
#[derive(Debug, Args)]
pub(crate) struct ContextCheckpointsArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Print the summaries too.
    #[arg(long)]
    pub(crate) summaries: bool,
}

/// Arguments of `context build`.
#[derive(Debug, Args)]
pub(crate) struct ContextBuildArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// The context window in tokens, at least 2048 [default: the session's own].
    #[arg(long, value_name = "TOKENS")]
    pub(crate) size: Option<u32>,
    /// A strategy by name: full-history, pruned-tools, checkpointed, minimal-state or floor, from everything to the
    /// original task and the newest turns [default: the first that fits].
    #[arg(long)]
    pub(crate) strategy: Option<String>,
    /// A user message that will follow and is not recorded yet.
    #[arg(long, value_name = "TEXT")]
    pub(crate) pending: Option<String>,
    /// Let the daemon record the plan, so that later contexts begin with this one.
    #[arg(long)]
    pub(crate) auto: bool,
    /// Print the messages too.
    #[arg(long)]
    pub(crate) messages: bool,
}

/// Arguments of `context status`.
#[derive(Debug, Args)]
pub(crate) struct ContextStatusArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// The context window in tokens, at least 2048 [default: the session's own].
    #[arg(long, value_name = "TOKENS")]
    pub(crate) size: Option<u32>,
}

/// Arguments of `context inspect`.
#[derive(Debug, Args)]
pub(crate) struct ContextInspectArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// One of the session's last builds, by the id that `context build` and a chat turn give it [default: what a model
    /// would be sent now].
    #[arg(long, value_name = "BUILD")]
    pub(crate) build: Option<String>,
    /// Print the exact messages too.
    #[arg(long)]
    pub(crate) messages: bool,
}
