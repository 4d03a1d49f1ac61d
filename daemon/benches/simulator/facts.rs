//! Facts that a context must not lose: the task, the newest messages, pins, decisions and changed files.

use serde_json::Value;

/// The end of the original task.
pub(crate) const TASK_END: &str = "accept exactly 7391 dialects.";
/// The percentage of the conversation's share within which the newest user messages must not be omitted. They may have
/// half of it, but so may all other recent records.
const SURE_USER_PERCENT: u64 = 5;
/// If what is being answered has this percentage of the conversation's share, no more than one message before it is expected.
/// Below, the share of these messages shrinks linearly.
const ALONE_PERCENT: u64 = 65;
/// The percentage of the conversation's share that a new head fills; the tools of the daemon take some of it in turns.
const HEAD_PERCENT: u64 = 80;
/// The percentage of the prompt limit that what is being answered leaves to everything older.
const OTHERS_PERCENT: u64 = 10;
/// The tokens that show the task, the pins, the message before the newest, and the newest file.
const ALL_LAYERS: u64 = 384;
/// The percentage of the prompt limit within which no locked decision may be missing; the goal block may have 15.
const SURE_DECISION_PERCENT: u64 = 7;
/// The characters by which a message without a needle is recognized.
const NEEDLE_CHARS: usize = 24;
/// The fewest characters that the beginning of a cut message has.
const MIN_CUT_CHARS: usize = 8;

/// A user message.
struct UserMessage {
    seq: u64,
    needle: String,
    tokens: u64,
}

/// The facts of a session so far.
#[derive(Default)]
pub(crate) struct Facts {
    users: Vec<UserMessage>,
    /// The tokens of the newest user message and of everything since.
    newest_tokens: u64,
    /// Set if the newest message has its answer.
    is_answered: bool,
    /// The tokens of what was being answered when the newest head was made.
    crowding: u64,
    pins: Vec<String>,
    decisions: Vec<String>,
    /// The files that tools changed, the newest last.
    changed: Vec<String>,
}

/// The result of a check.
#[derive(Default)]
pub(crate) struct FactCheck {
    pub(crate) n_checked: usize,
    /// The facts that are neither in the context nor named as omitted.
    pub(crate) lost: Vec<String>,
}

/// Returns the text with which the user message of a generated turn begins, and by which it is recognized.
pub(crate) fn needle(turn: usize) -> String {
    format!("{{u:{turn}}}")
}

impl Facts {
    /// Adds the facts of a record.
    pub(crate) fn add_record(&mut self, record: &Value) {
        let message = &record["message"];
        let tokens = record["tokens"].as_u64().unwrap_or_default();
        self.newest_tokens += tokens;
        if matches!(record["type"].as_str(), Some("compaction" | "epoch")) {
            self.crowding = if self.is_answered { 0 } else { self.newest_tokens };
        }
        let calls = |part: &Value| part["type"] == "toolCall";
        let has_calls = message["parts"].as_array().is_some_and(|parts| parts.iter().any(calls));
        self.is_answered = match message["role"].as_str() {
            Some(role) => role == "assistant" && !has_calls,
            None => self.is_answered,
        };
        if record["type"] == "message" && message["role"] == "user" {
            self.newest_tokens = tokens;
            let text = message["parts"][0]["text"].as_str().unwrap_or_default();
            self.users.push(UserMessage {
                seq: record["seq"].as_u64().unwrap_or_default(),
                needle: needle_of(text),
                tokens,
            });
        }
        for part in message["parts"].as_array().into_iter().flatten() {
            self.add_call(&part["name"], &part["args"]["path"]);
        }
        let call = &record["toolCall"];
        self.add_call(&call["name"], &call["args"]["path"]);
    }

    fn add_call(&mut self, name: &Value, path: &Value) {
        let changes = matches!(name.as_str(), Some("write_file" | "write" | "edit"));
        if let Some(path) = path.as_str().filter(|_| changes) {
            self.changed.retain(|known| known != path);
            self.changed.push(path.to_owned());
        }
    }

    /// Returns the seq of the newest user message.
    pub(crate) fn newest_user(&self) -> Option<u64> {
        self.users.last().map(|message| message.seq)
    }

    /// Adds a pinned user message.
    pub(crate) fn add_pin(&mut self, seq: u64) {
        let message = self.users.iter().find(|message| message.seq == seq);
        self.pins.extend(message.map(|message| message.needle.clone()));
    }

    /// Adds a locked decision.
    pub(crate) fn add_decision(&mut self, words: String) {
        self.decisions.push(words);
    }

    /// Checks that a context contains or names every fact.
    pub(crate) fn check(&self, build: &Value) -> FactCheck {
        let text = text_of(build);
        let budget = &build["budget"];
        let number = |name: &str| budget[name].as_u64().unwrap_or_default();
        let mut check = FactCheck::default();
        let (available, limit) = (number("availableTokens"), number("promptLimit"));
        let left = (available * ALONE_PERCENT / 100).saturating_sub(self.crowding);
        let sure = left * SURE_USER_PERCENT / ALONE_PERCENT;
        let beside = (available * HEAD_PERCENT / 100).saturating_sub(self.crowding);
        let has_layers = beside.max(limit * OTHERS_PERCENT / 100) >= ALL_LAYERS;
        self.check_users(&mut check, build, &text, sure, has_layers);
        for pin in &self.pins {
            check.expect(text.contains(pin.as_str()), || format!("the pinned message {pin}"));
        }
        self.check_decisions(&mut check, &text, limit);
        if has_layers {
            self.check_files(&mut check, &text);
        }
        check
    }

