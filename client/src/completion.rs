//! Shell completion: `ollmctl completions` prints the script that lets a shell ask this program, and the replies offer
//! commands, flags and the values that the running daemon knows.
//!
//! For SESSION and SNAPSHOT these values are `last` and the matching ids with their titles, for MODEL the names of the model server's
//! models. Never starts the daemon, and offers fewer values rather than delay the shell.

use std::ffi::{OsStr, OsString};
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use clap::builder::StyledStr;
use clap_complete::env::Shells;
use clap_complete::{ArgValueCandidates, ArgValueCompleter, CompleteEnv, CompletionCandidate};
use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::method::{ModelList, SessionList, SnapshotList};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::model::ModelSummary;
use ollm_protocol::methods::session::SessionListParams;
use ollm_protocol::methods::snapshot::SnapshotListParams;
use ollm_protocol::{METHODS, sanitize};

use crate::address::{Address, Environment};
use crate::connection::{BlockingClient, Connector};
use crate::render::session_table::{short_id, short_session_id};
use crate::render::terminal::{OutputError, Terminal};

/// The variable that the script sets when a shell asks for completions.
const REQUEST_VARIABLE: &str = "_OLLMCTL_COMPLETE";
/// The command that is completed, and the program that completes it, both found in `PATH`.
const PROGRAM: &str = "ollmctl";

/// The longest wait for the daemon: a person waits for the shell.
const TIMEOUT: Duration = Duration::from_millis(90);
/// The maximum number of offered values; people do not choose from longer lists.
const MAX_OFFERED: u32 = 20;
/// The sessions whose short forms are compared with typed text: a shell asks again at each key.
const MAX_RECENT: u32 = 500;
/// Characters of a title.
const MAX_TITLE_CHARS: usize = 60;

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
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

/// Prints the script of a shell.
pub(crate) fn run(args: &CompletionsArgs, terminal: &mut Terminal) -> Result<(), OutputError> {
    let mut script = Vec::new();
    if let Some(shell) = Shells::builtins().completer(&args.shell) {
        shell.write_registration(REQUEST_VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    }
    terminal.print_raw(script)
}

/// Replies to a shell that asks for completions of `command`; returns false if the arguments are not such a request.
///
/// **Errors**: the shell is unknown, or the reply cannot be written.
pub(crate) fn complete(
    command: fn() -> clap::Command,
    arguments: &[OsString],
) -> Result<bool, clap::Error> {
    let current_dir = std::env::current_dir().ok();
    CompleteEnv::with_factory(command)
        .var(REQUEST_VARIABLE)
        .completer(PROGRAM)
        .try_complete(arguments.iter().cloned(), current_dir.as_deref())
}

/// Returns the completer of sessions.
pub(crate) fn sessions() -> ArgValueCompleter {
    ArgValueCompleter::new(complete_session)
}

/// Returns the completer of snapshots.
pub(crate) fn snapshots() -> ArgValueCompleter {
    ArgValueCompleter::new(complete_snapshot)
}

/// Returns the candidates for the name of a method. Other names are accepted too, because a newer daemon may know more.
pub(crate) fn methods() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        METHODS.iter().map(|method| candidate(method.name, method.summary)).collect()
    })
}

/// Returns the completer of models.
pub(crate) fn models() -> ArgValueCompleter {
    ArgValueCompleter::new(complete_model)
}

fn complete_session(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = current.to_str().map(str::to_ascii_lowercase) else { return Vec::new() };
    let mut offered = Vec::new();
    if "last".starts_with(&typed) {
        offered.push(candidate("last", "the most recently active session"));
    }
    if !typed.chars().all(|char| char.is_ascii_hexdigit() || char == '-') {
        return offered;
    }
    let part = typed.clone();
    offered.extend(in_time(move || list_sessions(&part)).iter().map(|session| {
        let title = sanitize::one_line(&session.title);
        let title: String = title.chars().take(MAX_TITLE_CHARS).collect();
        let id = session.session_id.to_string();
        let is_short = !id.starts_with(&typed) || typed.is_empty();
        candidate(&if is_short { short_session_id(session) } else { id }, &title)
    }));
    offered
}

