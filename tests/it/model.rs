//! `model.*` and the model server in `daemon.status`: with servers of each generation, broken ones, and none.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    Daemon, FakeOllama, Fault, Sandbox, Wire, array, assert_fields, start, start_with_config, until,
};

#[test]
fn list_and_show_return_what_the_server_reports() {
    let fake = FakeOllama::new();
    let (_sandbox, _daemon, mut wire) = start_with_config(&fake.config("tiny"));
    let list = wire.ok("model.list", json!({}));
    assert_eq!(list["host"], fake.url());
    let names: Vec<_> = array(&list["data"]).iter().map(|m| &m["model"]).collect();
    let expect = ["tiny:latest", "thinker:latest", "seer:latest", "plain:latest"];
    assert_eq!(names, expect.map(|name| json!(name)).iter().collect::<Vec<_>>());
    assert_eq!(list["data"][0]["trainedContext"], 8192);
    assert_eq!(list["data"][0]["capabilities"], json!(["completion", "tools"]));
    let shown = wire.ok("model.show", json!({}))["model"].clone();
    assert_fields(
        &shown,
        json!({
            "model": "tiny", "digest": list["data"][0]["digest"], "trainedContext": 8192,
            "contextBytesPerToken": 2 * 2 * (16 + 16) * 2,
        }),
    );
    assert!(shown["template"].as_str().unwrap().contains("<|im_start|>"));
    assert_eq!(shown.get("contextSize"), None);
    let hidden = wire.ok("model.show", json!({ "model": "plain" }))["model"].clone();
    assert_fields(&hidden, json!({ "system": "Be brief.", "hiddenMessages": 2 }));
}

#[test]
fn warm_loads_one_window_that_only_grows() {
    let fake = FakeOllama::new();
    let (_sandbox, _daemon, mut wire) = start_with_config(&fake.config("tiny"));
    let running = wire.ok("model.running", json!({}));
    assert_eq!(running["data"], json!([]));
    let warm = wire.ok("model.warm", json!({ "contextSize": 4096 }));
    assert_fields(&warm, json!({ "contextSize": 4096, "effectiveContext": 4096 }));
    assert_eq!(warm["trainedContext"], 8192);
    wire.ok("model.warm", json!({ "model": "tiny:latest", "contextSize": 2048 }));
    let larger = wire.ok("model.warm", json!({ "contextSize": 100_000 }));
    assert_eq!(larger["contextSize"], 8192, "clamped to what the model was trained for");
    let running = wire.ok("model.running", json!({}));
    assert_eq!(running["data"][0]["model"], "tiny:latest");
    assert_eq!(running["data"][0]["effectiveContext"], 8192);
    let bodies: Vec<Value> =
        fake.requests("/api/chat").into_iter().map(|request| request.body).collect();
    let windows: Vec<_> = bodies.iter().map(|body| body["options"]["num_ctx"].clone()).collect();
    assert_eq!(windows, [json!(4096), json!(4096), json!(8192)]);
    for body in &bodies {
        assert_fields(body, json!({ "messages": [], "truncate": false }));
        assert_eq!((&body["keep_alive"], body.get("shift")), (&json!(300), None));
    }
    assert_eq!(fake.n_loads(), 2, "only the larger window loads the model again");
}

#[test]
fn loaded_model_keeps_its_window() {
    let fake = FakeOllama::with_version("0.24.0");
    fake.state().load("tiny", 6000);
    let (_sandbox, _daemon, mut wire) = start_with_config(&fake.config("tiny"));
    let warm = wire.ok("model.warm", json!({ "contextSize": 4096 }));
    assert_eq!(warm["effectiveContext"], 6000);
    assert_eq!(fake.n_loads(), 1);
}

#[test]
fn model_partly_outside_video_memory_has_a_warning() {
    let fake = FakeOllama::new();
    fake.state().vram_percent = 50;
    let (_sandbox, _daemon, mut wire) = start_with_config(&fake.config("tiny"));
    let warm = wire.ok("model.warm", json!({}));
    let warning = warm["warnings"][0].as_str().unwrap();
    assert!(warning.contains("50 %"), "{warning}");
    let running = wire.ok("model.running", json!({}));
    assert_eq!(running["data"][0]["warnings"][0].as_str(), Some(warning));
}

#[test]
fn old_server_works_without_optional_fields() {
    let fake = FakeOllama::with_version("0.3.14");
    let (_sandbox, _daemon, mut wire) = start_with_config(&fake.config("tiny"));
    let list = wire.ok("model.list", json!({}));
    assert_eq!(list["data"][0]["model"], "tiny:latest");
    assert_eq!(list["data"][0].get("capabilities"), None);
    let warm = wire.ok("model.warm", json!({ "contextSize": 4096 }));
    assert_eq!(warm["contextSize"], 4096);
    assert_eq!(warm.get("effectiveContext"), None, "this version does not report the window");
    assert_eq!(wire.model_server()["version"], "0.3.14");
}

