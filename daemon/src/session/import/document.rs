//! Session documents: our own, and the same shape as OLLM-CLI wrote it, where fields may be missing.
//!
//! A document has no tree, only `active`. Records off the active path hang on side branches behind the last
//! active record, so that the active path holds exactly the active ones, in the order of the document.

use std::collections::BTreeMap;

use ollm_protocol::content::{
    ImportReport, Message, Meta, MetaPatch, ModeChange, Part, RecordBody, Role, SessionHeader,
    ToolCall, ToolResult,
};
use ollm_protocol::{SessionId, Timestamp};
use serde_json::Value;

use super::fields::Fields;
use super::losses::Losses;
use super::{Imported, ImportedRecord, end_at};

/// Reads a JSON object that has a list of messages.
pub(super) fn parse(
    root: Value,
    digest_hex: &str,
    fallback_id: impl FnOnce() -> SessionId,
) -> Imported {
    let mut losses = Losses::default();
    let mut source_records = 1;
    let mut fields = Fields::of(root).unwrap_or_default();
    let start = fields.time("startTime");
    let last = fields.time("lastActivity");
    let mut clock = start.or(last);
    let mut messages = Vec::new();
    for value in fields.list("messages").unwrap_or_default() {
        source_records += 1;
        messages.extend(message(value, &mut clock, &mut losses));
    }
    let start = start.or_else(|| messages.first().map(|item| item.said_at));
    let start = start.or(last).unwrap_or(Timestamp::from_unix_ms(0));
    let mut metadata = fields.object("metadata").unwrap_or_default();

    let places = Places::of(&messages);
    let mut take = |list: Option<Vec<Value>>, read: ReadPlaced| -> Vec<Item> {
        let list = list.unwrap_or_default();
        source_records += list.len() as u64;
        list.into_iter().filter_map(|value| read(value, start, &places, &mut losses)).collect()
    };
    let calls = take(fields.list("toolCalls"), tool_call);
    let modes = take(metadata.list("modeHistory"), mode_change);

    let mut header = header(&mut fields, start, digest_hex, fallback_id, &mut losses);
    let description = complete(&mut header, &mut metadata, &mut losses);
    if let Some(Item { body: RecordBody::ModeChange(first), .. }) = modes.first() {
        header.mode.clone_from(&first.from);
    }
    fields.report_rest(&mut losses, None, "document");
    metadata.report_rest(&mut losses, None, "metadata");

    let mut chain = Chain { records: Vec::new(), now: start, end: last, active: None, side: None };
    if let Some(description) = description {
        let patch = MetaPatch { description: Some(description), ..MetaPatch::default() };
        chain.push_meta(patch, start);
    }
    chain.push_all(messages, calls, modes);
    let records = chain.finish();
    let report = ImportReport {
        format: "session document".to_owned(),
        source_records,
        imported_records: records.len() as u64 + 1,
        already_imported: false,
        losses: losses.finish(),
    };
    Imported { header, records, report }
}

/// Reads one thing that has to find its place among the messages.
type ReadPlaced = fn(Value, Timestamp, &Places, &mut Losses) -> Option<Item>;

/// One thing of the document before it has its place among the records.
struct Item {
    /// How many messages stand before it.
    place: usize,
    active: bool,
    said_at: Timestamp,
    body: RecordBody,
}

/// Finds how many messages stand before an instant.
struct Places {
    n_messages: usize,
    /// For each message the earliest instant from it to the end; never decreases.
    earliest_from: Vec<Timestamp>,
}

impl Places {
    fn of(messages: &[Item]) -> Self {
        let mut earliest_from: Vec<_> = messages.iter().map(|item| item.said_at).collect();
        for at in (1..earliest_from.len()).rev() {
            earliest_from[at - 1] = earliest_from[at - 1].min(earliest_from[at]);
        }
        Self { n_messages: messages.len(), earliest_from }
    }

    /// Behind the last message that is not later than `at`.
    fn by_time(&self, at: Timestamp) -> usize {
        self.earliest_from.partition_point(|&earliest| earliest <= at)
    }

    fn by_count(&self, count: u64) -> usize {
        usize::try_from(count).map_or(self.n_messages, |count| count.min(self.n_messages))
    }
}

/// The records as they are appended, and where the next one hangs.
struct Chain {
    records: Vec<ImportedRecord>,
    now: Timestamp,
    end: Option<Timestamp>,
    active: Option<usize>,
    /// The end of the side branch, while inactive records follow each other.
    side: Option<usize>,
}

