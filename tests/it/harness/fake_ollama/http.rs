//! HTTP of the fake: routes requests, sends replies, and injects faults on the way.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State as AxumState;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use super::state::{Fault, Reply, Request, State};
use super::{RENDER, VOCABULARY, chat, models};

/// The state that the test and the request handlers share.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) resume: Arc<Notify>,
}

impl Server {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// Returns the router of a server.
pub(super) fn router(server: Server) -> Router {
    Router::new().fallback(handle).with_state(server)
}

/// Counts a request as held open until it is dropped.
struct Held(Server);

impl Held {
    fn new(server: &Server) -> Self {
        server.state().n_held += 1;
        Self(server.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.state().n_held -= 1;
    }
}

async fn handle(
    AxumState(server): AxumState<Server>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path().to_owned();
    let request: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let name = path_name(&path, &request);
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let fault = {
        let mut state = server.state();
        let fault = state.faults.get_mut(&name).and_then(VecDeque::pop_front);
        let authorization = header("authorization");
        state.requests.push(Request { path: name, body: request.clone(), authorization });
        fault
    };
    let is_local = header("host").is_some_and(|host| {
        host.starts_with("127.") || host.starts_with("localhost") || host.starts_with("[::1]")
    });
    let fault = if is_local { fault } else { Some(Fault::ForbiddenHost) };
    match &fault {
        Some(Fault::Error { status, text }) => return respond(Reply::error(*status, text)),
        Some(Fault::ForbiddenHost) => return respond(Reply::Whole(403, "", Vec::new())),
        Some(Fault::Unauthorized) => {
            let body = json!({ "error": "unauthorized", "signin_url": "https://example.com/" });
            return respond(Reply::Whole(401, "application/json", body.to_string().into_bytes()));
        }
        Some(Fault::Redirect(to)) => {
            let response = Response::builder().status(307).header("location", to.as_str());
            return response.body(Body::empty()).unwrap();
        }
        Some(Fault::Page) => {
            let page = b"<!doctype html><title>Welcome</title>".to_vec();
            return respond(Reply::Whole(200, "text/html", page));
        }
        Some(Fault::Garbage) => {
            return respond(Reply::Whole(200, "application/json", vec![0xff, 0x00, b'{', 0xfe]));
        }
        Some(Fault::Hang) => {
            let _held = Held::new(&server);
            std::future::pending::<()>().await;
        }
        Some(Fault::Delay(time)) => tokio::time::sleep(*time).await,
        _ => {}
    }
    match route(&server, &method, &path, body.is_empty(), &request) {
        Reply::Stream(lines) => stream(server, lines, fault),
        Reply::Whole(..) if matches!(fault, Some(Fault::Disconnect)) => {
            stream(server, Vec::new(), Some(Fault::Break { after: 0 }))
        }
        whole @ Reply::Whole(..) => respond(whole),
    }
}

/// Returns the name under which tests find a request: renders and vocabularies have names of their own.
fn path_name(path: &str, request: &Value) -> String {
    match path {
        "/api/chat" if request["_debug_render_only"] == true => RENDER.to_owned(),
        "/api/show" if request["verbose"] == true => VOCABULARY.to_owned(),
        path => path.to_owned(),
    }
}

fn route(server: &Server, method: &Method, path: &str, is_empty: bool, request: &Value) -> Reply {
    let mut state = server.state();
    if let Some(paths) = &state.other {
        let found = paths.iter().find(|(known, _)| *known == path);
        let missing = json!({ "error": {
            "code": 404, "message": "File Not Found", "type": "not_found_error" } });
        let missing = Reply::Whole(404, "application/json", missing.to_string().into_bytes());
        return found.map_or(missing, |(_, json)| Reply::json(json));
    }
    let is_post = ["/api/chat", "/api/show"].contains(&path);
    let is_get = ["/", "/api/version", "/api/tags", "/api/ps"].contains(&path);
    if !is_post && !is_get {
        return Reply::Whole(404, "text/plain", b"404 page not found".to_vec());
    }
    if *method != if is_post { Method::POST } else { Method::GET } {
        return Reply::Whole(405, "text/plain", b"405 method not allowed".to_vec());
    }
    if is_post && is_empty {
        return Reply::error(400, "missing request body");
    }
    match path {
        "/" => Reply::Whole(200, "text/plain", b"Ollama is running".to_vec()),
        "/api/version" => Reply::json(&json!({ "version": state.version })),
        "/api/tags" => models::list(&state),
        "/api/ps" => models::running(&state),
        "/api/show" => models::show(&state, request),
        _ => chat::chat(&mut state, request),
    }
}

fn respond(reply: Reply) -> Response {
    let Reply::Whole(status, content_type, body) = reply else {
        unreachable!("a streamed reply goes through `stream`")
    };
    let mut response = Response::builder().status(status);
    if !content_type.is_empty() {
        response = response.header("content-type", content_type);
    }
    response.body(Body::from(body)).unwrap()
}

/// Streams lines, with the fault among them.
fn stream(server: Server, lines: Vec<Vec<u8>>, fault: Option<Fault>) -> Response {
    let (send, receive) = mpsc::channel(1);
    drop(tokio::spawn(async move { send_lines(&server, lines, fault, &send).await }));
    let chunks = futures_util::stream::unfold(receive, |mut receive| async {
        receive.recv().await.map(|chunk: Result<Vec<u8>, std::io::Error>| (chunk, receive))
    });
    let response = Response::builder().status(200).header("content-type", "application/x-ndjson");
    response.body(Body::from_stream(chunks)).unwrap()
}

type Chunks = mpsc::Sender<Result<Vec<u8>, std::io::Error>>;

/// Sends lines; returns `None` if the client disconnected or a fault ended the stream.
async fn send_lines(
    server: &Server,
    lines: Vec<Vec<u8>>,
    fault: Option<Fault>,
    send: &Chunks,
) -> Option<()> {
    let n_lines = lines.len();
    for (at, line) in lines.into_iter().enumerate() {
        inject(server, at, fault.as_ref(), send).await?;
        if matches!(fault, Some(Fault::SplitBytes)) {
            for byte in line {
                send.send(Ok(vec![byte])).await.ok()?;
            }
        } else {
            send.send(Ok(line)).await.ok()?;
        }
    }
    inject(server, n_lines, fault.as_ref(), send).await
}

/// Carries out a fault that is due before line `at`; returns `None` if nothing may follow.
async fn inject(server: &Server, at: usize, fault: Option<&Fault>, send: &Chunks) -> Option<()> {
    let line = |text: &str| Ok(format!("{text}\n").into_bytes());
    match fault {
        Some(Fault::ErrorLine { after, text }) if *after == at => {
            let _sent = send.send(line(&json!({ "error": text }).to_string())).await;
            None
        }
        Some(Fault::EndWithoutDone { after }) if *after == at => None,
        Some(Fault::Break { after }) if *after == at => {
            let _sent = send.send(Err(std::io::Error::other("injected"))).await;
            None
        }
        Some(Fault::GarbageLine { after }) if *after == at => {
            send.send(line("this is no JSON")).await.ok()
        }
        Some(Fault::Stall { after }) if *after == at => {
            let _held = Held::new(server);
            tokio::select! {
                () = server.resume.notified() => Some(()),
                () = send.closed() => None,
            }
        }
        Some(Fault::HugeLine(bytes)) if at == 0 => {
            let chunk = vec![b'x'; 1 << 20];
            for _ in 0..bytes / chunk.len() {
                send.send(Ok(chunk.clone())).await.ok()?;
            }
            Some(())
        }
        Some(Fault::SlowLines(pause)) => {
            tokio::time::sleep(*pause).await;
            Some(())
        }
        _ => Some(()),
    }
}
