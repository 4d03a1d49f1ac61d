//! What a server's counts teach of prompts that cannot be counted exactly: corrections, and how far they can be
//! trusted. Pure.
//!
//! Texts are counted exactly where the vocabulary is known; what is missing then is what a template puts around
//! messages, which is so many tokens before the first and so many for each message of a kind. Where the vocabulary is
//! not known, it is a share of the estimate. Both are linear, so the least squares over the newest counts find them.
//!
//! **Invariant**: what was learned follows from the counts that are kept, in their order, and from nothing else.

use serde::{Deserialize, Serialize};

use super::estimate::ESTIMATE_MARGIN_DIVISOR;

/// Counts that are kept; an older one says less of the model as it is now.
const MAX_SEEN: usize = 24;
/// Fewer counts say nothing about how large errors become.
const MIN_SEEN: usize = 3;
/// The largest correction of one message, and of what stands before the first one.
const MAX_WEIGHT: f64 = 4096.0;
const MAX_HEAD: f64 = 65_536.0;
/// By how much an estimate is corrected at most: the worst is low by a factor of seven, on texts in other scripts.
const SCALES: (f64, f64) = (-0.75, 8.0);
/// Estimated tokens are counted in thousands, so that all columns are of one size.
const SCALE_UNIT: f64 = 1000.0;
/// A column that is this close to a combination of those before it adds nothing.
const COLLINEAR: f64 = 1e-6;

/// A part of a prompt that is not counted exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// What stands before the first message, with the system message and the tools.
    Head = 0,
    /// A user's message.
    User = 1,
    /// A call of a tool.
    Call = 2,
    /// A result of a tool.
    Result = 3,
    /// A model's message.
    Assistant = 4,
    /// A token that was estimated.
    Text = 5,
}

const N_COLUMNS: usize = 6;

/// How much of a prompt is not counted exactly, by [`Column`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Parts([u32; N_COLUMNS]);

impl Parts {
    /// Adds some of one kind.
    pub(super) fn add(&mut self, column: Column, n: u32) {
        let part = &mut self.0[column as usize];
        *part = part.saturating_add(n);
    }

    /// Whether all of the prompt is counted exactly.
    pub(crate) fn is_empty(&self) -> bool {
        self.0 == [0; N_COLUMNS]
    }

    fn row(&self) -> [f64; N_COLUMNS] {
        let mut row = self.0.map(f64::from);
        row[Column::Text as usize] /= SCALE_UNIT;
        row
    }
}

/// One prompt that was counted here and by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    parts: Parts,
    /// As it was counted here, uncorrected.
    counted: u64,
    /// As the server counted it.
    read: u64,
    /// By how much the corrected count was wrong, where prompts like it had been seen.
    missed: u64,
}

/// What was learned of one model with one set of tools. Its serialized form is that of `vocab/models.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<Seen>", into = "Vec<Seen>")]
pub(crate) struct Calibration {
    seen: Vec<Seen>,
    fit: Fit,
}

/// What explains best what was read beyond what was counted.
#[derive(Clone, Debug, Default, PartialEq)]
struct Fit {
    /// Tokens that one part of each column is more than it is counted.
    weights: [f64; N_COLUMNS],
    /// What these lack for being whole, since a part cannot be corrected by a share of a token.
    rounded: [f64; N_COLUMNS],
    /// The columns whose weights could not be told apart from others, each as a sum of those.
    bound: Vec<(usize, [f64; N_COLUMNS])>,
}

impl From<Vec<Seen>> for Calibration {
    fn from(mut seen: Vec<Seen>) -> Self {
        seen.drain(..seen.len().saturating_sub(MAX_SEEN));
        let fit = Fit::of(&seen);
        Self { seen, fit }
    }
}

impl From<Calibration> for Vec<Seen> {
    fn from(calibration: Calibration) -> Self {
        calibration.seen
    }
}

impl Calibration {
    /// With one more prompt, whose parts were counted as `counted` tokens, and of which the server read `read`.
    #[must_use]
    pub(crate) fn with(&self, parts: Parts, counted: u64, read: u64) -> Self {
        let is_known = self.seen.len() >= MIN_SEEN && self.fit.covers(&parts);
        let missed = if is_known { self.corrected(&parts, counted).abs_diff(read) } else { 0 };
        let mut seen = self.seen.clone();
        seen.push(Seen { parts, counted, read, missed });
        seen.into()
    }

    /// By how much `n` parts of a kind are more than they are counted.
    #[expect(clippy::cast_possible_truncation, reason = "weights and counts are bounded")]
    fn correction(&self, column: Column, n: u32) -> i64 {
        let weight = self.fit.weights[column as usize];
        if column == Column::Text {
            return (weight * f64::from(n) / SCALE_UNIT).round() as i64;
        }
        (weight as i64).saturating_mul(i64::from(n))
    }

