//! A fake Ollama: real HTTP on loopback, the behavior of three engine eras, scripted answers, and every fault.
//!
//! What it does is what the real one was read and seen to do; `tests/it/fake.rs` holds it to that. It remembers
//! every request, so that a test can say what must and what must not have been sent.

mod chat;
mod models;
mod vocabulary;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot};

pub(crate) use models::render;
pub(crate) use vocabulary::{count, gguf};

/// Requests that only render a prompt, as [`FakeOllama::next`] and [`FakeOllama::requests`] name them.
pub(crate) const RENDER: &str = "/api/chat (render)";
/// Requests for a vocabulary.
pub(crate) const VOCABULARY: &str = "/api/show (verbose)";

/// What goes wrong with a request; the first in the queue of its path is used up by it.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// A status with an error text.
    Error { status: u16, text: String },
    /// Status 403 without a word, as for a host name that is not local.
    ForbiddenHost,
    /// Status 401 with a page to sign in.
    Unauthorized,
    /// Status 307.
    Redirect(String),
    /// A page, with status 200.
    Page,
    /// Bytes that are nothing, with status 200.
    Garbage,
    /// A head, and then the connection breaks.
    Disconnect,
    /// Silence before anything else; then the request is answered.
    Delay(Duration),
    /// Silence until the client leaves.
    Hang,
    /// After so many lines, an error line ends the answer.
    ErrorLine { after: usize, text: String },
    /// After so many lines the answer just ends.
    EndWithoutDone { after: usize },
    /// After so many lines the connection breaks.
    Break { after: usize },
    /// After so many lines comes one that is no JSON.
    GarbageLine { after: usize },
    /// After so many lines there is silence until [`FakeOllama::resume`], or until the client leaves.
    Stall { after: usize },
    /// So many bytes without a line break.
    HugeLine(usize),
    /// Each byte comes by itself, so that characters are cut.
    SplitBytes,
    /// A pause before each line.
    SlowLines(Duration),
}

/// An answer to a chat. The default is the text "ok".
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Pieces of thinking, which come first.
    pub(crate) thinking: Vec<String>,
    /// Pieces of text.
    pub(crate) pieces: Vec<String>,
    /// Calls as `{"function": {"name": ..., "arguments": {...}}}`.
    pub(crate) tool_calls: Vec<Value>,
    /// Whether the calls come with the end marker, as some engines do, or before it.
    pub(crate) calls_at_the_end: bool,
    /// Why it ends, unless a limit is met first.
    pub(crate) reason: &'static str,
}

impl Default for Answer {
    fn default() -> Self {
        Self::text("ok")
    }
}

impl Answer {
    /// A text, in pieces of a word each.
    pub(crate) fn text(text: &str) -> Self {
        Self {
            thinking: Vec::new(),
            pieces: text.split_inclusive(' ').map(str::to_owned).collect(),
            tool_calls: Vec::new(),
            calls_at_the_end: false,
            reason: "stop",
        }
    }

    /// With thinking before it.
    #[must_use]
    pub(crate) fn thinking(mut self, text: &str) -> Self {
        self.thinking = text.split_inclusive(' ').map(str::to_owned).collect();
        self
    }

    /// With a call of a tool.
    #[must_use]
    pub(crate) fn call(mut self, name: &str, arguments: Value) -> Self {
        self.tool_calls.push(json!({ "function": { "name": name, "arguments": arguments } }));
        self
    }

    /// With its calls in the end marker.
    #[must_use]
    pub(crate) const fn calls_at_the_end(mut self) -> Self {
        self.calls_at_the_end = true;
        self
    }
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The path.
    pub(crate) path: String,
    /// The body; null where there was none.
    pub(crate) body: Value,
    /// The key that was sent.
    pub(crate) authorization: Option<String>,
}

/// The engine behind a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Era {
    LlamaCpp,
    GoRunner,
    LlamaServer,
}

/// A model in memory.
struct Loaded {
    name: &'static str,
    num_ctx: u64,
}

/// Everything that the fake knows.
struct Server {
    version: (u32, u32, u32),
    text: &'static str,
    loaded: Vec<Loaded>,
    n_loads: usize,
    vram_percent: u64,
    /// The window that all models were trained for.
    trained: u64,
    /// The largest window for which there is memory.
    largest_window: u64,
    /// The last prompt of each model.
    cached: BTreeMap<&'static str, Vec<u32>>,
    answers: VecDeque<Answer>,
    /// What requests for a summary are answered with.
    summary: Option<Answer>,
    faults: BTreeMap<String, VecDeque<Fault>>,
    seen: Vec<Seen>,
    hanging: usize,
    /// The file of all models' weights.
    weights: String,
}