#[test]
fn failure_has_kind_reason_host_and_hint() {
    let fake = FakeOllama::new();
    let (_sandbox, _daemon, mut wire) = start_with_config(&fake.config("tiny"));
    let mut check = |faults: &[Fault], kind: &str, reason: &str| {
        fake.inject("/api/chat", faults);
        let error = wire.refused("model.warm", json!({}), kind);
        assert_eq!(error["data"]["reason"], reason, "{error}");
        assert_eq!(error["data"]["host"], fake.url(), "{error}");
        assert_eq!(error["data"]["model"], "tiny", "{error}");
        // The next call works.
        wire.ok("model.warm", json!({}));
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
    assert_eq!(
        error["data"]["hint"], "ollmctl models list",
        "an unsafe name is not part of the hint"
    );
    let error = wire.refused("model.show", json!({ "model": "" }), "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("model"), "{error}");
    wire.refused("model.warm", json!({ "contextSize": 5 }), "invalidParams");
}

#[test]
fn hanging_load_ends_after_the_first_token_timeout() {
    let fake = FakeOllama::new();
    let (sandbox, _daemon, mut wire) = start_with_config(&fake.config("tiny"));
    fake.inject("/api/chat", &[Fault::Delay(Duration::from_millis(50))]);
    wire.ok("model.warm", json!({}));
    let limit = |wire: &mut Wire, line: &str| {
        sandbox.write_config(&(fake.config("tiny") + line));
        wire.ok("daemon.reload", json!({}));
    };
    limit(&mut wire, "  firstTokenTimeout: 100ms\n");
    fake.inject("/api/chat", &[Fault::Hang]);
    let error = wire.refused("model.warm", json!({}), "modelFailed");
    assert_eq!(error["data"]["reason"], "firstTokenTimeout", "{error}");
    limit(&mut wire, "");
    wire.ok("model.warm", json!({}));
}

#[test]
fn disconnect_cancels_the_load() {
    let fake = FakeOllama::new();
    let (_sandbox, daemon, mut wire) = start_with_config(&fake.config("tiny"));
    fake.inject("/api/chat", &[Fault::Hang]);
    wire.request("model.warm", json!({}));
    until("the load is waited for", || fake.n_held() == 1);
    drop(wire);
    until("the request to the server is dropped", || fake.n_held() == 0);
    daemon.assert_serves();
}

#[test]
fn without_server_other_methods_work_and_errors_have_a_hint() {
    let (_sandbox, _daemon, mut wire) = start();
    let session = wire.create(json!({}));
    wire.record(&session, "user", "no model is needed");
    wire.ok("context.build", json!({ "sessionId": session, "contextSize": 4096 }));
    let error = wire.refused("model.list", json!({}), "modelUnavailable");
    assert_fields(
        &error["data"],
        json!({ "hint": "ollama serve", "reason": "unreachable", "host": "http://127.0.0.1:9" }),
    );
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("http://127.0.0.1:9: connection refused"), "{message}");
    let status = wire.model_server();
    assert_fields(&status, json!({ "reachable": false, "host": "http://127.0.0.1:9" }));
    assert!(status["error"].as_str().unwrap().contains("connection refused"), "{status}");
}

#[test]
fn server_is_that_of_the_environment_until_the_file_names_one() {
    let (first, second) = (FakeOllama::new(), FakeOllama::with_version("0.24.0"));
    let sandbox = Sandbox::new();
    // Proxies must not be used for a loopback address.
    let daemon = Daemon::start(
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
    assert_eq!(wire.model_server()["version"], "0.33.0");
    let hello = json!({ "client": "test", "version": "1", "protocolMin": 1, "protocolMax": 1 });
    let used = |wire: &mut Wire| wire.ok("daemon.hello", hello.clone())["modelServer"].take();
    assert_eq!(used(&mut wire), json!({ "host": first.url(), "configured": false }));
    wire.subscribe(json!({ "kinds": ["config-reloaded"] }));
    sandbox.write_config(&format!("ollama: {{ host: '{}' }}\n", second.host()));
    let event = wire.events_until("config-reloaded").pop().unwrap();
    assert_eq!(event["data"]["applied"], json!(["ollama.host"]));
    assert_eq!(wire.ok("model.list", json!({}))["host"], second.url());
    assert_eq!(wire.model_server()["version"], "0.24.0");
    assert_eq!(used(&mut wire), json!({ "host": second.url(), "configured": true }));
    let error = wire.refused("model.warm", json!({}), "invalidParams");
    assert!(error["message"].as_str().unwrap().contains("models.default"), "{error}");
    sandbox.write_config("ollama: { host: 'ftp://user:hunter3@box' }\n");
    wire.events_until("config-reloaded");
    let error = wire.refused("model.list", json!({}), "config");
    assert!(!error.to_string().contains("hunter3"), "{error}");
    assert!(sandbox.files_containing("hunter2").is_empty(), "no file contains the key");
}

#[test]
fn other_http_server_is_not_taken_for_a_model_server() {
    let fake = FakeOllama::new();
    let (_sandbox, _daemon, mut wire) = start_with_config(&fake.config("tiny"));
    fake.inject("/api/version", &[Fault::Page]);
    let status = wire.model_server();
    assert_eq!(status["reachable"], false);
    assert!(status["error"].as_str().unwrap().contains("is not an Ollama server"), "{status}");
    fake.inject("/api/tags", &[Fault::Page]);
    let error = wire.refused("model.list", json!({}), "modelUnavailable");
    assert_eq!(error["data"]["reason"], "otherServer", "{error}");
}

#[test]
fn list_of_an_older_server_is_completed_by_descriptions() {
    let fake = FakeOllama::with_version("0.24.0");
    let (sandbox, _daemon, mut wire) = start_with_config(&fake.config("tiny"));
    let list = wire.ok("model.list", json!({}));
    let seer = array(&list["data"]).iter().find(|model| model["model"] == "seer:latest").unwrap();
    let fields = json!({ "trainedContext": 8192, "capabilities": ["completion", "vision"] });
    assert_fields(seer, fields);
    let n_described = fake.requests("/api/show").len();
    assert_eq!(n_described, array(&list["data"]).len());
    let table = sandbox.ctl(["models"]).ok();
    assert!(table.contains("8,192  completion, vision"), "{table}");
    assert_eq!(fake.requests("/api/show").len(), n_described, "each digest is described once");
}

#[test]
fn hanging_description_does_not_delay_the_list_for_long() {
    let fake = FakeOllama::with_version("0.24.0");
    let (_sandbox, _daemon, mut wire) = start_with_config(&fake.config("tiny"));
    fake.inject("/api/show", &[Fault::Hang]);
    let list = wire.ok("model.list", json!({}));
    let is_described = |model: &&Value| model["trainedContext"] == 8192;
    let all = array(&list["data"]);
    assert_eq!(all.iter().filter(is_described).count(), all.len() - 1, "one is missing: {list}");
}

#[test]
fn other_server_is_named_and_not_asked_for_a_missing_model() {
    let llama = FakeOllama::other(&[("/props", json!({ "default_generation_settings": {} }))]);
    let (sandbox, _daemon, mut wire) = start_with_config(&llama.config("tiny"));
    for (method, params) in [
        ("model.list", json!({})),
        ("model.show", json!({})),
        ("model.warm", json!({})),
        ("model.running", json!({})),
    ] {
        let error = wire.refused(method, params, "modelUnavailable");
        assert_eq!(error["data"]["reason"], "otherServer", "{method}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("is not an Ollama server: llama-server answers there"),
            "{message}"
        );
    }
    let error = sandbox.ctl(["chat", "-m", "tiny", "hi"]).fails(7);
    assert!(error.contains("llama-server answers there"), "{error}");
    assert!(!error.contains("ollama pull"), "{error}");
    let status = wire.model_server();
    assert!(status["error"].as_str().unwrap().contains("llama-server"), "{status}");
}

#[test]
fn models_commands_print_the_results() {
    let fake = FakeOllama::new();
    let (sandbox, _daemon, _wire) = start_with_config(&fake.config("tiny"));
    let list = sandbox.ctl(["models", "list"]).ok();
    assert!(list.contains("tiny:latest") && list.contains("tools"), "{list}");
    let shown = sandbox.ctl(["models", "show", "tiny"]).ok();
    assert!(shown.contains("8,192 tokens"), "{shown}");
    let warm = sandbox.ctl(["models", "warm", "tiny", "--context-size", "4096"]).ok();
    assert!(warm.contains("4,096"), "{warm}");
    let running = sandbox.ctl(["models", "running"]).ok();
    assert!(running.contains("tiny:latest") && running.contains("4,096"), "{running}");
    let json = sandbox.ctl(["models", "--json"]).json();
    assert_eq!(json["data"][0]["model"], "tiny:latest");
    let error = sandbox.ctl(["models", "show", "none"]).fails(3);
    assert!(error.contains("ollama pull none"), "{error}");
    let status = sandbox.ctl(["daemon", "status"]).ok();
    assert!(status.contains(&fake.url()), "{status}");
}
