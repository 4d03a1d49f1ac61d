//! The middle of the tour: writers record, the daemon is killed, and everything acknowledged must still be there.

use std::collections::HashMap;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::content::Role;
use ollm_protocol::method::{SessionCreate, SessionGet, SessionRecord};
use ollm_protocol::methods::session::{
    BranchFilter, MessageInput, SessionCreateParams, SessionGetParams, SessionRecordParams,
};
use serde_json::json;

use super::super::CommandError;
use super::scratch::Scratch;
use super::{Steps, broken};
use crate::connection::{BlockingClient, Connector};
use crate::render::number::grouped;

/// Clients that record at the same time.
const WRITERS: usize = 4;
/// Acknowledged records after which the daemon is killed.
const KILL_AFTER: usize = 400;
/// How long the writers may take to get there.
const PATIENCE: Duration = Duration::from_secs(60);

/// Records, kills, restarts and compares; returns a connection to the new daemon.
pub(super) fn run(
    scratch: &mut Scratch,
    steps: &mut Steps<'_, '_>,
) -> Result<BlockingClient, CommandError> {
    let params = SessionCreateParams {
        title: Some("Crash test".to_owned()),
        ..SessionCreateParams::default()
    };
    let id = scratch.connect()?.call::<SessionCreate>(&params)?.session.session_id;
    let (acknowledged, took) = record_until_killed(scratch, id)?;
    let (count, rate) = (acknowledged.len() as u64, acknowledged.len() as f64 / took.as_secs_f64());
    let text = format!(
        "{WRITERS} clients, one session, {} records acknowledged, each synced to disk\n({rate:.0} a second) then SIGKILL to the daemon while they went on",
        grouped(count)
    );
    steps.tell("record", &text, json!({ "acknowledged": count, "perSecond": rate }))?;

    let restarted = Instant::now();
    let mut client = scratch.connect()?;
    let restart_ms = restarted.elapsed().as_secs_f64() * 1000.0;
    let found = texts_of(&mut client, id)?;
    let missing = acknowledged.iter().filter(|text| found.get(*text) != Some(&1)).count();
    if missing > 0 {
        return Err(broken(&format!("{missing} acknowledged records are missing or twice there")));
    }
    let unacknowledged = found.len() - acknowledged.len();
    let text = format!(
        "back in {restart_ms:.0} ms: all {} acknowledged records are there, each once;\n{unacknowledged} more were written and not yet acknowledged",
        grouped(count)
    );
    let numbers = json!({
        "restartMs": restart_ms,
        "found": count,
        "missing": missing,
        "unacknowledged": unacknowledged,
    });
    steps.tell("recover", &text, numbers)?;
    Ok(client)
}

/// The texts that were acknowledged before the daemon died, and how long that took.
fn record_until_killed(
    scratch: &mut Scratch,
    id: SessionId,
) -> Result<(Vec<String>, Duration), CommandError> {
    let connector = scratch.connector();
    let (acks, acknowledged) = mpsc::channel();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (connector, acks) = (connector.clone(), acks.clone());
            scope.spawn(move || write(&connector, id, writer, &acks));
        }
        drop(acks);
        let mut texts = Vec::new();
        while texts.len() < KILL_AFTER {
            let left = PATIENCE.saturating_sub(began.elapsed());
            match acknowledged.recv_timeout(left) {
                Ok(text) => texts.push(text),
                Err(_) => return Err(broken("the writers do not get on")),
            }
        }
        let took = began.elapsed();
        scratch.kill()?;
        // What was acknowledged up to the last moment counts too.
        texts.extend(acknowledged);
        Ok((texts, took))
    })
}

/// Records until the daemon is gone, telling of each record when it is acknowledged.
fn write(connector: &Connector, id: SessionId, writer: usize, acks: &Sender<String>) {
    let Ok(mut client) = BlockingClient::connect(connector) else { return };
    for at in 0.. {
        let text = text_of(writer, at);
        let message = MessageInput::text(Role::User, text.clone());
        let params = SessionRecordParams { session_id: id, message, key: None };
        if client.call::<SessionRecord>(&params).is_err() || acks.send(text).is_err() {
            return;
        }
    }
}

fn text_of(writer: usize, at: u64) -> String {
    format!("tour: client {writer} says sentence {at}")
}

/// How often each text of the tour is in the session.
fn texts_of(
    client: &mut BlockingClient,
    id: SessionId,
) -> Result<HashMap<String, usize>, CommandError> {
    let mut found = HashMap::new();
    let mut from = Some(0);
    while from.is_some() {
        let params =
            SessionGetParams { session_id: id, from, limit: Some(1000), branch: BranchFilter::All };
        let page = client.call::<SessionGet>(&params)?;
        let messages = page.records.into_iter().filter_map(|record| record.message);
        for text in messages.map(|message| message.plain_text()) {
            if text.starts_with("tour: ") {
                *found.entry(text).or_default() += 1;
            }
        }
        from = page.next_from;
    }
    Ok(found)
}