impl Server {
    fn has(&self, version: (u32, u32, u32)) -> bool {
        self.version >= version
    }

    fn era(&self) -> Era {
        match self.version {
            version if version >= (0, 30, 0) => Era::LlamaServer,
            version if version >= (0, 4, 0) => Era::GoRunner,
            _ => Era::LlamaCpp,
        }
    }

    fn counts_whole_prompt(&self) -> bool {
        self.era() != Era::LlamaCpp && self.version != (0, 30, 0)
    }
}

/// What a request is answered with.
enum Reply {
    /// A status and a body.
    Whole(u16, &'static str, Vec<u8>),
    /// Lines, one after the other.
    Stream(Vec<Vec<u8>>),
}

impl Reply {
    fn whole(value: &Value) -> Self {
        Self::Whole(200, "application/json; charset=utf-8", value.to_string().into_bytes())
    }

    fn error(status: u16, text: &str) -> Self {
        let body = json!({ "error": text }).to_string().into_bytes();
        Self::Whole(status, "application/json; charset=utf-8", body)
    }
}

#[derive(Clone)]
struct Shared {
    server: Arc<Mutex<Server>>,
    resume: Arc<Notify>,
}

impl Shared {
    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap()
    }
}

/// A running fake; it ends with the value.
#[must_use]
pub(crate) struct FakeOllama {
    host: String,
    url: String,
    shared: Shared,
    _stop: oneshot::Sender<()>,
}

impl FakeOllama {
    /// A server of a version such as `0.33.0`, with the models `tiny` (tools), `thinker` (tools and thinking)
    /// and `plain` (a system message and an example of its own).
    pub(crate) fn start(version: &'static str) -> Self {
        let mut numbers = version.split('.').map(|number| number.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        let server = Server {
            version: (next(), next(), next()),
            text: version,
            loaded: Vec::new(),
            n_loads: 0,
            vram_percent: 100,
            trained: models::TRAINED,
            largest_window: models::TRAINED,
            cached: BTreeMap::new(),
            answers: VecDeque::new(),
            summary: None,
            faults: BTreeMap::new(),
            seen: Vec::new(),
            hanging: 0,
            weights: "/nowhere/blobs/sha256-0".to_owned(),
        };
        let shared =
            Shared { server: Arc::new(Mutex::new(server)), resume: Arc::new(Notify::new()) };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = oneshot::channel();
        let router = Router::new().fallback(handle).with_state(shared.clone());
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let serve = axum::serve(listener, router).into_future();
                futures_util::future::select(Box::pin(serve), stopped).await;
            });
        });
        let url = format!("http://{host}");
        Self { host, url, shared, _stop: stop }
    }

    /// Its address, as in `OLLAMA_HOST`.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Its address, as the daemon tells it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The requests to a path so far.
    pub(crate) fn requests(&self, path: &str) -> Vec<Seen> {
        let server = self.shared.server();
        server.seen.iter().filter(|seen| seen.path == path).cloned().collect()
    }

    /// Lets the next requests to a path go wrong, one fault each.
    pub(crate) fn next(&self, path: &str, faults: &[Fault]) {
        let mut server = self.shared.server();
        server.faults.entry(path.to_owned()).or_default().extend(faults.iter().cloned());
    }

    /// Scripts the answer to one chat; those that are not scripted say "ok".
    pub(crate) fn answer(&self, answer: Answer) {
        self.shared.server().answers.push_back(answer);
    }

    /// Scripts what every request for a summary is answered with from now on.
    pub(crate) fn summarize(&self, answer: Answer) {
        self.shared.server().summary = Some(answer);
    }

    /// The requests for a summary so far.
    pub(crate) fn summaries(&self) -> Vec<Seen> {
        let all = self.requests("/api/chat");
        all.into_iter().filter(|seen| asks_for_a_summary(&seen.body)).collect()
    }

    /// Loads a model, as another client would.
    pub(crate) fn load(&self, model: &'static str, num_ctx: u64) {
        self.shared.server().load(model, num_ctx);
    }

    /// How often a model was loaded, for whatever reason.
    pub(crate) fn loads(&self) -> usize {
        self.shared.server().n_loads
    }

    /// How much of each model is in the memory of the graphics processor.
    pub(crate) fn set_vram_percent(&self, percent: u64) {
        self.shared.server().vram_percent = percent;
    }

    /// Lets models be loaded with a smaller window than asked for, as when memory is short.
    pub(crate) fn set_largest_window(&self, num_ctx: u64) {
        self.shared.server().largest_window = num_ctx;
    }

    /// Lets all models be trained for another window, for which there is memory.
    pub(crate) fn set_trained(&self, num_ctx: u64) {
        let mut server = self.shared.server();
        (server.trained, server.largest_window) = (num_ctx, num_ctx);
    }

    /// Names a file as that of all models' weights.
    pub(crate) fn set_weights(&self, path: &std::path::Path) {
        self.shared.server().weights = path.to_str().unwrap().to_owned();
    }

    /// How many clients wait for nothing.
    pub(crate) fn hanging(&self) -> usize {
        self.shared.server().hanging
    }

    /// Lets an answer that stalls go on.
    pub(crate) fn resume(&self) {
        self.shared.resume.notify_one();
    }
}

