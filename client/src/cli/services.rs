//! Flags of the commands around tool calls: loops.

use clap::Subcommand;

use super::SessionArg;

/// Subcommands of `loop`.
#[derive(Debug, Subcommand)]
pub(crate) enum LoopCommand {
    /// Show the loop that keeps a session from calling the model, if there is one, and its newest tool calls.
    #[command(after_help = "\
Equal calls have equal digests, and so have results that differ in numbers and white space only.

Examples:
  ollmctl loop status last
  ollmctl loop status last --json")]
    Status(SessionArg),
    /// Let a session go on after a loop; the next one must build up anew.
    #[command(after_help = "\
A new message of the user does the same.

Examples:
  ollmctl loop reset last")]
    Reset(SessionArg),
}
