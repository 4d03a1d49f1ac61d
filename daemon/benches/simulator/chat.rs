//! One chat turn through the daemon, its tools included.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::harness::daemon::{Client, Daemon, request};

/// What became of a turn.
#[derive(Default)]
pub(crate) struct Ended {
    /// The error that it ended with.
    pub(crate) error: Option<Value>,
    /// Tokens of each prompt, and how many it might have had.
    pub(crate) prompts: Vec<(u64, u64)>,
}

/// Two connections: one that a turn is told on, and one for everything else.
pub(crate) struct Chat {
    turns: Client,
    /// For everything else.
    pub(crate) calls: Client,
    /// The session.
    pub(crate) session: String,
}

impl Chat {
    /// A client of a session.
    pub(crate) fn new(daemon: &Daemon, session: String) -> Result<Self> {
        Ok(Self { turns: daemon.connect()?, calls: daemon.connect()?, session })
    }

    /// Calls a method for the session.
    pub(crate) fn call(&mut self, method: &str, mut params: Value) -> Result<Value> {
        params["sessionId"] = json!(self.session);
        self.calls.call(method, &params)
    }

    /// Says something and answers calls of tools until the turn is over.
    pub(crate) fn turn(
        &mut self,
        message: &str,
        tools: &Value,
        mut result: impl FnMut(&str, &Value) -> String,
    ) -> Result<Ended> {
        let mut ended = Ended::default();
        let params = json!({ "sessionId": self.session, "tools": tools,
            "message": { "role": "user", "content": message } });
        let mut line: Value =
            serde_json::from_slice(self.turns.exchange(&request("chat.send", &params))?)?;
        loop {
            if let Some(error) = line.get("error") {
                ended.error = Some(error.clone());
                return Ok(ended);
            }
            let event = &line["params"]["result"];
            match event["kind"].as_str() {
                Some("toolCalls") => {
                    let results = results(&event["calls"], &mut result);
                    self.call("chat.submitToolResults", json!({ "results": results }))?;
                }
                Some("usage") => {
                    let number = |name: &str| event["usage"][name].as_u64().unwrap_or_default();
                    ended.prompts.push((number("contextTokens"), number("promptLimit")));
                }
                Some("done") => return Ok(ended),
                Some("error") => {
                    ended.error = Some(event.clone());
                    return Ok(ended);
                }
                _ => {}
            }
            let next = self.turns.exchange(b"")?;
            if next.is_empty() {
                bail!("the daemon closed the connection in the middle of a turn");
            }
            line = serde_json::from_slice(next)?;
        }
    }
}

fn results(calls: &Value, result: &mut impl FnMut(&str, &Value) -> String) -> Vec<Value> {
    let calls = calls.as_array().into_iter().flatten();
    calls
        .map(|call| {
            let text = result(call["name"].as_str().unwrap_or_default(), &call["args"]);
            json!({ "id": call["id"], "result": { "llmContent": text, "success": true } })
        })
        .collect()
}
