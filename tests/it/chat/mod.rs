//! `chat.*`: what the client is told, what the session holds, and that the next turn works, whatever happens.

mod retry;
mod silence;

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Answer, Daemon, FakeOllama, Fault, RENDER, Sandbox, Wire, until};

/// A daemon that talks to the fake server, and a session.
struct Chat {
    sandbox: Sandbox,
    daemon: Daemon,
    wire: Wire,
    session: String,
}

impl Chat {
    fn with(fake: &FakeOllama) -> Self {
        Self::configured(&format!("ollama:\n  host: {}\n  model: tiny\n", fake.host()))
    }

    fn configured(config: &str) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write_config(config);
        let (daemon, mut wire) = sandbox.served();
        let session = wire.create(json!({}));
        Self { sandbox, daemon, wire, session }
    }

    fn params(&self, text: &str) -> Value {
        json!({ "sessionId": self.session, "message": { "role": "user", "content": text } })
    }

    fn begin(&mut self, params: Value) {
        let _subscription = self.wire.ok("chat.send", params);
    }

    /// The next event of the turn.
    #[track_caller]
    fn event(&mut self) -> Value {
        self.wire.told("chat.event")
    }

    /// All events up to one kind.
    #[track_caller]
    fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.event();
            let is_last = event["kind"] == kind;
            let ended = ["done", "error"].contains(&event["kind"].as_str().unwrap());
            events.push(event);
            if is_last {
                return events;
            }
            assert!(!ended, "the turn ended: {events:?}");
        }
    }

    /// A whole turn; its last event.
    #[track_caller]
    fn turn(&mut self, text: &str) -> Vec<Value> {
        self.begin(self.params(text));
        self.until("done")
    }

    /// A turn that fails; its last event.
    #[track_caller]
    fn failing(&mut self, text: &str, kind: &str) -> Value {
        self.begin(self.params(text));
        let error = self.until("error").pop().unwrap();
        assert_eq!(error["data"]["kind"], kind, "{error}");
        error
    }

    /// What was said: role, text and why it ended.
    fn said(&mut self) -> Vec<(String, String, String)> {
        let records = self.wire.records(&self.session);
        let messages = records.iter().filter_map(|record| record.get("message"));
        let told = messages.map(|message| {
            let parts = message["parts"].as_array().unwrap();
            let text = parts.iter().filter(|part| part["type"] == "text");
            let text: String = text.map(|part| part["text"].as_str().unwrap()).collect();
            let reason = message["finishReason"].as_str().unwrap_or_default();
            (message["role"].as_str().unwrap().to_owned(), text, reason.to_owned())
        });
        told.collect()
    }
}

fn said(all: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    all.iter().map(|(a, b, c)| ((*a).into(), (*b).into(), (*c).into())).collect()
}

fn text_of(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["text"].as_str()).collect()
}

#[test]
fn a_turn_is_told_step_by_step_and_recorded() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer::text("hello to you").thinking("who is it"));
    let mut chat = Chat::with(&fake);
    let events = chat.turn("hello");
    assert_eq!(events[0]["kind"], "accepted");
    assert_eq!((&events[0]["seq"], &events[0]["model"]), (&json!(1), &json!("tiny")));
    let phases: Vec<_> = events.iter().filter_map(|event| event["name"].as_str()).collect();
    assert_eq!(phases, ["loading", "reading", "answering"]);
    assert_eq!(text_of(&events), "hello to you");
    let thinking: String = events.iter().filter_map(|event| event["thinking"].as_str()).collect();
    assert_eq!(thinking, "who is it");
    let done = events.last().unwrap();
    assert_eq!(done["finishReason"], "stop");
    let usage = &done["usage"];
    assert_eq!(
        (&usage["requestedContext"], &usage["effectiveContext"]),
        (&json!(8192), &json!(8192))
    );
    assert!(usage["promptTokens"].as_u64().unwrap() > 0);
    assert_eq!(usage["promptLimit"], 6963);
    assert_eq!(chat.said(), said(&[("user", "hello", ""), ("assistant", "hello to you", "stop")]));
    let records = chat.wire.records(&chat.session.clone());
    let answer = records.iter().find(|record| record["seq"] == done["seq"]).unwrap();
    assert_eq!(answer["message"]["model"], "tiny");
    assert_eq!(answer["message"]["parts"][0], json!({ "type": "thinking", "text": "who is it" }));
    let counted = records.iter().find(|record| record["type"] == "usage").unwrap();
    assert_eq!(counted["usage"]["promptTokens"], usage["promptTokens"]);
}

