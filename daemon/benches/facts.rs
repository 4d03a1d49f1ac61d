//! The points of the features of sentences, fitted to labels, and how well they tell what lasts from what does not.
//!
//! Run with `OLLM_LABELS=FILE cargo bench --bench facts`. The file has a JSON object a line: `sentence`, `before` (the text
//! before it in the talk), `label` (`durable`, `doubtful` or `junk`), `source`, and perhaps `licence`; several files are
//! separated by colons. Labels of dialogue whose licence forbids derived data may measure and must not fit. The points are a
//! logistic regression with a small penalty for size, rounded. The rows are those of sources that the fit has not seen.
//! `--write FILE` writes the points as the daemon reads them: `daemon/src/facts/points.txt`. `--print` prints the sentences on
//! the wrong side.

#![expect(clippy::disallowed_methods, reason = "the points are a file of the repository")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{Write as _, stdout};

use anyhow::{Context as _, Result, ensure};
use ollm_daemon::bench_api::BenchFacts;
use serde_json::Value;

/// The parts of the cross-validation.
const FOLDS: usize = 8;
/// The weight of a doubtful sentence, which is half a durable one.
const DOUBTFUL_WEIGHT: f64 = 0.4;
/// The penalty for the size of weights.
const PENALTY: f64 = 2.0;
const STEPS: usize = 4000;
const RATE: f64 = 2.0;
/// Points for an e-fold of the odds.
const POINTS: f64 = 10.0;
/// The name of the points that any sentence has.
const ANY: &str = "any";

struct Label {
    sentence: String,
    before: String,
    label: String,
    source: String,
}

impl Label {
    fn parse(line: &str) -> Result<Self> {
        let object: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let text = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
        let [sentence, before] = ["sentence", "before"].map(text);
        let [label, source] = ["label", "source"].map(text);
        Ok(Self { sentence, before, label, source })
    }
}

struct Example {
    label: Label,
    /// The indices of its features.
    features: Vec<usize>,
    target: f64,
    weight: f64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let Some(paths) = std::env::var_os("OLLM_LABELS") else {
        return say("facts: set OLLM_LABELS to files of labeled sentences\n");
    };
    let (examples, names, n_data) = read(&std::env::split_paths(&paths).collect::<Vec<_>>())?;
    let scores = cross_validated(&examples, names.len());
    say(&table(&examples, &scores, n_data))?;
    if arguments.iter().any(|argument| argument == "--print") {
        say(&wrong_ones(&examples, &scores))?;
    }
    let weights = fit(&examples.iter().collect::<Vec<_>>(), names.len());
    let text = points_text(&names, &weights);
    match arguments.iter().position(|argument| argument == "--write") {
        Some(at) => write_points(arguments.get(at + 1).context("--write needs a file")?, &text),
        None => say(&text),
    }
}

fn say(text: &str) -> Result<()> {
    Ok(stdout().write_all(text.as_bytes())?)
}

/// Replaces the points in a file, whose explanation stays.
fn write_points(path: &str, points: &str) -> Result<()> {
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let mut text = String::new();
    for line in old.lines().filter(|line| line.starts_with('#')) {
        text.push_str(line);
        text.push('\n');
    }
    Ok(std::fs::write(path, text + points)?)
}

/// Reads the labels; returns the examples, the names of the features, and the number of durable sentences that are taken as
/// data.
fn read(paths: &[std::path::PathBuf]) -> Result<(Vec<Example>, Vec<&'static str>, usize)> {
    let (mut examples, mut names, mut n_data) = (Vec::new(), vec![ANY], 0);
    for path in paths {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let label = Label::parse(line)?;
            let (target, weight) = match label.label.as_str() {
                "durable" => (1.0, 1.0),
                "junk" => (0.0, 1.0),
                _ => (0.5, DOUBTFUL_WEIGHT),
            };
            let Some(judged) = BenchFacts::judge(&label.sentence, &label.before) else {
                n_data += usize::from(label.label == "durable");
                continue;
            };
            let mut features = vec![0];
            for name in judged.features {
                let known = names.iter().position(|one| *one == name);
                features.push(known.unwrap_or_else(|| {
                    names.push(name);
                    names.len() - 1
                }));
            }
            examples.push(Example { label, features, target, weight });
        }
    }
    ensure!(!examples.is_empty(), "there are no labels");
    Ok((examples, names, n_data))
}