/// Whether a request is one for a summary: it ends with the sections that are wanted.
fn asks_for_a_summary(request: &Value) -> bool {
    let last = request["messages"].as_array().and_then(|messages| messages.last());
    let text = last.and_then(|message| message["content"].as_str()).unwrap_or_default();
    text.contains("Use exactly these headings")
}

/// Counts a client that waits for nothing, until it leaves.
struct Hanging(Shared);

impl Hanging {
    fn new(shared: &Shared) -> Self {
        shared.server().hanging += 1;
        Self(shared.clone())
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.server().hanging -= 1;
    }
}

async fn handle(
    State(shared): State<Shared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path().to_owned();
    let request: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let purpose = purpose(&path, &request);
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let fault = {
        let mut server = shared.server();
        let authorization = header("authorization");
        let fault = server.faults.get_mut(&purpose).and_then(VecDeque::pop_front);
        server.seen.push(Seen { path: purpose, body: request.clone(), authorization });
        fault
    };
    let local = header("host").is_some_and(|host| {
        host.starts_with("127.") || host.starts_with("localhost") || host.starts_with("[::1]")
    });
    let fault = if local { fault } else { Some(Fault::ForbiddenHost) };
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
            let _waits = Hanging::new(&shared);
            std::future::pending::<()>().await;
        }
        Some(Fault::Delay(time)) => tokio::time::sleep(*time).await,
        _ => {}
    }
    let reply = route(&shared, &method, &path, body.is_empty(), &request);
    match reply {
        Reply::Stream(lines) => stream(shared, lines, fault),
        Reply::Whole(..) if matches!(fault, Some(Fault::Disconnect)) => {
            stream(shared, Vec::new(), Some(Fault::Break { after: 0 }))
        }
        whole @ Reply::Whole(..) => respond(whole),
    }
}

/// The path as tests name it: questions about counts are told apart from chats and from what a person asks.
fn purpose(path: &str, request: &Value) -> String {
    match path {
        "/api/chat" if request["_debug_render_only"] == true => RENDER.to_owned(),
        "/api/show" if request["verbose"] == true => VOCABULARY.to_owned(),
        path => path.to_owned(),
    }
}

