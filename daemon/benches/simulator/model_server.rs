//! The scripted model server: answers by a script, summarizes well or badly, and remembers the requests.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::harness::model_server::{describe, json_response, running, serve};
use crate::harness::session::{MODEL, SimulatedSession};

/// The largest window of the model.
const TRAINED_CONTEXT: u64 = 131_072;
/// The time of a slow summary, short enough that the run ends.
const SLOW_SUMMARY: Duration = Duration::from_millis(120);
/// The approximate number of characters of a token, used to cut an answer at its limit.
const CHARS_PER_TOKEN: usize = 3;

/// A scripted answer.
pub(crate) enum Answer {
    Text(String),
    /// Tool calls by name and arguments.
    Calls(Vec<(String, Value)>),
}

/// A request that the server received.
#[derive(Clone, Copy)]
pub(crate) struct ModelRequest {
    /// The bytes of the prompt.
    pub(crate) bytes: usize,
    /// The bytes of the previous prompt, and how many of them this prompt begins with.
    pub(crate) reused: Option<(usize, usize)>,
    /// The window that the request names.
    pub(crate) num_ctx: u64,
    /// For a summary: the time of the answer.
    pub(crate) summary: Option<Duration>,
}

#[derive(Default)]
struct ServerState {
    answers: VecDeque<Answer>,
    prompt: Vec<u8>,
    requests: Vec<ModelRequest>,
    num_ctx: u64,
    n_answers: u64,
}

struct Shared {
    summarizer: Summarizer,
    state: Mutex<ServerState>,
}

/// A running server, which ends with the program.
pub(crate) struct ModelServer {
    pub(crate) host: String,
    shared: Arc<Shared>,
}

impl ModelServer {
    pub(crate) fn start(summarizer: Summarizer) -> Result<Self> {
        let shared = Arc::new(Shared { summarizer, state: Mutex::default() });
        let host = serve(router(Arc::clone(&shared)))?;
        Ok(Self { host, shared })
    }

    /// Replaces the script, which has one answer for each request.
    pub(crate) fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        self.shared.state.lock().answers = answers.into_iter().collect();
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<ModelRequest> {
        std::mem::take(&mut self.shared.state.lock().requests)
    }
}

/// Starts a session with a server of its own.
pub(crate) fn start_session(
    summarizer: Summarizer,
    window: u32,
) -> Result<SimulatedSession<ModelServer>> {
    let server = ModelServer::start(summarizer)?;
    let host = server.host.clone();
    SimulatedSession::start(server, &host, window)
}

fn router(shared: Arc<Shared>) -> Router {
    describe(MODEL, TRAINED_CONTEXT)
        .route("/api/ps", get(ps))
        .route("/api/chat", post(chat))
        .layer(DefaultBodyLimit::disable())
        .with_state(shared)
}

async fn ps(State(shared): State<Arc<Shared>>) -> Response {
    match shared.state.lock().num_ctx {
        0 => json_response(&json!({ "models": [] })),
        num_ctx => running(MODEL, num_ctx),
    }
}

