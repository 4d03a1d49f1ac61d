//! Tool calls in a chat turn: results, loops, limits and the time limit of results.

use serde_json::{Value, json};

use super::{read_call, send_with_tool, submit_first, text_of, tool};
use crate::harness::{Answer, FakeOllama, ModelSession, array, assert_fields};

#[test]
fn turn_continues_until_all_tool_results_are_submitted() {
    for calls_in_done in [false, true] {
        let fake = FakeOllama::new();
        let calls =
            Answer::text("").tool_call("read", json!({ "path": "a" })).tool_call("list", json!({}));
        let calls = calls.tool_call("list", json!({ "path": "b" }));
        fake.script(if calls_in_done { calls.tool_calls_in_done() } else { calls });
        fake.script(Answer::text("it says x"));
        let mut chat = ModelSession::new(&fake);
        let mut params = chat.message("what is in a?");
        params["tools"] = json!([tool("read"), tool("list")]);
        chat.send(params);
        let event = chat.events_until("toolCalls").pop().unwrap();
        let calls = event["calls"].as_array().unwrap().clone();
        assert_fields(&calls[0], json!({ "name": "read", "args": { "path": "a" } }));
        let result = |at: usize, text: &str| json!({ "id": calls[at]["id"], "result": { "llmContent": text } });
        let results = |results: Value| json!({ "results": results });
        let unknown = results(json!([{ "id": "unknown", "result": { "llmContent": "" } }]));
        chat.refused("chat.submitToolResults", unknown, "invalidParams");
        let two = results(json!([result(2, "c"), result(0, "x")]));
        let first = chat.ok("chat.submitToolResults", two);
        assert_eq!(first["missing"], json!([calls[1]["id"]]));
        let seqs = |result: &Value| -> Vec<u64> {
            serde_json::from_value(result["seqs"].clone()).unwrap()
        };
        assert_eq!(
            seqs(&first)[0],
            seqs(&first)[1] + 1,
            "results are recorded in the order of the calls"
        );
        let second = chat.ok("chat.submitToolResults", results(json!([result(1, "a b")])));
        assert_eq!(second["missing"], json!([]));
        let done = chat.events_until("done");
        assert_eq!(text_of(&done), "it says x");
        let late = results(json!([result(0, "x")]));
        chat.refused("chat.submitToolResults", late, "conflict");
        let sent = fake.requests("/api/chat")[1].body["messages"].clone();
        let roles: Vec<_> = array(&sent).iter().map(|m| m["role"].clone()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "tool"]);
        let linked: Vec<_> = (2..5).map(|at| sent[at]["tool_call_id"].clone()).collect();
        let ids: Vec<_> = (0..3).map(|at| sent[1]["tool_calls"][at]["id"].clone()).collect();
        assert_eq!(linked, ids, "in the order of the calls");
        assert_eq!(ids[0].as_str().unwrap().len(), 9, "a length that every template accepts");
        let contents: Vec<_> = (2..5).map(|at| sent[at]["content"].as_str().unwrap()).collect();
        assert_eq!(contents, ["x", "a b", "c"]);
    }
}

#[test]
fn call_that_was_never_answered_is_interrupted_for_the_model() {
    for is_killed in [false, true] {
        let fake = FakeOllama::new();
        fake.script(read_call(json!({ "path": "a" })));
        let mut chat = ModelSession::new(&fake);
        send_with_tool(&mut chat, "what is in a?");
        chat.events_until("toolCalls");
        if is_killed {
            chat = chat.kill_and_restart();
        } else {
            let id = json!({ "sessionId": chat.id });
            chat.daemon.wire().ok("chat.cancel", id);
            chat.events_until("error");
        }
        send_with_tool(&mut chat, "never mind");
        chat.events_until("done");
        let sent = fake.requests("/api/chat").pop().unwrap().body["messages"].clone();
        let said: Vec<_> = array(&sent)
            .iter()
            .map(|one| (one["role"].as_str().unwrap(), one["content"].as_str().unwrap_or_default()))
            .collect();
        let expected = [
            ("user", "what is in a?"),
            ("assistant", ""),
            ("tool", "[interrupted]"),
            ("user", "never mind"),
        ];
        assert_eq!(said, expected, "is_killed: {is_killed}");
        assert_eq!(sent[2]["tool_call_id"], sent[1]["tool_calls"][0]["id"]);
    }
}

