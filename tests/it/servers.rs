//! Model servers beside Ollama: their names and windows, their answers and their failures.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::harness::openai::{EVENTS, Face, FakeOpenAi, done, error, event, piece};
use crate::harness::{
    Answer, FakeOllama, FakeServer, ModelSession, Sandbox, Step, array, assert_fields, gguf,
    http_response, run, text_message, until,
};

/// Returns a configuration with a server `s`, whose model `m` has the alias `big` and is the default.
pub(crate) fn config(fake: &FakeOpenAi, kind: &str) -> String {
    config_with(fake, kind, "")
}

/// The same with further fields of the model.
pub(crate) fn config_with(fake: &FakeOpenAi, kind: &str, model: &str) -> String {
    let url = fake.url();
    format!(
        "models:\n  default: big\nollama:\n  host: 127.0.0.1:9\nservers:\n  s:\n    kind: {kind}\n    \
         url: {url}\n    models:\n      big: {{ name: m{model} }}\n"
    )
}

/// Returns the kinds of a server as the configuration can name them.
const KINDS: [(Face, &str); 5] = [
    (Face::LlamaServer, "llama-server"),
    (Face::Vllm, "vllm"),
    (Face::Sglang, "openai"),
    (Face::LmStudio, "openai"),
    (Face::Vllm, "auto"),
];

/// Writes the vocabulary of the fake model into a file of weights.
pub(crate) fn write_weights(sandbox: &Sandbox, fake: &FakeOpenAi) {
    // Downloaded weights are often links into a cache.
    let (path, weights) = (sandbox.path("m.gguf"), sandbox.path("blob"));
    std::fs::write(&weights, gguf()).unwrap();
    std::os::unix::fs::symlink(&weights, &path).unwrap();
    fake.state().weights = path.display().to_string();
}

pub(crate) fn usage(events: &[Value]) -> Value {
    events.last().unwrap()["usage"].clone()
}

#[test]
fn turn_is_answered_by_every_kind_of_server() {
    for (face, kind) in KINDS {
        let fake = FakeOpenAi::new(face);
        let mut chat = ModelSession::with_config(&config(&fake, kind));
        fake.script(Answer::text("It is port 48213.").thinking("let me see"));
        let events = chat.turn("Which port?");
        let usage = usage(&events);
        assert_fields(&usage, json!({ "contextSize": 4096, "answerTokens": 17 }));
        let text: String = events.iter().filter_map(|event| event["text"].as_str()).collect();
        assert_eq!(text, "It is port 48213.", "{face:?}");
        let thought: String =
            events.iter().filter_map(|event| event["thinking"].as_str()).collect();
        assert_eq!(thought, "let me see", "{face:?}");
        let sent = fake.chats().pop().unwrap();
        assert_eq!(sent["model"], "m", "the server's own name");
        assert_eq!(sent["messages"].as_array().unwrap().last().unwrap()["content"], "Which port?");
        assert_eq!(sent["stream_options"], json!({ "include_usage": true }));
        assert!(sent.get("options").is_none() && sent.get("num_ctx").is_none(), "{sent}");
        assert!(sent["max_tokens"].as_u64().unwrap() < 4096, "{sent}");
        let answer =
            chat.records().into_iter().find(|record| record["message"]["role"] == "assistant");
        assert_eq!(answer.unwrap()["message"]["model"], "big", "{face:?}");
    }
}

#[test]
fn notes_are_requested_from_a_model_of_another_server() {
    let (fake, ollama) = (FakeOpenAi::new(Face::LlamaServer), FakeOllama::new());
    let text = config(&fake, "auto").replace("127.0.0.1:9", ollama.host());
    let mut chat = ModelSession::with_config(&format!("{text}compression:\n  model: tiny\n"));
    for number in 0..6 {
        let _turn =
            chat.turn(&format!("Port {number} is 482{number}. {}", "More words. ".repeat(60)));
    }
    let n_chats = fake.chats().len();
    // The fake answers "ok", which is no summary.
    let error = chat.refused("context.compact", json!({ "strategy": "summarize" }), "modelFailed");
    assert_eq!(error["data"]["model"], "tiny");
    assert!(!ollama.summary_requests().is_empty());
    assert_eq!(fake.chats().len(), n_chats);
    let _turn = chat.turn("And now?");
    assert_eq!(fake.chats().len(), n_chats + 1);
}

