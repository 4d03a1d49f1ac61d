//! Dialogues that carry the statements: real ones from a folder, or the small one of this repository.
//!
//! `OLLM_TALK` names the folder. A file `NAME.jsonl` is one conversation, one message a line: `role` (`user`,
//! `assistant` or `tool`), `text`, and, as far as they are known, `calls[{name, args}]` of an assistant, the sentences of
//! a user that are worth keeping in `durable`, and in `needs` whether the message asks for something said long before.
//! Files that begin with `labels` are left out. `NAME.questions.json` has questions about the conversation: `[{question, evidence[texts]}]`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// The least length in bytes of a text by which a sentence is recognized.
const MIN_BYTES: usize = 16;
/// The characters at the beginning of a sentence that are enough to recognize it.
const BEGINNING_CHARS: usize = 40;

/// The most tools that an agent offers.
const MAX_TOOLS: usize = 12;

/// A tool call and its result.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) args: Value,
    pub(crate) result: String,
}

/// A message of the user and everything until the answer.
#[derive(Clone, Default)]
pub(crate) struct Turn {
    pub(crate) message: String,
    pub(crate) steps: Vec<Step>,
    pub(crate) answer: String,
    /// The sentences of the message that are worth keeping.
    pub(crate) durable: Vec<String>,
    /// Set if a person has judged whether the message needs what was said long before.
    pub(crate) needs: Option<bool>,
    /// Set for a message of a statement that the benchmark plants.
    pub(crate) is_planted: bool,
}

/// A question about a conversation, and the messages that answer it.
pub(crate) struct Question {
    pub(crate) question: String,
    pub(crate) evidence: Vec<String>,
}

/// A conversation.
pub(crate) struct Dialogue {
    pub(crate) name: String,
    pub(crate) turns: Vec<Turn>,
    pub(crate) questions: Vec<Question>,
    /// The tools that its calls need.
    pub(crate) tools: Value,
}

impl Dialogue {
    /// Reads the dialogues of the folder in `OLLM_TALK` in the order of their names, or else the small one of this
    /// repository; `n_turns` of each.
    pub(crate) fn read_all(n_turns: usize) -> Result<Vec<Self>> {
        let Some(dir) = std::env::var_os("OLLM_TALK") else {
            return Ok(vec![Self::own(n_turns)?]);
        };
        let dir = Path::new(&dir);
        let files = std::fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
        let mut names = BTreeSet::new();
        for file in files {
            let file = file?.file_name().to_string_lossy().into_owned();
            // Lists of labels may lie beside the conversations.
            let name = file.strip_suffix(".jsonl").filter(|name| !name.starts_with("labels"));
            names.extend(name.map(str::to_owned));
        }
        names.into_iter().map(|name| Self::read(dir, name, n_turns)).collect()
    }

    fn read(dir: &Path, name: String, n_turns: usize) -> Result<Self> {
        let file = dir.join(format!("{name}.jsonl"));
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let mut turns = parse_turns(&text)?;
        turns.truncate(n_turns);
        let questions = std::fs::read_to_string(dir.join(format!("{name}.questions.json")));
        let questions: Value = serde_json::from_str(questions.as_deref().unwrap_or("[]"))?;
        let question = |item: &Value| Question {
            question: text_of(&item["question"]),
            evidence: texts_of(&item["evidence"]),
        };
        let questions = questions.as_array().into_iter().flatten().map(question).collect();
        let tools = tools_of(&turns);
        Ok(Self { name, turns, questions, tools })
    }

    /// Returns the dialogue of this repository, again and again from another place.
    fn own(n_turns: usize) -> Result<Self> {
        let turns = parse_turns(include_str!("filler.jsonl"))?;
        let n = turns.len();
        let turns = (0..n_turns).map(|turn| turns[(turn + turn / n * 7) % n].clone()).collect();
        Ok(Self { name: "own".to_owned(), turns, questions: Vec::new(), tools: json!([]) })
    }
}

fn parse_turns(text: &str) -> Result<Vec<Turn>> {
    let mut turns: Vec<Turn> = Vec::new();
    for line in text.lines() {
        let message: Value = serde_json::from_str(line)?;
        let text = text_of(&message["text"]);
        if message["role"] == "user" {
            let (durable, needs) = (texts_of(&message["durable"]), message["needs"].as_bool());
            turns.push(Turn { message: text, durable, needs, ..Turn::default() });
            continue;
        }
        let turn = turns.last_mut().context("a conversation begins with the user")?;
        match (message["role"].as_str(), &message["calls"][0]) {
            (Some("tool"), _) => {
                turn.steps.last_mut().context("a result follows its call")?.result = text;
            }
            (_, Value::Null) => turn.answer = text,
            (_, call) => turn.steps.push(Step {
                name: text_of(&call["name"]),
                args: call["args"].clone(),
                result: String::new(),
            }),
        }
    }
    for turn in &mut turns {
        if turn.answer.is_empty() {
            turn.answer.push_str("Done.");
        }
    }
    Ok(turns)
}

/// Returns the tools that are called most: a dialogue may join sessions of many agents, each with its own.
fn tools_of(turns: &[Turn]) -> Value {
    let mut n_calls: BTreeMap<&str, usize> = BTreeMap::new();
    for step in turns.iter().flat_map(|turn| &turn.steps) {
        *n_calls.entry(&step.name).or_default() += 1;
    }
    let mut names: Vec<&str> = n_calls.keys().copied().collect();
    names.sort_by_key(|name| Reverse(n_calls[name]));
    names.truncate(MAX_TOOLS);
    let tool = |name| {
        json!({ "type": "function", "function": { "name": name, "description": "see its name",
            "parameters": { "type": "object", "properties": {} } } })
    };
    names.into_iter().map(tool).collect()
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts_of(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text_of).collect()
}

/// Returns whether a line says a sentence, shortened or not.
pub(crate) fn says(line: &str, sentence: &str) -> bool {
    let line = line.trim_start_matches("- ").trim_end_matches("...").trim();
    let end = sentence.char_indices().nth(BEGINNING_CHARS).map_or(sentence.len(), |(at, _)| at);
    line.contains(&sentence[..end]) || (line.len() >= MIN_BYTES && sentence.contains(line))
}

/// Returns whether a prompt has most of a message.
pub(crate) fn has_most(prompt: &str, message: &str) -> bool {
    let sentences = message.split_inclusive(['.', '!', '?', '\n']).map(str::trim);
    let sentences: Vec<&str> = sentences.filter(|sentence| sentence.len() > 1).collect();
    let bytes = |sentences: &mut dyn Iterator<Item = &&str>| -> usize {
        sentences.map(|sentence| sentence.len()).sum()
    };
    let found = bytes(&mut sentences.iter().filter(|sentence| prompt.contains(**sentence)));
    found > 0 && found * 2 >= bytes(&mut sentences.iter())
}
