//! The table of real talk: statements planted in a dialogue, and what prompts have of them at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::dialogue::{Dialogue, Turn, has_most, says};
use super::server::{Judge, MemoryServer, ModelRequest, Summarizer};
use super::statements::{Statement, noted, plant};
use crate::harness::model_server::Answer;
use crate::harness::report::{Report, Row};
use crate::harness::session::SimulatedSession;

/// The columns of the table for people: each is a number of cases and what it is out of.
const COLUMNS: &str = "talk window notes shown during other own corrected stale neverTrue wrongInFacts natural listedWorth \
    fired firedNeeded firedAsked sameAsTurn evidence byTurn head headNewest noRecall newest full facts earlier_requests memory recalled \
    readTokens selecting kept reported";
/// The blocks of a prompt, whose useful share is measured.
const BLOCKS: [&str; 4] = ["facts", "memory", "earlier_requests", "recalled"];
/// The time in which the index must have every message before questions are asked.
const INDEX_LIMIT: Duration = Duration::from_secs(60);
/// The last turns whose prompts are compared with the newest turns alone: a head holds more or less depending on how long
/// ago it was made.
const LAST_TURNS: usize = 40;
/// Turns between two places at which the questions are asked: how full the context is decides much of what a single one shows.
const TURNS_BETWEEN: usize = 8;
/// The questions for which a turn is compared with a build.
const COMPARED: usize = 6;
const BYTES_PER_TOKEN: u64 = 4;
/// The tokens of a question, for the room of the newest turns alone.
const QUESTION_TOKENS: u64 = 24;

/// The arguments of the table of real talk.
pub(crate) struct TalkOptions {
    pub(crate) n_turns: usize,
    pub(crate) windows: Vec<u32>,
    pub(crate) summarizers: Vec<Summarizer>,
    pub(crate) set: String,
    /// The dialogues that are played; empty for all.
    pub(crate) names: Vec<String>,
    pub(crate) pause_ms: u64,
    pub(crate) notes_ms: u64,
    pub(crate) judge: Judge,
    /// The folder for the last prompt of each session.
    pub(crate) dump: Option<String>,
    pub(crate) has_recall: bool,
}

/// Prints a row for each session, and one for each window and summarizer.
pub(crate) fn run(options: &TalkOptions, report: &Report) -> Result<()> {
    let statements = Statement::read(&options.set)?;
    let mut dialogues = Dialogue::read_all(options.n_turns)?;
    let names = &options.names;
    dialogues.retain(|dialogue| names.is_empty() || names.contains(&dialogue.name));
    for &window in &options.windows {
        for &summarizer in &options.summarizers {
            let mut total = Counts::default();
            for dialogue in &dialogues {
                // Questions about a conversation are asked where nothing else stands.
                let own: &[Statement] =
                    if dialogue.questions.is_empty() { &statements } else { &[] };
                let played = Played::start(options, summarizer, window, dialogue, own)?;
                let counts = played.play(options)?;
                report.print(counts.row(&dialogue.name, window, summarizer))?;
                total.add_all(counts);
            }
            report.print(total.row("all", window, summarizer))?;
        }
    }
    report.print_table(COLUMNS)
}

/// Numbers of cases by name, each with what it is out of.
#[derive(Default)]
struct Counts {
    counts: BTreeMap<String, (u64, u64)>,
    /// Statements that are not shown, and those that are wrongly shown.
    missing: Vec<String>,
    wrong: Vec<String>,
}

impl Counts {
    fn add(&mut self, name: &str, is_counted: bool) {
        self.add_number(name, u64::from(is_counted), 1);
    }

    fn add_number(&mut self, name: &str, number: u64, out_of: u64) {
        let count = self.counts.entry(name.to_owned()).or_default();
        *count = (count.0 + number, count.1 + out_of);
    }

    fn add_all(&mut self, other: Self) {
        for (name, (number, out_of)) in other.counts {
            self.add_number(&name, number, out_of);
        }
        self.missing.extend(other.missing);
        self.wrong.extend(other.wrong);
    }

