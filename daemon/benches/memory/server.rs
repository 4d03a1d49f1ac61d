//! The model server: answers by a script, and writes notes as well or as badly as a kind of model does.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use ollm_daemon::bench_api::exam;
use parking_lot::Mutex;
use serde_json::Value;

use super::dialogue::says;
use crate::harness::model_server::{
    Answer, BROKEN, FakeOllama, HEADINGS, Question, TRAINED_CONTEXT, common_bytes, limited,
    max_words, prompt_of,
};

/// The headings of notes in another language.
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

    /// Good, poor and failing notes.
    pub(crate) const OF_TALK: [Self; 3] = [Self::Ideal, Self::Weak, Self::Failing];

    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|summarizer| summarizer.name() == name)
    }
}

/// A kind of model, by the facts that it chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    /// Those that last.
    Perfect,
    /// The same, with a mistake in each fifth sentence.
    Noise,
    /// Each second sentence.
    Coin,
    /// All of them.
    All,
    /// None of them.
    None,
    /// The first ten.
    First,
    /// As many as it may, from the first on.
    Half,
}

impl Judge {
    const ALL: [Self; 7] =
        [Self::Perfect, Self::Noise, Self::Coin, Self::All, Self::None, Self::First, Self::Half];

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|judge| format!("{judge:?}").to_lowercase() == name)
    }

    /// Returns the answer to a request, whose list has these sentences.
    fn answer(self, sentences: &[&str], state: &ServerState) -> String {
        let n = sentences.len();
        let lasts = |at: &usize| state.is_durable(sentences[*at]);
        let number = |at: &usize| hash(sentences[*at]);
        let mut chosen: Vec<usize> = match self {
            Self::Perfect => (0..n).filter(lasts).collect(),
            Self::Noise => {
                (0..n).filter(|at| lasts(at) != (number(at).is_multiple_of(5))).collect()
            }
            Self::Coin => (0..n).filter(|at| number(at).is_multiple_of(2)).collect(),
            Self::All => (0..n).collect(),
            Self::None => Vec::new(),
            Self::First => (0..n.min(10)).collect(),
            Self::Half => (0..n / 2).collect(),
        };
        if matches!(self, Self::Perfect | Self::Noise | Self::Coin) {
            chosen.sort_by_key(number);
            chosen.truncate(n / 2);
        }
        let numbers: Vec<usize> = chosen.into_iter().map(|at| at + 1).collect();
        serde_json::json!({ "numbers": numbers }).to_string()
    }
}

/// Returns a number for a text, which is always the same.
fn hash(text: &str) -> u64 {
    let hash = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, hash) >> 11
}

/// A request that the server received.
pub(crate) struct ModelRequest {
    /// All texts of the prompt.
    pub(crate) prompt: String,
    /// Whether the daemon asked for notes or for facts.
    pub(crate) is_for_notes: bool,
    /// Whether the daemon asked which facts to remember.
    pub(crate) is_for_facts: bool,
    /// Whether a user waited for an answer when the request came.
    pub(crate) is_waited_for: bool,
    /// The bytes that a server with one cache slot has to read.
    pub(crate) new_bytes: usize,
}

/// Something that notes can keep.
pub(crate) struct Noted {
    /// The line of notes that says it.
    pub(crate) sentence: String,
    /// The texts of which one proves that a prompt says it.
    pub(crate) values: Vec<String>,
    /// The one that corrects it: notes keep it only while the prompt does not say that one.
    pub(crate) corrected_by: Option<usize>,
}

impl Noted {
    /// Returns whether a line of facts says it.
    fn is_said_by(&self, line: &str) -> bool {
        self.is_in(line) || self.values.iter().any(|value| says(line, value) && value.len() > 40)
    }

    fn is_in(&self, prompt: &str) -> bool {
        self.values.iter().any(|value| prompt.contains(value.as_str()))
    }
}

#[derive(Default)]
struct ServerState {
    known: Vec<Noted>,
    /// The lasting sentences of the exam of models.
    exam: Vec<String>,
    /// The answers to the next requests that are not for notes. The last one is repeated.
    answers: VecDeque<Answer>,
    cached: String,
    requests: Vec<ModelRequest>,
    is_waited_for: bool,
    /// The facts in the newest notes.
    noted: BTreeSet<usize>,
    n_notes: usize,
    /// Those of `known` that any prompt had.
    seen: BTreeSet<usize>,
}

/// A running server.
pub(crate) struct MemoryServer {
    pub(crate) fake: FakeOllama,
    state: Arc<Mutex<ServerState>>,
}