async fn chat(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let start = Instant::now();
    let Ok(request) = serde_json::from_slice::<Value>(&body) else {
        return (StatusCode::BAD_REQUEST, r#"{"error":"no JSON"}"#).into_response();
    };
    if request["_debug_render_only"] == true {
        return (StatusCode::BAD_REQUEST, r#"{"error":"not supported"}"#).into_response();
    }
    let num_ctx = request["options"]["num_ctx"].as_u64().unwrap_or_default();
    shared.state.lock().num_ctx = num_ctx;
    let max_tokens = request["options"]["num_predict"].as_u64().unwrap_or(u64::MAX);
    let Some(prompt) = summary_prompt(&request) else {
        return next_answer(&shared, &request, num_ctx, max_tokens);
    };
    if shared.summarizer == Summarizer::Slow {
        tokio::time::sleep(SLOW_SUMMARY).await;
    }
    let text = shared.summarizer.answer(&prompt);
    let (bytes, summary) = (prompt.len(), Some(start.elapsed()));
    shared.state.lock().requests.push(ModelRequest { bytes, reused: None, num_ctx, summary });
    match text {
        Some(text) => answer(&text, &[], max_tokens),
        None => {
            let error = r#"{"error":"the model runner has unexpectedly stopped"}"#;
            (StatusCode::INTERNAL_SERVER_ERROR, error).into_response()
        }
    }
}

/// Returns the next answer of the script, or a short text if there is none.
fn next_answer(shared: &Shared, request: &Value, num_ctx: u64, max_tokens: u64) -> Response {
    let prompt = prompt_bytes(request);
    let mut state = shared.state.lock();
    let reused = (!state.prompt.is_empty()).then(|| {
        let pairs = state.prompt.iter().zip(&prompt);
        (state.prompt.len(), pairs.take_while(|(a, b)| a == b).count())
    });
    state.requests.push(ModelRequest { bytes: prompt.len(), reused, num_ctx, summary: None });
    state.prompt = prompt;
    state.n_answers += 1;
    let n_answers = state.n_answers;
    let next = state.answers.pop_front();
    drop(state);
    match next {
        Some(Answer::Text(text)) => answer(&text, &[], max_tokens),
        Some(Answer::Calls(calls)) => {
            let calls = calls.iter().map(
                |(name, arguments)| json!({ "function": { "name": name, "arguments": arguments } }),
            );
            answer("", &calls.collect::<Vec<_>>(), max_tokens)
        }
        None => {
            let text = format!("All of it is done now, as answer {n_answers} says.");
            answer(&text, &[], max_tokens)
        }
    }
}

/// Returns the prompt as bytes. A message has no end mark, because a later prompt may extend it.
fn prompt_bytes(request: &Value) -> Vec<u8> {
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

/// Returns the lines of an answer, cut at the token limit.
fn answer(text: &str, calls: &[Value], max_tokens: u64) -> Response {
    let max_tokens = usize::try_from(max_tokens).unwrap_or(usize::MAX);
    let max_chars = max_tokens.saturating_mul(CHARS_PER_TOKEN);
    let cut = text.char_indices().nth(max_chars).map(|(at, _)| at);
    let text = cut.map_or(text, |at| &text[..at]);
    let at = "2026-01-01T00:00:00Z";
    let mut message = json!({ "role": "assistant", "content": text });
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    let reason = if cut.is_some() { "length" } else { "stop" };
    let first = json!({ "model": MODEL, "created_at": at, "done": false, "message": message });
    let last = json!({ "model": MODEL, "created_at": at, "done": true, "done_reason": reason,
        "message": { "role": "assistant", "content": "" }, "eval_count": text.len() / CHARS_PER_TOKEN });
    ([("content-type", "application/x-ndjson")], format!("{first}\n{last}\n")).into_response()
}

/// The headings of a summary. A request that names all of them is one for a summary.
const SECTIONS: [&str; 6] =
    ["Goal", "Constraints", "Progress", "Key decisions", "Next steps", "Critical context"];
/// The number of words of the goal.
const GOAL_WORDS: usize = 40;
/// The number of words of one line of progress.
const LINE_WORDS: usize = 14;

/// The behavior of the server when a summary is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Summarizer {
    /// Returns all sections with the facts of the prompt, within the word limit.
    Good,
    /// Returns the same, ten times as long.
    Verbose,
    /// Returns an empty text.
    Empty,
    /// Returns an error.
    Failing,
    /// Returns a good summary after a delay.
    Slow,
}

impl Summarizer {
    pub(crate) const ALL: [Self; 5] =
        [Self::Good, Self::Verbose, Self::Empty, Self::Failing, Self::Slow];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Verbose => "verbose",
            Self::Empty => "empty",
            Self::Failing => "failing",
            Self::Slow => "slow",
        }
    }

    /// Returns the summarizer of a name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|summarizer| summarizer.name() == name)
    }

    /// Returns the answer to a prompt; `None` for an error.
    fn answer(self, prompt: &str) -> Option<String> {
        let words = max_words(prompt);
        match self {
            Self::Good | Self::Slow => Some(summary(prompt, words)),
            Self::Verbose => Some(verbose(&summary(prompt, words))),
            Self::Empty => Some(String::new()),
            Self::Failing => None,
        }
    }
}

/// Returns the prompt of a request for a summary; `None` for any other request. Of a request behind a conversation, the
/// conversation stands in the blocks that a request of its own has.
fn summary_prompt(request: &Value) -> Option<String> {
    let (last, chat) = request["messages"].as_array()?.split_last()?;
    let text = last["content"].as_str()?;
    // The headings stand at the end; a conversation may contain a summary elsewhere.
    let mut from = text.len().saturating_sub(6000);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let end = &text[from..];
    let has_all = SECTIONS.iter().all(|section| end.contains(&format!("## {section}")));
    if !has_all || !end.contains("words in all") {
        return None;
    }
    if !end.contains("Stop here.") {
        return Some(text.to_owned());
    }
    let turns: Vec<&str> = chat.iter().filter_map(|turn| turn["content"].as_str()).collect();
    let whole = turns.join("\n");
    let notes = block(&whole, "summary").or(block(&whole, "memory")).unwrap_or_default();
    let lines = turns.iter().enumerate().map(|(at, text)| {
        let role = chat[at]["role"].as_str().unwrap_or_default();
        let said = text.rsplit('>').next().unwrap_or_default().trim();
        format!("[#{at} {role}] {}", said.lines().next().unwrap_or_default())
    });
    let records = lines.collect::<Vec<_>>().join("\n");
    let notes = format!("<previous-summary>\n{notes}\n</previous-summary>");
    Some(format!("{notes}\n<records>\n{records}\n</records>\n{text}"))
}