#[test]
fn window_is_that_of_the_server_or_the_configuration() {
    let fake = FakeOpenAi::new(Face::Vllm);
    let mut chat = ModelSession::with_config(&config(&fake, "vllm"));
    let shown = chat.wire.ok("model.show", json!({}))["model"].clone();
    assert_fields(&shown, json!({ "defaultContext": 4096, "defaultContextFrom": "server" }));
    // The server was started again with another window.
    fake.state().window = Some(2048);
    assert_eq!(usage(&chat.turn("hello"))["contextSize"], 2048);
    chat.reconfigure(&config_with(&fake, "vllm", ", window: 1024"));
    assert_eq!(usage(&chat.turn("hello again"))["contextSize"], 1024);
}

#[test]
fn window_that_nobody_says_is_not_guessed() {
    let fake = FakeOpenAi::new(Face::Plain);
    let mut chat = ModelSession::with_config(&config(&fake, "openai"));
    let error = chat.failed_turn("hello", "config");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("servers.s.models.big.window"), "{message}");
    assert!(fake.chats().is_empty());
    chat.reconfigure(&config_with(&fake, "openai", ", window: 3000, maxOutput: 50"));
    assert_eq!(usage(&chat.turn("hello"))["contextSize"], 3000);
    assert_eq!(fake.chats()[0]["max_tokens"], 50);
}

#[test]
fn llama_server_behind_a_gateway_is_what_its_list_says() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    fake.state().hides_props = true;
    for kind in ["llama-server", "auto"] {
        let mut chat = ModelSession::with_config(&config(&fake, kind));
        let error = chat.failed_turn("hello", "config");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("servers.s.models.big.window"), "{kind}: {message}");
        chat.reconfigure(&config_with(&fake, kind, ", window: 3000"));
        assert_eq!(usage(&chat.turn("hello"))["contextSize"], 3000, "{kind}");
        let reported = chat.sandbox.ctl(["servers", "test", "s"]).ok();
        assert!(reported.contains("s: ready, llama-server"), "{kind}: {reported}");
        chat.reconfigure(&config(&fake, kind));
        fake.state().lists_window = true;
        assert_eq!(usage(&chat.turn("hello again"))["contextSize"], 4096, "{kind}");
        fake.state().lists_window = false;
    }
}

#[test]
fn router_is_asked_for_the_window_of_a_model_once_it_has_loaded_it() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    fake.state().routed = Some(false);
    let mut chat = ModelSession::with_config(&config(&fake, "llama-server"));
    let _built = chat.ok("context.build", json!({}));
    assert_eq!(fake.state().routed, Some(false), "only a turn loads a model");
    let is_loading = |event: &Value| event["name"] == "loading";
    for round in 0..2 {
        let events = chat.turn("hello");
        assert!(events.iter().any(is_loading), "{round}: {events:?}");
        assert_fields(&usage(&events), json!({ "contextSize": 4096 }));
        let events = chat.turn("and again");
        assert!(!events.iter().any(is_loading), "{round}: {events:?}");
        // The router unloads it for another model.
        fake.state().routed = Some(false);
    }
    let all = fake.paths();
    let n_asked = all.iter().filter(|path| *path == "/props?model=m&autoload=false").count();
    assert_eq!(n_asked, 2, "once after each loading: {all:?}");
}