#[test]
fn every_request_names_one_window_and_lets_nothing_be_cut() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Chat::with(&fake);
    for text in ["one", "two", "three"] {
        let _events = chat.turn(text);
    }
    let bodies: Vec<Value> = fake.requests("/api/chat").into_iter().map(|seen| seen.body).collect();
    assert_eq!(bodies.len(), 3);
    for body in &bodies {
        assert_eq!(body["options"]["num_ctx"], 8192);
        assert_eq!((&body["truncate"], body.get("shift")), (&json!(false), None));
        let longest = body["options"]["num_predict"].as_u64().unwrap();
        assert!((1..8192).contains(&longest), "{longest}");
    }
    assert_eq!(fake.loads(), 1);
    let last = bodies[2]["messages"].as_array().unwrap();
    let roles: Vec<_> = last.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
}

fn tool(name: &str) -> Value {
    json!({ "type": "function", "function": {
        "name": name, "description": "x", "parameters": { "type": "object", "properties": {} } } })
}

#[test]
fn tools_are_called_by_the_client_until_none_is_left() {
    for at_the_end in [false, true] {
        let fake = FakeOllama::start("0.33.0");
        let calls = Answer::text("").call("read", json!({ "path": "a" })).call("list", json!({}));
        let calls = calls.call("list", json!({ "path": "b" }));
        fake.answer(if at_the_end { calls.calls_at_the_end() } else { calls });
        fake.answer(Answer::text("it says x"));
        let mut chat = Chat::with(&fake);
        let mut params = chat.params("what is in a?");
        params["tools"] = json!([tool("read"), tool("list")]);
        chat.begin(params);
        let asked = chat.until("toolCalls").pop().unwrap();
        let calls = asked["calls"].as_array().unwrap().clone();
        assert_eq!(
            (&calls[0]["name"], &calls[0]["args"]),
            (&json!("read"), &json!({ "path": "a" }))
        );
        let result = |at: usize, text: &str| json!({ "id": calls[at]["id"], "result": { "llmContent": text } });
        let id = chat.session.clone();
        let send = |results: Value| json!({ "sessionId": id, "results": results });
        let unknown = json!([{ "id": "nobody", "result": { "llmContent": "" } }]);
        let _error = chat.wire.refused("chat.submitToolResults", send(unknown), "invalidParams");
        let both = send(json!([result(2, "c"), result(0, "x")]));
        let first = chat.wire.ok("chat.submitToolResults", both);
        assert_eq!(first["missing"], json!([calls[1]["id"]]));
        let seqs = |result: &Value| -> Vec<u64> {
            serde_json::from_value(result["seqs"].clone()).unwrap()
        };
        assert_eq!(seqs(&first)[0], seqs(&first)[1] + 1, "written in the order of the calls");
        let second = chat.wire.ok("chat.submitToolResults", send(json!([result(1, "a b")])));
        assert_eq!(second["missing"], json!([]));
        let done = chat.until("done");
        assert_eq!(text_of(&done), "it says x");
        let late = send(json!([result(0, "x")]));
        let _error = chat.wire.refused("chat.submitToolResults", late, "conflict");
        let sent = fake.requests("/api/chat")[1].body["messages"].clone();
        let roles: Vec<_> = sent.as_array().unwrap().iter().map(|m| m["role"].clone()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "tool"]);
        let linked: Vec<_> = (2..5).map(|at| sent[at]["tool_call_id"].clone()).collect();
        let ids: Vec<_> = (0..3).map(|at| sent[1]["tool_calls"][at]["id"].clone()).collect();
        assert_eq!(linked, [ids[0].clone(), ids[2].clone(), ids[1].clone()]);
        assert_eq!(ids[0].as_str().unwrap().len(), 9, "as every template takes it");
        let contents: Vec<_> = (2..5).map(|at| sent[at]["content"].as_str().unwrap()).collect();
        assert_eq!(contents, ["x", "c", "a b"]);
    }
}

