//! The model server: answers by a script, and writes notes as well or as badly as a kind of model does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::story::FACTS;
use crate::harness::model_server::{describe, json_response, running, serve};
use crate::harness::session::MODEL;

const TRAINED_CONTEXT: u64 = 131_072;
/// The approximate number of characters of a token, used to cut an answer at its limit.
const CHARS_PER_TOKEN: usize = 3;
/// The headings of notes. A request whose last message has all of them asks for notes.
const HEADINGS: [&str; 6] =
    ["Goal", "Constraints", "Progress", "Key decisions", "Next steps", "Critical context"];
const GERMAN: [&str; 6] = [
    "Ziel",
    "Einschränkungen",
    "Fortschritt",
    "Wichtige Entscheidungen",
    "Nächste Schritte",
    "Wichtiger Kontext",
];

/// A kind of model, by the notes that it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Summarizer {
    /// Keeps every fact that it is shown.
    Ideal,
    /// Keeps 90 % of the facts in the notes before and 70 % of those that are new.
    Typical,
    /// Writes one line for each section, without a fact.
    Weak,
    /// Repeats the lines of the instructions.
    Echoing,
    /// Writes typical notes with headings in another language.
    German,
    /// Returns an error.
    Failing,
}

impl Summarizer {
    pub(crate) const ALL: [Self; 6] =
        [Self::Ideal, Self::Typical, Self::Weak, Self::Echoing, Self::German, Self::Failing];

    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|summarizer| summarizer.name() == name)
    }
}

/// A request that the server received.
pub(crate) struct ModelRequest {
    /// All texts of the prompt.
    pub(crate) prompt: String,
    pub(crate) is_for_notes: bool,
    /// Whether a user waited for an answer when the request came.
    pub(crate) is_waited_for: bool,
    /// The bytes that a server with one cache slot has to read.
    pub(crate) new_bytes: usize,
}

#[derive(Default)]
struct ServerState {
    answer: String,
    cached: String,
    requests: Vec<ModelRequest>,
    num_ctx: u64,
    is_waited_for: bool,
    /// The facts in the newest notes.
    noted: BTreeSet<usize>,
    n_notes: usize,
}

struct Shared {
    summarizer: Summarizer,
    /// The time that notes take.
    delay: Duration,
    state: Mutex<ServerState>,
}

/// A running server, which ends with the program.
pub(crate) struct MemoryServer {
    pub(crate) host: String,
    shared: Arc<Shared>,
}

impl MemoryServer {
    pub(crate) fn start(summarizer: Summarizer, delay: Duration) -> Result<Self> {
        let shared = Arc::new(Shared { summarizer, delay, state: Mutex::default() });
        let router = describe(MODEL, TRAINED_CONTEXT)
            .route("/api/ps", get(ps))
            .route("/api/chat", post(chat))
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::clone(&shared));
        Ok(Self { host: serve(router)?, shared })
    }

    /// Sets the answer to the next messages, and says that a user waits for one.
    pub(crate) fn begin_turn(&self, answer: String) {
        let mut state = self.shared.state.lock();
        state.answer = answer;
        state.is_waited_for = true;
    }

    pub(crate) fn end_turn(&self) {
        self.shared.state.lock().is_waited_for = false;
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<ModelRequest> {
        std::mem::take(&mut self.shared.state.lock().requests)
    }
}

async fn ps(State(shared): State<Arc<Shared>>) -> Response {
    match shared.state.lock().num_ctx {
        0 => json_response(&json!({ "models": [] })),
        num_ctx => running(MODEL, num_ctx),
    }
}

