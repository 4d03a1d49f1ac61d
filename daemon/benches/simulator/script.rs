//! What is said in a generated session: questions, calls of tools, their results, and answers, all of varied sizes.

use serde_json::{Value, json};

use super::server::Answer;
use crate::harness::text::Text;

/// Files that a session works on.
const FILES: usize = 120;
/// The size of the one message that is larger than most windows, in bytes.
const GIANT: usize = 200_000;

/// One turn before it happens.
pub(crate) struct Turn {
    /// What the user says.
    pub(crate) message: String,
    /// What the model says, in order.
    pub(crate) answers: Vec<Answer>,
}

/// Writes turns.
pub(crate) struct Script {
    text: Text,
    state: u64,
    /// The turn at which somebody pastes a whole log.
    giant_at: usize,
    paths: Vec<String>,
}

/// The tools of a session, as a model server takes them: few and short, for the smallest window.
pub(crate) fn tools() -> Value {
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

/// What a user message begins with: names its turn.
pub(crate) fn needle(turn: usize) -> String {
    format!("{{u:{turn}}}")
}

/// What the original task ends with.
pub(crate) const TASK_END: &str = "accept exactly 7391 dialects.";

impl Script {
    /// The script of a session of so many turns.
    pub(crate) fn new(seed: u64, n_turns: usize) -> Self {
        let text = Text::new(seed);
        let path = |at: usize| {
            let (dir, file) = (text.word_of_rank(at * 7 % 31), text.word_of_rank(500 + at * 13));
            format!("app/{dir}/{file}_unit.rs")
        };
        let paths = (0..FILES).map(path).collect();
        let state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self { text, state, giant_at: n_turns * 2 / 5, paths }
    }

    /// The next turn.
    pub(crate) fn turn(&mut self, turn: usize) -> Turn {
        let message = self.message(turn);
        let mut answers = Vec::new();
        if turn > 2 && self.chance(45) {
            for _ in 0..=self.below(3) {
                let n_calls = 1 + usize::from(self.chance(25));
                let calls = (0..n_calls).map(|_| self.call());
                answers.push(Answer::Calls(calls.collect()));
            }
        }
        let bytes = self.size(&[(60, 60, 500), (35, 500, 1500), (5, 1500, 6000)]);
        answers.push(Answer::Text(format!("({turn}) {}", self.text.message(bytes))));
        Turn { message, answers }
    }

    /// What a tool answers.
    pub(crate) fn result(&mut self, name: &str, arguments: &Value) -> String {
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
            GIANT
        } else if turn < 100 && turn % 10 == 4 {
            // These are pinned, so they are short.
            60
        } else {
            self.size(&[(700, 40, 350), (250, 350, 1200), (45, 1200, 5000), (5, 5000, 20_000)])
        };
        format!("{} {}", needle(turn), self.text.message(bytes))
    }

    fn call(&mut self) -> (String, Value) {
        let at = self.below(FILES);
        let path = self.paths[at].clone();
        match self.below(10) {
            0..=3 => ("read_file".to_owned(), json!({ "path": path })),
            4 | 5 => {
                let bytes = self.size(&[(80, 100, 1500), (20, 1500, 8000)]);
                let content = self.text.message(bytes);
                ("write_file".to_owned(), json!({ "path": path, "content": content }))
            }
            6..=8 => ("shell".to_owned(), json!({ "command": self.text.message(40) })),
            _ => ("search".to_owned(), json!({ "query": self.text.message(12) })),
        }
    }

    /// A size by weight, lowest and highest.
    fn size(&mut self, sizes: &[(u64, usize, usize)]) -> usize {
        let total: u64 = sizes.iter().map(|(weight, ..)| weight).sum();
        let mut at = self.next() % total;
        for (weight, lowest, highest) in sizes {
            if at < *weight {
                return lowest + self.below(highest - lowest);
            }
            at -= weight;
        }
        0
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap_or_default()
    }

    /// xorshift64*, as in the generator of texts.
    fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }
}
