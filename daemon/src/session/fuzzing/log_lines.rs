//! The check of session logs: any bytes are a log that can be opened, and damage costs only what it touches.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use ollm_protocol::content::{
    Close, CloseReason, Custom, LeafMove, Message, MetaPatch, ModeChange, Part, Record, RecordBody,
    Role, SessionHeader,
};
use ollm_protocol::{Seq, SessionId, Timestamp};
use serde_json::json;

use crate::session::OpenSession;
use crate::session::error::LogError;
use crate::session::index::{IndexProgress, IndexUpdate, KeyEntry, OpenHint};
use crate::session::log::recover::ScanEnd;
use crate::session::log::{LineFields, LogReader, decode_line, encode_line, seal_line};
use crate::session::source::update_of;
use crate::session::testing::FALLBACK_ID;

/// The time at which every summary is made.
const NOW_MS: i64 = 1_800_000_000_000;

/// Checks a log. The first byte selects how the others become its bytes:
///
/// - 0: they are the log.
/// - 1: each line of them becomes a line with a correct checksum.
/// - 2: they are mutations of a valid log, 4 bytes each.
/// - 3: the first three name a bit that is flipped in a valid log.
pub(crate) fn check_log(bytes: &[u8]) {
    let Some((&mode, bytes)) = bytes.split_first() else { return };
    let fixture = LogFixture::new();
    match mode % 4 {
        0 => drop(check_bytes(&fixture, bytes)),
        1 => drop(check_bytes(&fixture, &sealed_lines(bytes))),
        2 => {
            let (mutated, first) = mutate(fixture.bytes.clone(), bytes);
            // A line of a newer version can arise, and refuses the whole log.
            if let Some(found) = check_bytes(&fixture, &mutated) {
                fixture.check_prefix(&found, first);
            }
        }
        _ => fixture.check_flipped_bit(bytes),
    }
}

/// A directory with a valid log.
pub(crate) struct LogFixture {
    dir: tempfile::TempDir,
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: Vec<Record>,
    /// The end of the line of each record.
    ends: Vec<usize>,
}

impl LogFixture {
    /// Encodes a log of every kind of record that the fold reads. Each line confirms the one before it.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let mut fixture = Self { dir, bytes: Vec::new(), records: Vec::new(), ends: Vec::new() };
        for (seq, body) in (0..).zip(bodies()) {
            let parent = u64::checked_sub(seq, 1).map(Seq);
            let line = fixture.encode(seq, parent, (seq % 3 == 0).then_some("a key"), &body);
            fixture.bytes.extend_from_slice(&line);
            fixture.ends.push(fixture.bytes.len());
            let record = decode_line(&line, &fixture.blobs()).expect("reads").expect("is intact");
            assert_eq!(record.clone().into_body(), Some(body));
            fixture.records.push(record);
        }
        fixture
    }

    fn encode(
        &self,
        seq: u64,
        parent: Option<Seq>,
        key: Option<&str>,
        body: &RecordBody,
    ) -> Vec<u8> {
        let digest = KeyEntry { key: [7; 16], payload: [8; 8], seq: seq.try_into().expect("few") };
        let fields = LineFields {
            seq: Seq(seq),
            parent,
            durable: seq.checked_sub(1).map(Seq),
            at: at(seq),
            tokens: Some((9, "estimate-v1")),
            key: key.map(|key| (key, digest)),
            body,
        };
        let mut line = Vec::new();
        encode_line(&fields, &self.blobs(), &mut line).expect("encodes");
        line
    }

    fn blobs(&self) -> PathBuf {
        self.dir.path().join("x.blobs")
    }

    pub(crate) fn id() -> SessionId {
        SessionId::from_uuid(FALLBACK_ID)
    }

    /// Writes a log and returns its path.
    pub(crate) fn write(&self, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join("x.jsonl");
        File::create(&path).and_then(|mut file| file.write_all(bytes)).expect("writes");
        path
    }

    /// Checks that the records whose lines end before `first` are those of the valid log.
    fn check_prefix(&self, found: &[Option<Record>], first: usize) {
        for (seq, end) in self.ends.iter().enumerate() {
            if *end <= first {
                let record = found.get(seq).and_then(Option::as_ref);
                assert_eq!(record, Some(&self.records[seq]), "record {seq} is before the damage");
            }
        }
    }

    /// Flips one bit of a log whose lines are confirmed: it costs at most the record of its line.
    fn check_flipped_bit(&self, position: &[u8]) {
        let [low, high, bit, ..] = *position else { return };
        let at = usize::from(u16::from_le_bytes([low, high])) % self.bytes.len();
        let mut flipped = self.bytes.clone();
        flipped[at] ^= 1 << (bit % 8);
        let found = check_bytes(self, &flipped).expect("a flipped bit makes no newer version");
        for (seq, expected) in self.records.iter().enumerate() {
            let start = seq.checked_sub(1).map_or(0, |before| self.ends[before]);
            let record = found.get(seq).and_then(Option::as_ref);
            if (start..self.ends[seq]).contains(&at) {
                assert!(record.is_none_or(|record| record == expected), "byte {at} bit {bit}");
            } else {
                assert_eq!(record, Some(expected), "byte {at} bit {bit} is not in its line");
            }
        }
    }
}

