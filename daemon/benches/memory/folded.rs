//! The table of facts alone: statements planted in a dialogue, and what the facts of its messages have of them. No daemon
//! runs, so a change of the facts is judged in seconds.

use anyhow::Result;
use ollm_daemon::bench_api::BenchFacts;
use serde_json::json;

use super::dialogue::{Dialogue, says};
use super::statements::{Statement, plant};
use super::talk::TalkOptions;
use crate::harness::report::{Report, Row};

/// The columns of the table for people.
const COLUMNS: &str = "talk listed amongBest corrected stale neverTrue natural worth facts";
/// The facts that a small window shows.
const BEST: usize = 40;

/// Prints a row for each dialogue.
pub(crate) fn run(options: &TalkOptions, report: &Report) -> Result<()> {
    let statements = Statement::read(&options.set)?;
    let mut dialogues = Dialogue::read_all(options.n_turns)?;
    let names = &options.names;
    dialogues.retain(|dialogue| names.is_empty() || names.contains(&dialogue.name));
    for dialogue in &dialogues {
        let own: &[Statement] = if dialogue.questions.is_empty() { &statements } else { &[] };
        report.print(row(dialogue, own))?;
    }
    report.print_table(COLUMNS)
}

fn row(dialogue: &Dialogue, statements: &[Statement]) -> Row {
    let mut facts = BenchFacts::default();
    for turn in plant(&dialogue.turns, statements) {
        facts.fold(&turn.message);
        facts.fold_answer(&turn.answer);
    }
    let listed = facts.listed();
    let best = &listed[..listed.len().min(BEST)];
    let has =
        |lines: &[String], statement: &Statement| lines.iter().any(|line| statement.is_in(line));
    let shown: Vec<&Statement> = statements.iter().filter(|one| one.can_be_shown()).collect();
    let corrections: Vec<&Statement> =
        shown.iter().copied().filter(|one| !one.stale.is_empty()).collect();
    let is_wrong = |statement: &&Statement| listed.iter().any(|line| statement.is_wrong_in(line));
    let wrong: Vec<&Statement> = statements.iter().filter(is_wrong).collect();
    let count = |statements: &[&Statement], lines: &[String]| {
        let n = statements.iter().filter(|statement| has(lines, statement)).count();
        format!("{n}/{}", statements.len())
    };
    let n_of = |keep: bool| wrong.iter().filter(|statement| statement.keep == keep).count();
    let durable: Vec<&String> = dialogue.turns.iter().flat_map(|turn| &turn.durable).collect();
    let is_natural = |sentence: &&&String| listed.iter().any(|line| says(line, sentence));
    let is_worth = |line: &&String| {
        durable.iter().any(|sentence| says(line, sentence))
            || statements.iter().any(|one| one.keep && one.is_in(line))
    };
    let missing = shown.iter().filter(|one| !has(&listed, one)).map(|one| one.id.as_str());
    let worth = listed.iter().filter(is_worth).count();
    Row::value(&dialogue.name, "statements", shown.iter().filter(|one| has(&listed, one)).count())
        .with("talk", dialogue.name.as_str())
        .with("listed", count(&shown, &listed))
        .with("amongBest", count(&shown, best))
        .with("corrected", count(&corrections, &listed))
        .with("stale", n_of(true))
        .with("neverTrue", n_of(false))
        .with("natural", format!("{}/{}", durable.iter().filter(is_natural).count(), durable.len()))
        .with("worth", format!("{worth}/{}", listed.len()))
        .with("facts", listed.len())
        .with("missing", json!(missing.collect::<Vec<_>>()))
        .with("wrong", json!(wrong.iter().map(|one| one.id.as_str()).collect::<Vec<_>>()))
}
