//! Session documents, those of this daemon and those of OLLM-CLI, in which fields may be missing.
//!
//! A document has no tree, only `active` flags. An inactive record becomes part of a side branch after the last active
//! record, so that the active path has exactly the active records, in the order of the document.
//!
//! A document is read element by element. Its fields may come in any order, so the elements wait in a spool of their
//! own until the end of the file, with a short note for each in memory.

mod items;
mod stream;

use std::collections::BTreeMap;
use std::io::BufRead;

use ollm_protocol::Timestamp;
use ollm_protocol::content::{Meta, MetaPatch, RecordBody, SessionHeader};
use serde_json::Value;

use self::stream::{DocumentContent, ItemNote};
use super::FileFacts;
use super::fields::Fields;
use super::imported::{ImportError, Imported, Losses, move_leaf};
use super::spool::{ImportedRecord, RecordSpool};
use crate::session::NO_SERVER;

/// Reads a JSON object that has a list of messages; returns `None` for any other file.
///
/// `elements` holds the elements of its lists while it is read.
///
/// **Errors**: `Malformed`, `TooDeep`, `TooLarge`, `File`.
pub(super) fn parse(
    source: impl BufRead,
    file: &FileFacts<'_>,
    elements: RecordSpool,
    records: RecordSpool,
) -> Result<Option<Imported>, ImportError> {
    let Some(mut content) = stream::read(source, file.max_record_bytes, elements)? else {
        return Ok(None);
    };
    let n_items = content.messages.n_read + content.calls.n_read + content.modes.n_read;
    let (mut fields, mut metadata) = (content.fields(), content.metadata());
    let mut losses = std::mem::take(&mut content.messages.losses);
    losses.append(std::mem::take(&mut content.calls.losses));
    losses.append(std::mem::take(&mut content.modes.losses));

    let start = fields.time("startTime");
    let last = fields.time("lastActivity");
    content.complete_message_times(start.or(last));
    let start = start.or_else(|| content.messages.notes.first()?.timestamp);
    let start = start.or(last).unwrap_or(Timestamp::from_unix_ms(0));

    let mut header = header(&mut fields, start, file, &mut losses);
    let description = complete(&mut header, &mut metadata, &mut losses);
    header.mode = content.first_mode_change().and_then(|change| change.from);
    losses.add_of(&mut content.elements);
    fields.report_remaining(&mut losses, "document");
    metadata.report_remaining(&mut losses, "metadata");

    let mut chain = RecordChain::new(records, start, last);
    if let Some(description) = description {
        let patch = MetaPatch { description: Some(description), ..MetaPatch::default() };
        chain.push_meta(patch, start);
    }
    chain.push_all(&mut content, start);
    if let Some(error) = content.elements.error() {
        return Err(ImportError::File(error));
    }
    let format = "session document".to_owned();
    Imported::new(format, n_items + 1, header, chain.finish(), losses).map(Some)
}

/// The times of the messages, by which other items are ordered among them.
struct MessageTimes {
    /// For each message, the earliest time of it and all later messages; never decreases.
    earliest_from: Vec<Timestamp>,
}

impl MessageTimes {
    fn of(messages: &[ItemNote]) -> Self {
        let mut earliest_from: Vec<_> =
            messages.iter().filter_map(|message| message.timestamp).collect();
        for at in (1..earliest_from.len()).rev() {
            earliest_from[at - 1] = earliest_from[at - 1].min(earliest_from[at]);
        }
        Self { earliest_from }
    }

    /// Returns the number of messages up to the last one that is not later than `at`.
    fn n_until(&self, at: Timestamp) -> usize {
        self.earliest_from.partition_point(|&earliest| earliest <= at)
    }

    /// Returns the number of messages before an item that is not a message.
    fn n_before(&self, item: &ItemNote, at: Timestamp) -> usize {
        match item.after_messages {
            Some(count) => {
                usize::try_from(count).unwrap_or(usize::MAX).min(self.earliest_from.len())
            }
            None => self.n_until(at),
        }
    }
}

/// The records of the import, and the ends of its branches.
struct RecordChain {
    records: RecordSpool,
    /// The newest record, whose time may still change.
    newest: Option<ImportedRecord>,
    now: Timestamp,
    end: Option<Timestamp>,
    /// The newest active record.
    active: Option<usize>,
    /// The newest record of the side branch; absent after an active record.
    side: Option<usize>,
}

impl RecordChain {
    fn new(records: RecordSpool, now: Timestamp, end: Option<Timestamp>) -> Self {
        Self { records, newest: None, now, end, active: None, side: None }
    }

    /// Merges the three lists. After the same message, tool calls precede mode changes.
    fn push_all(&mut self, content: &mut DocumentContent, start: Timestamp) {
        let times = MessageTimes::of(&content.messages.notes);
        let [messages, calls, modes] = content.take_notes();
        let mut calls = calls.into_iter().peekable();
        let mut modes = modes.into_iter().peekable();
        let mut messages = messages.into_iter();
        let is_due = |item: &ItemNote, n_messages| {
            times.n_before(item, item.timestamp.unwrap_or(start)) <= n_messages
        };
        for n_messages in 0.. {
            while let Some(call) = calls.next_if(|call| is_due(call, n_messages)) {
                self.push(&call, content, start);
            }
            while let Some(mode) = modes.next_if(|mode| is_due(mode, n_messages)) {
                self.push(&mode, content, start);
            }
            let Some(message) = messages.next() else { break };
            self.push(&message, content, start);
        }
    }