#[test]
fn a_turn_that_repeats_itself_is_stopped_until_the_user_says_something() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Chat::with(&fake);
    let mut params = chat.params("what is in a?");
    params["tools"] = json!([tool("read")]);
    for _ in 0..3 {
        fake.answer(Answer::text("").call("read", json!({ "path": "a", "lines": [1, 2] })));
    }
    chat.begin(params);
    for _ in 0..2 {
        let asked = chat.until("toolCalls").pop().unwrap();
        let result =
            json!({ "id": asked["calls"][0]["id"], "result": { "llmContent": "nothing" } });
        let results = json!({ "sessionId": chat.session, "results": [result] });
        let _seqs = chat.wire.ok("chat.submitToolResults", results);
    }
    let error = chat.until("error").pop().unwrap();
    assert_eq!(error["data"]["kind"], "loopDetected", "{error}");
    assert_eq!(error["data"]["pattern"], json!({ "kind": "call", "tools": ["read"], "count": 3 }));
    assert_eq!(error["data"]["hint"], format!("ollmctl loop reset {}", chat.session));
    assert_eq!(fake.requests("/api/chat").len(), 3, "the model was not called again");
    let status = chat.wire.ok("loop.status", json!({ "sessionId": chat.session }));
    assert_eq!(status["detected"], error["data"]["pattern"]);
    let records = chat.wire.records(&chat.session.clone());
    assert_eq!(records.iter().filter(|record| record["type"] == "loop").count(), 1);
    fake.answer(Answer::text("nothing is in it"));
    assert_eq!(text_of(&chat.turn("so what is it?")), "nothing is in it");
}

#[test]
fn model_calls_of_one_turn_are_limited() {
    let fake = FakeOllama::start("0.33.0");
    let host = fake.host();
    let mut chat = Chat::configured(&format!(
        "ollama: {{ host: '{host}', model: tiny }}\nloopDetection: {{ maxTurns: 2 }}\n"
    ));
    let mut params = chat.params("count");
    params["tools"] = json!([tool("read")]);
    for at in 0..2 {
        fake.answer(Answer::text("").call("read", json!({ "at": at })));
    }
    chat.begin(params);
    let asked = chat.until("toolCalls").pop().unwrap();
    let result = json!({ "id": asked["calls"][0]["id"], "result": { "llmContent": "1" } });
    let results = json!({ "sessionId": chat.session, "results": [result] });
    let _seqs = chat.wire.ok("chat.submitToolResults", results);
    let error = chat.until("error").pop().unwrap();
    assert_eq!(error["data"]["pattern"], json!({ "kind": "turns", "count": 2 }), "{error}");
    assert_eq!(fake.requests("/api/chat").len(), 2);
}

#[test]
fn a_canceled_turn_keeps_what_was_said_and_the_next_one_works() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer::text("one two three"));
    fake.next("/api/chat", &[Fault::Stall { after: 2 }]);
    let mut chat = Chat::with(&fake);
    chat.begin(chat.params("count"));
    let _events = chat.until("delta");
    let id = json!({ "sessionId": chat.session });
    let mut other = chat.daemon.wire();
    let error = other.refused("chat.send", chat.params("me too"), "conflict");
    assert!(error["data"]["holder"].as_str().unwrap().starts_with("tiny since"), "{error}");
    assert_eq!(other.ok("chat.cancel", id.clone())["canceled"], true);
    let error = chat.until("error").pop().unwrap();
    assert_eq!(error["data"]["kind"], "cancelled");
    until("the server saw the client leave", || (fake.hanging() == 0).then_some(()));
    assert_eq!(chat.said()[1].2, "canceled");
    assert!("one two three".starts_with(&chat.said()[1].1), "{:?}", chat.said());
    assert_eq!(other.ok("chat.cancel", id)["canceled"], false);
    assert_eq!(text_of(&chat.turn("again")), "ok");
}

#[test]
fn a_client_that_leaves_ends_its_turn_unless_it_is_detached() {
    for detach in [false, true] {
        let fake = FakeOllama::start("0.33.0");
        fake.answer(Answer::text("one two three"));
        fake.next("/api/chat", &[Fault::Stall { after: 2 }]);
        let mut chat = Chat::with(&fake);
        let mut params = chat.params("count");
        params["detach"] = json!(detach);
        let mut leaving = chat.daemon.wire();
        let _subscription = leaving.ok("chat.send", params);
        until("the answer stalls", || (fake.hanging() == 1).then_some(()));
        drop(leaving);
        if detach {
            fake.resume();
        }
        let ended = until("the answer is recorded", || {
            let said = chat.said();
            (said.len() == 2).then_some(said)
        });
        let expect = if detach { "stop" } else { "canceled" };
        assert_eq!(ended[1].2, expect);
        assert_eq!(ended[1].1 == "one two three", detach);
    }
}

