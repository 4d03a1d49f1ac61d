//! `ollmctl completions`: the script that has a shell ask this program, and the answers.

use std::ffi::OsString;

use clap::CommandFactory as _;
use clap_complete::CompleteEnv;
use clap_complete::env::Shells;

use super::{CommandError, Cx};
use crate::cli::{Cli, CompletionsArgs, ShellArg};

/// Set by the script when a shell asks.
const ASKED: &str = "_OLLMCTL_COMPLETE";
/// What is completed, and what answers: both from `PATH`.
const NAME: &str = "ollmctl";

pub(super) fn run(args: &CompletionsArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let shell = match args.shell {
        ShellArg::Bash => "bash",
        ShellArg::Zsh => "zsh",
        ShellArg::Fish => "fish",
    };
    let mut script = Vec::new();
    if let Some(shell) = Shells::builtins().completer(shell) {
        let written = shell.write_registration(ASKED, NAME, NAME, NAME, &mut script);
        written.map_err(CommandError::Output)?;
    }
    cx.terminal.print_bytes(&script).map_err(CommandError::Output)
}

/// Answers a shell that asks; false where none does.
///
/// **Errors**: a shell that is not known, and the answer that cannot be written.
pub(super) fn answer(arguments: &[OsString]) -> Result<bool, clap::Error> {
    let here = std::env::current_dir().ok();
    CompleteEnv::with_factory(Cli::command)
        .var(ASKED)
        .completer(NAME)
        .try_complete(arguments.iter().cloned(), here.as_deref())
}
