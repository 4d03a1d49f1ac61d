//! Turns that answer a message again: after a broken answer, with an idempotency key, and when nothing is unanswered.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{conversation, read_call, send_with_tool, submit_first, text_of};
use crate::harness::{Answer, FakeOllama, Fault, ModelSession, array, assert_fields};

/// Scripts an answer whose connection breaks after the first word.
fn break_next_answer(fake: &FakeOllama) {
    fake.script(Answer::text("one two three"));
    fake.inject("/api/chat", &[Fault::Break { after: 1 }]);
}

/// Returns the roles and texts of the messages in the last request.
fn last_request(fake: &FakeOllama) -> Vec<(String, String)> {
    let messages = fake.requests("/api/chat").pop().unwrap().body["messages"].clone();
    let text = |message: &Value, name: &str| message[name].as_str().unwrap().to_owned();
    let messages = array(&messages).iter();
    messages.map(|message| (text(message, "role"), text(message, "content"))).collect()
}

/// Returns the texts of the messages on the active path.
fn active_texts(chat: &mut ModelSession) -> Vec<String> {
    let records = chat.ok("session.get", json!({ "branch": "active" }))["records"].clone();
    let parts = array(&records).iter().map(|record| &record["message"]["parts"]);
    parts.filter_map(|parts| parts[0]["text"].as_str().map(str::to_owned)).collect()
}

#[test]
fn turn_without_message_replaces_a_broken_answer() {
    let fake = FakeOllama::new();
    break_next_answer(&fake);
    let mut chat = ModelSession::new(&fake);
    chat.failed_turn("count", "modelFailed");
    let mut other = chat.daemon.wire();
    other.subscribe(json!({ "kinds": ["branch-changed"] }));
    fake.script(Answer::text("four five"));
    chat.send(json!({}));
    assert_eq!(text_of(&chat.events_until("done")), "four five");
    assert_eq!(last_request(&fake), [("user".to_owned(), "count".to_owned())]);
    assert_eq!(active_texts(&mut chat), ["count", "four five"]);
    let texts: Vec<String> = conversation(&mut chat).into_iter().map(|message| message.1).collect();
    assert_eq!(texts, ["count", "one ", "four five"], "the log keeps all messages");
    let event = other.event();
    // Record 2 is the epoch that the context of the question opened.
    assert_eq!(event["data"], json!({ "to": 2, "cause": "retry" }), "{event}");
}

#[test]
fn retried_key_of_an_answered_turn_returns_the_same_answer() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    let mut params = chat.message("once");
    params["key"] = json!("k");
    let mut other = chat.daemon.wire();
    other.subscribe(json!({ "kinds": ["turn-started", "turn-ended"] }));
    chat.send(params.clone());
    let first = chat.events_until("done").pop().unwrap();
    chat.send(params);
    let again = chat.events_until("done");
    assert_eq!(again[0]["duplicate"], true);
    assert_eq!(again.last().unwrap()["seq"], first["seq"]);
    assert_eq!(fake.requests("/api/chat").len(), 1);
    // No turn ran, so nothing that follows a turn is done again.
    let next = chat.turn("another").pop().unwrap();
    let ends: Vec<_> = (0..4).map(|_| other.event()).collect();
    let seqs = [&json!(1), &first["seq"], &json!(5), &next["seq"]];
    assert_eq!(ends.iter().map(|event| &event["seq"]).collect::<Vec<_>>(), seqs, "{ends:?}");
}

#[test]
fn retried_key_of_a_broken_turn_replaces_the_answer_once() {
    let fake = FakeOllama::new();
    break_next_answer(&fake);
    let mut chat = ModelSession::new(&fake);
    let mut params = chat.message("count");
    params["key"] = json!("k");
    chat.send(params.clone());
    chat.events_until("error");
    fake.script(Answer::text("four five").cut());
    chat.send(params.clone());
    let second = chat.events_until("done");
    assert_eq!(second[0]["duplicate"], true);
    assert_eq!(second.last().unwrap()["finishReason"], "length");
    assert_eq!(last_request(&fake), [("user".to_owned(), "count".to_owned())]);
    assert_eq!(active_texts(&mut chat), ["count", "four five"]);
    chat.send(params);
    let third = chat.events_until("done").pop().unwrap();
    assert_fields(
        &third,
        json!({ "seq": second.last().unwrap()["seq"], "finishReason": "length" }),
    );
    assert_eq!(fake.requests("/api/chat").len(), 2);
    let user_messages = conversation(&mut chat).into_iter().filter(|message| message.0 == "user");
    assert_eq!(user_messages.count(), 1);
}

