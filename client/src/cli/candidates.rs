//! What a shell is offered for SESSION: `last` and the ids that go on from what was typed, with their titles.
//!
//! Asks the daemon that runs, starts none, and rather offers less than to keep a person waiting.

use std::ffi::OsStr;
use std::sync::mpsc;
use std::time::Duration;

use clap::builder::StyledStr;
use clap_complete::CompletionCandidate;
use ollm_protocol::method::SessionList;
use ollm_protocol::methods::session::{Session, SessionListParams, SessionStatus};

use crate::address::{Address, Environment};
use crate::connection::{BlockingClient, Connector};
use crate::render::clean;

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
    let (send, found) = mpsc::sync_channel(1);
    let asking = std::thread::Builder::new().name("ollmctl-candidates".to_owned());
    let asked = asking.spawn(move || {
        // Nobody may be left to hear it.
        send.send(listed(&typed)).ok()
    });
    if asked.is_ok() {
        let found = found.recv_timeout(PATIENCE).ok().flatten().unwrap_or_default();
        offered.extend(found.iter().map(|session| {
            let title: String =
                clean::one_line(&session.title).chars().take(MAX_TITLE_CHARS).collect();
            candidate(&session.session_id.to_string(), &title)
        }));
    }
    offered
}

fn candidate(value: &str, help: &str) -> CompletionCandidate {
    CompletionCandidate::new(value).help(Some(StyledStr::from(help.to_owned())))
}

/// The sessions whose id begins so; `None` where nobody can be asked. An archived one is offered only where
/// somebody types its id.
fn listed(typed: &str) -> Option<Vec<Session>> {
    let environment = Environment::read();
    let address = Address::new(None, None, &environment).ok()?;
    let connector = Connector::new(address, &environment).without_spawn().with_timeout(PATIENCE);
    let mut client = BlockingClient::connect(&connector).ok()?;
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
