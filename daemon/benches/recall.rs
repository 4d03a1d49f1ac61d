//! Recall: its latency over generated logs, or how often it finds the messages that answer the questions of LoCoMo.
//!
//! Run with `cargo bench --bench recall` for the latency in one session of 100,000 records and over 1 GB, or
//! `OLLM_BENCH_MB=64 cargo bench --bench recall` for less. `OLLM_BENCH_HOME=DIR` keeps the logs and the index in an
//! existing directory, for the next run.
//! Run with `cargo bench --bench recall -- locomo10.json [CONVERSATIONS]` for the quality. The file is
//! `data/locomo10.json` of `snap-research/LoCoMo`; its license forbids to keep it here. Default are the first two of
//! its ten conversations, by which the ranking was tuned.

mod harness;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use harness::arguments::{Arguments, variable};
use harness::daemon::{Client, Daemon, Home};
use harness::generate::{LogWriter, Random, TextGenerator};
use harness::report::{Report, Row, Samples, Slowest, is_bench_run, rounded};

const DEFAULT_MB: usize = 1024;
const MESSAGE_BYTES: usize = 1024;
const MESSAGES_PER_SESSION: usize = 500;
/// The records of the long session, and the size of its messages.
const LONG_SESSION_RECORDS: usize = 100_000;
const SHORT_MESSAGE_BYTES: usize = 300;
const QUESTIONS: usize = 200;
const INDEX_LIMIT: Duration = Duration::from_secs(1800);
/// The number of messages that are asked for, enough for ten different sessions.
const ASKED: usize = 100;
const DEFAULT_CONVERSATIONS: usize = 2;

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    match &*Arguments::new().rest()? {
        [] => latency(),
        [file] => quality(file, DEFAULT_CONVERSATIONS),
        [file, conversations, ..] => quality(file, conversations.parse()?),
    }
}

/// Measures questions over generated logs.
fn latency() -> Result<()> {
    let mb: usize = variable("OLLM_BENCH_MB", DEFAULT_MB)?;
    let home = Home::kept_or_new()?;
    let mut text = TextGenerator::new(7);
    let n_long = LONG_SESSION_RECORDS * mb / DEFAULT_MB;
    let long = match largest_log(&home.sessions())? {
        Some(long) => long,
        None => write_logs(&home.sessions(), &mut text, mb, n_long)?,
    };
    let report = Report::new("recall", &json!({ "MiB": mb, "longSession": n_long }));
    let daemon = Daemon::start(&home)?;
    daemon.wait_indexed(INDEX_LIMIT)?;
    let mut client = daemon.connect()?;
    let scopes =
        [("in one session", json!({ "sessionId": long }), 5e3), ("over all", json!({}), 20e3)];
    for (name, scope, bar_p99_us) in scopes {
        let mut random = Random::new(11);
        let questions = (0..QUESTIONS + QUESTIONS / 10).map(|_| question(&text, &mut random));
        let Slowest(samples, slowest) = Slowest::take(questions, QUESTIONS / 10, |question| {
            let mut params = scope.clone();
            params["query"] = json!(question);
            client.call("context.recall", &params).map(drop)
        })?;
        let p99 = samples.percentile_us(99.0);
        let row = Row::latency(&format!("recall {name}"), &samples).with("slowest", slowest);
        report.print(row.at_most(p99, bar_p99_us))?;
    }
    report.print(added_to_a_build(&mut client, &text, &long)?)?;
    report.print(Row::value("memory after recalls", "KiB", daemon.rss_kib()?))?;
    daemon.stop()
}

