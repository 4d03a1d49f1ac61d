//! The context of a command: the terminal, the connection to the daemon, and the output of results.

use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::Record;
use ollm_protocol::method::{
    BackupCreate, BackupList, BackupPrune, BackupRestore, BackupVerify, ContextBuild,
    ContextCheckpoints, ContextCompact, ContextGetBuild, ContextInspect, ContextStatus,
    ModelCountTokens, ModelList, ModelRunning, ModelServers, ModelShow, ModelWarm, SessionBranch,
    SessionCleanup, SessionClear, SessionDelete, SessionFork, SessionGet, SessionGetRecord,
    SessionImport, SessionList, SessionRedo, SessionUndo, SnapshotRestore, StoreVerify,
};
use ollm_protocol::methods::event::EventSubscribeParams;
use ollm_protocol::methods::session::{SessionGetResult, SessionListParams, SessionListResult};
use ollm_protocol::{Event, EventKind, Method, SessionId, sanitize};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::address::{Address, Environment, is_program};
use crate::args::GlobalArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::connection::{BlockingClient, Connector, decode, encode};
use crate::error::{ClientError, RpcFailure};
use crate::interrupts::Interrupts;
use crate::model_server::{NO_OLLAMA, OtherModelServer, START_OLLAMA, is_about_server};
use crate::render::progress::Spinner;
use crate::render::terminal::{OutputError, Terminal};
use crate::render::{RenderOptions, Style, escaped_json, units};
use crate::service::InstalledService;
use crate::session_lookup::resolve;

/// The longest wait for a complete list. A daemon compares its catalog with the logs within about 200 ms of its start; a
/// rebuild takes longer and is not awaited.
const CATALOG_LIMIT: Duration = Duration::from_millis(500);
/// The pause between two requests of a list.
const CATALOG_PAUSE: Duration = Duration::from_millis(20);

/// The terminal, the connection and the global flags of a command.
pub(crate) struct CommandContext<'a> {
    pub(crate) terminal: &'a mut Terminal,
    pub(crate) environment: &'a Environment,
    /// The counter of Ctrl-C in a chat, where it cancels a call and does not end the process; `None` outside of a chat.
    pub(crate) chat_interrupts: Option<Arc<Interrupts>>,
    connector: Connector,
    client: Option<BlockingClient>,
    json: bool,
    no_spawn: bool,
    timeout: Option<Duration>,
}

/// The result of a call, decoded and as it was sent.
pub(crate) struct CallReply<T> {
    pub(crate) raw: Box<RawValue>,
    pub(crate) value: T,
}

impl<T> CallReply<T> {
    /// Returns the result as JSON.
    pub(crate) fn to_json(&self) -> Value {
        serde_json::from_str(self.raw.get()).unwrap_or_default()
    }
}

impl<'a> CommandContext<'a> {
    pub(crate) fn new(
        global: GlobalArgs,
        environment: &'a Environment,
        terminal: &'a mut Terminal,
    ) -> CommandResult<Self> {
        let address = Address::new(global.home, global.socket, environment)?;
        let mut connector = Connector::new(address, environment).with_show_waiting(|message| {
            let mut spinner = Spinner::new(message.to_owned());
            Box::new(move || spinner.tick())
        });
        if global.no_spawn {
            connector = connector.without_spawn();
        }
        if let Some(timeout) = global.timeout {
            connector = connector.with_timeout(timeout);
        }
        Ok(Self {
            terminal,
            environment,
            chat_interrupts: None,
            connector,
            client: None,
            json: global.json,
            no_spawn: global.no_spawn,
            timeout: global.timeout,
        })
    }

