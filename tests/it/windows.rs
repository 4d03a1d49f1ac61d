//! The context window: one answer for builds, status, quotas, chats and loading, whoever asks first, also for small
//! models and without a server.

use serde_json::{Value, json};

use crate::harness::{FakeOllama, ModelSession, array, assert_fields};

/// A window larger than the models of the fake were trained for.
const LARGE: &str = "context:\n  size: 32768\n";

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is a number"))
}

fn with_large_window(fake: &FakeOllama) -> ModelSession {
    ModelSession::with_config(&(fake.config("tiny") + LARGE))
}

#[test]
fn window_is_the_same_before_during_and_after_a_chat() {
    let fake = FakeOllama::new();
    let mut session = with_large_window(&fake);
    let seq = session.record("user", "hello");
    let limits = json!({ "wantedContext": 32_768, "trainedContext": 8192, "verified": true });
    let check = |session: &mut ModelSession| {
        let built = session.ok("context.build", json!({}));
        assert_fields(
            &built,
            json!({ "contextSize": 8192, "promptLimit": 6963, "window": limits }),
        );
        let status = session.ok("context.status", json!({}));
        assert_fields(
            &status,
            json!({ "contextSize": 8192, "promptLimit": 6963, "window": limits }),
        );
        let inspected = session.ok("context.inspect", json!({}));
        assert_fields(&inspected["build"], json!({ "contextSize": 8192, "window": limits }));
        let asked = session.ok("context.build", json!({ "contextSize": 16_384 }));
        assert_eq!(
            (&asked["contextSize"], &asked["window"]["wantedContext"]),
            (&json!(8192), &json!(16_384))
        );
    };
    check(&mut session);
    let pinned = session.ok("context.pin", json!({ "seq": seq }));
    assert_eq!(pinned["tokenLimit"], 696, "a tenth of the prompts that the model reads");
    let entries = session.ok("context.listEntries", json!({}));
    assert_eq!(entries["tokenLimit"], 1392);
    let tier = session.ok("context.checkpoints", json!({}));
    assert_eq!(tier["tierName"], "smart", "the tier of 8,192 tokens: {tier}");
    let usage = session.turn("more").pop().unwrap()["usage"].clone();
    assert_fields(&usage, json!({ "promptLimit": 6963, "contextSize": 8192 }));
    check(&mut session);
}

#[test]
fn system_prompt_beyond_the_window_of_the_model_is_refused() {
    let fake = FakeOllama::new();
    let mut session = with_large_window(&fake);
    session.ok("context.status", json!({}));
    let prompt = "a long rule ".repeat(4000);
    let error =
        session.refused("session.update", json!({ "systemPrompt": prompt }), "contextOverflow");
    assert_eq!(error["data"]["available"], 6963, "{error}");
}

#[test]
fn last_known_window_is_used_while_the_server_is_down() {
    let fake = FakeOllama::new();
    let mut session = with_large_window(&fake);
    session.record("user", "hello");
    session.ok("context.build", json!({}));
    let config = fake.config("tiny") + LARGE;
    drop(fake);
    let mut session = session.kill_and_restart();
    let known = json!({ "wantedContext": 32_768, "trainedContext": 8192, "verified": true });
    let built = session.ok("context.build", json!({}));
    assert_fields(&built, json!({ "contextSize": 8192, "window": known }));
    let other = session.ok("context.build", json!({ "model": "other" }));
    assert_fields(&other, json!({ "contextSize": 32_768, "window": { "verified": false } }));
    // Another server may have another model of this name.
    session.reconfigure(&config.replace("host: 127.0.0.1:", "host: localhost:"));
    let status = session.ok("context.status", json!({}));
    assert_fields(&status, json!({ "contextSize": 32_768, "window": { "verified": false } }));
    let text = session.sandbox.ctl(["context", "status", &session.id]).ok();
    assert!(text.contains("32,768 tokens, not verified"), "{text}");
}

