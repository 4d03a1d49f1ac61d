//! Sessions of the coding agent pi, versions 1 to 3: JSON lines, a header and then entries.
//!
//! Version 1 is linear and has no entry ids. From version 2 on, `id` and `parentId` form a tree, whose active leaf is the
//! last entry. Version 3 renamed one role. One reader reads all versions, because every field that differs has its own
//! name. Each file here adds to [`PiReader`] and uses only the files below it: `mod`, `message`, `reader`.
//!
//! **Source**: `packages/coding-agent/docs/session.md` in <https://github.com/badlogic/pi-mono>.

mod message;
mod reader;

use std::io::BufRead;

use ollm_protocol::content::{Custom, Label, MetaPatch, RecordBody, SessionHeader};
use ollm_protocol::{Seq, SessionId, Timestamp};
use serde_json::Value;

use self::reader::{EntrySpan, PiReader};
use super::FileFacts;
use super::fields::Fields;
use super::imported::{ImportError, Imported, move_leaf};
use super::lines::LineReader;
use super::spool::{RecordSpool, seq_of};
use crate::nesting;

/// The newest version whose entries are known.
const NEWEST: u64 = 3;

/// Reads a pi session; entries that cannot be read are in the report.
///
/// **Errors**: `File` only.
pub(super) fn parse(
    source: impl BufRead,
    file: &FileFacts<'_>,
    records: RecordSpool,
) -> Result<Imported, ImportError> {
    let mut lines = LineReader::new(source, file.max_record_bytes);
    let mut reader = PiReader::new(records);
    let mut n_lines = 0;
    while let Some(line) = lines.next().map_err(ImportError::File)?
        && !reader.records.has_failed()
    {
        n_lines += 1;
        reader.losses.line = Some(line.number);
        if line.is_too_long {
            reader.losses.add_long_line(file.max_record_bytes);
            continue;
        }
        match serde_json::from_slice(line.text).ok().and_then(Fields::of) {
            Some(fields) => reader.line(fields, file.fallback_id),
            None if nesting::is_unparsable(line.text) => reader.losses.add_too_deep("entry"),
            None => reader.losses.add_damaged_line(line.is_torn),
        }
    }
    reader.finish(n_lines, file.digest_hex, file.fallback_id)
}

impl PiReader {
    fn line(&mut self, mut fields: Fields, fallback_id: SessionId) {
        let kind = fields.text("type").unwrap_or_default();
        if kind == "session" && self.header.is_none() {
            self.header(fields, fallback_id);
            self.note_entry(None, EntrySpan::default());
            return;
        }
        let id = fields.text("id");
        if self.version > 1 {
            self.find_parent(&mut fields);
        }
        self.entry_time(&mut fields);
        let mut span = EntrySpan { before: self.tail, first: None, tail: None };
        let n_before = self.records.len();
        self.entry(&kind, id.as_deref(), fields);
        span.first = (self.records.len() > n_before).then_some(n_before);
        span.tail = self.tail;
        self.note_entry(id.as_deref(), span);
    }

