//! Own exports as JSON lines: every record in the form of the wire, so that an import restores the same session.
//!
//! A damaged line loses one record; references to it are moved or dropped, see [`super::remap`].

use std::io::BufRead;

use memchr::memmem;
use ollm_protocol::content::{Record, RecordBody, RecordKind, RecordScope, SessionHeader};
use ollm_protocol::{Seq, SessionId, Timestamp};
use serde_json::Value;
use serde_json::error::Category;

use super::FileFacts;
use super::imported::{ImportError, Imported, Losses};
use super::lines::{FileLine, LineReader};
use super::remap::SeqMap;
use super::spool::{ImportedRecord, RecordSpool, seq_of};
use crate::nesting;
use crate::session::export::JSONL_VERSION;

/// Reads an own export as JSON lines.
///
/// **Errors**: `Newer` and `File` only.
pub(super) fn parse(
    source: impl BufRead,
    file: &FileFacts<'_>,
    records: RecordSpool,
) -> Result<Imported, ImportError> {
    let mut lines = LineReader::new(source, file.max_record_bytes);
    let mut reader = JsonlReader::new(records);
    while let Some(line) = lines.next().map_err(ImportError::File)?
        && !reader.records.has_failed()
    {
        reader.losses.line = Some(line.number);
        if line.is_too_long {
            reader.n_lines += 1;
            reader.losses.add_long_line(file.max_record_bytes);
            continue;
        }
        reader.line(&line)?;
    }
    reader.finish(file.digest_hex, file.fallback_id)
}

struct JsonlReader {
    header: Option<SessionHeader>,
    /// The id of the first line, which names the format.
    session_id: Option<SessionId>,
    records: RecordSpool,
    map: SeqMap,
    last_seq: Option<Seq>,
    n_lines: u64,
    losses: Losses,
}

impl JsonlReader {
    fn new(records: RecordSpool) -> Self {
        Self {
            header: None,
            session_id: None,
            records,
            map: SeqMap::default(),
            last_seq: None,
            n_lines: 0,
            losses: Losses::default(),
        }
    }

    fn line(&mut self, line: &FileLine<'_>) -> Result<(), ImportError> {
        if self.session_id.is_none() && self.first_line(line.text)? {
            return Ok(());
        }
        self.n_lines += 1;
        match serde_json::from_slice::<Record>(line.text) {
            // A header without its metadata is still a header.
            Ok(record)
                if record.kind != RecordKind::Session && nesting::check(&record).is_err() =>
            {
                self.losses.add_too_deep("record");
            }
            Ok(record) => self.record(record),
            Err(_) if nesting::is_unparsable(line.text) => self.losses.add_too_deep("record"),
            Err(cause) if cause.classify() == Category::Data => {
                self.losses.add("record", "not a record of this version");
            }
            Err(_) => self.losses.add_damaged_line(line.is_torn),
        }
        Ok(())
    }

    /// Reads the line that names the format; returns false for any other line.
    fn first_line(&mut self, line: &[u8]) -> Result<bool, ImportError> {
        if memmem::find(line, b"\"ollmExport\"").is_none() {
            return Ok(false);
        }
        let Ok(Value::Object(first)) = serde_json::from_slice(line) else { return Ok(false) };
        let Some(found) = first.get("ollmExport") else { return Ok(false) };
        let found = found.as_u64().unwrap_or(u64::MAX);
        if found > JSONL_VERSION {
            return Err(ImportError::Newer { found, supported: JSONL_VERSION });
        }
        let id = first.get("sessionId").and_then(Value::as_str);
        self.session_id = id.and_then(|id| id.parse().ok());
        Ok(true)
    }

    fn record(&mut self, record: Record) {
        if self.last_seq.is_some_and(|last| record.seq <= last) {
            self.losses.add("record", "its number is not greater than the previous one");
            return;
        }
        let Record { seq, parent, at, .. } = record;
        let key = record.key.clone();
        let Some(mut body) = record.into_body() else {
            self.losses.add("record", "the field that its type requires is missing");
            return;
        };
        self.last_seq = Some(seq);
        if let (Seq(0), RecordBody::Session(header)) = (seq, &body) {
            self.header = Some(header.clone());
            self.map.insert(seq, Seq(0));
            return;
        }
        // A mark of another log says nothing about this one.
        if body.kind().scope() == RecordScope::Log {
            return;
        }
        let parent = self.parent(parent);
        if self.map.apply(&mut body).is_err() {
            self.losses.add("record", "the record that it refers to is lost");
            return;
        }
        self.map.insert(seq, seq_of(self.records.len()));
        self.records.push(ImportedRecord { parent, at, body, key });
    }

    /// Returns the index of the parent, or of the nearest record before a parent that is lost.
    fn parent(&mut self, parent: Option<Seq>) -> Option<usize> {
        let parent = parent?;
        let found = self.map.exact(parent).or_else(|| {
            self.losses.add("parent", "it is lost; the nearest record before it is used");
            self.map.at_or_before(parent)
        })?;
        usize::try_from(found.0).ok()?.checked_sub(1)
    }

    fn finish(mut self, digest_hex: &str, fallback_id: SessionId) -> Result<Imported, ImportError> {
        let mut header = self.header.take().unwrap_or_else(|| {
            self.losses.line = None;
            self.losses.add("header", "it is lost; only the id and the start time are known");
            let first = self.records.first_at();
            SessionHeader {
                imported_from: Some(format!("jsonl:{digest_hex}")),
                ..SessionHeader::new(
                    self.session_id.unwrap_or(fallback_id),
                    first.unwrap_or(Timestamp::from_unix_ms(0)),
                )
            }
        });
        // A fork begins with the records of another session, the header included.
        header.session_id = self.session_id.unwrap_or(header.session_id);
        Imported::new("ollm export".to_owned(), self.n_lines, header, self.records, self.losses)
    }
}
