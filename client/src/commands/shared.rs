//! The commands that `ollmctl` shares with a chat, which runs them as slash commands.

use clap::{Command, FromArgMatches as _, Subcommand};

use super::context::{self, ContextCommand};
use super::goal::{self, GoalArgs};
use super::recall::{self, RecallArgs};
use super::record::{self, RecordArgs};
use super::remember::{self, RememberArgs};
use super::sessions::{self, SessionsCommand};
use super::snapshot::{self, SnapshotCommand};
use super::undo::{self, RedoArgs, UndoArgs};
use crate::args::CommandGroup;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;

/// The commands that read or change what sessions contain.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum SharedCommand {
    #[command(alias = "session")]
    Sessions(CommandGroup<SessionsCommand>),
    Record(RecordArgs),
    Undo(UndoArgs),
    Redo(RedoArgs),
    #[command(alias = "snapshots")]
    Snapshot(CommandGroup<SnapshotCommand>),
    Remember(RememberArgs),
    Recall(RecallArgs),
    Context(CommandGroup<ContextCommand>),
    Goal(GoalArgs),
}

impl SharedCommand {
    /// Parses a command without the name of the program and without global flags; a flag that is repeated counts once,
    /// with its last value.
    pub(super) fn parse(words: impl Iterator<Item = String>) -> Result<Self, clap::Error> {
        Self::from_arg_matches(&Self::definitions().try_get_matches_from(words)?)
    }

    /// Returns the definitions of the commands as [`Self::parse`] uses them.
    pub(super) fn definitions() -> Command {
        let root = Command::new("ollmctl").no_binary_name(true).args_override_self(true);
        Self::augment_subcommands(root)
    }

    /// Runs the command.
    pub(super) fn run(self, ctx: &mut CommandContext<'_>) -> CommandResult {
        match self {
            Self::Sessions(CommandGroup(command)) => sessions::run(command, ctx),
            Self::Snapshot(CommandGroup(command)) => snapshot::run(command, ctx),
            Self::Undo(args) => undo::undo(&args, ctx),
            Self::Redo(args) => undo::redo(&args, ctx),
            Self::Record(args) => record::run(args, ctx),
            Self::Remember(args) => remember::run(&args, ctx),
            Self::Recall(args) => recall::run(&args, ctx),
            Self::Context(CommandGroup(command)) => context::run(command, ctx),
            Self::Goal(args) => goal::run(args, ctx),
        }
    }
}
