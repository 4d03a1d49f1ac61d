//! Sessions in memory, as the session store would give them.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ollm_protocol::content::{
    Message, Record, RecordBody, Role, SearchSort, Session, SessionStatus,
};
use ollm_protocol::{Seq, SessionId, Timestamp};
use uuid::Uuid;

use crate::catalog::search::SearchPage;
use crate::catalog::{Catalog, CatalogOptions, SearchQuery};
use crate::session::index::{Entry, IndexSource, IndexUpdate, KeyEntry, Known, ScanPoint};

pub(super) const HOUR_MS: i64 = 3_600_000;
/// 2026-01-01.
pub(super) const START_MS: i64 = 1_767_225_600_000;

pub(super) fn id(number: u128) -> SessionId {
    SessionId::from_uuid(Uuid::from_u128(number))
}

pub(super) fn at(hours: i64) -> Timestamp {
    Timestamp::from_unix_ms(START_MS + hours * HOUR_MS)
}

pub(super) fn session(id: SessionId, last_activity: Timestamp) -> Session {
    let json = serde_json::json!({
        "sessionId": id, "title": "", "description": "", "status": "active",
        "startTime": last_activity, "lastActivity": last_activity,
        "messageCount": 0, "toolCallCount": 0, "tokenCount": 0, "compressionCount": 0,
    });
    serde_json::from_value(json).expect("a session")
}

#[derive(Clone)]
pub(super) struct Log {
    pub session: Session,
    pub records: Vec<Record>,
    pub keys: Vec<KeyEntry>,
    pub create_key: Option<KeyEntry>,
    /// Makes the checksum another one, as when the log was replaced.
    pub generation: u32,
    pub unreadable: bool,
}

impl Log {
    fn point(&self) -> ScanPoint {
        let records = self.records.len() as u64;
        ScanPoint { bytes: records * 100, records, last_crc: self.generation }
    }

    fn entries(&self, first: usize) -> Vec<Entry> {
        let entry = |(number, record): (usize, &Record)| {
            let role = record.message.as_ref().map(|message| message.role);
            Entry::new((number as u64 * 100, 100), record.parent, record.kind, role, 1, 0)
        };
        self.records.iter().enumerate().skip(first).map(entry).collect()
    }
}

#[derive(Default)]
pub(super) struct Logs {
    pub logs: Mutex<HashMap<SessionId, Log>>,
    pub updates: Mutex<Vec<SessionId>>,
}

impl Logs {
    pub(super) fn with<T>(&self, id: SessionId, change: impl FnOnce(&mut Log) -> T) -> T {
        let mut logs = self.logs.lock().expect("no test panicked here");
        change(logs.entry(id).or_insert_with(|| Log {
            session: session(id, at(0)),
            records: Vec::new(),
            keys: Vec::new(),
            create_key: None,
            generation: 1,
            unreadable: false,
        }))
    }

    pub(super) fn say(&self, id: SessionId, role: Role, at: Timestamp, text: &str) {
        self.with(id, |log| {
            let seq = Seq(log.records.len() as u64);
            let body = RecordBody::Message(Message::text(role, text, at));
            log.records.push(Record::new(seq, None, at, body));
            log.session.last_activity = log.session.last_activity.max(at);
            log.session.message_count += 1;
        });
    }

    pub(super) fn remove(&self, id: SessionId) {
        self.logs.lock().expect("no test panicked here").remove(&id);
    }
}

impl IndexSource for Logs {
    fn logs(&self) -> io::Result<Vec<(SessionId, u64)>> {
        let logs = self.logs.lock().expect("no test panicked here");
        Ok(logs.iter().map(|(id, log)| (*id, log.point().bytes)).collect())
    }

    fn update(&self, id: SessionId, known: Known) -> io::Result<Option<IndexUpdate>> {
        self.updates.lock().expect("no test panicked here").push(id);
        let logs = self.logs.lock().expect("no test panicked here");
        let Some(log) = logs.get(&id) else { return Ok(None) };
        let restart = known.point.records > log.records.len() as u64
            || (known.point.records > 0 && known.point.last_crc != log.generation);
        let (first, first_key) = if restart { (0, 0) } else { (known.point.records, known.keys) };
        Ok(Some(IndexUpdate {
            session: log.session.clone(),
            restart,
            first,
            entries: log.entries(usize::try_from(first).expect("small")),
            first_key,
            keys: log.keys[usize::try_from(first_key).expect("small")..].to_vec(),
            point: log.point(),
            carry: format!("carry of {} records", log.records.len()).into_bytes(),
            create_key: log.create_key,
        }))
    }

