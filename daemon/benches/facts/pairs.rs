//! The points of the features of pairs, fitted to sets of labels: sentences that a person said, and a later one that takes the
//! place of some of them or of none.
//!
//! A set is a JSON object a line: `earlier` (sentences), `later`, `replaces` (numbers of the earlier ones that no longer
//! hold), `language`, and perhaps `weight`. A line with `sentence` and `source` instead is one of a talk in which nothing is
//! corrected: the sentences of a person, in the order of the file. The files are those of `labels` that begin with `pairs`, or
//! those that `OLLM_PAIRS` names. Rows are those of sets that the fit has not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use ollm_daemon::bench_api::BenchFacts;
use serde_json::Value;

use super::regression::{ANY, Model, Names, Row, Start, points, word_key, words_text};
use super::{FOLDS, say, write_below_comments};

/// The sentences before one of a talk that it is compared with.
const TALK_SENTENCES: usize = 40;
/// Number of sentences of a set for each one that a young session has.
const YOUNG_PART: usize = 4;
/// The labeled sets that must have a word.
const MIN_SETS: usize = 5;
/// The weight of a pair of a talk, in which hardly any sentence is labeled.
const TALK_WEIGHT: f64 = 0.5;

/// Sentences of one person and a later one.
struct LabeledSet {
    earlier: Vec<(u32, String)>,
    later: (u32, String),
    replaces: Vec<usize>,
    is_talk: bool,
    weight: f64,
    language: String,
}

/// A set as it was judged: the pairs with their features, and the words of the later sentence.
struct JudgedSet {
    set: LabeledSet,
    pairs: Vec<(usize, Vec<&'static str>)>,
    words: BTreeSet<String>,
}

/// Fits, reports, and writes `replacement.txt`.
pub(crate) fn run(paths: &[PathBuf], start: Option<&Start>, write_to: Option<&Path>) -> Result<()> {
    let sets: Vec<JudgedSet> = read(paths)?.into_iter().map(judged).collect();
    ensure!(!sets.is_empty(), "there are no labels");
    let fold = |at: usize, set: &JudgedSet| (at + usize::from(set.set.is_talk)) % FOLDS;
    let models: Vec<Model> = (0..FOLDS)
        .map(|out| fit(sets.iter().enumerate().filter(|(at, set)| fold(*at, set) != out), start))
        .collect();
    let scored: Vec<Vec<(usize, f64)>> =
        sets.iter().enumerate().map(|(at, set)| scores(&models[fold(at, set)], set)).collect();
    if let Some(start) = start {
        let scored: Vec<_> = sets.iter().map(|set| scores(&start.model, set)).collect();
        say(&format!("before\n{}after\n", table(&sets, &scored)))?;
    }
    say(&table(&sets, &scored))?;
    if std::env::args().any(|argument| argument == "--print") {
        say(&wrong_ones(&sets, &scored))?;
    }
    let model = fit(sets.iter().enumerate(), start);
    let names = [ANY].into_iter().chain(BenchFacts::pair_feature_names());
    let features = names.fold(String::new(), |mut text, name| {
        let _ = writeln!(text, "{name} {}", points(model.weight(name)));
        text
    });
    let text = features + &words_text(&model);
    match write_to {
        Some(dir) => write_below_comments(&dir.join("replacement.txt"), &text),
        None => say(&text),
    }
}

fn read(paths: &[PathBuf]) -> Result<Vec<LabeledSet>> {
    let (mut sets, mut talks) = (Vec::new(), BTreeMap::<String, Vec<String>>::new());
    for path in paths {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let object: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            match object["sentence"].as_str() {
                Some(sentence) => {
                    let source = object["source"].as_str().unwrap_or_default();
                    talks.entry(source.to_owned()).or_default().push(sentence.to_owned());
                }
                None => {
                    let set = labeled(&object, sets.len());
                    sets.extend(young(&set));
                    sets.push(set);
                }
            }
        }
    }
    for sentences in talks.into_values() {
        for (at, later) in sentences.iter().enumerate().skip(1) {
            let start = at.saturating_sub(TALK_SENTENCES);
            let earlier = sentences[start..at].iter().enumerate();
            let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
            let earlier = earlier.map(|(before, text)| (number(before), text.clone())).collect();
            let later = (number(at - start), later.clone());
            let (replaces, weight, language) = (Vec::new(), TALK_WEIGHT, "talk".to_owned());
            sets.push(LabeledSet { earlier, later, replaces, is_talk: true, weight, language });
        }
    }
    Ok(sets)
}

/// Returns a set as it would be in a young session, with a few of its sentences.
fn young(set: &LabeledSet) -> Option<LabeledSet> {
    let is_said =
        |at: &usize| at % YOUNG_PART == set.earlier.len() % YOUNG_PART || set.replaces.contains(at);
    let said: Vec<usize> = (0..set.earlier.len()).filter(is_said).collect();
    let replaces = set.replaces.iter().filter_map(|at| said.iter().position(|one| one == at));
    let young = LabeledSet {
        earlier: said.iter().map(|at| set.earlier[*at].clone()).collect(),
        replaces: replaces.collect(),
        later: set.later.clone(),
        language: set.language.clone(),
        ..*set
    };
    (said.len() < set.earlier.len()).then_some(young)
}