#[test]
fn smaller_model_chats_with_the_window_that_it_was_trained_for() {
    let fake = FakeOllama::new();
    fake.set_trained_context(1024);
    let mut session = ModelSession::new(&fake);
    for turn in 0..24 {
        session
            .turn(&format!("Remember number {turn}, and tell me about the weather of that day."));
    }
    let requests = fake.requests("/api/chat");
    let chats: Vec<_> = requests.iter().filter(|request| !request.wants_summary()).collect();
    assert!(chats.len() >= 24);
    for request in requests {
        assert_eq!(request.body["options"]["num_ctx"], 1024);
    }
    let status = session.ok("context.status", json!({}));
    let window = json!({ "trainedContext": 1024, "verified": true });
    assert_fields(&status, json!({ "contextSize": 1024, "window": window }));
    assert!(number(&status["contextTokens"]) <= number(&status["promptLimit"]), "{status}");
    let error = session.refused("context.build", json!({ "contextSize": 1024 }), "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("2048"), "{error}");
}

#[test]
fn message_beyond_a_small_window_is_refused_with_both_numbers() {
    let fake = FakeOllama::new();
    fake.set_trained_context(256);
    let mut session = ModelSession::new(&fake);
    let long = "word ".repeat(2000);
    let prompt = json!({ "systemPrompt": "rule ".repeat(400) });
    session.turn("hi");
    let error = session.refused("session.update", prompt, "contextOverflow");
    assert_eq!(error["data"]["available"], 218, "{error}");
    let last = session.turn(&long).pop().unwrap();
    assert!(number(&last["usage"]["contextTokens"]) <= 218, "the message is cut: {last}");
}

#[test]
fn window_of_the_modelfile_is_the_default_and_the_configuration_overrides_it() {
    let fake = FakeOllama::new();
    fake.state().modelfile_window = Some(6144);
    let mut session = ModelSession::new(&fake);
    let built = session.ok("context.build", json!({}));
    assert_eq!(built["contextSize"], 6144);
    let shown = session.wire.ok("model.show", json!({}))["model"].clone();
    let fields = json!({ "modelfileContext": 6144, "defaultContext": 6144, "defaultContextFrom": "modelfile" });
    assert_fields(&shown, fields);
    session.reconfigure(&(fake.config("tiny") + "context:\n  size: 4096\n"));
    assert_eq!(session.ok("context.build", json!({}))["contextSize"], 4096);
    let shown = session.wire.ok("model.show", json!({}))["model"].clone();
    let fields =
        json!({ "modelfileContext": 6144, "defaultContext": 4096, "defaultContextFrom": "config" });
    assert_fields(&shown, fields);
    let text = session.sandbox.ctl(["models", "show", "tiny"]).ok();
    let line = "4,096 tokens by context.size, which overrides num_ctx 6,144 of the Modelfile";
    assert!(text.contains(line), "{text}");
}

#[test]
fn warming_says_that_another_window_is_used_than_asked_for() {
    let fake = FakeOllama::new();
    let mut session = ModelSession::new(&fake);
    let warm = session.wire.ok("model.warm", json!({ "contextSize": 100_000 }));
    assert_fields(&warm, json!({ "contextSize": 8192, "wantedContext": 100_000 }));
    let warning = warm["warnings"][0].as_str().unwrap();
    assert_eq!(
        warning,
        "the window has 8192 tokens instead of 100000: the model was trained for no more"
    );
    let text = session.sandbox.ctl(["models", "warm", "tiny", "--context-size", "4096"]).ok();
    assert!(text.contains("8,192 tokens"), "{text}");
    let exact = session.wire.ok("model.warm", json!({ "contextSize": 8192 }));
    assert_eq!((exact.get("wantedContext"), exact.get("warnings")), (None, None));
    let kept = session.wire.ok("model.warm", json!({ "contextSize": 4096 }));
    let warning = array(&kept["warnings"])[0].as_str().unwrap();
    assert_eq!(
        warning,
        "the window has 8192 tokens instead of 4096: a larger window is in force for the model"
    );
}
