//! Compactions that fail, time out, are canceled or killed: nothing changes, and the next one works.

use serde_json::json;

use super::{DISABLED, SUMMARY, on_request};
use crate::harness::{Answer, FakeOllama, Fault, array, until, until_some};

#[test]
fn unusable_summary_is_requested_once_more_and_changes_nothing() {
    let with_tool_call = format!("{SUMMARY}\n<tool_call>{{\"name\":\"read\"}}</tool_call>");
    let cases = [
        ("I am sorry, I cannot do that.", "an answer to the conversation"),
        ("## Goal\n(none)\n## Progress\n(none)", "empty"),
        (" ", "empty"),
        (&with_tool_call, "a tool call"),
    ];
    for (answer, problem) in cases {
        let fake = FakeOllama::new();
        fake.script_summaries(Answer::text(answer));
        let mut chat = on_request(&fake);
        chat.exchanges(14);
        let before = chat.messages();
        let error = chat.refused("context.compact", json!({}), "modelFailed");
        assert!(error["message"].as_str().unwrap().contains(problem), "{error}");
        assert_eq!((chat.messages(), chat.count("compaction")), (before, 0));
        let requests = fake.summary_requests();
        assert_eq!(requests.len(), 2, "one stricter request");
        let prompt = requests[1].body["messages"][1]["content"].as_str().unwrap();
        assert!(prompt.contains("could not be used") && prompt.contains(problem), "{prompt}");
        fake.script_summaries(Answer::text(SUMMARY));
        assert_eq!(chat.compact(json!({}))["compacted"], true);
    }
}

#[test]
fn failed_summary_request_changes_nothing() {
    let fake = FakeOllama::new();
    let mut chat = on_request(&fake);
    chat.exchanges(14);
    let before = chat.messages();
    let faults = [
        Fault::Break { after: 1 },
        Fault::Error { status: 500, text: "llama runner terminated".to_owned() },
        Fault::EndWithoutDone { after: 1 },
        Fault::ErrorLine { after: 1, text: "out of memory".to_owned() },
    ];
    for fault in faults {
        fake.script_summaries(Answer::text(SUMMARY));
        fake.inject("/api/chat", std::slice::from_ref(&fault));
        let params = chat.params(json!({}));
        let error = chat.wire.call("context.compact", params).expect_err(&format!("{fault:?}"));
        let kind = error["data"]["kind"].as_str().unwrap();
        assert!(["modelFailed", "modelUnavailable"].contains(&kind), "{fault:?}: {error}");
        assert_eq!((chat.messages(), chat.count("compaction")), (before.clone(), 0));
    }
    fake.script_summaries(Answer::text(SUMMARY));
    assert_eq!(chat.compact(json!({}))["compacted"], true);
}

#[test]
fn silent_or_stalled_summarizer_times_out_and_changes_nothing() {
    for (fault, limit) in
        [(Fault::Hang, "firstTokenTimeout"), (Fault::Stall { after: 3 }, "idleTimeout")]
    {
        let fake = FakeOllama::new();
        fake.script_summaries(Answer::text(SUMMARY));
        let mut chat = on_request(&fake);
        chat.exchanges(14);
        let before = chat.messages();
        let config = fake.config("tiny");
        chat.reconfigure(&format!("{config}  {limit}: 500ms\n{DISABLED}"));
        fake.inject("/api/chat", &[fault]);
        let error = chat.refused("context.compact", json!({}), "modelFailed");
        assert_eq!(error["data"]["reason"], limit, "{error}");
        until("the request to the model is dropped", || fake.n_held() == 0);
        assert_eq!((chat.messages(), chat.count("compaction")), (before, 0));
        assert_eq!(chat.checkpoints()["compressionCount"], 0);
        chat.reconfigure(&(config + DISABLED));
        assert_eq!(chat.compact(json!({}))["compacted"], true);
    }
}

#[test]
fn second_compaction_is_conflict_until_the_client_of_the_first_disconnects() {
    let fake = FakeOllama::new();
    let mut chat = on_request(&fake);
    chat.exchanges(14);
    let before = chat.messages();
    fake.inject("/api/chat", &[Fault::Hang]);
    let mut other = chat.daemon.wire();
    let params = chat.params(json!({}));
    other.request("context.compact", params.clone());
    until("the model is waited for", || fake.n_held() == 1);
    let error = chat.wire.refused("context.compact", params, "conflict");
    assert!(
        error["data"]["holder"].as_str().unwrap().starts_with("context.compact since"),
        "{error}"
    );
    // Recording is possible during a compaction.
    chat.exchange(99);
    drop(other);
    until("the request to the model is dropped", || fake.n_held() == 0);
    fake.script_summaries(Answer::text(SUMMARY));
    let done = until_some("a compaction can begin", || {
        let params = chat.params(json!({}));
        chat.wire.call("context.compact", params).ok()
    });
    assert_eq!(done["compacted"], true, "{done}");
    assert_ne!(chat.messages(), before);
    assert_eq!(chat.count("compaction"), 1);
}

#[test]
fn record_during_a_compaction_stays_behind_the_summary() {
    let fake = FakeOllama::new();
    fake.script_summaries(Answer::text(SUMMARY));
    fake.inject("/api/chat", &[Fault::Stall { after: 1 }]);
    let mut chat = on_request(&fake);
    chat.exchanges(14);
    let mut other = chat.daemon.wire();
    let params = chat.params(json!({}));
    let id = other.request("context.compact", params);
    until("the summary is requested", || !fake.summary_requests().is_empty());
    chat.record("user", "and another thing");
    fake.resume();
    let done = other.response(id).unwrap();
    assert_eq!(done["compacted"], true, "{done}");
    let messages = chat.messages();
    let last = array(&messages).last().unwrap().clone();
    assert_eq!(last["content"], "and another thing");
}

#[test]
fn kill_during_a_compaction_changes_nothing() {
    let fake = FakeOllama::new();
    fake.inject("/api/chat", &[Fault::Hang]);
    let mut chat = on_request(&fake);
    chat.exchanges(14);
    let before = chat.messages();
    let params = chat.params(json!({}));
    chat.wire.request("context.compact", params);
    until("the model is waited for", || fake.n_held() == 1);
    let mut chat = chat.kill_and_restart();
    assert_eq!(chat.messages(), before);
    assert_eq!((chat.count("compaction"), chat.count("snapshot")), (0, 1));
    fake.script_summaries(Answer::text(SUMMARY));
    assert_eq!(chat.compact(json!({}))["compacted"], true);
}

#[test]
fn turn_canceled_during_its_compaction_changes_nothing() {
    let fake = FakeOllama::new();
    let mut chat = on_request(&fake);
    chat.exchanges(14);
    chat.reconfigure(&fake.config("tiny"));
    fake.inject("/api/chat", &[Fault::Hang]);
    chat.send(chat.message("go on"));
    until("the summary is waited for", || fake.n_held() == 1);
    assert_eq!(chat.ok("chat.cancel", json!({}))["canceled"], true);
    let error = chat.events_until("error").pop().unwrap();
    assert_eq!(error["data"]["kind"], "canceled", "{error}");
    assert_eq!(chat.count("compaction"), 0);
    until("the request to the model is dropped", || fake.n_held() == 0);
}
