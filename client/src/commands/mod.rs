//! The commands: each parses its arguments, calls the daemon and prints the result.
//!
//! The commands, each in a file or folder of its own with its flags and its output for people. Commands print through
//! [`CommandContext::terminal`] and call through [`CommandContext::call`]; none opens a socket itself.

pub(crate) mod acp;
pub(crate) mod backup;
pub(crate) mod call;
pub(crate) mod chat;
pub(crate) mod context;
pub(crate) mod daemon;
pub(crate) mod doctor;
mod doctor_store;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod files;
pub(crate) mod goal;
pub(crate) mod hooks;
pub(crate) mod loops;
pub(crate) mod man;
pub(crate) mod mcp;
pub(crate) mod models;
mod parse_error;
pub(crate) mod recall;
pub(crate) mod record;
pub(crate) mod remember;
pub(crate) mod servers;
pub(crate) mod service;
pub(crate) mod sessions;
pub(crate) mod shared;
pub(crate) mod snapshot;
pub(crate) mod tour;
pub(crate) mod ui;
pub(crate) mod undo;

use std::ffi::OsString;
use std::process::ExitCode;

use anstream::ColorChoice;

use crate::address::Environment;
use crate::args::CommandGroup;
use crate::cli::{self, Cli, CliCommand};
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::completion;
use crate::error::Exit;
use crate::render::terminal::Terminal;
use crate::render::wrap::wrap;

/// Runs `ollmctl`: prints everything, and returns the exit code. `version` is the text of `--version`.
#[must_use]
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: &Environment,
    version: &'static str,
) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let cli = match completion::complete(cli::whole_command, &arguments) {
        Ok(true) => return Exit::Success.into(),
        Ok(false) => cli::parse(&arguments, version),
        Err(error) => Err(error),
    };
    let cli = match cli {
        Ok(cli) => cli,
        Err(error) => return parse_error::report(&error, &arguments).into(),
    };
    let json = cli.global.json;
    let mut terminal = Terminal::of_process(match cli.global.color {
        clap::ColorChoice::Auto => ColorChoice::Auto,
        clap::ColorChoice::Always => ColorChoice::Always,
        clap::ColorChoice::Never => ColorChoice::Never,
    });
    match run_parsed(cli, environment, &mut terminal) {
        Ok(()) => Exit::Success.into(),
        Err(error) if error.is_closed_pipe() => Exit::Success.into(),
        Err(error) => {
            drop(terminal.flush());
            if !error.is_already_reported() {
                let text = || wrap(&error.to_text(), terminal.err_columns(), 2);
                terminal.eprintln(&if json { error.to_json() } else { text() });
            }
            error.exit_code()
        }
    }
}

fn run_parsed(cli: Cli, environment: &Environment, terminal: &mut Terminal) -> CommandResult {
    let mut ctx = CommandContext::new(cli.global, environment, terminal)?;
    dispatch(cli.command, &mut ctx).map_err(|error| ctx.with_model_server(error))?;
    Ok(ctx.terminal.flush()?)
}

/// Runs a command line that parses.
#[cfg(test)]
pub(crate) fn run_command(
    line: &[&str],
    environment: &Environment,
    terminal: &mut Terminal,
) -> CommandResult {
    let arguments: Vec<OsString> = line.iter().map(OsString::from).collect();
    run_parsed(cli::parse(&arguments, "").unwrap(), environment, terminal)
}

fn dispatch(command: CliCommand, ctx: &mut CommandContext<'_>) -> CommandResult {
    match command {
        CliCommand::Chat(args) => chat::run(args, ctx),
        CliCommand::Ui(args) => ui::run(&args, ctx),
        CliCommand::Shared(command) => command.run(ctx),
        CliCommand::Models(args) => models::run(args, ctx),
        CliCommand::Servers(CommandGroup(command)) => servers::run(&command, ctx),
        CliCommand::Exec(args) => exec::run(&args, ctx),
        CliCommand::Files(CommandGroup(command)) => files::run(command, ctx),
        CliCommand::Loop(CommandGroup(command)) => loops::run(&command, ctx),
        CliCommand::Backup(CommandGroup(command)) => backup::run(command, ctx),
        CliCommand::Acp(args) => acp::run(args, ctx),
        CliCommand::Hooks(CommandGroup(command)) => hooks::run(&command, ctx),
        CliCommand::Call(args) => call::run(&args, ctx),
        CliCommand::Events(args) => events::run(&args, ctx),
        CliCommand::Daemon(CommandGroup(command)) => daemon::run(command, ctx),
        CliCommand::Service(CommandGroup(command)) => service::run(&command, ctx),
        CliCommand::Doctor(args) => doctor::run(&args, ctx),
        CliCommand::Socket(_) => daemon::socket(ctx),
        CliCommand::Config(CommandGroup(command)) => daemon::config(command, ctx),
        CliCommand::Tour(_) => tour::run(ctx),
        CliCommand::Mcp(args) => mcp::run(&args, ctx),
        CliCommand::Man(args) => man::run(&args, ctx),
        CliCommand::Completions(args) => Ok(completion::run(&args, ctx.terminal)?),
    }
}