fn complete_snapshot(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = current.to_str().map(str::to_ascii_lowercase) else { return Vec::new() };
    let mut offered = Vec::new();
    if "last".starts_with(&typed) {
        offered.push(candidate("last", "the newest snapshot of the session"));
    }
    let found = in_time(|| {
        let params = SnapshotListParams { limit: Some(1000), ..SnapshotListParams::default() };
        Some(connect()?.call::<SnapshotList>(&params).ok()?.data)
    });
    let values = found.iter().map(|info| {
        let id = info.snapshot_id.to_string();
        let is_whole = !typed.is_empty() && id.starts_with(&typed);
        (info, if is_whole { id } else { short_id(info.short_id.as_deref(), id) })
    });
    let matching = values.filter(|(_, value)| value.starts_with(&typed));
    offered.extend(matching.take(MAX_OFFERED as usize).map(|(info, value)| {
        let summary = sanitize::one_line(&info.summary);
        let summary: String = summary.chars().take(MAX_TITLE_CHARS).collect();
        candidate(&value, &summary)
    }));
    offered
}

fn complete_model(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = current.to_str().map(str::to_owned) else { return Vec::new() };
    let found = in_time(|| Some(connect()?.call::<ModelList>(&NoParams {}).ok()?.data));
    let matches = |model: &&ModelSummary| {
        // A name with control characters must not be put on a command line.
        model.model.starts_with(&typed) && !model.model.chars().any(char::is_control)
    };
    let offered = found.iter().filter(matches).take(MAX_OFFERED as usize);
    offered
        .map(|model| {
            let size = model.parameter_size.as_deref().unwrap_or_default();
            candidate(&model.model, &sanitize::one_line(size))
        })
        .collect()
}

/// Returns the results of a query; none if it fails or takes longer than [`TIMEOUT`].
fn in_time<T: Send + 'static>(query: impl FnOnce() -> Option<Vec<T>> + Send + 'static) -> Vec<T> {
    let (send, found) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("ollmctl-completer".to_owned());
    // Sending fails after the timeout.
    match thread.spawn(move || send.send(query()).ok()) {
        Ok(_) => found.recv_timeout(TIMEOUT).ok().flatten().unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// Connects to the running daemon.
fn connect() -> Option<BlockingClient> {
    let environment = Environment::read();
    let address = Address::new(None, None, &environment).ok()?;
    let connector = Connector::new(address, &environment).without_spawn().with_timeout(TIMEOUT);
    BlockingClient::connect(&connector).ok()
}

fn candidate(value: &str, help: &str) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(StyledStr::from(help.to_owned())))
}

/// Lists the sessions whose id, or the short form of it, begins with a text; archived ones only if some of the id was typed.
fn list_sessions(typed: &str) -> Option<Vec<Session>> {
    let mut client = connect()?;
    let mut list = |params: SessionListParams| Some(client.call::<SessionList>(&params).ok()?.data);
    if typed.is_empty() {
        let limit = Some(MAX_OFFERED);
        return list(SessionListParams { limit, ..SessionListParams::default() });
    }
    let mut found: Vec<Session> = Vec::new();
    for status in [None, Some(SessionStatus::Archived)] {
        let of_status = SessionListParams { status, ..SessionListParams::default() };
        let recent = list(SessionListParams { limit: Some(MAX_RECENT), ..of_status.clone() })?;
        found.extend(recent.into_iter().filter(|one| short_session_id(one).starts_with(typed)));
        let (id_prefix, limit) = (Some(typed.to_owned()), Some(MAX_OFFERED));
        let begins = list(SessionListParams { id_prefix, limit, ..of_status })?;
        found.extend(begins);
    }
    found.sort_by_key(|session| std::cmp::Reverse((session.last_activity, session.session_id)));
    found.dedup_by_key(|session| session.session_id);
    found.truncate(MAX_OFFERED as usize);
    Some(found)
}
