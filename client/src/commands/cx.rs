//! What a command works with: the terminal, the connection, and how results are printed.

use std::io;
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::method::{Method, SessionList};
use ollm_protocol::methods::session::{SessionListParams, SessionListResult};
use ollm_protocol::sanitize;
use serde::Serialize;
use serde_json::value::RawValue;

use super::error::CommandError;
use crate::address::{Address, Environment};
use crate::cli::GlobalArgs;
use crate::connection::{BlockingClient, Connector, decode};
use crate::error::ClientError;
use crate::render::style::Style;
use crate::render::terminal::Terminal;
use crate::render::{View, json};
use crate::resolve::{self, ListSessions};

/// How long a list may take to be complete: the daemon compares its catalog with the logs within some 200 ms of its
/// start. A rebuild takes longer and is not waited for.
const SETTLED: Duration = Duration::from_millis(500);
/// How often it is asked meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

/// The version of this program.
const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a command works with.
pub(crate) struct Cx<'a> {
    pub(crate) terminal: &'a mut Terminal,
    pub(crate) environment: &'a Environment,
    connector: Connector,
    client: Option<BlockingClient>,
    json: bool,
    no_spawn: bool,
    timeout: Option<Duration>,
}

/// A result as it was sent, and what it means.
pub(crate) struct Reply<T> {
    pub(crate) raw: Box<RawValue>,
    pub(crate) value: T,
}

impl<'a> Cx<'a> {
    pub(super) fn new(
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
            no_spawn: global.no_spawn,
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

    /// Starts the daemon even where the environment forbids to do so unasked: the command asks for it.
    ///
    /// **Errors**: a flag of the same command line that forbids it.
    pub(crate) fn allow_spawn(&mut self, command: &str) -> Result<(), CommandError> {
        if self.no_spawn {
            return Err(CommandError::usage(
                format!("--no-spawn forbids what `daemon {command}` is for"),
                &format!("ollmctl daemon {command}"),
            ));
        }
        self.connector = self.connector.clone().with_spawn();
        Ok(())
    }

    /// The connection, made when it is first needed.
    pub(crate) fn client(&mut self) -> Result<&mut BlockingClient, ClientError> {
        match &mut self.client {
            Some(client) => Ok(client),
            empty => {
                let client = BlockingClient::connect(&self.connector)?;
                if let Some(notice) = client.notice().filter(|_| !self.json) {
                    let notice = sanitize::one_line(notice);
                    self.terminal.note(&format!("{} {notice}", Style::Strong.paint("note:")));
                }
                if self.terminal.can_ask()
                    && client.daemon_version().is_some_and(|daemon| is_older(daemon, OWN_VERSION))
                {
                    self.terminal.note("an older ollmd is running: ollmctl daemon restart");
                }
                Ok(empty.insert(client))
            }
        }
    }

    /// The longest wait that the user asked for.
    pub(crate) fn given_timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Ends the connection, or drops one that broke; the next call makes a new one.
    pub(crate) fn disconnect(&mut self) {
        self.client = None;
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
    pub(crate) fn view(&self) -> View {
        View { width: self.terminal.width(), now: crate::render::time::now(), full: false }
    }
}

impl ListSessions for BlockingClient {
    fn list(&mut self, params: &SessionListParams) -> Result<SessionListResult, ClientError> {
        settled(|| self.call::<SessionList>(params))
    }
}

/// Asks for a page of sessions until none can be missing, or until that takes longer than a start explains: in its
/// first moments a daemon does not know yet whether its catalog is as new as the logs.
pub(super) fn settled(
    mut ask: impl FnMut() -> Result<SessionListResult, ClientError>,
) -> Result<SessionListResult, ClientError> {
    let deadline = Instant::now() + SETTLED;
    loop {
        let page = ask()?;
        if !page.behind || Instant::now() >= deadline {
            return Ok(page);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether a version comes before another; one that cannot be read does not.
fn is_older(version: &str, other: &str) -> bool {
    let parts = |text: &str| -> Option<Vec<u64>> {
        text.split(['-', '+']).next()?.split('.').map(|part| part.parse().ok()).collect()
    };
    matches!((parts(version), parts(other)), (Some(version), Some(other)) if version < other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_asked_for_until_it_is_complete_but_not_for_ever() {
        let page = |behind| SessionListResult { data: Vec::new(), next_cursor: None, behind };
        let mut answers = [true, true, false, true].into_iter();
        let found = settled(|| Ok(page(answers.next().unwrap()))).unwrap();
        assert!(!found.behind);
        assert_eq!(answers.len(), 1);
        assert!(settled(|| Ok(page(true))).unwrap().behind, "it says so in the end");
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(is_older("0.9.0", "0.10.0"));
        assert!(is_older("1.2.3-beta", "1.3.0"));
        assert!(!is_older("0.1.0", "0.1.0"));
        assert!(!is_older("what", "0.1.0"));
    }
}
