//! A generated session, from its first turn to its last.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use super::facts::Facts;
use super::script::{Script, Turn, tools};
use super::stage::Stage;
use super::summarizer::Summarizer;
use super::tally::Tally;
use crate::harness::process::rss_kib;

/// A context is built, and facts are looked for, after each new head, and every so many turns besides.
const BUILD_EVERY: usize = 5;
const CHECK_EVERY: usize = 25;
/// Locked decisions: the first ones soon, the others at long intervals.
const FIRST_DECISIONS: [usize; 3] = [3, 20, 60];
const DECISION_EVERY: usize = 400;
const MAX_DECISIONS: usize = 12;

/// A session as it goes on.
struct Run {
    stage: Stage,
    facts: Facts,
    tally: Tally,
    tools: Value,
    n_decisions: usize,
    n_pins: usize,
    /// Heads that were recorded after the requests of a turn were looked at; they count for the next ones.
    n_later: usize,
}

/// Runs one.
pub(crate) fn run(summarizer: Summarizer, window: u32, n_turns: usize) -> Result<Tally> {
    let started = Instant::now();
    let tally = Tally::new(summarizer.name().to_owned(), window, n_turns);
    let stage = Stage::new(summarizer, window)?;
    let facts = Facts::default();
    let mut run =
        Run { stage, facts, tally, tools: tools(), n_decisions: 0, n_pins: 0, n_later: 0 };
    let mut script = Script::new(u64::from(window) + summarizer as u64, n_turns);
    for at in 0..n_turns {
        let turn = script.turn(at);
        run.turn(at, turn, &mut script)?;
        run.plant(at)?;
    }
    run.tally.took = started.elapsed();
    run.tally.rss_kib = rss_kib(run.stage.daemon.pid())?;
    Ok(run.tally)
}

impl Run {
    fn turn(&mut self, at: usize, turn: Turn, script: &mut Script) -> Result<()> {
        let Self { stage, facts, tally, tools, n_later, .. } = self;
        stage.server.script(turn.answers);
        let ended =
            stage.chat.turn(&turn.message, tools, |name, args| script.result(name, args))?;
        tally.prompts(&ended.prompts);
        if let Some(error) = &ended.error {
            tally.failed(at, error);
        }
        let (records, asked) = (stage.new_records()?, stage.server.drain());
        let heads = tally.records(at, &records, &asked);
        records.iter().for_each(|record| facts.note(record));
        tally.asked(at, &asked, std::mem::take(n_later) + heads.in_turn);
        *n_later = heads.after;
        let n_heads = heads.all();
        if n_heads > 0 || at.is_multiple_of(BUILD_EVERY) {
            let before = ended.prompts.last().map(|(tokens, _)| *tokens);
            self.build(at, before.filter(|_| n_heads == 0), n_heads)?;
        }
        Ok(())
    }

    /// A build as a client asks for it, beside those of the turns.
    fn build(&mut self, at: usize, before: Option<u64>, n_heads: usize) -> Result<()> {
        let Self { stage, facts, tally, tools, .. } = self;
        let started = Instant::now();
        let build = stage.chat.call("context.build", json!({ "tools": tools }))?;
        let took = started.elapsed();
        // What the daemon compacts by itself, it compacts at any time.
        let records = stage.new_records()?;
        let n_later = tally.records(at, &records, &[]).all();
        records.iter().for_each(|record| facts.note(record));
        self.n_later += n_later;
        let tally = &mut self.tally;
        tally.build(at, took, &build, before.filter(|_| n_later == 0));
        if n_heads + n_later > 0 || at.is_multiple_of(CHECK_EVERY) {
            tally.facts(at, &build, self.facts.check(&build));
        }
        Ok(())
    }

    /// Pins and decides something now and then.
    fn plant(&mut self, at: usize) -> Result<()> {
        if at == 2 {
            let goal = json!({ "description": "Port the parser to the new lexer" });
            self.stage.chat.call("goal.create", goal)?;
        }
        let is_due = FIRST_DECISIONS.contains(&at) || (at > 0 && at.is_multiple_of(DECISION_EVERY));
        if is_due && self.n_decisions < MAX_DECISIONS {
            self.n_decisions += 1;
            let words = format!("dec-{at}-kappa keeps the lexer at level {}", at % 97);
            let decision = json!({ "description": words, "locked": true });
            self.stage.chat.call("goal.addDecision", decision)?;
            self.facts.decided(words);
        }
        if at < 40 && at % 10 == 4 && self.n_pins < 3 {
            let seq = self.facts.newest_user();
            // One that does not fit is refused when it is pinned.
            if let Some(seq) = seq
                && self.stage.chat.call("context.pin", json!({ "seq": seq })).is_ok()
            {
                self.n_pins += 1;
                self.facts.pinned(seq);
            }
        }
        Ok(())
    }
}
