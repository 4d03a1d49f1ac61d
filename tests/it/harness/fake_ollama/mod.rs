//! A fake Ollama server: real HTTP on loopback, the behavior of three engine generations, scripted answers, and
//! every fault that the daemon must survive.
//!
//! The behavior was copied from the sources and from observed answers of real servers; `tests/it/fake_ollama.rs`
//! checks it. The fake remembers every request, so that a test can check what was sent and what was not.

mod chat;
mod http;
mod models;
mod state;
mod vocabulary;

use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, oneshot};

use http::Server;
use state::State;

pub(crate) use models::render;
pub(crate) use state::{Answer, Fault, Request};
pub(crate) use vocabulary::{count, gguf};

/// The path name of requests that only render a prompt.
pub(crate) const RENDER: &str = "/api/chat (render)";
/// The path name of requests for a vocabulary.
pub(crate) const VOCABULARY: &str = "/api/show (verbose)";

/// A running fake server; stopped when dropped.
#[must_use]
pub(crate) struct FakeOllama {
    host: String,
    server: Server,
    _stop: oneshot::Sender<()>,
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
        let state = Arc::new(Mutex::new(State::new(version)));
        let server = Server { state, resume: Arc::new(Notify::new()) };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = oneshot::channel();
        let router = http::router(server.clone());
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let serve = axum::serve(listener, router).into_future();
                futures_util::future::select(Box::pin(serve), stopped).await;
            });
        });
        Self { host, server, _stop: stop }
    }

    /// Starts a server that is not Ollama: it answers some paths with JSON, and all others with the 404 of llama-server.
    pub(crate) fn other(paths: &[(&'static str, serde_json::Value)]) -> Self {
        let fake = Self::new();
        fake.server.state().other = Some(paths.to_vec());
        fake
    }

    /// Returns the address as `OLLAMA_HOST` takes it.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// Returns the address as the daemon reports it.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.host)
    }

    /// Returns a configuration that names this server and a default model.
    ///
    /// **Shape**: YAML that ends inside the section `ollama`; a test may append keys of it and other sections.
    pub(crate) fn config(&self, model: &str) -> String {
        format!("models:\n  default: {model}\nollama:\n  host: {}\n", self.host)
    }

    /// Returns the requests to a path so far.
    pub(crate) fn requests(&self, path: &str) -> Vec<Request> {
        let state = self.server.state();
        state.requests.iter().filter(|request| request.path == path).cloned().collect()
    }

    /// Returns the chat requests for a summary so far.
    pub(crate) fn summary_requests(&self) -> Vec<Request> {
        self.requests("/api/chat").into_iter().filter(Request::wants_summary).collect()
    }

    /// Injects faults into the next requests to a path, one each.
    pub(crate) fn inject(&self, path: &str, faults: &[Fault]) {
        let mut state = self.server.state();
        state.faults.entry(path.to_owned()).or_default().extend(faults.iter().cloned());
    }

    /// Scripts the answer to one more chat. A chat without a scripted answer gets "ok".
    pub(crate) fn script(&self, answer: Answer) {
        self.server.state().answers.push_back(answer);
    }

    /// Scripts the answer to every request for a summary from now on.
    pub(crate) fn script_summaries(&self, answer: Answer) {
        self.server.state().summary = Some(answer);
    }

    /// Loads a model, as another client would.
    pub(crate) fn load(&self, model: &'static str, num_ctx: u64) {
        self.server.state().load(model, num_ctx);
    }

    /// Unloads all models, as another client would.
    pub(crate) fn unload_all(&self) {
        self.server.state().loaded.clear();
    }

    /// Returns the number of times that any model was loaded.
    pub(crate) fn n_loads(&self) -> usize {
        self.server.state().n_loads
    }

    /// Sets the share of every model that is in video memory.
    pub(crate) fn set_vram_percent(&self, percent: u64) {
        self.server.state().vram_percent = percent;
    }

    /// Limits the window of loaded models, as on a machine with little memory.
    pub(crate) fn set_largest_window(&self, num_ctx: u64) {
        self.server.state().largest_window = num_ctx;
    }

    /// Sets the window that every model was trained for, and the largest window with it.
    pub(crate) fn set_trained_context(&self, num_ctx: u64) {
        let mut state = self.server.state();
        (state.trained_context, state.largest_window) = (num_ctx, num_ctx);
    }

    /// Installs the models `caller` and `mover`, whose templates write tools in other places.
    pub(crate) fn install_more_models(&self) {
        self.server.state().has_more_models = true;
    }

    /// Sets the window that one model was trained for.
    pub(crate) fn set_small_model(&self, name: &'static str, num_ctx: u64) {
        self.server.state().small_model = Some((name, num_ctx));
    }

    /// Sets the window that the Modelfile of every model sets.
    pub(crate) fn set_modelfile_window(&self, num_ctx: u64) {
        self.server.state().modelfile_window = Some(num_ctx);
    }

    /// Sets the path that every model reports for its weights file.
    pub(crate) fn set_weights(&self, path: &std::path::Path) {
        self.server.state().weights = path.to_str().unwrap().to_owned();
    }

    /// Returns the number of requests that a `Hang` or `Stall` holds open.
    pub(crate) fn n_held(&self) -> usize {
        self.server.state().n_held
    }

    /// Ends one `Stall`, now or as soon as it begins.
    pub(crate) fn resume(&self) {
        self.server.resume.notify_one();
    }
}
