//! Options of each answer that a session keeps.

use serde_json::{Value, json};

use crate::harness::openai::{Face, FakeOpenAi};
use crate::harness::{FakeOllama, ModelSession, Sandbox, assert_fields};

fn options(session: &Value) -> Value {
    session["session"]["options"].clone()
}

#[test]
fn every_chat_of_a_session_has_its_options() {
    let fake = FakeOllama::new();
    let kept = json!({ "temperature": 0.5, "seed": 7, "stop": ["END"], "think": false, "answerLimit": 50,
        "format": { "type": "object" } });
    let mut chat = ModelSession::create(
        &fake.config("tiny"),
        json!({ "options": kept, "keepAliveSeconds": 90 }),
    );
    let _turn = chat.turn("hello");
    let sent = |fake: &FakeOllama| fake.requests("/api/chat").pop().unwrap().body;
    let body = sent(&fake);
    assert_fields(
        &body["options"],
        json!({ "temperature": 0.5, "seed": 7, "stop": ["END"], "num_predict": 50 }),
    );
    assert_fields(&body, json!({ "think": false, "format": { "type": "object" } }));
    // Those of a turn win, and null removes one for it.
    let mut params = chat.message("hello");
    params["options"] = json!({ "temperature": 0.1, "seed": null, "format": null });
    params["answerLimit"] = json!(20);
    let _events = chat.turn_with(params);
    let body = sent(&fake);
    assert_fields(
        &body["options"],
        json!({ "temperature": 0.1, "stop": ["END"], "num_predict": 20 }),
    );
    assert!(body["options"].get("seed").is_none() && body.get("format").is_none(), "{body}");
    // They are in the log.
    let changed = chat
        .ok("session.update", json!({ "options": { "seed": null, "stop": null, "format": null } }));
    let left = json!({ "temperature": 0.5, "think": false, "answerLimit": 50 });
    assert_eq!(options(&changed), left);
    let mut chat = chat.kill_and_restart();
    assert_eq!(options(&chat.ok("session.get", json!({}))), left);
    assert_eq!(options(&chat.ok("session.fork", json!({}))), left);
    for format in ["json", "jsonl"] {
        let data = chat.wire.export(&chat.id.clone(), format);
        let other = Sandbox::new();
        let (_daemon, mut wire) = other.daemon_and_wire();
        let imported = wire.ok("session.import", json!({ "data": data, "last": true }));
        assert_eq!(options(&imported), left, "{format}");
        assert_eq!(imported["session"]["keepAliveSeconds"], 90, "{format}");
    }
    let _turn = chat.turn("hello");
    assert_fields(&sent(&fake), json!({ "think": false }));
}

#[test]
fn options_that_no_chat_accepts_are_not_imported() {
    let document = json!({
        "messages": [{ "role": "user", "content": "hi" }],
        "metadata": { "options": { "think": 7, "answerLimit": 0, "format": "json", "seed": 7 } },
    });
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let data = document.to_string();
    let imported = wire.ok("session.import", json!({ "data": data, "last": true }));
    assert_eq!(options(&imported), json!({ "format": "json", "seed": 7 }));
    let losses = imported["report"]["losses"].as_array().unwrap();
    for name in ["options.think", "options.answerLimit"] {
        assert!(losses.iter().any(|loss| loss["what"] == name), "{losses:?}");
    }
}

#[test]
fn unknown_options_are_refused_as_in_a_chat() {
    let fake = FakeOpenAi::new(Face::Vllm);
    let url = fake.url();
    let text = format!(
        "models:\n  default: big\nollama:\n  host: 127.0.0.1:9\nservers:\n  s:\n    url: {url}\n    models:\n      big: {{ name: m }}\n"
    );
    let mut chat = ModelSession::with_config(&text);
    for wrong in [
        json!({ "repeat_penalty": 1.1 }),
        json!({ "num_ctx": 4096 }),
        json!({ "temperature": "hot" }),
        json!({ "think": 3 }),
        json!({ "answerLimit": 0 }),
        json!({ "stop": ["x".repeat(70_000)] }),
    ] {
        chat.refused("session.update", json!({ "options": wrong }), "invalidParams");
        chat.wire.refused("session.create", json!({ "options": wrong }), "invalidParams");
    }
    chat.ok("session.update", json!({ "options": { "repetition_penalty": 1.1 } }));
    let _turn = chat.turn("hello");
    assert_eq!(fake.chats()[0]["repetition_penalty"], 1.1);
    let create = json!({ "options": { "repetition_penalty": 1.1 }, "key": "once" });
    let created = chat.wire.ok("session.create", create.clone());
    // Another kind of server does not have it.
    fake.state().face = Face::LlamaServer;
    let _servers = chat.wire.ok("model.servers", json!({}));
    let params = chat.message("hello");
    let error = chat.wire.refused("chat.send", params, "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("the session keeps it"), "{error}");
    let again = chat.wire.ok("session.create", create);
    assert_eq!(again["session"]["sessionId"], created["session"]["sessionId"]);
    let run = |args: &[&str]| chat.sandbox.ctl([&["sessions", "options", &chat.id], args].concat());
    assert_eq!(run(&[]).ok(), "repetition_penalty = 1.1\n");
    assert_eq!(
        run(&["repetition_penalty=", "seed=7", "think=low"]).ok(),
        "seed = 7\nthink = \"low\"\n"
    );
    run(&["seed"]).fails(2);
}
