//! Session documents, those of this daemon and those of OLLM-CLI, in which fields may be missing.
//!
//! A document has no tree, only `active` flags. An inactive record becomes part of a side branch after the last active
//! record, so that the active path has exactly the active records, in the order of the document.

use std::collections::BTreeMap;

use ollm_protocol::content::{
    Message, Meta, MetaPatch, ModeChange, Part, RecordBody, Role, SessionHeader, ToolCall,
    ToolResult,
};
use ollm_protocol::{SessionId, Timestamp};
use serde_json::Value;

use super::fields::Fields;
use super::imported::{Imported, ImportedRecord, Losses, move_leaf};

/// Reads a JSON object that has a list of messages.
pub(super) fn parse(root: Value, digest_hex: &str, fallback_id: SessionId) -> Imported {
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
    let start = start.or_else(|| messages.first().map(|item| item.timestamp));
    let start = start.or(last).unwrap_or(Timestamp::from_unix_ms(0));
    let mut metadata = fields.object("metadata").unwrap_or_default();

    let times = MessageTimes::of(&messages);
    let mut take = |list: Option<Vec<Value>>, read: ReadItem| -> Vec<DocumentItem> {
        let list = list.unwrap_or_default();
        source_records += list.len() as u64;
        list.into_iter().filter_map(|value| read(value, start, &times, &mut losses)).collect()
    };
    let calls = take(fields.list("toolCalls"), tool_call);
    let modes = take(metadata.list("modeHistory"), mode_change);

    let mut header = header(&mut fields, start, digest_hex, fallback_id, &mut losses);
    let description = complete(&mut header, &mut metadata, &mut losses);
    if let Some(DocumentItem { body: RecordBody::ModeChange(first), .. }) = modes.first() {
        header.mode.clone_from(&first.from);
    }
    fields.report_remaining(&mut losses, "document");
    metadata.report_remaining(&mut losses, "metadata");

    let mut chain =
        RecordChain { records: Vec::new(), now: start, end: last, active: None, side: None };
    if let Some(description) = description {
        let patch = MetaPatch { description: Some(description), ..MetaPatch::default() };
        chain.push_meta(patch, start);
    }
    chain.push_all(messages, calls, modes);
    Imported::new("session document".to_owned(), source_records, header, chain.finish(), losses)
}

/// A function that reads one tool call or mode change.
type ReadItem = fn(Value, Timestamp, &MessageTimes, &mut Losses) -> Option<DocumentItem>;

/// A message, tool call or mode change of the document.
struct DocumentItem {
    /// The number of messages before it.
    after_messages: usize,
    active: bool,
    timestamp: Timestamp,
    body: RecordBody,
}

/// The times of the messages, by which other items are ordered among them.
struct MessageTimes {
    /// For each message, the earliest time of it and all later messages; never decreases.
    earliest_from: Vec<Timestamp>,
}

impl MessageTimes {
    fn of(messages: &[DocumentItem]) -> Self {
        let mut earliest_from: Vec<_> = messages.iter().map(|item| item.timestamp).collect();
        for at in (1..earliest_from.len()).rev() {
            earliest_from[at - 1] = earliest_from[at - 1].min(earliest_from[at]);
        }
        Self { earliest_from }
    }

    /// Returns the number of messages up to the last one that is not later than `at`.
    fn n_until(&self, at: Timestamp) -> usize {
        self.earliest_from.partition_point(|&earliest| earliest <= at)
    }
}

/// The records of the import, and the ends of its branches.
struct RecordChain {
    records: Vec<ImportedRecord>,
    now: Timestamp,
    end: Option<Timestamp>,
    /// The newest active record.
    active: Option<usize>,
    /// The newest record of the side branch; absent after an active record.
    side: Option<usize>,
}

impl RecordChain {
    /// Merges the three lists. After the same message, tool calls precede mode changes.
    fn push_all(
        &mut self,
        messages: Vec<DocumentItem>,
        calls: Vec<DocumentItem>,
        modes: Vec<DocumentItem>,
    ) {
        let mut calls = calls.into_iter().peekable();
        let mut modes = modes.into_iter().peekable();
        let mut messages = messages.into_iter();
        for n_messages in 0.. {
            while let Some(call) = calls.next_if(|call| call.after_messages <= n_messages) {
                self.push(call);
            }
            while let Some(mode) = modes.next_if(|mode| mode.after_messages <= n_messages) {
                self.push(mode);
            }
            let Some(message) = messages.next() else { break };
            self.push(message);
        }
    }

    fn push(&mut self, item: DocumentItem) {
        let index = self.records.len();
        let parent = if item.active { self.active } else { self.side.or(self.active) };
        if item.active {
            (self.active, self.side) = (Some(index), None);
        } else {
            self.side = Some(index);
        }
        // The times of a log never decrease, and the last one is that of the last activity; the times of messages may differ.
        self.now = self.now.max(item.timestamp);
        let at = self.end.map_or(self.now, |end| self.now.min(end));
        self.records.push(ImportedRecord { parent, at, body: item.body, key: None });
    }

    fn push_meta(&mut self, patch: MetaPatch, at: Timestamp) {
        let body = RecordBody::Meta(patch);
        self.records.push(ImportedRecord { parent: self.active, at, body, key: None });
    }

