//! What must not get lost, and whether a build still says it.

use serde_json::Value;

use super::script::TASK_END;

/// Percent of the room for the conversation that the newest user messages have in any case. They may have half of it,
/// but so may everything else that is recent.
const SURE_USER_PERCENT: u64 = 5;
/// Percent of the prompt limit within which no locked decision may be missing; the goal block may have 15.
const SURE_DECISION_PERCENT: u64 = 7;
/// Characters by which a message is known that does not begin with a mark.
const NEEDLE_CHARS: usize = 24;
/// Characters that the beginning of a message has that is cut, as few as there may be.
const CUT_CHARS: usize = 8;

/// A message of the user.
struct Said {
    seq: u64,
    needle: String,
    tokens: u64,
}

/// What was said and decided up to now.
#[derive(Default)]
pub(crate) struct Facts {
    users: Vec<Said>,
    pins: Vec<String>,
    decisions: Vec<String>,
    /// Files that tools changed, the newest last.
    changed: Vec<String>,
}

/// What a check found.
#[derive(Default)]
pub(crate) struct Found {
    /// Facts that were looked for.
    pub(crate) n_checked: usize,
    /// Those that are neither there nor named.
    pub(crate) lost: Vec<String>,
}

impl Facts {
    /// Notes what a record says.
    pub(crate) fn note(&mut self, record: &Value) {
        let message = &record["message"];
        if record["type"] == "message" && message["role"] == "user" {
            let text = message["parts"][0]["text"].as_str().unwrap_or_default();
            self.users.push(Said {
                seq: record["seq"].as_u64().unwrap_or_default(),
                needle: needle(text),
                tokens: record["tokens"].as_u64().unwrap_or_default(),
            });
        }
        for part in message["parts"].as_array().into_iter().flatten() {
            self.note_call(&part["name"], &part["args"]["path"]);
        }
        let call = &record["toolCall"];
        self.note_call(&call["name"], &call["args"]["path"]);
    }

    fn note_call(&mut self, name: &Value, path: &Value) {
        let changes = matches!(name.as_str(), Some("write_file" | "write" | "edit"));
        if let Some(path) = path.as_str().filter(|_| changes) {
            self.changed.retain(|known| known != path);
            self.changed.push(path.to_owned());
        }
    }

    /// Number of the newest user message.
    pub(crate) fn newest_user(&self) -> Option<u64> {
        self.users.last().map(|said| said.seq)
    }

    /// Notes that a user message was pinned.
    pub(crate) fn pinned(&mut self, seq: u64) {
        let said = self.users.iter().find(|said| said.seq == seq);
        self.pins.extend(said.map(|said| said.needle.clone()));
    }

    /// Notes a locked decision.
    pub(crate) fn decided(&mut self, words: String) {
        self.decisions.push(words);
    }

    /// Looks for everything in a build.
    pub(crate) fn check(&self, build: &Value) -> Found {
        let text = text_of(build);
        let budget = &build["budget"];
        let number = |name: &str| budget[name].as_u64().unwrap_or_default();
        let mut found = Found::default();
        let sure = number("availableTokens") * SURE_USER_PERCENT / 100;
        self.check_users(&mut found, build, &text, sure);
        for pin in &self.pins {
            found.expect(text.contains(pin.as_str()), || format!("the pinned message {pin}"));
        }
        self.check_decisions(&mut found, &text, number("promptLimit"));
        self.check_files(&mut found, &text);
        found
    }

