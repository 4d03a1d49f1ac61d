//! The command line: the list of commands.
//!
//! Each command has its flags, its help and its examples in its own file in `commands/`; the help texts are the
//! reference manual. A test parses every line of an example that begins with `ollmctl`.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::args::{CommandGroup, GlobalArgs};
use crate::commands::acp::AcpArgs;
use crate::commands::backup::BackupCommand;
use crate::commands::call::CallArgs;
use crate::commands::chat::ChatArgs;
use crate::commands::daemon::{ConfigCommand, DaemonCommand, SocketArgs};
use crate::commands::doctor::DoctorArgs;
use crate::commands::events::EventsArgs;
use crate::commands::exec::ExecArgs;
use crate::commands::files::FilesCommand;
use crate::commands::hooks::HooksCommand;
use crate::commands::loops::LoopCommand;
use crate::commands::man::ManArgs;
use crate::commands::mcp::McpArgs;
use crate::commands::models::ModelsArgs;
use crate::commands::servers::ServersCommand;
use crate::commands::service::ServiceCommand;
use crate::commands::shared::SharedCommand;
use crate::commands::tour::TourArgs;
use crate::commands::ui::UiArgs;
use crate::completion::CompletionsArgs;

/// Durable, searchable conversations with local language models.
///
/// Talks to ollmd, which keeps every conversation and fits it into the model's context window. Starts ollmd if it does
/// not run.
#[derive(Debug, Parser)]
#[command(
    name = "ollmctl",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    after_help = "\
SESSION is an id, a unique end or beginning of one with at least 4 characters, or `last`: the most recently active session of \
all projects that is not archived. Commands take it as an argument or as --session. Left out, it is the current \
session of this directory, or of the nearest directory above it; only commands that delete, and `sessions servers`, \
need it.

Examples:
  ollmctl chat
  ollmctl chat -c 'And in Rust?'
  ollmctl ui
  ollmctl sessions list
  ollmctl sessions view last
  ollmctl sessions search 'reverse list' --since 7d
  ollmctl undo
  ollmctl context build last --context-size 4096

Exit codes: 0 success, 1 internal error, 2 wrong usage, 3 not found, 4 busy, 5 wrong configuration, 6 no daemon, \
7 no model server, 130 interrupted. `exec` ends with the code of its command, or 124 after a timeout."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum CliCommand {
    Chat(ChatArgs),
    Ui(UiArgs),
    #[command(flatten)]
    Shared(SharedCommand),
    #[command(visible_alias = "model")]
    Models(ModelsArgs),
    #[command(visible_alias = "server")]
    Servers(CommandGroup<ServersCommand>),
    Exec(ExecArgs),
    Files(CommandGroup<FilesCommand>),
    Loop(CommandGroup<LoopCommand>),
    Backup(CommandGroup<BackupCommand>),
    Acp(AcpArgs),
    #[command(visible_alias = "hook")]
    Hooks(CommandGroup<HooksCommand>),
    Mcp(McpArgs),
    Call(CallArgs),
    Events(EventsArgs),
    Daemon(CommandGroup<DaemonCommand>),
    Service(CommandGroup<ServiceCommand>),
    Doctor(DoctorArgs),
    Socket(SocketArgs),
    Tour(TourArgs),
    Config(CommandGroup<ConfigCommand>),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Parses a command line.
///
/// The arguments of a command are defined once it is chosen, because the definitions of all commands take longer than a
/// short call. Help and errors show other commands too, so these are made of all definitions.
///
/// `version` is the text of `--version`.
pub(crate) fn parse(arguments: &[OsString], version: &'static str) -> Result<Cli, clap::Error> {
    let parse = |command: Command| {
        let matches = command.version(version).try_get_matches_from(arguments)?;
        Cli::from_arg_matches(&matches)
    };
    parse(Cli::command()).or_else(|error| match error.kind() {
        ErrorKind::DisplayVersion => Err(error),
        _ => parse(whole_command()),
    })
}

/// Returns the definitions of all commands with their arguments.
pub(crate) fn whole_command() -> Command {
    let mut command = Cli::command();
    command.build();
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit_commands(command: &clap::Command, visit: &mut impl FnMut(&clap::Command)) {
        visit(command);
        for sub in command.get_subcommands() {
            visit_commands(sub, visit);
        }
    }

    /// Splits a line as a shell would, up to the first pipe or redirection.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quote = None;
        for char in line.chars() {
            match (quote, char) {
                (Some(open), close) if open == close => quote = None,
                (None, '\'' | '"') => quote = Some(char),
                (None, '|' | '>') => break,
                (None, ' ') => words.push(String::new()),
                (_, other) => words.last_mut().unwrap().push(other),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn every_command_and_argument_has_help() {
        Cli::command().debug_assert();
        visit_commands(&whole_command(), &mut |command| {
            assert!(command.get_about().is_some(), "{} has no help", command.get_name());
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                assert!(
                    arg.get_help().is_some() || matches!(arg.get_id().as_str(), "help" | "version"),
                    "{} {} has no help",
                    command.get_name(),
                    arg.get_id()
                );
            }
        });
    }

    #[test]
    fn every_example_parses() {
        let mut examples = 0;
        visit_commands(&whole_command(), &mut |command| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines() {
                let own = line
                    .trim()
                    .rsplit_once("| ollmctl")
                    .map_or_else(|| line.trim().to_owned(), |(_, own)| format!("ollmctl{own}"));
                if own.starts_with("ollmctl ") {
                    examples += 1;
                    if let Err(error) = Cli::try_parse_from(words(&own)) {
                        panic!("{own}\n{error}");
                    }
                }
            }
        });
        assert!(examples > 20, "{examples} examples were found");
    }

    #[test]
    fn contradictory_arguments_are_refused() {
        let check = |line: &str| assert!(Cli::try_parse_from(words(line)).is_err(), "{line}");
        check("ollmctl sessions clear");
        check("ollmctl sessions cleanup");
        check("ollmctl record --new --session last hello");
        check("ollmctl --timeout 0 socket");
        check("ollmctl --timeout never socket");
        check("ollmctl sessions list --limit 0");
    }

    #[test]
    fn arguments_that_are_not_utf8_do_not_panic() {
        use std::ffi::OsString;
        use std::os::unix::ffi::OsStringExt as _;

        let odd = OsString::from_vec(b"/tmp/\xff".to_vec());
        let arguments = |line: &str| -> Vec<OsString> {
            line.split(' ').map(OsString::from).chain([odd.clone()]).collect()
        };
        assert!(Cli::try_parse_from(arguments("ollmctl sessions import")).is_ok());
        assert!(Cli::try_parse_from(arguments("ollmctl sessions view")).is_err());
        assert!(Cli::try_parse_from(arguments("ollmctl call")).is_err());
    }
}
