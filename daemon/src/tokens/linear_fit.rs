//! The linear fit of the tokens that counts lack, over prompts that were counted here and by the server.
//!
//! Must not know templates, vocabularies, or which observations are kept.
//!
//! **Invariant**: a fit depends only on its observations and their order.

use serde::{Deserialize, Serialize};

use super::estimate::MESSAGE_OVERHEAD_TOKENS;

/// The largest correction of one message, in tokens.
const MAX_WEIGHT: f64 = 4096.0;
/// The largest correction of the head, in tokens.
const MAX_HEAD_WEIGHT: f64 = 65_536.0;
/// The kinds of messages that every template writes. A correction lowers their counts at most by the tokens that are counted
/// for the template around them: more would be tokens of the text, and as no message counts less than nothing, the parts of
/// a prompt would not add up to its count. Calls and results are left out by some templates.
const ALWAYS_WRITTEN: [PartKind; 2] = [PartKind::User, PartKind::Assistant];
/// The range of corrections of an estimated token. Estimates are low by a factor of up to seven, for some scripts.
const TEXT_WEIGHTS: (f64, f64) = (-0.75, 8.0);
/// The unit of estimated tokens in the fit, so that all columns have a similar magnitude.
const TEXT_UNIT: f64 = 1000.0;
/// A column gets no weight if the previous columns explain all but this share of it.
const MIN_INDEPENDENT_SHARE: f64 = 1e-9;
/// The importance of each of the two newest observations if they agree. With it, a constant of a template that earlier
/// observations do not have, for example because the server rendered them without tools, is learned to the token.
const AGREEING_IMPORTANCE: f64 = 1000.0;

/// A kind of prompt part that cannot be counted exactly; one column of the fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    /// The text before the first message, with the system message and the tools.
    Head = 0,
    /// A user message.
    User = 1,
    /// A tool call.
    Call = 2,
    /// A tool result.
    Result = 3,
    /// An assistant message.
    Assistant = 4,
    /// An estimated token.
    Text = 5,
    /// A system message in the head. Without one, templates write another one or none, and some write it elsewhere.
    System = 6,
}

pub(super) const N_KINDS: usize = 7;

/// The number of parts of a prompt that are not counted exactly, by [`PartKind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InexactParts(pub(super) [u32; N_KINDS]);

impl InexactParts {
    /// Adds `n` parts of one kind.
    pub(super) fn add(&mut self, kind: PartKind, n: u32) {
        let part = &mut self.0[kind as usize];
        *part = part.saturating_add(n);
    }

    /// Returns the number of parts of one kind.
    pub(super) const fn of(&self, kind: PartKind) -> u32 {
        self.0[kind as usize]
    }

    /// Returns whether the whole prompt is counted exactly.
    pub(crate) fn is_empty(&self) -> bool {
        self.0 == [0; N_KINDS]
    }

    pub(super) fn row(&self) -> [f64; N_KINDS] {
        let mut row = self.0.map(f64::from);
        row[PartKind::Text as usize] /= TEXT_UNIT;
        row
    }
}

/// A prompt that was counted here and by the server. Its serialized form is part of `vocab/models.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PromptObservation {
    pub(super) parts: InexactParts,
    /// The count made here, without correction.
    pub(super) counted: u64,
    /// The count of the server.
    pub(super) read: u64,
    /// The error of the corrected count, if earlier observations covered such prompts.
    pub(super) missed: u64,
    /// Set if a replica counted that counts fewer tokens than another one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) is_lower: bool,
    /// Set if the prompt is the next one of the conversation that the observation before is of.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) continues: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// The weights that best explain the difference between the counts of the server and the counts made here.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LinearFit {
    /// The correction of one part of each kind, in tokens.
    weights: [f64; N_KINDS],
    /// The distance of each weight from its unrounded value.
    pub(super) rounding: [f64; N_KINDS],
    /// The kinds without a weight of their own, each as a linear combination of the other kinds.
    dependent: Vec<(usize, [f64; N_KINDS])>,
}

impl PromptObservation {
    pub(super) fn is_estimated(&self) -> bool {
        self.parts.0[PartKind::Text as usize] > 0
    }

    /// Returns what is the same for all observations of a prompt.
    pub(super) const fn prompt(&self) -> (InexactParts, u64) {
        (self.parts, self.counted)
    }

    /// Returns the tokens that the count lacks.
    fn missing(&self) -> i64 {
        self.read.cast_signed().saturating_sub(self.counted.cast_signed())
    }
}

/// Returns the importance of each observation.
fn importances(observations: &[PromptObservation]) -> Vec<f64> {
    let mut importances = vec![1.0; observations.len()];
    if let [.., before, newest] = observations
        && before.missing() == newest.missing()
        && !before.is_estimated()
        && !newest.is_estimated()
    {
        let n_older = importances.len() - 2;
        importances[n_older..].fill(AGREEING_IMPORTANCE);
    }
    importances
}

impl LinearFit {
    /// Finds the weights that best explain the observations, but lower no kind in [`ALWAYS_WRITTEN`] by too much.
    ///
    /// The lowest weight of these is raised and kept, and the others are found again, so that they explain what it no
    /// longer does. Which kinds are dependent is a property of the observations: a kept weight makes the columns of the
    /// others independent, though the observations tell the kinds apart no better.
    pub(super) fn new(observations: &[PromptObservation]) -> Self {
        let least = -f64::from(MESSAGE_OVERHEAD_TOKENS);
        let mut kept = [None; N_KINDS];
        let mut fit = Self::with_kept(observations, &kept);
        loop {
            let weight = |kind: &PartKind| fit.weights[*kind as usize];
            let too_low = ALWAYS_WRITTEN.into_iter().filter(|kind| weight(kind) < least);
            let Some(kind) = too_low.min_by(|a, b| weight(a).total_cmp(&weight(b))) else {
                return fit;
            };
            kept[kind as usize] = Some(least);
            fit = Self { dependent: fit.dependent, ..Self::with_kept(observations, &kept) };
        }
    }