/// Returns the score of each example by a fit to other sources.
fn cross_validated(examples: &[Example], n_names: usize) -> Vec<f64> {
    let sources: BTreeSet<&str> = examples.iter().map(|one| one.label.source.as_str()).collect();
    let folds: BTreeMap<&str, usize> = sources
        .into_iter()
        .enumerate()
        .map(|(at, source)| (source, at * 7919 % 101 % FOLDS))
        .collect();
    let fold = |example: &Example| folds[example.label.source.as_str()];
    let weights: Vec<Vec<f64>> = (0..FOLDS)
        .map(|out| {
            let others: Vec<&Example> = examples.iter().filter(|one| fold(one) != out).collect();
            fit(&others, n_names)
        })
        .collect();
    examples.iter().map(|example| score(example, &weights[fold(example)])).collect()
}

fn score(example: &Example, weights: &[f64]) -> f64 {
    example.features.iter().map(|at| weights[*at]).sum()
}

#[expect(clippy::cast_precision_loss, reason = "some thousand examples")]
fn fit(examples: &[&Example], n_names: usize) -> Vec<f64> {
    let mut weights = vec![0.0; n_names];
    let mut speed = vec![0.0; n_names];
    let all = examples.len() as f64;
    for _ in 0..STEPS {
        let mut slope: Vec<f64> = weights.iter().map(|weight| PENALTY * weight / all).collect();
        slope[0] = 0.0;
        for example in examples {
            let expected = 1.0 / (1.0 + (-score(example, &weights)).exp());
            let error = example.weight * (expected - example.target) / all;
            example.features.iter().for_each(|at| slope[*at] += error);
        }
        for ((weight, speed), slope) in weights.iter_mut().zip(&mut speed).zip(slope) {
            *speed = 0.9 * *speed - RATE * slope * 0.1;
            *weight += *speed;
        }
    }
    weights
}

/// Returns the shares of labels among the sentences from each score on.
fn table(examples: &[Example], scores: &[f64], n_data: usize) -> String {
    let of = |label: &str, least: f64| {
        let found = examples.iter().zip(scores);
        found.filter(|(one, score)| one.label.label == label && **score >= least).count()
    };
    let n_durable = of("durable", f64::MIN) + n_data;
    let mut text = format!(
        "{} sentences, {n_durable} durable, of which {n_data} are taken as data\n\
         least score   listed   durable   doubtful   junk   of the durable\n",
        examples.len()
    );
    for least in [-1.5, -1.0, -0.7, -0.5, 0.0, 0.5, 1.0, 1.5] {
        let [durable, doubtful, junk] =
            ["durable", "doubtful", "junk"].map(|label| of(label, least));
        let listed = durable + doubtful + junk;
        let percent = |part: usize, all: usize| 100 * part / all.max(1);
        let shares = [durable, doubtful, junk].map(|n| percent(n, listed));
        let found = percent(durable, n_durable);
        let _ = writeln!(
            text,
            "{least:>11}   {listed:>6}   {:>5} %   {:>6} %   {:>2} %   {:>12} %",
            shares[0], shares[1], shares[2], found
        );
    }
    text
}

/// Returns the durable sentences below 0 and the junk above, by their scores.
fn wrong_ones(examples: &[Example], scores: &[f64]) -> String {
    let mut all: Vec<(&Example, f64)> = examples.iter().zip(scores.iter().copied()).collect();
    all.sort_by(|one, other| one.1.total_cmp(&other.1));
    let mut text = String::new();
    for (example, score) in all {
        let Label { sentence, before, label, .. } = &example.label;
        if label == "durable" && score < 0.0 || label == "junk" && score >= 0.0 {
            let start = before.char_indices().rev().nth(50).map_or(0, |(at, _)| at);
            let before = before[start..].replace('\n', " ");
            let _ = writeln!(text, "{score:>5.1} {label:<8} [{before}] {sentence}");
        }
    }
    text
}

/// Returns the points as the daemon reads them, with 0 for features that no sentence has.
fn points_text(names: &[&str], weights: &[f64]) -> String {
    let mut all = vec![ANY];
    all.extend(BenchFacts::feature_names());
    all.iter().fold(String::new(), |mut text, name| {
        let at = names.iter().position(|one| one == name);
        let points = at.map_or(0.0, |at| (weights[at] * POINTS).round()) + 0.0;
        let _ = writeln!(text, "{name} {points}");
        text
    })
}
