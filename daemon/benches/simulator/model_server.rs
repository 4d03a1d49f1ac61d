//! A model server on a thread of its own that says what it was told to say, and remembers what it was sent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::summarizer::{Summarizer, asked};

/// The one model that it has.
pub(crate) const MODEL: &str = "scripted:latest";
/// The largest window of it.
const TRAINED: u64 = 131_072;
/// How long a slow summarizer takes: small, so that the run ends.
const SLOW: Duration = Duration::from_millis(120);
/// Characters of one token, roughly: enough to end an answer at its longest.
const CHARS_A_TOKEN: usize = 3;

/// What the model says next.
pub(crate) enum Answer {
    /// A text.
    Text(String),
    /// Calls of tools, each by its name and arguments.
    Calls(Vec<(String, Value)>),
}

/// One request for an answer, as it arrived.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// Bytes of its prompt.
    pub(crate) bytes: usize,
    /// Of the prompt before, where there was one: its bytes, and with how many of them this one begins.
    pub(crate) reused: Option<(usize, usize)>,
    /// The window that it names.
    pub(crate) num_ctx: u64,
    /// A summary was asked for, and how long the answer took.
    pub(crate) summary: Option<Duration>,
}

#[derive(Default)]
struct Scripted {
    answers: VecDeque<Answer>,
    prompt: Vec<u8>,
    asked: Vec<Asked>,
    num_ctx: u64,
    n_answers: u64,
}

/// A running server; it ends with the program.
pub(crate) struct Server {
    /// Its address.
    pub(crate) host: String,
    shared: Arc<Shared>,
}

struct Shared {
    summarizer: Summarizer,
    scripted: Mutex<Scripted>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Scripted> {
        self.scripted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Starts one.
    pub(crate) fn start(summarizer: Summarizer) -> Result<Self> {
        let shared = Arc::new(Shared { summarizer, scripted: Mutex::default() });
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let host = listener.local_addr()?.to_string();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let router = router(Arc::clone(&shared));
        std::thread::spawn(move || {
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                axum::serve(listener, router).await
            })
        });
        Ok(Self { host, shared })
    }

    /// What the model says from now on, one answer a request.
    pub(crate) fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        let mut scripted = self.shared.lock();
        scripted.answers.clear();
        scripted.answers.extend(answers);
    }

    /// The requests since this was asked last.
    pub(crate) fn drain(&self) -> Vec<Asked> {
        std::mem::take(&mut self.shared.lock().asked)
    }
}

fn router(shared: Arc<Shared>) -> Router {
    let details = json!({ "family": "scripted", "parameter_size": "7B" });
    let listed = json!({ "models": [{ "name": MODEL, "model": MODEL, "size": 1,
        "digest": "sha256:00", "details": details }] });
    let shown = json!({ "details": details, "capabilities": ["completion", "tools"],
        "model_info": { "general.architecture": "scripted", "scripted.context_length": TRAINED,
            "general.parameter_count": 7_000_000_000_u64 } });
    let always = |value: Value| move || std::future::ready(answer(&value));
    Router::new()
        .route("/api/version", get(always(json!({ "version": "0.33.0" }))))
        .route("/api/tags", get(always(listed)))
        .route("/api/show", post(always(shown)))
        .route("/api/ps", get(running))
        .route("/api/chat", post(chat))
        .layer(DefaultBodyLimit::disable())
        .with_state(shared)
}

fn answer(value: &Value) -> Response {
    ([("content-type", "application/json")], value.to_string()).into_response()
}

async fn running(State(shared): State<Arc<Shared>>) -> Response {
    let num_ctx = shared.lock().num_ctx;
    let one = json!({ "name": MODEL, "model": MODEL, "size": 1, "size_vram": 1,
        "digest": "sha256:00", "context_length": num_ctx });
    answer(&json!({ "models": if num_ctx == 0 { vec![] } else { vec![one] } }))
}

