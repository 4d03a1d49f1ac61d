//! A fake Ollama server: the behavior of three engine generations, answers by a script or a policy, and every fault that
//! the daemon must survive.
//!
//! The behavior was copied from the sources and from observed answers of real servers; `tests/it/fake_ollama.rs`
//! checks it. The fake remembers every request, so that a test can check what was sent and what was not.

mod chat;
mod fault;
mod models;
mod state;
mod vocabulary;
pub(crate) mod wire;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

use super::answer::{Answer, Policy};
use super::http::{FakeServer, HttpRequest, Step, response};
use state::State;

pub(crate) use fault::Fault;
pub(crate) use models::{SCRIPTED, render};
pub(crate) use state::Request;
pub(crate) use vocabulary::{count, gguf, tokenizer_json};

/// The path name of requests that only render a prompt.
pub(crate) const RENDER: &str = "/api/chat (render)";
/// The path name of requests for a vocabulary.
pub(crate) const VOCABULARY: &str = "/api/show (verbose)";

/// A running fake server; stopped when dropped.
#[must_use]
pub(crate) struct FakeOllama {
    server: FakeServer,
    state: Arc<Mutex<State>>,
}

impl FakeOllama {
    /// Starts a server of the newest known version.
    ///
    /// It has the models `tiny` (calls tools), `thinker` (calls tools and thinks), `seer` (reads images) and `plain` (has
    /// a system message and an example conversation of its own).
    pub(crate) fn new() -> Self {
        Self::with_version("0.33.0")
    }

    /// Starts a server of a version.
    pub(crate) fn with_version(version: &'static str) -> Self {
        Self::start(State::new(version))
    }

    /// Starts a server of the newest known version with the model [`SCRIPTED`], which answers by a policy. It counts no
    /// prompts, renders none and remembers no requests.
    pub(crate) fn scripted(trained_context: u64, policy: Arc<Policy>) -> Self {
        let fake = Self::new();
        fake.set_trained_context(trained_context);
        fake.state.lock().use_policy(policy);
        fake
    }

    /// Starts a server that is not Ollama: it answers some paths with JSON, and all others with the 404 of llama-server.
    pub(crate) fn other(paths: &[(&'static str, Value)]) -> Self {
        let fake = Self::new();
        fake.state.lock().other = Some(paths.to_vec());
        fake
    }

    fn start(state: State) -> Self {
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        Self { server: FakeServer::start(move |request| reply(&shared, request)), state }
    }

    /// Returns the reply to a request, for a server that answers some requests itself.
    pub(crate) fn reply(&self, request: &HttpRequest) -> Vec<Step> {
        reply(&self.state, request)
    }

    /// Returns the address as `OLLAMA_HOST` takes it.
    pub(crate) fn host(&self) -> &str {
        self.server.host()
    }

    /// Returns the address as the daemon reports it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.host())
    }

    /// Returns a configuration that names this server and a default model.
    ///
    /// **Shape**: YAML that ends inside the section `ollama`; a test may append keys of it and other sections.
    pub(crate) fn config(&self, model: &str) -> String {
        format!("models:\n  default: {model}\nollama:\n  host: {}\n", self.host())
    }

    /// Returns the requests to a path so far.
    pub(crate) fn requests(&self, path: &str) -> Vec<Request> {
        let state = self.state.lock();
        state.requests.iter().filter(|request| request.path == path).cloned().collect()
    }

    /// Returns the chat requests for a summary so far.
    pub(crate) fn summary_requests(&self) -> Vec<Request> {
        self.requests("/api/chat").into_iter().filter(Request::wants_summary).collect()
    }

    /// Injects faults into the next requests to a path, one each.
    pub(crate) fn inject(&self, path: &str, faults: &[Fault]) {
        let mut state = self.state.lock();
        state.faults.entry(path.to_owned()).or_default().extend(faults.iter().cloned());
    }

    /// Scripts the answer to one more chat. A chat without a scripted answer gets "ok".
    pub(crate) fn script(&self, answer: Answer) {
        self.state.lock().answers.push_back(answer);
    }

    /// Scripts the answer to every request for a summary from now on.
    pub(crate) fn script_summaries(&self, answer: Answer) {
        self.state.lock().summary = Some(answer);
    }

    /// Locks the state, which a test may change as another client or person would. No request is answered meanwhile.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the number of times that any model was loaded.
    pub(crate) fn n_loads(&self) -> usize {
        self.state.lock().n_loads
    }

    /// Sets the window that every model was trained for, and the largest window with it.
    pub(crate) fn set_trained_context(&self, num_ctx: u64) {
        let mut state = self.state.lock();
        (state.trained_context, state.largest_window) = (num_ctx, num_ctx);
    }

    /// Installs the models `caller` and `mover`, whose templates write tools in other places.
    pub(crate) fn install_more_models(&self) {
        self.state.lock().installed.extend(models::MORE_MODELS);
    }

    /// Sets the path that every model reports for its weights file.
    pub(crate) fn set_weights(&self, path: &std::path::Path) {
        self.state.lock().weights = path.display().to_string();
    }

    /// Returns the number of requests that a `Hang` or `Stall` holds open.
    pub(crate) fn n_held(&self) -> usize {
        self.server.counts().held
    }

    /// Ends one `Stall`, now or as soon as it begins.
    pub(crate) fn resume(&self) {
        self.server.resume();
    }
}

/// Returns the reply to a request, with the fault that is due.
fn reply(state: &Mutex<State>, request: &HttpRequest) -> Vec<Step> {
    let host = request.header("host").unwrap_or_default();
    let is_local = ["127.", "localhost", "[::1]"].iter().any(|name| host.starts_with(name));
    let fault = state.lock().remember(request);
    let fault = if is_local { fault } else { Some(Fault::ForbiddenHost) };
    match fault {
        Some(fault) => fault.apply(|| route(state, request)),
        None => route(state, request),
    }
}

fn route(state: &Mutex<State>, request: &HttpRequest) -> Vec<Step> {
    let (method, path) = request.line.split_once(' ').unwrap_or_default();
    if let Some(paths) = &state.lock().other {
        let found = paths.iter().find(|(known, _)| *known == path);
        let missing = json!({ "error": {
            "code": 404, "message": "File Not Found", "type": "not_found_error" } });
        let missing = wire::json_with_status(404, &missing);
        return found.map_or(missing, |(_, json)| wire::json(json));
    }
    let text =
        |status, text: &str| response(status, "Content-Type: text/plain\r\n", text.as_bytes());
    let is_post = ["/api/chat", "/api/show"].contains(&path);
    let is_get = ["/", "/api/version", "/api/tags", "/api/ps"].contains(&path);
    if !is_post && !is_get {
        return text(404, "404 page not found");
    }
    if method != if is_post { "POST" } else { "GET" } {
        return text(405, "405 method not allowed");
    }
    if is_post && request.header("content-length").is_none_or(|length| length == "0") {
        return wire::error(400, "missing request body");
    }
    match path {
        "/" => text(200, "Ollama is running"),
        "/api/version" => wire::json(&json!({ "version": state.lock().version })),
        "/api/tags" => models::list(&state.lock()),
        "/api/ps" => models::running(&state.lock()),
        "/api/show" => models::show(&state.lock(), &request.body),
        _ => chat::chat(state, request),
    }
}