    /// A count of some parts as it is more likely.
    pub(super) fn corrected(&self, parts: &Parts, counted: u64) -> u64 {
        use Column::{Assistant, Call, Head, Result, Text, User};
        let all = [Head, User, Call, Result, Assistant, Text];
        let corrections = all.map(|column| self.correction(column, parts.0[column as usize]));
        counted.saturating_add_signed(corrections.iter().sum())
    }

    /// By how much a corrected count of a prompt may be wrong.
    ///
    /// The largest error that is known, or the share that holds for everything uncertain where too little was seen.
    pub(crate) fn margin(&self, parts: &Parts, tokens: u64) -> u64 {
        let errors = self.seen.iter().map(|seen| {
            let now = self.corrected(&seen.parts, seen.counted).abs_diff(seen.read);
            let error = now.max(seen.missed);
            // Errors of estimates grow with the text.
            let is_estimate = seen.parts.0[Column::Text as usize] > 0;
            if is_estimate {
                error.saturating_mul(tokens).div_ceil(seen.read.max(1))
            } else {
                error
            }
        });
        let lost: f64 = parts.row().iter().zip(self.fit.rounded).map(|(n, lost)| n * lost).sum();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some messages"
        )]
        let worst = errors.max().unwrap_or(0) + (lost + 0.99) as u64;
        let worst = worst.max(1);
        if self.seen.len() < MIN_SEEN || !self.fit.covers(parts) {
            return worst.max(tokens.div_ceil(ESTIMATE_MARGIN_DIVISOR));
        }
        worst
    }
}

/// Whether the server's count of a prompt can be learned from: one of a prompt that was cut says nothing.
///
/// `knows_texts`: texts are counted with the model's own vocabulary, so that few tokens can be too many.
pub(crate) const fn is_plausible(counted: u64, read: u64, num_ctx: u32, knows_texts: bool) -> bool {
    let window = num_ctx as u64;
    let is_cut = if knows_texts { read * 4 < counted * 3 } else { read * 8 < counted };
    read > 0 && !is_cut && counted < window && read + 1 < window
}

