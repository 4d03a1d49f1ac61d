//! A generated session: messages, tool calls, results and answers of varied sizes, with pins and decisions.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use super::facts::{Facts, TASK_END, needle};
use super::metrics::RunMetrics;
use super::model_server::{ModelServer, Summarizer, start_session};
use crate::harness::generate::{Random, TextGenerator};
use crate::harness::model_server::Answer;
use crate::harness::session::SimulatedSession;

/// Besides after each new head, a context is built in every fifth turn, and checked for facts in every 25th.
const BUILD_EVERY: usize = 5;
const CHECK_EVERY: usize = 25;
/// The turns with a locked decision: the first ones soon, the others at long intervals.
const FIRST_DECISIONS: [usize; 3] = [3, 20, 60];
const DECISION_EVERY: usize = 400;
const MAX_DECISIONS: usize = 12;
const MAX_PINS: usize = 3;
/// The number of files that a session works on.
const FILES: usize = 120;
/// The bytes of the one message that exceeds most windows.
const GIANT_BYTES: usize = 200_000;

/// The state of a run.
struct Run {
    session: SimulatedSession<ModelServer>,
    facts: Facts,
    metrics: RunMetrics,
    tools: Value,
    n_decisions: usize,
    n_pins: usize,
    /// The heads that were recorded after the last request of a turn, and so affect the next request.
    n_later: usize,
}

/// Runs a session of `n_turns` turns.
pub(crate) fn run(summarizer: Summarizer, window: u32, n_turns: usize) -> Result<RunMetrics> {
    let start = Instant::now();
    let mut run = Run {
        session: start_session(summarizer, window)?,
        facts: Facts::default(),
        metrics: RunMetrics::new(summarizer.name(), window, n_turns),
        tools: tools(),
        n_decisions: 0,
        n_pins: 0,
        n_later: 0,
    };
    let mut script = Script::new(u64::from(window) + summarizer as u64, n_turns);
    for at in 0..n_turns {
        let turn = script.turn(at);
        run.turn(at, turn, &mut script)?;
        run.plant(at)?;
    }
    run.metrics.elapsed = start.elapsed();
    run.metrics.rss_kib = run.session.daemon.rss_kib()?;
    Ok(run.metrics)
}

impl Run {
    fn turn(&mut self, at: usize, turn: Turn, script: &mut Script) -> Result<()> {
        let Self { session, facts, metrics, tools, n_later, .. } = self;
        session.server.script(turn.answers);
        let outcome =
            session.turn(&turn.message, tools, |name, args| script.tool_result(name, args))?;
        metrics.add_prompts(&outcome.prompts);
        if let Some(error) = &outcome.error {
            metrics.add_failure(at, error);
        }
        let (records, requests) = (session.new_records()?, session.server.take_requests());
        let heads = metrics.add_records(at, &records, &requests);
        records.iter().for_each(|record| facts.add_record(record));
        let n_unused = metrics.add_requests(at, &requests, *n_later + heads.in_turn);
        // A head that is recorded during an answer is for the next prompt.
        *n_later = heads.after + n_unused.min(heads.in_turn).min(1);
        let n_heads = heads.all();
        if n_heads > 0 || at.is_multiple_of(BUILD_EVERY) {
            let previous = outcome.prompts.last().map(|(tokens, _)| *tokens);
            self.build(at, previous.filter(|_| n_heads == 0), n_heads)?;
        }
        Ok(())
    }

    /// Builds a context as a client would; `previous` is the size of the prompt that it should extend.
    fn build(&mut self, at: usize, previous: Option<u64>, n_heads: usize) -> Result<()> {
        let Self { session, facts, metrics, tools, n_later: n_later_total, .. } = self;
        let start = Instant::now();
        let build = session.call("context.build", json!({ "tools": tools }))?;
        let elapsed = start.elapsed();
        // The daemon may compact in the background at any time.
        let records = session.new_records()?;
        let n_later = metrics.add_records(at, &records, &[]).all();
        records.iter().for_each(|record| facts.add_record(record));
        *n_later_total += n_later;
        metrics.add_build(at, elapsed, &build, previous.filter(|_| n_later == 0));
        if n_heads + n_later > 0 || at.is_multiple_of(CHECK_EVERY) {
            metrics.add_facts(at, &build, facts.check(&build));
        }
        Ok(())
    }

    /// Creates the goal, decisions and pins of a turn.
    fn plant(&mut self, at: usize) -> Result<()> {
        if at == 2 {
            let goal =
                json!({ "action": "create", "description": "Port the parser to the new lexer" });
            self.session.call("goal.change", json!({ "steps": [goal] }))?;
        }
        let is_due = FIRST_DECISIONS.contains(&at) || (at > 0 && at.is_multiple_of(DECISION_EVERY));
        if is_due && self.n_decisions < MAX_DECISIONS {
            self.n_decisions += 1;
            let words = format!("dec-{at}-kappa keeps the lexer at level {}", at % 97);
            let decision = json!({ "action": "addDecision", "description": words, "locked": true });
            self.session.call("goal.change", json!({ "steps": [decision] }))?;
            self.facts.add_decision(words);
        }
        // A pin that does not fit is refused.
        if at < 40
            && at % 10 == 4
            && self.n_pins < MAX_PINS
            && let Some(seq) = self.facts.newest_user()
            && self.session.call("context.pin", json!({ "seq": seq })).is_ok()
        {
            self.n_pins += 1;
            self.facts.add_pin(seq);
        }
        Ok(())
    }
}