    fn check_users(&self, found: &mut Found, build: &Value, text: &str, sure: u64) {
        let left_out = omitted(build, &["budget", "summarized"]);
        let cut = omitted(build, &["cut"]);
        let is_out = |said: &Said| left_out.iter().any(|(a, b)| (*a..=*b).contains(&said.seq));
        let says = |said: &Said| {
            let is_cut = cut.iter().any(|(seq, _)| *seq == said.seq);
            let end = said.needle.char_indices().nth(CUT_CHARS).map(|(at, _)| at);
            text.contains(
                end.filter(|_| is_cut).map_or(said.needle.as_str(), |end| &said.needle[..end]),
            )
        };
        let shows = |said: &Said| !is_out(said) && says(said);
        if let Some(task) = self.users.first() {
            found.expect(shows(task), || "the original task".to_owned());
            let is_ours = task.needle.starts_with("{u:") && task.tokens <= sure;
            found.expect(!is_ours || text.contains(TASK_END), || "the task's end".to_owned());
        }
        if let Some(newest) = self.users.last() {
            found.expect(shows(newest), || format!("the newest message {}", newest.needle));
        }
        let (mut tokens, mut n_out) = (0, 0);
        for said in self.users.iter().rev() {
            tokens += said.tokens;
            if !is_out(said) {
                let what = || format!("message {}, said to be there", said.needle);
                found.expect(says(said), what);
                continue;
            }
            n_out += 1;
            let what =
                || format!("message {} within the newest {tokens} of {sure} tokens", said.needle);
            found.expect(tokens > sure, what);
        }
        let named = named_users(text);
        found
            .expect(n_out <= named, || format!("the names of {n_out} messages, {named} are there"));
    }

    fn check_decisions(&self, found: &mut Found, text: &str, limit: u64) {
        let n_missing =
            self.decisions.iter().filter(|one| !text.contains(one.as_str())).count() as u64;
        let bytes: usize = self.decisions.iter().map(String::len).sum();
        let is_small = bytes as u64 / 3 <= limit * SURE_DECISION_PERCENT / 100;
        found.n_checked += self.decisions.len();
        if n_missing > 0 && (is_small || more(text, "more (goal.list)") < n_missing) {
            let n = self.decisions.len();
            found.lost.push(format!("{n_missing} of {n} locked decisions, not named either"));
        }
    }

    fn check_files(&self, found: &mut Found, text: &str) {
        if let Some(newest) = self.changed.last() {
            found.expect(text.contains(newest.as_str()), || {
                format!("the newest changed file, {newest}")
            });
        }
        let missing = self.changed.iter().filter(|path| !text.contains(path.as_str()));
        let missing: Vec<&String> = missing.collect();
        let (n_missing, named) = (missing.len() as u64, more(text, "more changed"));
        let what = || {
            let newest = missing.last().map_or("", |path| path.as_str());
            format!("the names of {n_missing} changed files, {named} are counted: {newest}")
        };
        found.expect(n_missing <= named, what);
    }
}

impl Found {
    fn expect(&mut self, is_there: bool, what: impl FnOnce() -> String) {
        self.n_checked += 1;
        if !is_there {
            self.lost.push(what());
        }
    }
}

/// What a message is known by.
fn needle(text: &str) -> String {
    let marked = text.strip_prefix("{u:").and_then(|rest| rest.split_once('}'));
    match marked {
        Some((turn, _)) => format!("{{u:{turn}}}"),
        None => text.lines().next().unwrap_or_default().chars().take(NEEDLE_CHARS).collect(),
    }
}

/// Everything that a build says.
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

/// The runs of records that a build says to leave out for one of some reasons.
fn omitted(build: &Value, reasons: &[&str]) -> Vec<(u64, u64)> {
    let items = build["omitted"].as_array().into_iter().flatten();
    let gone = items.filter(|item| reasons.iter().any(|reason| item["reason"] == *reason));
    gone.filter_map(|item| {
        let first = item["seq"].as_u64()?;
        Some((first, item["throughSeq"].as_u64().unwrap_or(first)))
    })
    .collect()
}

/// User messages that are named one by one or counted in the block of what is left out.
fn named_users(text: &str) -> u64 {
    let block = text.split_once("<left-out>").map_or("", |(_, rest)| rest);
    let block = block.split_once("</left-out>").map_or("", |(block, _)| block);
    let handles = block.lines().filter(|line| line.starts_with("[#")).count() as u64;
    handles + more(block, "more (session.get)")
}

/// The number in the last line `+k <words>`.
fn more(text: &str, words: &str) -> u64 {
    let lines = text.lines().filter_map(|line| line.split_once(words));
    let mut numbers =
        lines.filter_map(|(before, _)| before.rsplit('+').next()?.trim().parse().ok());
    numbers.next_back().unwrap_or_default()
}