    /// Returns whether `--json` was given.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Returns whether the command was typed in a chat, where commands begin with a slash.
    pub(crate) fn in_chat(&self) -> bool {
        self.chat_interrupts.is_some()
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Returns the value of `--timeout`.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns the global flags with which another `ollmctl` of this environment uses the same daemon and colors.
    pub(crate) fn global_flags(&self) -> Vec<OsString> {
        let mut flags = self.connector.address().flags();
        if self.no_spawn {
            flags.push("--no-spawn".into());
        }
        if let Some(timeout) = self.timeout {
            flags.extend(["--timeout".into(), timeout.as_secs_f64().to_string().into()]);
        }
        let color = if self.terminal.has_color() { "always" } else { "never" };
        flags.extend(["--color".into(), color.into()]);
        flags
    }

    /// Starts the daemon even if `OLLM_NO_SPAWN` is set, because the command asks for it.
    ///
    /// **Errors**: `--no-spawn` was given.
    pub(crate) fn allow_spawn(&mut self, command: &str) -> CommandResult {
        if self.no_spawn {
            return Err(CommandError::usage(
                format!("`{command}` starts the daemon, which --no-spawn forbids"),
                &format!("ollmctl {command}"),
            ));
        }
        self.connector = self.connector.clone().with_spawn();
        Ok(())
    }

    /// Returns the connection; connects if there is none.
    pub(crate) fn client(&mut self) -> Result<&mut BlockingClient, ClientError> {
        let client = match self.client.take() {
            Some(client) => client,
            None => self.connect(&self.connector)?,
        };
        Ok(self.client.insert(client))
    }

    /// Replaces the connection by one that a connector makes.
    pub(crate) fn connect_with(&mut self, connector: &Connector) -> Result<(), ClientError> {
        self.client = Some(self.connect(connector)?);
        Ok(())
    }

    /// Connects, and says what a person should know about the daemon.
    fn connect(&self, connector: &Connector) -> Result<BlockingClient, ClientError> {
        let client = BlockingClient::connect(connector)?;
        if let Some(notice) = client.notice().filter(|_| !self.json) {
            self.note(notice);
        }
        if let Some(daemon) = client.daemon_version().filter(|_| self.terminal.can_ask()) {
            let own = env!("CARGO_PKG_VERSION");
            if is_older(daemon, own) {
                self.terminal.eprintln("an older ollmd is running: ollmctl daemon restart");
            } else if is_older(own, daemon) {
                let daemon = sanitize::one_line(daemon);
                let lacks = "`ollmctl doctor` lists what it lacks";
                let text = format!("this ollmctl {own} is older than ollmd {daemon}; {lacks}");
                self.terminal.eprintln(&text);
            }
        }
        Ok(client)
    }

    /// Shows a person a remark, on stderr.
    pub(crate) fn note(&self, text: &str) {
        let text = sanitize::one_line(text);
        self.terminal.eprintln(&format!("{} {text}", Style::Strong.paint("note:")));
    }

    /// Returns how the daemon's model server differs from that of this shell; connects if there is no connection.
    pub(crate) fn other_model_server(&mut self) -> Option<OtherModelServer> {
        let own = self.environment.ollama_host.as_deref()?;
        let used = self.client().ok()?.model_server().cloned();
        let address = self.connector.address();
        let is_service = InstalledService::find(address, self.environment).is_some();
        OtherModelServer::of(used.as_ref(), Some(own), is_service)
    }

    /// Adds the cause to an error of the model server, if the daemon uses another one than this shell would.
    pub(crate) fn with_model_server(&mut self, mut error: CommandError) -> CommandError {
        if let CommandError::Client(ClientError::Rpc(failure)) = &mut error
            && failure.kind.is_some_and(is_about_server)
            && self.is_about_ollama(failure)
            && let Some(other) = self.other_model_server()
        {
            failure.message = format!("{}; {}", failure.message, other.text);
            failure.hint = Some(other.hint);
            // The settings of the address, of which the hint names the right one.
            failure.fields.remove("address");
        }
        if let CommandError::Client(ClientError::Rpc(failure)) = &mut error
            && failure.hint.as_deref() == Some(START_OLLAMA)
            && !self.has_ollama()
        {
            failure.message = format!("{}; {NO_OLLAMA}", failure.message);
            failure.hint = Some("ollmctl tour".to_owned());
        }
        error
    }

    /// Returns whether this machine has the program of Ollama.
    fn has_ollama(&self) -> bool {
        let path = self.environment.search_path.as_deref().unwrap_or_default();
        std::env::split_paths(path).any(|directory| is_program(&directory.join("ollama")))
    }

    /// Returns whether an error is about the server of which `OLLAMA_HOST` can be the address, and not about another one.
    fn is_about_ollama(&mut self, failure: &RpcFailure) -> bool {
        let Some(host) = failure.fields.get("host").and_then(|host| host.as_str()) else {
            return true;
        };
        let used = self.client().ok().and_then(|client| client.model_server().cloned());
        used.is_none_or(|used| used.host == host)
    }

    /// Closes the connection; the next call connects again.
    pub(crate) fn disconnect(&mut self) {
        self.client = None;
    }

    /// Returns the connection and gives it up; the next call connects again.
    pub(crate) fn take_client(&mut self) -> Result<BlockingClient, ClientError> {
        self.client.take().map_or_else(|| BlockingClient::connect(&self.connector), Ok)
    }

    /// Calls a method.
    pub(crate) fn call<M: Method>(
        &mut self,
        params: &M::Params,
    ) -> Result<CallReply<M::Result>, ClientError> {
        let raw = self.call_encoded(M::NAME, &encode(M::NAME, params)?)?;
        let value = decode(M::NAME, &raw)?;
        Ok(CallReply { raw, value })
    }

    fn call_encoded(
        &mut self,
        method: &str,
        params: &RawValue,
    ) -> Result<Box<RawValue>, ClientError> {
        let timeout = self.timeout_of(method);
        let client = self.client()?;
        client.set_timeout(timeout);
        client.call_encoded(method, params)
    }

    /// Fetches the contents of the records of a page that were too large for it.
    pub(crate) fn fetch_contents(
        &mut self,
        reply: &mut CallReply<SessionGetResult>,
    ) -> Result<(), ClientError> {
        let session_id = reply.value.session.session_id;
        let is_large = |record: &Record| record.size_bytes.is_some();
        if !reply.value.records.iter().any(is_large) {
            return Ok(());
        }
        let client = self.client()?;
        let records = std::mem::take(&mut reply.value.records).into_iter();
        let whole = records.map(|record| client.whole_record(session_id, record));
        reply.value.records = whole.collect::<Result<_, _>>()?;
        reply.raw = to_raw_value(&reply.value).map_err(|source| ClientError::BadReply {
            method: SessionGetRecord::NAME.to_owned(),
            source,
        })?;
        Ok(())
    }

    /// Returns the longest wait for a method's reply: `--timeout`, else that of the method.
    pub(crate) fn timeout_of(&self, method: &str) -> Duration {
        self.timeout.or(slow_timeout(method)).unwrap_or_else(|| self.connector.timeout())
    }

    /// Calls a method that can take long, and passes the events of a kind, of one session or of all, to `on_event`, or `None` at least every
    /// 100 ms, until the reply arrives. The result is `None` if Ctrl-C canceled the call, as it does in a chat.
    pub(crate) fn call_with_events<M: Method>(
        &self,
        params: &M::Params,
        session_id: impl Into<Option<SessionId>>,
        kind: EventKind,
        on_event: &mut dyn FnMut(Option<&Event>),
    ) -> Result<Option<CallReply<M::Result>>, ClientError> {
        // On a connection of its own, because closing the connection cancels the call.
        let client = BlockingClient::connect(&self.connector)?;
        let events = EventSubscribeParams {
            session_id: session_id.into(),
            kinds: vec![kind],
            ..EventSubscribeParams::default()
        };
        let interrupts = self.chat_interrupts.as_ref();
        let _guard = interrupts.map(|interrupts| interrupts.begin(self.terminal));
        let mut continues = |event: Option<&Event>| {
            on_event(event);
            interrupts.is_none_or(|interrupts| interrupts.count() == 0)
        };
        let timeout = self.timeout_of(M::NAME);
        let raw = client.call_with_events::<M>(params, &events, timeout, &mut continues)?;
        let Some(raw) = raw else { return Ok(None) };
        let value = decode(M::NAME, &raw)?;
        Ok(Some(CallReply { raw, value }))
    }

    /// Says that Ctrl-C canceled a call, and what that means for its subject.
    pub(crate) fn say_canceled(&mut self, outcome: &str) -> CommandResult {
        self.terminal.flush()?;
        self.terminal.eprintln(&Style::Faint.paint(&format!("canceled; {outcome}")));
        Ok(())
    }

    /// Calls a method and prints its result.
    pub(crate) fn show<M: Method>(
        &mut self,
        params: &M::Params,
        render: impl FnOnce(&M::Result, &RenderOptions) -> String,
    ) -> CommandResult {
        let reply = self.call::<M>(params)?;
        self.print(&reply, render)
    }

    /// Returns the id of the session that a text identifies.
    ///
    /// **Errors**: `CatalogBehind` if sessions may be missing from the list by which `last` or none was found.
    pub(crate) fn session(&mut self, text: &str) -> CommandResult<SessionId> {
        let mut is_behind = false;
        let found = resolve(text, |params| {
            let page = self.list_sessions(&params)?;
            is_behind |= page.behind;
            Ok(page.data)
        });
        if is_behind && (text == "last" || matches!(found, Err(CommandError::NotFound { .. }))) {
            return Err(CommandError::CatalogBehind);
        }
        found
    }

    /// Requests a list of sessions until it is complete or [`CATALOG_LIMIT`] is over: just after its start a daemon
    /// does not know yet whether its catalog is as new as the logs.
    pub(crate) fn list_sessions(
        &mut self,
        params: &SessionListParams,
    ) -> Result<SessionListResult, ClientError> {
        complete_list(|| Ok(self.call::<SessionList>(params)?.value))
    }

    /// Prints a result as JSON, or the text that `render` makes of it.
    pub(crate) fn print<T>(
        &mut self,
        reply: &CallReply<T>,
        render: impl FnOnce(&T, &RenderOptions) -> String,
    ) -> CommandResult {
        if self.json {
            return self.print_raw_json(&reply.raw);
        }
        let text = render(&reply.value, &self.render_options());
        self.print_text(&text)
    }

    /// Prints a value as JSON, or the text that `render` makes of it.
    pub(crate) fn print_value<T: Serialize>(
        &mut self,
        value: &T,
        render: impl FnOnce(&T, &RenderOptions) -> String,
    ) -> CommandResult {
        if self.json {
            return self.print_json(value);
        }
        let text = render(value, &self.render_options());
        self.print_text(&text)
    }

    /// Shows what `action`, such as `delete 2 sessions`, would change, and asks whether to do it. After a no, says that
    /// nothing was `done`.
    ///
    /// **Errors**: no person can be asked, so `--yes` is needed.
    pub(crate) fn confirm(
        &mut self,
        action: &str,
        done: &str,
        show: impl FnOnce(&RenderOptions) -> String,
    ) -> CommandResult<bool> {
        if !self.terminal.can_ask() {
            let problem =
                format!("this would {action}, and there is no terminal to ask on: add --yes");
            return Err(CommandError::usage(problem, ""));
        }
        self.terminal.eprintln(show(&self.render_options()).trim_end());
        let is_confirmed = self.terminal.confirm(&format!("{action}?"))?;
        if !is_confirmed {
            self.terminal.eprintln(&format!("nothing was {done}"));
        }
        Ok(is_confirmed)
    }

    /// Prints text for people.
    pub(crate) fn print_text(&mut self, text: &str) -> CommandResult {
        Ok(self.terminal.print(text)?)
    }

    /// Prints a value as JSON.
    pub(crate) fn print_json(&mut self, value: &impl Serialize) -> CommandResult {
        let text = if self.terminal.out_is_terminal() {
            serde_json::to_string_pretty(value)
        } else {
            serde_json::to_string(value)
        };
        let text = text.map_err(|error| OutputError::from(io::Error::from(error)))?;
        Ok(self.terminal.print_raw(escaped_json(&text) + "\n")?)
    }

    /// Prints the results for several arguments as JSON; a single result without its list.
    pub(crate) fn print_json_list(&mut self, results: &[Value]) -> CommandResult {
        match results {
            [only] => self.print_json(only),
            several => self.print_json(&json!({ "data": several })),
        }
    }

    /// Prints a result as it was sent, or indented for a terminal.
    pub(crate) fn print_raw_json(&mut self, raw: &RawValue) -> CommandResult {
        if self.terminal.out_is_terminal()
            && let Ok(value) = serde_json::from_str::<Value>(raw.get())
        {
            return self.print_json(&value);
        }
        self.print_json_line(raw)
    }

    /// Prints JSON as it was sent, on one line.
    pub(crate) fn print_json_line(&mut self, raw: &RawValue) -> CommandResult {
        Ok(self.terminal.print_raw(format!("{}\n", escaped_json(raw.get())))?)
    }

    /// Returns the layout of text for this terminal.
    pub(crate) fn render_options(&self) -> RenderOptions {
        RenderOptions {
            width: self.terminal.width(),
            prose_columns: self.terminal.out_columns(),
            is_styled: self.terminal.has_color(),
            now: units::now(),
            local_time: |at| at.to_utc().with_timezone(&chrono::Local).fixed_offset(),
            full: false,
        }
    }
}

/// Repeats a request until the list is complete or [`CATALOG_LIMIT`] is over.
fn complete_list(
    mut request: impl FnMut() -> Result<SessionListResult, ClientError>,
) -> Result<SessionListResult, ClientError> {
    let deadline = Instant::now() + CATALOG_LIMIT;
    loop {
        let page = request()?;
        if !page.behind || Instant::now() >= deadline {
            return Ok(page);
        }
        std::thread::sleep(CATALOG_PAUSE);
    }
}

/// Returns the longest wait for the reply of a method that may take long.
fn slow_timeout(method: &str) -> Option<Duration> {
    let seconds = match method {
        // A log that is not open yet is read first, and it may be long.
        ContextBuild::NAME
        | ContextCheckpoints::NAME
        | ContextGetBuild::NAME
        | ContextInspect::NAME
        | ContextStatus::NAME
        | SessionGet::NAME => 120,
        // A slow machine takes minutes for a summary, and a long conversation needs several.
        ContextCompact::NAME => 3600,
        // Many files may be read and synced.
        SessionUndo::NAME | SessionRedo::NAME | SnapshotRestore::NAME => 600,
        // The daemon waits a minute for a summary. A long log is copied.
        SessionBranch::NAME | SessionFork::NAME => 300,
        // The daemon sends up to three requests to the model server, each with its own limit.
        ModelCountTokens::NAME
        | ModelList::NAME
        | ModelRunning::NAME
        | ModelServers::NAME
        | ModelShow::NAME => 120,
        // A large model takes minutes to load from a slow disk. The daemon has its own limits.
        ModelWarm::NAME => 900,
        // Each deletion syncs the disk, and a large session is first removed from the catalog.
        SessionCleanup::NAME | SessionClear::NAME | SessionDelete::NAME => 600,
        // Everything is read and written, on a disk of any speed.
        BackupCreate::NAME
        | BackupList::NAME
        | BackupPrune::NAME
        | BackupRestore::NAME
        | BackupVerify::NAME
        | StoreVerify::NAME => 43_200,
        // The reply to the last chunk follows when everything is parsed, written and synced.
        SessionImport::NAME => 600,
        _ => return None,
    };
    Some(Duration::from_secs(seconds))
}

/// Returns whether a version is lower than another; false if either cannot be parsed.
pub(crate) fn is_older(version: &str, other: &str) -> bool {
    let parts = |text: &str| -> Option<Vec<u64>> {
        text.split(['-', '+']).next()?.split('.').map(|part| part.parse().ok()).collect()
    };
    matches!((parts(version), parts(other)), (Some(version), Some(other)) if version < other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Exit;
    use crate::testing::{run_against, session_json};

    #[test]
    fn list_is_requested_until_complete_or_the_limit() {
        let page = |behind| SessionListResult { data: Vec::new(), next_cursor: None, behind };
        let mut pages = [true, true, false, true].into_iter();
        let found = complete_list(|| Ok(page(pages.next().unwrap()))).unwrap();
        assert!(!found.behind);
        assert_eq!(pages.len(), 1);
        assert!(complete_list(|| Ok(page(true))).unwrap().behind);
    }

    #[test]
    fn incomplete_list_decides_neither_last_nor_that_a_session_is_missing() {
        let view = |session: &'static str, data: Value, behind: bool| {
            let run = run_against(&["sessions", "view", session], move |method, _| {
                (method == "session.list").then(|| json!({ "data": data, "behind": behind }))
            });
            run.error.unwrap().exit()
        };
        let one = json!([session_json()]);
        assert_eq!(view("last", one.clone(), true), Exit::Busy);
        assert_eq!(view("dead", json!([]), true), Exit::Busy);
        assert_eq!(view("dead", json!([]), false), Exit::NotFound);
        assert_ne!(view("last", one, false), Exit::Busy);
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(is_older("0.9.0", "0.10.0"));
        assert!(is_older("1.2.3-beta", "1.3.0"));
        assert!(!is_older("0.1.0", "0.1.0"));
        assert!(!is_older("what", "0.1.0"));
    }
}
