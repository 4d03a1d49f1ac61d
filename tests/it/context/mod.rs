//! `context.*`: the context that a model is sent. It fits the window, is well-formed, names what it omits, and only
//! grows within an epoch.

mod build;
mod entries;
mod facts;
mod inspect;
mod large;
mod recall;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Random, Wire, array};

/// Records a conversation with tool calls and, every 37 turns, a message that exceeds small windows.
fn converse(wire: &mut Wire, session: &str, turns: u64, random: &mut Random) {
    for turn in 0..turns {
        let words = if turn % 37 == 36 { 6000 } else { 5 + random.below(60) };
        wire.record(
            session,
            "user",
            &format!("question {turn}: {}", "some words here ".repeat(words as usize / 3)),
        );
        if turn % 3 == 0 {
            let call = format!("call_{turn}");
            wire.ok(
                "session.record",
                json!({ "sessionId": session, "message": { "role": "assistant", "parts": [
                { "type": "thinking", "text": "let me look" },
                { "type": "toolCall", "id": call, "name": "read_file",
                    "args": { "path": format!("f{turn}.rs") } } ] } }),
            );
            wire.ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": {
                "id": call, "name": "read_file", "args": { "path": format!("f{turn}.rs") },
                "result": { "llmContent": "fn main() {}\n".repeat(1 + random.below(40) as usize) } } }));
        }
        wire.record(
            session,
            "assistant",
            &format!("answer {turn}: {}", "an answer ".repeat(5 + random.below(40) as usize)),
        );
    }
}

/// Returns a value that must be a number.
fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a number: {value}"))
}

/// Checks that a context fits its window and that its messages are well-formed.
#[track_caller]
fn assert_valid(built: &Value, window: u64) {
    let budget = &built["budget"];
    let used = number(&built["contextTokens"]);
    let parts =
        ["systemPromptTokens", "toolDefinitionTokens", "checkpointTokens", "conversationTokens"];
    assert_eq!(
        used,
        parts.iter().map(|part| number(&budget[*part])).sum::<u64>(),
        "the parts add up: {budget}"
    );
    assert_eq!(number(&built["contextSize"]), window);
    assert_eq!(number(&budget["contextSize"]), window);
    assert!(used <= number(&budget["promptLimit"]), "{used} in {budget}");
    assert_eq!(built["promptLimit"], budget["promptLimit"]);
    assert!(used + number(&built["answerLimit"]) < window, "{built}");
    assert!(number(&built["answerLimit"]) > 0);
    assert_eq!(built["countKind"], "estimated");

    let messages = array(&built["messages"]);
    let roles: Vec<&str> =
        messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    let conversation = if roles.first() == Some(&"system") { &messages[1..] } else { messages };
    assert!(!conversation.iter().any(|message| message["role"] == "system"), "{roles:?}");
    if let Some(first) = conversation.first() {
        assert_eq!(first["role"], "user", "{roles:?}");
    }
    let mut open = BTreeSet::new();
    let mut previous = "system";
    for message in conversation {
        let role = message["role"].as_str().unwrap();
        match role {
            "tool" => {
                assert!(previous == "assistant" || previous == "tool", "{roles:?}");
                assert!(
                    open.remove(message["tool_call_id"].as_str().unwrap()),
                    "a result without a call: {message}"
                );
            }
            "user" => assert!(previous != "user", "{roles:?}"),
            "assistant" => assert!(previous == "user" || previous == "tool", "{roles:?}"),
            other => panic!("a role {other}"),
        }
        if role != "tool" {
            assert!(open.is_empty(), "calls without results: {open:?}");
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let id = call["id"].as_str().unwrap();
            let is_accepted = id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
            assert!(is_accepted, "every template accepts the id: {call}");
            assert!(open.insert(id.to_owned()), "{call}");
        }
        previous = role;
    }
    assert!(open.is_empty(), "calls without results: {open:?}");
}

/// Checks that every message of the session is in the context or listed as omitted.
#[track_caller]
fn assert_complete(wire: &mut Wire, session: &str, built: &Value) {
    let sent = built["messages"].to_string();
    let omitted = array(&built["omitted"]);
    for item in omitted {
        assert!(!item["reason"].as_str().unwrap().is_empty(), "{item}");
    }
    for record in wire.records(session) {
        let seq = number(&record["seq"]);
        let Some(parts) = record["message"]["parts"].as_array() else { continue };
        for part in parts.iter().filter(|part| part["type"] == "text") {
            let text = part["text"].as_str().unwrap();
            let quoted = json!(text).to_string();
            let is_sent = sent.contains(&quoted[1..quoted.len() - 1]);
            let is_omitted = omitted.iter().any(|item| {
                let from = number(&item["seq"]);
                let through = item.get("throughSeq").map_or(from, number);
                (from..=through).contains(&seq)
            });
            assert!(is_sent || is_omitted, "record {seq} is sent or in {omitted:?}");
        }
    }
}

/// Checks that a context begins with an earlier one.
#[track_caller]
fn assert_extends(later: &Value, earlier: &Value) {
    let (later, earlier) = (array(&later["messages"]), array(&earlier["messages"]));
    assert!(later.len() >= earlier.len());
    for (at, (new, old)) in later.iter().zip(earlier).enumerate() {
        if at + 1 < earlier.len() {
            assert_eq!(new, old, "message {at} changed");
        } else {
            // The last message may have been joined with a later one of the same role.
            assert_eq!(new["role"], old["role"]);
            assert!(
                new["content"].as_str().unwrap().starts_with(old["content"].as_str().unwrap()),
                "message {at} changed"
            );
        }
    }
}
