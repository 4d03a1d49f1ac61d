//! The session document, exports in every format, and imports of own and foreign files.

use std::path::Path;

use serde_json::{Value, json};

use super::{full_session, session_files};
use crate::harness::{Sandbox, Wire, array, error_kind, fixture_path, start};

/// Imports a text in two chunks.
fn import(wire: &mut Wire, text: &str) -> Value {
    let half = (text.len() / 2..).find(|at| text.is_char_boundary(*at)).unwrap();
    let first = wire.ok("session.import", json!({ "data": text[..half], "last": false }));
    let upload = first["uploadId"].clone();
    assert!(upload.is_string(), "{first}");
    wire.ok("session.import", json!({ "uploadId": upload, "data": text[half..], "last": true }))
}

#[test]
fn saved_document_matches_log() {
    let (sandbox, _daemon, mut wire) = start();
    let session = full_session(&mut wire, &sandbox.project_dir("tool"));
    let saved = wire.ok("session.save", json!({ "sessionId": session }));
    let path = Path::new(saved["path"].as_str().unwrap());
    assert!(path.ends_with(format!("sessions/{session}.json")), "{saved}");
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(saved["sizeBytes"], text.len());
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["sessionId"], session.as_str());
    assert_eq!(document["model"], "qwen3:8b");
    let roles: Vec<&str> =
        array(&document["messages"]).iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "assistant"]);
    assert_eq!(document["messages"][1]["parts"][2]["name"], "read_file");
    assert_eq!(document["toolCalls"][0]["result"]["llmContent"], "def f(): pass");
    assert_eq!(document["metadata"]["modeHistory"][0]["to"], "planning");
    assert_eq!(document["metadata"]["userMessageCount"], 1);
    let exported: Value = serde_json::from_str(&wire.export(&session, "json")).unwrap();
    assert_eq!(exported["messages"], document["messages"]);
    std::fs::remove_file(path).unwrap();
    wire.ok("session.save", json!({ "sessionId": session }));
    assert!(path.exists(), "a removed document is written again");
}

#[test]
fn markdown_and_html_exports_escape_markup_and_control_characters() {
    let (sandbox, _daemon, mut wire) = start();
    let session = full_session(&mut wire, &sandbox.project_dir("tool"));
    let attack = "<script>alert(1)</script> <img src=x onerror=alert(2)> [a](javascript:alert(3))";
    wire.record(&session, "assistant", attack);
    let markdown = wire.export(&session, "markdown");
    assert!(markdown.contains("reversed(list)"), "{markdown}");
    assert!(markdown.contains("*calls* `read_file` `{"), "{markdown}");
    assert!(!markdown.contains('\u{1b}'), "no escape sequences");
    assert!(!markdown.replace("\\<", "").contains("<script"), "a `<` is escaped: {markdown}");
    let html = wire.export(&session, "html");
    assert!(html.to_lowercase().starts_with("<!doctype html>"), "{html}");
    for bad in ["<script>alert", "<img", "javascript:alert(3)\"", "\u{1b}"] {
        assert!(!html.contains(bad), "no {bad} in the page");
    }
    assert!(html.contains("&lt;script&gt;"), "{html}");
    assert!(html.contains("世界"));
}

#[test]
fn imported_export_equals_original_and_second_import_changes_nothing() {
    let (sandbox, _daemon, mut wire) = start();
    let project = sandbox.project_dir("tool");
    let session = full_session(&mut wire, &project);
    wire.record(&session, "user", &"large 世界 ".repeat(30_000));
    wire.ok("session.update", json!({ "sessionId": session, "title": "Round trip" }));
    for format in ["jsonl", "json"] {
        let exported = wire.export(&session, format);
        let other_home = Sandbox::new();
        let (_other, mut other) = other_home.daemon_and_wire();
        let imported = import(&mut other, &exported);
        let report = &imported["report"];
        assert_eq!(report["losses"], json!([]), "{format}: {report}");
        let copy = imported["session"]["sessionId"].as_str().unwrap().to_owned();
        assert_eq!(imported["session"]["title"], "Round trip", "{format}");
        assert_eq!(imported["session"]["messageCount"], 4, "{format}");
        let contents = |records: Vec<Value>| -> Vec<Value> {
            records
                .into_iter()
                .filter_map(|record| match record["type"].as_str().unwrap() {
                    "message" => Some(record["message"].clone()),
                    "toolCall" if format == "jsonl" => Some(record["toolCall"].clone()),
                    _ => None,
                })
                .collect()
        };
        assert_eq!(contents(other.records(&copy)), contents(wire.records(&session)), "{format}");
        let again = import(&mut other, &exported);
        assert_eq!(again["report"]["alreadyImported"], true, "{format}: {again}");
        assert_eq!(again["session"]["sessionId"], copy.as_str(), "{format}");
        assert_eq!(
            other.ok("session.list", json!({}))["data"].as_array().unwrap().len(),
            1,
            "{format}"
        );
        let exported_again = other.export(&copy, format);
        if format == "jsonl" {
            let lines =
                |text: &str| text.lines().filter(|line| line.contains("\"message\":{")).count();
            assert_eq!(lines(&exported_again), lines(&exported));
        }
    }
}

