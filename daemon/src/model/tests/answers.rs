//! Valid answers in every form.

use std::num::NonZeroU32;

use ollm_protocol::content::TokenLogprob;
use serde_json::{Map, Value, json};

use super::*;
use crate::config::ApiKey;

fn text(content: &str) -> Value {
    json!({ "model": "m", "message": { "role": "assistant", "content": content }, "done": false })
}

fn done() -> Value {
    json!({
        "model": "m", "message": { "role": "assistant", "content": "" }, "done": true,
        "done_reason": "stop", "total_duration": 5_000_000, "prompt_eval_count": 27,
        "eval_count": 5, "eval_duration": 2_000_000, "something_new": { "deep": [1] },
    })
}

fn streamed(lines: &[Value]) -> Vec<Step> {
    let lines = lines.iter().map(Step::line);
    std::iter::once(BEGIN).chain(lines).chain([Step::End]).collect()
}

fn text_delta(text: &str) -> ChatDelta {
    ChatDelta::Text(text.to_owned())
}

#[tokio::test]
async fn answer_has_deltas_and_an_end_with_counts() {
    let thinking = json!({ "message": { "content": "", "thinking": "hm" }, "done": false });
    let call =
        json!({ "function": { "index": 0, "name": "read", "arguments": { "b": 1, "a": 2 } } });
    let calls = json!({ "message": { "content": "", "tool_calls": [call] }, "done": false });
    let steps = streamed(&[thinking, text("Hel"), text(""), text("lo"), calls, done()]);
    let (deltas, end) = chat(steps).await;
    let call = AnswerCall { id: None, name: "read".to_owned(), args: json!({ "b": 1, "a": 2 }) };
    let thought = ChatDelta::Thinking("hm".to_owned());
    let calls = ChatDelta::ToolCalls(vec![call]);
    assert_eq!(deltas, [thought, text_delta("Hel"), text_delta("lo"), calls]);
    let end = end.expect("ends well");
    assert_eq!(end.reason, DoneReason::Stop);
    assert_eq!((end.prompt, end.answer_tokens), (PromptCount::Whole(27), Some(5)));
    assert_eq!((end.cached_tokens, end.load_time), (None, None));
    assert_eq!(end.answer_time, Some(Duration::from_millis(2)));
}

#[tokio::test]
async fn tool_calls_may_be_in_the_end_marker_or_have_text_arguments() {
    let mut last = done();
    last["message"] = json!({ "content": "ok", "tool_calls": [
        { "id": "call_1", "function": { "name": "a", "arguments": "{\"x\":1}" } },
        { "id": "", "function": { "name": "b", "arguments": "not JSON" } },
        { "function": { "name": "c" } },
    ] });
    let (deltas, end) = chat(streamed(&[last])).await;
    assert!(end.is_ok());
    let call = |id: Option<&str>, name: &str, args| AnswerCall {
        id: id.map(str::to_owned),
        name: name.to_owned(),
        args,
    };
    let calls = vec![
        call(Some("call_1"), "a", json!({ "x": 1 })),
        call(None, "b", json!("not JSON")),
        call(None, "c", json!({})),
    ];
    assert_eq!(deltas, [text_delta("ok"), ChatDelta::ToolCalls(calls)]);
}

#[tokio::test]
async fn text_beside_a_tool_call_that_is_too_deep_is_kept() {
    for levels in [100, 200] {
        let deep = format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        let line = format!(
            r#"{{"message":{{"content":"beside","thinking":"hm","tool_calls":[{{"function":{{"name":"a","arguments":{{"v":{deep}}}}}}}]}},"done":false}}"#
        );
        let steps = [
            BEGIN,
            Step::line(&text("before ")),
            Step::Chunk(format!("{line}\n").into_bytes()),
            Step::line(&done()),
            Step::End,
        ];
        let (deltas, end) = chat(steps.into()).await;
        assert!(matches!(end, Err(ModelError::TooDeep { .. })), "{levels}: {end:?}");
        let thought = ChatDelta::Thinking("hm".to_owned());
        assert_eq!(deltas, [text_delta("before "), thought, text_delta("beside")], "{levels}");
    }
}

#[tokio::test]
async fn answer_may_be_split_within_characters() {
    let bytes = format!("{}\n\n{}\r\n{}\n", text("né"), text("日本👩"), done()).into_bytes();
    let chunks = bytes.iter().map(|byte| Step::Chunk(vec![*byte]));
    let steps = std::iter::once(BEGIN).chain(chunks).chain([Step::End]);
    let (deltas, end) = chat(steps.collect()).await;
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(deltas, [text_delta("né"), text_delta("日本👩")]);
}

#[tokio::test]
async fn answer_that_is_not_streamed_is_accepted() {
    let mut whole = done();
    whole["message"]["content"] = json!("all of it");
    let (deltas, end) = chat(response(200, "", &whole.to_string())).await;
    assert!(end.is_ok(), "{end:?}");
    assert_eq!(deltas, [text_delta("all of it")]);
}