    fn row(&self, name: &str, window: u32, summarizer: Summarizer) -> Row {
        let row = Row::value(&format!("{name} {window} {}", summarizer.name()), "statements", {
            self.counts.get("shown").map_or(0, |count| count.0)
        });
        let row = row.with("talk", name).with("window", window).with("notes", summarizer.name());
        let mut styles = Map::new();
        let mut row = row;
        for (name, (number, out_of)) in &self.counts {
            let text = format!("{number}/{out_of}");
            match name.strip_prefix("style ") {
                Some(style) => drop(styles.insert(style.to_owned(), json!(text))),
                None => row = row.with(name, text),
            }
        }
        row.with("styles", styles)
            .with("missing", json!(self.missing))
            .with("wrong", json!(self.wrong))
    }
}

/// A dialogue that is played.
struct Played<'d> {
    inner: SimulatedSession<MemoryServer>,
    dialogue: &'d Dialogue,
    statements: &'d [Statement],
    turns: Vec<Turn>,
    counts: Counts,
    file: String,
    /// The statements that were said.
    said: BTreeSet<usize>,
    /// The messages that were recorded, each with its tokens.
    messages: Vec<(String, u64)>,
}

impl<'d> Played<'d> {
    fn start(
        options: &TalkOptions,
        summarizer: Summarizer,
        window: u32,
        dialogue: &'d Dialogue,
        statements: &'d [Statement],
    ) -> Result<Self> {
        let delay = Duration::from_millis(options.notes_ms);
        let server = MemoryServer::start(
            summarizer,
            options.judge,
            delay,
            noted(statements, &dialogue.turns),
        );
        let host = server.fake.host().to_owned();
        let more = if options.has_recall { "" } else { "recall: { scope: 'off' }\n" };
        let inner = SimulatedSession::start(server, &host, window, more)?;
        let turns = plant(&dialogue.turns, statements);
        let file = format!("{}-{window}-{}.txt", dialogue.name, summarizer.name());
        Ok(Self {
            inner,
            dialogue,
            statements,
            turns,
            counts: Counts::default(),
            file,
            said: BTreeSet::new(),
            messages: Vec::new(),
        })
    }

    fn play(mut self, options: &TalkOptions) -> Result<Counts> {
        let mut last = String::new();
        let mut said: Vec<String> = Vec::new();
        let turns = std::mem::take(&mut self.turns);
        let n_turns = turns.len();
        for (at, turn) in turns.into_iter().enumerate() {
            let is_compared = !self.dialogue.questions.is_empty() && at + LAST_TURNS >= n_turns;
            let newest = if is_compared { Some(self.newest_turns()?) } else { None };
            let requests = self.turn(&turn)?;
            if !turn.is_planted {
                self.count_recall(&turn, &requests);
            }
            if let Some(request) = requests.into_iter().rfind(|request| !request.is_for_notes) {
                last = request.prompt;
            }
            if let Some(newest) = newest {
                self.count_head(&last, &newest);
                if (n_turns - 1 - at).is_multiple_of(TURNS_BETWEEN) {
                    let newest = self.newest_turns()?;
                    self.count_evidence(&newest)?;
                }
            }
            said.extend([turn.message, turn.answer]);
            self.count_during(&last, &said);
            std::thread::sleep(Duration::from_millis(options.pause_ms));
        }
        if let Some(dir) = &options.dump {
            File::create(Path::new(dir).join(&self.file))?.write_all(last.as_bytes())?;
        }
        self.inner.daemon.wait_indexed(INDEX_LIMIT)?;
        self.count_shown(&last);
        self.count_blocks(&last);
        self.count_facts(&last)?;
        self.ask_statements(&last)?;
        self.ask_questions()?;
        self.compare_turns()?;
        Ok(self.counts)
    }

