//! Sessions of the coding agent pi, versions 1 to 3: JSON lines, first a header, then entries.
//!
//! Version 1 is linear and has no entry ids; from version 2 on `id` and `parentId` make a tree whose active
//! leaf is the last entry; version 3 renamed one role. All three are read by one reader, because every field
//! that differs names itself.
//!
//! **Source**: `packages/coding-agent/docs/session.md` in <https://github.com/badlogic/pi-mono>.

mod entry;
mod message;

use std::collections::HashMap;

use ollm_protocol::content::{ImportReport, Part, RecordBody, RecordScope, SessionHeader};
use ollm_protocol::{Seq, SessionId, Timestamp};
use serde_json::Value;

use super::fields::Fields;
use super::losses::Losses;
use super::{Imported, ImportedRecord, damaged, end_at, lines, seq_of};

/// The newest version whose entries are known.
const NEWEST: u64 = 3;

/// Reads a pi session; what cannot be read is in the report.
pub(super) fn parse(
    text: &str,
    digest_hex: &str,
    fallback_id: impl FnOnce() -> SessionId,
) -> Imported {
    let mut reader = Reader { version: 1, ..Reader::default() };
    let mut n_lines = 0;
    for (number, line, torn) in lines(text) {
        n_lines += 1;
        if let Some(fields) = serde_json::from_str(line).ok().and_then(Fields::of) {
            reader.line(number, fields);
        } else {
            let (what, reason) = damaged(torn);
            reader.losses.add(Some(number), what, reason);
        }
    }
    reader.finish(n_lines, digest_hex, fallback_id)
}

/// Where an entry of the file went.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// The end of the path before the entry.
    before: Option<usize>,
    /// The first record that was made of it.
    first: Option<usize>,
    /// The end of the path after it.
    tail: Option<usize>,
}

#[derive(Default)]
struct Reader {
    version: u64,
    header: Option<SessionHeader>,
    foreign_id: Option<String>,
    title: Option<String>,
    records: Vec<ImportedRecord>,
    /// For each record the first record of its path.
    roots: Vec<usize>,
    by_id: HashMap<String, Place>,
    /// By position in the file, the header included, as version 1 refers to entries.
    by_index: Vec<Place>,
    /// The end of the path that the next entry of a linear file continues.
    tail: Option<usize>,
    /// By id of a tool call, the record of the message that made it and the part that is the call.
    calls: HashMap<String, (usize, usize)>,
    provider: Option<String>,
    /// The instant of the entry before, for entries that have none.
    at: Option<Timestamp>,
    losses: Losses,
}

impl Reader {
    fn line(&mut self, number: u64, mut fields: Fields) {
        let line = Some(number);
        let kind = fields.text("type").unwrap_or_default();
        if kind == "session" && self.header.is_none() {
            self.header(line, fields);
            self.by_index.push(Place::default());
            return;
        }
        let id = fields.text("id");
        if self.version > 1 {
            self.find_parent(line, &mut fields);
        }
        let at = self.entry_time(line, &mut fields);
        let mut place = Place { before: self.tail, first: None, tail: None };
        let n_before = self.records.len();
        self.entry(Entry { line, kind, id: id.as_deref(), at, fields });
        place.first = (self.records.len() > n_before).then_some(n_before);
        place.tail = self.tail;
        self.by_index.push(place);
        if let Some(id) = id {
            self.by_id.insert(id, place);
        }
    }

    fn header(&mut self, line: Option<u64>, mut fields: Fields) {
        self.version = fields.count("version").unwrap_or(1).max(1);
        if self.version > NEWEST {
            self.losses.add(line, "version", "newer than 3; read as 3");
        }
        let start_time = fields.time("timestamp");
        let id = fields.text("id").unwrap_or_default();
        let session_id = id.parse();
        if session_id.is_err() {
            self.losses.add(line, "session id", "not a UUID; the session has another one");
            self.foreign_id = Some(id);
        }
        let placeholder = SessionId::from_uuid(uuid::Uuid::nil());
        let mut header = SessionHeader::new(
            session_id.unwrap_or(placeholder),
            start_time.unwrap_or(Timestamp::from_unix_ms(0)),
        );
        self.at = start_time;
        header.project_path = fields.text("cwd").filter(|path| !path.is_empty());
        header.model = fields.text("modelId");
        header.provider = fields.text("provider");
        self.provider.clone_from(&header.provider);
        for origin in ["branchedFrom", "parentSession"] {
            if let Some(path) = fields.text(origin) {
                header.metadata.insert(origin.to_owned(), Value::String(path));
            }
        }
        fields.report_rest(&mut self.losses, line, "session");
        self.header = Some(header);
    }

