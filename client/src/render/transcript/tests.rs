//! Tests of records as a person reads them.

use serde_json::json;

use super::*;
use crate::testing::{plain, render_options};

fn parse(json: Value) -> Record {
    serde_json::from_value(json).unwrap()
}

/// Returns the text of a record without styles.
fn render(json: Value, full: bool) -> String {
    let options = RenderOptions { full, ..render_options(80) };
    plain(&Transcript::new(&options).record(parse(json)))
}

fn record(kind: &str, body: &Value) -> Value {
    json!({ "seq": 4, "at": "2026-01-27T10:00:00Z", "type": kind, kind: body })
}

#[test]
fn message_has_author_number_and_time_and_is_sanitized() {
    let json = json!({
        "seq": 2, "parent": 1, "at": "2026-01-27T10:00:00Z", "type": "message",
        "message": {
            "role": "assistant", "model": "qwen3:8b", "timestamp": "2026-01-26T09:30:00Z",
            "parts": [
                {"type": "thinking", "text": "hm"},
                {"type": "text", "text": "Use \u{1b}[31mreversed()\u{1b}[0m."},
                {"type": "toolCall", "id": "c", "name": "run", "args": {"cmd": "ls\n"}},
                {"type": "image", "mimeType": "image/png", "data": "AAAA"}
            ]
        }
    });
    assert_eq!(
        render(json, false),
        "
assistant qwen3:8b #2 2026-01-26 09:30
(thinking)
hm
Use reversed().
-> run {\"cmd\":\"ls\\n\"}
[image/png, 3 bytes]
"
    );
}

#[test]
fn prose_is_wrapped_on_a_terminal_only() {
    let text = "Words that are too long for it.\n```\ncode that is too long for it\n```";
    let summary = "A summary that is too long for it.";
    let message = json!({ "role": "user", "timestamp": "2026-01-27T10:00:00Z",
        "parts": [{ "type": "text", "text": text }, { "type": "thinking", "text": summary }] });
    let branch = json!({ "summary": summary, "from": 1 });
    let check = |prose_columns, message_text: &str, summary_text: &str| {
        let options = RenderOptions { prose_columns, ..render_options(80) };
        for (kind, body, expect) in [
            ("message", &message, format!("{message_text}\n(thinking)\n{summary_text}\n")),
            ("branchSummary", &branch, format!("{summary_text}\n")),
        ] {
            let shown = plain(&Transcript::new(&options).record(parse(record(kind, body))));
            assert!(shown.ends_with(&format!("\n{expect}")), "{shown:?}");
        }
    };
    check(None, text, summary);
    let code = "```\ncode that is too long for it\n```";
    let wrapped = format!("Words that are too\nlong for it.\n{code}");
    check(Some(20), &wrapped, "A summary that is\ntoo long for it.");
}

#[test]
fn long_output_is_cut_and_names_the_flags_for_the_rest() {
    let lines = |count: usize| "x\n".repeat(count);
    let json = |output: &str| {
        json!({
            "seq": 7, "at": "2026-01-27T10:00:00Z", "type": "toolCall", "active": false,
            "toolCall": {
                "id": "c", "name": "ls", "args": {}, "timestamp": "2026-01-27T10:00:00Z",
                "durationMs": 1200, "result": {"llmContent": output, "exitCode": 1}
            }
        })
    };
    let text = render(json(&lines(20)), false);
    assert!(
        text.starts_with(
            "\ntool ls, exit code 1, 1,200 ms #7 2026-01-27 10:00 (inactive branch)\n-> ls {}\nx\n"
        ),
        "{text}"
    );
    assert!(text.ends_with("x\n[16 more characters: --from 7 --limit 1 --full]\n"), "{text}");
    assert!(render(json(&lines(20)), true).ends_with(&lines(20)));
    assert!(render(json(&lines(12)), false).ends_with(&lines(12)));
    assert!(render(json(&"日".repeat(5000)), false).contains("3,801 more characters"));
}

#[test]
fn empty_or_incomplete_answer_has_its_finish_reason() {
    let check = |parts: Value, reason: Option<&str>, expect: &str| {
        let mut message = json!({
            "role": "assistant", "timestamp": "2026-01-27T10:00:00Z", "parts": parts
        });
        if let Some(reason) = reason {
            message["finishReason"] = reason.into();
        }
        let text = render(record("message", &message), false);
        assert_eq!(text, format!("\nassistant #4 2026-01-27 10:00\n{expect}"));
    };
    let text = |text: &str| json!([{ "type": "text", "text": text }]);
    check(json!([]), Some("aborted"), "(aborted)\n");
    check(text(""), Some("error"), "(error)\n");
    check(json!([]), None, "(no answer)\n");
    check(text("hi"), Some("aborted"), "hi\n");
    check(text("half"), Some("canceled"), "half\n(canceled)\n");
    check(text("half"), Some("length"), "half\n(length)\n");
    check(text("half"), Some("stop"), "half\n");
}

#[test]
fn partial_answer_is_hidden() {
    let custom = |name| record("custom", &json!({"name": name, "data": {"text": "ha"}}));
    assert_eq!(render(custom("ollm.partialAnswer"), true), "");
    assert!(render(custom("theirs"), false).contains("theirs (client data)"));
}

#[test]
fn call_is_shown_once_before_its_output() {
    let call = |id: &str| {
        let part = json!([{"type": "toolCall", "id": id, "name": "ls", "args": {}}]);
        let message =
            json!({ "role": "assistant", "timestamp": "2026-01-27T10:00:00Z", "parts": part });
        parse(record("message", &message))
    };
    let output = || {
        parse(record(
            "toolCall",
            &json!({
                "id": "c", "name": "ls", "args": {}, "timestamp": "2026-01-27T10:00:00Z",
                "result": {"llmContent": "a"}
            }),
        ))
    };
    let usage = || parse(record("usage", &json!({"promptTokens": 12, "answerTokens": 3})));
    let options = render_options(80);
    let count = |id: &str| {
        let mut transcript = Transcript::new(&options);
        let records = [call(id), usage(), output()];
        let text: String = records.into_iter().map(|record| transcript.record(record)).collect();
        text.matches("-> ls").count()
    };
    assert_eq!(count("c"), 1);
    assert_eq!(count("another"), 2);
    assert_eq!(Transcript::new(&options).record(usage()), "");
    let full = RenderOptions { full: true, ..options };
    assert!(Transcript::new(&full).record(usage()).contains("counted 12 tokens in"));
}

#[test]
fn key_arguments_come_first() {
    let long = "x".repeat(300);
    let args = json!({"content": long, "count": 3, "path": "a.rs"});
    let text = call_line("write", &args);
    assert!(text.starts_with("-> write {\"path\":\"a.rs\",\"count\":3,\"content\":\"xx"), "{text}");
    assert!(text.ends_with("x...\n"), "{text}");
    let path = format!("/{}", "p".repeat(100));
    let text = call_line("edit", &json!({"newText": "a", "oldText": long, "path": path}));
    assert!(
        text.starts_with(&format!("-> edit {{\"path\":\"{path}\",\"newText\":\"a\"")),
        "{text}"
    );
    assert_eq!(call_line("ls", &json!({})), "-> ls {}\n");
}

#[test]
fn changed_settings_are_listed() {
    let check = |patch: Value, expect: &str| {
        let line = render(record("meta", &patch), false);
        assert_eq!(line, format!("\n- {expect} #4 2026-01-27 10:00\n"));
    };
    check(json!({"model": "claude-sonnet-4-5"}), "model claude-sonnet-4-5");
    check(
        json!({"title": "A", "pinned": true, "contextSize": 8192}),
        "title A, context size 8,192, pinned",
    );
    check(json!({}), "settings changed");
}

#[test]
fn state_record_takes_one_line() {
    let leaf = record("leaf", &json!({"to": 2, "cause": "undo"}));
    assert_eq!(render(leaf, false), "\n- went back to #2 (undo) #4 2026-01-27 10:00\n");
}

#[test]
fn compaction_shows_its_newest_summary() {
    let checkpoint = |summary: &str| {
        json!({
            "id": "0192f0c1-9a3b-7000-8000-000000000002", "level": 3, "from": 1, "to": 2,
            "summary": summary, "createdAt": "2026-01-27T10:00:00Z",
            "originalTokens": 90, "currentTokens": 9, "compressionCount": 1
        })
    };
    let check = |changes: Value, expect: &str| {
        let mut compaction = json!({ "tokensBefore": 1200, "tokenizer": "t" });
        compaction.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let text = render(record("compaction", &compaction), false);
        let heading = "\ncompaction, 1,200 tokens before #4 2026-01-27 10:00\n";
        assert_eq!(text, format!("{heading}{expect}"));
    };
    check(json!({ "checkpoints": [checkpoint("old"), checkpoint("new")] }), "new\n");
    check(json!({ "summary": "theirs" }), "theirs\n");
    check(json!({}), "");
}
