//! The daemon's token counts and windows against those of a real model server.
//!
//! Run with `cargo bench --bench engines -- http://127.0.0.1:11434 [MODEL ...]`. Plays a fixed set of conversations
//! with each model of the server, or with the given ones, and compares every predicted size of a prompt with the
//! server's own count. Answers are short, but a model is loaded for each, so a run takes minutes. Without an address
//! it does nothing: no measurement depends on a model server.

#[path = "../harness/mod.rs"]
mod harness;

mod cases;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use cases::{Case, cases};
use harness::daemon::{Client, Daemon, Home, request, tool_results};
use harness::report::{Report, Row, is_bench_run};

/// The longest answer in tokens; thinking counts too.
const ANSWER_TOKENS: u64 = 24;
/// The window of every call, so that each model is loaded once.
const WINDOW: u64 = 4096;
/// The calls that a model may request in one turn before the case ends.
const MAX_TOOL_ROUNDS: usize = 2;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let (true, Some(host)) = (is_bench_run(), arguments.next()) else {
        return Ok(());
    };
    let chosen: Vec<String> = arguments.collect();
    let home = Home::new()?;
    // Without the daemon's own tools, `model.countTokens` counts the prompts that the chats send.
    home.write_config(&format!(
        "ollama: {{ host: '{host}' }}\ncontext: {{ size: {WINDOW} }}\nrecall: {{ tools: 'off' }}\n"
    ))?;
    let daemon = Daemon::start(&home)?;
    let mut client = daemon.connect()?;
    let listed = client.call("model.list", &json!({}))?;
    let version = client.call("daemon.status", &json!({}))?["modelServer"]["version"].take();
    let conditions = json!({ "version": version, "window": WINDOW, "answerTokens": ANSWER_TOKENS });
    let report = Report::new("engines", &conditions);
    let mut total = Tally::default();
    for model in listed["data"].as_array().context("a list of models")? {
        let name = model["model"].as_str().context("a model has a name")?;
        if chosen.is_empty() || chosen.iter().any(|chosen| name.starts_with(chosen.as_str())) {
            let shown = client.call("model.show", &json!({ "model": name }))?["model"].take();
            let played = Player { client: &mut client, model: name, shown: &shown }.play(&report);
            total.add(&played.with_context(|| format!("play the cases with {name}"))?);
        }
    }
    report.print(total.row("all models"))?;
    daemon.stop()
}

/// The comparison of predicted and counted prompts.
#[derive(Default)]
struct Tally {
    calls: u64,
    exact: u64,
    /// The exact predictions that differ from the server's count.
    wrong: u64,
    /// The other predictions that the server's count exceeds by more than their margin.
    beyond_margin: u64,
    /// The differences of all predictions: the count of the server minus the prediction.
    lowest: i64,
    highest: i64,
    windows_differ: u64,
    /// The turns without a comparison, with their reasons.
    failed: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.exact += other.exact;
        self.wrong += other.wrong;
        self.beyond_margin += other.beyond_margin;
        self.lowest = self.lowest.min(other.lowest);
        self.highest = self.highest.max(other.highest);
        self.windows_differ += other.windows_differ;
        self.failed.extend(other.failed.iter().cloned());
    }

    fn compare(&mut self, predicted: i64, counted: i64, kind: &str) {
        self.calls += 1;
        let off = counted - predicted;
        self.lowest = self.lowest.min(off);
        self.highest = self.highest.max(off);
        if kind == "exact" {
            self.exact += 1;
            self.wrong += u64::from(off != 0);
        }
    }

    fn row(&self, name: &str) -> Row {
        let Self { calls, exact, wrong, beyond_margin, windows_differ, .. } = self;
        let bar = format!(
            "{wrong} of {exact} exact counts wrong, {beyond_margin} margins passed, {windows_differ} windows differ, \
             counted - predicted: {} to {}, {} failed",
            self.lowest,
            self.highest,
            self.failed.len()
        );
        Row::value(name, "calls", *calls)
            .with("exact", *exact)
            .with("wrong", *wrong)
            .with("beyondMargin", *beyond_margin)
            .with("windowsDiffer", *windows_differ)
            .with("lowest", self.lowest)
            .with("highest", self.highest)
            .with("failed", json!(self.failed))
            .bar(&bar, wrong + beyond_margin + windows_differ == 0)
    }
}

/// Plays conversations with one model.
struct Player<'a> {
    client: &'a mut Client,
    model: &'a str,
    /// The details of the model that `model.show` returns.
    shown: &'a Value,
}

