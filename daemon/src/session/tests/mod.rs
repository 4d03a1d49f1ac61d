//! The laws of the session log, on real files and on a faulty twin.

mod faults;
mod recovery;
mod writing;

use std::path::Path;
use std::sync::{Arc, Mutex};

use ollm_protocol::content::{Message, RecordBody, Role, SessionHeader};
use ollm_protocol::{Seq, SessionId, Timestamp};

use super::log::file::{OpenLogFile, open_real};
use super::store::{Sessions, SessionsOptions};
use super::{Appended, Birth, Change, Draft, KeyUse, Observer, SessionError};
use crate::clock::Clock;

/// Keeps what it was told.
#[derive(Default)]
pub(super) struct Notes(Mutex<Vec<String>>);

impl Notes {
    fn taken(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }
}

impl Observer for Notes {
    fn changed(&self, _: SessionId, change: &Change<'_>) {
        let note = match change {
            Change::Created(session) => format!("created {}", session.title),
            Change::Recorded { seq, body, .. } => format!("{seq} {:?}", body.kind()),
            Change::Recovered { torn_bytes, damaged } => format!("torn {torn_bytes} {damaged}"),
        };
        self.0.lock().expect("no panic").push(note);
    }
}

pub(super) fn sessions_with(dir: &Path, open: Box<OpenLogFile>) -> (Sessions, Arc<Notes>) {
    let notes = Arc::new(Notes::default());
    let options = SessionsOptions {
        dir: dir.to_owned(),
        clock: Arc::new(Clock::system()),
        observer: Arc::<Notes>::clone(&notes),
    };
    (Sessions::with_files(options, open), notes)
}

pub(super) fn sessions(dir: &Path) -> Sessions {
    sessions_with(dir, Box::new(open_real)).0
}

pub(super) fn birth() -> Birth {
    let clock = Clock::system();
    let header = SessionHeader {
        model: Some("tiny:1b".to_owned()),
        ..SessionHeader::new(clock.session_id(), clock.now())
    };
    Birth { header, key: None }
}

pub(super) fn says(text: &str) -> Draft {
    let message = Message::text(Role::User, text, Timestamp::from_unix_ms(1_700_000_000_000));
    Draft::new(RecordBody::Message(message), Some((7, "estimate-v1".into())))
}

pub(super) fn keyed(key: &str, payload: &str) -> Option<KeyUse> {
    Some(KeyUse::new("session.record", key.to_owned(), payload.as_bytes()))
}

pub(super) fn append(
    sessions: &Sessions,
    id: SessionId,
    draft: Draft,
    key: Option<KeyUse>,
) -> Result<Appended, SessionError> {
    let answer = sessions.append(id, vec![draft], key)?;
    answer.blocking_recv().expect("the writer answers every write")
}

/// The texts of all messages, in the order of the log.
pub(super) fn texts(sessions: &Sessions, id: SessionId) -> Vec<String> {
    let count = sessions.with(id, |live| live.state().entries().len()).expect("opens");
    let seqs: Vec<_> = (0..count as u64).map(Seq).collect();
    let bodies = sessions.bodies(id, &seqs).expect("reads");
    bodies
        .into_iter()
        .filter_map(|body| match body {
            Some(RecordBody::Message(message)) => Some(message.plain_text()),
            _ => None,
        })
        .collect()
}
