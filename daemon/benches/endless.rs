//! Conversations without an end in small windows: what the context engine keeps, reuses, saves and costs.
//!
//! Run with `cargo bench --bench endless`. The model server is part of this program: it answers by a script, calls
//! tools, and summarizes well or badly. Generated sessions go through every window with every summarizer, and a real
//! one where `-- --session FILE` names a file in the format of pi. Further arguments: `--turns N` (10,000 with the good
//! summarizer), `--turns-of-others N` (300), `--windows 2048,8192`, `--summarizers good,failing` (or `none`),
//! `--no-speed`. Homes are in memory where the system has such a place, because the disk is not what is measured.
//!
//! It fails when a conversation overflows or stops, when a fact is lost that has its share, when a compaction frees
//! nothing, when less than 95 % of a prompt is reused outside new heads, or when a bar of speed is missed.

mod harness;
mod simulator;

use std::io::Write as _;

use anyhow::{Result, bail};
use serde_json::json;

use harness::report::Report;
use simulator::options::Options;
use simulator::replay::Session;
use simulator::stage::Scratch;
use simulator::summarizer::Summarizer;
use simulator::tally::Tally;
use simulator::{generated, replay, speed};

fn main() -> Result<()> {
    if !harness::report::is_asked_for() {
        return Ok(());
    }
    let options = Options::read()?;
    let report = Report::new("endless", &json!({ "homes": Scratch::place() }));
    let mut tallies = Vec::new();
    for &summarizer in &options.summarizers {
        for &window in &options.windows {
            let tally = generated::run(summarizer, window, options.turns_with(summarizer))?;
            report.row(tally.row())?;
            tallies.push(tally);
        }
    }
    real(&options, &report, &mut tallies)?;
    let is_fast = !options.speed || speed::run(&report)?;
    table(&tallies)?;
    let n_missed = tallies.iter().filter(|tally| !tally.missed().is_empty()).count();
    if n_missed > 0 || !is_fast {
        bail!("{n_missed} of {} runs missed what must be; speed: {is_fast}", tallies.len());
    }
    Ok(())
}

/// Replays the session that was named.
fn real(options: &Options, report: &Report, tallies: &mut Vec<Tally>) -> Result<()> {
    let Some(path) = &options.session else {
        writeln!(std::io::stderr(), "no real session is replayed: none is named with --session")?;
        return Ok(());
    };
    let session = Session::read(path)?;
    for summarizer in [Summarizer::Good, Summarizer::Failing] {
        for &window in &options.windows {
            let tally = replay::run(&session, summarizer, window)?;
            report.row(tally.row())?;
            tallies.push(tally);
        }
    }
    Ok(())
}

/// All runs for people.
fn table(tallies: &[Tally]) -> Result<()> {
    let mut out = std::io::stderr();
    writeln!(out, "\n{}", Tally::heading())?;
    for tally in tallies {
        writeln!(out, "{}", tally.line())?;
    }
    for tally in tallies {
        let missed = tally.missed();
        if !missed.is_empty() {
            writeln!(out, "{} {}: {}", tally.window, tally.name, missed.join("; "))?;
        }
        for word in tally.words() {
            writeln!(out, "    {word}")?;
        }
    }
    Ok(())
}
