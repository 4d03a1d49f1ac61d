//! The catalog as its callers see it, over logs in memory.

mod damage;
mod following;
mod forgetting;
mod recalling;
mod searching;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::{
    Message, Record, RecordBody, Role, SearchHit, SearchSort, Session, SessionStatus,
};
use ollm_protocol::{Seq, SessionId, Timestamp};
use parking_lot::Mutex;
use uuid::Uuid;

use super::{Catalog, SearchPage, SearchQuery};
use crate::session::index::{
    IndexEntry, IndexProgress, IndexSource, IndexUpdate, KeyEntry, ScanPoint, SourceError,
    UpdateScope,
};

const HOUR_MS: i64 = 3_600_000;
/// 2026-01-01.
const START_MS: i64 = 1_767_225_600_000;
const LISTED: &[SessionStatus] =
    &[SessionStatus::Active, SessionStatus::Closed, SessionStatus::Corrupted];

fn id(number: u128) -> SessionId {
    SessionId::from_uuid(Uuid::from_u128(number))
}

fn at(hours: i64) -> Timestamp {
    Timestamp::from_unix_ms(START_MS + hours * HOUR_MS)
}

fn session(id: SessionId, last_activity: Timestamp) -> Session {
    let json = serde_json::json!({
        "sessionId": id, "title": "", "description": "", "status": "active",
        "startTime": last_activity, "lastActivity": last_activity,
        "messageCount": 0, "toolCallCount": 0, "tokenCount": 0, "compressionCount": 0,
    });
    serde_json::from_value(json).expect("a session")
}

/// A log in memory. Every line counts as 100 bytes.
#[derive(Clone)]
struct FakeLog {
    session: Session,
    records: Vec<Record>,
    keys: Vec<KeyEntry>,
    create_key: Option<KeyEntry>,
    /// Changes the checksum, as the replacement of a log does.
    generation: u32,
    is_unreadable: bool,
    is_unusable: bool,
    /// The records whose text is missing.
    missing: Vec<Seq>,
}

impl FakeLog {
    fn new(id: SessionId) -> Self {
        Self {
            session: session(id, at(0)),
            records: Vec::new(),
            keys: Vec::new(),
            create_key: None,
            generation: 1,
            is_unreadable: false,
            is_unusable: false,
            missing: Vec::new(),
        }
    }

    fn point(&self) -> ScanPoint {
        let records = self.records.len() as u64;
        ScanPoint { bytes: records * 100, records, last_crc: self.generation }
    }

    fn entries(&self, first: usize) -> Vec<IndexEntry> {
        let entry = |(number, record): (usize, &Record)| {
            let role = record.message.as_ref().map(|message| message.role);
            IndexEntry::new((number as u64 * 100, 100), record.parent, record.kind, role, 1, 0)
        };
        self.records.iter().enumerate().skip(first).map(entry).collect()
    }
}

#[derive(Default)]
struct FakeLogs {
    logs: Mutex<HashMap<SessionId, FakeLog>>,
    /// The sessions for which the catalog requested updates.
    updates: Mutex<Vec<SessionId>>,
}

impl FakeLogs {
    /// Changes a log, which is created if it is missing.
    fn change<T>(&self, id: SessionId, change: impl FnOnce(&mut FakeLog) -> T) -> T {
        change(self.logs.lock().entry(id).or_insert_with(|| FakeLog::new(id)))
    }

    fn record(&self, id: SessionId, role: Role, at: Timestamp, text: &str) {
        self.change(id, |log| {
            let seq = Seq(log.records.len() as u64);
            let body = RecordBody::Message(Message::text(role, text, at));
            log.records.push(Record::new(seq, None, at, body));
            log.session.last_activity = log.session.last_activity.max(at);
            log.session.message_count += 1;
        });
    }

    fn remove(&self, id: SessionId) {
        self.logs.lock().remove(&id);
    }
}

impl IndexSource for FakeLogs {
    fn logs(&self) -> Result<Vec<(SessionId, u64)>, SourceError> {
        Ok(self.logs.lock().iter().map(|(id, log)| (*id, log.point().bytes)).collect())
    }