#[tokio::test]
async fn missing_done_reason_is_empty() {
    let mut last = done();
    last.as_object_mut().expect("an object").remove("done_reason");
    let (_, end) = chat(streamed(&[last])).await;
    assert_eq!(end.expect("ends well").reason, DoneReason::Other(String::new()));
}

#[tokio::test]
async fn meaning_of_the_prompt_count_depends_on_the_version() {
    let mut without = done();
    without.as_object_mut().expect("an object").remove("prompt_eval_count");
    let mut cached = done();
    cached["prompt_eval_cached_count"] = json!(20);
    let check = async |version, last: &Value, expect, expect_cached| {
        let server = ScriptedServer::new(version, streamed(std::slice::from_ref(last)));
        let (_, end) = collect(&connect(&server, PATIENT)).await;
        let end = end.expect("ends well");
        assert_eq!((end.prompt, end.cached_tokens), (expect, expect_cached), "{version}");
    };
    check("0.3.14", &done(), PromptCount::Uncached(27), None).await;
    check("0.3.14", &without, PromptCount::Uncached(0), None).await;
    check("0.24.0", &done(), PromptCount::Whole(27), None).await;
    check("0.24.0", &without, PromptCount::Unknown, None).await;
    check("0.30.0", &done(), PromptCount::Uncached(27), None).await;
    check("0.34.0", &cached, PromptCount::Whole(27), Some(20)).await;
    check("0.0.0", &done(), PromptCount::Whole(27), None).await;
}

#[tokio::test]
async fn request_contains_every_option_and_none_that_reloads_the_model() {
    let server = ScriptedServer::new("0.33.0", streamed(&[done()]));
    let host = ModelHost::parse(&server.host()).expect("an address");
    let key = Some(ApiKey("hunter2".to_owned()));
    let ollama = connect_to(HttpAddress { key, ..HttpAddress::new(host) }, PATIENT);
    let options = json!({ "temperature": 0.5, "stop": ["x"] });
    let Value::Object(options) = options else { unreachable!() };
    let request = ChatRequest {
        tools: vec![json!({ "type": "function" })],
        num_predict: NonZeroU32::new(64),
        sampling: Sampling::check(options, &SAMPLING).expect("options of a request"),
        think: Some(ThinkMode::Low),
        format: Some(json!("json")),
        keep_alive: Duration::from_millis(1500),
        affinity: None,
        ..request()
    };
    let mut stream = ollama.stream(&request).await.expect("begins");
    assert!(matches!(stream.next().await, Ok(ChatItem::End(_))));
    let sent = &server.requests()[0];
    assert_eq!(sent.line, "POST /api/chat");
    let has = |line: &str| assert!(sent.head.contains(line), "{}", sent.head);
    has("authorization: Bearer hunter2");
    has(&format!("host: {}", server.host()));
    has("content-type: application/json");
    has("user-agent: ollmd/");
    let expect = json!({
        "model": "m:7b", "messages": [{ "role": "user", "content": "hello" }],
        "tools": [{ "type": "function" }], "format": "json",
        "options": { "num_ctx": 4096, "num_predict": 64, "temperature": 0.5, "stop": ["x"] },
        "think": "low", "keep_alive": "1500ms", "stream": true, "truncate": false,
    });
    assert_eq!(sent.body, expect);
}

#[tokio::test]
async fn probabilities_of_tokens_are_requested_and_follow_their_text() {
    let mut line = text("Hi");
    line["logprobs"] = json!([{
        "token": "Hi", "logprob": -0.5, "bytes": [72, 105], "new": true,
        "top_logprobs": [{ "token": "Hi", "logprob": -0.5 }, { "token": "Ho", "logprob": -2.0 }],
    }]);
    let server = ScriptedServer::new("0.33.0", streamed(&[line, done()]));
    let ollama = connect(&server, PATIENT);
    let request = ChatRequest { logprobs: Some(2), ..request() };
    let mut stream = ollama.stream(&request).await.expect("begins");
    assert_eq!(stream.next().await, Ok(ChatItem::Delta(text_delta("Hi"))));
    let token = |token: &str, logprob| TokenLogprob {
        token: token.to_owned(),
        logprob,
        ..TokenLogprob::default()
    };
    let top = vec![token("Hi", -0.5), token("Ho", -2.0)];
    let expect = TokenLogprob { bytes: Some(b"Hi".to_vec()), top, ..token("Hi", -0.5) };
    assert_eq!(stream.next().await, Ok(ChatItem::Delta(ChatDelta::Logprobs(vec![expect]))));
    let body = &server.requests()[0].body;
    assert_eq!((&body["logprobs"], &body["top_logprobs"]), (&json!(true), &json!(2)));
}