    fn header(&mut self, mut fields: Fields, fallback_id: SessionId) {
        self.version = fields.count("version").unwrap_or(1).max(1);
        if self.version > NEWEST {
            self.losses.add("version", "newer than 3; read as 3");
        }
        let start_time = fields.time("timestamp");
        let session_id = fields.text("id").unwrap_or_default().parse();
        if session_id.is_err() {
            self.losses.add("session id", "not a UUID; the session gets another one");
        }
        let mut header = SessionHeader::new(
            session_id.unwrap_or(fallback_id),
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
        fields.report_remaining(&mut self.losses, "session");
        self.header = Some(header);
    }

    /// Continues the path of the entry's parent, or of the previous entry if the parent is lost.
    fn find_parent(&mut self, fields: &mut Fields) {
        if let Some(parent) = fields.text("parentId") {
            if let Some(span) = self.entry_by_id(&parent) {
                self.tail = span.tail;
            } else {
                self.losses.add("parentId", "no such entry; the entry follows the previous one");
            }
        } else if fields.value("parentId").is_none() {
            self.tail = None;
        }
    }

    fn entry_time(&mut self, fields: &mut Fields) {
        let at = fields.time("timestamp");
        if at.is_none() {
            let reason = "missing or not a time; that of the previous entry is used";
            self.losses.add("timestamp", reason);
        }
        self.at = Some(at.unwrap_or(self.now()));
    }

    /// Carries over one entry and reports its remaining fields.
    fn entry(&mut self, kind: &str, id: Option<&str>, mut fields: Fields) {
        match kind {
            "message" => {
                let message = fields.object("message");
                fields.report_remaining(&mut self.losses, "message entry");
                match message {
                    Some(message) => self.message(id, message),
                    None => self.losses.add("message", "the entry has no message"),
                }
                return;
            }
            "model_change" => self.model_change(&mut fields),
            "compaction" => self.compaction(&mut fields),
            "branch_summary" => self.branch_summary(&mut fields),
            "custom" => self.custom(&mut fields),
            "custom_message" => self.custom_message(&mut fields),
            "label" => self.label(&mut fields),
            "session_info" => {
                self.title = fields.text("name").filter(|name| !name.is_empty());
            }
            "thinking_level_change" => {
                self.losses.add("thinking_level_change", "a session has no such setting");
                return;
            }
            "session" => {
                self.losses.add("session", "a second header");
                return;
            }
            other => {
                self.losses.add(&format!("entry of type {other}"), "unknown type");
                return;
            }
        }
        fields.report_remaining(&mut self.losses, kind);
    }

    fn model_change(&mut self, fields: &mut Fields) {
        let patch = MetaPatch {
            model: fields.text("modelId"),
            provider: fields.text("provider"),
            ..MetaPatch::default()
        };
        if patch.provider.is_some() {
            self.provider.clone_from(&patch.provider);
        }
        self.push(RecordBody::Meta(patch));
    }

    /// Carries over a compaction, whose summary replaces all records of the path before the first kept entry.
    fn compaction(&mut self, fields: &mut Fields) {
        let kept = if let Some(id) = fields.text("firstKeptEntryId") {
            self.entry_by_id(&id)
        } else {
            fields.count("firstKeptEntryIndex").and_then(|index| self.entry_at(index))
        };
        let range = kept.and_then(|kept| self.range_before(&kept));
        if kept.is_none() {
            self.losses.add("compaction range", "the first kept entry is not in the file");
        }
        let summary = fields.text("summary").unwrap_or_default();
        let tokens_before = fields.count("tokensBefore").unwrap_or(0);
        self.push_compaction(range, summary, tokens_before);
    }

    /// Returns the records from the start of the path to the last one before an entry, or `None` if there are none.
    fn range_before(&self, kept: &EntrySpan) -> Option<(Seq, Seq)> {
        let to = kept.before?;
        let root = self.root_of(to);
        let same_path = self.tail.is_some_and(|tail| self.root_of(tail) == root);
        same_path.then(|| (seq_of(root), seq_of(to)))
    }

    fn custom(&mut self, fields: &mut Fields) {
        let body = Custom {
            name: fields.text("customType").unwrap_or_default(),
            data: fields.value("data").unwrap_or_default(),
            context_text: None,
        };
        self.push(RecordBody::Custom(body));
    }

    fn label(&mut self, fields: &mut Fields) {
        let target = fields.text("targetId").and_then(|id| self.entry_by_id(&id)?.first);
        let name = fields.text("label").filter(|name| !name.is_empty());
        match target {
            Some(first) => {
                self.push(RecordBody::Label(Label { target: seq_of(first), name }));
            }
            None => self.losses.add("label", "its entry was not carried over"),
        }
    }

    fn finish(
        mut self,
        n_lines: u64,
        digest_hex: &str,
        fallback_id: SessionId,
    ) -> Result<Imported, ImportError> {
        let end = self.now();
        move_leaf(&mut self.records, self.tail, end);
        let mut header = self.header.unwrap_or_else(|| SessionHeader::new(fallback_id, end));
        // A branched session has entries that are older than its header.
        let first = self.records.first_at();
        header.start_time = first.map_or(header.start_time, |first| first.min(header.start_time));
        header.title = self.title;
        header.imported_from = Some(format!("pi:{digest_hex}"));
        let format = format!("pi v{}", self.version);
        Imported::new(format, n_lines, header, self.records, self.losses)
    }
}
