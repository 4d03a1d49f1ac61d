//! The commands: arguments to params, one call, the result to `render`.
//!
//! One file a noun. Output goes through [`Cx::terminal`], calls through [`Cx::call`]; nothing here opens a
//! socket or prints by itself.

mod call;
mod completions;
mod config;
mod context;
mod daemon;
mod error;
mod events;
mod project;
mod record;
mod sessions;
mod socket;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use anstream::ColorChoice;
use clap::Parser as _;
use ollm_protocol::SessionId;
use ollm_protocol::method::{Method, SessionList};
use ollm_protocol::methods::session::{SessionListParams, SessionListResult};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::address::{Address, Environment};
use crate::cli::{Cli, ColorArg, Command, GlobalArgs};
use crate::connection::{BlockingClient, Connector, decode};
use crate::error::ClientError;
use crate::exit::Exit;
use crate::render::terminal::Terminal;
use crate::render::{json, transcript};
use crate::resolve::{self, ListSessions};

pub(crate) use error::CommandError;

/// The version of this program.
const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs `ollmctl` and returns its exit code. Everything is printed, nothing is left to do.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>, environment: &Environment) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
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
            terminal.note(&if json { error.to_json() } else { error.to_text() });
            error.exit().into()
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
        let message = text.trim_start_matches("error: ").lines().next().unwrap_or_default();
        let told = CommandError::usage(message, "ollmctl --help").to_json();
        Terminal::of_process(ColorChoice::Never).note(&told);
    } else {
        drop(error.print());
    }
    Exit::Usage
}

fn dispatch(command: Command, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    match command {
        Command::Sessions(command) => sessions::run(command, cx),
        Command::Record(args) => record::run(args, cx),
        Command::Context(command) => context::run(command, cx),
        Command::Call(args) => call::run(&args, cx),
        Command::Events(args) => events::run(&args, cx),
        Command::Daemon(command) => daemon::run(command, cx),
        Command::Socket => socket::run(cx),
        Command::Config(command) => config::run(command, cx),
        Command::Completions(args) => completions::run(&args, cx),
    }
}

/// What a command works with.
pub(crate) struct Cx<'a> {
    pub(crate) terminal: &'a mut Terminal,
    pub(crate) environment: &'a Environment,
    connector: Connector,
    client: Option<BlockingClient>,
    json: bool,
    timeout: Option<Duration>,
}

/// Whether a version comes before another; one that cannot be read does not.
fn is_older(version: &str, other: &str) -> bool {
    let parts = |text: &str| -> Option<Vec<u64>> {
        text.split(['-', '+']).next()?.split('.').map(|part| part.parse().ok()).collect()
    };
    matches!((parts(version), parts(other)), (Some(version), Some(other)) if version < other)
}

/// A result as it was sent, and what it means.
pub(crate) struct Reply<T> {
    pub(crate) raw: Box<RawValue>,
    pub(crate) value: T,
}

impl<'a> Cx<'a> {
    fn new(
        global: GlobalArgs,
        environment: &'a Environment,
        terminal: &'a mut Terminal,
    ) -> Result<Self, CommandError> {
        let address = Address::new(global.home, global.socket, environment)?;
        let mut connector = Connector::new(address, environment);
        if global.no_spawn {
            connector = connector.without_spawn();
        }
        if let Some(timeout) = global.timeout {
            connector = connector.with_timeout(timeout);
        }
        Ok(Self {
            terminal,
            environment,
            connector,
            client: None,
            json: global.json,
            timeout: global.timeout,
        })
    }

    /// Whether a program reads the output.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// How connections are made.
    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// The connection, made when it is first needed.
    pub(crate) fn client(&mut self) -> Result<&mut BlockingClient, ClientError> {
        match &mut self.client {
            Some(client) => Ok(client),
            empty => {
                let client = BlockingClient::connect(&self.connector)?;
                if self.terminal.can_ask()
                    && client.daemon_version().is_some_and(|daemon| is_older(daemon, OWN_VERSION))
                {
                    self.terminal.note("an older ollmd is running: ollmctl daemon restart");
                }
                Ok(empty.insert(client))
            }
        }
    }

    /// Hands the connection over; the next call makes a new one.
    pub(crate) fn take_client(&mut self) -> Result<BlockingClient, ClientError> {
        self.client.take().map_or_else(|| BlockingClient::connect(&self.connector), Ok)
    }

    /// Calls a method.
    pub(crate) fn call<M: Method>(
        &mut self,
        params: &M::Params,
    ) -> Result<Reply<M::Result>, ClientError> {
        let raw = self.client()?.call_raw(M::NAME, params)?;
        let value = decode(M::NAME, &raw)?;
        Ok(Reply { raw, value })
    }

    /// Calls a method that may work for long: the wait is longer unless the user set one.
    pub(crate) fn call_patiently<M: Method>(
        &mut self,
        params: &M::Params,
        patience: Duration,
    ) -> Result<Reply<M::Result>, ClientError> {
        let usual = self.connector.timeout();
        let wait = self.timeout.unwrap_or(patience);
        self.client()?.set_timeout(wait);
        let reply = self.call::<M>(params);
        self.client()?.set_timeout(usual);
        reply
    }

    /// The session that a text means.
    pub(crate) fn session(&mut self, text: &str) -> Result<SessionId, CommandError> {
        let client = self.client()?;
        Ok(resolve::session(client, text)?)
    }

    /// Prints the result as JSON, or as the text that `render` makes of it.
    pub(crate) fn print<T>(
        &mut self,
        reply: &Reply<T>,
        render: impl FnOnce(&T, &Self) -> String,
    ) -> Result<(), CommandError> {
        if self.json {
            return self.print_raw_json(&reply.raw);
        }
        let text = render(&reply.value, self);
        self.print_text(&text)
    }

    /// Prints a text for people.
    pub(crate) fn print_text(&mut self, text: &str) -> Result<(), CommandError> {
        self.terminal.print(text).map_err(CommandError::Output)
    }

    /// Prints a value as JSON.
    pub(crate) fn print_json(&mut self, value: &impl Serialize) -> Result<(), CommandError> {
        let mut text = json::value(value, self.terminal.is_interactive())
            .map_err(|error| CommandError::Output(io::Error::other(error)))?;
        text.push('\n');
        self.terminal.print_raw(&text).map_err(CommandError::Output)
    }

    /// Prints a result as it was sent; a terminal gets it indented.
    pub(crate) fn print_raw_json(&mut self, raw: &RawValue) -> Result<(), CommandError> {
        if self.terminal.is_interactive()
            && let Ok(value) = serde_json::from_str::<serde_json::Value>(raw.get())
        {
            return self.print_json(&value);
        }
        let text = format!("{}\n", json::escaped(raw.get()));
        self.terminal.print_raw(&text).map_err(CommandError::Output)
    }

    /// How transcripts and lists are laid out for this reader.
    pub(crate) fn view(&self) -> transcript::View {
        transcript::View {
            width: self.terminal.width(),
            now: crate::render::time::now(),
            full: false,
        }
    }
}

impl ListSessions for BlockingClient {
    fn list(&mut self, params: &SessionListParams) -> Result<SessionListResult, ClientError> {
        self.call::<SessionList>(params)
    }
}

#[cfg(test)]
mod tests;
