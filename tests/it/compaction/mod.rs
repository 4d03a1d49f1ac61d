//! Compaction: `context.compact`, `context.checkpoints`, and what the daemon compacts by itself. A compaction that
//! fails changes nothing.

mod automatic;
mod checkpoints;
mod failures;
mod overflow;
mod requested;
mod shrinking;

use serde_json::{Value, json};

use crate::harness::{FakeOllama, ModelSession};

/// Configuration that leaves compaction to the client.
const DISABLED: &str = "compression:\n  enabled: false\n";

/// A summary that the daemon accepts for the messages of [`exchange`](ModelSession::exchange).
const SUMMARY: &str = "## Goal\n- port the parser to the new lexer\n\n## Constraints\n- keep what is public\n\n\
    ## Progress\n- the lexer is done in src/lex.rs\n\n## Key decisions\n- spans are byte offsets\n\n\
    ## Next steps\n- write the tests\n\n## Critical context\n- TokenKind has 41 variants";

/// Returns the kinds of the chat requests in order: `S` for a summary, `A` for an answer.
fn request_kinds(fake: &FakeOllama) -> String {
    let requests = fake.requests("/api/chat");
    requests.iter().map(|request| if request.wants_summary() { 'S' } else { 'A' }).collect()
}

/// Starts a daemon that compacts only on request.
fn on_request(fake: &FakeOllama) -> ModelSession {
    session(fake, 8192, DISABLED)
}

/// Starts a daemon with further configuration, and creates a session with a window.
///
/// Loads the vocabulary, so that counts do not change later.
fn session(fake: &FakeOllama, context_size: u32, more: &str) -> ModelSession {
    let config = fake.config("tiny") + more;
    let mut chat = ModelSession::create(&config, json!({ "contextSize": context_size }));
    chat.wire.ok("model.countTokens", json!({ "text": "x" }));
    chat
}

/// Shortcuts for sessions that are compacted.
impl ModelSession {
    /// Records a user message and an answer, which nothing later needs.
    fn exchange(&mut self, n: usize) {
        let words = "and some words about it that nobody needs later on ".repeat(3);
        self.record("user", &format!("request {n}: {words}"));
        self.record("assistant", &format!("answer {n}: token_stream and TokenKind, {words}"));
    }

    fn exchanges(&mut self, n: usize) {
        (0..n).for_each(|at| self.exchange(at));
    }

    fn compact(&mut self, params: Value) -> Value {
        self.ok("context.compact", params)
    }

    fn build(&mut self) -> Value {
        self.ok("context.build", json!({}))
    }

    /// Returns the messages of the context.
    fn messages(&mut self) -> Value {
        self.build()["messages"].clone()
    }

    fn checkpoints(&mut self) -> Value {
        self.ok("context.checkpoints", json!({}))
    }

    /// Returns the kinds of all records.
    fn record_kinds(&mut self) -> Vec<String> {
        let records = self.records();
        records.iter().map(|record| record["type"].as_str().unwrap().to_owned()).collect()
    }
}