    fn push(&mut self, note: &ItemNote, content: &mut DocumentContent, start: Timestamp) {
        let Some(mut body) = content.body(note) else { return };
        let timestamp = note.timestamp.unwrap_or(start);
        match &mut body {
            RecordBody::Message(message) => message.timestamp = timestamp,
            RecordBody::ToolCall(call) => call.timestamp = timestamp,
            RecordBody::ModeChange(change) => change.timestamp = timestamp,
            _ => {}
        }
        let index = self.len();
        let parent = if note.active { self.active } else { self.side.or(self.active) };
        if note.active {
            (self.active, self.side) = (Some(index), None);
        } else {
            self.side = Some(index);
        }
        // The times of a log never decrease, and the last one is that of the last activity; the times of messages may differ.
        self.now = self.now.max(timestamp);
        let at = self.end.map_or(self.now, |end| self.now.min(end));
        self.append(ImportedRecord { parent, at, body, key: None });
    }

    fn push_meta(&mut self, patch: MetaPatch, at: Timestamp) {
        let body = RecordBody::Meta(patch);
        self.append(ImportedRecord { parent: self.active, at, body, key: None });
    }

    fn append(&mut self, record: ImportedRecord) {
        if let Some(record) = self.newest.replace(record) {
            self.records.push(record);
        }
    }

    fn len(&self) -> usize {
        self.records.len() + usize::from(self.newest.is_some())
    }

    fn finish(mut self) -> RecordSpool {
        let end = self.end.unwrap_or(self.now);
        if self.newest.is_none() && end > self.now {
            // An empty change is the only record that can hold the time of the last activity.
            self.push_meta(MetaPatch::default(), end);
        }
        let Some(newest) = self.newest.take() else { return self.records };
        let is_on_active_path = self.side.is_none();
        let at = if is_on_active_path { end } else { newest.at };
        self.records.push(ImportedRecord { at, ..newest });
        move_leaf(&mut self.records, self.active, end);
        self.records
    }
}

fn header(
    fields: &mut Fields,
    start: Timestamp,
    file: &FileFacts<'_>,
    losses: &mut Losses,
) -> SessionHeader {
    let id = fields.text("sessionId").and_then(|id| id.parse().ok());
    if id.is_none() {
        losses.add("sessionId", "missing or not a UUID; the session gets another one");
    }
    let mut header = SessionHeader::new(id.unwrap_or(file.fallback_id), start);
    header.model = fields.text("model").filter(|name| !name.is_empty());
    header.provider = fields.text("provider").filter(|name| !name.is_empty());
    header.imported_from = Some(format!("document:{}", file.digest_hex));
    header
}

/// Returns the model servers that may get texts of the session. A value that is no list of names allows none, rather than all.
fn allowed_servers(metadata: &mut Fields) -> Vec<String> {
    let none = || NO_SERVER.to_owned();
    let name = |value: Value| value.as_str().map_or_else(none, str::to_owned);
    let servers = metadata.list("allowedServers");
    let servers = servers.map(|servers| servers.into_iter().map(name).collect());
    servers.unwrap_or_else(|| match metadata.has("allowedServers") {
        true => vec![none()],
        false => Vec::new(),
    })
}

/// Returns the options of each answer.
fn options(metadata: &mut Fields, losses: &mut Losses) -> Meta {
    match metadata.value("options") {
        Some(Value::Object(options)) => options.into_iter().collect(),
        Some(_) => {
            losses.add("metadata.options", "not an object");
            Meta::new()
        }
        None => Meta::new(),
    }
}

/// Fills the header from the metadata. Returns the description, for which a header has no field.
fn complete(
    header: &mut SessionHeader,
    metadata: &mut Fields,
    losses: &mut Losses,
) -> Option<String> {
    header.title = metadata.text("title").filter(|title| !title.is_empty());
    header.project_path = metadata.text("projectPath");
    header.system_prompt = metadata.text("systemPrompt");
    header.context_size = metadata.count("contextWindow").and_then(|size| size.try_into().ok());
    header.keep_alive_seconds =
        metadata.count("keepAliveSeconds").and_then(|seconds| seconds.try_into().ok());
    header.allowed_servers = allowed_servers(metadata);
    header.options = options(metadata, losses);
    if let Some(client) = metadata.object("client") {
        header.metadata = client.into_remaining().into_iter().collect::<BTreeMap<_, _>>() as Meta;
    }
    if metadata.count("compressionCount").is_some_and(|count| count > 0) {
        losses.add("metadata.compressionCount", "a document does not have the summaries");
    }
    // These values are computed again from the records.
    for derived in ["tokenCount", "userMessageCount"] {
        metadata.count(derived);
    }
    metadata.time("lastMessageAt");
    metadata.text("description").filter(|text| !text.is_empty())
}
