//! The state of the fake: its version, its models in memory, its script, and the requests so far.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;

use super::super::answer::{Answer, Policy};
use super::super::http::HttpRequest;
use super::fault::Fault;
use super::models::{self, Model};
use super::{RENDER, VOCABULARY};

/// A request that the fake received.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The path, or [`RENDER`](super::RENDER) or [`VOCABULARY`](super::VOCABULARY).
    pub(crate) path: String,
    /// The JSON body; null if there was none.
    pub(crate) body: Value,
    pub(crate) authorization: Option<String>,
}

impl Request {
    /// Returns whether a summary is requested: the last message lists the headings of one.
    pub(crate) fn wants_summary(&self) -> bool {
        wants_summary(&self.body)
    }
}

/// As [`Request::wants_summary`], for a body.
pub(super) fn wants_summary(body: &Value) -> bool {
    let last = body["messages"].as_array().and_then(|messages| messages.last());
    let text = last.and_then(|message| message["content"].as_str()).unwrap_or_default();
    text.contains("Use exactly these six headings")
}

/// The inference engine that a server version contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    LlamaCpp,
    GoRunner,
    LlamaServer,
}

/// A model in memory.
pub(crate) struct LoadedModel {
    pub(super) name: &'static str,
    pub(super) num_ctx: u64,
}

/// The whole state of a fake server.
pub(crate) struct State {
    pub(super) version: &'static str,
    version_numbers: (u32, u32, u32),
    pub(crate) loaded: Vec<LoadedModel>,
    pub(super) n_loads: usize,
    pub(crate) vram_percent: u64,
    /// The window that every model was trained for.
    pub(super) trained_context: u64,
    pub(super) installed: Vec<Model>,
    /// The smaller window that one model was trained for.
    pub(crate) small_model: Option<(&'static str, u64)>,
    /// The largest window that fits into memory.
    pub(crate) largest_window: u64,
    /// The tokens of the last prompt of each model.
    pub(super) prompt_cache: BTreeMap<&'static str, Vec<u32>>,
    /// The answers to the next chats.
    pub(super) answers: VecDeque<Answer>,
    /// The answer to every request for a summary.
    pub(super) summary: Option<Answer>,
    /// The faults of the next requests by path.
    pub(super) faults: BTreeMap<String, VecDeque<Fault>>,
    pub(super) requests: Vec<Request>,
    /// The policy that answers instead of the script.
    pub(super) policy: Option<Arc<Policy>>,
    /// The name of a model that was updated, and the model that it has been since.
    pub(crate) updated: Option<(&'static str, &'static str)>,
    /// The path of the weights file of every model.
    pub(super) weights: String,
    /// The paths of another kind of server, with their JSON.
    pub(super) other: Option<Vec<(&'static str, Value)>>,
    /// The window that the Modelfile of every model sets.
    pub(crate) modelfile_window: Option<u64>,
    /// The value of `OLLAMA_NEW_ENGINE` at the start of the server: its engine in Go adds BOS to a vocabulary that does not say
    /// whether it has one. If `None`, the vocabulary says that it has none.
    pub(crate) new_engine: Option<bool>,
}

impl State {
    /// Returns the model that has a name, which may be an update of the one that had it before.
    pub(super) fn find(&self, name: &str) -> Option<&'static Model> {
        let own = models::find(name)?;
        match self.updated {
            Some((updated, now)) if updated == own.name => models::find(now),
            _ => Some(own),
        }
    }

    /// Returns the window that a model was trained for.
    pub(super) fn trained_context_of(&self, name: &str) -> u64 {
        let own = self.small_model.filter(|(small, _)| *small == name);
        own.map_or(self.trained_context, |(_, num_ctx)| num_ctx)
    }

    /// Creates the state of a server version such as `0.33.0`.
    pub(super) fn new(version: &'static str) -> Self {
        let mut numbers = version.split('.').map(|number| number.parse().unwrap_or_default());
        let mut next = || numbers.next().unwrap_or_default();
        Self {
            version,
            version_numbers: (next(), next(), next()),
            loaded: Vec::new(),
            n_loads: 0,
            vram_percent: 100,
            trained_context: models::TRAINED_CONTEXT,
            installed: models::MODELS.to_vec(),
            small_model: None,
            largest_window: models::TRAINED_CONTEXT,
            prompt_cache: BTreeMap::new(),
            answers: VecDeque::new(),
            summary: None,
            faults: BTreeMap::new(),
            requests: Vec::new(),
            policy: None,
            updated: None,
            weights: "/nowhere/blobs/sha256-0".to_owned(),
            modelfile_window: None,
            new_engine: None,
            other: None,
        }
    }

    /// Replaces all models by the scripted one, which answers by a policy.
    pub(super) fn use_policy(&mut self, policy: Arc<Policy>) {
        self.installed = vec![models::SCRIPTED_MODEL];
        self.policy = Some(policy);
    }

    /// Remembers a request, and returns the fault that is due for it.
    ///
    /// A server with a policy runs for hours, so it remembers none.
    pub(super) fn remember(&mut self, request: &HttpRequest) -> Option<Fault> {
        if self.policy.is_some() {
            return None;
        }
        // Tests find renders and vocabularies by names of their own.
        let path = match request.line.split(' ').nth(1).unwrap_or_default() {
            "/api/chat" if request.body["_debug_render_only"] == true => RENDER,
            "/api/show" if request.body["verbose"] == true => VOCABULARY,
            path => path,
        };
        let authorization = request.header("authorization").map(str::to_owned);
        let (path, body) = (path.to_owned(), request.body.clone());
        let fault = self.faults.get_mut(&path).and_then(VecDeque::pop_front);
        self.requests.push(Request { path, body, authorization });
        fault
    }

    /// Returns whether the server is of a version or newer.
    pub(super) fn is_at_least(&self, major: u32, minor: u32, patch: u32) -> bool {
        self.version_numbers >= (major, minor, patch)
    }

    pub(super) fn engine(&self) -> Engine {
        if self.is_at_least(0, 30, 0) {
            Engine::LlamaServer
        } else if self.is_at_least(0, 4, 0) {
            Engine::GoRunner
        } else {
            Engine::LlamaCpp
        }
    }

    /// Returns whether the reported prompt count includes tokens from the cache.
    pub(super) fn counts_cached_tokens(&self) -> bool {
        self.engine() != Engine::LlamaCpp && self.version_numbers != (0, 30, 0)
    }

    /// Loads a model with a window, unless it is loaded with that window.
    pub(crate) fn load(&mut self, name: &'static str, num_ctx: u64) {
        if self.loaded.iter().any(|loaded| loaded.name == name && loaded.num_ctx == num_ctx) {
            return;
        }
        self.loaded.retain(|loaded| loaded.name != name);
        let _prompt = self.prompt_cache.remove(name);
        self.loaded.push(LoadedModel { name, num_ctx });
        self.n_loads += 1;
    }
}
