//! `context.compact`, `context.checkpoints` and what the daemon compacts by itself: what is summarized, what stays,
//! and that nothing changes when it fails.

mod asked;
mod automatic;
mod failing;
mod marks;
mod merging;
mod models;
mod refused;
mod slow;

use serde_json::{Value, json};

use crate::harness::{Daemon, FakeOllama, Sandbox, Seen, Wire};

const SUMMARY: &str = "## Goal\n- port the parser to the new lexer\n\n## Constraints\n- keep the public API\n\n\
    ## Progress\n- token_stream is done in src/lex.rs\n\n## Key decisions\n- spans are byte offsets\n\n\
    ## Next steps\n- write the tests\n\n## Critical context\n- TokenKind has 41 variants";

/// A daemon that talks to the fake server, and a session.
struct Compact {
    sandbox: Sandbox,
    daemon: Option<Daemon>,
    wire: Wire,
    session: String,
}

fn config(fake: &FakeOllama, more: &str) -> String {
    format!("ollama:\n  host: {}\n  model: tiny\n{more}", fake.host())
}

/// Whether a request to a model was one for a summary.
fn wants_summary(seen: &Seen) -> bool {
    let last = seen.body["messages"].as_array().unwrap().last().unwrap();
    last["content"].as_str().unwrap().contains("Use exactly these headings")
}

/// What the model was asked for, in order: `S`ummaries and `A`nswers.
fn asked_for(fake: &FakeOllama) -> String {
    let all = fake.requests("/api/chat");
    all.iter().map(|seen| if wants_summary(seen) { 'S' } else { 'A' }).collect()
}

impl Compact {
    /// Compaction only when it is asked for.
    fn asked(fake: &FakeOllama) -> Self {
        Self::configured(fake, "compression:\n  enabled: false\n")
    }

    /// `more` may begin with further settings of the model server.
    fn configured(fake: &FakeOllama, more: &str) -> Self {
        Self::sized(fake, 8192, more)
    }

    fn sized(fake: &FakeOllama, context_size: u32, more: &str) -> Self {
        let sandbox = Sandbox::new();
        sandbox.write_config(&config(fake, more));
        let (daemon, mut wire) = sandbox.served();
        // With the vocabulary, counts do not change any more.
        let _counted = wire.ok("model.countTokens", json!({ "text": "x" }));
        let session = wire.create(json!({ "contextSize": context_size }));
        Self { sandbox, daemon: Some(daemon), wire, session }
    }

    /// Takes other settings into force.
    fn reconfigure(&mut self, fake: &FakeOllama, more: &str) {
        self.sandbox.write_config(&config(fake, more));
        let _reloaded = self.wire.ok("daemon.reload", json!({}));
    }

    /// A turn in a chat, up to its last event.
    fn turn(&mut self, text: &str) -> Vec<Value> {
        let session = self.session.clone();
        self.turn_in(&session, text)
    }

    fn turn_in(&mut self, session: &str, text: &str) -> Vec<Value> {
        let message = json!({ "role": "user", "content": text });
        let params = json!({ "sessionId": session, "message": message });
        let _subscription = self.wire.ok("chat.send", params);
        let mut events = Vec::new();
        loop {
            let event = self.wire.told("chat.event");
            let is_last = ["done", "error"].contains(&event["kind"].as_str().unwrap());
            events.push(event);
            if is_last {
                return events;
            }
        }
    }

    /// A user message and an answer.
    fn exchange(&mut self, n: usize) {
        let session = self.session.clone();
        let words = "and some words about it that nobody needs later on ".repeat(3);
        let _seq = self.wire.record(&session, "user", &format!("request {n}: {words}"));
        let answer = format!("answer {n}: token_stream and TokenKind, {words}");
        let _seq = self.wire.record(&session, "assistant", &answer);
    }

    fn exchanges(&mut self, n: usize) {
        (0..n).for_each(|at| self.exchange(at));
    }

    fn compact(&mut self, more: Value) -> Value {
        let params = self.params(more);
        self.wire.ok("context.compact", params)
    }

    fn params(&self, more: Value) -> Value {
        let mut params = json!({ "sessionId": self.session });
        more.as_object().unwrap().iter().for_each(|(name, value)| params[name] = value.clone());
        params
    }

    fn built(&mut self) -> Value {
        let params = json!({ "sessionId": self.session });
        self.wire.ok("context.build", params)
    }

    /// What a model would be sent.
    fn messages(&mut self) -> Value {
        self.built()["messages"].clone()
    }

    fn checkpoints(&mut self) -> Value {
        let params = json!({ "sessionId": self.session });
        self.wire.ok("context.checkpoints", params)
    }

    fn kinds(&mut self) -> Vec<String> {
        let session = self.session.clone();
        let records = self.wire.records(&session);
        records.iter().map(|record| record["type"].as_str().unwrap().to_owned()).collect()
    }

    fn count(&mut self, kind: &str) -> usize {
        self.kinds().iter().filter(|other| *other == kind).count()
    }
}
