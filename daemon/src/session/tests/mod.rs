//! The laws of sessions, on real files and on files that fail.

mod faults;
mod first_write;
mod fork;
mod operations;
mod panics;
mod planning;
mod recovery;
mod writing;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ollm_protocol::content::{Message, RecordBody, Role, SessionHeader};
use ollm_protocol::{Seq, SessionId, Timestamp};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::index::{HintSource, OpenHint};
use super::log::{OpenLogFile, open_real};
use super::store::Sessions;
use super::{
    Appended, IdempotencyKey, NewRecord, NewSession, Observer, SessionChange, SessionError,
};
use crate::clock::Clock;

/// An observer that keeps a line for each change.
#[derive(Default)]
struct ChangeLog(Mutex<Vec<String>>);

impl ChangeLog {
    fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

impl Observer for ChangeLog {
    fn changed(&self, _: SessionId, change: &SessionChange<'_>) {
        let line = match change {
            SessionChange::Created(session) => format!("created {}", session.title),
            SessionChange::Recorded { seq, body, .. } => format!("{seq} {:?}", body.kind()),
            SessionChange::Damaged { damaged } => format!("damaged {damaged}"),
            SessionChange::Recovered { torn_bytes, damaged } => {
                format!("torn {torn_bytes} {damaged}")
            }
            SessionChange::Healed { records } => format!("healed {records}"),
        };
        self.0.lock().push(line);
    }
}

/// Opens the sessions of a directory with `open` as the way to open logs.
fn open_with(dir: &Path, open: Box<OpenLogFile>) -> (Sessions, Arc<ChangeLog>) {
    let changes = Arc::new(ChangeLog::default());
    let clock = Arc::new(Clock::system());
    let observer = Arc::<ChangeLog>::clone(&changes);
    (Sessions::with_files(dir.to_owned(), clock, observer, open), changes)
}

/// A catalog with one hint.
struct StoredHint(OpenHint);

impl HintSource for StoredHint {
    fn hint(&self, _: SessionId) -> Option<OpenHint> {
        Some(self.0.clone())
    }
}

/// A session in a directory of its own.
struct Fixture {
    dir: TempDir,
    sessions: Sessions,
    changes: Arc<ChangeLog>,
    id: SessionId,
}

impl Fixture {
    /// Creates a session, which is a draft.
    fn new() -> Self {
        Self::with_files(Box::new(open_real))
    }

    fn with_files(open: Box<OpenLogFile>) -> Self {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let (sessions, changes) = open_with(dir.path(), open);
        let session = new_session();
        let id = session.header.session_id;
        assert!(sessions.create(session).expect("creates").draft);
        Self { dir, sessions, changes, id }
    }

    /// Opens the directory again, as a restarted daemon does.
    fn reopened(&self) -> Sessions {
        open_with(self.dir.path(), Box::new(open_real)).0
    }

    fn append(&self, record: NewRecord) -> Appended {
        append(&self.sessions, self.id, record, None).expect("records")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join(format!("{}.jsonl", self.id))
    }

    /// Returns the names of the files in the directory.
    fn files(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.dir.path()).expect("lists");
        let name = |file: std::fs::DirEntry| file.file_name().into_string().expect("is UTF-8");
        files.map(|file| name(file.expect("lists"))).collect()
    }
}

fn new_session() -> NewSession {
    let clock = Clock::system();
    let header = SessionHeader {
        model: Some("tiny:1b".to_owned()),
        ..SessionHeader::new(clock.session_id(), clock.now())
    };
    NewSession { header, key: None }
}

fn message(text: &str) -> NewRecord {
    let message = Message::text(Role::User, text, Timestamp::from_unix_ms(1_700_000_000_000));
    NewRecord::new(RecordBody::Message(message), Some((7, "estimate-v1".into())))
}

fn key(text: &str, payload: &str) -> Option<IdempotencyKey> {
    Some(IdempotencyKey::new("session.record", text.to_owned(), payload.as_bytes()))
}

fn append(
    sessions: &Sessions,
    id: SessionId,
    record: NewRecord,
    key: Option<IdempotencyKey>,
) -> Result<Appended, SessionError> {
    sessions.append(id, vec![record], key)?.wait()
}

/// Returns the texts of all messages in the order of the log.
fn texts(sessions: &Sessions, id: SessionId) -> Vec<String> {
    let count = sessions.with(id, |session| session.state().entries().len()).expect("opens");
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
