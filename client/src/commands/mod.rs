//! The commands: arguments to params, one call, the result to `render`.
//!
//! One file a noun. Output goes through [`Cx::terminal`], calls through [`Cx::call`]; nothing here opens a
//! socket or prints by itself.

mod call;
mod chat;
mod compaction;
mod completions;
mod config;
mod context;
mod cx;
mod daemon;
mod entries;
mod error;
mod events;
mod exec;
mod goal;
mod inspect;
mod loops;
mod models;
mod project;
mod record;
mod sessions;
mod socket;
mod tour;
mod which;

use ollm_protocol::sanitize;
use std::ffi::OsString;
use std::process::ExitCode;

use anstream::ColorChoice;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, Parser as _};

use crate::address::Environment;
use crate::cli::{Cli, ColorArg, Command};
use crate::exit::Exit;
use crate::render::style::Style;
use crate::render::terminal::Terminal;

use cx::{Cx, Reply};
use error::CommandError;

/// Runs `ollmctl` and returns its exit code. Everything is printed, nothing is left to do.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>, environment: &Environment) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    match completions::answer(&arguments) {
        Ok(false) => {}
        Ok(true) => return Exit::Done.into(),
        Err(error) => return refuse(&error, &arguments).into(),
    }
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, &arguments).into(),
    };
    let mut terminal = Terminal::of_process(match cli.global.color {
        ColorArg::Auto => ColorChoice::Auto,
        ColorArg::Always => ColorChoice::Always,
        ColorArg::Never => ColorChoice::Never,
    });
    let json = cli.global.json;
    let done = Cx::new(cli.global, environment, &mut terminal).and_then(|mut cx| {
        dispatch(cli.command, &mut cx)?;
        cx.terminal.flush().map_err(CommandError::Output)
    });
    match done {
        Ok(()) => Exit::Done.into(),
        Err(error) if error.is_closed_pipe() => Exit::Done.into(),
        Err(error) => {
            drop(terminal.flush());
            if !error.was_told() {
                terminal.note(&if json { error.to_json() } else { error.to_text() });
            }
            error.exit_code()
        }
    }
}

/// Prints help, or what is wrong with the command line; for a program as JSON.
fn refuse(error: &clap::Error, arguments: &[OsString]) -> Exit {
    if !error.use_stderr() {
        // Where printing help fails nobody reads it.
        drop(error.print());
        return Exit::Done;
    }
    if arguments.iter().any(|argument| argument == "--json") {
        let text = error.to_string();
        let said = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
        let hint = of_sessions(error).unwrap_or_else(|| "ollmctl --help".to_owned());
        let told = CommandError::usage(sanitize::one_line(said), &hint).to_json();
        Terminal::of_process(ColorChoice::Never).note(&told);
        return Exit::Usage;
    }
    drop(error.print());
    if let Some(hint) = of_sessions(error) {
        let text = format!("\n  {} {hint}", Style::Strong.paint("try:"));
        Terminal::of_process(ColorChoice::Auto).note(&text);
    }
    Exit::Usage
}

/// What was meant by a command that is one of `sessions`.
fn of_sessions(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let all = Cli::command();
    let sessions = all.find_subcommand("sessions")?;
    // Within `sessions` it would have been found.
    sessions.find_subcommand(name).map(|command| format!("ollmctl sessions {command} --help"))
}

fn dispatch(command: Command, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    match command {
        Command::Chat(args) => chat::run(args, cx),
        Command::Sessions(command) => sessions::run(command, cx),
        Command::Record(args) => record::run(args, cx),
        Command::Context(command) => context::run(command, cx),
        Command::Goal(args) => goal::run(args, cx),
        Command::Models(args) => models::run(args, cx),
        Command::Exec(args) => exec::run(&args, cx),
        Command::Loop(command) => loops::run(&command, cx),
        Command::Call(args) => call::run(&args, cx),
        Command::Events(args) => events::run(&args, cx),
        Command::Daemon(command) => daemon::run(command, cx),
        Command::Socket => socket::run(cx),
        Command::Config(command) => config::run(command, cx),
        Command::Tour => tour::run(cx),
        Command::Completions(args) => completions::run(&args, cx),
    }
}

#[cfg(test)]
mod tests;
