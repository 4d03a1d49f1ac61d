//! `ollmctl completions`: the script that lets a shell ask this program for completions, and the replies.

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use clap_complete::CompleteEnv;
use clap_complete::env::Shells;

use crate::command_context::CommandContext;
use crate::command_error::CommandError;
use crate::render::terminal::OutputError;

/// The variable that the script sets when a shell asks for completions.
const REQUEST_VARIABLE: &str = "_OLLMCTL_COMPLETE";
/// The command that is completed, and the program that completes it, both found in `PATH`.
const PROGRAM: &str = "ollmctl";

/// Print the script that makes a shell complete commands, flags, sessions and models.
#[derive(Debug, Args)]
#[command(after_help = "\
For ~/.bashrc, ~/.zshrc and fish's config.fish. Do not keep a copy: it may not fit the next version.

Examples:
  source <(ollmctl completions bash)
  source <(ollmctl completions zsh)
  ollmctl completions fish | source")]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: ShellArg,
}

/// A shell.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ShellArg {
    /// GNU Bash.
    Bash,
    /// The Z shell.
    Zsh,
    /// The friendly interactive shell.
    Fish,
}

pub(super) fn run(
    args: &CompletionsArgs,
    ctx: &mut CommandContext<'_>,
) -> Result<(), CommandError> {
    let shell = match args.shell {
        ShellArg::Bash => "bash",
        ShellArg::Zsh => "zsh",
        ShellArg::Fish => "fish",
    };
    let mut script = Vec::new();
    if let Some(shell) = Shells::builtins().completer(shell) {
        shell
            .write_registration(REQUEST_VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)
            .map_err(OutputError::from)?;
    }
    Ok(ctx.terminal.print_raw(script)?)
}

/// Replies to a shell that asks for completions of `command`; returns false if the arguments are not such a request.
///
/// **Errors**: the shell is unknown, or the reply cannot be written.
pub(super) fn complete(
    command: fn() -> clap::Command,
    arguments: &[OsString],
) -> Result<bool, clap::Error> {
    let current_dir = std::env::current_dir().ok();
    CompleteEnv::with_factory(command)
        .var(REQUEST_VARIABLE)
        .completer(PROGRAM)
        .try_complete(arguments.iter().cloned(), current_dir.as_deref())
}