async fn chat(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        return (StatusCode::BAD_REQUEST, r#"{"error":"no JSON"}"#).into_response();
    };
    if request["_debug_render_only"] == true {
        return (StatusCode::BAD_REQUEST, r#"{"error":"not supported"}"#).into_response();
    }
    let max_tokens = request["options"]["num_predict"].as_u64().unwrap_or(u64::MAX);
    let prompt = prompt_of(&request);
    let asked = asks_for_notes(&request);
    {
        let mut state = shared.state.lock();
        state.num_ctx = request["options"]["num_ctx"].as_u64().unwrap_or_default();
        let common = common_bytes(&state.cached, &prompt);
        let request = ModelRequest {
            prompt: prompt.clone(),
            is_for_notes: asked.is_some(),
            is_waited_for: state.is_waited_for,
            new_bytes: prompt.len() - common,
        };
        state.requests.push(request);
        state.cached.clone_from(&prompt);
    }
    let Some(asked) = asked else {
        let text = shared.state.lock().answer.clone();
        return answer(&text, max_tokens);
    };
    tokio::time::sleep(shared.delay).await;
    let mut state = shared.state.lock();
    match notes(shared.summarizer, &prompt, &asked, &mut state) {
        Some(text) => answer(&text, max_tokens),
        None => {
            let error = r#"{"error":"the model runner has unexpectedly stopped"}"#;
            (StatusCode::INTERNAL_SERVER_ERROR, error).into_response()
        }
    }
}

/// Returns the texts of a prompt, each behind its role.
fn prompt_of(request: &Value) -> String {
    let mut prompt = request["tools"].to_string();
    for message in request["messages"].as_array().into_iter().flatten() {
        prompt.push_str(&format!("\n<{}>", message["role"].as_str().unwrap_or_default()));
        prompt.push_str(message["content"].as_str().unwrap_or_default());
    }
    prompt
}

fn common_bytes(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}

/// Returns the last message of a request for notes; `None` for any other request.
fn asks_for_notes(request: &Value) -> Option<String> {
    let last = request["messages"].as_array()?.last()?["content"].as_str()?;
    let has_heading = |heading: &&str| last.contains(&format!("## {heading}\n"));
    HEADINGS.iter().all(has_heading).then(|| last.to_owned())
}

/// Returns the notes that a model writes about a prompt; `None` for an error.
fn notes(
    summarizer: Summarizer,
    prompt: &str,
    asked: &str,
    state: &mut ServerState,
) -> Option<String> {
    let shown = (0..FACTS.len()).filter(|at| prompt.contains(FACTS[*at].value));
    let kept: Vec<usize> = match summarizer {
        Summarizer::Failing => return None,
        Summarizer::Echoing => return Some(echo(asked)),
        Summarizer::Weak => return Some(form(&HEADINGS, &[])),
        Summarizer::Ideal => shown.collect(),
        Summarizer::Typical | Summarizer::German => {
            let is_kept = |at: &usize| {
                let percent = if state.noted.contains(at) { 90 } else { 70 };
                // A fixed choice for each pair of fact and notes.
                (at * 37 + state.n_notes * 61 + at * state.n_notes * 13) % 100 < percent
            };
            shown.filter(is_kept).collect()
        }
    };
    state.n_notes += 1;
    state.noted = kept.iter().copied().collect();
    let n_words = max_words(asked);
    let mut lines: Vec<&str> = Vec::new();
    let mut left = n_words.saturating_sub(40);
    // The newest facts are nearest to the end of the prompt, and so the surest.
    for at in kept.iter().rev() {
        let words = FACTS[*at].sentence.split_whitespace().count();
        if words <= left {
            left -= words;
            lines.push(FACTS[*at].sentence);
        }
    }
    lines.reverse();
    let headings = if summarizer == Summarizer::German { GERMAN } else { HEADINGS };
    Some(form(&headings, &lines))
}

/// Returns the number of words that a request for notes allows.
fn max_words(asked: &str) -> usize {
    let before = asked.rsplit_once(" words in all").map_or("", |(before, _)| before);
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(200)
}

fn form(headings: &[&str; 6], facts: &[&str]) -> String {
    let [goal, constraints, progress, decisions, next, critical] = headings;
    let facts: String = facts.iter().map(|fact| format!("- {fact}\n")).collect();
    format!(
        "## {goal}\n- make the program better\n\n## {constraints}\n- none\n\n## {progress}\n- several modules were \
         read and tidied\n\n## {decisions}\n- none\n\n## {next}\n- answer the next question\n\n## {critical}\n{}",
        if facts.is_empty() { "- none\n" } else { &facts }
    )
}

/// Returns the headings with the last lines of the instructions below each, many times.
fn echo(asked: &str) -> String {
    let hint = asked.lines().rev().find(|line| line.len() > 20).unwrap_or("- as said above");
    let lines = format!("- {}\n", hint.trim_start_matches("- ")).repeat(8);
    HEADINGS.iter().map(|heading| format!("## {heading}\n{lines}\n")).collect()
}

/// Returns the lines of an answer, cut at the token limit.
fn answer(text: &str, max_tokens: u64) -> Response {
    let max_chars =
        usize::try_from(max_tokens).unwrap_or(usize::MAX).saturating_mul(CHARS_PER_TOKEN);
    let cut = text.char_indices().nth(max_chars).map(|(at, _)| at);
    let text = cut.map_or(text, |at| &text[..at]);
    let at = "2026-01-01T00:00:00Z";
    let reason = if cut.is_some() { "length" } else { "stop" };
    let first = json!({ "model": MODEL, "created_at": at, "done": false,
        "message": { "role": "assistant", "content": text } });
    let last = json!({ "model": MODEL, "created_at": at, "done": true, "done_reason": reason,
        "message": { "role": "assistant", "content": "" }, "eval_count": text.len() / CHARS_PER_TOKEN });
    ([("content-type", "application/x-ndjson")], format!("{first}\n{last}\n")).into_response()
}
