//! Endless conversations in small windows: what the context engine keeps, reuses, saves and costs.
//!
//! Run with `cargo bench --bench endless`. The model server is part of this program: it answers by a script, calls
//! tools, and summarizes well or badly. Generated sessions run in every window with every summarizer; a real session is
//! replayed if `-- --session FILE` names a file in the format of pi. Further arguments: `--turns N` (10,000 with the
//! good summarizer), `--turns-of-others N` (300), `--windows 2048,8192`, `--summarizers good,failing` (or `none`),
//! `--no-speed`. Homes are in memory if possible, because the disk is not measured.
//!
//! The program fails if a conversation overflows or stops, if a fact is lost that has its share, if a compaction frees
//! nothing, if less than 95 % of a prompt is reused outside of new heads, or if a speed misses its bar.

mod harness;
mod simulator;

use std::io::Write as _;

use anyhow::{Result, bail, ensure};
use serde_json::json;

use harness::arguments::Arguments;
use harness::daemon::Home;
use harness::report::{Report, is_bench_run};
use simulator::metrics::RunMetrics;
use simulator::model_server::Summarizer;
use simulator::replay::RealSession;
use simulator::{generated, replay, speed};

/// The turns of a generated session with the good summarizer, and with the others.
const TURNS: usize = 10_000;
const TURNS_OF_OTHERS: usize = 300;
const WINDOWS: [u32; 6] = [2048, 4096, 8192, 16_384, 32_768, 131_072];

fn main() -> Result<()> {
    if !is_bench_run() {
        return Ok(());
    }
    let options = Options::from_args()?;
    let report = Report::new("endless", &json!({ "homes": Home::memory_location() }));
    let mut runs = Vec::new();
    for &summarizer in &options.summarizers {
        for &window in &options.windows {
            let run = generated::run(summarizer, window, options.n_turns(summarizer))?;
            report.print(run.row())?;
            runs.push(run);
        }
    }
    if let Some(path) = &options.session {
        let session = RealSession::read(path)?;
        for summarizer in [Summarizer::Good, Summarizer::Failing] {
            for &window in &options.windows {
                let run = replay::run(&session, summarizer, window)?;
                report.print(run.row())?;
                runs.push(run);
            }
        }
    } else {
        writeln!(std::io::stderr(), "no real session is replayed: --session names none")?;
    }
    let is_fast = !options.speed || speed::run(&report)?;
    report.print_table(RunMetrics::COLUMNS)?;
    print_findings(&runs)?;
    let n_missed = runs.iter().filter(|run| !run.missed().is_empty()).count();
    if n_missed > 0 || !is_fast {
        bail!("{n_missed} of {} runs missed a limit; speed: {is_fast}", runs.len());
    }
    Ok(())
}

/// Prints what each run missed or found, for people.
fn print_findings(runs: &[RunMetrics]) -> Result<()> {
    let mut out = std::io::stderr();
    for run in runs {
        let missed = run.missed();
        if !missed.is_empty() {
            writeln!(out, "{} {}: {}", run.window, run.name, missed.join("; "))?;
        }
        for finding in run.findings() {
            writeln!(out, "    {finding}")?;
        }
    }
    Ok(())
}

/// The arguments of the program.
struct Options {
    turns: usize,
    turns_of_others: usize,
    windows: Vec<u32>,
    summarizers: Vec<Summarizer>,
    /// The path of a real session in the format of pi.
    session: Option<String>,
    /// Times calls on a session of 100,000 records.
    speed: bool,
}

impl Options {
    fn from_args() -> Result<Self> {
        let mut arguments = Arguments::new();
        let options = Self {
            turns: arguments.number("--turns", TURNS)?,
            turns_of_others: arguments.number("--turns-of-others", TURNS_OF_OTHERS)?,
            windows: arguments.list("--windows", &WINDOWS, |item| item.parse().ok())?,
            summarizers: arguments.list("--summarizers", &Summarizer::ALL, Summarizer::named)?,
            session: arguments.text("--session")?,
            speed: !arguments.flag("--no-speed"),
        };
        ensure!(arguments.rest()?.is_empty(), "every argument has a name");
        Ok(options)
    }

    /// Returns the number of turns with a summarizer.
    fn n_turns(&self, summarizer: Summarizer) -> usize {
        match summarizer {
            Summarizer::Good => self.turns,
            _ => self.turns_of_others.min(self.turns),
        }
    }
}
