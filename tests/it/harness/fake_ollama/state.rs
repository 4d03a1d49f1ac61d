//! What a test scripts and what the fake remembers: answers, faults, requests, loaded models.
//!
//! Knows nothing of HTTP.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};

use super::models;

/// A fault in the handling of one request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// A status with an error text.
    Error { status: u16, text: String },
    /// Status 403 with an empty body, as for a host name that is not local.
    ForbiddenHost,
    /// Status 401 with a sign-in address.
    Unauthorized,
    /// Status 307.
    Redirect(String),
    /// An HTML page with status 200.
    Page,
    /// Bytes that are not JSON, with status 200.
    Garbage,
    /// A broken connection after the response head.
    Disconnect,
    /// A pause before a normal response.
    Delay(Duration),
    /// No response until the client disconnects.
    Hang,
    /// An error line after some lines of the answer, which ends it.
    ErrorLine { after: usize, text: String },
    /// An end without the `done` line, after some lines.
    EndWithoutDone { after: usize },
    /// A broken connection after some lines.
    Break { after: usize },
    /// A line that is not JSON after some lines.
    GarbageLine { after: usize },
    /// A pause after some lines, until [`FakeOllama::resume`](super::FakeOllama::resume) or a disconnect.
    Stall { after: usize },
    /// Some bytes without a line break before the first line.
    HugeLine(usize),
    /// Chunks of one byte, so that characters are split.
    SplitBytes,
    /// A pause before each line.
    SlowLines(Duration),
}

/// A scripted answer. The default is the text "ok".
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// Chunks of thinking, sent before the text.
    pub(crate) thinking: Vec<String>,
    /// Chunks of text.
    pub(crate) text: Vec<String>,
    /// Tool calls as `{"function": {"name": ..., "arguments": {...}}}`.
    pub(crate) tool_calls: Vec<Value>,
    /// Whether the `done` line carries the tool calls, as in some engines, instead of a line before it.
    pub(crate) tool_calls_in_done: bool,
    /// The `done_reason`, unless a token limit ends the answer first.
    pub(crate) reason: &'static str,
}

impl Default for Answer {
    fn default() -> Self {
        Self::text("ok")
    }
}

impl Answer {
    /// Returns a text, in chunks of a word each.
    pub(crate) fn text(text: &str) -> Self {
        Self {
            thinking: Vec::new(),
            text: text.split_inclusive(' ').map(str::to_owned).collect(),
            tool_calls: Vec::new(),
            tool_calls_in_done: false,
            reason: "stop",
        }
    }

    /// Adds thinking before the text.
    #[must_use]
    pub(crate) fn thinking(mut self, text: &str) -> Self {
        self.thinking = text.split_inclusive(' ').map(str::to_owned).collect();
        self
    }

    /// Adds a tool call.
    #[must_use]
    pub(crate) fn tool_call(mut self, name: &str, arguments: Value) -> Self {
        self.tool_calls.push(json!({ "function": { "name": name, "arguments": arguments } }));
        self
    }

    /// Moves the tool calls to the `done` line.
    #[must_use]
    pub(crate) const fn tool_calls_in_done(mut self) -> Self {
        self.tool_calls_in_done = true;
        self
    }

    /// Sets the `done_reason` to `length`, as when a token limit cuts the answer.
    #[must_use]
    pub(crate) const fn cut(mut self) -> Self {
        self.reason = "length";
        self
    }
}

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
pub(super) struct LoadedModel {
    pub(super) name: &'static str,
    pub(super) num_ctx: u64,
}

/// The whole state of a fake server.
pub(super) struct State {
    pub(super) version: &'static str,
    version_numbers: (u32, u32, u32),
    pub(super) loaded: Vec<LoadedModel>,
    pub(super) n_loads: usize,
    pub(super) vram_percent: u64,
    /// The window that every model was trained for.
    pub(super) trained_context: u64,
    /// Whether the models with other templates are installed too.
    pub(super) has_more_models: bool,
    /// The smaller window that one model was trained for.
    pub(super) small_model: Option<(&'static str, u64)>,
    /// The largest window that fits into memory.
    pub(super) largest_window: u64,
    /// The tokens of the last prompt of each model.
    pub(super) prompt_cache: BTreeMap<&'static str, Vec<u32>>,
    /// The answers to the next chats.
    pub(super) answers: VecDeque<Answer>,
    /// The answer to every request for a summary.
    pub(super) summary: Option<Answer>,
    /// The faults of the next requests by path.
    pub(super) faults: BTreeMap<String, VecDeque<Fault>>,
    pub(super) requests: Vec<Request>,
    /// Requests that a `Hang` or `Stall` holds open.
    pub(super) n_held: usize,
    /// The path of the weights file of every model.
    pub(super) weights: String,
    /// The paths of another kind of server, with their JSON.
    pub(super) other: Option<Vec<(&'static str, Value)>>,
    /// The window that the Modelfile of every model sets.
    pub(super) modelfile_window: Option<u64>,
}

impl State {
    /// Returns the window that a model was trained for.
    pub(super) fn trained_context_of(&self, name: &str) -> u64 {
        let own = self.small_model.filter(|(small, _)| *small == name);
        own.map_or(self.trained_context, |(_, num_ctx)| num_ctx)
    }

    /// Creates the state of a server version such as `0.33.0`.
    pub(super) fn new(version: &'static str) -> Self {
        let mut numbers = version.split('.').map(|number| number.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        Self {
            version,
            version_numbers: (next(), next(), next()),
            loaded: Vec::new(),
            n_loads: 0,
            vram_percent: 100,
            trained_context: models::TRAINED_CONTEXT,
            has_more_models: false,
            small_model: None,
            largest_window: models::TRAINED_CONTEXT,
            prompt_cache: BTreeMap::new(),
            answers: VecDeque::new(),
            summary: None,
            faults: BTreeMap::new(),
            requests: Vec::new(),
            n_held: 0,
            weights: "/nowhere/blobs/sha256-0".to_owned(),
            modelfile_window: None,
            other: None,
        }
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
    pub(super) fn load(&mut self, name: &'static str, num_ctx: u64) {
        if self.loaded.iter().any(|loaded| loaded.name == name && loaded.num_ctx == num_ctx) {
            return;
        }
        self.loaded.retain(|loaded| loaded.name != name);
        let _prompt = self.prompt_cache.remove(name);
        self.loaded.push(LoadedModel { name, num_ctx });
        self.n_loads += 1;
    }
}

/// A response before its transport.
pub(super) enum Reply {
    /// A status, a content type (none if empty) and a body.
    Whole(u16, &'static str, Vec<u8>),
    /// The lines of a streamed answer.
    Stream(Vec<Vec<u8>>),
}

impl Reply {
    pub(super) fn json(value: &Value) -> Self {
        Self::Whole(200, "application/json; charset=utf-8", value.to_string().into_bytes())
    }

    pub(super) fn error(status: u16, text: &str) -> Self {
        let body = json!({ "error": text }).to_string().into_bytes();
        Self::Whole(status, "application/json; charset=utf-8", body)
    }
}
