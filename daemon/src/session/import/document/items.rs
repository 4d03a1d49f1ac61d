//! The elements of a document's lists: messages, tool calls and mode changes.

use ollm_protocol::Timestamp;
use ollm_protocol::content::{Message, ModeChange, Part, RecordBody, Role, ToolCall, ToolResult};
use serde_json::Value;

use crate::session::import::fields::Fields;
use crate::session::import::imported::Losses;

/// A message, tool call or mode change of the document.
pub(super) struct DocumentItem {
    /// The number of messages before it, if the document says so.
    pub(super) after_messages: Option<u64>,
    pub(super) active: bool,
    /// The time, if the document has a valid one. The body then has the same.
    pub(super) timestamp: Option<Timestamp>,
    pub(super) body: RecordBody,
}

/// Returns the time, or that of a body whose own time is missing; it is replaced when the times of all items are known.
fn or_unknown(timestamp: Option<Timestamp>) -> Timestamp {
    timestamp.unwrap_or(Timestamp::from_unix_ms(0))
}

/// Reads a message.
pub(super) fn message(value: Value, losses: &mut Losses) -> Option<DocumentItem> {
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
    let timestamp = fields.time("timestamp");
    if timestamp.is_none() {
        losses.add("message.timestamp", "missing; the time of the previous message is used");
    }
    let active = fields.flag("active").unwrap_or(true);
    let mut body = Message { parts: Vec::new(), ..Message::text(role, "", or_unknown(timestamp)) };
    body.parts = parts(&mut fields, losses);
    body.tool_call_id = fields.text("toolCallId");
    body.tool_name = fields.text("toolName");
    body.model = fields.text("model");
    body.finish_reason = fields.text("finishReason");
    body.duration_ms = fields.count("durationMs");
    fields.report_remaining(losses, "message");
    Some(DocumentItem { after_messages: None, active, timestamp, body: RecordBody::Message(body) })
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

/// Reads a tool call.
pub(super) fn tool_call(value: Value, losses: &mut Losses) -> Option<DocumentItem> {
    let Some(mut fields) = Fields::of(value) else {
        losses.add("toolCall", "not an object");
        return None;
    };
    let timestamp = fields.time("timestamp");
    if timestamp.is_none() {
        losses.add("toolCall.timestamp", "missing; the start of the session is used");
    }
    let after_messages = fields.count("afterMessages");
    let active = fields.flag("active").unwrap_or(true);
    let body = ToolCall {
        id: fields.text("id").unwrap_or_default(),
        name: fields.text("name").unwrap_or_default(),
        args: fields.value("args").unwrap_or_default(),
        result: tool_result(&mut fields, losses),
        timestamp: or_unknown(timestamp),
        duration_ms: fields.count("durationMs"),
        message_seq: None,
        writes: None,
        writes_root: None,
        writes_omitted: 0,
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

/// Reads a change of the mode.
pub(super) fn mode_change(value: Value, losses: &mut Losses) -> Option<DocumentItem> {
    let mut fields = Fields::of(value).unwrap_or_default();
    let Some(to) = fields.text("to") else {
        losses.add("modeHistory", "a change without its new mode");
        return None;
    };
    let timestamp = fields.time("timestamp");
    let body = ModeChange {
        from: fields.text("from"),
        to,
        timestamp: or_unknown(timestamp),
        trigger: fields.text("trigger").unwrap_or_else(|| "unknown".to_owned()),
        confidence: fields.number("confidence"),
    };
    fields.report_remaining(losses, "modeHistory");
    let body = RecordBody::ModeChange(body);
    Some(DocumentItem { after_messages: None, active: true, timestamp, body })
}
