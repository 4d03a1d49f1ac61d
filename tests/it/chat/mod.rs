//! `chat.*`: the events of a turn, the records that remain of it, and the requests that the model server gets.

mod empty_answer;
mod failures;
mod follow;
mod retry;
mod tools;

use serde_json::{Value, json};

use crate::harness::{Answer, FakeOllama, ModelSession, array, assert_fields};

/// Returns role, text and finish reason of each recorded message.
fn conversation(chat: &mut ModelSession) -> Vec<(String, String, String)> {
    let records = chat.records();
    let messages = records.iter().filter_map(|record| record.get("message"));
    let fields = messages.map(|message| {
        let parts = array(&message["parts"]);
        let text = parts.iter().filter(|part| part["type"] == "text");
        let text: String = text.map(|part| part["text"].as_str().unwrap()).collect();
        let reason = message["finishReason"].as_str().unwrap_or_default();
        (message["role"].as_str().unwrap().to_owned(), text, reason.to_owned())
    });
    fields.collect()
}

/// Returns the expected value of [`conversation`].
fn messages(all: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    all.iter().map(|(a, b, c)| ((*a).into(), (*b).into(), (*c).into())).collect()
}

/// Returns the text that the events of a turn streamed.
fn text_of(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["text"].as_str()).collect()
}

/// Returns the definition of a tool, as a request carries it.
fn tool(name: &str) -> Value {
    json!({ "type": "function", "function": {
        "name": name, "description": "x", "parameters": { "type": "object", "properties": {} } } })
}

/// Returns an answer that calls the tool `read`.
fn read_call(arguments: Value) -> Answer {
    Answer::text("").tool_call("read", arguments)
}

/// Starts a turn with the tool `read`.
#[track_caller]
fn send_with_tool(chat: &mut ModelSession, text: &str) {
    let mut params = chat.message(text);
    params["tools"] = json!([tool("read")]);
    chat.send(params);
}

/// Submits the result of the first call in a `toolCalls` event.
#[track_caller]
fn submit_first(chat: &mut ModelSession, event: &Value, content: &str) {
    let result = json!({ "id": event["calls"][0]["id"], "result": { "llmContent": content } });
    chat.ok("chat.submitToolResults", json!({ "results": [result] }));
}

#[test]
fn turn_streams_its_phases_and_answer_and_is_recorded() {
    let fake = FakeOllama::new();
    fake.script(Answer::text("hello to you").thinking("who is it"));
    let mut chat = ModelSession::new(&fake);
    let events = chat.turn("hello");
    assert_eq!(events[0]["kind"], "accepted");
    assert_fields(&events[0], json!({ "seq": 1, "model": "tiny" }));
    let phases: Vec<_> = events.iter().filter_map(|event| event["name"].as_str()).collect();
    assert_eq!(phases, ["loading", "reading", "answering"]);
    assert_eq!(text_of(&events), "hello to you");
    let thinking: String = events.iter().filter_map(|event| event["thinking"].as_str()).collect();
    assert_eq!(thinking, "who is it");
    let done = events.last().unwrap();
    assert_eq!(done["finishReason"], "stop");
    let usage = &done["usage"];
    assert_fields(usage, json!({ "contextSize": 8192, "effectiveContext": 8192 }));
    assert!(usage["promptTokens"].as_u64().unwrap() > 0);
    assert_eq!(usage["promptLimit"], 6963);
    assert_eq!(
        conversation(&mut chat),
        messages(&[("user", "hello", ""), ("assistant", "hello to you", "stop")])
    );
    let records = chat.records();
    let answer = records.iter().find(|record| record["seq"] == done["seq"]).unwrap();
    assert_eq!(answer["message"]["model"], "tiny");
    assert_eq!(answer["message"]["parts"][0], json!({ "type": "thinking", "text": "who is it" }));
    let counted = records.iter().find(|record| record["type"] == "usage").unwrap();
    assert_eq!(counted["usage"]["promptTokens"], usage["promptTokens"]);
}

#[test]
fn every_request_has_the_same_window_and_forbids_truncation() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    for text in ["one", "two", "three"] {
        chat.turn(text);
    }
    let bodies: Vec<Value> =
        fake.requests("/api/chat").into_iter().map(|request| request.body).collect();
    assert_eq!(bodies.len(), 3);
    for body in &bodies {
        assert_eq!(body["options"]["num_ctx"], 8192);
        assert_eq!((&body["truncate"], body.get("shift")), (&json!(false), None));
        let longest = body["options"]["num_predict"].as_u64().unwrap();
        assert!((1..8192).contains(&longest), "{longest}");
    }
    assert_eq!(fake.n_loads(), 1);
    let last = array(&bodies[2]["messages"]);
    let roles: Vec<_> = last.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
}

#[test]
fn answer_ends_at_the_limit_that_usage_names() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    let check = |chat: &mut ModelSession, more: Value, limit: u64, cut_by: Option<&str>| {
        fake.script(Answer::text("a banana for the king and a banana for the queen"));
        let mut params = chat.message("what is it?");
        more.as_object().unwrap().iter().for_each(|(name, value)| params[name] = value.clone());
        let done = chat.turn_with(params).pop().unwrap();
        let reason = if cut_by.is_some() { "length" } else { "stop" };
        assert_eq!((&done["kind"], &done["finishReason"]), (&json!("done"), &json!(reason)));
        let usage = &done["usage"];
        assert_eq!((usage["answerLimit"].as_u64(), usage["cutBy"].as_str()), (Some(limit), cut_by));
        let sent = fake.requests("/api/chat").pop().unwrap().body;
        assert_eq!(sent["options"]["num_predict"], limit);
    };
    check(&mut chat, json!({ "answerLimit": 7 }), 7, Some("call"));
    check(&mut chat, json!({ "answerLimit": 900 }), 900, None);
    let text = chat.sandbox.ctl(["chat", "-m", "tiny", "--answer-limit", "900", "hi"]).ok();
    assert_eq!(text, "ok\n");
    let sent = fake.requests("/api/chat").pop().unwrap().body;
    assert_eq!(sent["options"]["num_predict"], 900);
    chat.reconfigure(&(fake.config("tiny") + "context:\n  answerLimit: 5\n"));
    check(&mut chat, json!({}), 5, Some("config"));
}

#[test]
fn model_that_another_client_unloaded_is_loading() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    let mut phases = |text: &str| -> Vec<String> {
        let events = chat.turn(text);
        let phases = events.iter().filter(|event| event["kind"] == "phase");
        phases.map(|event| event["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(phases("one"), ["loading", "reading", "answering"]);
    assert_eq!(phases("two"), ["reading", "answering"]);
    fake.state().loaded.clear();
    assert_eq!(phases("three"), ["loading", "reading", "answering"]);
}

#[test]
fn invalid_params_are_refused_before_anything_is_recorded() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    let mut check = |field: &str, value: Value, kind: &str| {
        let mut params = chat.message("hello");
        params[field] = value;
        chat.wire.refused("chat.send", params, kind);
    };
    check("options", json!({ "num_ctx": 4096 }), "invalidParams");
    check("answerLimit", json!(0), "invalidParams");
    check("tools", json!([{ "type": "function" }]), "invalidParams");
    check("message", json!({ "role": "assistant", "content": "x" }), "invalidParams");
    check("model", json!(" "), "invalidParams");
    check("sessionId", json!("00000000-0000-7000-8000-000000000000"), "sessionNotFound");
    assert_eq!(fake.requests("/api/chat").len(), 0);
    let list = chat.wire.ok("session.list", json!({}));
    assert_eq!(list["data"], json!([]), "a draft is not listed");
}