/// Opens a log as a session.
fn open(path: &Path, hint: Option<OpenHint>) -> Result<(OpenSession, ScanEnd), LogError> {
    let log = LogReader::open(path).expect("opens");
    OpenSession::open(LogFixture::id(), log, path.with_extension("blobs"), hint, 0)
}

/// Returns the entries of a log that a catalog stores.
pub(crate) fn update_of_log(path: &Path) -> IndexUpdate {
    let (session, _) = open(path, None).expect("opens");
    let now = Timestamp::from_unix_ms(NOW_MS);
    update_of(&session, IndexProgress::default(), now).expect("has a log")
}

/// Opens a log with a hint, reads all of it, and returns its records.
pub(crate) fn open_with_hint(path: &Path, hint: OpenHint) -> Vec<Option<Record>> {
    let (session, end) = open(path, Some(hint)).expect("opens");
    use_session(&session, &end, path)
}

/// Writes bytes as a log, opens and reads it, and returns its records: `None` for damaged ones, and for the whole log if
/// it is refused as one of a newer version.
fn check_bytes(fixture: &LogFixture, bytes: &[u8]) -> Option<Vec<Option<Record>>> {
    let path = fixture.write(bytes);
    let (session, end) = match open(&path, None) {
        Err(LogError::UpgradeRequired { found, .. }) => {
            assert!(found > 1);
            return None;
        }
        opened => opened.expect("only a newer version is refused"),
    };
    let records = use_session(&session, &end, &path);
    for record in records.iter().flatten() {
        check_encoding(fixture, record);
    }
    check_hint(&session, &path, &records);
    Some(records)
}

/// Calls everything that reads an open session, and returns its records.
fn use_session(session: &OpenSession, end: &ScanEnd, path: &Path) -> Vec<Option<Record>> {
    let len = std::fs::metadata(path).expect("exists").len();
    let state = session.state();
    assert_eq!(end.point, state.point());
    assert_eq!(end.point.bytes + end.torn_bytes, len, "every byte is read or torn");
    assert_eq!(end.point.records, state.entries().len() as u64);
    let entries: Vec<_> = (0..).map(Seq).zip(state.entries().iter().copied()).collect();
    let reader = session.reader();
    let records: Vec<_> =
        entries.iter().map(|(_, entry)| reader.read(*entry).expect("reads")).collect();
    for ((seq, entry), record) in entries.iter().zip(&records) {
        assert!(entry.offset + u64::from(entry.len) <= end.point.bytes);
        assert!(record.as_ref().is_none_or(|record| record.seq == *seq), "record {seq}");
    }
    assert_eq!(reader.read_all(&entries, &|_| true).expect("reads"), records);
    let path = state.path();
    assert!(path.windows(2).all(|pair| pair[0] < pair[1]));
    drop((session.summary(Timestamp::from_unix_ms(NOW_MS)), state.mode(), state.system_prompt()));
    records
}

/// Checks that a record that was read can be written, and is then read as equal.
fn check_encoding(fixture: &LogFixture, record: &Record) {
    let Some(body) = record.clone().into_body() else { return };
    let key = record.key.as_deref();
    let key = key.map(|key| (key, KeyEntry { key: [1; 16], payload: [2; 8], seq: 3 }));
    let fields = LineFields {
        seq: record.seq,
        parent: record.parent,
        durable: None,
        at: record.at,
        tokens: record.tokens.map(|tokens| (tokens, "estimate-v1")),
        key,
        body: &body,
    };
    let mut line = Vec::new();
    match encode_line(&fields, &fixture.blobs(), &mut line) {
        // A line that another program wrote may be deeper than a writer of this one allows.
        Err(LogError::TooDeep { .. }) => return,
        encoded => _ = encoded.expect("a record that was read can be written"),
    }
    let again = decode_line(&line, &fixture.blobs()).expect("reads").expect("is intact");
    let (seq, parent, at) = (record.seq, record.parent, record.at);
    assert_eq!((again.seq, again.parent, again.at), (seq, parent, at));
    assert_eq!((&again.key, again.tokens), (&record.key, record.tokens));
    assert_eq!(again.into_body(), Some(body));
}

