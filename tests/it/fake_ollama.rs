//! The fake model server behaves as the real one: the other tests depend on it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Answer, DEADLINE, FakeOllama, Fault, count, render};

/// Sends a request on a connection of its own, and returns the status and the body.
fn http(fake: &FakeOllama, method: &str, path: &str, body: &str) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(fake.host()).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let length = body.len();
    // HTTP 1.0 has no chunks, so the bytes behind the head are the body.
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut bytes = Vec::new();
    // A broken connection ends the body.
    let _broken = stream.read_to_end(&mut bytes);
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, bytes[end + 4..].to_vec())
}

/// Sends a chat request, and returns the status and the lines of the answer.
fn chat(fake: &FakeOllama, request: &Value) -> (u16, Vec<Value>) {
    let (status, body) = http(fake, "POST", "/api/chat", &request.to_string());
    let text = String::from_utf8(body).unwrap();
    (status, text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// Returns a user message.
fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// Returns a request with a window, whose prompt has a number of tokens.
fn sized(tokens: u64, num_ctx: u64, truncate: bool) -> Value {
    let empty = count(&render("tiny", &[user("")], &[], false));
    let content = "x".repeat(usize::try_from(tokens - empty).unwrap());
    json!({ "model": "tiny", "messages": [user(&content)], "options": { "num_ctx": num_ctx },
        "stream": false, "truncate": truncate })
}

#[test]
fn vocabulary_counts_match_known_values() {
    let check = |text: &str, expect| assert_eq!(count(text), expect, "{text}");
    check("", 0);
    check("abc", 3);
    check("in", 1);
    check("king", 2);
    check("banana", 4);
    check("hour", 3);
    check("I'm on", 5);
    check("é", 2);
    check("<|im_start|>user\n", 6);
    check("<|im_start", 9);
    let prompt = render("tiny", &[user("hello there")], &[], false);
    assert_eq!(prompt, "<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n");
    // A real server with this vocabulary counted the same.
    assert_eq!(count(&prompt), 27);
}

#[test]
fn prompt_count_is_that_of_the_engine() {
    let check = |version, first: u64, second: Option<u64>| {
        let fake = FakeOllama::with_version(version);
        let request =
            json!({ "model": "tiny", "messages": [user("hello there")], "truncate": false });
        for expect in [Some(first), second] {
            fake.script(Answer::text("a banana"));
            let (status, lines) = chat(&fake, &request);
            assert_eq!((status, lines.len()), (200, 3), "{lines:?}");
            assert_eq!(lines[0]["message"]["content"], "a ");
            let end = &lines[2];
            assert_eq!((&end["done"], &end["done_reason"]), (&json!(true), &json!("stop")));
            assert_eq!(end["prompt_eval_count"].as_u64(), expect, "{version}");
            assert_eq!(end["eval_count"], 6);
        }
    };
    check("0.3.14", 27, Some(1));
    check("0.24.0", 27, Some(27));
    check("0.30.0", 27, Some(1));
    check("0.33.0", 27, Some(27));
}

#[test]
fn long_prompt_is_refused_or_truncated_as_by_the_engine() {
    let counted = |fake: &FakeOllama, request: &Value| {
        let (status, lines) = chat(fake, request);
        assert_eq!(status, 200, "{lines:?}");
        lines[0]["prompt_eval_count"].as_u64().unwrap()
    };
    let new = FakeOllama::new();
    assert_eq!(counted(&new, &sized(255, 256, false)), 255);
    let (status, lines) = chat(&new, &sized(256, 256, false));
    let inner: Value = serde_json::from_str(lines[0]["error"].as_str().unwrap()).unwrap();
    assert_eq!((status, &inner["error"]["n_prompt_tokens"]), (400, &json!(256)));
    assert_eq!(inner["error"]["n_ctx"], 256);
    assert_eq!(counted(&new, &sized(400, 256, true)), 130, "truncated to about half of the window");
    let old = FakeOllama::with_version("0.24.0");
    assert_eq!(counted(&old, &sized(256, 256, false)), 256);
    let (status, lines) = chat(&old, &sized(257, 256, false));
    let expect = json!("the input length exceeds the context length");
    assert_eq!((status, &lines[0]["error"]), (400, &expect));
    assert_eq!(counted(&old, &sized(400, 256, true)), 256, "truncated to the window");
    let oldest = FakeOllama::with_version("0.3.14");
    assert_eq!(counted(&oldest, &sized(400, 256, false)), 130, "this version ignores `truncate`");
    // Whole messages are dropped first.
    let mut many = sized(200, 256, true);
    let last = many["messages"][0].clone();
    many["messages"] = json!([{ "role": "system", "content": "s" }, user(&"y".repeat(99)), last]);
    let left = [json!({ "role": "system", "content": "s" }), last];
    assert_eq!(counted(&new, &many), count(&render("tiny", &left, &[], false)));
}

#[test]
fn errors_loading_and_rendering_match_the_real_server() {
    let fake = FakeOllama::new();
    let refused = |request: Value| {
        let (status, lines) = chat(&fake, &request);
        (status, lines[0]["error"].as_str().unwrap_or_default().to_owned())
    };
    let text = |text: &str| text.to_owned();
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    assert_eq!(
        refused(json!({ "model": "plain", "messages": [user("a")], "tools": tools })),
        (400, text("registry.ollama.ai/library/plain:latest does not support tools"))
    );
    assert_eq!(
        refused(json!({ "model": "plain", "messages": [user("a")], "think": true })),
        (400, text("\"plain\" does not support thinking"))
    );
    assert_eq!(refused(json!({ "model": "x" })), (404, text("model 'x' not found")));
    assert_eq!(refused(json!({ "model": "" })), (400, text("model is required")));
    assert_eq!(http(&fake, "POST", "/api/chat", "").0, 400);
    assert_eq!(http(&fake, "GET", "/api/chat", "").0, 405);
    assert_eq!(http(&fake, "GET", "/api/nothing", ""), (404, b"404 page not found".to_vec()));
    let load = json!({ "model": "tiny", "messages": [], "options": { "num_ctx": 99_999 } });
    assert_eq!(chat(&fake, &load).1[0]["done_reason"], "load");
    let (_, ps) = http(&fake, "GET", "/api/ps", "");
    let ps: Value = serde_json::from_slice(&ps).unwrap();
    assert_eq!(ps["models"][0]["context_length"], 8192, "clamped");
    let unload = json!({ "model": "tiny", "messages": [], "keep_alive": 0 });
    assert_eq!(chat(&fake, &unload).1[0]["done_reason"], "unload");
    let render_only =
        json!({ "model": "plain", "messages": [user("a")], "_debug_render_only": true });
    let rendered = &chat(&fake, &render_only).1[0]["_debug_info"]["rendered_template"];
    assert_eq!(*rendered, json!(render("plain", &[user("a")], &[], true)));
    assert!(rendered.as_str().unwrap().starts_with("<|im_start|>system\nBe brief.<|im_end|>\n"));
}

#[test]
fn answers_contain_thinking_and_tool_calls_and_end_at_the_token_limit() {
    let fake = FakeOllama::new();
    let request = json!({ "model": "thinker", "messages": [user("a")], "truncate": false });
    fake.script(Answer::text("done").thinking("hm hm").tool_call("f", json!({ "b": 1, "a": 2 })));
    let (_, lines) = chat(&fake, &request);
    assert_eq!(lines[0]["message"]["thinking"], "hm ");
    assert_eq!(lines[2]["message"]["content"], "done");
    assert_eq!(lines[3]["message"]["tool_calls"][0]["function"]["name"], "f");
    assert_eq!((lines.len(), &lines[4]["done"]), (5, &json!(true)));
    fake.script(Answer::text("").tool_call("f", json!({})).tool_calls_in_done());
    let (_, lines) = chat(&fake, &request);
    let end = lines.last().unwrap();
    assert_eq!(end["message"]["tool_calls"][0]["function"]["name"], "f");
    assert_eq!(end["done"], true);
    fake.script(Answer::text("one two three"));
    let mut short = request.clone();
    short["options"] = json!({ "num_predict": 5 });
    let (_, lines) = chat(&fake, &short);
    let end = lines.last().unwrap();
    assert_eq!((&end["done_reason"], &end["eval_count"]), (&json!("length"), &json!(5)));
}

#[test]
fn each_fault_affects_one_request() {
    let fake = FakeOllama::new();
    let request = json!({ "model": "tiny", "messages": [user("a")] });
    let bytes = |fault: Fault| {
        fake.inject("/api/chat", &[fault]);
        fake.script(Answer::text("é è"));
        let (_, body) = http(&fake, "POST", "/api/chat", &request.to_string());
        String::from_utf8(body).unwrap()
    };
    let whole = bytes(Fault::SplitBytes);
    assert_eq!(whole.lines().count(), 3);
    assert!(whole.contains("\"done\":true"));
    let ended = bytes(Fault::EndWithoutDone { after: 1 });
    assert!(ended.lines().count() == 1 && !ended.contains("\"done\":true"), "{ended}");
    let error = bytes(Fault::ErrorLine { after: 2, text: "no more".to_owned() });
    assert_eq!(error.lines().last(), Some("{\"error\":\"no more\"}"));
    let garbage = bytes(Fault::GarbageLine { after: 0 });
    assert_eq!(garbage.lines().next(), Some("this is no JSON"));
    let broken = bytes(Fault::Break { after: 1 });
    assert!(!broken.contains("\"done\":true"), "{broken}");
    assert!(bytes(Fault::HugeLine(3 << 20)).starts_with(&"x".repeat(3 << 20)));
    let slow = bytes(Fault::SlowLines(Duration::from_millis(1)));
    assert_eq!(slow.lines().count(), 3);
    fake.resume();
    assert_eq!(bytes(Fault::Stall { after: 1 }).lines().count(), 3);
    assert_eq!(http(&fake, "POST", "/api/chat", &request.to_string()).0, 200);
}
