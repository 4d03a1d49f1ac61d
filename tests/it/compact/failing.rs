//! Compactions that fail, are ended or overtaken: nothing changes, and the next one works.

use serde_json::json;

use super::{Compact, SUMMARY};
use crate::harness::{Answer, FakeOllama, Fault, until};

#[test]
fn what_is_no_summary_changes_nothing() {
    let long = format!("{SUMMARY}\n<tool_call>{{\"name\":\"read\"}}</tool_call>");
    let cases: [(&str, &str, &str); 4] = [
        ("I am sorry, I cannot do that.", "no section Goal", "modelFailed"),
        ("## Goal\n(none)\n## Progress\n(none)", "no section Goal", "modelFailed"),
        (" ", "empty", "modelFailed"),
        (&long, "a tool call", "modelFailed"),
    ];
    for (answer, problem, kind) in cases {
        let fake = FakeOllama::start("0.33.0");
        fake.summarize(Answer::text(answer));
        let mut chat = Compact::asked(&fake);
        chat.exchanges(14);
        let before = chat.messages();
        let params = chat.params(json!({}));
        let error = chat.wire.refused("context.compact", params, kind);
        assert!(error["message"].as_str().unwrap().contains(problem), "{error}");
        assert_eq!((chat.messages(), chat.count("compaction")), (before, 0));
        let asked = fake.summaries();
        assert_eq!(asked.len(), 2, "one stricter try");
        let again = asked[1].body["messages"][1]["content"].as_str().unwrap();
        assert!(again.contains("could not be used") && again.contains(problem), "{again}");
        // The next one is a summary, and is taken.
        fake.summarize(Answer::text(SUMMARY));
        assert_eq!(chat.compact(json!({}))["compacted"], true);
    }
}

#[test]
fn a_model_that_is_away_changes_nothing_and_is_asked_again() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let before = chat.messages();
    let faults = [
        (Fault::Break { after: 1 }, "modelFailed"),
        (Fault::Error { status: 500, text: "llama runner terminated".to_owned() }, "modelFailed"),
        (Fault::EndWithoutDone { after: 1 }, "modelFailed"),
        (Fault::ErrorLine { after: 1, text: "out of memory".to_owned() }, "modelFailed"),
    ];
    for (fault, kind) in faults {
        fake.summarize(Answer::text(SUMMARY));
        fake.next("/api/chat", std::slice::from_ref(&fault));
        let params = chat.params(json!({}));
        let answer = chat.wire.call("context.compact", params);
        let error = answer.expect_err(&format!("{fault:?}"));
        let told = error["data"]["kind"].as_str().unwrap();
        assert!([kind, "modelUnavailable"].contains(&told), "{fault:?}: {error}");
        assert_eq!((chat.messages(), chat.count("compaction")), (before.clone(), 0));
    }
    fake.summarize(Answer::text(SUMMARY));
    assert_eq!(chat.compact(json!({}))["compacted"], true);
}

#[test]
fn one_at_a_time_and_a_client_that_leaves_ends_its_own() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let before = chat.messages();
    fake.next("/api/chat", &[Fault::Hang]);
    let mut other = chat.daemon.as_ref().unwrap().wire();
    let params = chat.params(json!({}));
    let _id = other.request("context.compact", params.clone());
    until("the model is asked", || (fake.hanging() == 1).then_some(()));
    let error = chat.wire.refused("context.compact", params, "conflict");
    assert!(
        error["data"]["holder"].as_str().unwrap().starts_with("context.compact since"),
        "{error}"
    );
    // Recording goes on meanwhile.
    chat.exchange(99);
    drop(other);
    until("the call is dropped", || (fake.hanging() == 0).then_some(()));
    fake.summarize(Answer::text(SUMMARY));
    let done = until("the place is free", || {
        let params = chat.params(json!({}));
        chat.wire.call("context.compact", params).ok()
    });
    assert_eq!(done["compacted"], true, "{done}");
    assert_ne!(chat.messages(), before);
    assert_eq!(chat.count("compaction"), 1);
}

#[test]
fn what_is_recorded_meanwhile_stays_behind_the_summary() {
    let fake = FakeOllama::start("0.33.0");
    fake.summarize(Answer::text(SUMMARY));
    fake.next("/api/chat", &[Fault::Stall { after: 1 }]);
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let mut other = chat.daemon.as_ref().unwrap().wire();
    let params = chat.params(json!({}));
    let id = other.request("context.compact", params);
    until("the model answers", || (!fake.summaries().is_empty()).then_some(()));
    let session = chat.session.clone();
    let _seq = chat.wire.record(&session, "user", "and another thing");
    fake.resume();
    let done = other.answer(id).unwrap();
    assert_eq!(done["compacted"], true, "{done}");
    let messages = chat.messages();
    let last = messages.as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["content"], "and another thing");
}

#[test]
fn a_kill_in_the_middle_leaves_the_context_as_it_was() {
    let fake = FakeOllama::start("0.33.0");
    fake.next("/api/chat", &[Fault::Hang]);
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    let before = chat.messages();
    let params = chat.params(json!({}));
    let _id = chat.wire.request("context.compact", params);
    until("the model is asked", || (fake.hanging() == 1).then_some(()));
    chat.daemon.take().unwrap().kill9();
    let daemon = chat.sandbox.daemon();
    chat.wire = daemon.wire();
    chat.daemon = Some(daemon);
    assert_eq!(chat.messages(), before);
    assert_eq!((chat.count("compaction"), chat.count("snapshot")), (0, 1));
    fake.summarize(Answer::text(SUMMARY));
    assert_eq!(chat.compact(json!({}))["compacted"], true);
}

#[test]
fn a_turn_that_is_canceled_while_it_compacts_leaves_everything_as_it_was() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    chat.exchanges(14);
    chat.sandbox.write_config(&format!("ollama:\n  host: {}\n  model: tiny\n", fake.host()));
    let _ok = chat.wire.ok("daemon.reload", json!({}));
    fake.next("/api/chat", &[Fault::Hang]);
    let message = json!({ "role": "user", "content": "go on" });
    let params = chat.params(json!({ "message": message }));
    let _subscription = chat.wire.ok("chat.send", params);
    until("the summarizer is asked", || (fake.hanging() == 1).then_some(()));
    let params = chat.params(json!({}));
    assert_eq!(chat.wire.ok("chat.cancel", params)["canceled"], true);
    let last = loop {
        let event = chat.wire.told("chat.event");
        if event["kind"] == "error" {
            break event;
        }
    };
    assert_eq!(last["data"]["kind"], "cancelled", "{last}");
    assert_eq!(chat.count("compaction"), 0);
    until("the call is dropped", || (fake.hanging() == 0).then_some(()));
}