/// Returns the number of words that a prompt allows.
fn max_words(prompt: &str) -> usize {
    let before = prompt.rsplit_once(" words in all").map_or("", |(before, _)| before);
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(200)
}

/// Returns a summary with all sections, made of the earlier summaries and the records in the prompt.
fn summary(prompt: &str, words: usize) -> String {
    let earlier: Vec<&str> =
        ["previous-summary", "summary"].into_iter().filter_map(|tag| block(prompt, tag)).collect();
    let records: Vec<&str> = block(prompt, "records").map(records).unwrap_or_default();
    let goal = earlier.iter().find_map(|text| section(text, "Goal").first().copied());
    let first = records.iter().find(|record| record.contains(" user]"));
    let goal = goal.or(first.copied()).unwrap_or("Go on with the work.");
    let mut left = words.saturating_sub(GOAL_WORDS + 12);
    let mut decisions = Vec::new();
    let mut progress = Vec::new();
    for line in earlier.iter().flat_map(|text| section(text, "Key decisions")) {
        take(&mut decisions, line, &mut left);
    }
    let critical = identifiers(&earlier, &records, left / 3);
    left = left.saturating_sub(critical.len());
    for record in records.iter().rev() {
        take(&mut progress, record, &mut left);
    }
    for line in earlier.iter().rev().flat_map(|text| section(text, "Progress")) {
        take(&mut progress, line, &mut left);
    }
    if progress.is_empty() {
        progress.push("The work goes on.".to_owned());
    }
    let list =
        |lines: &[String]| lines.iter().map(|line| format!("- {line}\n")).collect::<String>();
    format!(
        "## Goal\n- {}\n\n## Constraints\n- as the user said\n\n## Progress\n{}\n## Key decisions\n{}\n\
         ## Next steps\n- go on\n\n## Critical context\n- {}\n",
        shortened(goal, GOAL_WORDS),
        list(&progress),
        list(&decisions),
        critical.join(" ")
    )
}

/// Returns every line ten times, each time slightly different.
fn verbose(text: &str) -> String {
    let mut long = String::new();
    for line in text.lines() {
        long.push_str(line);
        long.push('\n');
        if line.starts_with("- ") {
            (1..10).for_each(|n| long.push_str(&format!("{line} (said {n} times)\n")));
        }
    }
    long
}

/// Returns the text between the tags of a block.
fn block<'a>(prompt: &'a str, tag: &str) -> Option<&'a str> {
    let (_, inside) = prompt.split_once(&format!("<{tag}"))?;
    let (_, inside) = inside.split_once(">\n")?;
    inside.split_once(&format!("\n</{tag}>")).map(|(inside, _)| inside)
}

/// Returns the first lines of the records in a block that have text; each begins with its number.
fn records(block: &str) -> Vec<&str> {
    block.lines().filter(|line| line.starts_with("[#") && !line.ends_with(']')).collect()
}

/// Returns the lines of one section without list markers.
fn section<'a>(summary: &'a str, title: &str) -> Vec<&'a str> {
    let heading = format!("## {title}");
    let inside = summary.lines().skip_while(|line| *line != heading).skip(1);
    let lines = inside.take_while(|line| !line.starts_with("## "));
    lines.map(|line| line.trim_start_matches("- ")).filter(|line| !line.is_empty()).collect()
}

/// Returns the first words of a line.
fn shortened(line: &str, words: usize) -> String {
    line.split_whitespace().take(words).collect::<Vec<_>>().join(" ")
}

/// Appends a shortened line if its words fit into what is left.
fn take(lines: &mut Vec<String>, line: &str, left: &mut usize) {
    let short = shortened(line, LINE_WORDS);
    let n_words = short.split(' ').count();
    if n_words <= *left {
        *left -= n_words;
        lines.push(short);
    }
}

/// Returns paths and names, the most frequent first.
fn identifiers(earlier: &[&str], records: &[&str], most: usize) -> Vec<String> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for text in earlier.iter().chain(records) {
        let words = text.split(|c: char| c.is_whitespace() || "\"',:;()[]{}".contains(c));
        let names = words.filter(|word| {
            word.len() > 4
                && word.contains(['/', '_'])
                && word.chars().all(|c| c.is_ascii_graphic())
        });
        names.for_each(|name| *counts.entry(name).or_default() += 1);
    }
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    sorted.into_iter().take(most).map(|(name, _)| name.to_owned()).collect()
}
