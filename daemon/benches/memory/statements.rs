//! Statements as people make them, planted in a dialogue; STATEMENTS.md describes their files.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::dialogue::Turn;
use super::server::Noted;

/// Replies of the assistant to statements without one of their own.
const REPLIES: [&str; 4] = ["Okay.", "Got it.", "Sure.", "Right."];
/// The message of the user before a statement that begins with the assistant's.
const ASKS: &str = "What else do you need?";
/// The percentage of a dialogue at whose end nothing is planted.
const END_PERCENT: usize = 10;
/// Distance of a correction from what it corrects, in parts of the dialogue.
const GAP: f64 = 0.3;
/// The least length of a sentence that stands alone in notes.
const MIN_SENTENCE_BYTES: usize = 16;

/// A statement of the user.
pub(crate) struct Statement {
    pub(crate) id: String,
    pub(crate) style: String,
    pub(crate) keep: bool,
    pub(crate) shows: Vec<String>,
    pub(crate) stale: Vec<String>,
    pub(crate) other: String,
    pub(crate) own: String,
    /// The places in which it is said; each is a list of messages with their roles before them.
    said: Vec<Vec<String>>,
}

impl Statement {
    /// Reads a set: `tune`, `unread`, `none`, which is empty, or a file.
    pub(crate) fn read(set: &str) -> Result<Vec<Self>> {
        let text = match set {
            "tune" => include_str!("tune.jsonl").to_owned(),
            "unread" => include_str!("unread.jsonl").to_owned(),
            "none" => String::new(),
            file => std::fs::read_to_string(file).with_context(|| format!("read {file}"))?,
        };
        text.lines().map(Self::parse).collect()
    }

    fn parse(line: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(line)?;
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        let said = value["said"].as_array().context("a statement is said")?;
        let statement = Self {
            id: text("id"),
            style: text("style"),
            keep: value["keep"] == true,
            shows: texts(&value["shows"]),
            stale: texts(&value["stale"]),
            other: text("other"),
            own: text("own"),
            said: said.iter().map(texts).collect(),
        };
        let whole = statement.said.concat().join("\n");
        let is_said = |value: &String| whole.contains(value.as_str());
        let has_value = statement.shows.is_empty() || statement.shows.iter().any(is_said);
        let questions = [&statement.other, &statement.own];
        let is_given_away =
            statement.keep && questions.into_iter().any(|question| statement.is_in(question));
        ensure!(!is_given_away, "{}: a question has the answer", statement.id);
        ensure!(
            has_value && statement.stale.iter().all(is_said),
            "{}: a value is not said",
            statement.id
        );
        Ok(statement)
    }

    /// Returns whether there is something that a prompt should show.
    pub(crate) fn can_be_shown(&self) -> bool {
        self.keep && !self.shows.is_empty()
    }

    /// Returns whether a text says the statement.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        self.shows.iter().any(|value| text.contains(value.as_str()))
    }

    /// Returns whether a line says the value before the correction as if it still held, or what never held.
    pub(crate) fn is_wrong_in(&self, line: &str) -> bool {
        let is_stale = self.stale.iter().any(|value| line.contains(value.as_str()));
        if self.keep { is_stale && !self.is_in(line) } else { is_stale || self.is_in(line) }
    }

    /// Returns the turns of one place.
    fn turns(&self, place: usize) -> Vec<Turn> {
        let mut turns: Vec<Turn> = Vec::new();
        for message in &self.said[place] {
            let (user, answer) = match message.strip_prefix("assistant: ") {
                Some(answer) => (turns.pop().map_or(ASKS.to_owned(), |turn| turn.message), answer),
                None => {
                    let reply = (self.id.len() + message.len()) % REPLIES.len();
                    (message.trim_start_matches("user: ").to_owned(), REPLIES[reply])
                }
            };
            let answer = answer.to_owned();
            turns.push(Turn { message: user, answer, is_planted: true, ..Turn::default() });
        }
        turns
    }

    /// Returns the line of notes that says a place: the sentence with the value, behind the question that it answers.
    fn note(&self, place: usize, values: &[String]) -> String {
        let has_value = |text: &str| values.iter().any(|value| text.contains(value.as_str()));
        let messages = &self.said[place];
        let at = messages.iter().position(|message| has_value(message)).unwrap_or_default();
        let text = |at: usize| messages[at].split_once(": ").map_or("", |(_, text)| text);
        let whole = text(at);
        // Shorter pieces end at an abbreviation.
        let mut sentences = whole.lines().flat_map(|line| line.split(". "));
        let is_it = |sentence: &&str| has_value(sentence) && sentence.len() >= MIN_SENTENCE_BYTES;
        let sentence = sentences.find(is_it).unwrap_or(whole);
        let question = if at > 0 && messages[at].starts_with("user: ") { text(at - 1) } else { "" };
        format!("{question} {sentence}").trim().replace('\n', " ")
    }
}

/// Returns what the notes of a model can keep of statements and of a dialogue, as far as a person has judged it.
pub(crate) fn noted(statements: &[Statement], dialogue: &[Turn]) -> Vec<Noted> {
    let mut noted = Vec::new();
    for statement in statements.iter().filter(|statement| statement.keep) {
        let last = statement.said.len() - 1;
        if last > 0 {
            let sentence = statement.note(0, &statement.stale);
            let corrected_by = Some(noted.len() + 1);
            noted.push(Noted { sentence, values: statement.stale.clone(), corrected_by });
        }
        let mut values = statement.shows.clone();
        if values.is_empty() {
            values.extend(statement.turns(last).into_iter().map(|turn| turn.message));
        }
        let sentence = statement.note(last, &values);
        noted.push(Noted { sentence, values, corrected_by: None });
    }
    let judged = dialogue.iter().filter(|turn| turn.needs.is_some());
    let natural = judged.flat_map(|turn| &turn.durable).map(|sentence| Noted {
        sentence: sentence.clone(),
        values: vec![sentence.clone()],
        corrected_by: None,
    });
    noted.extend(natural);
    noted
}

/// Plants statements at even places of a dialogue, in an order that mixes them. A correction follows what it corrects
/// at a distance. The first message of a session counts as its task, so it is none of them.
pub(crate) fn plant(carrier: &[Turn], statements: &[Statement]) -> Vec<Turn> {
    let mut places: Vec<(f64, Vec<Turn>)> = Vec::new();
    for (at, statement) in statements.iter().enumerate() {
        // The golden ratio spreads numbers evenly.
        let spread = (at as f64 * 0.618_034).fract();
        let first = if statement.said.len() > 1 { spread * (1.0 - GAP) } else { spread };
        for place in 0..statement.said.len() {
            places.push((first + place as f64 * GAP, statement.turns(place)));
        }
    }
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    let room = carrier.len() * (100 - END_PERCENT) / 100;
    let n_places = places.len();
    let mut places = places.into_iter().map(|(_, turns)| turns).enumerate().peekable();
    let mut turns = Vec::new();
    for (at, turn) in carrier.iter().enumerate() {
        while let Some((_, planted)) = places.next_if(|(place, _)| place * room / n_places < at) {
            turns.extend(planted);
        }
        turns.push(turn.clone());
    }
    turns
}

fn texts(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
}