impl Chain {
    /// Merges the three lists; at one place calls stand before modes.
    fn push_all(&mut self, messages: Vec<Item>, calls: Vec<Item>, modes: Vec<Item>) {
        let mut calls = calls.into_iter().peekable();
        let mut modes = modes.into_iter().peekable();
        let mut messages = messages.into_iter();
        for place in 0.. {
            while let Some(call) = calls.next_if(|call| call.place <= place) {
                self.push(call);
            }
            while let Some(mode) = modes.next_if(|mode| mode.place <= place) {
                self.push(mode);
            }
            let Some(message) = messages.next() else { break };
            self.push(message);
        }
    }

    fn push(&mut self, item: Item) {
        let index = self.records.len();
        let parent = if item.active { self.active } else { self.side.or(self.active) };
        if item.active {
            (self.active, self.side) = (Some(index), None);
        } else {
            self.side = Some(index);
        }
        // A log is written in the order of time and ends with the last activity, whatever messages say.
        self.now = self.now.max(item.said_at);
        let at = self.end.map_or(self.now, |end| self.now.min(end));
        self.records.push(ImportedRecord { parent, at, body: item.body, key: None });
    }

    fn push_meta(&mut self, patch: MetaPatch, at: Timestamp) {
        let body = RecordBody::Meta(patch);
        self.records.push(ImportedRecord { parent: self.active, at, body, key: None });
    }

    fn finish(mut self) -> Vec<ImportedRecord> {
        let end = self.end.unwrap_or(self.now);
        end_at(&mut self.records, self.active, end);
        match self.records.last_mut() {
            Some(last) => last.at = end,
            // Nothing else could say that the session was active after its beginning.
            None if end > self.now => self.push_meta(MetaPatch::default(), end),
            None => {}
        }
        self.records
    }
}

fn header(
    fields: &mut Fields,
    start: Timestamp,
    digest_hex: &str,
    fallback_id: impl FnOnce() -> SessionId,
    losses: &mut Losses,
) -> SessionHeader {
    let id = fields.text("sessionId").and_then(|id| id.parse().ok());
    if id.is_none() {
        losses.add(None, "sessionId", "missing or not a UUID; the session has another one");
    }
    let mut header = SessionHeader::new(id.unwrap_or_else(fallback_id), start);
    header.model = fields.text("model").filter(|name| !name.is_empty());
    header.provider = fields.text("provider").filter(|name| !name.is_empty());
    header.imported_from = Some(format!("document:{digest_hex}"));
    header
}

/// Fills the header from the metadata and returns the description, which a header has no field for.
fn complete(
    header: &mut SessionHeader,
    metadata: &mut Fields,
    losses: &mut Losses,
) -> Option<String> {
    header.title = metadata.text("title").filter(|title| !title.is_empty());
    header.project_path = metadata.text("projectPath");
    header.system_prompt = metadata.text("systemPrompt");
    header.context_size = metadata.count("contextWindow").and_then(|size| size.try_into().ok());
    if let Some(client) = metadata.object("client") {
        header.metadata = client.into_rest().into_iter().collect::<BTreeMap<_, _>>() as Meta;
    }
    if metadata.count("compressionCount").is_some_and(|count| count > 0) {
        losses.add(None, "metadata.compressionCount", "a document does not hold the summaries");
    }
    // Counted again from the records.
    for derived in ["tokenCount", "userMessageCount"] {
        metadata.count(derived);
    }
    metadata.time("lastMessageAt");
    metadata.text("description").filter(|text| !text.is_empty())
}

fn message(value: Value, clock: &mut Option<Timestamp>, losses: &mut Losses) -> Option<Item> {
    let Some(mut fields) = Fields::of(value) else {
        losses.add(None, "message", "it is no object");
        return None;
    };
    let role = fields.text("role").unwrap_or_default();
    let role = match role.as_str() {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" | "model" => Role::Assistant,
        "tool" => Role::Tool,
        other => {
            losses.add(None, &format!("message of role {other:?}"), "the role is not known");
            return None;
        }
    };
    let said_at = fields.time("timestamp").unwrap_or_else(|| {
        losses.add(None, "message.timestamp", "missing; that of the message before");
        clock.unwrap_or(Timestamp::from_unix_ms(0))
    });
    *clock = Some(said_at);
    let active = fields.flag("active").unwrap_or(true);
    let mut body = Message { parts: Vec::new(), ..Message::text(role, "", said_at) };
    body.parts = parts(&mut fields, losses);
    body.tool_call_id = fields.text("toolCallId");
    body.tool_name = fields.text("toolName");
    body.model = fields.text("model");
    body.finish_reason = fields.text("finishReason");
    body.duration_ms = fields.count("durationMs");
    fields.report_rest(losses, None, "message");
    Some(Item { place: 0, active, said_at, body: RecordBody::Message(body) })
}

