//! A daemon that uses the fake model server, with one session and a connection.

use serde_json::{Value, json};

use super::{Daemon, FakeOllama, Sandbox, Wire, start_with_config, text_message};

/// The last events of a chat turn.
const FINAL_EVENTS: [&str; 2] = ["done", "error"];

/// A sandbox, its daemon, a connection, and the id of one session.
#[must_use]
pub(crate) struct ModelSession {
    pub(crate) sandbox: Sandbox,
    pub(crate) daemon: Daemon,
    pub(crate) wire: Wire,
    pub(crate) id: String,
}

impl ModelSession {
    /// Starts a daemon with the fake server's model `tiny`, and creates a session.
    pub(crate) fn new(fake: &FakeOllama) -> Self {
        Self::with_config(&fake.config("tiny"))
    }

    /// Starts a daemon with a configuration, and creates a session.
    pub(crate) fn with_config(config: &str) -> Self {
        Self::create(config, json!({}))
    }

    /// Starts a daemon with a configuration, and creates a session with params.
    pub(crate) fn create(config: &str, params: Value) -> Self {
        let (sandbox, daemon, mut wire) = start_with_config(config);
        let id = wire.create(params);
        Self { sandbox, daemon, wire, id }
    }

    /// Replaces the configuration and makes the daemon reload it.
    #[track_caller]
    pub(crate) fn reconfigure(&mut self, config: &str) {
        self.sandbox.write_config(config);
        let _reloaded = self.wire.ok("daemon.reload", json!({}));
    }

    /// Ends the daemon with SIGTERM and starts another one.
    pub(crate) fn restart(self) -> Self {
        let Self { sandbox, daemon, id, .. } = self;
        assert!(daemon.terminate().success());
        let (daemon, wire) = sandbox.daemon_and_wire();
        Self { sandbox, daemon, wire, id }
    }

    /// Ends the daemon with SIGKILL and starts another one.
    pub(crate) fn kill_and_restart(self) -> Self {
        let Self { sandbox, daemon, id, .. } = self;
        daemon.kill();
        let (daemon, wire) = sandbox.daemon_and_wire();
        Self { sandbox, daemon, wire, id }
    }

    /// Returns `params` with the session's id.
    pub(crate) fn params(&self, mut params: Value) -> Value {
        params["sessionId"] = json!(self.id);
        params
    }

    /// Returns the params of `chat.send` for a user message.
    pub(crate) fn message(&self, text: &str) -> Value {
        text_message(&self.id, "user", text)
    }

    /// Calls a method with the session's id, which must succeed.
    #[track_caller]
    pub(crate) fn ok(&mut self, method: &str, params: Value) -> Value {
        let params = self.params(params);
        self.wire.ok(method, params)
    }

    /// Calls a method with the session's id, which must fail with an error kind.
    #[track_caller]
    pub(crate) fn refused(&mut self, method: &str, params: Value, kind: &str) -> Value {
        let params = self.params(params);
        self.wire.refused(method, params, kind)
    }

    #[track_caller]
    pub(crate) fn record(&mut self, role: &str, text: &str) -> u64 {
        self.wire.record(&self.id, role, text)
    }

    #[track_caller]
    pub(crate) fn records(&mut self) -> Vec<Value> {
        self.wire.records(&self.id)
    }

    /// Returns the number of records of a kind.
    #[track_caller]
    pub(crate) fn count(&mut self, kind: &str) -> usize {
        // A snapshot of a nearly full context is taken at any time.
        let is_counted =
            |record: &&Value| record["type"] == kind && record["snapshot"]["reason"] != "threshold";
        self.records().iter().filter(is_counted).count()
    }

    /// Starts a chat turn; its events follow.
    #[track_caller]
    pub(crate) fn send(&mut self, params: Value) {
        let _subscription = self.ok("chat.send", params);
    }

    /// Waits for the next event of the turn.
    #[track_caller]
    pub(crate) fn event(&mut self) -> Value {
        self.wire.notification("chat.event")
    }

    /// Waits for events up to and including the first of a kind.
    ///
    /// **Panics** when the turn ends before.
    #[track_caller]
    pub(crate) fn events_until(&mut self, kind: &str) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let event = self.event();
            let is_found = event["kind"] == kind;
            let is_final = FINAL_EVENTS.contains(&event["kind"].as_str().unwrap());
            events.push(event);
            if is_found {
                return events;
            }
            assert!(!is_final, "the turn ended: {events:?}");
        }
    }

    /// Runs a turn to its end, successful or not, and returns its events.
    #[track_caller]
    pub(crate) fn turn_with(&mut self, params: Value) -> Vec<Value> {
        self.send(params);
        let mut events = Vec::new();
        loop {
            let event = self.event();
            let is_final = FINAL_EVENTS.contains(&event["kind"].as_str().unwrap());
            events.push(event);
            if is_final {
                return events;
            }
        }
    }

    /// Runs a turn that must succeed, and returns its events.
    #[track_caller]
    pub(crate) fn turn(&mut self, text: &str) -> Vec<Value> {
        let events = self.turn_with(self.message(text));
        assert_eq!(events.last().unwrap()["kind"], "done", "{events:?}");
        events
    }

    /// Runs a turn that must fail with an error kind, and returns its last event.
    #[track_caller]
    pub(crate) fn failed_turn(&mut self, text: &str, kind: &str) -> Value {
        let error = self.turn_with(self.message(text)).pop().unwrap();
        assert_eq!(error["kind"], "error", "{error}");
        assert_eq!(error["data"]["kind"], kind, "{error}");
        error
    }
}