    fn check_users(
        &self,
        check: &mut FactCheck,
        build: &Value,
        text: &str,
        sure: u64,
        has_layers: bool,
    ) {
        let omitted = omitted_ranges(build, &["budget", "summarized"]);
        let cut = omitted_ranges(build, &["cut"]);
        let is_omitted = |message: &UserMessage| {
            omitted.iter().any(|(first, last)| (*first..=*last).contains(&message.seq))
        };
        let is_in_text = |message: &UserMessage| {
            let is_cut = cut.iter().any(|(seq, _)| *seq == message.seq);
            let end = message.needle.char_indices().nth(MIN_CUT_CHARS).map(|(at, _)| at);
            let end = end.filter(|_| is_cut).unwrap_or(message.needle.len());
            text.contains(&message.needle[..end])
        };
        let is_there = |message: &UserMessage| !is_omitted(message) && is_in_text(message);
        if let Some(task) = self.users.first() {
            check.expect(is_there(task), || "the original task".to_owned());
            let is_generated = task.needle.starts_with("{u:") && task.tokens <= sure;
            let has_end = !is_generated || text.contains(TASK_END);
            check.expect(has_end, || "the end of the task".to_owned());
        }
        if let Some(newest) = self.users.last() {
            check.expect(is_there(newest), || format!("the newest message {}", newest.needle));
        }
        if let Some(before) = self.users.iter().rev().nth(1).filter(|_| has_layers) {
            check.expect(is_there(before), || format!("the message before it, {}", before.needle));
        }
        let mut tokens = 0;
        for message in self.users.iter().rev() {
            tokens += message.tokens;
            let needle = &message.needle;
            if !is_omitted(message) {
                check.expect(is_in_text(message), || format!("message {needle}, not omitted"));
                continue;
            }
            check.expect(tokens > sure, || {
                format!("message {needle} within the newest {tokens} of {sure} tokens")
            });
        }
    }

    fn check_decisions(&self, check: &mut FactCheck, text: &str, limit: u64) {
        let missing = self.decisions.iter().filter(|decision| !text.contains(decision.as_str()));
        let n_missing = missing.count() as u64;
        let bytes: usize = self.decisions.iter().map(String::len).sum();
        let is_small = bytes as u64 / 3 <= limit * SURE_DECISION_PERCENT / 100;
        check.n_checked += self.decisions.len();
        if n_missing > 0 && (is_small || counted_lines(text) < n_missing) {
            let n = self.decisions.len();
            check.lost.push(format!("{n_missing} of {n} locked decisions, which are not named"));
        }
    }

    fn check_files(&self, check: &mut FactCheck, text: &str) {
        if let Some(newest) = self.changed.last() {
            check.expect(text.contains(newest.as_str()), || {
                format!("the newest changed file, {newest}")
            });
        }
        let missing = self.changed.iter().filter(|path| !text.contains(path.as_str()));
        let missing: Vec<&String> = missing.collect();
        let (n_missing, n_counted) = (missing.len() as u64, number_before(text, "more changed"));
        check.expect(n_missing <= n_counted, || {
            let newest = missing.last().map_or("", |path| path.as_str());
            format!("the names of {n_missing} changed files, {n_counted} are counted: {newest}")
        });
    }
}

impl FactCheck {
    fn expect(&mut self, is_there: bool, fact: impl FnOnce() -> String) {
        self.n_checked += 1;
        if !is_there {
            self.lost.push(fact());
        }
    }
}

/// Returns the text by which a message is recognized.
fn needle_of(text: &str) -> String {
    let marked = text.strip_prefix("{u:").and_then(|rest| rest.split_once('}'));
    match marked {
        Some((turn, _)) => format!("{{u:{turn}}}"),
        None => text.lines().next().unwrap_or_default().chars().take(NEEDLE_CHARS).collect(),
    }
}

/// Returns all texts of a context, arguments of tool calls included.
fn text_of(build: &Value) -> String {
    let mut text = String::new();
    for message in build["messages"].as_array().into_iter().flatten() {
        text.push_str(message["content"].as_str().unwrap_or_default());
        text.push('\n');
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let arguments = call["function"]["arguments"].as_object();
            let values = arguments.into_iter().flatten().filter_map(|(_, value)| value.as_str());
            values.for_each(|value| {
                text.push_str(value);
                text.push('\n');
            });
        }
    }
    text
}

/// Returns the ranges of records that a context omits for one of some reasons.
fn omitted_ranges(build: &Value, reasons: &[&str]) -> Vec<(u64, u64)> {
    let items = build["omitted"].as_array().into_iter().flatten();
    let omitted = items.filter(|item| reasons.iter().any(|reason| item["reason"] == *reason));
    omitted
        .filter_map(|item| {
            let first = item["seq"].as_u64()?;
            Some((first, item["throughSeq"].as_u64().unwrap_or(first)))
        })
        .collect()
}

/// Returns the number in the last line of the form `+k more`.
fn counted_lines(text: &str) -> u64 {
    let numbers = text.lines().filter_map(|line| line.strip_prefix('+')?.strip_suffix(" more"));
    numbers.filter_map(|number| number.parse().ok()).next_back().unwrap_or_default()
}

/// Returns the number in the last line of the form `+k <words>`.
fn number_before(text: &str, words: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.split_once(words));
    let mut numbers =
        lines.filter_map(|(before, _)| before.rsplit('+').next()?.trim().parse().ok());
    numbers.next_back().unwrap_or_default()
}