#[test]
fn message_that_was_recorded_and_is_sent_later_is_recorded_once_and_answered() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    let mut params = chat.message("count");
    params["key"] = json!("k");
    let recorded = chat.ok("session.record", params.clone());
    chat.send(params.clone());
    let events = chat.events_until("done");
    assert_eq!((&events[0]["duplicate"], &events[0]["seq"]), (&json!(true), &recorded["seq"]));
    assert_eq!(chat.ok("session.record", params)["duplicate"], true);
    assert_eq!(active_texts(&mut chat), ["count", "ok"]);
}

#[test]
fn records_behind_a_broken_answer_stay_on_the_active_path() {
    let fake = FakeOllama::new();
    break_next_answer(&fake);
    let mut chat = ModelSession::new(&fake);
    chat.failed_turn("count", "modelFailed");
    chat.ok("session.setMode", json!({ "mode": "planning" }));
    let custom = json!({ "name": "editor.cursor", "data": { "at": 7 } });
    chat.ok("session.recordCustom", custom);
    chat.send(json!({}));
    chat.events_until("done");
    assert_eq!(active_texts(&mut chat), ["count", "ok"]);
    let active = chat.ok("session.get", json!({ "branch": "active" }));
    let count = |kind: &str| {
        let records = array(&active["records"]).iter();
        records.filter(|record| record["type"] == kind).count()
    };
    assert_eq!((count("modeChange"), count("custom")), (1, 1));
}

#[test]
fn broken_answer_after_a_tool_result_is_replaced_behind_the_result() {
    let fake = FakeOllama::new();
    fake.script(read_call(json!({ "path": "a" })));
    let mut chat = ModelSession::new(&fake);
    send_with_tool(&mut chat, "what is in a?");
    let event = chat.events_until("toolCalls").pop().unwrap();
    fake.script(Answer::text("it says x"));
    fake.inject("/api/chat", &[Fault::Break { after: 1 }]);
    submit_first(&mut chat, &event, "x");
    chat.events_until("error");
    chat.send(json!({}));
    assert_eq!(text_of(&chat.events_until("done")), "ok");
    let sent = last_request(&fake);
    let roles: Vec<&str> = sent.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool"]);
}

#[test]
fn answer_that_is_given_again_leaves_the_files_of_its_turn() {
    let fake = FakeOllama::new();
    fake.script(read_call(json!({ "path": "a" })));
    let mut chat = ModelSession::new(&fake);
    let root = PathBuf::from(chat.sandbox.project_dir("p"));
    chat.id = chat.wire.create(json!({ "projectPath": root }));
    send_with_tool(&mut chat, "write a");
    let event = chat.events_until("toolCalls").pop().unwrap();
    std::fs::write(root.join("a"), "new").unwrap();
    let write = json!({ "path": "a", "before": "absent", "after": { "text": "new" } });
    fake.inject("/api/chat", &[Fault::Break { after: 1 }]);
    let result = json!({ "id": event["calls"][0]["id"], "result": { "llmContent": "ok" },
        "writes": [write] });
    chat.ok("chat.submitToolResults", json!({ "results": [result] }));
    chat.events_until("error");
    chat.send(json!({}));
    chat.events_until("done");
    let text = || std::fs::read_to_string(root.join("a")).ok();
    assert_eq!(text().as_deref(), Some("new"));
    // The write belongs to the turn as before: the undo of all of it takes the file back.
    let undo = json!({ "steps": 2, "files": "preview" });
    let plan = chat.ok("session.undo", undo.clone())["files"]["planId"].clone();
    let mut apply = undo;
    apply["files"] = json!("apply");
    apply["planId"] = plan;
    chat.ok("session.undo", apply);
    assert_eq!(text(), None);
}

#[test]
fn cut_answer_can_be_replaced() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("one two").cut());
    let mut chat = ModelSession::new(&fake);
    chat.turn("count");
    chat.send(json!({}));
    chat.events_until("done");
    assert_eq!(last_request(&fake), [("user".to_owned(), "count".to_owned())]);
}

#[test]
fn turn_without_message_is_refused_if_nothing_is_unanswered() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    let error = chat.refused("chat.send", json!({}), "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("no message to answer"), "{error}");
    chat.turn("hello");
    let error = chat.refused("chat.send", json!({}), "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("answered already"), "{error}");
    assert_eq!(fake.requests("/api/chat").len(), 1);
    assert_eq!(active_texts(&mut chat), ["hello", "ok"]);
    chat.turn("and now?");
}
