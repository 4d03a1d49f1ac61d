//! The crash of the tour: clients record, the daemon is killed, and every acknowledged record must still be there.

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

use super::home::TourHome;
use super::report::{StepReport, check};
use crate::command_error::CommandResult;
use crate::connection::{BlockingClient, Connector};
use crate::render::units::grouped;

/// Clients that record at the same time.
const WRITERS: usize = 4;
/// Acknowledged records after which the daemon is killed.
const KILL_AFTER: usize = 400;
/// The longest wait for that number of records.
const RECORD_LIMIT: Duration = Duration::from_secs(60);

/// The records that the daemon acknowledged before it was killed.
pub(super) struct Crash {
    session_id: SessionId,
    texts: Vec<String>,
    /// The time until the daemon was killed.
    duration: Duration,
}

/// Records with several clients and kills the daemon.
pub(super) fn record_and_kill(home: &mut TourHome) -> CommandResult<Crash> {
    let title = Some("Crash test".to_owned());
    let params = SessionCreateParams { title, ..SessionCreateParams::default() };
    let session_id = home.connect()?.call::<SessionCreate>(&params)?.session.session_id;
    let connector = home.connector();
    let (sender, acknowledged) = mpsc::channel();
    let started = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (connector, sender) = (connector.clone(), sender.clone());
            scope.spawn(move || record_until_killed(&connector, session_id, writer, &sender));
        }
        drop(sender);
        let mut texts = Vec::new();
        while texts.len() < KILL_AFTER {
            let left = RECORD_LIMIT.saturating_sub(started.elapsed());
            let text = acknowledged.recv_timeout(left).ok();
            check(text.is_some(), "the clients make no progress")?;
            texts.extend(text);
        }
        let duration = started.elapsed();
        home.kill_daemon()?;
        // Adds the records that were acknowledged until the kill.
        texts.extend(acknowledged);
        Ok(Crash { session_id, texts, duration })
    })
}

impl Crash {
    pub(super) fn report(&self) -> StepReport {
        let count = self.texts.len() as u64;
        let rate = count as f64 / self.duration.as_secs_f64();
        let text = format!(
            "{WRITERS} clients, one session: {} records acknowledged, each synced to disk\n({rate:.0} a second), then SIGKILL to the daemon while the clients record",
            grouped(count)
        );
        (text, json!({ "acknowledged": count, "perSecond": rate }))
    }

    /// Restarts the daemon and compares its records with the acknowledged ones; returns a connection to it.
    pub(super) fn recover(
        &self,
        home: &mut TourHome,
    ) -> CommandResult<(BlockingClient, StepReport)> {
        let restarted = Instant::now();
        let mut client = home.connect()?;
        let restart_ms = restarted.elapsed().as_secs_f64() * 1000.0;
        let found = recorded_texts(&mut client, self.session_id)?;
        let missing = self.texts.iter().filter(|text| found.get(*text) != Some(&1)).count();
        let failure = format!("{missing} acknowledged records are missing or duplicated");
        check(missing == 0, &failure)?;
        let count = self.texts.len();
        let unacknowledged = found.len() - count;
        let text = format!(
            "restarted in {restart_ms:.0} ms: all {} acknowledged records are there, each once;\n{unacknowledged} more were written but not acknowledged",
            grouped(count as u64)
        );
        let numbers = json!({
            "restartMs": restart_ms, "found": count, "missing": missing,
            "unacknowledged": unacknowledged,
        });
        Ok((client, (text, numbers)))
    }
}

/// Records until the daemon is killed; sends each text when it is acknowledged.
fn record_until_killed(
    connector: &Connector,
    id: SessionId,
    writer: usize,
    acknowledged: &Sender<String>,
) {
    let Ok(mut client) = BlockingClient::connect(connector) else { return };
    for at in 0_u64.. {
        let text = format!("tour: client {writer} writes sentence {at}");
        let message = MessageInput::text(Role::User, text.clone());
        let params = SessionRecordParams { session_id: id, message, key: None };
        if client.call::<SessionRecord>(&params).is_err() || acknowledged.send(text).is_err() {
            return;
        }
    }
}

/// Returns the texts of the tour in a session, with the number of times that each occurs.
fn recorded_texts(
    client: &mut BlockingClient,
    id: SessionId,
) -> CommandResult<HashMap<String, usize>> {
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