impl MemoryServer {
    /// Starts a server, whose notes take the time `delay` and keep some of what is `known`.
    pub(crate) fn start(
        summarizer: Summarizer,
        judge: Judge,
        delay: Duration,
        known: Vec<Noted>,
    ) -> Self {
        let lasting = exam().filter(|(_, lasts)| *lasts);
        let exam = lasting.map(|(text, _)| text.to_owned()).collect();
        let state = Arc::new(Mutex::new(ServerState { known, exam, ..ServerState::default() }));
        let shared = Arc::clone(&state);
        let policy = move |question: &Question<'_>| {
            let prompt = prompt_of(question);
            let asked = asks_for_notes(question.messages);
            let sentences = asks_for_facts(question.messages);
            shared.lock().remember(&prompt, asked.is_some(), sentences.is_some());
            if let Some(sentences) = sentences {
                return Ok(Answer::whole(&judge.answer(&sentences, &shared.lock())));
            }
            let answer = match asked {
                None => shared.lock().next_answer(),
                Some(asked) => {
                    question.http.pause(delay).map_err(|_| BROKEN)?;
                    let notes = notes(summarizer, &prompt, asked, &mut shared.lock());
                    Answer::whole(&notes.ok_or(BROKEN)?)
                }
            };
            Ok(limited(answer, question))
        };
        Self { fake: FakeOllama::scripted(TRAINED_CONTEXT, Arc::new(policy)), state }
    }

    /// Sets the answers of the next turn, and says that a user waits for one.
    pub(crate) fn begin_turn(&self, answers: impl IntoIterator<Item = Answer>) {
        let mut state = self.state.lock();
        state.answers = answers.into_iter().collect();
        state.is_waited_for = true;
    }

    pub(crate) fn end_turn(&self) {
        self.state.lock().is_waited_for = false;
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<ModelRequest> {
        std::mem::take(&mut self.state.lock().requests)
    }
}

impl ServerState {
    fn next_answer(&mut self) -> Answer {
        match (self.answers.len(), self.answers.pop_front()) {
            (1, Some(last)) => {
                self.answers.push_back(last.clone());
                last
            }
            (_, Some(answer)) => answer,
            (_, None) => Answer::whole("Let me see."),
        }
    }

    /// Returns whether a sentence says something that lasts, as far as the prompts so far say.
    fn is_durable(&self, sentence: &str) -> bool {
        let is_in_force =
            |noted: &&Noted| noted.corrected_by.is_none_or(|at| !self.seen.contains(&at));
        self.exam.iter().any(|text| text == sentence)
            || self.known.iter().filter(is_in_force).any(|noted| noted.is_said_by(sentence))
    }

    fn remember(&mut self, prompt: &str, is_for_notes: bool, is_for_facts: bool) {
        let seen = (0..self.known.len()).filter(|at| self.known[*at].is_in(prompt));
        self.seen.extend(seen.collect::<Vec<_>>());
        let new_bytes = prompt.len() - common_bytes(&self.cached, prompt);
        let (prompt, is_waited_for) = (prompt.to_owned(), self.is_waited_for);
        self.cached.clone_from(&prompt);
        self.requests.push(ModelRequest {
            prompt,
            is_for_notes: is_for_notes || is_for_facts,
            is_for_facts,
            is_waited_for,
            new_bytes,
        });
    }
}

/// Returns the last message of a request for notes; `None` for any other request.
fn asks_for_notes(messages: &[Value]) -> Option<&str> {
    let last = messages.last()?["content"].as_str()?;
    let has_heading = |heading: &&str| last.contains(&format!("## {heading}\n"));
    HEADINGS.iter().all(has_heading).then_some(last)
}

/// Returns the sentences of a request to choose facts; `None` for any other request.
fn asks_for_facts(messages: &[Value]) -> Option<Vec<&str>> {
    let last = messages.last()?["content"].as_str()?;
    let (_, list) = last.split_once("by their numbers.\n\n")?;
    let lines = list.lines().take_while(|line| !line.is_empty());
    lines.map(|line| Some(line.split_once(". ")?.1)).collect()
}

/// Returns the notes that a model writes about a prompt; `None` for an error.
fn notes(
    summarizer: Summarizer,
    prompt: &str,
    asked: &str,
    state: &mut ServerState,
) -> Option<String> {
    let known = &state.known;
    let is_corrected = |at: &usize| {
        let newer = known[*at].corrected_by.and_then(|newer| known.get(newer));
        newer.is_some_and(|newer| newer.is_in(prompt))
    };
    let shown = (0..known.len()).filter(|at| known[*at].is_in(prompt) && !is_corrected(at));
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
        let sentence = state.known[*at].sentence.as_str();
        let words = sentence.split_whitespace().count();
        if words <= left {
            left -= words;
            lines.push(sentence);
        }
    }
    lines.reverse();
    let headings = if summarizer == Summarizer::German { GERMAN } else { HEADINGS };
    Some(form(&headings, &lines))
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