/// A scripted turn.
struct Turn {
    message: String,
    /// The answers of the model in order.
    answers: Vec<Answer>,
}

/// A generator of turns.
struct Script {
    text: TextGenerator,
    random: Random,
    /// The turn in which the user pastes a whole log.
    giant_at: usize,
    paths: Vec<String>,
}

/// Returns the tools of a session, few and short enough for the smallest window.
fn tools() -> Value {
    let tool = |name: &str, about: &str, arguments: &[&str]| {
        let properties: serde_json::Map<String, Value> = arguments
            .iter()
            .map(|argument| ((*argument).to_owned(), json!({ "type": "string" })))
            .collect();
        json!({ "type": "function", "function": { "name": name, "description": about,
            "parameters": { "type": "object", "properties": properties } } })
    };
    json!([
        tool("read_file", "read a file", &["path"]),
        tool("write_file", "write a file", &["path", "content"]),
        tool("shell", "run a command", &["command"]),
        tool("search", "find text", &["query"]),
    ])
}

impl Script {
    fn new(seed: u64, n_turns: usize) -> Self {
        let text = TextGenerator::new(seed);
        let path = |at: usize| {
            let (dir, file) = (text.word_of_rank(at * 7 % 31), text.word_of_rank(500 + at * 13));
            format!("app/{dir}/{file}_unit.rs")
        };
        let paths = (0..FILES).map(path).collect();
        let random = Random::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Self { text, random, giant_at: n_turns * 2 / 5, paths }
    }

    /// Returns the next turn.
    fn turn(&mut self, turn: usize) -> Turn {
        let message = self.message(turn);
        let mut answers = Vec::new();
        if turn > 2 && self.chance(45) {
            for _ in 0..=self.random.below(3) {
                let n_calls = 1 + usize::from(self.chance(25));
                let calls = (0..n_calls).fold(Answer::whole(""), |answer, _| {
                    let (name, args) = self.call();
                    answer.tool_call(name, args)
                });
                answers.push(calls);
            }
        }
        let bytes = self.size(&[(60, 60, 500), (35, 500, 1500), (5, 1500, 6000)]);
        answers.push(Answer::whole(&format!("({turn}) {}", self.text.message(bytes))));
        Turn { message, answers }
    }

    /// Returns the result of a tool call.
    fn tool_result(&mut self, name: &str, arguments: &Value) -> String {
        let sizes: &[(u64, usize, usize)] = match name {
            "read_file" => &[(80, 300, 6000), (18, 6000, 16_000), (2, 16_000, 60_000)],
            "shell" => &[(85, 30, 2500), (13, 2500, 8000), (2, 8000, 30_000)],
            "search" => &[(90, 40, 2500), (10, 2500, 6000)],
            _ => return format!("wrote {}", arguments["path"].as_str().unwrap_or_default()),
        };
        let bytes = self.size(sizes);
        self.text.message(bytes)
    }

    fn message(&mut self, turn: usize) -> String {
        if turn == 0 {
            return format!(
                "{} Please port the parser in src/parse to the new lexer. Keep the public API as it is, write a test \
                 for each grammar rule, and make sure that it will {TASK_END}",
                needle(0)
            );
        }
        let bytes = if turn == self.giant_at && turn > 5 {
            GIANT_BYTES
        } else if turn < 100 && turn % 10 == 4 {
            // These messages are pinned, so they are short.
            60
        } else {
            self.size(&[(700, 40, 350), (250, 350, 1200), (45, 1200, 5000), (5, 5000, 20_000)])
        };
        format!("{} {}", needle(turn), self.text.message(bytes))
    }

    /// Returns the name and the arguments of a tool call.
    fn call(&mut self) -> (&'static str, Value) {
        let at = self.random.below(FILES);
        let path = self.paths[at].clone();
        match self.random.below(10) {
            0..=3 => ("read_file", json!({ "path": path })),
            4 | 5 => {
                let bytes = self.size(&[(80, 100, 1500), (20, 1500, 8000)]);
                let content = self.text.message(bytes);
                ("write_file", json!({ "path": path, "content": content }))
            }
            6..=8 => ("shell", json!({ "command": self.text.message(40) })),
            _ => ("search", json!({ "query": self.text.message(12) })),
        }
    }

    /// Draws a size from ranges, each with a weight, the smallest and the largest size.
    fn size(&mut self, sizes: &[(u64, usize, usize)]) -> usize {
        let total: u64 = sizes.iter().map(|(weight, ..)| weight).sum();
        let mut at = self.random.next() % total;
        for (weight, lowest, highest) in sizes {
            if at < *weight {
                return lowest + self.random.below(highest - lowest);
            }
            at -= weight;
        }
        0
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random.next() % 100 < percent
    }
}
