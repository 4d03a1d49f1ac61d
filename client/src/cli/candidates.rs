//! What a shell is offered: for SESSION `last` and the ids that go on from what was typed, with their titles; for
//! MODEL the names of the models that the server has.
//!
//! Asks the daemon that runs, starts none, and rather offers less than to keep a person waiting.

use std::ffi::OsStr;
use std::sync::mpsc;
use std::time::Duration;

use clap::builder::StyledStr;
use clap_complete::CompletionCandidate;
use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::method::{ModelList, SessionList};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::model::ModelSummary;
use ollm_protocol::methods::session::SessionListParams;
use ollm_protocol::sanitize;

use crate::address::{Address, Environment};
use crate::connection::{BlockingClient, Connector};

/// How long a person may wait behind a TAB.
const PATIENCE: Duration = Duration::from_millis(90);
/// The most sessions that are offered; nobody chooses from more.
const MAX_OFFERED: u32 = 20;
/// Characters of a title.
const MAX_TITLE_CHARS: usize = 60;

/// What `current` can become.
pub(crate) fn sessions(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = current.to_str().map(str::to_ascii_lowercase) else { return Vec::new() };
    let mut offered = Vec::new();
    if "last".starts_with(&typed) {
        offered.push(candidate("last", "the most recently active session"));
    }
    if !typed.chars().all(|char| char.is_ascii_hexdigit() || char == '-') {
        return offered;
    }
    offered.extend(in_time(move || listed(&typed)).iter().map(|session| {
        let title: String =
            sanitize::one_line(&session.title).chars().take(MAX_TITLE_CHARS).collect();
        candidate(&session.session_id.to_string(), &title)
    }));
    offered
}

/// What `current` can become where a model is named.
pub(crate) fn models(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = current.to_str().map(str::to_owned) else { return Vec::new() };
    let found = in_time(|| {
        let models = daemon()?.call::<ModelList>(&NoParams {}).ok()?;
        Some(models.data)
    });
    let fits = |model: &&ModelSummary| {
        // A name with control characters is nothing to be put on a command line.
        model.model.starts_with(&typed) && !model.model.chars().any(char::is_control)
    };
    let offered = found.iter().filter(fits).take(MAX_OFFERED as usize);
    offered
        .map(|model| {
            let size = model.parameter_size.as_deref().unwrap_or_default();
            candidate(&model.model, &sanitize::one_line(size))
        })
        .collect()
}

/// What somebody who is asked behind a TAB answers in time; nothing where that is not to be had.
fn in_time<T: Send + 'static>(ask: impl FnOnce() -> Option<Vec<T>> + Send + 'static) -> Vec<T> {
    let (send, found) = mpsc::sync_channel(1);
    let asking = std::thread::Builder::new().name("ollmctl-candidates".to_owned());
    // Nobody may be left to hear it.
    match asking.spawn(move || send.send(ask()).ok()) {
        Ok(_) => found.recv_timeout(PATIENCE).ok().flatten().unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// The daemon that runs.
fn daemon() -> Option<BlockingClient> {
    let environment = Environment::read();
    let address = Address::new(None, None, &environment).ok()?;
    let connector = Connector::new(address, &environment).without_spawn().with_timeout(PATIENCE);
    BlockingClient::connect(&connector).ok()
}

fn candidate(value: &str, help: &str) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(StyledStr::from(help.to_owned())))
}

/// The sessions whose id begins so; `None` where nobody can be asked. An archived one is offered only where
/// somebody types its id.
fn listed(typed: &str) -> Option<Vec<Session>> {
    let mut client = daemon()?;
    let mut found = Vec::new();
    let archived = (!typed.is_empty()).then_some(Some(SessionStatus::Archived));
    for status in std::iter::once(None).chain(archived) {
        let params = SessionListParams {
            status,
            id_prefix: (!typed.is_empty()).then(|| typed.to_owned()),
            limit: Some(MAX_OFFERED),
            ..SessionListParams::default()
        };
        found.extend(client.call::<SessionList>(&params).ok()?.data);
    }
    Some(found)
}