    fn finish(mut self) -> Vec<ImportedRecord> {
        let end = self.end.unwrap_or(self.now);
        move_leaf(&mut self.records, self.active, end);
        match self.records.last_mut() {
            Some(last) => last.at = end,
            // An empty change is the only record that can hold the time of the last activity.
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
    fallback_id: SessionId,
    losses: &mut Losses,
) -> SessionHeader {
    let id = fields.text("sessionId").and_then(|id| id.parse().ok());
    if id.is_none() {
        losses.add("sessionId", "missing or not a UUID; the session gets another one");
    }
    let mut header = SessionHeader::new(id.unwrap_or(fallback_id), start);
    header.model = fields.text("model").filter(|name| !name.is_empty());
    header.provider = fields.text("provider").filter(|name| !name.is_empty());
    header.imported_from = Some(format!("document:{digest_hex}"));
    header
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

fn message(
    value: Value,
    clock: &mut Option<Timestamp>,
    losses: &mut Losses,
) -> Option<DocumentItem> {
    let Some(mut fields) = Fields::of(value) else {
        losses.add("message", "not an object");
        return None;
    };
    let role = fields.text("role").unwrap_or_default();
    let role = match role.as_str() {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" | "model" => Role::Assistant,
        "tool" => Role::Tool,
        other => {
            losses.add(&format!("message of role {other:?}"), "unknown role");
            return None;
        }
    };
    let timestamp = fields.time("timestamp").unwrap_or_else(|| {
        losses.add("message.timestamp", "missing; the time of the previous message is used");
        clock.unwrap_or(Timestamp::from_unix_ms(0))
    });
    *clock = Some(timestamp);
    let active = fields.flag("active").unwrap_or(true);
    let mut body = Message { parts: Vec::new(), ..Message::text(role, "", timestamp) };
    body.parts = parts(&mut fields, losses);
    body.tool_call_id = fields.text("toolCallId");
    body.tool_name = fields.text("toolName");
    body.model = fields.text("model");
    body.finish_reason = fields.text("finishReason");
    body.duration_ms = fields.count("durationMs");
    fields.report_remaining(losses, "message");
    Some(DocumentItem { after_messages: 0, active, timestamp, body: RecordBody::Message(body) })
}

fn parts(fields: &mut Fields, losses: &mut Losses) -> Vec<Part> {
    let Some(list) = fields.list("parts") else {
        let text = fields.text("content").or_else(|| fields.text("parts"));
        return text.map(|text| Part::Text { text }).into_iter().collect();
    };
    let mut parts = Vec::with_capacity(list.len());
    for value in list {
        let Some(mut fields) = Fields::of(value) else {
            losses.add("part", "not an object");
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
                fields.report_remaining(losses, &format!("part {kind}"));
            }
            None => losses.add(&format!("part of type {kind:?}"), "unknown type or missing text"),
        }
    }
    parts
}

fn tool_call(
    value: Value,
    start: Timestamp,
    times: &MessageTimes,
    losses: &mut Losses,
) -> Option<DocumentItem> {
    let Some(mut fields) = Fields::of(value) else {
        losses.add("toolCall", "not an object");
        return None;
    };
    let timestamp = fields.time("timestamp").unwrap_or_else(|| {
        losses.add("toolCall.timestamp", "missing; the start of the session is used");
        start
    });
    let after_messages = match fields.count("afterMessages") {
        Some(count) => usize::try_from(count).unwrap_or(usize::MAX).min(times.earliest_from.len()),
        None => times.n_until(timestamp),
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
    fields.report_remaining(losses, "toolCall");
    Some(DocumentItem { after_messages, active, timestamp, body: RecordBody::ToolCall(body) })
}

/// Reads a result: an object, or a string as OLLM-CLI wrote it, which also used other names for two fields.
fn tool_result(fields: &mut Fields, losses: &mut Losses) -> ToolResult {
    if let Some(llm_content) = fields.text("result") {
        return ToolResult { llm_content, ..ToolResult::default() };
    }
    let Some(mut found) = fields.object("result") else { return ToolResult::default() };
    let mut error = found.text("error");
    if let Some(mut details) = found.object("error") {
        error = details.text("message");
        details.report_remaining(losses, "result.error");
    }
    let result = ToolResult {
        llm_content: found.text("llmContent").unwrap_or_default(),
        display_content: found.text("displayContent").or_else(|| found.text("returnDisplay")),
        success: found.flag("success"),
        error,
        exit_code: found.small("exitCode"),
    };
    found.report_remaining(losses, "result");
    result
}

fn mode_change(
    value: Value,
    start: Timestamp,
    times: &MessageTimes,
    losses: &mut Losses,
) -> Option<DocumentItem> {
    let mut fields = Fields::of(value).unwrap_or_default();
    let Some(to) = fields.text("to") else {
        losses.add("modeHistory", "a change without its new mode");
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
    fields.report_remaining(losses, "modeHistory");
    let after_messages = times.n_until(timestamp);
    let body = RecordBody::ModeChange(body);
    Some(DocumentItem { after_messages, active: true, timestamp, body })
}
