//! Every fault has its own error and time limit, and is retried only if the server had not begun.

use std::os::fd::OwnedFd;

use serde_json::json;

use super::*;
use crate::config::ApiKey;

const BEGUN: &str = "{\"message\":{\"content\":\"half\"},\"done\":false}\n";
const DONE: &str = "{\"message\":{\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\"}\n";

fn chunk(text: &str) -> Step {
    Step::Chunk(text.as_bytes().to_vec())
}

fn half() -> Vec<ChatDelta> {
    vec![ChatDelta::Text("half".to_owned())]
}

/// Checks the deltas before the error and its target, and returns the error.
#[track_caller]
fn failed(
    outcome: (Vec<ChatDelta>, Result<ChatEnd, ModelError>),
    deltas: &[ChatDelta],
) -> ModelError {
    assert_eq!(outcome.0, deltas);
    let error = outcome.1.expect_err("fails");
    let to = error.target().expect("a target");
    assert!(to.host.starts_with("http://127.0.0.1:"), "{error}");
    assert_eq!(to.model.as_deref(), Some("m:7b"), "{error}");
    error
}

#[tokio::test]
async fn answer_without_end_marker_is_an_error() {
    let check = async |after: Vec<Step>, reason: &str| {
        let steps = [BEGIN, chunk(BEGUN)].into_iter().chain(after).collect();
        let error = failed(chat(steps).await, &half());
        assert_eq!(error.reason(), reason, "{error}");
    };
    check(vec![Step::End], "incomplete").await;
    check(vec![chunk("{\"message\":{\"content\":\"cut"), Step::End], "incomplete").await;
    check(vec![Step::Close], "disconnected").await;
    check(vec![chunk("{\"error\":\"an error was met\"}\n"), Step::End], "brokeOff").await;
    check(vec![chunk("{\"error\":\"an error was met\"}"), Step::End], "brokeOff").await;
    // An error precedes an end marker in the same line.
    check(vec![chunk("{\"done\":true,\"error\":\"no\"}\n"), Step::End], "brokeOff").await;
    let died = "{\"error\":\"llama-server process has terminated: signal: killed\"}\n";
    check(vec![chunk(died), Step::End], "loadFailed").await;
}

#[tokio::test]
async fn error_in_an_answer_has_no_key() {
    let line = "{\"error\":\"no such key: sesame\"}\n";
    let connect = |server: &ScriptedServer| {
        let host = ModelHost::parse(&server.host()).expect("an address");
        let key = Some(ApiKey("sesame".to_owned()));
        connect_to(HttpAddress { key, ..HttpAddress::new(host) }, PATIENT)
    };
    for end in ["\n", ""] {
        let steps = vec![BEGIN, chunk(BEGUN), chunk(line.trim_end()), chunk(end), Step::End];
        let server = ScriptedServer::new("0.33.0", steps);
        let error = failed(collect(&connect(&server)).await, &half()).to_string();
        assert!(error.ends_with("aborted the answer: no such key: [key]"), "{error}");
    }
    let server = ScriptedServer::new("0.33.0", response(200, "", line));
    let keep_alive = Duration::ZERO;
    let request = WarmRequest { model: "m".to_owned(), num_ctx: 4096, keep_alive };
    let error = connect(&server).warm(&request).await.expect_err("fails").to_string();
    assert!(error.contains("no such key: [key]"), "{error}");
}

#[tokio::test]
async fn invalid_line_is_an_error_that_does_not_repeat_it() {
    let check = async |bytes: &[u8]| {
        let steps = vec![BEGIN, chunk(BEGUN), Step::Chunk(bytes.to_vec()), Step::End];
        let error = failed(chat(steps).await, &half());
        assert_eq!(error.reason(), "garbage", "{error}");
        assert!(!error.to_string().contains("private"), "{error}");
    };
    check(b"private words\n").await;
    check(b"{\"message\":{\"content\":\"private \xff\xfe\"}}\n").await;
    check(b"[\"private\"]\n").await;
    check(b"{\"message\":{\"content\":{\"private\":1}}}\n").await;
    check(b"\0\x01\x02\n").await;
}