#[test]
fn router_loads_a_model_although_ollama_keeps_none() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    fake.state().routed = Some(false);
    let text = config(&fake, "llama-server").replace("ollama:\n", "ollama:\n  keepAlive: 0\n");
    let mut chat = ModelSession::with_config(&text);
    assert_eq!(usage(&chat.turn("hello"))["contextSize"], 4096);
}

#[test]
fn prompt_that_does_not_fit_is_not_sent() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    let sandbox = Sandbox::new();
    write_weights(&sandbox, &fake);
    fake.state().window = Some(512);
    let mut chat = ModelSession::with_config(&config(&fake, "llama-server"));
    let system = "Never forget the port. ".repeat(200);
    chat.ok("session.update", json!({ "systemPrompt": system }));
    let error = chat.failed_turn("hello", "contextOverflow");
    assert!(fake.chats().is_empty(), "{error}");
}

#[test]
fn refusal_of_a_long_prompt_is_recognized() {
    for (face, kind) in KINDS {
        let fake = FakeOpenAi::new(face);
        let mut chat = ModelSession::with_config(&config(&fake, kind));
        let _turn = chat.turn("hello");
        let refusal = fake.state().overflow(5000, 4096);
        fake.reply_with(refusal.clone());
        fake.reply_with(refusal);
        let error = chat.failed_turn("hello again", "contextOverflow");
        assert_eq!(error["data"]["needed"], 5000, "{face:?}: {error}");
    }
}

#[test]
fn answer_that_is_cut_off_is_an_error_and_kept() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    let mut chat = ModelSession::with_config(&config(&fake, "auto"));
    let stop = event(&json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] }));
    let failed = event(&json!({ "error": { "message": "out of memory", "code": 500 } }));
    let mut check = |rest: Vec<Step>, reason: &str| {
        fake.reply_with([vec![EVENTS, piece("half of it")], rest].concat());
        let error = chat.failed_turn("hello", "modelFailed");
        assert_eq!(error["data"]["reason"], reason, "{error}");
        let partial = error["data"]["seq"].as_u64().unwrap();
        let records = chat.records();
        let record = records.iter().find(|record| record["seq"] == partial).unwrap();
        assert_eq!(record["message"]["finishReason"], "interrupted");
        assert_eq!(record["message"]["parts"][0]["text"], "half of it");
    };
    check(vec![Step::End], "incomplete");
    check(vec![done(), Step::End], "incomplete");
    check(vec![stop, Step::End], "incomplete");
    check(vec![Step::Close], "disconnected");
    check(vec![Step::Chunk(b"data: {\"choices\":[{\"del".to_vec()), Step::End], "incomplete");
    check(vec![Step::Chunk(b"data: nonsense\n\n".to_vec()), done(), Step::End], "garbage");
    check(vec![failed, Step::End], "loadFailed");
}

#[test]
fn failure_has_its_own_kind_and_reason() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    let mut chat = ModelSession::with_config(&config(&fake, "auto"));
    let mut check = |steps: Vec<Step>, n_times: usize, kind: &str, reason: &str| {
        for _ in 0..n_times {
            fake.reply_with(steps.clone());
        }
        let error = chat.failed_turn("hello", kind);
        assert_eq!(error["data"]["reason"], reason, "{error}");
        assert_eq!(error["data"]["model"], "big", "{error}");
        error["message"].as_str().unwrap().to_owned()
    };
    check(
        error(401, "authentication_error", "Invalid API Key"),
        1,
        "modelUnavailable",
        "unauthorized",
    );
    let loading = error(503, "unavailable_error", "Loading model");
    let text = check(loading, 3, "modelUnavailable", "busy");
    assert!(text.contains("Loading model"), "{text}");
    let slow = http_response(429, "Retry-After: 3600\r\n", b"{\"error\":\"slow down\"}");
    let text = check(slow, 1, "modelUnavailable", "busy");
    assert!(text.contains("it asks to wait 3600 s"), "{text}");
    let page = |status| http_response(status, "Content-Type: text/html\r\n", b"<html>hello</html>");
    check(page(200), 1, "modelUnavailable", "otherServer");
    check(page(502), 1, "modelFailed", "failed");
    let inside = [EVENTS, event(&json!({ "error": { "message": "no", "code": 500 } })), Step::End];
    check(inside.to_vec(), 1, "modelFailed", "brokeOff");
    let whole = http_response(200, "", b"{\"error\":{\"message\":\"no\",\"code\":500}}");
    check(whole, 1, "modelFailed", "brokeOff");
    let elsewhere = http_response(307, "Location: http://127.0.0.1:9/\r\n", b"");
    check(elsewhere, 1, "modelUnavailable", "redirected");
}