impl Fit {
    /// Least squares by normal equations. A column that those before it explain gets no weight, so that what few
    /// prompts cannot tell apart is put where it is whole tokens.
    fn of(seen: &[Seen]) -> Self {
        let mut matrix = [[0.0_f64; N_COLUMNS + 1]; N_COLUMNS];
        for seen in seen {
            let row = seen.parts.row();
            #[expect(clippy::cast_precision_loss, reason = "token counts are small")]
            let missing = seen.read as f64 - seen.counted as f64;
            for (left, line) in row.iter().zip(&mut matrix) {
                for (right, cell) in row.iter().chain([&missing]).zip(line.iter_mut()) {
                    *cell += left * right;
                }
            }
        }
        let sizes: [f64; N_COLUMNS] = std::array::from_fn(|at| matrix[at][at]);
        let mut is_used = [false; N_COLUMNS];
        for at in 0..N_COLUMNS {
            if matrix[at][at] <= sizes[at] * COLLINEAR {
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
        let bound = (0..N_COLUMNS).filter(|at| !is_used[*at]);
        let exact: [f64; N_COLUMNS] = std::array::from_fn(|at| share(at, N_COLUMNS));
        let weights: [f64; N_COLUMNS] = std::array::from_fn(|at| bounded(at, exact[at]));
        Self {
            weights,
            rounded: std::array::from_fn(|at| (exact[at] - weights[at]).abs().min(0.5)),
            bound: bound.map(|at| (at, std::array::from_fn(|line| share(line, at)))).collect(),
        }
    }

    /// Whether a prompt is of the kind from which this was learned: its columns belong together as theirs did.
    fn covers(&self, parts: &Parts) -> bool {
        let row = parts.row();
        self.bound.iter().all(|(at, shares)| {
            let expected: f64 = row.iter().zip(shares).map(|(part, share)| part * share).sum();
            (row[*at] - expected).abs() < 1e-3
        })
    }
}

fn bounded(column: usize, weight: f64) -> f64 {
    if column == Column::Text as usize {
        return weight.clamp(SCALES.0 * SCALE_UNIT, SCALES.1 * SCALE_UNIT);
    }
    let most = if column == Column::Head as usize { MAX_HEAD } else { MAX_WEIGHT };
    weight.round().clamp(-most, most)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(parts: [u32; N_COLUMNS]) -> Parts {
        Parts(parts)
    }

    #[test]
    fn a_constant_error_is_one_constant() {
        let mut calibration = Calibration::default();
        assert_eq!(calibration.margin(&parts([1, 1, 0, 0, 0, 0]), 1000), 100);
        for turn in 0..4 {
            let parts = parts([1, 1 + turn, 0, 0, turn, 0]);
            calibration = calibration.with(parts, 100 + u64::from(turn), 117 + u64::from(turn));
            assert_eq!(calibration.corrected(&parts, 500), 517);
        }
        assert_eq!(calibration.margin(&parts([1, 9, 0, 0, 8, 0]), 1000), 1);
        let stored = serde_json::to_string(&calibration).unwrap();
        assert_eq!(serde_json::from_str::<Calibration>(&stored).unwrap(), calibration);
    }

    #[test]
    fn what_was_never_seen_keeps_its_margin() {
        let mut calibration = Calibration::default();
        for turn in 0..9 {
            calibration = calibration.with(parts([1, 1 + turn, 0, 0, turn, 0]), 100, 110);
        }
        assert_eq!(calibration.margin(&parts([1, 9, 0, 0, 8, 0]), 900), 1);
        assert_eq!(calibration.margin(&parts([1, 9, 1, 1, 8, 0]), 900), 90);
    }

    #[test]
    fn an_error_that_does_not_repeat_stays_in_the_margin_until_it_is_old() {
        let mut calibration = Calibration::default();
        let one = parts([1, 1, 0, 0, 0, 0]);
        for read in [110, 110, 110, 150] {
            calibration = calibration.with(one, 100, read);
        }
        assert_eq!(calibration.margin(&one, 1000), 40);
        for _ in 0..2 * MAX_SEEN {
            calibration = calibration.with(one, 100, 110);
        }
        assert_eq!((calibration.seen.len(), calibration.corrected(&one, 100)), (MAX_SEEN, 110));
        assert!(calibration.margin(&one, 1000) < 10);
    }

    #[test]
    fn an_estimate_is_corrected_by_a_share() {
        let mut calibration = Calibration::default();
        for tokens in [100, 400, 900, 1500] {
            let parts = parts([1, 1, 0, 0, 0, tokens]);
            calibration = calibration.with(parts, tokens.into(), u64::from(tokens) * 3 + 20);
        }
        let parts = parts([1, 1, 0, 0, 0, 2000]);
        assert_eq!(calibration.corrected(&parts, 2000), 6020);
        assert!(calibration.margin(&parts, 6020) < 20);
    }

    #[test]
    fn a_prompt_that_was_cut_teaches_nothing() {
        assert!(is_plausible(1000, 1100, 4096, true));
        assert!(is_plausible(1000, 900, 4096, true));
        assert!(!is_plausible(3400, 2051, 4096, true), "half of the window");
        assert!(!is_plausible(1000, 4096, 4096, true), "all of the window");
        assert!(!is_plausible(5000, 4000, 4096, true));
        assert!(!is_plausible(10, 0, 4096, true));
        assert!(is_plausible(1000, 300, 4096, false));
    }

    proptest! {
        #[test]
        fn what_a_template_puts_around_messages_is_found(
            weights in proptest::array::uniform5(-6_i64..60),
            texts in proptest::collection::vec((5_u64..4000, 0_u32..3), 7..20),
        ) {
            let mut calibration = Calibration::default();
            let (mut all, mut counted) = (parts([1, 0, 0, 0, 0, 0]), 50);
            for (at, (text, n_calls)) in texts.iter().enumerate() {
                counted += text;
                all.add(Column::User, 1);
                if *n_calls > 0 {
                    all.add(Column::Assistant, 1);
                    all.add(Column::Call, *n_calls);
                    all.add(Column::Result, *n_calls);
                }
                let real = all.0.iter().zip(weights).map(|(n, weight)| i64::from(*n) * weight);
                let read = (counted + 1000).saturating_add_signed(real.sum());
                let told = calibration.corrected(&all, counted + 1000);
                let margin = calibration.margin(&all, told);
                if calibration.seen.len() >= MIN_SEEN && calibration.fit.covers(&all) {
                    prop_assert!(told.abs_diff(read) <= margin, "{told} {read} {calibration:?}");
                    prop_assert!(margin <= 1 + at as u64 * 4, "{margin} {calibration:?}");
                }
                calibration = calibration.with(all, counted + 1000, read);
                let now = calibration.corrected(&all, counted + 1000);
                prop_assert!(now.abs_diff(read) <= 1 + at as u64 * 4, "{now} {read}");
                all.add(Column::Assistant, 1);
            }
        }
    }
}