async fn chat(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let started = Instant::now();
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        return (StatusCode::BAD_REQUEST, r#"{"error":"no JSON"}"#).into_response();
    };
    if request["_debug_render_only"] == true {
        return (StatusCode::BAD_REQUEST, r#"{"error":"not supported"}"#).into_response();
    }
    let num_ctx = request["options"]["num_ctx"].as_u64().unwrap_or_default();
    shared.lock().num_ctx = num_ctx;
    let most = request["options"]["num_predict"].as_u64().unwrap_or(u64::MAX);
    let Some(prompt) = asked(&request) else {
        return answered(&shared, &request, num_ctx, most);
    };
    if shared.summarizer == Summarizer::Slow {
        tokio::time::sleep(SLOW).await;
    }
    let text = shared.summarizer.answer(prompt);
    let (bytes, summary) = (prompt.len(), Some(started.elapsed()));
    shared.lock().asked.push(Asked { bytes, reused: None, num_ctx, summary });
    match text {
        Some(text) => said(&text, &[], most),
        None => {
            let error = r#"{"error":"the model runner has unexpectedly stopped"}"#;
            (StatusCode::INTERNAL_SERVER_ERROR, error).into_response()
        }
    }
}

/// The next answer of the script; what nobody wrote one for gets a short text.
fn answered(shared: &Shared, request: &Value, num_ctx: u64, most: u64) -> Response {
    let prompt = flat(request);
    let mut scripted = shared.lock();
    let reused = (!scripted.prompt.is_empty()).then(|| {
        let pairs = scripted.prompt.iter().zip(&prompt);
        (scripted.prompt.len(), pairs.take_while(|(a, b)| a == b).count())
    });
    scripted.asked.push(Asked { bytes: prompt.len(), reused, num_ctx, summary: None });
    scripted.prompt = prompt;
    scripted.n_answers += 1;
    let n_answers = scripted.n_answers;
    let next = scripted.answers.pop_front();
    drop(scripted);
    match next {
        Some(Answer::Text(text)) => said(&text, &[], most),
        Some(Answer::Calls(calls)) => {
            let calls = calls.iter().map(
                |(name, arguments)| json!({ "function": { "name": name, "arguments": arguments } }),
            );
            said("", &calls.collect::<Vec<_>>(), most)
        }
        None => said(&format!("All of it is done now, as answer {n_answers} says."), &[], most),
    }
}

/// A prompt as bytes; a message has no end mark, because its end may grow.
fn flat(request: &Value) -> Vec<u8> {
    let mut prompt = request["tools"].to_string();
    for message in request["messages"].as_array().into_iter().flatten() {
        prompt.push_str(&format!("\n<{}>", message["role"].as_str().unwrap_or_default()));
        prompt.push_str(message["content"].as_str().unwrap_or_default());
        if let Some(calls) = message.get("tool_calls") {
            prompt.push_str(&calls.to_string());
        }
    }
    prompt.into_bytes()
}

/// An answer in the server's words; one that is longer than asked for ends there.
fn said(text: &str, calls: &[Value], most: u64) -> Response {
    let most = usize::try_from(most).unwrap_or(usize::MAX).saturating_mul(CHARS_A_TOKEN);
    let cut = text.char_indices().nth(most).map(|(at, _)| at);
    let text = cut.map_or(text, |at| &text[..at]);
    let at = "2026-01-01T00:00:00Z";
    let mut message = json!({ "role": "assistant", "content": text });
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    let reason = if cut.is_some() { "length" } else { "stop" };
    let first = json!({ "model": MODEL, "created_at": at, "done": false, "message": message });
    let last = json!({ "model": MODEL, "created_at": at, "done": true, "done_reason": reason,
        "message": { "role": "assistant", "content": "" }, "eval_count": text.len() / CHARS_A_TOKEN });
    ([("content-type", "application/x-ndjson")], format!("{first}\n{last}\n")).into_response()
}