#[test]
fn each_failure_is_told_keeps_what_was_said_and_leaves_the_session_usable() {
    let cases = [
        (
            Fault::Error { status: 404, text: "model 'tiny' not found".into() },
            "modelNotFound",
            None,
        ),
        (
            Fault::Error { status: 500, text: "llama-server process has terminated".into() },
            "modelFailed",
            None,
        ),
        (Fault::ForbiddenHost, "modelUnavailable", None),
        (Fault::ErrorLine { after: 1, text: "out of memory".into() }, "modelFailed", Some("one ")),
        (Fault::EndWithoutDone { after: 2 }, "modelFailed", Some("one two ")),
        (Fault::Break { after: 1 }, "modelFailed", Some("one ")),
        (Fault::GarbageLine { after: 1 }, "modelFailed", Some("one ")),
    ];
    for (fault, kind, partial) in cases {
        let fake = FakeOllama::start("0.33.0");
        let mut chat = Chat::with(&fake);
        fake.answer(Answer::text("one two three"));
        fake.next("/api/chat", std::slice::from_ref(&fault));
        let error = chat.failing("count", kind);
        let told = chat.said();
        assert_eq!(told[0].1, "count", "{fault:?}: the user's words are there");
        match partial {
            None => assert_eq!(told.len(), 1, "{fault:?}: {told:?}"),
            Some(text) => {
                assert_eq!((told[1].1.as_str(), told[1].2.as_str()), (text, "interrupted"));
                assert!(error["data"]["seq"].is_u64(), "{error}");
            }
        }
        // What is recorded is answered, without saying it again.
        chat.begin(json!({ "sessionId": chat.session }));
        assert_eq!(chat.until("done").last().unwrap()["finishReason"], "stop", "{fault:?}");
    }
}

#[test]
fn without_a_server_the_words_are_kept_and_the_way_out_is_told() {
    let mut chat = Chat::configured("ollama:\n  host: 127.0.0.1:9\n  model: tiny\n");
    let error = chat.failing("anybody there?", "modelUnavailable");
    assert_eq!(error["data"]["hint"], "ollama serve");
    assert_eq!(error["data"]["host"], "http://127.0.0.1:9");
    assert_eq!(chat.said(), said(&[("user", "anybody there?", "")]));
}

#[test]
fn what_cannot_be_asked_is_refused_before_anything_is_recorded() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Chat::with(&fake);
    let mut check = |field: &str, value: Value, kind: &str| {
        let mut params = chat.params("hello");
        params[field] = value;
        let _error = chat.wire.refused("chat.send", params, kind);
    };
    check("options", json!({ "num_ctx": 4096 }), "invalidParams");
    check("maxTokens", json!(0), "invalidParams");
    check("tools", json!([{ "type": "function" }]), "invalidParams");
    check("message", json!({ "role": "assistant", "content": "x" }), "invalidParams");
    check("model", json!(" "), "invalidParams");
    check("sessionId", json!("00000000-0000-7000-8000-000000000000"), "sessionNotFound");
    assert_eq!(fake.requests("/api/chat").len(), 0);
    let list = chat.wire.ok("session.list", json!({}));
    assert_eq!(list["data"], json!([]), "no message, no session");
}

#[test]
fn a_retry_with_its_key_asks_once() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Chat::with(&fake);
    let mut params = chat.params("once");
    params["key"] = json!("k");
    chat.begin(params.clone());
    let first = chat.until("done").pop().unwrap();
    chat.begin(params);
    let again = chat.until("done");
    assert_eq!(again[0]["duplicate"], true);
    assert_eq!(again.last().unwrap()["seq"], first["seq"]);
    assert_eq!(fake.requests("/api/chat").len(), 1);
}

