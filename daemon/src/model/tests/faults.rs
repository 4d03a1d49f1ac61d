//! Everything that goes wrong is told apart, ends at its own limit, and is retried only where nothing had begun.

use std::os::fd::OwnedFd;

use serde_json::json;

use super::*;

const BEGUN: &str = "{\"message\":{\"content\":\"half\"},\"done\":false}\n";
const DONE: &str = "{\"message\":{\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\"}\n";

fn piece(text: &str) -> Step {
    Step::Piece(text.as_bytes().to_vec())
}

fn half() -> Vec<ChatDelta> {
    vec![ChatDelta::Text("half".to_owned())]
}

/// The reason of the error, and whether half of the answer came before it.
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
async fn only_the_end_marker_is_success() {
    let check = async |after: Vec<Step>, reason: &str| {
        let steps = [Step::Begin, piece(BEGUN)].into_iter().chain(after).collect();
        let error = failed(chat(steps).await, &half());
        assert_eq!(error.reason(), reason, "{error}");
    };
    check(vec![Step::End], "incomplete").await;
    check(vec![piece("{\"message\":{\"content\":\"cut"), Step::End], "incomplete").await;
    check(vec![Step::Close], "disconnected").await;
    check(vec![piece("{\"error\":\"an error was met\"}\n"), Step::End], "brokeOff").await;
    check(vec![piece("{\"error\":\"an error was met\"}"), Step::End], "brokeOff").await;
    // An error wins over an end marker in the same line.
    check(vec![piece("{\"done\":true,\"error\":\"no\"}\n"), Step::End], "brokeOff").await;
    let died = "{\"error\":\"llama-server process has terminated: signal: killed\"}\n";
    check(vec![piece(died), Step::End], "loadFailed").await;
}

