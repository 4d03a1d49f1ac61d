//! The JSON of Ollama's replies, and the steps that send it.

use serde_json::{Value, json};

use super::super::http::{Step, response};

/// The content type of a streamed answer: a JSON object in each line.
pub(crate) const LINES: Step = Step::Begin("application/x-ndjson");

/// Returns a whole reply with status 200.
pub(crate) fn json(value: &Value) -> Vec<Step> {
    json_with_status(200, value)
}

/// Returns a whole reply with an error.
pub(crate) fn error(status: u16, text: &str) -> Vec<Step> {
    json_with_status(status, &json!({ "error": text }))
}

/// Returns a whole reply with a status.
pub(crate) fn json_with_status(status: u16, value: &Value) -> Vec<Step> {
    let head = "Content-Type: application/json; charset=utf-8\r\n";
    response(status, head, value.to_string().as_bytes())
}

/// Returns a streamed answer.
pub(crate) fn stream(lines: &[Value]) -> Vec<Step> {
    let lines = lines.iter().map(Step::line);
    std::iter::once(LINES).chain(lines).chain([Step::End]).collect()
}

/// Returns the line with a part of an answer: one field of a message.
pub(crate) fn part(model: &str, field: &str, value: &Value) -> Value {
    let mut message = json!({ "role": "assistant", "content": "" });
    message[field] = value.clone();
    json!({ "model": model, "created_at": "2026-01-27T10:00:00.123456789Z", "message": message, "done": false })
}

/// Returns the line that ends an answer.
pub(crate) fn done(model: &str, reason: &str) -> Value {
    json!({
        "model": model, "created_at": "2026-01-27T10:00:01Z", "done": true, "done_reason": reason,
        "message": { "role": "assistant", "content": "" },
    })
}