    fn records(
        &self,
        id: SessionId,
        entries: &[(Seq, Entry)],
        wants: &dyn Fn(&[u8]) -> bool,
    ) -> io::Result<Vec<Option<Record>>> {
        let logs = self.logs.lock().expect("no test panicked here");
        let log = logs.get(&id).filter(|log| !log.unreadable);
        let log = log.ok_or_else(|| io::Error::other("no log"))?;
        let read = |(seq, entry): &(Seq, Entry)| {
            let number = usize::try_from(seq.0).expect("small");
            assert_eq!(entry.offset, seq.0 * 100, "the entry belongs to the record");
            let record = log.records.get(number)?;
            let line = serde_json::to_vec(record).expect("is JSON");
            wants(&line).then(|| record.clone())
        };
        Ok(entries.iter().map(read).collect())
    }
}

/// A catalog in a scratch directory.
pub(super) struct Bench {
    pub home: tempfile::TempDir,
    pub logs: Arc<Logs>,
    pub catalog: Catalog,
}

impl Bench {
    pub(super) fn new() -> Self {
        let home = tempfile::tempdir().expect("a scratch directory");
        let logs = Arc::new(Logs::default());
        let catalog = open(&home.path().join("catalog.sqlite3"), &logs);
        Self { home, logs, catalog }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.home.path().join("catalog.sqlite3")
    }

    pub(super) fn reopen(&mut self) {
        self.catalog.shutdown();
        self.catalog = open(&self.path(), &self.logs);
    }

    pub(super) fn say(&self, id: SessionId, role: Role, at: Timestamp, text: &str) {
        self.logs.say(id, role, at, text);
        self.catalog.mark_dirty(id);
    }

    pub(super) fn settle(&self) {
        assert!(self.catalog.wait_caught_up(Instant::now() + Duration::from_mins(1)), "catches up");
    }

    /// Removes a session and waits until nothing of it is in the files.
    pub(super) fn forget(&self, id: SessionId) {
        self.catalog.forget(&[id]).expect("forgets");
        self.clean();
    }

    pub(super) fn clean(&self) {
        assert!(self.catalog.wait_clean(Instant::now() + Duration::from_mins(1)), "cleans up");
        assert_eq!(self.catalog.status().forgetting, 0);
    }

    /// Every word found, as `session:seq` newest first.
    pub(super) fn find(&self, query: &str) -> String {
        self.find_with(&search(query))
    }

    pub(super) fn find_with(&self, query: &SearchQuery<'_>) -> String {
        places(&self.catalog.search(query).expect("searches"))
    }

    /// Whether any file of the catalog contains these bytes.
    pub(super) fn holds(&self, bytes: &[u8]) -> bool {
        self.files().contain(bytes)
    }

    /// Reads all files of the catalog, the journal before the database: a checkpoint in between moves pages from
    /// the journal to the database, and in the other order they would be seen in neither.
    pub(super) fn files(&self) -> Files {
        let entries = std::fs::read_dir(self.home.path()).expect("lists");
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort_by_key(|path| !path.to_string_lossy().ends_with("-wal"));
        Files(paths.iter().map(|path| std::fs::read(path).expect("reads")).collect())
    }
}

/// The contents of all files of a catalog.
pub(super) struct Files(Vec<Vec<u8>>);

impl Files {
    pub(super) fn contain(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|content| memchr::memmem::find(content, bytes).is_some())
    }
}

pub(super) fn open(path: &std::path::Path, logs: &Arc<Logs>) -> Catalog {
    let source: Arc<dyn IndexSource> = Arc::<Logs>::clone(logs);
    Catalog::open(path.to_owned(), source, &CatalogOptions::default()).expect("opens")
}

pub(super) fn search(query: &str) -> SearchQuery<'_> {
    SearchQuery {
        query,
        session_id: None,
        project_hash: None,
        role: None,
        since: None,
        until: None,
        sort: SearchSort::Newest,
        limit: 25,
        cursor: None,
    }
}

pub(super) fn places(page: &SearchPage) -> String {
    let place = |hit: &ollm_protocol::content::SearchHit| {
        format!("{}:{}", hit.session_id.as_uuid().as_u128(), hit.seq)
    };
    page.hits.iter().map(place).collect::<Vec<_>>().join(" ")
}

pub(super) const LISTED: &[SessionStatus] =
    &[SessionStatus::Active, SessionStatus::Closed, SessionStatus::Corrupted];