#[tokio::test]
async fn every_kind_of_request_names_the_window() {
    let server = ScriptedServer::scripted("0.33.0", |request, _| {
        let rendered = json!({ "message": {}, "_debug_info": { "rendered_template": "<hello>" } });
        let only = request.body["_debug_render_only"] == json!(true);
        response(200, "", &if only { rendered } else { done() }.to_string())
    });
    let ollama = connect(&server, PATIENT);
    let warm = WarmRequest { model: "m:7b".to_owned(), num_ctx: 4096, keep_alive: LONG };
    ollama.warm(&warm).await.expect("loads");
    assert_eq!(ollama.render(&request()).await, Ok(Some("<hello>".to_owned())));
    assert!(collect(&ollama).await.1.is_ok());
    let sent = server.requests();
    assert_eq!(sent.len(), 3);
    for request in &sent {
        assert_eq!(request.body["options"], json!({ "num_ctx": 4096 }), "{}", request.body);
        assert_eq!(request.body["truncate"], json!(false));
        assert_eq!(request.body.get("shift"), None);
    }
    assert_eq!(sent[0].body["messages"], json!([]));
    assert_eq!(sent[0].body["stream"], json!(false));
}

#[tokio::test]
async fn old_server_is_not_asked_to_render() {
    let server = ScriptedServer::new("0.11.4", response(200, "", &done().to_string()));
    assert_eq!(connect(&server, PATIENT).render(&request()).await, Ok(None));
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn sequential_calls_reuse_the_connection() {
    let server = ScriptedServer::new("0.33.0", streamed(&[text("a"), done()]));
    let ollama = connect(&server, PATIENT);
    for _ in 0..3 {
        assert!(collect(&ollama).await.1.is_ok());
    }
    let connections: Vec<_> = server.requests().iter().map(|request| request.connection).collect();
    assert_eq!(connections, [1, 1, 1]);
}

#[tokio::test]
async fn list_without_capabilities_is_that_of_an_old_server() {
    let check = async |tags: Value, expect: bool| {
        let body = tags.to_string();
        let server = ScriptedServer::scripted("0.0.0", move |request, _| {
            response(200, "", if request.line == "POST /api/show" { "{}" } else { &body })
        });
        let info = connect(&server, PATIENT).show("m").await.expect("is there");
        assert_eq!(info.lists_no_capabilities, expect, "{tags}");
    };
    // As Ollama 0.24 and 0.33 list a model; an empty list says nothing.
    check(json!({ "models": [{ "name": "m:latest", "digest": "d" }] }), true).await;
    let new = json!({ "name": "m:latest", "digest": "d", "capabilities": ["completion"] });
    check(json!({ "models": [{ "name": "other", "digest": "e" }, new] }), false).await;
    check(json!({ "models": [] }), false).await;
}

#[tokio::test]
async fn model_info_contains_geometry_and_digest() {
    let show = json!({
        "template": "{{ .Prompt }}", "system": "be brief", "renderer": "", "details": {
            "family": "llama", "parameter_size": "8.0B", "quantization_level": "Q4_K_M" },
        "messages": [{ "role": "user", "content": "hi" }], "capabilities": ["completion", "tools"],
        "model_info": { "general.architecture": "llama", "general.parameter_count": 8_030_000_000_u64,
            "llama.context_length": 8192, "llama.block_count": 32, "llama.embedding_length": 4096,
            "llama.attention.head_count": 32, "llama.attention.head_count_kv": 8,
            "tokenizer.ggml.tokens": null },
    });
    let tags = json!({ "models": [
        { "name": "other:latest", "digest": "d0" },
        { "name": "m:7b", "model": "m:7b", "digest": "d1", "size": 5, "capabilities": null,
          "details": { "family": "llama", "context_length": 8192 } },
    ] });
    let server = ScriptedServer::scripted("0.33.0", move |request, _| {
        let body = if request.line == "POST /api/show" { &show } else { &tags };
        response(200, "", &body.to_string())
    });
    let ollama = connect(&server, PATIENT);
    let info = ollama.show("m:7b").await.expect("is there");
    assert_eq!(info.digest.as_deref(), Some("d1"));
    assert_eq!((info.trained_context, info.parameter_count), (Some(8192), Some(8_030_000_000)));
    assert_eq!(info.geometry.map(|geometry| geometry.bytes_per_token()), Some(131_072));
    assert_eq!((info.system.as_deref(), info.n_hidden_messages), (Some("be brief"), 1));
    let listed = ollama.list(1).await.expect("a list");
    assert_eq!(listed[0].model, "other:latest");
    assert_eq!((listed[1].size_bytes, listed[1].details.trained_context), (5, Some(8192)));
    let verbose = ollama.vocabulary("m:7b").await.expect("all of it").expect("is described");
    let verbose: Map<String, Value> = serde_json::from_slice(&verbose).expect("JSON");
    assert!(verbose.contains_key("model_info"));
    let asked = server.requests().pop().expect("a request");
    assert_eq!(asked.body, json!({ "model": "m:7b", "verbose": true }));
}
