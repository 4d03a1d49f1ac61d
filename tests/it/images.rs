//! Images and models that do not read them: refused when sent, kept in the log, neither sent nor counted later.

use serde_json::{Value, json};

use crate::harness::{FakeOllama, ModelSession, array, assert_fields};

/// The image of all tests: base64 of a few bytes.
const IMAGE: &str = "iVBORw0KGgo=";

fn picture(text: &str) -> Value {
    let image = json!({ "type": "image", "mimeType": "image/png", "data": IMAGE });
    json!({ "role": "user", "parts": [{ "type": "text", "text": text }, image] })
}

#[test]
fn image_for_a_model_without_vision_is_refused_before_it_is_recorded() {
    for version in ["0.33.0", "0.24.0"] {
        let fake = FakeOllama::with_version(version);
        let mut session = ModelSession::new(&fake);
        let params = json!({ "message": picture("What is this?") });
        let error = session.refused("chat.send", params.clone(), "modelRefused");
        assert_eq!(error["message"], "tiny does not read images; seer:latest does");
        assert_fields(
            &error["data"],
            json!({
                "reason": "noVision", "model": "tiny", "models": ["seer:latest"],
                "hint": "ollmctl models show seer:latest",
            }),
        );
        assert_eq!(session.count("message"), 0);
        session.record("user", "hello");
        assert!(fake.requests("/api/chat").is_empty());
        drop(fake);
        let mut session = session.restart();
        let error = session.refused("chat.send", params, "modelRefused");
        assert_eq!(error["data"]["reason"], "noVision", "also while the server is down: {error}");
    }
}

#[test]
fn recorded_image_is_neither_sent_to_nor_counted_for_a_model_without_vision() {
    let fake = FakeOllama::new();
    let mut session = ModelSession::new(&fake);
    let seq =
        session.ok("session.record", json!({ "message": picture("What is this?") }))["seq"].clone();
    let built = session.ok("context.build", json!({}));
    let text = "What is this?\n\n[an image, which this model cannot read]";
    assert_eq!(built["messages"][0], json!({ "role": "user", "content": text }));
    assert!(built["contextTokens"].as_u64().unwrap() < 100, "{built}");
    let omitted = json!([{ "seq": seq, "tokens": 1280, "reason": "noVision" }]);
    assert_eq!(built["omitted"], omitted);
    let inspected = session.ok("context.inspect", json!({}));
    let item = array(&inspected["items"]).iter().find(|item| item["seq"] == seq).unwrap();
    assert_eq!((&item["form"], &item["reason"]), (&json!("whole"), &json!("noVision")));
    assert!(item["tokens"].as_u64().unwrap() < 100, "{item}");
    let answered = session.turn_with(json!({})).pop().unwrap();
    assert_eq!(answered["kind"], "done", "the recorded conversation is answered: {answered}");
    assert!(answered["usage"]["contextTokens"].as_u64().unwrap() < 100, "{answered}");
    let sent = fake.requests("/api/chat").pop().unwrap().body;
    assert!(!sent.to_string().contains(IMAGE), "{sent}");
    let counted = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "a", "images": [IMAGE] }] });
    assert!(session.wire.ok("model.countTokens", counted)["tokens"].as_u64().unwrap() < 100);
    let records = session.records();
    assert!(records.iter().any(|record| record.to_string().contains(IMAGE)), "the log keeps it");
    let seen = session.ok("context.build", json!({ "model": "seer" }));
    assert_eq!(seen["messages"][0]["images"], json!([IMAGE]));
    assert!(seen["contextTokens"].as_u64().unwrap() > 1280, "{seen}");
    assert_eq!(seen["omitted"], json!([]));
}

#[test]
fn image_is_sent_to_a_model_that_reads_images_or_may_do_so() {
    // The old server does not report capabilities.
    for (version, model) in [("0.33.0", "seer"), ("0.5.0", "tiny")] {
        let fake = FakeOllama::with_version(version);
        let mut session = ModelSession::with_config(&fake.config(model));
        let params = json!({ "message": picture("What is this?") });
        let events = session.turn_with(params);
        assert_eq!(events.last().unwrap()["kind"], "done", "{events:?}");
        let sent = fake.requests("/api/chat").pop().unwrap().body;
        assert_eq!(sent["messages"][0]["images"], json!([IMAGE]), "{version}");
    }
}

#[test]
fn image_that_is_never_sent_is_listed() {
    let fake = FakeOllama::new();
    let mut session = ModelSession::with_config(&fake.config("seer"));
    let mut note = picture("A screenshot.");
    note["role"] = json!("system");
    let seq = session.ok("session.record", json!({ "message": note }))["seq"].clone();
    let built = session.ok("context.build", json!({}));
    assert_eq!(built["omitted"], json!([{ "seq": seq, "tokens": 1280, "reason": "image" }]));
}