/// Returns the lines of an export with this many messages.
fn export_lines(n_messages: usize) -> impl Iterator<Item = String> {
    let id = "0199c2e4-7d6a-7c11-9b1e-3f2f6f0a5c01";
    let at = "2026-01-27T10:00:00.000Z";
    let head = json!({ "ollmExport": 1, "sessionId": id });
    let session = json!({ "sessionId": id, "startTime": at });
    let header = json!({ "seq": 0, "at": at, "type": "session", "session": session });
    let words = "words that follow each other ".repeat(80);
    let messages = (1..=n_messages).map(move |n| {
        let part = json!({ "type": "text", "text": format!("message {n}: {words}") });
        let message = json!({ "role": "user", "parts": [part], "timestamp": at });
        let mut record = json!({ "seq": n, "at": at, "type": "message", "message": message });
        if n > 1 {
            record["parent"] = json!(n - 1);
        }
        record
    });
    [head, header].into_iter().chain(messages).map(|line| format!("{line}\n"))
}

/// The memory for an import and an export of any size: pages of records, several times, and the catalog's. Holding the
/// file and its records would take more than 45 MB.
const MAX_TRANSFER_BYTES: u64 = 34 << 20;

#[test]
fn import_and_export_of_a_large_session_cost_bounded_memory() {
    let (_sandbox, daemon, mut wire) = start();
    let before = daemon.memory_bytes();
    let mut upload = None;
    let mut lines = export_lines(6_000).peekable();
    let result = loop {
        let data: String = lines.by_ref().take(400).collect();
        let mut params = json!({ "data": data, "last": lines.peek().is_none() });
        if let Some(upload) = &upload {
            params["uploadId"] = json!(upload);
        }
        let result = wire.ok("session.import", params);
        match result["uploadId"].as_str() {
            Some(id) => upload = Some(id.to_owned()),
            None => break result,
        }
    };
    assert_eq!(result["report"]["importedRecords"], 6_000);
    let session = result["session"]["sessionId"].as_str().unwrap();
    for format in ["jsonl", "json"] {
        let pages = wire.pages("session.export", json!({ "sessionId": session, "format": format }));
        let bytes: usize = pages.iter().map(|page| page["data"].as_str().unwrap().len()).sum();
        assert!(bytes > 12_000_000, "{bytes}");
    }
    let grown = daemon.peak_memory_bytes().saturating_sub(before);
    assert!(grown < MAX_TRANSFER_BYTES, "{grown} bytes more at the peak");
}

#[test]
fn foreign_files_are_imported_with_report_or_refused() {
    let (sandbox, _daemon, mut wire) = start();
    for (file, format) in
        [("pi-v1.jsonl", "pi v1"), ("pi-v2.jsonl", "pi v2"), ("pi-v3.jsonl", "pi v3")]
    {
        let text = std::fs::read_to_string(fixture_path(&format!("import/{file}"))).unwrap();
        let dry = wire.ok("session.import", json!({ "data": text, "last": true, "dryRun": true }));
        let imported = wire.ok("session.import", json!({ "data": text, "last": true }));
        let report = &imported["report"];
        assert_eq!(report["format"], format, "{report}");
        assert_eq!(
            dry["report"]["importedRecords"], report["importedRecords"],
            "a dry run reports the same"
        );
        assert!(report["importedRecords"].as_u64().unwrap() > 2, "{report}");
        assert!(report["sourceRecords"].as_u64().unwrap() >= 3, "{report}");
        let id = imported["session"]["sessionId"].as_str().unwrap().to_owned();
        assert!(wire.records(&id).iter().any(|record| record["type"] == "message"), "{file}");
    }
    let before = session_files(&sandbox).len();
    for text in ["", "hello", "{}", "[]", "{\"type\":\"unheard\"}\n", "\u{0}"] {
        let error = wire.call("session.import", json!({ "data": text, "last": true })).unwrap_err();
        assert!(error["message"].as_str().unwrap().len() > 10, "{text:?}: {error}");
        assert_ne!(error_kind(&error), "internal", "{text:?}: {error}");
    }
    assert_eq!(session_files(&sandbox).len(), before, "a refused file creates nothing");
}
