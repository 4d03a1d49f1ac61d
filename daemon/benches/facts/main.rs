//! The points of the features and the words of sentences, fitted to labels, and how well they tell what lasts from what does
//! not.
//!
//! Run with `cargo bench --bench facts`. A file of labels has a JSON object a line: `sentence`, `before` (the text before it in
//! the talk), `label` (`durable`, `doubtful` or `junk`), `source` (the person), and perhaps `language` or `licence`. The files
//! are those of `labels` that begin with `sentences`, or those that `OLLM_LABELS` names, separated by colons. Labels of
//! dialogue whose licence forbids derived data may measure and must not fit. The labels of the repository were written for it;
//! those of public dialogue are not kept here. So a fit begins with the points of the repository, which stand for the labels
//! that are not at hand; labels that they have seen already count again. `--anew` begins with none. `--pairs` fits the points of
//! `replacement.txt` (`pairs.rs`) instead.
//!
//! The points are a logistic regression with a small penalty for size, or for leaving the points with which it begins, rounded;
//! in a fit that begins anew, a word takes part if three people said it. The rows are those of sources that the fit has not
//! seen. `--write DIR` writes `points.txt` and `words.txt` as the daemon reads them: to `daemon/src/facts`. `--print` prints the
//! sentences on the wrong side.

#![expect(clippy::disallowed_methods, reason = "the points are files of the repository")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{Write as _, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use ollm_daemon::bench_api::BenchFacts;
use serde_json::Value;

use self::regression::{ANY, Model, Names, Row, Start, points, word_key, words_text};

mod pairs;
mod regression;

/// The parts of the cross-validation.
const FOLDS: usize = 8;
/// The weight of a doubtful sentence, which is half a durable one.
const DOUBTFUL_WEIGHT: f64 = 0.4;
/// The people who must have said a word, and the files of labels that must have it: a word of one collection is its topic.
const MIN_SOURCES: usize = 3;
const MIN_FILES: usize = 2;
/// The most words with points: those that decide the most.
const MAX_WORDS: usize = 1000;

/// The penalties for leaving the points of the repository.
const SENTENCES_PENALTY: f64 = 30.0;
const PAIRS_PENALTY: f64 = 10.0;
/// The folders of the points, and of the labels of this repository.
const POINTS_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/daemon/src/facts");
const LABELS_DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/daemon/benches/facts/labels");

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
    /// The number of its file.
    file: usize,
    /// The names of its features, and its words.
    features: BTreeSet<&'static str>,
    words: BTreeSet<String>,
    target: f64,
    weight: f64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let write_to = match arguments.iter().position(|argument| argument == "--write") {
        Some(at) => Some(Path::new(arguments.get(at + 1).context("--write needs a folder")?)),
        None => None,
    };
    let starts_anew = arguments.iter().any(|argument| argument == "--anew");
    let start = |files: &[&str], penalty| -> Result<Option<Start>> {
        if starts_anew {
            return Ok(None);
        }
        let read = |file: &&str| std::fs::read_to_string(Path::new(POINTS_DIR).join(file));
        let texts = files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        Ok(Some(Start { model: Model::parse(&texts.join("\n"))?, penalty }))
    };
    if arguments.iter().any(|argument| argument == "--pairs") {
        let start = start(&["replacement.txt"], PAIRS_PENALTY)?;
        return pairs::run(&paths_of("OLLM_PAIRS", "pairs")?, start.as_ref(), write_to);
    }
    let start = start(&["points.txt", "words.txt"], SENTENCES_PENALTY)?;
    let (examples, n_data) = read(&paths_of("OLLM_LABELS", "sentences")?)?;
    if let Some(Start { model, .. }) = &start {
        let scores: Vec<f64> = examples.iter().map(|example| score_of(model, example)).collect();
        say(&format!("before\n{}after\n", table(&examples, &scores, n_data)))?;
    }
    let start = start.as_ref();
    let scores = cross_validated(&examples, start);
    say(&table(&examples, &scores, n_data))?;
    if arguments.iter().any(|argument| argument == "--print") {
        say(&wrong_ones(&examples, &scores))?;
    }
    let model = fit_with_words(&examples.iter().collect::<Vec<_>>(), start);
    let (points, words) = (points_text(&model), words_text(&model));
    match write_to {
        Some(dir) => {
            write_below_comments(&dir.join("points.txt"), &points)?;
            write_below_comments(&dir.join("words.txt"), &words)
        }
        None => say(&(points + &words)),
    }
}

/// Returns the files of labels in a variable, or else those of the repository whose names begin so.
fn paths_of(variable: &str, name: &str) -> Result<Vec<PathBuf>> {
    if let Some(paths) = std::env::var_os(variable) {
        return Ok(std::env::split_paths(&paths).collect());
    }
    let files = std::fs::read_dir(LABELS_DIR)?.map(|file| Ok(file?.path()));
    let mut files = files.collect::<Result<Vec<PathBuf>>>()?;
    let is_named = |path: &PathBuf| {
        path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name))
    };
    files.retain(is_named);
    files.sort();
    Ok(files)
}

