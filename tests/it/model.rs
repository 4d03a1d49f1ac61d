//! `model.*` and the model server's part of `daemon.status`, against a server of each era, a broken one, and none.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Daemon, FakeOllama, Fault, Sandbox, Wire, until};

/// A daemon that talks to the fake server.
fn served(fake: &FakeOllama) -> (Sandbox, Daemon, Wire) {
    let sandbox = Sandbox::new();
    sandbox.write_config(&format!("ollama:\n  host: {}\n  model: tiny\n", fake.host()));
    let (daemon, wire) = sandbox.served();
    (sandbox, daemon, wire)
}

/// The status once the server was asked.
fn asked(wire: &mut Wire) -> Value {
    until("the model server was asked", || {
        let status = wire.ok("daemon.status", json!({}));
        status["modelServer"].get("reachable").is_some().then(|| status["modelServer"].clone())
    })
}

#[test]
fn models_are_listed_and_shown_as_the_server_has_them() {
    let fake = FakeOllama::start("0.33.0");
    let (_sandbox, _daemon, mut wire) = served(&fake);
    let list = wire.ok("model.list", json!({}));
    assert_eq!(list["host"], fake.url());
    let names: Vec<_> = list["data"].as_array().unwrap().iter().map(|m| &m["model"]).collect();
    assert_eq!(names, [&json!("tiny:latest"), &json!("thinker:latest"), &json!("plain:latest")]);
    assert_eq!(list["data"][0]["trainedContext"], 8192);
    assert_eq!(list["data"][0]["capabilities"], json!(["completion", "tools"]));
    let shown = wire.ok("model.show", json!({}))["model"].clone();
    assert_eq!(shown["model"], "tiny");
    assert_eq!(shown["digest"], list["data"][0]["digest"]);
    assert_eq!(shown["trainedContext"], 8192);
    assert_eq!(shown["contextBytesPerToken"], 2 * 2 * (16 + 16) * 2);
    assert!(shown["template"].as_str().unwrap().contains("<|im_start|>"));
    assert_eq!(shown.get("requestedContext"), None);
    let hidden = wire.ok("model.show", json!({ "model": "plain" }))["model"].clone();
    assert_eq!((&hidden["system"], &hidden["hiddenMessages"]), (&json!("Be brief."), &json!(2)));
}

#[test]
fn warming_loads_with_one_window_that_only_grows_by_need() {
    let fake = FakeOllama::start("0.33.0");
    let (_sandbox, _daemon, mut wire) = served(&fake);
    let running = wire.ok("model.running", json!({}));
    assert_eq!(running["data"], json!([]));
    let warm = wire.ok("model.warm", json!({ "contextSize": 4096 }));
    assert_eq!(
        (&warm["requestedContext"], &warm["effectiveContext"]),
        (&json!(4096), &json!(4096))
    );
    assert_eq!(warm["trainedContext"], 8192);
    let _again = wire.ok("model.warm", json!({ "model": "tiny:latest", "contextSize": 2048 }));
    let larger = wire.ok("model.warm", json!({ "contextSize": 100_000 }));
    assert_eq!(larger["requestedContext"], 8192, "clamped to what the model was trained for");
    let running = wire.ok("model.running", json!({}));
    assert_eq!(running["data"][0]["model"], "tiny:latest");
    assert_eq!(running["data"][0]["effectiveContext"], 8192);
    let chats: Vec<Value> =
        fake.requests("/api/chat").into_iter().map(|request| request.body).collect();
    let windows: Vec<_> = chats.iter().map(|body| body["options"]["num_ctx"].clone()).collect();
    assert_eq!(windows, [json!(4096), json!(4096), json!(8192)]);
    for body in &chats {
        assert_eq!((&body["messages"], &body["truncate"]), (&json!([]), &json!(false)));
        assert_eq!((&body["keep_alive"], body.get("shift")), (&json!(300), None));
    }
    assert_eq!(fake.loads(), 2, "only the growth made the server load the model again");
}

#[test]
fn a_model_that_is_loaded_already_keeps_its_window() {
    let fake = FakeOllama::start("0.24.0");
    fake.load("tiny", 6000);
    let (_sandbox, _daemon, mut wire) = served(&fake);
    let warm = wire.ok("model.warm", json!({ "contextSize": 4096 }));
    assert_eq!(warm["effectiveContext"], 6000);
    assert_eq!(fake.loads(), 1);
}

#[test]
fn what_is_partly_outside_video_memory_is_warned_of() {
    let fake = FakeOllama::start("0.33.0");
    fake.set_vram_percent(50);
    let (_sandbox, _daemon, mut wire) = served(&fake);
    let warm = wire.ok("model.warm", json!({}));
    let warning = warm["warnings"][0].as_str().unwrap();
    assert!(warning.contains("50 %"), "{warning}");
    let running = wire.ok("model.running", json!({}));
    assert_eq!(running["data"][0]["warnings"][0].as_str(), Some(warning));
}