#[test]
fn tools_are_called_and_their_results_sent() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    let mut chat = ModelSession::with_config(&config(&fake, "auto"));
    fake.script(Answer::text("").tool_call("read", json!({ "path": "a.rs" })));
    let mut params = chat.message("read it");
    params["tools"] = json!([{ "type": "function", "function": {
        "name": "read", "description": "x", "parameters": { "type": "object", "properties": {} } } }]);
    chat.send(params);
    let event = chat.events_until("toolCalls").pop().unwrap();
    assert_eq!(event["calls"][0]["args"], json!({ "path": "a.rs" }));
    let result =
        json!({ "id": event["calls"][0]["id"], "result": { "llmContent": "fn main() {}" } });
    chat.ok("chat.submitToolResults", json!({ "results": [result] }));
    let _done = chat.events_until("done");
    let sent = fake.chats().pop().unwrap();
    let messages = array(&sent["messages"]);
    let [.., called, result] = messages else { panic!("{sent}") };
    assert_eq!(called["tool_calls"][0]["type"], "function");
    assert_eq!(called["tool_calls"][0]["function"]["arguments"], "{\"path\":\"a.rs\"}");
    assert_fields(result, json!({ "role": "tool", "content": "fn main() {}" }));
    assert_eq!(result["tool_call_id"], called["tool_calls"][0]["id"]);
}

#[test]
fn options_are_those_of_the_kind_of_server() {
    let fake = FakeOpenAi::new(Face::Vllm);
    let mut chat = ModelSession::with_config(&config(&fake, "auto"));
    let with = |chat: &ModelSession, options: Value| {
        let mut params = chat.message("hello");
        params["options"] = options;
        params
    };
    chat.turn("hello");
    let params = with(&chat, json!({ "repeat_penalty": 1.1 }));
    let error = chat.wire.refused("chat.send", params, "invalidParams");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("repetition_penalty"), "{message}");
    let params = with(&chat, json!({ "num_ctx": 4096 }));
    chat.wire.refused("chat.send", params, "invalidParams");
    let params = with(&chat, json!({ "repetition_penalty": 1.1, "seed": 7, "stop": ["x"] }));
    chat.turn_with(params);
    let sent = fake.chats().pop().unwrap();
    assert_fields(&sent, json!({ "repetition_penalty": 1.1, "seed": 7, "stop": ["x"] }));
}

#[test]
fn options_are_checked_when_the_kind_of_server_is_known() {
    for (face, option) in [(Face::Sglang, "repetition_penalty"), (Face::LmStudio, "top_k")] {
        let fake = FakeOpenAi::new(face);
        let mut chat = ModelSession::with_config(&config(&fake, "openai"));
        let mut params = chat.message("hello");
        params["options"] = json!({ option: 1 });
        chat.turn_with(params);
        assert_eq!(fake.chats()[0][option], 1, "{face:?}");
        let mut params = chat.message("hello");
        params["options"] = json!({ "mirostat": 1 });
        chat.wire.refused("chat.send", params, "invalidParams");
    }
    // The message is recorded although no server says what its options are.
    let fake = FakeOpenAi::new(Face::Vllm);
    let text = config(&fake, "auto").replace(&fake.url(), "http://127.0.0.1:9");
    let mut chat = ModelSession::with_config(&text);
    let mut params = chat.message("hello");
    params["options"] = json!({ "repetition_penalty": 1.1 });
    let error = chat.turn_with(params).pop().unwrap();
    assert_eq!(error["data"]["reason"], "unreachable", "{error}");
    assert_eq!(chat.count("message"), 1);
}

