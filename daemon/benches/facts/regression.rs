//! A logistic regression on features and words that are there or not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, Result};

/// The penalty for the size of weights in a fit that begins with none, and for that of new weights in one that goes on.
const PENALTY: f64 = 5.0;
const NEW_PENALTY: f64 = 1.0;
/// The features that say which values a sentence has, and the penalty that keeps their weights. Labels that were written to
/// mislead do not show how often what lasts has a value.
const VALUES: [&str; 7] = ["number", "identifier", "name", "date", "place", "quoted", "value"];
const KEPT_PENALTY: f64 = 1e6;
const STEPS: usize = 400;
/// The part of a step of Newton's method for one weight alone that is taken, because all weights change at once.
const DAMPING: f64 = 0.1;
/// Points for an e-fold of the odds.
const POINTS: f64 = 10.0;

/// Characters of a line of words.
const LINE_CHARS: usize = 118;
/// The name of the points that every example has.
pub(crate) const ANY: &str = "any";

/// The weights of features and words.
#[derive(Default)]
pub(crate) struct Model {
    weights: BTreeMap<String, f64>,
    words: BTreeSet<String>,
}

impl Model {
    /// Reads the lines that [`points_text`] and [`words_text`] write.
    ///
    /// **Errors**: a line without a number.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut model = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let weight = |points: &str| -> Result<f64> {
                Ok(points.parse::<f64>().with_context(|| line.to_owned())? / POINTS)
            };
            if let Some((points, words)) = line.split_once(": ") {
                let weight = weight(points)?;
                for word in words.split(' ') {
                    model.weights.insert(word_key(word), weight);
                    model.words.insert(word.to_owned());
                }
            } else if let Some((name, points)) = line.split_once(' ') {
                model.weights.insert(name.to_owned(), weight(points)?);
            }
        }
        Ok(model)
    }

    /// Returns the weight of a feature.
    pub(crate) fn weight(&self, name: &str) -> f64 {
        self.weights.get(name).copied().unwrap_or_default()
    }

    /// Returns the weight of a word.
    pub(crate) fn word(&self, word: &str) -> f64 {
        if self.words.contains(word) { self.weight(&word_key(word)) } else { 0.0 }
    }

    /// Returns the words that take part.
    pub(crate) fn words(&self) -> impl Iterator<Item = &String> {
        self.words.iter()
    }
}

/// The numbers of features by name.
pub(crate) struct Names(BTreeMap<String, usize>);

impl Default for Names {
    fn default() -> Self {
        Self(BTreeMap::from([(ANY.to_owned(), 0)]))
    }
}

impl Names {
    /// Returns the number of a feature.
    pub(crate) fn at(&mut self, name: &str) -> usize {
        let next = self.0.len();
        *self.0.entry(name.to_owned()).or_insert(next)
    }

    /// Fits the weights to examples. Begins with those of a model, if there is one.
    pub(crate) fn model(
        mut self,
        rows: &[Row],
        words: BTreeSet<String>,
        start: Option<&Start>,
    ) -> Model {
        start.into_iter().flat_map(|start| start.model.weights.keys()).for_each(|name| {
            self.at(name);
        });
        let penalty = if start.is_some() { NEW_PENALTY } else { PENALTY };
        let mut from = vec![(0.0, penalty); self.0.len()];
        for (name, at) in &self.0 {
            if let Some((weight, leaving)) = start.and_then(|start| start.weight_of(name)) {
                let is_kept = VALUES.iter().any(|value| name.split('+').any(|part| part == *value));
                from[*at] = (weight, if is_kept { KEPT_PENALTY } else { leaving });
            }
        }
        let weights = descend(rows, &from);
        let weights = self.0.into_iter().map(|(name, at)| (name, weights[at])).collect();
        Model { weights, words }
    }
}

/// The weights with which a fit begins: those of labels that are not at hand.
pub(crate) struct Start {
    pub(crate) model: Model,
    /// The penalty for leaving the weights, about the number of these labels that each one stands for.
    pub(crate) penalty: f64,
}

impl Start {
    /// Returns a weight, and the penalty for leaving it.
    fn weight_of(&self, name: &str) -> Option<(f64, f64)> {
        Some((*self.model.weights.get(name)?, self.penalty))
    }
}

/// Returns the name of the weight of a word. No feature has a name with a space.
pub(crate) fn word_key(word: &str) -> String {
    format!(" {word}")
}

/// An example.
pub(crate) struct Row {
    /// The numbers of the features that are there. The first feature is that of every example.
    pub(crate) features: Vec<usize>,
    /// The share of readers who would say yes.
    pub(crate) target: f64,
    pub(crate) weight: f64,
}

/// Returns the weights for which the labels are the most likely, by steps for each weight that its curvature allows.
/// `from`: the weights with which the steps begin, each with the penalty for leaving it.
fn descend(rows: &[Row], from: &[(f64, f64)]) -> Vec<f64> {
    let mut weights: Vec<f64> = from.iter().map(|(weight, _)| *weight).collect();
    let mut speed = vec![0.0; from.len()];
    for _ in 0..STEPS {
        let left = weights.iter().zip(from);
        let mut slope: Vec<f64> =
            left.map(|(weight, (from, penalty))| penalty * (weight - from)).collect();
        let mut curve: Vec<f64> = from.iter().map(|(_, penalty)| *penalty).collect();
        slope[0] = 0.0;
        for row in rows {
            let score: f64 = row.features.iter().map(|at| weights[*at]).sum();
            let expected = 1.0 / (1.0 + (-score).exp());
            let error = row.weight * (expected - row.target);
            for &at in &row.features {
                slope[at] += error;
                curve[at] += row.weight * expected * (1.0 - expected);
            }
        }
        for at in 0..from.len() {
            speed[at] = 0.9 * speed[at] - DAMPING * 0.1 * slope[at] / curve[at];
            weights[at] += speed[at];
        }
    }
    weights
}

/// Returns the points for a weight.
#[expect(clippy::cast_possible_truncation, reason = "weights are small")]
pub(crate) fn points(weight: f64) -> i64 {
    (weight * POINTS).round() as i64
}

/// Returns lines of points and the words that have them, without words that have none.
pub(crate) fn words_text(model: &Model) -> String {
    let mut by_points: BTreeMap<i64, Vec<&str>> = BTreeMap::new();
    for word in model.words() {
        by_points.entry(points(model.word(word))).or_default().push(word);
    }
    by_points.remove(&0);
    let mut text = String::new();
    for (points, words) in by_points {
        let mut line = format!("{points}:");
        for word in words {
            if line.chars().count() + word.chars().count() >= LINE_CHARS {
                let _ = writeln!(text, "{line}");
                line = format!("{points}:");
            }
            let _ = write!(line, " {word}");
        }
        let _ = writeln!(text, "{line}");
    }
    text
}