    /// Plays a turn; returns the requests that the server got since the turn before.
    fn turn(&mut self, turn: &Turn) -> Result<Vec<ModelRequest>> {
        let calls = turn.steps.iter();
        let calls = calls.map(|step| Answer::whole("").tool_call(&step.name, step.args.clone()));
        let answers: Vec<Answer> = calls.chain([Answer::whole(&turn.answer)]).collect();
        self.inner.server.begin_turn(answers);
        let mut results = turn.steps.iter().map(|step| step.result.clone());
        let tools = &self.dialogue.tools;
        let outcome =
            self.inner.turn(&turn.message, tools, |_, _| results.next().unwrap_or_default())?;
        self.inner.server.end_turn();
        self.counts.add("failedTurns", outcome.error.is_some());
        let requests = self.inner.server.take_requests();
        for request in &requests {
            self.counts.add("requestsForNotes", request.is_for_notes);
            let tokens = request.new_bytes as u64 / BYTES_PER_TOKEN;
            if request.is_for_facts {
                self.counts.add_number("selecting", tokens, 1);
            }
            self.counts.add_number("readTokens", tokens, 0);
        }
        self.counts.add_number("readTokens", 0, 1);
        Ok(requests)
    }

    /// Counts whether recall fired in a turn of the dialogue: in all, and in those that are known to need it or not.
    fn count_recall(&mut self, turn: &Turn, requests: &[ModelRequest]) {
        let has_recalled = |request: &ModelRequest| {
            let newest = request.prompt.rsplit_once("\n<user>").map_or("", |(_, newest)| newest);
            newest.contains("<recalled>")
        };
        let has_fired =
            requests.iter().any(|request| !request.is_for_notes && has_recalled(request));
        self.counts.add("fired", has_fired);
        match turn.needs {
            Some(true) => self.counts.add("firedNeeded", has_fired),
            Some(false) => self.counts.add("firedOrdinary", has_fired),
            None => {}
        }
    }

    /// Counts the statements so far that a prompt of the conversation shows.
    fn count_during(&mut self, prompt: &str, said: &[String]) {
        let newest = &said[said.len().saturating_sub(2)..];
        for (at, statement) in self.statements.iter().enumerate() {
            if statement.can_be_shown() && newest.iter().any(|text| statement.is_in(text)) {
                self.said.insert(at);
            }
        }
        for at in &self.said {
            let is_shown = self.statements[*at].is_in(prompt);
            self.counts.add("during", is_shown);
        }
    }

    fn count_shown(&mut self, prompt: &str) {
        let is_believed = |statement: &Statement, tag: &str| {
            let lines = block_lines(prompt, tag);
            lines.iter().any(|line| statement.is_wrong_in(&without_before(line)))
        };
        let (counts, statements) = (&mut self.counts, self.statements);
        for statement in statements {
            let in_facts = is_believed(statement, "facts");
            let in_notes = is_believed(statement, "memory");
            let is_wrong = in_facts || in_notes;
            counts.add("wrongInFacts", in_facts);
            counts.add("wrongInNotes", in_notes);
            if is_wrong {
                counts.wrong.push(statement.id.clone());
            }
            if !statement.keep {
                counts.add("neverTrue", is_wrong);
                continue;
            }
            if !statement.stale.is_empty() {
                counts.add("stale", is_wrong);
            }
            if !statement.can_be_shown() {
                continue;
            }
            let is_shown = statement.is_in(prompt);
            counts.add("shown", is_shown);
            counts.add("kept", is_shown);
            counts.add(&format!("style {}", statement.style), is_shown);
            if !statement.stale.is_empty() {
                counts.add("corrected", is_shown);
            }
            if !is_shown {
                counts.missing.push(statement.id.clone());
            }
        }
    }

    /// Counts the questions for which a prompt has evidence without what was recalled, and those for which the newest
    /// messages before it have some.
    fn count_head(&mut self, prompt: &str, newest: &str) {
        let head = without_recalled(prompt);
        for (name, text) in [("head", head.as_str()), ("headNewest", newest)] {
            self.counts.add_number(
                &format!("{name}Tokens"),
                text.len() as u64 / BYTES_PER_TOKEN,
                1,
            );
            for item in &self.dialogue.questions {
                let is_there = item.evidence.iter().any(|message| has_most(text, message));
                self.counts.add(name, is_there);
            }
        }
    }

    /// Returns whether a line says something that lasts.
    fn is_worth(&self, line: &str) -> bool {
        let has = |statement: &&Statement| statement.keep && statement.is_in(line);
        let mut durable = self.dialogue.turns.iter().flat_map(|turn| &turn.durable);
        self.statements.iter().any(|statement| has(&statement))
            || durable.any(|sentence| says(line, sentence))
    }