    fn update(
        &self,
        id: SessionId,
        known: IndexProgress,
        scope: UpdateScope,
    ) -> Result<Option<IndexUpdate>, SourceError> {
        self.updates.lock().push(id);
        let logs = self.logs.lock();
        let Some(log) = logs.get(&id) else { return Ok(None) };
        if log.is_unusable {
            return Err(SourceError::Unusable(io::Error::other("no log")));
        }
        let restart = scope == UpdateScope::Whole
            || known.point.records > log.records.len() as u64
            || (known.point.records > 0 && known.point.last_crc != log.generation);
        let (first, first_key) = if restart { (0, 0) } else { (known.point.records, known.keys) };
        Ok(Some(IndexUpdate {
            session: log.session.clone(),
            restart,
            entries: log.entries(usize::try_from(first).expect("small")),
            keys: log.keys[usize::try_from(first_key).expect("small")..].to_vec(),
            point: log.point(),
            carry: format!("carry of {} records", log.records.len()).into_bytes(),
            create_key: log.create_key,
        }))
    }

    fn records(
        &self,
        id: SessionId,
        entries: &[(Seq, IndexEntry)],
        wants: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<Option<Record>>, SourceError> {
        let logs = self.logs.lock();
        let log = logs.get(&id).filter(|log| !log.is_unreadable);
        let log = log.ok_or_else(|| SourceError::Unreadable(io::Error::other("no log")))?;
        let read = |(seq, entry): &(Seq, IndexEntry)| {
            let number = usize::try_from(seq.0).expect("small");
            assert_eq!(entry.offset, seq.0 * 100, "the entry belongs to the record");
            let record = log.records.get(number)?;
            let line = serde_json::to_vec(record).expect("is JSON");
            (wants(&line) && !log.missing.contains(seq)).then(|| record.clone())
        };
        Ok(entries.iter().map(read).collect())
    }
}

/// A catalog in a temporary directory.
struct CatalogFixture {
    home: tempfile::TempDir,
    logs: Arc<FakeLogs>,
    catalog: Catalog,
}

impl CatalogFixture {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let logs = Arc::new(FakeLogs::default());
        let catalog = open(&home.path().join("catalog.sqlite3"), &logs);
        Self { home, logs, catalog }
    }

    fn path(&self) -> PathBuf {
        self.home.path().join("catalog.sqlite3")
    }

    fn reopen(&mut self) {
        self.catalog.shutdown();
        self.catalog = open(&self.path(), &self.logs);
    }

    fn record(&self, id: SessionId, role: Role, at: Timestamp, text: &str) {
        self.logs.record(id, role, at, text);
        self.catalog.mark_dirty(id);
    }

    fn catch_up(&self) {
        assert!(self.catalog.wait_caught_up(Instant::now() + Duration::from_mins(1)), "catches up");
    }

    /// Removes a session and waits until nothing of it is in the files.
    fn forget(&self, id: SessionId) {
        self.catalog.forget(&[id]).expect("forgets");
        self.wait_clean();
    }

    fn wait_clean(&self) {
        assert!(self.catalog.wait_clean(Instant::now() + Duration::from_mins(1)), "cleans up");
        assert_eq!(self.catalog.status().forgetting, 0);
    }

    /// Returns all hits as `session:seq`, the newest first.
    fn find(&self, query: &str) -> String {
        self.find_with(&search(query))
    }

    fn find_with(&self, query: &SearchQuery<'_>) -> String {
        locations(&self.catalog.search(query).expect("searches"))
    }

    /// Returns whether any file of the catalog contains these bytes.
    fn contains(&self, bytes: &[u8]) -> bool {
        self.files().contain(bytes)
    }

    /// Reads all files of the catalog, the journal before the database: a checkpoint in between moves pages from the
    /// journal to the database, and in the other order they would be seen in neither.
    fn files(&self) -> FileContents {
        loop {
            let entries = std::fs::read_dir(self.home.path()).expect("lists");
            let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
            paths.sort_by_key(|path| !path.to_string_lossy().ends_with("-wal"));
            let contents: std::io::Result<Vec<_>> = paths.iter().map(std::fs::read).collect();
            match contents {
                // The seal gets its name after it was written.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                contents => return FileContents(contents.expect("reads")),
            }
        }
    }
}

/// The contents of all files of a catalog.
struct FileContents(Vec<Vec<u8>>);

impl FileContents {
    fn contain(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|content| memchr::memmem::find(content, bytes).is_some())
    }
}

fn open(path: &Path, logs: &Arc<FakeLogs>) -> Catalog {
    let source: Arc<dyn IndexSource> = Arc::<FakeLogs>::clone(logs);
    Catalog::open(path.to_owned(), source).expect("opens")
}

fn search(query: &str) -> SearchQuery<'_> {
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

/// Returns the hits of a page as `session:seq`.
fn locations(page: &SearchPage) -> String {
    let location = |hit: &SearchHit| format!("{}:{}", hit.session_id.as_uuid().as_u128(), hit.seq);
    page.hits.iter().map(location).collect::<Vec<_>>().join(" ")
}