    /// Solves the normal equations of the least squares beside the weights that are kept.
    ///
    /// A column that is a combination of the columns before it gets no weight, so that a difference that few prompts
    /// cannot attribute goes to the kinds whose weights are whole tokens.
    fn with_kept(observations: &[PromptObservation], kept: &[Option<f64>; N_KINDS]) -> Self {
        let mut matrix = normal_equations(observations, kept);
        let sizes: [f64; N_KINDS] = std::array::from_fn(|at| matrix[at][at]);
        let mut is_used = [false; N_KINDS];
        for at in 0..N_KINDS {
            if matrix[at][at] <= sizes[at] * MIN_INDEPENDENT_SHARE {
                continue;
            }
            is_used[at] = true;
            let pivot = matrix[at];
            for (other, line) in matrix.iter_mut().enumerate().filter(|(other, _)| *other != at) {
                let factor = line[at] / pivot[at];
                if factor != 0.0 && (other > at || is_used[other]) {
                    line.iter_mut().zip(pivot).for_each(|(cell, pivot)| *cell -= factor * pivot);
                }
            }
        }
        let share = |line: usize, at: usize| {
            if is_used[line] { matrix[line][at] / matrix[line][line] } else { 0.0 }
        };
        let dependent = (0..N_KINDS).filter(|at| !is_used[*at]);
        let exact: [f64; N_KINDS] =
            std::array::from_fn(|at| kept[at].unwrap_or_else(|| share(at, N_KINDS)));
        let weights: [f64; N_KINDS] = std::array::from_fn(|at| bounded(at, exact[at]));
        Self {
            weights,
            rounding: std::array::from_fn(|at| (exact[at] - weights[at]).abs().min(0.5)),
            dependent: dependent
                .map(|at| (at, std::array::from_fn(|line| share(line, at))))
                .collect(),
        }
    }

    /// Returns the correction of `n` parts of a kind, in tokens.
    #[expect(clippy::cast_possible_truncation, reason = "weights and counts are bounded")]
    fn correction(&self, kind: PartKind, n: u32) -> i64 {
        let weight = self.weights[kind as usize];
        if kind == PartKind::Text {
            return (weight * f64::from(n) / TEXT_UNIT).round() as i64;
        }
        (weight as i64).saturating_mul(i64::from(n))
    }

    /// Returns a count with the corrections of its parts.
    pub(super) fn corrected(&self, parts: &InexactParts, counted: u64) -> u64 {
        use PartKind::{Assistant, Call, Head, Result, System, Text, User};
        let kinds = [Head, User, Call, Result, Assistant, Text, System];
        let corrections = kinds.map(|kind| self.correction(kind, parts.0[kind as usize]));
        counted.saturating_add_signed(corrections.iter().sum())
    }

    /// Returns the tokens by which the corrected count of each observation is too large; `None` for a prompt that other
    /// observations do not cover.
    pub(super) fn errors(
        &self,
        observations: &[PromptObservation],
    ) -> impl Iterator<Item = Option<i64>> {
        observations.iter().map(|PromptObservation { parts, counted, read, .. }| {
            let corrected = self.corrected(parts, *counted).cast_signed();
            self.covers(parts).then(|| corrected.saturating_sub(read.cast_signed()))
        })
    }

    /// Returns whether the dependent kinds of a prompt have the same relation to the others as in the observations.
    pub(super) fn covers(&self, parts: &InexactParts) -> bool {
        let row = parts.row();
        self.dependent.iter().all(|(at, shares)| {
            let expected: f64 = row.iter().zip(shares).map(|(part, share)| part * share).sum();
            (row[*at] - expected).abs() < 1e-3
        })
    }
}

/// Returns the normal equations of the least squares, without the columns of the kinds whose weights are kept. The last
/// column is what the other kinds have to explain.
fn normal_equations(
    observations: &[PromptObservation],
    kept: &[Option<f64>; N_KINDS],
) -> [[f64; N_KINDS + 1]; N_KINDS] {
    let mut matrix = [[0.0_f64; N_KINDS + 1]; N_KINDS];
    for (observation, importance) in observations.iter().zip(importances(observations)) {
        let all = observation.parts.row();
        let explained: f64 =
            all.iter().zip(kept).map(|(n, weight)| n * weight.unwrap_or_default()).sum();
        let row: [f64; N_KINDS] =
            std::array::from_fn(|at| if kept[at].is_none() { all[at] } else { 0.0 });
        #[expect(clippy::cast_precision_loss, reason = "token counts are small")]
        let missing = observation.missing() as f64 - explained;
        for (left, line) in row.iter().zip(&mut matrix) {
            for (right, cell) in row.iter().chain([&missing]).zip(line.iter_mut()) {
                *cell += importance * left * right;
            }
        }
    }
    matrix
}

/// Limits a weight, and rounds it to whole tokens unless it is that of estimated text.
fn bounded(kind: usize, weight: f64) -> f64 {
    if kind == PartKind::Text as usize {
        return weight.clamp(TEXT_WEIGHTS.0 * TEXT_UNIT, TEXT_WEIGHTS.1 * TEXT_UNIT);
    }
    let max = if kind == PartKind::Head as usize { MAX_HEAD_WEIGHT } else { MAX_WEIGHT };
    weight.round().clamp(-max, max)
}