    /// Counts the useful tokens of each block, of all that the block has.
    fn count_blocks(&mut self, prompt: &str) {
        for tag in BLOCKS {
            for line in block_lines(prompt, tag) {
                let tokens = (line.len() as u64).div_ceil(BYTES_PER_TOKEN);
                let useful = if self.is_worth(line) { tokens } else { 0 };
                self.counts.add_number(tag, useful, tokens);
            }
        }
        let n_bytes = prompt.len() as u64;
        self.counts.add_number("promptTokens", n_bytes / BYTES_PER_TOKEN, 1);
    }

    /// Counts what the session lists: the lasting sentences of the dialogue that are there, and how much of it lasts;
    /// and the share that the daemon reports as kept.
    fn count_facts(&mut self, last: &str) -> Result<()> {
        let mut listed: Vec<String> = Vec::new();
        let mut cursor = Value::Null;
        loop {
            let mut params = json!({ "limit": 100 });
            if !cursor.is_null() {
                params["cursor"] = cursor;
            }
            let mut page = self.inner.call("context.facts", params)?;
            let data = page["data"].as_array().into_iter().flatten();
            listed.extend(data.filter_map(|fact| fact["text"].as_str().map(str::to_owned)));
            cursor = page["nextCursor"].take();
            if cursor.is_null() {
                break;
            }
        }
        for fact in &listed {
            let is_worth = self.is_worth(fact);
            self.counts.add("listedWorth", is_worth);
        }
        let judged = self.dialogue.turns.iter().filter(|turn| turn.needs.is_some());
        for sentence in judged.flat_map(|turn| &turn.durable) {
            let is_listed = listed.iter().any(|fact| says(fact, sentence));
            self.counts.add("natural", is_listed);
            self.counts.add("kept", has_most(last, sentence));
        }
        let reliability = self.inner.call("context.status", json!({}))?["reliability"].take();
        if let Some(score) = reliability["score"].as_f64() {
            self.counts.add_number("reported", score.round() as u64, 100);
        }
        Ok(())
    }

    /// Asks for each statement, in other words and in its own.
    fn ask_statements(&mut self, last: &str) -> Result<()> {
        for statement in self.statements.iter().filter(|statement| statement.can_be_shown()) {
            for (name, question) in [("other", &statement.other), ("own", &statement.own)] {
                let (prompt, has_recalled) = self.build(question, true)?;
                self.counts.add(name, statement.is_in(&prompt));
                if !statement.is_in(last) {
                    self.counts.add("firedAsked", has_recalled);
                }
            }
        }
        Ok(())
    }

    /// Asks the questions about the dialogue of builds with recall and without, of the newest turns alone and of the whole
    /// dialogue.
    fn count_evidence(&mut self, newest: &str) -> Result<()> {
        let whole: String = self.dialogue.turns.iter().map(transcript).collect();
        for item in &self.dialogue.questions {
            let (with, _) = self.build(&item.question, true)?;
            let (without, _) = self.build(&item.question, false)?;
            let prompts = [
                ("evidence", with.as_str()),
                ("noRecall", &without),
                ("newest", newest),
                ("full", &whole),
            ];
            for (name, prompt) in prompts {
                let n = item.evidence.iter().filter(|message| has_most(prompt, message)).count();
                self.counts.add(name, n > 0);
                self.counts.add(&format!("{name}All"), n == item.evidence.len());
            }
        }
        Ok(())
    }

    /// Asks the questions about the dialogue by turns, which see what the questions before have recalled.
    fn ask_questions(&mut self) -> Result<()> {
        for item in &self.dialogue.questions {
            let prompt = self.ask(&item.question)?;
            let is_there = item.evidence.iter().any(|message| has_most(&prompt, message));
            self.counts.add("byTurn", is_there);
        }
        Ok(())
    }

    /// Returns the newest messages that fit into the window beside a question.
    fn newest_turns(&mut self) -> Result<String> {
        for record in self.inner.new_records()? {
            let Some(parts) = record["message"]["parts"].as_array() else { continue };
            let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            self.messages.push((texts.join("\n"), record["tokens"].as_u64().unwrap_or_default()));
        }
        let mut left = self.newest_room()?;
        let newest = self.messages.iter().rev().take_while(|(_, tokens)| {
            let rest = left.checked_sub(*tokens);
            left = rest.unwrap_or(0);
            rest.is_some()
        });
        Ok(newest.map(|(text, _)| text.as_str()).collect::<Vec<_>>().join("\n"))
    }