/// Measures what a turn waits for automatic recall, by builds with and without it.
fn added_to_a_build(client: &mut Client, text: &TextGenerator, long: &str) -> Result<Row> {
    let build = json!({ "sessionId": long, "contextSize": 8192 });
    let mut recorded = build.clone();
    recorded["compact"] = json!("auto");
    client.call("context.build", &recorded)?;
    let mut samples = [Samples::default(), Samples::default()];
    let mut random = Random::new(13);
    for _ in 0..QUESTIONS {
        let mut params = build.clone();
        params["pending"] = json!(question(text, &mut random));
        for (samples, recall) in samples.iter_mut().zip([false, true]) {
            params["recall"] = json!(recall);
            samples.push(client.time("context.build", &params)?);
        }
    }
    let [without, with] = samples.map(|samples| samples.percentile_us(50.0));
    let row = Row::value("recall added to a build", "us", rounded(with - without));
    Ok(row.with("without", rounded(without)).at_most(with - without, 3e3))
}

/// Writes a long session and many short ones; returns the id of the long one.
fn write_logs(dir: &Path, text: &mut TextGenerator, mb: usize, n_long: usize) -> Result<String> {
    let mut logs = LogWriter::new(dir);
    let long = logs.write((0..n_long).map(|_| text.message(SHORT_MESSAGE_BYTES)))?;
    for _ in 0..mb * 1024 * 1024 / (MESSAGE_BYTES * MESSAGES_PER_SESSION) {
        logs.write((0..MESSAGES_PER_SESSION).map(|_| text.message(MESSAGE_BYTES)))?;
    }
    Ok(long)
}

/// Returns the id of the session with the largest log; `None` in a new home.
fn largest_log(dir: &Path) -> Result<Option<String>> {
    let mut largest = (0, None);
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let bytes = path.metadata()?.len();
        if path.extension().is_some_and(|extension| extension == "jsonl") && bytes > largest.0 {
            largest = (bytes, path.file_stem().map(|id| id.to_string_lossy().into_owned()));
        }
    }
    Ok(largest.1)
}

/// Returns a question of five words of all frequencies, as people ask: two common ones, and three rarer ones.
fn question(text: &TextGenerator, random: &mut Random) -> String {
    let ranks = [20, 200, 2_000, 10_000, 60_000].map(|below| random.below(below));
    ranks.map(|rank| text.word_of_rank(rank)).join(" ")
}

/// Asks the questions of LoCoMo, in a project for each conversation with a session for each of its dates.
fn quality(file: &str, n_conversations: usize) -> Result<()> {
    let all: Value = serde_json::from_slice(&std::fs::read(file)?)?;
    let all = all.as_array().context("a list of conversations")?;
    let home = Home::new()?;
    let daemon = Daemon::start(&home)?;
    let mut client = daemon.connect()?;
    let report = Report::new("recall", &json!({ "conversations": n_conversations }));
    let mut imported = Vec::new();
    for (number, conversation) in all.iter().take(n_conversations).enumerate() {
        let project = home.path().join(format!("project{number}"));
        std::fs::create_dir(&project)?;
        let project = project.to_str().context("a path in UTF-8")?.to_owned();
        let messages = import(&mut client, &conversation["conversation"], &project)?;
        imported.push((project, messages));
    }
    daemon.wait_indexed(INDEX_LIMIT)?;
    let mut found = Found::default();
    for (conversation, (project, messages)) in all.iter().zip(&imported) {
        let questions = conversation["qa"].as_array().context("questions")?;
        for question in questions {
            found.ask(&mut client, project, messages, question)?;
        }
    }
    for (at, (name, bar)) in FIGURES.iter().enumerate() {
        let percent = f64::from(found.counts[at]) * 100.0 / f64::from(found.n_questions.max(1));
        let row = Row::value(name, "%", rounded(percent)).with("questions", found.n_questions);
        report.print(row.bar(&format!(">= {bar}"), percent >= *bar))?;
    }
    report.print(Row::latency("recall in a project", &found.samples))?;
    daemon.stop()
}

/// The names and bars of [`Found::counts`].
const FIGURES: [(&str, f64); 4] = [
    ("evidence among the first 5", 70.0),
    ("evidence among the first 10", 79.0),
    ("session among the first 5", 92.0),
    ("session among the first 10", 96.0),
];

/// A message of a conversation, by its session and record.
type Place = (String, u64);

