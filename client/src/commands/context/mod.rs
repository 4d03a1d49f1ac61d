//! `ollmctl context`: the context that a model is sent. One file for each group of subcommands.

pub(super) mod build;
pub(super) mod compact;
pub(super) mod entries;
pub(super) mod status;

use clap::Subcommand;

use crate::command_context::CommandContext;
use crate::command_error::CommandError;

/// Show and change the context that a model is sent.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    Status(status::StatusArgs),
    Inspect(status::InspectArgs),
    Build(build::BuildArgs),
    Entries(entries::EntriesArgs),
    /// Keep a message or a tool call in every later context.
    #[command(after_help = "\
Examples:
  ollmctl context pin 12
  ollmctl context pin 12 --session last")]
    Pin(entries::PinArgs),
    /// Unpin a message or a tool call.
    #[command(after_help = "\
Examples:
  ollmctl context unpin 12")]
    Unpin(entries::PinArgs),
    Compact(compact::CompactArgs),
    Checkpoints(compact::CheckpointsArgs),
}

pub(super) fn run(
    command: ContextCommand,
    ctx: &mut CommandContext<'_>,
) -> Result<(), CommandError> {
    match command {
        ContextCommand::Status(args) => status::status(&args, ctx),
        ContextCommand::Inspect(args) => status::inspect(args, ctx),
        ContextCommand::Build(args) => build::run(args, ctx),
        ContextCommand::Entries(args) => entries::run(args, ctx),
        ContextCommand::Pin(args) => entries::pin(&args, true, ctx),
        ContextCommand::Unpin(args) => entries::pin(&args, false, ctx),
        ContextCommand::Compact(args) => compact::compact(args, ctx),
        ContextCommand::Checkpoints(args) => compact::checkpoints(&args, ctx),
    }
}