#[test]
fn model_is_named_by_alias_or_with_its_server() {
    let (fake, ollama) = (FakeOpenAi::new(Face::Vllm), FakeOllama::new());
    let text = config(&fake, "vllm").replace("127.0.0.1:9", ollama.host());
    let mut chat = ModelSession::with_config(&text);
    for model in ["big", "m@s", "big@s"] {
        let mut params = chat.message("hello");
        params["model"] = json!(model);
        let done = chat.turn_with(params).pop().unwrap();
        assert_eq!(done["kind"], "done", "{model}: {done}");
        assert_eq!(fake.chats().pop().unwrap()["model"], "m", "{model}");
    }
    for model in ["tiny", "tiny@ollama"] {
        let mut params = chat.message("hello");
        params["model"] = json!(model);
        let done = chat.turn_with(params).pop().unwrap();
        assert_eq!(done["kind"], "done", "{model}: {done}");
        assert_eq!(ollama.requests("/api/chat").pop().unwrap().body["model"], "tiny", "{model}");
    }
    let error = chat.wire.refused("model.show", json!({ "model": "m@elsewhere" }), "config");
    assert!(error["message"].as_str().unwrap().contains("ollama, s"), "{error}");
    chat.wire.refused("model.show", json!({ "model": "missing@s" }), "modelNotFound");
    let list = chat.wire.ok("model.list", json!({}));
    let models: Vec<_> =
        array(&list["data"]).iter().map(|model| (&model["model"], &model["server"])).collect();
    assert_eq!(models.last().unwrap(), &(&json!("big"), &json!("s")));
    assert_eq!(models[0], (&json!("tiny:latest"), &json!("ollama")));
    let big = array(&list["data"]).last().unwrap().clone();
    assert_fields(&big, json!({ "loaded": true, "window": 4096 }));
}

#[test]
fn list_has_what_the_servers_say_in_time() {
    let fakes: Vec<_> = (0..7).map(|_| FakeOpenAi::new(Face::Vllm)).collect();
    let hung: Vec<_> = (0..3).map(|_| FakeServer::start(|_| vec![Step::Hang])).collect();
    let mut text = "ollama:\n  host: 127.0.0.1:9\nservers:\n".to_owned();
    let urls = fakes
        .iter()
        .map(FakeOpenAi::url)
        .chain(hung.iter().map(|hung| format!("http://{}", hung.host())));
    for (at, url) in urls.enumerate() {
        text.push_str(&format!("  s{at}:\n    kind: vllm\n    url: {url}\n"));
    }
    let mut chat = ModelSession::with_config(&text);
    let list = chat.wire.ok("model.list", json!({}));
    assert_eq!(array(&list["data"]).len(), 7, "{list}");
    let missing: Vec<_> =
        array(&list["missing"]).iter().map(|missing| &missing["server"]).collect();
    assert_eq!(
        missing,
        ["ollama", "s7", "s8", "s9"].map(|name| json!(name)).iter().collect::<Vec<_>>()
    );
    let servers = chat.wire.ok("model.servers", json!({}));
    let ready = array(&servers["data"]).iter().filter(|server| server["ready"] == true).count();
    assert_eq!(ready, 7, "{servers}");
}