#[tokio::test]
async fn endless_line_is_refused_at_the_limit() {
    let server = ScriptedServer::new("0.33.0", vec![BEGIN, chunk(BEGUN), Step::Flood(100 << 20)]);
    let error = failed(collect(&connect(&server, PATIENT)).await, &half());
    assert_eq!(error.reason(), "tooLarge", "{error}");
    server.wait_for_disconnect().await;
    assert!(server.sent_bytes() < 40 << 20, "{} bytes were received", server.sent_bytes());
}

#[tokio::test]
async fn endless_answer_is_refused_at_the_limit() {
    let piece = "x".repeat(1 << 20);
    let line = Step::line(&json!({ "message": { "role": "assistant", "content": piece } }));
    let mut steps = vec![BEGIN];
    steps.extend(std::iter::repeat_n(line, 12));
    steps.push(Step::Hang);
    let server = ScriptedServer::new("0.33.0", steps);
    let (deltas, end) = collect(&connect(&server, PATIENT)).await;
    let error = end.expect_err("the answer has no end");
    assert_eq!(error.reason(), "tooLarge", "{error}");
    assert!(deltas.len() <= 8, "{} MiB were kept", deltas.len());
    server.wait_for_disconnect().await;
}

#[tokio::test]
async fn each_phase_has_its_own_limit() {
    let check = async |timeouts: Timeouts, steps: Vec<Step>, deltas: &[ChatDelta], reason: &str| {
        let server = ScriptedServer::new("0.33.0", steps);
        let error = failed(collect(&connect(&server, timeouts)).await, deltas);
        assert_eq!(error.reason(), reason, "{error}");
        server.wait_for_disconnect().await;
        assert_eq!(server.requests().len(), 1, "nothing is retried");
    };
    let first = Timeouts { first_token: SHORT, ..PATIENT };
    check(first, vec![Step::Hang], &[], "firstTokenTimeout").await;
    check(first, vec![BEGIN, Step::Hang], &[], "firstTokenTimeout").await;
    check(first, vec![BEGIN, chunk("{\"mess"), Step::Hang], &[], "firstTokenTimeout").await;
    let idle = Timeouts { idle: SHORT, ..PATIENT };
    check(idle, vec![BEGIN, chunk(BEGUN), Step::Hang], &half(), "idleTimeout").await;
}

#[tokio::test]
async fn response_that_is_not_streamed_has_a_limit() {
    let server = ScriptedServer::new("0.33.0", vec![Step::Hang]);
    let ollama = connect(&server, Timeouts { response: SHORT, probe: SHORT, ..PATIENT });
    let reason = |error: ModelError| error.reason();
    assert_eq!(ollama.list(1).await.map_err(reason), Err("answerTimeout"));
    assert_eq!(ollama.running().await.map_err(reason), Err("answerTimeout"));
    let server = ScriptedServer::new("0.33.0", vec![BEGIN, chunk("{\"models\":["), Step::Hang]);
    let ollama = connect(&server, Timeouts { response: SHORT, ..PATIENT });
    assert_eq!(ollama.list(1).await.map_err(reason), Err("answerTimeout"));
}

/// Returns a port that accepts no more connections, with the sockets that keep it full.
fn full_port() -> (u16, Vec<std::net::TcpStream>, OwnedFd) {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let any = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
    bind(&listener, &any).expect("a port");
    listen(&listener, 0).expect("listens");
    let socket = std::net::TcpListener::from(listener);
    let address = socket.local_addr().expect("an address");
    let mut waiting = Vec::new();
    // The system accepts a few more connections than the backlog.
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, SHORT) {
        waiting.push(stream);
    }
    (address.port(), waiting, socket.into())
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn unanswered_connection_times_out() {
    let (port, _waiting, _listener) = full_port();
    let host = ModelHost::parse(&format!("127.0.0.1:{port}")).expect("an address");
    let timeouts = Timeouts { connect: SHORT, ..PATIENT };
    let ollama = connect_to(HttpAddress::new(host), timeouts);
    let error = ollama.list(1).await.expect_err("times out");
    assert_eq!(error.reason(), "connectTimeout", "{error}");
}