    /// Returns the tokens that messages could have in a prompt without notes, beside a question.
    fn newest_room(&mut self) -> Result<u64> {
        let status = self.inner.call("context.status", json!({}))?;
        // Notes have a share of the room that the newest turns alone would have.
        let parts = status["parts"].as_array().into_iter().flatten();
        let mut system = parts.filter(|part| part["name"] == "system");
        let system = system.find_map(|part| part["tokens"].as_u64()).unwrap_or_default();
        let limit = status["promptLimit"].as_u64().context("a number")?;
        Ok(limit.saturating_sub(system + QUESTION_TOKENS))
    }

    /// Compares what a build shows for a question with what a turn sends.
    fn compare_turns(&mut self) -> Result<()> {
        let statements = self.statements.iter().filter(|statement| statement.can_be_shown());
        let own = statements.map(|statement| statement.own.clone());
        let about = self.dialogue.questions.iter().map(|item| item.question.clone());
        for message in own.chain(about).take(COMPARED).collect::<Vec<_>>() {
            // Both search the same messages.
            self.inner.daemon.wait_indexed(INDEX_LIMIT)?;
            let (prompt, _) = self.build(&message, true)?;
            let is_same = self.ask(&message)?.ends_with(&prompt);
            self.counts.add("sameAsTurn", is_same);
        }
        Ok(())
    }

    /// Sends a question; returns the prompt that the server got. What it reads does not count.
    fn ask(&mut self, question: &str) -> Result<String> {
        let answer = "Let me think.".to_owned();
        let turn = Turn { message: question.to_owned(), answer, ..Turn::default() };
        let counts = self.counts.counts.clone();
        let requests = self.turn(&turn)?;
        self.counts.counts = counts;
        let sent = requests.into_iter().rfind(|request| !request.is_for_notes);
        Ok(sent.map(|request| request.prompt).unwrap_or_default())
    }

    /// Returns the prompt for a message, and whether something was recalled for it. Nothing is recorded.
    fn build(&mut self, message: &str, recall: bool) -> Result<(String, bool)> {
        let params = json!({ "pending": message, "recall": recall, "tools": self.dialogue.tools });
        let build = self.inner.call("context.build", params)?;
        let mut prompt = String::new();
        for message in build["messages"].as_array().into_iter().flatten() {
            prompt.push_str(&format!("\n<{}>", message["role"].as_str().unwrap_or_default()));
            prompt.push_str(message["content"].as_str().unwrap_or_default());
            if let Some(calls) = message.get("tool_calls") {
                prompt.push_str(&calls.to_string());
            }
        }
        let has_recalled = build["recalled"].as_array().is_some_and(|found| !found.is_empty());
        Ok((prompt, has_recalled))
    }
}

/// Returns a prompt without the blocks of what was recalled.
fn without_recalled(prompt: &str) -> String {
    let mut parts = prompt.split("<recalled>");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once("</recalled>").map_or("", |(_, rest)| rest));
    }
    text
}

fn transcript(turn: &Turn) -> String {
    format!("{}\n{}\n", turn.message, turn.answer)
}

/// Returns the lines with text of all blocks of a name in a prompt.
fn block_lines<'p>(prompt: &'p str, tag: &str) -> Vec<&'p str> {
    let (begin, end) = (format!("<{tag}>\n"), format!("</{tag}>"));
    let blocks = prompt.split(&begin).skip(1);
    let inside = blocks.filter_map(|block| block.split_once(&end));
    let lines = inside.flat_map(|(inside, _)| inside.lines());
    lines.filter(|line| !line.trim().is_empty()).collect()
}

/// Returns a line without what it says to have been before.
fn without_before(line: &str) -> String {
    match line.split_once("(before: ") {
        Some((text, rest)) => {
            format!("{text}{}", rest.split_once(')').map_or("", |(_, rest)| rest))
        }
        None => line.to_owned(),
    }
}