fn route(shared: &Shared, method: &Method, path: &str, is_empty: bool, request: &Value) -> Reply {
    let mut server = shared.server();
    let posts = ["/api/chat", "/api/show"].contains(&path);
    let gets = ["/", "/api/version", "/api/tags", "/api/ps"].contains(&path);
    let fits = if posts { method == Method::POST } else { method == Method::GET };
    if !posts && !gets {
        return Reply::Whole(404, "text/plain", b"404 page not found".to_vec());
    }
    if !fits {
        return Reply::Whole(405, "text/plain", b"405 method not allowed".to_vec());
    }
    if posts && is_empty {
        return Reply::error(400, "missing request body");
    }
    let name = |name: &str| format!("{name}:latest");
    match path {
        "/" => Reply::Whole(200, "text/plain", b"Ollama is running".to_vec()),
        "/api/version" => Reply::whole(&json!({ "version": server.text })),
        "/api/tags" => {
            let models = models::MODELS.iter().map(|model| {
                let mut tag = json!({
                    "name": name(model.name), "model": name(model.name), "size": model.size(0),
                    "digest": model.digest(), "modified_at": "2026-01-27T10:00:00.5+01:00",
                    "details": model.details(server.has((0, 30, 0)), server.trained),
                });
                if server.has((0, 9, 1)) {
                    tag["capabilities"] = json!(model.capabilities);
                }
                tag
            });
            Reply::whole(&json!({ "models": models.collect::<Vec<_>>() }))
        }
        "/api/ps" => {
            let running = server.loaded.iter().map(|loaded| {
                let model = models::find(loaded.name).unwrap();
                let size = model.size(loaded.num_ctx);
                let mut running = json!({
                    "name": name(model.name), "model": name(model.name), "size": size,
                    "digest": model.digest(), "details": model.details(false, server.trained),
                    "expires_at": "2026-01-27T10:05:00.5+01:00",
                    "size_vram": size * server.vram_percent / 100,
                });
                if server.has((0, 10, 0)) {
                    running["context_length"] = json!(loaded.num_ctx);
                }
                running
            });
            Reply::whole(&json!({ "models": running.collect::<Vec<_>>() }))
        }
        "/api/show" => {
            let asked = request["model"].as_str().unwrap_or_default();
            if asked.is_empty() {
                return Reply::error(400, "model is required");
            }
            match models::find(asked) {
                None if asked.contains(' ') => Reply::error(400, "invalid model name"),
                None => Reply::error(404, &format!("model '{asked}' not found")),
                Some(model) => Reply::whole(&model.show(
                    request["verbose"] == true,
                    server.has((0, 6, 4)),
                    (&server.weights, server.trained),
                )),
            }
        }
        _ => chat::chat(&mut server, request),
    }
}

fn respond(reply: Reply) -> Response {
    let Reply::Whole(status, kind, body) = reply else {
        unreachable!("streams have a way of their own")
    };
    let mut response = Response::builder().status(status);
    if !kind.is_empty() {
        response = response.header("content-type", kind);
    }
    response.body(Body::from(body)).unwrap()
}

/// Sends lines, and lets go wrong what is to go wrong.
fn stream(shared: Shared, lines: Vec<Vec<u8>>, fault: Option<Fault>) -> Response {
    let (send, receive) = mpsc::channel(1);
    drop(tokio::spawn(async move { feed(&shared, lines, fault, &send).await }));
    let pieces = futures_util::stream::unfold(receive, |mut receive| async {
        receive.recv().await.map(|piece: Result<Vec<u8>, std::io::Error>| (piece, receive))
    });
    let response = Response::builder().status(200).header("content-type", "application/x-ndjson");
    response.body(Body::from_stream(pieces)).unwrap()
}

type Pieces = mpsc::Sender<Result<Vec<u8>, std::io::Error>>;

/// `None` when the client left, or nothing more is to come.
async fn feed(
    shared: &Shared,
    lines: Vec<Vec<u8>>,
    fault: Option<Fault>,
    send: &Pieces,
) -> Option<()> {
    let n_lines = lines.len();
    for (at, line) in lines.into_iter().enumerate() {
        go_wrong(shared, at, fault.as_ref(), send).await?;
        if matches!(fault, Some(Fault::SplitBytes)) {
            for byte in line {
                send.send(Ok(vec![byte])).await.ok()?;
            }
        } else {
            send.send(Ok(line)).await.ok()?;
        }
    }
    go_wrong(shared, n_lines, fault.as_ref(), send).await
}

/// What is to go wrong before a line.
async fn go_wrong(shared: &Shared, at: usize, fault: Option<&Fault>, send: &Pieces) -> Option<()> {
    let text = |text: &str| Ok(format!("{text}\n").into_bytes());
    match fault {
        Some(Fault::ErrorLine { after, text: said }) if *after == at => {
            let _left = send.send(text(&json!({ "error": said }).to_string())).await;
            None
        }
        Some(Fault::EndWithoutDone { after }) if *after == at => None,
        Some(Fault::Break { after }) if *after == at => {
            let _left = send.send(Err(std::io::Error::other("on purpose"))).await;
            None
        }
        Some(Fault::GarbageLine { after }) if *after == at => {
            send.send(text("this is no JSON")).await.ok()
        }
        Some(Fault::Stall { after }) if *after == at => {
            let _waits = Hanging::new(shared);
            tokio::select! {
                () = shared.resume.notified() => Some(()),
                () = send.closed() => None,
            }
        }
        Some(Fault::HugeLine(bytes)) if at == 0 => {
            let piece = vec![b'x'; 1 << 20];
            for _ in 0..bytes / piece.len() {
                send.send(Ok(piece.clone())).await.ok()?;
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