/// Returns a labeled set. People correct themselves at once or weeks later, so the messages between two sentences are few or
/// many.
fn labeled(object: &Value, number: usize) -> LabeledSet {
    let array = |name: &str| object[name].as_array().cloned().unwrap_or_default();
    let mut message = 0;
    let mut next = |at: usize| {
        message += [1, 1, 3, 1, 9, 2, 30][(number * 5 + at * 3) % 7];
        message
    };
    let earlier: Vec<(u32, String)> = array("earlier")
        .iter()
        .enumerate()
        .map(|(at, text)| (next(at), text.as_str().unwrap_or_default().to_owned()))
        .collect();
    let later = (next(earlier.len()), object["later"].as_str().unwrap_or_default().to_owned());
    let replaces =
        array("replaces").into_iter().filter_map(|at| usize::try_from(at.as_u64()?).ok());
    let language = object["language"].as_str().unwrap_or_default().to_owned();
    let weight = object["weight"].as_f64().unwrap_or(1.0);
    LabeledSet { replaces: replaces.collect(), earlier, later, is_talk: false, weight, language }
}

fn judged(set: LabeledSet) -> JudgedSet {
    let earlier: Vec<(u32, &str)> =
        set.earlier.iter().map(|(message, text)| (*message, text.as_str())).collect();
    let pairs = BenchFacts::judge_pairs(&earlier, (set.later.0, &set.later.1));
    let words = BenchFacts::judge(&set.later.1, "").map(|judged| judged.words);
    JudgedSet { pairs, words: words.unwrap_or_default().into_iter().collect(), set }
}

/// Fits the weights of all features and of the words that enough labeled sets have.
fn fit<'s>(
    sets: impl Iterator<Item = (usize, &'s JudgedSet)> + Clone,
    start: Option<&Start>,
) -> Model {
    let mut n_sets: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, set) in sets.clone().filter(|(_, set)| !set.set.is_talk) {
        set.words.iter().for_each(|word| *n_sets.entry(word).or_default() += 1);
    }
    let common = n_sets
        .into_iter()
        .filter(|(word, n_sets)| *n_sets >= MIN_SETS && !word.contains(char::is_numeric))
        .map(|(word, _)| word.to_owned());
    let words: BTreeSet<String> = match start {
        Some(start) => start.model.words().cloned().collect(),
        None => common.collect(),
    };
    let mut names = Names::default();
    let mut rows = Vec::new();
    for (_, JudgedSet { set, pairs, words: own }) in sets {
        let own: Vec<usize> = own
            .iter()
            .filter(|word| words.contains(*word))
            .map(|word| names.at(&word_key(word)))
            .collect();
        for (number, features) in pairs {
            let features = features.iter().map(|name| names.at(name));
            let features = [0].into_iter().chain(features).chain(own.iter().copied()).collect();
            let target = if set.replaces.contains(number) { 1.0 } else { 0.0 };
            rows.push(Row { features, target, weight: set.weight });
        }
    }
    names.model(&rows, words, start)
}

/// Returns the score of each pair, the highest first.
fn scores(model: &Model, set: &JudgedSet) -> Vec<(usize, f64)> {
    let words: f64 = set.words.iter().map(|word| model.word(word)).sum();
    let score = |features: &[&str]| features.iter().map(|name| model.weight(name)).sum::<f64>();
    let pairs = set.pairs.iter();
    let mut all: Vec<(usize, f64)> = pairs
        .map(|(number, features)| (*number, model.weight(ANY) + words + score(features)))
        .collect();
    all.sort_by(|one, other| other.1.total_cmp(&one.1));
    all
}

/// Returns what is replaced from each score on: rightly, wrongly, and in talk.
fn table(sets: &[JudgedSet], scored: &[Vec<(usize, f64)>]) -> String {
    let mut text =
        String::from("least score   replaced   of   wrongly   none wrongly   of   in talk   of\n");
    for least in [-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5] {
        let mut n = [0; 7];
        for (JudgedSet { set, .. }, scores) in sets.iter().zip(scored) {
            let best = scores.first().filter(|(_, score)| *score >= least).map(|(at, _)| *at);
            let is_right = best.is_some_and(|at| set.replaces.contains(&at));
            let is_wrong = best.is_some() && !is_right;
            if set.is_talk {
                n[5] += usize::from(best.is_some());
                n[6] += 1;
            } else if set.replaces.is_empty() {
                n[3] += usize::from(is_wrong);
                n[4] += 1;
            } else {
                n[0] += usize::from(is_right);
                n[1] += 1;
                n[2] += usize::from(is_wrong);
            }
        }
        let _ = writeln!(
            text,
            "{least:>11}   {:>8}   {:>4}   {:>7}   {:>12}   {:>4}   {:>7}   {}",
            n[0], n[1], n[2], n[3], n[4], n[5], n[6]
        );
    }
    text
}

/// Returns the sets in which the wrong sentence or none is replaced.
fn wrong_ones(sets: &[JudgedSet], scored: &[Vec<(usize, f64)>]) -> String {
    let mut text = String::new();
    for (JudgedSet { set, .. }, scores) in sets.iter().zip(scored) {
        let best = scores.first().filter(|(_, score)| *score >= 0.0);
        let is_right = match best {
            Some((at, _)) => set.replaces.contains(at),
            None => set.replaces.is_empty(),
        };
        if is_right {
            continue;
        }
        let said = |at: usize| set.earlier[at].1.as_str();
        let expected: Vec<&str> = set.replaces.iter().map(|at| said(*at)).collect();
        let own = |at: &usize| scores.iter().find(|(one, _)| one == at).map(|(_, score)| *score);
        let of_expected = set.replaces.first().and_then(own);
        let found = best.map(|(at, score)| (said(*at), *score));
        let _ = writeln!(
            text,
            "{} {} || expected {of_expected:.1?} {expected:?} || found {found:?}",
            set.language, set.later.1
        );
    }
    text
}
