//! `session.*`: recording, reading, lists, deletion, import and export, through the socket and on the disk.

mod branches;
mod delete;
mod files;
mod fork;
mod import_export;
mod list;
mod nesting;
mod options;
mod page;
mod record;
mod rest;
mod undo;
mod used_files;
mod writes;

use serde_json::{Value, json};

use crate::harness::{Sandbox, Wire, array};

/// Returns the text of a record's message.
fn text_of(record: &Value) -> &str {
    record["message"]["parts"][0]["text"].as_str().unwrap_or_default()
}

/// Returns the ids of sessions in a list.
fn ids(sessions: &Value) -> Vec<String> {
    let ids = array(sessions).iter().map(|session| session["sessionId"].as_str().unwrap());
    ids.map(str::to_owned).collect()
}

/// Returns the names of the files in the directory of sessions, except its lock.
fn session_files(sandbox: &Sandbox) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(sandbox.home().join("sessions")) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "ollmd.lock").collect()
}

/// Creates a session with one record of every kind that a client can write.
fn full_session(wire: &mut Wire, project: &str) -> String {
    let session = wire.create(json!({
        "projectPath": project, "model": "qwen3:8b", "provider": "ollama", "systemPrompt": "Be brief.",
        "contextSize": 8192, "mode": "developer", "metadata": { "editor": "vim", "depth": { "n": 1 } },
    }));
    wire.record(&session, "user", "How do I reverse a list? <b>&amp; \u{1b}[31mred 世界");
    wire.ok(
        "session.record",
        json!({ "sessionId": session, "message": {
        "role": "assistant", "model": "qwen3:8b", "finishReason": "tool_calls", "durationMs": 1200,
        "timestamp": "2026-01-27T10:00:00Z",
        "parts": [
            { "type": "thinking", "text": "Look first." },
            { "type": "text", "text": "Let me look." },
            { "type": "toolCall", "id": "call_1", "name": "read_file",
                "args": { "path": "a.py", "deep": [1, { "x": null }] } },
        ] } }),
    );
    wire.ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": {
        "id": "call_1", "name": "read_file", "args": { "path": "a.py", "deep": [1, { "x": null }] },
        "result": { "llmContent": "def f(): pass", "displayContent": "1 line", "success": true, "exitCode": 0 },
        "durationMs": 3, "messageSeq": 2 } }));
    wire.ok(
        "session.recordCustom",
        json!({ "sessionId": session, "name": "editor.selection",
            "data": { "from": 1, "to": [2, 3] }, "contextText": "The user selected line 1." }),
    );
    wire.ok(
        "session.setMode",
        json!({ "sessionId": session, "mode": "planning", "trigger": "auto", "confidence": 0.75 }),
    );
    wire.record(&session, "assistant", "Use `reversed(list)`.");
    session
}
