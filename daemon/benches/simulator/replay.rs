//! The replay of a real session: its messages are recorded again, and before each answer a context is built for a
//! smaller window.

use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::facts::Facts;
use super::metrics::RunMetrics;
use super::model_server::{ModelServer, Summarizer, start_session};
use crate::harness::session::SimulatedSession;

/// The percentage of the available tokens from which on the conversation is compacted.
const TRIGGER_PERCENT: u64 = 80;

/// A message of a real session.
enum RealMessage {
    User(String),
    Assistant(Vec<Value>),
    Tool { id: String, name: String, text: String },
}

/// The messages of a session file in the format of pi.
pub(crate) struct RealSession(Vec<RealMessage>);

impl RealSession {
    pub(crate) fn read(path: &str) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let messages = lines.filter(|line| line["type"] == "message");
        Ok(Self(messages.filter_map(|line| parse_message(&line["message"])).collect()))
    }

    fn n_turns(&self) -> usize {
        self.0.iter().filter(|message| matches!(message, RealMessage::User(_))).count()
    }
}

/// Returns a message; `None` for an empty or unknown one.
fn parse_message(message: &Value) -> Option<RealMessage> {
    let text = || {
        let parts = message["content"].as_array().into_iter().flatten();
        let texts = parts.filter_map(|part| part["text"].as_str());
        texts.collect::<Vec<_>>().join("\n\n")
    };
    let string = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
    match message["role"].as_str()? {
        "user" => Some(text()).filter(|text| !text.is_empty()).map(RealMessage::User),
        "bashExecution" => {
            Some(RealMessage::User(format!("$ {}\n{}", string("command"), string("output"))))
        }
        "toolResult" => Some(RealMessage::Tool {
            id: string("toolCallId"),
            name: string("toolName"),
            text: text(),
        }),
        "assistant" => {
            let parts =
                message["content"].as_array()?.iter().filter_map(parse_part).collect::<Vec<_>>();
            (!parts.is_empty()).then_some(RealMessage::Assistant(parts))
        }
        _ => None,
    }
}

fn parse_part(part: &Value) -> Option<Value> {
    match part["type"].as_str()? {
        "text" => Some(json!({ "type": "text", "text": part["text"] })),
        "thinking" => Some(json!({ "type": "thinking", "text": part["thinking"] })),
        "toolCall" => Some(json!({ "type": "toolCall", "id": part["id"], "name": part["name"],
            "args": part["arguments"] })),
        _ => None,
    }
}

/// Replays a session with a window.
pub(crate) fn run(real: &RealSession, summarizer: Summarizer, window: u32) -> Result<RunMetrics> {
    let start = Instant::now();
    let name = format!("real {}", summarizer.name());
    let mut run = Replay {
        session: start_session(summarizer, window)?,
        facts: Facts::default(),
        metrics: RunMetrics::new(name, window, real.n_turns()),
        turn: 0,
    };
    let (mut previous, mut n_heads) = (None, 0);
    for message in &real.0 {
        if matches!(message, RealMessage::Assistant(_)) {
            run.compact_if_due()?;
            n_heads += run.add_new_records()?;
            let build_start = Instant::now();
            let build = run.session.call("context.build", json!({ "compact": "auto" }))?;
            let elapsed = build_start.elapsed();
            // These heads belong to this build, or precede the next one.
            let n_later = run.add_new_records()?;
            let tokens = |name: &str| build[name].as_u64().unwrap_or_default();
            let (used, limit) = (tokens("contextTokens"), tokens("promptLimit"));
            let previous_tokens = previous.filter(|_| n_heads + n_later == 0);
            run.metrics.add_build(run.turn, elapsed, &build, previous_tokens);
            run.metrics.add_prompts(&[(used, limit)]);
            run.metrics.add_facts(run.turn, &build, run.facts.check(&build));
            (previous, n_heads) = (Some(used), n_later);
        }
        run.record(message)?;
        if matches!(message, RealMessage::User(_)) {
            run.turn += 1;
            n_heads += run.add_new_records()?;
            run.plant()?;
        }
    }
    run.metrics.elapsed = start.elapsed();
    run.metrics.rss_kib = run.session.daemon.rss_kib()?;
    Ok(run.metrics)
}

/// The state of a replay.
struct Replay {
    session: SimulatedSession<ModelServer>,
    facts: Facts,
    metrics: RunMetrics,
    turn: usize,
}

impl Replay {
    /// Adds the new records; returns the number of new heads.
    fn add_new_records(&mut self) -> Result<usize> {
        let (records, requests) =
            (self.session.new_records()?, self.session.server.take_requests());
        records.iter().for_each(|record| self.facts.add_record(record));
        let heads = self.metrics.add_records(self.turn, &records, &requests);
        self.metrics.add_requests(self.turn, &requests, 0);
        Ok(heads.all())
    }

    /// Compacts as a client does that manages its context.
    fn compact_if_due(&mut self) -> Result<()> {
        let status = self.session.call("context.status", json!({}))?;
        let number = |name: &str| status[name].as_u64().unwrap_or_default();
        if number("conversationTokens") * 100 < number("availableTokens") * TRIGGER_PERCENT {
            return Ok(());
        }
        // Some summarizers fail; the build must then do without the compaction.
        if let Err(error) = self.session.call("context.compact", json!({})) {
            self.metrics.add_finding(self.turn, &format!("{error:#}"));
        }
        Ok(())
    }

    fn record(&mut self, message: &RealMessage) -> Result<()> {
        let message = match message {
            RealMessage::User(text) => json!({ "role": "user", "content": text }),
            RealMessage::Assistant(parts) => json!({ "role": "assistant", "parts": parts }),
            RealMessage::Tool { id, name, text } => {
                json!({ "role": "tool", "toolCallId": id, "toolName": name, "content": text })
            }
        };
        self.session.call("session.record", json!({ "message": message }))?;
        Ok(())
    }

    /// Creates the goal, decisions and pins of a turn.
    fn plant(&mut self) -> Result<()> {
        if self.turn == 1 {
            let goal = json!({ "action": "create", "description": "Untangle the run modes" });
            self.session.call("goal.change", json!({ "steps": [goal] }))?;
        }
        if self.turn == 2 || self.turn == 9 {
            let words = format!("dec-{}-kappa keeps one module for each mode", self.turn);
            let decision = json!({ "action": "addDecision", "description": words, "locked": true });
            self.session.call("goal.change", json!({ "steps": [decision] }))?;
            self.facts.add_decision(words);
        }
        if self.turn == 3
            && let Some(seq) = self.facts.newest_user()
            && self.session.call("context.pin", json!({ "seq": seq })).is_ok()
        {
            self.facts.add_pin(seq);
        }
        Ok(())
    }
}
