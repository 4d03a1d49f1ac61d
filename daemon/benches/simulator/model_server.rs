//! The scripted model server: answers by a script, summarizes well or badly, and remembers the requests.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use parking_lot::Mutex;
use serde_json::Value;

use crate::harness::model_server::{
    Answer, BROKEN, FakeOllama, HEADINGS, Question, TRAINED_CONTEXT, common_bytes, limited,
    max_words, prompt_of,
};
use crate::harness::session::SimulatedSession;

/// The time of a slow summary, short enough that the run ends.
const SLOW_SUMMARY: Duration = Duration::from_millis(120);

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
    prompt: String,
    requests: Vec<ModelRequest>,
    n_answers: u64,
}

/// A running server.
pub(crate) struct ModelServer {
    pub(crate) fake: FakeOllama,
    state: Arc<Mutex<ServerState>>,
}

impl ModelServer {
    pub(crate) fn start(summarizer: Summarizer) -> Self {
        let state = Arc::<Mutex<ServerState>>::default();
        let shared = Arc::clone(&state);
        let policy = move |question: &Question<'_>| match summary_prompt(question.messages) {
            Some(prompt) => summarize(summarizer, &prompt, question, &shared),
            None => Ok(limited(shared.lock().next_answer(question), question)),
        };
        Self { fake: FakeOllama::scripted(TRAINED_CONTEXT, Arc::new(policy)), state }
    }

    /// Replaces the script, which has one answer for each request.
    pub(crate) fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        self.state.lock().answers = answers.into_iter().collect();
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<ModelRequest> {
        std::mem::take(&mut self.state.lock().requests)
    }
}

/// Starts a session with a server of its own.
pub(crate) fn start_session(
    summarizer: Summarizer,
    window: u32,
) -> Result<SimulatedSession<ModelServer>> {
    let server = ModelServer::start(summarizer);
    let host = server.fake.host().to_owned();
    SimulatedSession::start(server, &host, window, "")
}

fn summarize(
    summarizer: Summarizer,
    prompt: &str,
    question: &Question<'_>,
    state: &Mutex<ServerState>,
) -> Result<Answer, &'static str> {
    let start = Instant::now();
    if summarizer == Summarizer::Slow {
        question.http.pause(SLOW_SUMMARY).map_err(|_| BROKEN)?;
    }
    let text = summarizer.answer(prompt);
    let (bytes, num_ctx, summary) = (prompt.len(), question.num_ctx, Some(start.elapsed()));
    state.lock().requests.push(ModelRequest { bytes, reused: None, num_ctx, summary });
    text.map(|text| limited(Answer::whole(&text), question)).ok_or(BROKEN)
}

impl ServerState {
    /// Returns the next answer of the script, or a short text if there is none.
    fn next_answer(&mut self, question: &Question<'_>) -> Answer {
        let prompt = prompt_of(question);
        let before = Some(self.prompt.len()).filter(|bytes| *bytes > 0);
        let reused = before.map(|bytes| (bytes, common_bytes(&self.prompt, &prompt)));
        let (bytes, num_ctx) = (prompt.len(), question.num_ctx);
        self.requests.push(ModelRequest { bytes, reused, num_ctx, summary: None });
        self.prompt = prompt;
        self.n_answers += 1;
        self.answers.pop_front().unwrap_or_else(|| {
            let text = format!("All of it is done now, as answer {} says.", self.n_answers);
            Answer::whole(&text)
        })
    }
}

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

    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
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
fn summary_prompt(messages: &[Value]) -> Option<String> {
    let (last, chat) = messages.split_last()?;
    let text = last["content"].as_str()?;
    // The headings stand at the end; a conversation may contain a summary elsewhere.
    let mut from = text.len().saturating_sub(6000);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let end = &text[from..];
    let has_all = HEADINGS.iter().all(|heading| end.contains(&format!("## {heading}")));
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
