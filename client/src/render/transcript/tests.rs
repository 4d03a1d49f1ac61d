use anstream::adapter::strip_str;
use chrono::Utc;

use super::*;

fn read(json: serde_json::Value) -> Record {
    serde_json::from_value(json).unwrap()
}

fn plain(json: serde_json::Value, full: bool) -> String {
    let view = View { width: 80, now: "2026-01-27T10:00:00Z".parse().unwrap(), full };
    strip_str(&Transcript::new(&Utc, &view).record(read(json))).to_string()
}

fn entry(kind: &str, body: &serde_json::Value) -> serde_json::Value {
    serde_json::json!({ "seq": 4, "at": "2026-01-27T10:00:00Z", "type": kind, kind: body })
}

#[test]
fn messages_name_who_where_and_when_and_are_clean() {
    let json = serde_json::json!({
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
        plain(json, false),
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
fn long_outputs_are_cut_with_the_way_to_the_rest() {
    let lines = |count: usize| "x\n".repeat(count);
    let json = |output: &str| {
        serde_json::json!({
            "seq": 7, "at": "2026-01-27T10:00:00Z", "type": "toolCall", "active": false,
            "toolCall": {
                "id": "c", "name": "ls", "args": {}, "timestamp": "2026-01-27T10:00:00Z",
                "durationMs": 1200, "result": {"llmContent": output, "exitCode": 1}
            }
        })
    };
    let text = plain(json(&lines(20)), false);
    assert!(
        text.starts_with(
            "\ntool ls, exit code 1, 1,200 ms #7 2026-01-27 10:00 (not in force)\n-> ls {}\nx\n"
        ),
        "{text}"
    );
    assert!(text.ends_with("x\n[16 more characters: --from 7 --limit 1 --full]\n"), "{text}");
    assert!(plain(json(&lines(20)), true).ends_with(&lines(20)));
    assert!(plain(json(&lines(12)), false).ends_with(&lines(12)));
    assert!(plain(json(&"日".repeat(5000)), false).contains("3,801 more characters"));
}

#[test]
fn an_answer_without_text_says_why() {
    let check = |parts: serde_json::Value, reason: Option<&str>, expect: &str| {
        let mut said = serde_json::json!({
            "role": "assistant", "timestamp": "2026-01-27T10:00:00Z", "parts": parts
        });
        if let Some(reason) = reason {
            said["finishReason"] = reason.into();
        }
        let text = plain(entry("message", &said), false);
        assert_eq!(text, format!("\nassistant #4 2026-01-27 10:00\n{expect}"));
    };
    let text = |text: &str| serde_json::json!([{ "type": "text", "text": text }]);
    check(serde_json::json!([]), Some("aborted"), "(aborted)\n");
    check(text(""), Some("error"), "(error)\n");
    check(serde_json::json!([]), None, "(no answer)\n");
    check(text("hi"), Some("aborted"), "hi\n");
}

#[test]
fn an_answer_that_ended_early_says_so() {
    let check = |reason: &str, expect: &str| {
        let message = serde_json::json!({
            "role": "assistant", "timestamp": "2026-01-27T10:00:00Z", "finishReason": reason,
            "parts": [{"type": "text", "text": "half"}],
        });
        let shown = plain(entry("message", &message), false);
        assert!(shown.ends_with(expect), "{reason}: {shown:?}");
    };
    check("canceled", "half\n(canceled)\n");
    check("length", "half\n(length)\n");
    check("stop", "half\n");
}

#[test]
fn an_answer_in_the_making_is_not_shown() {
    let own = |name| entry("custom", &serde_json::json!({"name": name, "data": {"text": "ha"}}));
    assert_eq!(plain(own("ollm.partialAnswer"), true), "");
    assert!(plain(own("theirs"), false).contains("theirs (client data)"));
}

#[test]
fn a_call_stands_once_above_its_output() {
    let call = |id: &str| {
        let part = serde_json::json!([{"type": "toolCall", "id": id, "name": "ls", "args": {}}]);
        read(entry(
            "message",
            &serde_json::json!({
                "role": "assistant", "timestamp": "2026-01-27T10:00:00Z", "parts": part
            }),
        ))
    };
    let output = || {
        read(entry(
            "toolCall",
            &serde_json::json!({
                "id": "c", "name": "ls", "args": {}, "timestamp": "2026-01-27T10:00:00Z",
                "result": {"llmContent": "a"}
            }),
        ))
    };
    let usage =
        || read(entry("usage", &serde_json::json!({"promptTokens": 12, "answerTokens": 3})));
    let view = View { width: 80, now: "2026-01-27T10:00:00Z".parse().unwrap(), full: false };
    let count = |id: &str| {
        let mut transcript = Transcript::new(&Utc, &view);
        let records = [call(id), usage(), output()];
        let text: String = records.into_iter().map(|record| transcript.record(record)).collect();
        text.matches("-> ls").count()
    };
    assert_eq!(count("c"), 1);
    assert_eq!(count("another"), 2);
    assert_eq!(Transcript::new(&Utc, &view).record(usage()), "");
    let full = View { full: true, ..view };
    assert!(Transcript::new(&Utc, &full).record(usage()).contains("counted 12 tokens in"));
}

#[test]
fn telling_arguments_come_first() {
    let long = "x".repeat(300);
    let args = serde_json::json!({"content": long, "count": 3, "path": "a.rs"});
    let text = call("write", &args);
    assert!(text.starts_with("-> write {\"path\":\"a.rs\",\"count\":3,\"content\":\"xx"), "{text}");
    assert!(text.ends_with("x...\n"), "{text}");
    let path = format!("/{}", "p".repeat(100));
    let text = call("edit", &serde_json::json!({"newText": "a", "oldText": long, "path": path}));
    assert!(
        text.starts_with(&format!("-> edit {{\"path\":\"{path}\",\"newText\":\"a\"")),
        "{text}"
    );
    assert_eq!(call("ls", &serde_json::json!({})), "-> ls {}\n");
}

#[test]
fn a_change_says_what_changed() {
    let check = |patch: serde_json::Value, expect: &str| {
        let line = plain(entry("meta", &patch), false);
        assert_eq!(line, format!("\n- {expect} #4 2026-01-27 10:00\n"));
    };
    check(serde_json::json!({"model": "claude-sonnet-4-5"}), "model claude-sonnet-4-5");
    check(
        serde_json::json!({"title": "A", "pinned": true, "contextSize": 8192}),
        "title A, context size 8,192, pinned",
    );
    check(serde_json::json!({}), "settings changed");
}

#[test]
fn small_records_take_one_line() {
    let json = serde_json::json!({
        "seq": 4, "at": "2026-01-27T10:00:00Z", "type": "leaf", "leaf": {"to": 2, "cause": "undo"}
    });
    assert_eq!(plain(json, false), "\n- went back to #2 (undo) #4 2026-01-27 10:00\n");
}
