//! A simulated session: a daemon, a scripted model server, and a client that answers tool calls.

use anyhow::Result;
use serde_json::{Value, json};

use super::daemon::{Client, Daemon, Home, tool_results};
use super::model_server::MODEL;

/// Creates a home in memory, because the disk is not measured. Loops are not detected, because random words have some.
pub(crate) fn home(host: &str, more: &str) -> Result<Home> {
    let home = Home::in_memory()?;
    home.write_config(&format!(
        "loopDetection: {{ enabled: false }}\nollama: {{ host: '{host}' }}\nmodels: {{ default: '{MODEL}' }}\n{more}"
    ))?;
    Ok(home)
}

/// The outcome of a turn.
pub(crate) struct TurnOutcome {
    /// The error that ended the turn.
    pub(crate) error: Option<Value>,
    /// The tokens and the limit of each prompt.
    pub(crate) prompts: Vec<(u64, u64)>,
}

/// A session with everything that one run needs.
pub(crate) struct SimulatedSession<S> {
    pub(crate) server: S,
    pub(crate) daemon: Daemon,
    /// The connection that gets the events of turns.
    turns: Client,
    calls: Client,
    id: String,
    next_seq: u64,
    _home: Home,
}

impl<S> SimulatedSession<S> {
    /// Starts a daemon with a session of a window. `host` is the address of the server, `more` is further configuration.
    pub(crate) fn start(server: S, host: &str, window: u32, more: &str) -> Result<Self> {
        let home = home(host, more)?;
        let daemon = Daemon::start(&home)?;
        let system = "You are a careful engineer. Answer briefly.";
        let params = json!({ "model": MODEL, "contextSize": window, "systemPrompt": system });
        let (turns, mut calls) = (daemon.connect()?, daemon.connect()?);
        let id = calls.create(&params)?;
        Ok(Self { server, daemon, turns, calls, id, next_seq: 0, _home: home })
    }

    /// Calls a method with the session's id.
    pub(crate) fn call(&mut self, method: &str, mut params: Value) -> Result<Value> {
        params["sessionId"] = json!(self.id);
        self.calls.call(method, &params)
    }

    /// Sends a message and answers tool calls until the turn ends.
    pub(crate) fn turn(
        &mut self,
        message: &str,
        tools: &Value,
        mut tool_result: impl FnMut(&str, &Value) -> String,
    ) -> Result<TurnOutcome> {
        let mut prompts = Vec::new();
        let params = json!({ "sessionId": self.id, "tools": tools,
            "message": { "role": "user", "content": message } });
        let error = self.turns.chat(&params, |event| {
            let number = |name: &str| event["usage"][name].as_u64().unwrap_or_default();
            Ok(match event["kind"].as_str() {
                Some("toolCalls") => Some(tool_results(&self.id, event, &mut tool_result)),
                Some("usage") => {
                    prompts.push((number("contextTokens"), number("promptLimit")));
                    None
                }
                _ => None,
            })
        })?;
        Ok(TurnOutcome { error, prompts })
    }

    /// Returns the records since the last call.
    pub(crate) fn new_records(&mut self) -> Result<Vec<Value>> {
        let mut records = Vec::new();
        loop {
            let params = json!({ "from": self.next_seq, "limit": 1000 });
            let mut page = self.call("session.get", params)?;
            let Value::Array(page_records) = page["records"].take() else { break };
            let Some(last) = page_records.last().and_then(|record| record["seq"].as_u64()) else {
                break;
            };
            self.next_seq = last + 1;
            records.extend(page_records);
            if page["nextFrom"].is_null() {
                break;
            }
        }
        Ok(records)
    }
}