impl Player<'_> {
    fn play(&mut self, report: &Report) -> Result<Tally> {
        let mut total = Tally::default();
        for case in cases() {
            if case.needs.is_some_and(|capability| !self.can(capability)) {
                continue;
            }
            let tally = self.play_case(&case)?;
            report.print(tally.row(&format!("{}, {}", self.model, case.name)))?;
            total.add(&tally);
        }
        report.print(total.row(self.model))?;
        Ok(total)
    }

    fn can(&self, capability: &str) -> bool {
        let capabilities = self.shown["capabilities"].as_array();
        capabilities.is_some_and(|all| all.iter().any(|found| found == capability))
    }

    fn play_case(&mut self, case: &Case) -> Result<Tally> {
        let mut tally = Tally::default();
        let mut params = json!({ "model": self.model });
        if let Some(system) = case.system {
            params["systemPrompt"] = system.into();
        }
        let session = self.client.create(&params)?;
        for (turn, message) in case.turns.iter().enumerate() {
            let margin = (turn == 0).then(|| self.margin(case, message)).transpose()?;
            let mut params = json!({
                "sessionId": session,
                "message": message,
                "answerLimit": ANSWER_TOKENS,
                "options": { "temperature": 0.0, "seed": 1 },
            });
            if let Some(tools) = &case.tools {
                params["tools"] = tools.clone();
            }
            if let Some(think) = case.think {
                params["think"] = think.into();
            }
            let first = tally.calls == 0;
            let usages = self.turn(&session, &params, &mut tally)?;
            if let (true, Some(margin), Some(usage)) = (first, margin, usages.first()) {
                let counted = usage["promptTokens"].as_i64().unwrap_or_default();
                tally.beyond_margin += u64::from(counted > margin);
            }
            for usage in &usages {
                self.compare(&session, usage, &mut tally)?;
            }
        }
        Ok(tally)
    }

    /// Returns the most tokens that the first prompt of a case may have, as `model.countTokens` says.
    fn margin(&mut self, case: &Case, message: &Value) -> Result<i64> {
        let content = message["content"].as_str().unwrap_or_default();
        if content.is_empty() {
            // A message with parts, which `context.build` does not return either.
            return Ok(i64::MAX);
        }
        let mut messages = vec![json!({ "role": "user", "content": content })];
        if let Some(system) = case.system {
            messages.insert(0, json!({ "role": "system", "content": system }));
        }
        let mut params = json!({ "model": self.model, "messages": messages });
        if let Some(tools) = &case.tools {
            params["tools"] = tools.clone();
        }
        let counted = self.client.call("model.countTokens", &params)?;
        let number = |name: &str| counted[name].as_i64().with_context(|| format!("no {name}"));
        Ok(number("tokens")? + number("margin")?)
    }

    fn compare(&mut self, session: &str, usage: &Value, tally: &mut Tally) -> Result<()> {
        let number = |name: &str| usage[name].as_i64();
        let (Some(counted), Some(predicted)) = (number("promptTokens"), number("contextTokens"))
        else {
            tally.failed.push(format!("the server counted nothing: {usage}"));
            return Ok(());
        };
        tally.compare(predicted, counted, usage["countKind"].as_str().unwrap_or_default());
        let build = self.client.call("context.build", &json!({ "sessionId": session }))?;
        let same_limit = build["budget"]["promptLimit"] == usage["promptLimit"];
        let effective = usage.get("effectiveContext").unwrap_or(&usage["contextSize"]);
        tally.windows_differ += u64::from(!same_limit || build["contextSize"] != *effective);
        Ok(())
    }

    /// Sends one message and returns the `usage` of each call to the model.
    fn turn(&mut self, session: &str, params: &Value, tally: &mut Tally) -> Result<Vec<Value>> {
        let (mut usages, mut tool_rounds) = (Vec::new(), 0);
        let error = self.client.chat(params, |event| {
            Ok(match event["kind"].as_str() {
                Some("usage") => {
                    usages.push(event["usage"].clone());
                    None
                }
                Some("toolCalls") if tool_rounds < MAX_TOOL_ROUNDS => {
                    tool_rounds += 1;
                    Some(tool_results(session, event, |_, _| "14 degrees, light rain".to_owned()))
                }
                Some("toolCalls") => Some(request("chat.cancel", &json!({ "sessionId": session }))),
                _ => None,
            })
        })?;
        tally.failed.extend(error.map(|error| error["message"].to_string()));
        Ok(usages)
    }
}
