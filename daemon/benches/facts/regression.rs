//! A logistic regression on features and words that are there or not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The penalty for the size of weights.
const PENALTY: f64 = 5.0;
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
pub(crate) struct Model {
    weights: BTreeMap<String, f64>,
    words: BTreeSet<String>,
}

impl Model {
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

    /// Fits the weights to examples.
    pub(crate) fn model(self, rows: &[Row], words: BTreeSet<String>) -> Model {
        let weights = descend(rows, self.0.len());
        let weights = self.0.into_iter().map(|(name, at)| (name, weights[at])).collect();
        Model { weights, words }
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
fn descend(rows: &[Row], n_weights: usize) -> Vec<f64> {
    let (mut weights, mut speed) = (vec![0.0; n_weights], vec![0.0; n_weights]);
    for _ in 0..STEPS {
        let mut slope: Vec<f64> = weights.iter().map(|weight| PENALTY * weight).collect();
        let mut curve = vec![PENALTY; n_weights];
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
        for at in 0..n_weights {
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