/// Checks that a session opens to the same with what a catalog stores of it.
fn check_hint(session: &OpenSession, path: &Path, records: &[Option<Record>]) {
    let now = Timestamp::from_unix_ms(NOW_MS);
    let update = update_of(session, IndexProgress::default(), now).expect("has a log");
    let IndexUpdate { point, entries, keys, carry, .. } = update;
    let hint = OpenHint { point, entries, keys, carry };
    let (again, end) = open(path, Some(hint)).expect("opens");
    let found = use_session(&again, &end, path);
    assert_eq!(again.state().entries(), session.state().entries());
    assert_eq!(again.summary(now), session.summary(now));
    assert_eq!(found, records);
}

/// Returns the lines with checksums. A line is the JSON of a record without its last brace.
fn sealed_lines(bytes: &[u8]) -> Vec<u8> {
    bytes.split(|byte| *byte == b'\n').flat_map(seal_line).collect()
}

/// Applies mutations of 4 bytes each: the kind, the position, and a value. Returns the first position that changed.
fn mutate(mut bytes: Vec<u8>, mutations: &[u8]) -> (Vec<u8>, usize) {
    let mut first = bytes.len();
    for mutation in mutations.as_chunks::<4>().0.iter().take(16) {
        let [kind, low, high, value] = *mutation;
        if bytes.is_empty() {
            break;
        }
        let at = usize::from(u16::from_le_bytes([low, high])) % bytes.len();
        let end = (at + usize::from(value)).min(bytes.len());
        first = first.min(at);
        match kind % 8 {
            0 => bytes[at] ^= 1 << (value % 8),
            1 => bytes[at] = value,
            2 => bytes.insert(at, value),
            3 => drop(bytes.drain(at..end)),
            4 => bytes[at..end].fill(0),
            5 => bytes.truncate(at),
            6 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            // The rest of the log once more.
            _ => bytes.extend_from_within(at..),
        }
        first = if kind % 8 == 7 { first.min(bytes.len()) } else { first };
    }
    (bytes, first)
}

fn at(seq: u64) -> Timestamp {
    Timestamp::from_unix_ms(1_767_225_600_000 + i64::try_from(seq).expect("few"))
}

/// Returns one body of every kind that the fold reads, and some others.
fn bodies() -> Vec<RecordBody> {
    let header =
        SessionHeader { title: Some("t".into()), ..SessionHeader::new(LogFixture::id(), at(0)) };
    let mut answer = Message::text(Role::Assistant, "a\"b\n\u{1F980}", at(2));
    answer.parts.push(Part::Thinking { text: "hm".into() });
    answer.parts.push(Part::ToolCall { id: "c".into(), name: "n".into(), args: json!({"x": 1.5}) });
    let mode = json!({"from": null, "to": "code", "timestamp": at(3), "trigger": "auto"});
    let mark = json!({"snapshotId": FALLBACK_ID, "leaf": 4, "reason": "epoch"});
    let call = json!({"id": "c", "name": "n", "args": {}, "result": {"llmContent": "out"},
        "timestamp": at(4)});
    vec![
        RecordBody::Session(header),
        RecordBody::Message(Message::text(Role::User, "hello there", at(1))),
        RecordBody::Message(answer),
        RecordBody::ModeChange(serde_json::from_value::<ModeChange>(mode).expect("a mode")),
        RecordBody::ToolCall(serde_json::from_value(call).expect("a call")),
        RecordBody::Meta(MetaPatch { pinned: Some(true), ..MetaPatch::default() }),
        RecordBody::Custom(Custom {
            name: "x".into(),
            data: json!([null, {"y": []}]),
            context_text: Some("seen".into()),
        }),
        RecordBody::Leaf(LeafMove { to: Some(Seq(2)), cause: "undo".into() }),
        RecordBody::Snapshot(serde_json::from_value(mark).expect("a mark")),
        RecordBody::Message(Message::text(Role::User, "more", at(9))),
        RecordBody::Close(Close { reason: CloseReason::Client }),
    ]
}