#[test]
fn list_has_a_server_whose_descriptions_are_slow() {
    let slow = FakeServer::start(|request| match request.line.as_str() {
        "GET /api/tags" => http_response(200, "", br#"{"models":[{"name":"old:latest"}]}"#),
        "GET /api/ps" => http_response(200, "", br#"{"models":[]}"#),
        _ => vec![Step::Hang],
    });
    let fake = FakeOpenAi::new(Face::Vllm);
    let text = config(&fake, "auto").replace("127.0.0.1:9", slow.host());
    let mut chat = ModelSession::with_config(&text);
    let list = chat.wire.ok("model.list", json!({}));
    let models: Vec<_> = array(&list["data"]).iter().map(|model| &model["model"]).collect();
    assert_eq!(models, ["old:latest", "big"], "{list}");
}

#[test]
fn model_that_an_alias_hides_is_reported_and_has_another_name() {
    let (fake, ollama) = (FakeOpenAi::new(Face::Vllm), FakeOllama::new());
    let text = config(&fake, "auto").replace("127.0.0.1:9", ollama.host());
    let mut chat = ModelSession::with_config(&text.replace("big", "tiny"));
    let reported = chat.sandbox.ctl(["servers", "test", "ollama"]).ok();
    let problem =
        "the alias tiny means m@s, and hides tiny:latest; try: ollmctl models show tiny@ollama";
    assert!(reported.contains(problem), "{reported}");
    let mut answers = |model: &str| {
        let mut params = chat.message("hello");
        params["model"] = json!(model);
        let done = chat.turn_with(params).pop().unwrap();
        assert_eq!(done["kind"], "done", "{model}: {done}");
        (fake.chats().len(), ollama.requests("/api/chat").len())
    };
    let (of_alias, before) = answers("tiny");
    assert_eq!(of_alias, 1);
    let (of_alias, after) = answers("tiny@ollama");
    assert!(of_alias == 1 && after > before, "{of_alias} {after}");
    // Only the name alone is hidden, and only an alias of another model does it.
    let shown = text.replace(
        "big: { name: m }",
        "tiny: { name: m }\n  ollama:\n    models:\n      small: { name: tiny }",
    );
    chat.reconfigure(&shown.replace("default: big", "default: small"));
    let list = chat.wire.ok("model.list", json!({}));
    let names: Vec<_> = array(&list["data"]).iter().map(|model| &model["model"]).collect();
    assert_eq!((names[0], names.last()), (&json!("small"), Some(&&json!("tiny"))), "{list}");
}

#[test]
fn hints_are_those_of_the_kind_of_server() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    let mut chat = ModelSession::with_config(&config(&fake, "llama-server"));
    fake.reply_with(error(500, "server_error", "failed to load model"));
    let failed = chat.failed_turn("hello", "modelFailed");
    assert_eq!(failed["data"]["hint"], "ollmctl servers test", "{failed}");
    let list = chat.wire.ok("model.list", json!({}));
    assert!(list["getSmallModel"].as_str().unwrap().starts_with("llama-server "), "{list}");
    assert_eq!(list["host"], fake.url());
}

#[test]
fn server_of_another_kind_than_configured_is_named() {
    let check = |face, kind: &str, found: &str| {
        let fake = FakeOpenAi::new(face);
        let mut chat = ModelSession::with_config(&config(&fake, kind));
        let error = chat.failed_turn("hello", "modelUnavailable");
        assert_eq!(error["data"]["reason"], "otherServer", "{error}");
        assert!(error["message"].as_str().unwrap().contains(found), "{error}");
    };
    check(Face::Sglang, "vllm", "SGLang answers there");
    check(Face::Vllm, "llama-server", "vLLM answers there");
    check(Face::LlamaServer, "ollama", "llama-server answers there");
    check(Face::LmStudio, "ollama", "LM Studio answers there");
}

#[test]
fn server_that_became_another_kind_is_learned_again() {
    for kind in ["auto", "openai"] {
        let fake = FakeOpenAi::new(Face::LlamaServer);
        let mut chat = ModelSession::with_config(&config(&fake, kind));
        chat.turn("hello");
        for (face, found) in [(Face::Vllm, "vLLM"), (Face::LlamaServer, "llama-server")] {
            fake.state().face = face;
            let reported = chat.wire.ok("model.servers", json!({}));
            let all = reported["data"].as_array().unwrap();
            assert!(all.iter().any(|server| server["found"] == found), "{kind}: {reported}");
        }
    }
}

#[test]
fn servers_are_reported_with_a_command_for_each_problem() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    fake.state().slots = 3;
    let plain = FakeOpenAi::new(Face::Plain);
    let sandbox = Sandbox::new();
    sandbox.write_config(&format!(
        "{}  far: {{ url: 'http://127.0.0.1:9' }}\n  key: {{ url: 'http://127.0.0.1:9', keyEnv: NO_KEY }}\n  \
         odd: {{ url: '{}', models: {{ other: {{ name: m }} }} }}\n",
        config(&fake, "auto"),
        plain.url(),
    ));
    let output = sandbox.ctl(["servers", "test"]).ok();
    let has = |text: &str| assert!(output.contains(text), "{text}: {output}");
    has("s: ready, llama-server b1-0c1e570 at http://127.0.0.1:");
    has("3 requests at a time (asked)");
    has("  big: window of 4,096 tokens (asked)");
    has("key: not ready");
    has("needs the variable NO_KEY, which the daemon does not have; try: ollmctl config check");
    has("set servers.odd.models.other.window");
    has("ollama: not ready, ollama at http://127.0.0.1:9");
    has("try: ollama serve");
    let listed = sandbox.ctl(["servers", "list", "--json"]).json();
    assert_eq!(array(&listed["data"]).len(), 5, "{listed}");
    sandbox.ctl(["servers", "test", "nowhere"]).fails(2);
}

