//! `ollmctl completions`.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{CommandError, Cx};
use crate::cli::{Cli, CompletionsArgs, ShellArg};

pub(super) fn run(args: &CompletionsArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let shell = match args.shell {
        ShellArg::Bash => Shell::Bash,
        ShellArg::Zsh => Shell::Zsh,
        ShellArg::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ollmctl", &mut script);
    cx.terminal.print_raw(&String::from_utf8_lossy(&script)).map_err(CommandError::Output)
}
