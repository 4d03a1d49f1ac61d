//! Asking again for an answer that did not come to its end: nothing is ever continued by itself.

use serde_json::{Value, json};

use super::{Chat, text_of, tool};
use crate::harness::{Answer, FakeOllama, Fault};

/// Breaks an answer off after its first word.
fn broken(fake: &FakeOllama) {
    fake.answer(Answer::text("one two three"));
    fake.next("/api/chat", &[Fault::Break { after: 1 }]);
}

/// The roles and texts of the newest request.
fn newest_request(fake: &FakeOllama) -> Vec<(String, String)> {
    let messages = fake.requests("/api/chat").pop().unwrap().body["messages"].clone();
    let text = |message: &Value, name: &str| message[name].as_str().unwrap().to_owned();
    let messages = messages.as_array().unwrap().iter();
    messages.map(|message| (text(message, "role"), text(message, "content"))).collect()
}

impl Chat {
    /// What is in force of what was said.
    fn in_force(&mut self) -> Vec<String> {
        let params = json!({ "sessionId": self.session, "branch": "active" });
        let records = self.wire.ok("session.get", params)["records"].clone();
        let parts = records.as_array().unwrap().iter().map(|record| &record["message"]["parts"]);
        parts.filter_map(|parts| parts[0]["text"].as_str().map(str::to_owned)).collect()
    }

    fn again(&mut self) -> Value {
        json!({ "sessionId": self.session })
    }
}

#[test]
fn an_answer_that_was_broken_off_is_given_anew_and_never_continued() {
    let fake = FakeOllama::start("0.33.0");
    broken(&fake);
    let mut chat = Chat::with(&fake);
    let _error = chat.failing("count", "modelFailed");
    let mut other = chat.daemon.wire();
    let _subscription = other.subscribe(json!({ "kinds": ["branch-changed"] }));
    fake.answer(Answer::text("four five"));
    let again = chat.again();
    chat.begin(again);
    assert_eq!(text_of(&chat.until("done")), "four five");
    assert_eq!(newest_request(&fake), [("user".to_owned(), "count".to_owned())]);
    assert_eq!(chat.in_force(), ["count", "four five"]);
    let said: Vec<String> = chat.said().into_iter().map(|said| said.1).collect();
    assert_eq!(said, ["count", "one ", "four five"], "the log keeps all of it");
    let moved = other.event();
    // Behind the question lies the epoch that its context opened.
    assert_eq!(moved["data"], json!({ "to": 2, "cause": "retry" }), "{moved}");
}

#[test]
fn a_retry_with_its_key_continues_nothing_either() {
    let fake = FakeOllama::start("0.33.0");
    broken(&fake);
    let mut chat = Chat::with(&fake);
    let mut params = chat.params("count");
    params["key"] = json!("k");
    chat.begin(params.clone());
    let _error = chat.until("error");
    chat.begin(params);
    assert_eq!(text_of(&chat.until("done")), "ok");
    assert_eq!(newest_request(&fake), [("user".to_owned(), "count".to_owned())]);
    assert_eq!(chat.in_force(), ["count", "ok"]);
}

#[test]
fn what_was_recorded_behind_a_broken_answer_stays_in_force() {
    let fake = FakeOllama::start("0.33.0");
    broken(&fake);
    let mut chat = Chat::with(&fake);
    let _error = chat.failing("count", "modelFailed");
    let mode = json!({ "sessionId": chat.session, "mode": "planning" });
    let _changed = chat.wire.ok("session.setMode", mode);
    let custom = json!({ "sessionId": chat.session, "name": "editor.cursor", "data": { "at": 7 } });
    let _recorded = chat.wire.ok("session.recordCustom", custom);
    let again = chat.again();
    chat.begin(again);
    let _done = chat.until("done");
    assert_eq!(chat.in_force(), ["count", "ok"]);
    let params = json!({ "sessionId": chat.session, "branch": "active" });
    let got = chat.wire.ok("session.get", params);
    let kinds = |kind: &str| {
        let records = got["records"].as_array().unwrap().iter();
        records.filter(|record| record["type"] == kind).count()
    };
    assert_eq!((kinds("modeChange"), kinds("custom")), (1, 1));
}

#[test]
fn a_tool_loop_goes_on_behind_its_last_result() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer::text("").call("read", json!({ "path": "a" })));
    let mut chat = Chat::with(&fake);
    let mut params = chat.params("what is in a?");
    params["tools"] = json!([tool("read")]);
    chat.begin(params);
    let asked = chat.until("toolCalls").pop().unwrap();
    fake.answer(Answer::text("it says x"));
    fake.next("/api/chat", &[Fault::Break { after: 1 }]);
    let result = json!({ "id": asked["calls"][0]["id"], "result": { "llmContent": "x" } });
    let results = json!({ "sessionId": chat.session, "results": [result] });
    let _seqs = chat.wire.ok("chat.submitToolResults", results);
    let _error = chat.until("error");
    let again = chat.again();
    chat.begin(again);
    assert_eq!(text_of(&chat.until("done")), "ok");
    let sent = newest_request(&fake);
    let roles: Vec<&str> = sent.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool"]);
}

#[test]
fn an_answer_that_was_cut_may_be_asked_for_again() {
    let fake = FakeOllama::start("0.33.0");
    fake.answer(Answer { reason: "length", ..Answer::text("one two") });
    let mut chat = Chat::with(&fake);
    let _cut = chat.turn("count");
    let again = chat.again();
    chat.begin(again);
    let _done = chat.until("done");
    assert_eq!(newest_request(&fake), [("user".to_owned(), "count".to_owned())]);
}

#[test]
fn what_is_answered_or_empty_has_no_answer_to_come() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Chat::with(&fake);
    let again = chat.again();
    let error = chat.wire.refused("chat.send", again.clone(), "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("nothing was said"), "{error}");
    let _done = chat.turn("hello");
    let error = chat.wire.refused("chat.send", again, "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("answered already"), "{error}");
    assert_eq!(fake.requests("/api/chat").len(), 1);
    assert_eq!(chat.in_force(), ["hello", "ok"]);
    let _done = chat.turn("and now?");
}