    /// Continues at the entry's parent; where that is lost, at the entry before.
    fn find_parent(&mut self, line: Option<u64>, fields: &mut Fields) {
        if let Some(parent) = fields.text("parentId") {
            if let Some(place) = self.by_id.get(&parent) {
                self.tail = place.tail;
            } else {
                self.losses.add(line, "parentId", "no such entry; continued from the one before");
            }
        } else if fields.value("parentId").is_none() {
            self.tail = None;
        }
    }

    fn entry_time(&mut self, line: Option<u64>, fields: &mut Fields) -> Timestamp {
        let before = self.at.unwrap_or(Timestamp::from_unix_ms(0));
        let at = fields.time("timestamp").unwrap_or_else(|| {
            self.losses.add(
                line,
                "timestamp",
                "missing or not an instant; that of the entry before",
            );
            before
        });
        self.at = Some(at);
        at
    }

    /// Appends a record at the end of the current path and returns its index.
    fn push(&mut self, at: Timestamp, body: RecordBody) -> usize {
        let index = self.records.len();
        self.roots.push(self.tail.map_or(index, |parent| self.roots[parent]));
        let on_path = body.kind().scope() == RecordScope::Path;
        self.records.push(ImportedRecord { parent: self.tail, at, body, key: None });
        if on_path {
            self.tail = Some(index);
        }
        index
    }

    /// Notes the calls that a message makes, for the results that follow.
    fn note_calls(&mut self, index: usize) {
        let RecordBody::Message(message) = &self.records[index].body else { return };
        for (at, part) in message.parts.iter().enumerate() {
            if let Part::ToolCall { id, .. } = part {
                self.calls.insert(id.clone(), (index, at));
            }
        }
    }

    /// The name and the arguments of an earlier call.
    fn find_call(&self, id: &str) -> Option<(String, Value)> {
        let &(index, at) = self.calls.get(id)?;
        let RecordBody::Message(message) = &self.records[index].body else { return None };
        match &message.parts[at] {
            Part::ToolCall { name, args, .. } => Some((name.clone(), args.clone())),
            _ => None,
        }
    }

    fn finish(
        mut self,
        n_lines: u64,
        digest_hex: &str,
        fallback_id: impl FnOnce() -> SessionId,
    ) -> Imported {
        let end = self.at.unwrap_or(Timestamp::from_unix_ms(0));
        end_at(&mut self.records, self.tail, end);
        let placeholder = SessionId::from_uuid(uuid::Uuid::nil());
        let mut header = self.header.take().unwrap_or_else(|| SessionHeader::new(placeholder, end));
        if self.foreign_id.is_some() || header.session_id == placeholder {
            header.session_id = fallback_id();
        }
        // A branched session keeps the entries that are older than itself.
        let first = self.records.iter().map(|record| record.at).min();
        header.start_time = first.map_or(header.start_time, |first| first.min(header.start_time));
        header.title = self.title;
        header.imported_from = Some(format!("pi:{digest_hex}"));
        let report = ImportReport {
            format: format!("pi v{}", self.version),
            source_records: n_lines,
            imported_records: self.records.len() as u64 + 1,
            already_imported: false,
            losses: self.losses.finish(),
        };
        Imported { header, records: self.records, report }
    }
}

/// One line after the header.
struct Entry<'a> {
    line: Option<u64>,
    kind: String,
    id: Option<&'a str>,
    at: Timestamp,
    fields: Fields,
}

impl Place {
    fn first_seq(&self) -> Option<Seq> {
        self.first.map(seq_of)
    }

    fn tail_seq(&self) -> Option<Seq> {
        self.tail.map(seq_of)
    }
}