fn parts(fields: &mut Fields, losses: &mut Losses) -> Vec<Part> {
    let Some(list) = fields.list("parts") else {
        let text = fields.text("content").or_else(|| fields.text("parts"));
        return text.map(|text| Part::Text { text }).into_iter().collect();
    };
    let mut parts = Vec::with_capacity(list.len());
    for value in list {
        let Some(mut fields) = Fields::of(value) else {
            losses.add(None, "part", "it is no object");
            continue;
        };
        let kind = fields.text("type").unwrap_or_else(|| "text".to_owned());
        let part = match kind.as_str() {
            "text" => fields.text("text").map(|text| Part::Text { text }),
            "thinking" => fields.text("text").map(|text| Part::Thinking { text }),
            "toolCall" => Some(Part::ToolCall {
                id: fields.text("id").unwrap_or_default(),
                name: fields.text("name").unwrap_or_default(),
                args: fields.value("args").unwrap_or_default(),
            }),
            "image" => Some(Part::Image {
                mime_type: fields.text("mimeType").unwrap_or_default(),
                data: fields.text("data").unwrap_or_default(),
            }),
            _ => None,
        };
        match part {
            Some(part) => {
                parts.push(part);
                fields.report_rest(losses, None, &format!("part {kind}"));
            }
            None => losses.add(None, &format!("part of type {kind:?}"), "not a known shape"),
        }
    }
    parts
}

fn tool_call(value: Value, start: Timestamp, places: &Places, losses: &mut Losses) -> Option<Item> {
    let Some(mut fields) = Fields::of(value) else {
        losses.add(None, "toolCall", "it is no object");
        return None;
    };
    let timestamp = fields.time("timestamp").unwrap_or_else(|| {
        losses.add(None, "toolCall.timestamp", "missing; the beginning of the session");
        start
    });
    let place = match fields.count("afterMessages") {
        Some(count) => places.by_count(count),
        None => places.by_time(timestamp),
    };
    let active = fields.flag("active").unwrap_or(true);
    let body = ToolCall {
        id: fields.text("id").unwrap_or_default(),
        name: fields.text("name").unwrap_or_default(),
        args: fields.value("args").unwrap_or_default(),
        result: tool_result(&mut fields, losses),
        timestamp,
        duration_ms: fields.count("durationMs"),
        message_seq: None,
    };
    fields.report_rest(losses, None, "toolCall");
    Some(Item { place, active, said_at: timestamp, body: RecordBody::ToolCall(body) })
}

/// A result is an object; OLLM-CLI also wrote a text, and its own names for two fields.
fn tool_result(fields: &mut Fields, losses: &mut Losses) -> ToolResult {
    if let Some(llm_content) = fields.text("result") {
        return ToolResult { llm_content, ..ToolResult::default() };
    }
    let Some(mut found) = fields.object("result") else { return ToolResult::default() };
    let mut error = found.text("error");
    if let Some(mut details) = found.object("error") {
        error = details.text("message");
        details.report_rest(losses, None, "result.error");
    }
    let result = ToolResult {
        llm_content: found.text("llmContent").unwrap_or_default(),
        display_content: found.text("displayContent").or_else(|| found.text("returnDisplay")),
        success: found.flag("success"),
        error,
        exit_code: found.small("exitCode"),
    };
    found.report_rest(losses, None, "result");
    result
}

fn mode_change(
    value: Value,
    start: Timestamp,
    places: &Places,
    losses: &mut Losses,
) -> Option<Item> {
    let mut fields = Fields::of(value).unwrap_or_default();
    let Some(to) = fields.text("to") else {
        losses.add(None, "modeHistory", "a change that does not say to which mode");
        return None;
    };
    let timestamp = fields.time("timestamp").unwrap_or(start);
    let body = ModeChange {
        from: fields.text("from"),
        to,
        timestamp,
        trigger: fields.text("trigger").unwrap_or_else(|| "unknown".to_owned()),
        confidence: fields.number("confidence"),
    };
    fields.report_rest(losses, None, "modeHistory");
    let place = places.by_time(timestamp);
    Some(Item { place, active: true, said_at: timestamp, body: RecordBody::ModeChange(body) })
}