fn say(text: &str) -> Result<()> {
    Ok(stdout().write_all(text.as_bytes())?)
}

/// Replaces the lines of a file below the comments that explain it.
fn write_below_comments(path: &Path, lines: &str) -> Result<()> {
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let comments = old.lines().filter(|line| line.starts_with('#'));
    let text = comments.fold(String::new(), |text, line| text + line + "\n");
    Ok(std::fs::write(path, text + lines)?)
}

/// Reads the labels; returns the examples, and the number of durable sentences that are taken as data.
fn read(paths: &[PathBuf]) -> Result<(Vec<Example>, usize)> {
    let (mut examples, mut n_data) = (Vec::new(), 0);
    for (file, path) in paths.iter().enumerate() {
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
            let features = judged.features.into_iter().collect();
            let words = judged.words.into_iter().collect();
            examples.push(Example { label, file, features, words, target, weight });
        }
    }
    ensure!(!examples.is_empty(), "there are no labels");
    Ok((examples, n_data))
}

/// Returns the score of each example by a fit to other sources.
fn cross_validated(examples: &[Example], start: Option<&Start>) -> Vec<f64> {
    let sources: BTreeSet<&str> = examples.iter().map(|one| one.label.source.as_str()).collect();
    let folds: BTreeMap<&str, usize> = sources
        .into_iter()
        .enumerate()
        .map(|(at, source)| (source, at * 7919 % 101 % FOLDS))
        .collect();
    let fold = |example: &Example| folds[example.label.source.as_str()];
    let models: Vec<Model> = (0..FOLDS)
        .map(|out| {
            let others: Vec<&Example> = examples.iter().filter(|one| fold(one) != out).collect();
            fit_with_words(&others, start)
        })
        .collect();
    examples.iter().map(|example| score_of(&models[fold(example)], example)).collect()
}

/// The sentences that have a word.
#[derive(Default)]
struct WordUses<'l> {
    sources: BTreeSet<&'l str>,
    files: BTreeSet<usize>,
    n_sentences: f64,
}

/// Fits the features with all words that enough people said, and then with those of them that decide the most.
fn fit_with_words(examples: &[&Example], start: Option<&Start>) -> Model {
    if let Some(start) = start {
        return fit(examples, start.model.words().cloned().collect(), Some(start));
    }
    let mut uses: BTreeMap<&str, WordUses<'_>> = BTreeMap::new();
    for example in examples {
        for word in &example.words {
            let uses = uses.entry(word).or_default();
            uses.sources.insert(&example.label.source);
            uses.files.insert(example.file);
            uses.n_sentences += 1.0;
        }
    }
    let is_common =
        |uses: &WordUses<'_>| uses.sources.len() >= MIN_SOURCES && uses.files.len() >= MIN_FILES;
    let all = uses.iter().filter(|(_, uses)| is_common(uses));
    let all: BTreeSet<String> = all.map(|(word, _)| (*word).to_owned()).collect();
    let first = fit(examples, all, None);
    let decides = |word: &str| first.word(word).abs() * uses[word].n_sentences.sqrt();
    let mut words: Vec<&String> = first.words().collect();
    words.sort_by(|one, other| decides(other).total_cmp(&decides(one)));
    fit(examples, words.into_iter().take(MAX_WORDS).cloned().collect(), None)
}

/// Fits the weights of all features and some words.
fn fit(examples: &[&Example], words: BTreeSet<String>, start: Option<&Start>) -> Model {
    let mut names = Names::default();
    let rows: Vec<Row> = examples
        .iter()
        .map(|example| {
            let mut features = vec![0];
            features.extend(example.features.iter().map(|name| names.at(name)));
            let known = example.words.iter().filter(|word| words.contains(*word));
            features.extend(known.map(|word| names.at(&word_key(word))));
            Row { features, target: example.target, weight: example.weight }
        })
        .collect();
    names.model(&rows, words, start)
}

/// Returns the score of a sentence.
fn score_of(model: &Model, example: &Example) -> f64 {
    let words: f64 = example.words.iter().map(|word| model.word(word)).sum();
    let features: f64 = example.features.iter().map(|name| model.weight(name)).sum();
    model.weight(ANY) + features + words
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

/// Returns the lines of `points.txt`, with 0 for features that no sentence has.
fn points_text(model: &Model) -> String {
    let names = [ANY].into_iter().chain(BenchFacts::feature_names());
    names.fold(String::new(), |mut text, name| {
        let _ = writeln!(text, "{name} {}", points(model.weight(name)));
        text
    })
}
