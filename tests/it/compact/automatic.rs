//! What the daemon compacts by itself: in the background, and in chat turns before the model is called.

use serde_json::json;

use super::{Compact, SUMMARY};
use crate::harness::{Answer, FakeOllama, Fault};

#[test]
fn a_client_that_only_records_is_compacted_for_in_the_background() {
    let fake = FakeOllama::start("0.33.0");
    fake.summarize(Answer::text(SUMMARY));
    let mut chat = Compact::configured(&fake, "");
    let _ok = chat.wire.subscribe(
        json!({ "sessionId": chat.session, "kinds": ["compressed", "auto-summary-created"] }),
    );
    chat.exchanges(17);
    let event = chat.wire.event();
    assert_eq!(
        (&event["kind"], &event["data"]["automatic"]),
        (&json!("compressed"), &json!(true)),
        "{event}"
    );
    assert_eq!(chat.wire.event()["kind"], "auto-summary-created");
    let fits = chat.built();
    assert_eq!(fits["strategy"], "checkpointed");
    assert_eq!(chat.count("compaction"), 1);
}

#[test]
fn without_a_model_the_background_waits_and_says_so_once() {
    let fake = FakeOllama::start("0.33.0");
    let unavailable = Fault::Error { status: 500, text: "no".to_owned() };
    fake.next("/api/chat", &vec![unavailable; 8]);
    let mut chat = Compact::configured(&fake, "");
    let kinds = json!(["compressed", "compression-error", "compression-skipped"]);
    let _ok = chat.wire.subscribe(json!({ "sessionId": chat.session, "kinds": kinds }));
    chat.exchanges(17);
    let event = chat.wire.event();
    assert_eq!(
        (&event["kind"], &event["data"]["provisional"]),
        (&json!("compression-error"), &json!(false)),
        "{event}"
    );
    assert_eq!(chat.count("compaction"), 0);
    assert_eq!(chat.built()["strategy"], "full-history");
}

#[test]
fn a_chat_compacts_before_its_model_is_called_and_after_that_not_again() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::configured(&fake, "");
    fake.summarize(Answer::text(SUMMARY));
    let text = "some words of a user who talks a lot about the parser ".repeat(10);
    let mut n_compactions = 0;
    for n in 0..24 {
        let params = json!({ "sessionId": chat.session, "message": { "role": "user", "content": format!("{n} {text}") } });
        let _subscription = chat.wire.ok("chat.send", params);
        loop {
            let event = chat.wire.told("chat.event");
            if event["kind"] == "phase" && event["name"] == "compacting" {
                n_compactions += 1;
            }
            if ["done", "error"].contains(&event["kind"].as_str().unwrap()) {
                assert_eq!(event["kind"], "done", "{event}");
                break;
            }
        }
    }
    assert!((2..=6).contains(&n_compactions), "{n_compactions}");
    assert_eq!(chat.count("compaction"), n_compactions);
    let listed = chat.checkpoints();
    assert_eq!(listed["compressionCount"], n_compactions);
    assert_eq!(fake.loads(), 1, "one window for answers and summaries");
    for seen in fake.requests("/api/chat") {
        assert_eq!(seen.body["options"]["num_ctx"], 8192);
    }
}

#[test]
fn a_chat_whose_summarizer_fails_goes_on_and_the_summary_is_made_anew_later() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::configured(&fake, "");
    chat.daemon.as_ref().unwrap().assert_serves();
    let text = "some words of a user who talks a lot about the parser ".repeat(10);
    let mut methods = Vec::new();
    for n in 0..30 {
        let params = json!({ "sessionId": chat.session, "message": { "role": "user", "content": format!("{n} {text}") } });
        let _subscription = chat.wire.ok("chat.send", params);
        loop {
            let event = chat.wire.told("chat.event");
            if event["kind"] == "phase" && event["name"] == "compacting" {
                // Nonsense until a summary was made without a model.
                let answer = if methods.is_empty() { "nonsense" } else { SUMMARY };
                fake.summarize(Answer::text(answer));
            }
            if ["done", "error"].contains(&event["kind"].as_str().unwrap()) {
                assert_eq!(event["kind"], "done", "{event}");
                break;
            }
        }
        let session = chat.session.clone();
        let records = chat.wire.records(&session);
        let found = records.iter().filter_map(|record| record["compaction"]["method"].as_str());
        methods = found.map(str::to_owned).collect();
        if methods.len() == 2 {
            break;
        }
    }
    assert_eq!(methods, ["extracted", "summarized"]);
    let listed = chat.checkpoints();
    let all = listed["checkpoints"].as_array().unwrap();
    assert_eq!(all.len(), 1, "{listed}");
    assert!(
        all[0].get("provisional").is_none() && all[0]["from"].as_u64().unwrap() <= 1,
        "{listed}"
    );
}

#[test]
fn a_context_that_nears_its_end_is_told_once() {
    let fake = FakeOllama::start("0.33.0");
    let mut chat = Compact::asked(&fake);
    let kinds = json!(["context-threshold", "before-overflow", "tool-call-recorded"]);
    let _ok = chat.wire.subscribe(json!({ "sessionId": chat.session, "kinds": kinds }));
    chat.exchange(0);
    let _built = chat.built();
    (1..20).for_each(|at| chat.exchange(at));
    let session = chat.session.clone();
    let call = json!({ "id": "c", "name": "read", "args": {}, "result": { "llmContent": "end" } });
    let _ok =
        chat.wire.ok("session.recordToolCall", json!({ "sessionId": session, "toolCall": call }));
    let told: Vec<String> =
        (0..3).map(|_| chat.wire.event()["kind"].as_str().unwrap().to_owned()).collect();
    assert_eq!(told, ["context-threshold", "before-overflow", "tool-call-recorded"]);
}