#[test]
fn old_servers_say_less_and_work() {
    let fake = FakeOllama::start("0.3.14");
    let (_sandbox, _daemon, mut wire) = served(&fake);
    let list = wire.ok("model.list", json!({}));
    assert_eq!(list["data"][0]["model"], "tiny:latest");
    assert_eq!(list["data"][0].get("capabilities"), None);
    let warm = wire.ok("model.warm", json!({ "contextSize": 4096 }));
    assert_eq!(warm["requestedContext"], 4096);
    assert_eq!(warm.get("effectiveContext"), None, "this server does not say");
    assert_eq!(asked(&mut wire)["version"], "0.3.14");
}

#[test]
fn each_failure_is_told_with_host_reason_and_what_to_do() {
    let fake = FakeOllama::start("0.33.0");
    let (_sandbox, _daemon, mut wire) = served(&fake);
    let mut check = |faults: &[Fault], kind: &str, reason: &str| {
        fake.next("/api/chat", faults);
        let error = wire.refused("model.warm", json!({}), kind);
        assert_eq!(error["data"]["reason"], reason, "{error}");
        assert_eq!(error["data"]["host"], fake.url(), "{error}");
        assert_eq!(error["data"]["model"], "tiny", "{error}");
        // Whatever happened, the next call works.
        let _warm = wire.ok("model.warm", json!({}));
    };
    let status = |status, text: &str| Fault::Error { status, text: text.to_owned() };
    let busy = status(503, "server busy, please try again.  maximum pending requests exceeded");
    check(&[busy.clone(), busy.clone(), busy], "modelUnavailable", "busy");
    let died = "llama-server process has terminated: signal: killed";
    check(&[status(500, died)], "modelFailed", "loadFailed");
    check(&[status(500, "something else")], "modelFailed", "failed");
    check(&[status(400, "\"tiny\" does not support chat")], "modelRefused", "unsupported");
    check(&[status(499, "request canceled")], "modelUnavailable", "givenUp");
    check(&[Fault::ForbiddenHost], "modelUnavailable", "forbiddenHost");
    check(&[Fault::Unauthorized], "modelUnavailable", "unauthorized");
    check(&[Fault::Redirect("http://127.0.0.1:9/".to_owned())], "modelUnavailable", "redirected");
    check(&[Fault::Page], "modelFailed", "garbage");
    check(&[Fault::Garbage], "modelFailed", "garbage");
    check(&[Fault::Disconnect], "modelFailed", "disconnected");
    let error = wire.refused("model.show", json!({ "model": "none:7b" }), "modelNotFound");
    assert_eq!(error["data"]["hint"], "ollama pull none:7b");
    let error = wire.refused("model.show", json!({ "model": "a;b" }), "modelNotFound");
    assert_eq!(error["data"]["hint"], "ollmctl models list", "nothing odd is offered for pasting");
    let error = wire.refused("model.show", json!({ "model": "" }), "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("model"), "{error}");
    let _error = wire.refused("model.warm", json!({ "contextSize": 5 }), "invalidParams");
}

#[test]
fn a_server_that_loads_in_silence_is_waited_for_and_one_that_hangs_is_not() {
    let fake = FakeOllama::start("0.33.0");
    let (sandbox, _daemon, mut wire) = served(&fake);
    fake.next("/api/chat", &[Fault::Delay(Duration::from_millis(50))]);
    let _warm = wire.ok("model.warm", json!({}));
    let server = format!("ollama:\n  host: {}\n  model: tiny\n", fake.host());
    let limit = |wire: &mut Wire, line: &str| {
        sandbox.write_config(&format!("{server}{line}"));
        let _reloaded = wire.ok("daemon.reload", json!({}));
    };
    limit(&mut wire, "  firstTokenTimeout: 100ms\n");
    fake.next("/api/chat", &[Fault::Hang]);
    let error = wire.refused("model.warm", json!({}), "modelFailed");
    assert_eq!(error["data"]["reason"], "firstTokenTimeout", "{error}");
    limit(&mut wire, "");
    let _warm = wire.ok("model.warm", json!({}));
}

#[test]
fn a_client_that_leaves_ends_the_loading() {
    let fake = FakeOllama::start("0.33.0");
    let (_sandbox, daemon, wire) = served(&fake);
    drop(wire);
    let mut wire = daemon.wire();
    fake.next("/api/chat", &[Fault::Hang]);
    let _id = wire.request("model.warm", json!({}));
    until("the server works on it", || (fake.hanging() == 1).then_some(()));
    drop(wire);
    until("the server is let go", || (fake.hanging() == 0).then_some(()));
    daemon.assert_serves();
}

#[test]
fn without_a_server_everything_else_works_and_says_what_to_do() {
    let sandbox = Sandbox::new();
    let (_daemon, mut wire) = sandbox.served();
    let session = wire.create(json!({}));
    let _seq = wire.record(&session, "user", "no model is needed");
    let _built = wire.ok("context.build", json!({ "sessionId": session, "contextSize": 4096 }));
    let error = wire.refused("model.list", json!({}), "modelUnavailable");
    assert_eq!(error["data"]["hint"], "ollama serve");
    assert_eq!(error["data"]["reason"], "unreachable");
    assert_eq!(error["data"]["host"], "http://127.0.0.1:9");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("http://127.0.0.1:9: connection refused"), "{message}");
    let status = asked(&mut wire);
    assert_eq!(
        (&status["reachable"], &status["host"]),
        (&json!(false), &json!("http://127.0.0.1:9"))
    );
    assert!(status["error"].as_str().unwrap().contains("connection refused"), "{status}");
}