#[test]
fn repeated_tool_call_ends_the_turn_until_the_next_user_message() {
    let fake = FakeOllama::new();
    let mut chat = ModelSession::new(&fake);
    for _ in 0..3 {
        fake.script(read_call(json!({ "path": "a", "lines": [1, 2] })));
    }
    send_with_tool(&mut chat, "what is in a?");
    for _ in 0..2 {
        let event = chat.events_until("toolCalls").pop().unwrap();
        submit_first(&mut chat, &event, "nothing");
    }
    let error = chat.events_until("error").pop().unwrap();
    assert_eq!(error["data"]["kind"], "loopDetected", "{error}");
    assert_eq!(error["data"]["pattern"], json!({ "kind": "call", "tools": ["read"], "count": 3 }));
    assert_eq!(error["data"]["hint"], format!("ollmctl loop reset {}", chat.id));
    assert_eq!(fake.requests("/api/chat").len(), 3, "no further request to the model");
    let status = chat.ok("loop.status", json!({}));
    assert_eq!(status["detected"], error["data"]["pattern"]);
    assert_eq!(chat.count("loop"), 1);
    fake.script(Answer::text("nothing is in it"));
    assert_eq!(text_of(&chat.turn("so what is it?")), "nothing is in it");
}

#[test]
fn model_calls_of_a_turn_are_limited() {
    let fake = FakeOllama::new();
    let config = fake.config("tiny") + "loopDetection: { maxTurns: 2 }\n";
    let mut chat = ModelSession::with_config(&config);
    for at in 0..2 {
        fake.script(read_call(json!({ "at": at })));
    }
    send_with_tool(&mut chat, "count");
    let event = chat.events_until("toolCalls").pop().unwrap();
    submit_first(&mut chat, &event, "1");
    let error = chat.events_until("error").pop().unwrap();
    assert_eq!(error["data"]["pattern"], json!({ "kind": "turns", "count": 2 }), "{error}");
    assert_eq!(fake.requests("/api/chat").len(), 2);
}

#[test]
fn missing_tool_results_end_the_turn_after_the_configured_time() {
    let fake = FakeOllama::new();
    fake.script(read_call(json!({ "path": "a" })));
    let mut chat =
        ModelSession::with_config(&(fake.config("tiny") + "chat:\n  toolTimeout: 150ms\n"));
    send_with_tool(&mut chat, "what is in a?");
    let event = chat.events_until("toolCalls").pop().unwrap();
    assert_eq!(event["timeoutMs"], 150);
    let error = chat.events_until("error").pop().unwrap();
    assert!(error["message"].as_str().unwrap().contains("no results"), "{error}");
    assert_eq!(text_of(&chat.turn("never mind")), "ok");
}

#[test]
fn arguments_at_the_nesting_limit_are_passed_on_and_deeper_ones_end_the_turn() {
    let nested =
        |levels: usize| (1..levels).fold(json!({ "v": 1 }), |inner, _| json!({ "v": inner }));
    for (levels, is_refused) in [(118, true), (97, true), (96, false)] {
        let fake = FakeOllama::new();
        fake.script(read_call(nested(levels)));
        fake.script(Answer::text("read"));
        let mut chat = ModelSession::new(&fake);
        send_with_tool(&mut chat, "what is in a?");
        if is_refused {
            let is_end = |event: &Value| event["kind"] == "toolCalls" || event["kind"] == "error";
            let error = std::iter::repeat_with(|| chat.event()).find(is_end).unwrap();
            assert_eq!(error["data"]["reason"], "tooDeep", "{levels} levels: {error:.300}");
            assert!(error["message"].as_str().unwrap().contains("96 levels"), "{error}");
            continue;
        }
        let event = chat.events_until("toolCalls").pop().unwrap();
        assert_eq!(event["calls"][0]["args"], nested(levels));
        submit_first(&mut chat, &event, "nothing");
        assert_eq!(text_of(&chat.events_until("done")), "read");
        let mut chat = chat.kill_and_restart();
        let records = chat.records();
        let called = records.iter().find(|record| record["message"]["role"] == "assistant");
        assert_eq!(called.unwrap()["message"]["parts"][0]["args"], nested(levels));
    }
}
