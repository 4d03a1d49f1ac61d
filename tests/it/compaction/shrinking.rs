//! A window that becomes smaller, tools that appear, and a smaller model for one turn: what is due for the next call is
//! computed from what this call uses, and compacted with a summary as any growth is.

use serde_json::{Value, json};

use super::{DISABLED, SUMMARY, request_kinds, session};
use crate::harness::{Answer, FakeOllama, ModelSession, array, until};

/// Exchanges that fill a part of a window of 8,192, and more than one of 4,096.
const EXCHANGES: usize = 14;

/// Returns a session of some exchanges, whose daemon compacts from now on.
fn filled(fake: &FakeOllama) -> ModelSession {
    fake.script_summaries(Answer::text(SUMMARY));
    let mut chat = session(fake, 8192, DISABLED);
    chat.exchanges(EXCHANGES);
    chat.turn("Which variants does TokenKind have?");
    assert_eq!(request_kinds(fake), "A", "everything fits");
    chat.reconfigure(&fake.config("tiny"));
    chat
}

/// Asserts that the newest turn was compacted by a model before its answer, and returns the request for that answer.
#[track_caller]
fn assert_summarized(fake: &FakeOllama, chat: &mut ModelSession, events: &[Value]) -> Value {
    assert_eq!(events.last().unwrap()["kind"], "done", "{events:?}");
    assert!(events.iter().any(|event| event["name"] == "compacting"), "{events:?}");
    assert!(request_kinds(fake).starts_with("ASA"), "{}", request_kinds(fake));
    let records = chat.records();
    let compaction = records.iter().find(|record| record["type"] == "compaction").unwrap();
    assert_eq!(compaction["compaction"]["method"], "summarized", "{compaction}");
    let requests = fake.requests("/api/chat");
    let answer = requests.iter().filter(|request| !request.wants_summary()).nth(1).unwrap();
    let first = answer.body["messages"].to_string();
    assert!(first.contains("<memory>") && first.contains("TokenKind has 41 variants"), "{first}");
    answer.body.clone()
}

fn num_ctx(request: &Value) -> u64 {
    request["options"]["num_ctx"].as_u64().unwrap()
}

#[test]
fn window_that_shrank_is_compacted_with_a_summary() {
    let fake = FakeOllama::new();
    let mut chat = filled(&fake);
    chat.ok("session.update", json!({ "contextSize": 2048 }));
    let events = chat.turn_with(chat.message("go on"));
    assert_summarized(&fake, &mut chat, &events);
    let used = events.last().unwrap()["usage"]["contextTokens"].as_u64().unwrap();
    assert!((700..2048).contains(&used), "the room of the window is used: {used}");
    until("the background has replaced what was extracted", || {
        let listed = chat.checkpoints();
        array(&listed["checkpoints"]).iter().all(|one| one.get("provisional").is_none())
    });
    // A window that grew again shows more, planned from the log.
    chat.ok("session.update", json!({ "contextSize": 8192 }));
    let events = chat.turn_with(chat.message("and on"));
    let grown = events.last().unwrap()["usage"]["contextTokens"].as_u64().unwrap();
    assert!(grown > used, "{grown} after {used}");
}

#[test]
fn tools_that_appear_are_compacted_for() {
    let fake = FakeOllama::new();
    let mut chat = filled(&fake);
    let description = "Reads a part of the project and returns it with line numbers. ".repeat(2);
    let tool = |n: usize| {
        json!({ "type": "function", "function": { "name": format!("tool_{n}"),
            "description": description, "parameters": { "type": "object", "properties": {} } } })
    };
    let tools: Vec<Value> = (0..22).map(tool).collect();
    let mut params = chat.message("go on");
    params["tools"] = json!(tools);
    let events = chat.turn_with(params);
    let request = assert_summarized(&fake, &mut chat, &events);
    // Those of the client, and the two by which the model recalls.
    assert_eq!((num_ctx(&request), array(&request["tools"]).len()), (8192, 24));
}

#[test]
fn smaller_model_for_one_turn_is_compacted_for() {
    let fake = FakeOllama::new();
    fake.state().small_model = Some(("thinker", 2048));
    let mut chat = filled(&fake);
    let mut params = chat.message("go on");
    params["model"] = json!("thinker");
    let events = chat.turn_with(params);
    let request = assert_summarized(&fake, &mut chat, &events);
    assert_eq!((num_ctx(&request), &request["model"]), (2048, &json!("thinker")));
    chat.turn("and on with the model from before");
    let requests = fake.requests("/api/chat");
    let last = requests.iter().rfind(|request| !request.wants_summary()).unwrap();
    assert_eq!((num_ctx(&last.body), &last.body["model"]), (8192, &json!("tiny")));
}