#[test]
fn the_server_is_found_by_its_variable_and_a_change_of_the_file_takes_effect_at_once() {
    let (first, second) = (FakeOllama::start("0.33.0"), FakeOllama::start("0.24.0"));
    let sandbox = Sandbox::new();
    // A proxy must not come between this machine and itself.
    let daemon = Daemon::start_with(
        &sandbox,
        &[
            ("OLLAMA_HOST", first.host()),
            ("OLLAMA_API_KEY", "hunter2"),
            ("HTTP_PROXY", "http://127.0.0.1:9"),
            ("http_proxy", "http://127.0.0.1:9"),
            ("ALL_PROXY", "http://127.0.0.1:9"),
        ],
    );
    let mut wire = daemon.wire();
    assert_eq!(wire.ok("model.list", json!({}))["host"], first.url());
    assert_eq!(first.requests("/api/tags")[0].authorization.as_deref(), Some("Bearer hunter2"));
    assert_eq!(asked(&mut wire)["version"], "0.33.0");
    let _subscription = wire.subscribe(json!({ "kinds": ["config-reloaded"] }));
    sandbox.write_config(&format!("ollama: {{ host: '{}' }}\n", second.host()));
    let event = wire.events_until("config-reloaded").pop().unwrap();
    assert_eq!(event["data"]["applied"], json!(["ollama.host"]));
    assert_eq!(wire.ok("model.list", json!({}))["host"], second.url());
    assert_eq!(asked(&mut wire)["version"], "0.24.0");
    let error = wire.refused("model.warm", json!({}), "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("ollama.model"), "{error}");
    sandbox.write_config("ollama: { host: 'ftp://user:hunter3@box' }\n");
    let _event = wire.events_until("config-reloaded");
    let error = wire.refused("model.list", json!({}), "config");
    assert!(!error.to_string().contains("hunter3"), "{error}");
    assert!(sandbox.files_with("hunter2").is_empty(), "the key is in a file");
}

#[test]
fn something_else_on_the_port_is_told_from_a_model_server() {
    let fake = FakeOllama::start("0.33.0");
    let (_sandbox, _daemon, mut wire) = served(&fake);
    fake.next("/api/version", &[Fault::Page]);
    let status = asked(&mut wire);
    assert_eq!(status["reachable"], false);
    assert!(status["error"].as_str().unwrap().contains("is not an Ollama server"), "{status}");
    fake.next("/api/tags", &[Fault::Page]);
    let error = wire.refused("model.list", json!({}), "modelUnavailable");
    assert_eq!(error["data"]["reason"], "notOllama", "{error}");
}

#[test]
fn the_commands_show_what_the_methods_answer() {
    let fake = FakeOllama::start("0.33.0");
    let (sandbox, _daemon, _wire) = served(&fake);
    let list = sandbox.ctl(["models", "list"]).ok();
    assert!(list.contains("tiny:latest") && list.contains("tools"), "{list}");
    let shown = sandbox.ctl(["models", "show", "tiny"]).ok();
    assert!(shown.contains("8,192 tokens"), "{shown}");
    let warm = sandbox.ctl(["models", "warm", "tiny", "--size", "4096"]).ok();
    assert!(warm.contains("4,096"), "{warm}");
    let running = sandbox.ctl(["models", "running"]).ok();
    assert!(running.contains("tiny:latest") && running.contains("4,096"), "{running}");
    let json = sandbox.ctl(["models", "--json"]).json();
    assert_eq!(json["data"][0]["model"], "tiny:latest");
    let error = sandbox.ctl(["models", "show", "none"]).fails(3);
    assert!(error.contains("ollama pull none"), "{error}");
    let status = sandbox.ctl(["daemon", "status"]).ok();
    assert!(status.contains(fake.url()), "{status}");
}
