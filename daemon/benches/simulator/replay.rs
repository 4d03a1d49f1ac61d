//! A real session, recorded again message by message: the prompt that each answer had is built anew in smaller windows.

use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::facts::Facts;
use super::stage::Stage;
use super::summarizer::Summarizer;
use super::tally::Tally;
use crate::harness::process::rss_kib;

/// Share of the room of a conversation from which on it is compacted, in percent.
const TRIGGER: u64 = 80;

/// One message of a real session.
enum Said {
    User(String),
    Assistant(Vec<Value>),
    Tool { id: String, name: String, text: String },
}

/// The messages of a session file in the format of pi.
pub(crate) struct Session(Vec<Said>);

impl Session {
    /// Reads one.
    pub(crate) fn read(path: &str) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let messages = lines.filter(|line| line["type"] == "message");
        Ok(Self(messages.filter_map(|line| said(&line["message"])).collect()))
    }

    /// Messages of the user.
    pub(crate) fn n_turns(&self) -> usize {
        self.0.iter().filter(|said| matches!(said, Said::User(_))).count()
    }
}

fn said(message: &Value) -> Option<Said> {
    let text = || {
        let parts = message["content"].as_array().into_iter().flatten();
        let texts = parts.filter_map(|part| part["text"].as_str());
        texts.collect::<Vec<_>>().join("\n\n")
    };
    let string = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
    match message["role"].as_str()? {
        "user" => Some(Said::User(text())).filter(|_| !text().is_empty()),
        "bashExecution" => {
            Some(Said::User(format!("$ {}\n{}", string("command"), string("output"))))
        }
        "toolResult" => {
            Some(Said::Tool { id: string("toolCallId"), name: string("toolName"), text: text() })
        }
        "assistant" => {
            let parts = message["content"].as_array()?.iter().filter_map(part).collect::<Vec<_>>();
            (!parts.is_empty()).then_some(Said::Assistant(parts))
        }
        _ => None,
    }
}

fn part(part: &Value) -> Option<Value> {
    match part["type"].as_str()? {
        "text" => Some(json!({ "type": "text", "text": part["text"] })),
        "thinking" => Some(json!({ "type": "thinking", "text": part["thinking"] })),
        "toolCall" => Some(json!({ "type": "toolCall", "id": part["id"], "name": part["name"],
            "args": part["arguments"] })),
        _ => None,
    }
}

/// Replays it with a window.
pub(crate) fn run(session: &Session, summarizer: Summarizer, window: u32) -> Result<Tally> {
    let started = Instant::now();
    let name = format!("real {}", summarizer.name());
    let mut tally = Tally::new(name, window, session.n_turns());
    let mut stage = Stage::new(summarizer, window)?;
    let mut facts = Facts::default();
    let (mut turn, mut before, mut n_heads) = (0, None, 0);
    for said in &session.0 {
        if matches!(said, Said::Assistant(_)) {
            compact_if_due(&mut stage, &mut tally, turn)?;
            n_heads += news(&mut stage, &mut facts, &mut tally, turn)?;
            let build_started = Instant::now();
            let build = stage.chat.call("context.build", json!({ "compact": "auto" }))?;
            let took = build_started.elapsed();
            // One that comes now may be the build's own, or break the next one off from it.
            let n_later = news(&mut stage, &mut facts, &mut tally, turn)?;
            let tokens = |name: &str| build[name].as_u64().unwrap_or_default();
            let (used, limit) = (tokens("tokensUsed"), tokens("tokenBudget"));
            tally.build(turn, took, &build, before.filter(|_| n_heads + n_later == 0));
            tally.prompts(&[(used, limit)]);
            tally.facts(turn, &build, facts.check(&build));
            (before, n_heads) = (Some(used), n_later);
        }
        record(&mut stage, said)?;
        if matches!(said, Said::User(_)) {
            turn += 1;
            n_heads += news(&mut stage, &mut facts, &mut tally, turn)?;
            plant(&mut stage, &mut facts, turn)?;
        }
    }
    tally.took = started.elapsed();
    tally.rss_kib = rss_kib(stage.daemon.pid())?;
    Ok(tally)
}

/// Takes in what was recorded; returns how many new heads are among it.
fn news(stage: &mut Stage, facts: &mut Facts, tally: &mut Tally, turn: usize) -> Result<usize> {
    let (records, asked) = (stage.new_records()?, stage.server.drain());
    records.iter().for_each(|record| facts.note(record));
    let heads = tally.records(turn, &records, &asked);
    tally.asked(turn, &asked, 0);
    Ok(heads.all())
}

/// As a client does that looks after its context.
fn compact_if_due(stage: &mut Stage, tally: &mut Tally, turn: usize) -> Result<()> {
    let status = stage.chat.call("context.status", json!({}))?;
    let number = |name: &str| status[name].as_u64().unwrap_or_default();
    if number("conversationTokens") * 100 < number("availableTokens") * TRIGGER {
        return Ok(());
    }
    // A summarizer that does not work is one of the cases; the build has to do without it.
    if let Err(error) = stage.chat.call("context.compact", json!({})) {
        tally.finding(turn, &format!("{error:#}"));
    }
    Ok(())
}

fn record(stage: &mut Stage, said: &Said) -> Result<()> {
    let message = match said {
        Said::User(text) => json!({ "role": "user", "content": text }),
        Said::Assistant(parts) => json!({ "role": "assistant", "parts": parts }),
        Said::Tool { id, name, text } => {
            json!({ "role": "tool", "toolCallId": id, "toolName": name, "content": text })
        }
    };
    stage.chat.call("session.record", json!({ "message": message }))?;
    Ok(())
}

/// Sets a goal, decides and pins at known turns.
fn plant(stage: &mut Stage, facts: &mut Facts, turn: usize) -> Result<()> {
    if turn == 1 {
        let goal = json!({ "description": "Untangle the run modes" });
        stage.chat.call("goal.create", goal)?;
    }
    if turn == 2 || turn == 9 {
        let words = format!("dec-{turn}-kappa keeps one module for each mode");
        stage.chat.call("goal.addDecision", json!({ "description": words, "locked": true }))?;
        facts.decided(words);
    }
    if turn == 3
        && let Some(seq) = facts.newest_user()
        && stage.chat.call("context.pin", json!({ "seq": seq })).is_ok()
    {
        facts.pinned(seq);
    }
    Ok(())
}