#[tokio::test]
async fn garbage_is_told_without_being_repeated() {
    let check = async |bytes: &[u8]| {
        let steps = vec![Step::Begin, piece(BEGUN), Step::Piece(bytes.to_vec()), Step::End];
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
async fn a_line_without_an_end_is_given_up_before_it_fills_the_memory() {
    let server = Server::new("0.33.0", vec![Step::Begin, piece(BEGUN), Step::Flood(100 << 20)]);
    let error = failed(collect(&connect(&server, PATIENT)).await, &half());
    assert_eq!(error.reason(), "tooLarge", "{error}");
    server.wait_for_leaving().await;
    assert!(server.flooded() < 40 << 20, "{} bytes were taken", server.flooded());
}

#[tokio::test]
async fn each_phase_ends_at_its_own_limit() {
    let check = async |timeouts: Timeouts, steps: Vec<Step>, deltas: &[ChatDelta], reason: &str| {
        let server = Server::new("0.33.0", steps);
        let error = failed(collect(&connect(&server, timeouts)).await, deltas);
        assert_eq!(error.reason(), reason, "{error}");
        server.wait_for_leaving().await;
        assert_eq!(server.requests().len(), 1, "nothing is asked twice");
    };
    let first = Timeouts { first_token: SHORT, ..PATIENT };
    check(first, vec![Step::Hang], &[], "firstTokenTimeout").await;
    check(first, vec![Step::Begin, Step::Hang], &[], "firstTokenTimeout").await;
    check(first, vec![Step::Begin, piece("{\"mess"), Step::Hang], &[], "firstTokenTimeout").await;
    let idle = Timeouts { idle: SHORT, ..PATIENT };
    check(idle, vec![Step::Begin, piece(BEGUN), Step::Hang], &half(), "idleTimeout").await;
}

#[tokio::test]
async fn a_small_answer_has_a_limit_too() {
    let server = Server::new("0.33.0", vec![Step::Hang]);
    let ollama = connect(&server, Timeouts { answer: SHORT, probe: SHORT, ..PATIENT });
    let reason = |error: ModelError| error.reason();
    assert_eq!(ollama.list().await.map_err(reason), Err("answerTimeout"));
    assert_eq!(ollama.running().await.map_err(reason), Err("answerTimeout"));
    let server = Server::new("0.33.0", vec![Step::Begin, piece("{\"models\":["), Step::Hang]);
    let ollama = connect(&server, Timeouts { answer: SHORT, ..PATIENT });
    assert_eq!(ollama.list().await.map_err(reason), Err("answerTimeout"));
}

/// A port that takes no more connections, and what keeps it so.
fn full_port() -> (u16, Vec<std::net::TcpStream>, OwnedFd) {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let any = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0);
    bind(&listener, &any).expect("a port");
    listen(&listener, 0).expect("listens");
    let socket = std::net::TcpListener::from(listener);
    let address = socket.local_addr().expect("an address");
    let mut waiting = Vec::new();
    // The system lets a few more wait than it was told.
    while let Ok(stream) = std::net::TcpStream::connect_timeout(&address, SHORT) {
        waiting.push(stream);
    }
    (address.port(), waiting, socket.into())
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_connection_that_is_not_answered_ends_at_its_own_limit() {
    let (port, _waiting, _listener) = full_port();
    let host = Host::parse(&format!("127.0.0.1:{port}")).expect("an address");
    let timeouts = Timeouts { connect: SHORT, ..PATIENT };
    let ollama = Ollama::new(host, None, timeouts, Arc::new(Clock::system()));
    let error = ollama.list().await.expect_err("nobody answers");
    assert_eq!(error.reason(), "connectTimeout", "{error}");
}

#[tokio::test]
async fn a_refused_connection_names_the_host_and_the_reason() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let host = Host::parse(&format!("127.0.0.1:{port}")).expect("an address");
    let ollama = Ollama::new(host, None, PATIENT, Arc::new(Clock::system()));
    let error = ollama.list().await.expect_err("nobody is there").to_string();
    let expect =
        format!("cannot reach the model server at http://127.0.0.1:{port}: connection refused");
    assert_eq!(error, expect);
}

#[tokio::test]
async fn a_busy_server_is_asked_again_but_not_for_ever() {
    let busy = "{\"error\":\"server busy, please try again.  maximum pending requests exceeded\"}";
    let server = Server::scripted("0.33.0", move |_, number| match number {
        1 | 2 => answer(503, "", busy),
        _ => answer(200, "", DONE),
    });
    assert!(collect(&connect(&server, PATIENT)).await.1.is_ok());
    assert_eq!(server.requests().len(), 3);
    let server = Server::new("0.33.0", answer(503, "", busy));
    let error = failed(collect(&connect(&server, PATIENT)).await, &[]);
    assert_eq!(error.reason(), "busy", "{error}");
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn nothing_else_is_asked_again() {
    let check = async |steps: Vec<Step>, reason: &str| {
        let server = Server::new("0.33.0", steps);
        let error = failed(collect(&connect(&server, PATIENT)).await, &[]);
        assert_eq!(error.reason(), reason, "{error}");
        assert_eq!(server.requests().len(), 1, "{reason}");
    };
    check(answer(404, "", "{\"error\":\"model 'm:7b' not found\"}"), "notFound").await;
    check(answer(500, "", "{\"error\":\"oops\"}"), "failed").await;
    check(answer(400, "", "{\"error\":\"missing request body\"}"), "refused").await;
    check(answer(400, "", "{\"error\":\"m does not support tools\"}"), "unsupported").await;
    check(answer(403, "", ""), "forbiddenHost").await;
    check(answer(401, "", "{\"error\":\"unauthorized\"}"), "unauthorized").await;
    check(answer(429, "", "{\"error\":\"slow down\"}"), "busy").await;
    check(answer(307, "Location: http://127.0.0.1:9/\r\n", ""), "redirected").await;
    check(answer(404, "Content-Type: text/html\r\n", "<html></html>"), "notOllama").await;
    check(vec![Step::Close], "disconnected").await;
    check(vec![Step::Raw(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()), Step::Hang], "notOllama").await;
}

#[tokio::test]
async fn overflow_has_its_numbers() {
    let body = json!({ "error": json!({ "error": {
        "code": 400, "message": "request (309 tokens) exceeds the available context size (256 tokens)",
        "type": "exceed_context_size_error", "n_prompt_tokens": 309, "n_ctx": 256,
    } }).to_string() });
    let error = failed(chat(answer(400, "", &body.to_string())).await, &[]);
    let ModelError::Overflow { needed, window, .. } = error else { panic!("{error}") };
    assert_eq!((needed, window), (Some(309), Some(256)));
}

#[tokio::test]
async fn who_leaves_is_noticed_by_the_server() {
    let server = Server::new("0.33.0", vec![Step::Begin, piece(BEGUN), Step::Hang]);
    let ollama = connect(&server, PATIENT);
    let mut stream = ollama.stream(&request()).await.expect("begins");
    assert!(matches!(stream.next().await, Ok(ChatItem::Delta(_))));
    drop(stream);
    server.wait_for_leaving().await;
}

#[tokio::test]
async fn after_an_error_a_stream_says_nothing_new() {
    let steps = vec![Step::Begin, piece("what\n"), piece(DONE), Step::End];
    let server = Server::new("0.33.0", steps);
    let mut stream = connect(&server, PATIENT).stream(&request()).await.expect("begins");
    assert_eq!(stream.next().await.map_err(|error| error.reason()), Err("garbage"));
    assert!(stream.next().await.is_err());
}

#[tokio::test]
async fn who_is_no_ollama_is_told_by_the_version() {
    let check = async |steps: Vec<Step>, found: &str| {
        let server = Server::new("", steps);
        let error = connect(&server, PATIENT).version().await.expect_err("is none");
        let ModelError::NotOllama { found: said, .. } = &error else { panic!("{error}") };
        assert_eq!(said, found);
    };
    check(answer(200, "", "<html></html>"), "/api/version answers with a page").await;
    check(answer(200, "", "{\"ok\":true}"), "/api/version answers with other JSON").await;
    check(answer(200, "", "hello"), "/api/version answers with something that is no JSON").await;
    check(answer(200, "", ""), "/api/version answers with nothing").await;
    check(answer(404, "", "404 page not found"), "it answers with status 404").await;
}

#[tokio::test]
async fn an_endless_small_answer_is_given_up() {
    let server = Server::new("", vec![Step::Begin, Step::Flood(100 << 20)]);
    let error = connect(&server, PATIENT).list().await.expect_err("is too large");
    assert_eq!(error.reason(), "tooLarge", "{error}");
}