/// Records a conversation; returns the id of each message's place.
fn import(client: &mut Client, talk: &Value, project: &str) -> Result<HashMap<Place, String>> {
    let mut messages = HashMap::new();
    for number in 1.. {
        let Some(turns) = talk[format!("session_{number}")].as_array() else {
            if number > 40 {
                break;
            }
            continue;
        };
        let session = client.create(&json!({ "projectPath": project }))?;
        let date = talk[format!("session_{number}_date_time")].as_str().unwrap_or_default();
        let at = timestamp(date).with_context(|| format!("the date {date}"))?;
        for turn in turns {
            let (speaker, text) = (turn["speaker"].as_str(), turn["text"].as_str());
            let role = if turn["speaker"] == talk["speaker_a"] { "user" } else { "assistant" };
            let text = format!("{}: {}", speaker.unwrap_or_default(), text.unwrap_or_default());
            let message = json!({ "role": role, "content": text, "timestamp": at });
            let params = json!({ "sessionId": session, "message": message });
            let recorded = client.call("session.record", &params)?;
            let seq = recorded["seq"].as_u64().context("a record has a number")?;
            let id = turn["dia_id"].as_str().unwrap_or_default().to_owned();
            messages.insert((session.clone(), seq), id);
        }
    }
    Ok(messages)
}

/// Converts a date such as `1:56 pm on 8 May, 2023`.
fn timestamp(date: &str) -> Option<String> {
    let (time, day) = date.split_once(" on ")?;
    let (clock, half) = time.split_once(' ')?;
    let (hour, minute) = clock.split_once(':')?;
    let hour: u32 = hour.parse().ok()?;
    let hour = hour % 12 + if half == "pm" { 12 } else { 0 };
    let mut parts = day.split([' ', ',']).filter(|part| !part.is_empty());
    let (day, month, year) = (parts.next()?, parts.next()?, parts.next()?);
    let months =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = months.iter().position(|name| month.starts_with(name))? + 1;
    let day: u32 = day.parse().ok()?;
    Some(format!("{year}-{month:02}-{day:02}T{hour:02}:{minute}:00Z"))
}

/// How often the evidence of a question, and its session, was found.
#[derive(Default)]
struct Found {
    n_questions: u32,
    counts: [u32; 4],
    samples: Samples,
}

impl Found {
    fn ask(
        &mut self,
        client: &mut Client,
        project: &str,
        messages: &HashMap<Place, String>,
        question: &Value,
    ) -> Result<()> {
        let texts = question["evidence"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let named: HashSet<&str> = texts.flat_map(|text| text.split([' ', ';', ','])).collect();
        let evidence: HashSet<&Place> = messages
            .iter()
            .filter(|(_, id)| named.contains(id.as_str()))
            .map(|(at, _)| at)
            .collect();
        if evidence.is_empty() {
            return Ok(());
        }
        self.n_questions += 1;
        let query = question["question"].as_str().unwrap_or_default();
        let params = json!({ "query": query, "projectPath": project, "limit": ASKED });
        let (reply, elapsed) = client.timed("context.recall", &params)?;
        self.samples.push(elapsed);
        let hits: Vec<Place> = reply["data"].as_array().into_iter().flatten().map(place).collect();
        let mut sessions: Vec<&str> = Vec::new();
        for (session, _) in &hits {
            if !sessions.contains(&session.as_str()) {
                sessions.push(session);
            }
        }
        let homes: HashSet<&str> = evidence.iter().map(|(session, _)| session.as_str()).collect();
        for (at, n) in [5, 10].into_iter().enumerate() {
            let is_found = hits.iter().take(n).any(|hit| evidence.contains(hit));
            self.counts[at] += u32::from(is_found);
            let is_home = sessions.iter().take(n).any(|session| homes.contains(session));
            self.counts[2 + at] += u32::from(is_home);
        }
        Ok(())
    }
}

fn place(hit: &Value) -> Place {
    let session = hit["sessionId"].as_str().unwrap_or_default().to_owned();
    (session, hit["seq"].as_u64().unwrap_or_default())
}