#[test]
fn a_retry_with_its_key_is_answered_where_the_first_try_was_not() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer::text("one two three"));
    fake.next("/api/chat", &[Fault::Break { after: 1 }]);
    let mut chat = Chat::with(&fake);
    let mut params = chat.params("count");
    params["key"] = json!("k");
    chat.begin(params.clone());
    let _broken = chat.until("error");
    fake.answer(Answer { reason: "length", ..Answer::text("one two three") });
    chat.begin(params.clone());
    let second = chat.until("done");
    assert_eq!(second[0]["duplicate"], true);
    assert_eq!(second.last().unwrap()["finishReason"], "length");
    assert_eq!(fake.requests("/api/chat").len(), 2);
    chat.begin(params);
    let third = chat.until("done").pop().unwrap();
    assert_eq!(
        (&third["seq"], &third["finishReason"]),
        (&second.last().unwrap()["seq"], &json!("length"))
    );
    assert_eq!(fake.requests("/api/chat").len(), 2);
    assert_eq!(chat.said().iter().filter(|said| said.0 == "user").count(), 1);
}

#[test]
fn an_empty_answer_is_asked_for_once_more_and_then_told() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer::text(""));
    let mut chat = Chat::with(&fake);
    assert_eq!(text_of(&chat.turn("say something")), "ok");
    fake.answer(Answer::text(""));
    fake.answer(Answer::text(""));
    let error = chat.failing("and again", "modelFailed");
    assert_eq!(error["data"]["reason"], "emptyAnswer");
    assert!(error["data"]["promptTokens"].is_u64() && error["data"]["promptLimit"].is_u64());
}

#[test]
fn a_killed_daemon_loses_at_most_a_second_of_an_answer() {
    let fake = FakeOllama::start("0.33.0");
    let words: Vec<String> = (0..400).map(|n| format!("word{n} ")).collect();
    fake.answer(Answer::text(&words.concat()));
    fake.next("/api/chat", &[Fault::SlowLines(Duration::from_millis(10))]);
    let mut chat = Chat::with(&fake);
    chat.begin(chat.params("count"));
    let id = chat.session.clone();
    // The first piece is on disk: how many words it has is up to the machine.
    let mut other = chat.daemon.wire();
    until("a piece is recorded", || {
        let records = other.records(&id);
        records.iter().any(|record| record["type"] == "custom").then_some(())
    });
    let Chat { sandbox, daemon, .. } = chat;
    daemon.kill9();
    let (daemon, mut wire) = sandbox.served();
    let messages = |wire: &mut Wire| -> Vec<Value> {
        let records = wire.records(&id);
        records.iter().filter_map(|record| record.get("message").cloned()).collect()
    };
    let told = messages(&mut wire);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[1]["finishReason"], "interrupted");
    let text = told[1]["parts"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("word0 word1 ") && words.concat().starts_with(text), "{text}");
    assert_eq!(messages(&mut wire).len(), 2, "it is made a message once");
    let _subscription = wire.ok(
        "chat.send",
        json!({ "sessionId": id,
        "message": { "role": "user", "content": "go on" } }),
    );
    let done = until("the next turn ends", || {
        let event = wire.told("chat.event");
        (event["kind"] == "done").then_some(event)
    });
    assert_eq!(done["finishReason"], "stop");
    assert!(daemon.terminate().success());
}

#[test]
fn a_server_that_hangs_is_waited_for_once() {
    let fake = FakeOllama::start("0.33.0");
    let host = fake.host();
    let mut chat = Chat::configured(&format!(
        "ollama: {{ host: '{host}', model: tiny, firstTokenTimeout: 200ms }}\n"
    ));
    fake.next(RENDER, &[Fault::Hang]);
    let error = chat.failing("anybody there?", "modelFailed");
    assert_eq!(error["data"]["reason"], "firstTokenTimeout", "{error}");
    assert_eq!(fake.requests("/api/chat").len(), 0, "it was not asked to be silent again");
    assert_eq!(text_of(&chat.turn("and now?")), "ok");
}

#[test]
fn results_of_tools_are_waited_for_as_long_as_configured() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer::text("").call("read", json!({ "path": "a" })));
    let host = fake.host();
    let mut chat = Chat::configured(&format!(
        "ollama: {{ host: '{host}', model: tiny, toolTimeout: 150ms }}\n"
    ));
    let mut params = chat.params("what is in a?");
    params["tools"] = json!([tool("read")]);
    chat.begin(params);
    let asked = chat.until("toolCalls").pop().unwrap();
    assert_eq!(asked["timeoutMs"], 150);
    let error = chat.until("error").pop().unwrap();
    assert!(error["message"].as_str().unwrap().contains("no results"), "{error}");
    assert_eq!(text_of(&chat.turn("never mind")), "ok");
}