#[test]
fn ollama_that_nobody_chose_is_named_only_if_it_runs() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    let sandbox = Sandbox::new();
    sandbox.write_config(&config(&fake, "auto").replace("ollama:\n  host: 127.0.0.1:9\n", ""));
    let ctl = |args: &[&str]| {
        let mut command = sandbox.command("ollmctl");
        command.env_remove("OLLAMA_HOST").args(args);
        run(command, "").json()
    };
    let servers = ctl(&["servers", "list", "--json"]);
    let has_idle = |server: &Value| server["server"] == "ollama" && server["ready"] != true;
    assert!(!array(&servers["data"]).iter().any(has_idle), "{servers}");
    let models = ctl(&["models", "list", "--json"]);
    assert!(models.get("missing").is_none_or(|missing| array(missing).is_empty()), "{models}");
    let asked = ctl(&["call", "model.servers", r#"{"server": "ollama"}"#]);
    assert_eq!(array(&asked["data"]).len(), 1, "{asked}");
}

#[test]
fn key_comes_from_a_private_file_and_is_never_shown() {
    let fake = FakeOpenAi::new(Face::Vllm);
    let sandbox = Sandbox::new();
    let path = sandbox.path("key");
    std::fs::write(&path, "s3same-key\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let key = format!("    keyFile: {}\n    headers: {{ X-Team: blue }}\n", path.display());
    let text = config(&fake, "vllm").replace("    models:\n", &format!("{key}    models:\n"));
    let mut chat = ModelSession::with_config(&text);
    let _turn = chat.turn("hello");
    let sent = fake.requests("/v1/chat/completions").pop().unwrap();
    assert!(sent.head.contains("authorization: Bearer s3same-key\n"), "{}", sent.head);
    assert!(sent.head.contains("x-team: blue\n"), "{}", sent.head);
    fake.reply_with(error(401, "authentication_error", "Invalid API Key"));
    let failed = chat.failed_turn("again", "modelUnavailable");
    for padding in [0, 290] {
        let message = format!("{} not s3same-key", "x".repeat(padding));
        let inside = event(&json!({ "error": { "message": message, "code": 500 } }));
        fake.reply_with(vec![EVENTS, piece("half"), inside, Step::End]);
        let failed = chat.failed_turn("again", "modelFailed");
        assert!(!failed.to_string().contains("s3"), "{failed}");
    }
    let servers = chat.wire.ok("model.servers", json!({ "test": true }));
    let shown = chat.sandbox.ctl(["config", "show"]).ok();
    for text in [failed.to_string(), servers.to_string(), shown.clone()] {
        assert!(!text.contains("s3same") && !text.contains("blue"), "{text}");
    }
    assert!(shown.contains("(hidden)"), "{shown}");
    let logs = chat.sandbox.home().join("logs");
    for log in std::fs::read_dir(logs).unwrap() {
        let log = std::fs::read_to_string(log.unwrap().path()).unwrap();
        assert!(!log.contains("s3same"), "{log}");
    }
    // Others may read it now.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    chat.reconfigure(&text);
    let params = chat.message("again");
    let failed = chat.wire.refused("chat.send", params, "config");
    assert!(failed["message"].as_str().unwrap().contains("chmod 600"), "{failed}");
}

#[test]
fn server_with_slots_answers_sessions_at_the_same_time() {
    let fake = FakeOpenAi::new(Face::LlamaServer);
    fake.state().slots = 2;
    let mut chat = ModelSession::with_config(&config(&fake, "auto"));
    let stalled = vec![EVENTS, piece("one "), Step::Stall, done(), Step::End];
    let others: Vec<String> = (0..2).map(|_| chat.wire.create(json!({}))).collect();
    for id in &others {
        fake.reply_with(stalled.clone());
        chat.wire.ok("chat.send", text_message(id, "user", "hello"));
    }
    until("both are answered at once", || fake.n_held() == 2);
    // A third one waits for a place.
    chat.send(chat.message("hello"));
    until("the third one waits", || {
        let event = chat.event();
        event["kind"] == "phase" && event["name"] == "queued" && event["ahead"] == 1
    });
    assert_eq!(fake.chats().len(), 2);
    fake.resume();
    fake.resume();
}

#[test]
fn slots_are_known_after_another_server_moved() {
    let (fake, moved) = (FakeOpenAi::new(Face::LlamaServer), FakeOpenAi::new(Face::Vllm));
    fake.state().slots = 2;
    let with = |other: &str| format!("{}  other: {{ url: '{other}' }}\n", config(&fake, "auto"));
    let mut chat = ModelSession::with_config(&with("http://127.0.0.1:9"));
    chat.turn("hello");
    chat.reconfigure(&with(&moved.url()));
    let stalled = vec![EVENTS, piece("one "), Step::Stall, done(), Step::End];
    for _ in 0..2 {
        let id = chat.wire.create(json!({}));
        fake.reply_with(stalled.clone());
        chat.wire.ok("chat.send", text_message(&id, "user", "hello"));
    }
    until("both are answered at once", || fake.n_held() == 2);
    fake.resume();
    fake.resume();
}

#[test]
fn server_of_the_section_ollama_can_have_headers_and_a_key_file() {
    let (heads, seen) = std::sync::mpsc::channel();
    let heads = std::sync::Mutex::new(heads);
    let server = FakeServer::start(move |request| {
        heads.lock().unwrap().send(request.head.clone()).unwrap();
        http_response(404, "", b"")
    });
    let sandbox = Sandbox::new();
    let path = sandbox.path("key");
    std::fs::write(&path, "s3same-key").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    sandbox.write_config(&format!(
        "ollama: {{ host: {} }}\nservers:\n  ollama:\n    keyFile: {}\n    headers: {{ X-Team: blue }}\n",
        server.host(),
        path.display()
    ));
    let (_daemon, mut wire) = sandbox.daemon_and_wire();
    let _listed = wire.call("model.list", json!({}));
    let head = seen.recv().unwrap();
    assert!(head.contains("x-team: blue\n"), "{head}");
    assert!(head.contains("authorization: Bearer s3same-key\n"), "{head}");
}