#[tokio::test]
async fn refused_connection_names_the_host_and_the_reason() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let host = ModelHost::parse(&format!("127.0.0.1:{port}")).expect("an address");
    let ollama = connect_to(HttpAddress::new(host), PATIENT);
    let error = ollama.list(1).await.expect_err("is refused").to_string();
    let expect =
        format!("cannot reach the model server at http://127.0.0.1:{port}: connection refused");
    assert_eq!(error, expect);
}

#[tokio::test]
async fn busy_server_is_retried_twice() {
    let busy = "{\"error\":\"server busy, please try again.  maximum pending requests exceeded\"}";
    let server = ScriptedServer::scripted("0.33.0", move |_, number| match number {
        1 | 2 => response(503, "", busy),
        _ => response(200, "", DONE),
    });
    assert!(collect(&connect(&server, PATIENT)).await.1.is_ok());
    assert_eq!(server.requests().len(), 3);
    let server = ScriptedServer::new("0.33.0", response(503, "", busy));
    let error = failed(collect(&connect(&server, PATIENT)).await, &[]);
    assert_eq!(error.reason(), "busy", "{error}");
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn other_errors_are_not_retried() {
    let check = async |steps: Vec<Step>, reason: &str| {
        let server = ScriptedServer::new("0.33.0", steps);
        let error = failed(collect(&connect(&server, PATIENT)).await, &[]);
        assert_eq!(error.reason(), reason, "{error}");
        assert_eq!(server.requests().len(), 1, "{reason}");
    };
    check(response(404, "", "{\"error\":\"model 'm:7b' not found\"}"), "notFound").await;
    check(response(500, "", "{\"error\":\"oops\"}"), "failed").await;
    check(response(400, "", "{\"error\":\"missing request body\"}"), "refused").await;
    check(response(400, "", "{\"error\":\"m does not support tools\"}"), "unsupported").await;
    check(response(403, "", ""), "forbiddenHost").await;
    check(response(401, "", "{\"error\":\"unauthorized\"}"), "unauthorized").await;
    check(response(429, "", "{\"error\":\"slow down\"}"), "busy").await;
    check(response(307, "Location: http://127.0.0.1:9/\r\n", ""), "redirected").await;
    check(response(404, "Content-Type: text/html\r\n", "<html></html>"), "otherServer").await;
    check(vec![Step::Close], "disconnected").await;
    check(vec![Step::Raw(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()), Step::Hang], "otherServer").await;
}

#[tokio::test]
async fn overflow_contains_the_numbers_of_the_server() {
    let body = json!({ "error": json!({ "error": {
        "code": 400, "message": "request (309 tokens) exceeds the available context size (256 tokens)",
        "type": "exceed_context_size_error", "n_prompt_tokens": 309, "n_ctx": 256,
    } }).to_string() });
    let error = failed(chat(response(400, "", &body.to_string())).await, &[]);
    let ModelError::Overflow { needed, window, .. } = error else { panic!("{error}") };
    assert_eq!((needed, window), (Some(309), Some(256)));
}

#[tokio::test]
async fn dropped_stream_closes_the_connection() {
    let server = ScriptedServer::new("0.33.0", vec![BEGIN, chunk(BEGUN), Step::Hang]);
    let ollama = connect(&server, PATIENT);
    let mut stream = ollama.stream(&request()).await.expect("begins");
    assert!(matches!(stream.next().await, Ok(ChatItem::Delta(_))));
    drop(stream);
    server.wait_for_disconnect().await;
}

#[tokio::test]
async fn end_marker_survives_a_dropped_call() {
    let server = ScriptedServer::new("0.33.0", vec![BEGIN, chunk(DONE), Step::Hang]);
    let mut stream = connect(&server, PATIENT).stream(&request()).await.expect("begins");
    // The body does not end, so the first call is dropped while it waits for that.
    assert!(tokio::time::timeout(SHORT, stream.next()).await.is_err());
    assert!(matches!(stream.next().await, Ok(ChatItem::End(_))));
}

#[tokio::test]
async fn stream_ends_after_an_error() {
    let steps = vec![BEGIN, chunk("what\n"), chunk(DONE), Step::End];
    let server = ScriptedServer::new("0.33.0", steps);
    let mut stream = connect(&server, PATIENT).stream(&request()).await.expect("begins");
    assert_eq!(stream.next().await.map_err(|error| error.reason()), Err("garbage"));
    assert!(stream.next().await.is_err());
}

#[tokio::test]
async fn other_server_is_recognized_by_its_version_response() {
    let check = async |steps: Vec<Step>, found: &str| {
        let server = ScriptedServer::new("", steps);
        let error = connect(&server, PATIENT).version().await.expect_err("is another server");
        let ModelError::OtherServer { found: reported, .. } = &error else { panic!("{error}") };
        assert_eq!(reported, found);
    };
    check(response(200, "", "<html></html>"), "/api/version returns a page").await;
    check(response(200, "", "{\"ok\":true}"), "/api/version returns other JSON").await;
    check(response(200, "", "hello"), "/api/version returns something other than JSON").await;
    check(response(200, "", ""), "/api/version returns nothing").await;
    check(response(404, "", "404 page not found"), "it returns status 404").await;
}

#[tokio::test]
async fn other_server_is_named_instead_of_a_missing_model() {
    let llama_404 = r#"{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}"#;
    let lm_studio = r#"{"error":"Unexpected endpoint or method. (GET /api/version)"}"#;
    let models =
        |owner: &str| format!(r#"{{"object":"list","data":[{{"id":"m","owned_by":"{owner}"}}]}}"#);
    let check = async |paths: Vec<(&'static str, String)>, other: Vec<Step>, found: &str| {
        let server = ScriptedServer::scripted("", move |request, _| {
            let path = paths.iter().find(|(path, _)| request.line == format!("GET {path}"));
            path.map_or_else(|| other.clone(), |(_, body)| response(200, "", body))
        });
        let ollama = connect(&server, PATIENT);
        let errors = [
            ollama.show("m").await.map(drop),
            ollama.list(1).await.map(drop),
            ollama.running().await.map(drop),
            ollama.version().await.map(drop),
            ollama.stream(&request()).await.map(drop),
        ];
        for error in errors.map(|result| result.expect_err("is another server")) {
            let ModelError::OtherServer { to, found: reported } = &error else { panic!("{error}") };
            assert_eq!((reported.as_str(), &to.model), (found, &None));
        }
    };
    let named = |name: &str| format!("{name} answers there");
    let missing = response(404, "", llama_404);
    let props = r#"{"default_generation_settings":{"n_ctx":4096},"total_slots":1}"#.to_owned();
    check(vec![("/props", props)], missing.clone(), &named("llama-server")).await;
    // A llama-server that wants a key says nothing but its name.
    let locked = response(401, "Server: llama.cpp\r\n", r#"{"error":{"code":401,"message":"no"}}"#);
    check(vec![], locked, &named("llama-server")).await;
    check(vec![], response(200, "", lm_studio), &named("LM Studio")).await;
    let detail = response(404, "", r#"{"detail":"Not Found"}"#);
    check(vec![("/v1/models", models("vllm"))], detail, &named("vLLM")).await;
    let open_ai = named("another server with the API of OpenAI");
    check(vec![("/v1/models", models("me"))], missing, &open_ai).await;
    let plain = response(404, "", r#"{"error":"no such page"}"#);
    check(vec![], plain, "it returns status 404").await;
}

#[tokio::test]
async fn ollama_without_a_version_keeps_its_own_errors() {
    let server = ScriptedServer::scripted("", |request, _| match request.line.as_str() {
        "GET /" => response(200, "", "Ollama is running"),
        _ => response(404, "", r#"{"error":"model 'm' not found"}"#),
    });
    let error = connect(&server, PATIENT).show("m").await.expect_err("has no models");
    assert_eq!(error.reason(), "notFound");
}

#[tokio::test]
async fn endless_response_is_refused_at_the_limit() {
    let server = ScriptedServer::new("", vec![BEGIN, Step::Flood(100 << 20)]);
    let error = connect(&server, PATIENT).list(1).await.expect_err("is too large");
    assert_eq!(error.reason(), "tooLarge", "{error}");
}
