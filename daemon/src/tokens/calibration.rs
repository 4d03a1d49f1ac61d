//! Calibration: corrections of inexact counts, fitted to the counts of the model server, and their margin of error.
//!
//! With a known vocabulary texts are counted exactly, and only the tokens that the template adds are missing: a constant
//! before the first message, and a constant per message of each kind. With an unknown vocabulary a share of the
//! estimate is missing too. Both are linear, so the corrections are a least-squares fit over the newest counts. If the
//! server has replicas that count differently (`replicas`), the counts of those that count more tokens are fitted.
//! Must not know templates or vocabularies.
//!
//! **Invariant**: the fit depends only on the stored observations and their order.

use serde::{Deserialize, Serialize};

use super::estimate::ESTIMATE_MARGIN_DIVISOR;
use super::linear_fit::{InexactParts, LinearFit, N_KINDS, PartKind, PromptObservation};
use super::replicas::{MIN_DIFFERENCE, WINDOW, lower_counts};

/// Maximum number of stored observations; older ones may be outdated.
const MAX_OBSERVATIONS: usize = 24;
/// Minimum number of observations from which a margin of error is derived.
const MIN_OBSERVATIONS: usize = 3;

/// The corrections for one model with one set of tools. Its serialized form is part of `vocab/models.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<PromptObservation>", into = "Vec<PromptObservation>")]
pub(crate) struct Calibration {
    observations: Vec<PromptObservation>,
    fit: LinearFit,
}

impl From<Vec<PromptObservation>> for Calibration {
    fn from(mut observations: Vec<PromptObservation>) -> Self {
        observations.drain(..observations.len().saturating_sub(MAX_OBSERVATIONS));
        forget_lost_replicas(&mut observations);
        if !observations.iter().any(|one| one.is_lower)
            && let Some(lower) = lower_counts(&observations)
        {
            observations.iter_mut().zip(lower).for_each(|(one, is_lower)| one.is_lower = is_lower);
        }
        let upper: Vec<_> = observations.iter().filter(|one| !one.is_lower).copied().collect();
        Self { fit: LinearFit::new(&upper), observations }
    }
}

impl From<Calibration> for Vec<PromptObservation> {
    fn from(calibration: Calibration) -> Self {
        calibration.observations
    }
}

impl Calibration {
    /// Adds the observation of a prompt that was counted as `counted` tokens here and as `read` by the server.
    #[must_use]
    pub(crate) fn with(&self, parts: InexactParts, counted: u64, read: u64) -> Self {
        self.with_turn(parts, counted, read, false)
    }

    /// The same for a prompt of which it is known whether it `continues` the conversation of the newest observation.
    #[must_use]
    pub(crate) fn with_turn(
        &self,
        parts: InexactParts,
        counted: u64,
        read: u64,
        continues: bool,
    ) -> Self {
        let is_covered = self.covers(&parts);
        let corrected = self.corrected(&parts, counted);
        let missed = if is_covered { corrected.abs_diff(read) } else { 0 };
        let is_lower =
            corrected.checked_sub(read).is_some_and(|less| self.difference() == Some(less));
        let mut observations = self.observations.clone();
        observations.push(PromptObservation { parts, counted, read, missed, is_lower, continues });
        observations.into()
    }

    /// Returns the tokens by which the counts of two replicas of the server differ, if it has such replicas.
    pub(crate) fn difference(&self) -> Option<u64> {
        let lower = self.observations.iter().rfind(|one| one.is_lower)?;
        let difference = self.corrected(&lower.parts, lower.counted).checked_sub(lower.read);
        difference.filter(|difference| *difference >= MIN_DIFFERENCE)
    }

    /// Returns whether there are enough observations to do without probes.
    pub(crate) const fn is_settled(&self) -> bool {
        self.observations.len() >= MIN_OBSERVATIONS
    }

    /// Adds later observations, except those of the same prompts: the same prompt twice is no further evidence.
    #[must_use]
    pub(crate) fn followed_by(mut self, later: &Self) -> Self {
        let prompts: Vec<_> = self.observations.iter().map(PromptObservation::prompt).collect();
        let others = later.observations.iter().filter(|other| !prompts.contains(&other.prompt()));
        // The prompt before may be among those that are left out.
        let others = others.map(|other| PromptObservation { continues: false, ..*other });
        self.observations.extend(others);
        self.observations.into()
    }

    /// Returns whether there are enough observations of prompts with such parts.
    fn covers(&self, parts: &InexactParts) -> bool {
        self.observations.len() >= MIN_OBSERVATIONS && self.fit.covers(parts)
    }

    /// Returns a count with the corrections of its parts.
    pub(crate) fn corrected(&self, parts: &InexactParts, counted: u64) -> u64 {
        self.fit.corrected(parts, counted)
    }

    /// Returns the maximum error of the corrected count of a prompt: the largest observed error, and at least a fixed
    /// share of the count if there are too few observations.
    ///
    /// `has_tools`: the prompt has tools, beside which a template may write instructions.
    pub(crate) fn margin(&self, parts: &InexactParts, tokens: u64, has_tools: bool) -> u64 {
        let errors = self.observations.iter().map(|observation| {
            let PromptObservation { parts, counted, read, missed, .. } = observation;
            let error = self.corrected(parts, *counted).abs_diff(*read).max(*missed);
            // The error of an estimate grows with the text.
            match observation.is_estimated() {
                true => error.saturating_mul(tokens).div_ceil((*read).max(1)),
                false => error,
            }
        });
        let rounding: f64 =
            parts.row().iter().zip(self.fit.rounding).map(|(n, rounding)| n * rounding).sum();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most half a token per part"
        )]
        let margin = errors.max().unwrap_or(0) + (rounding + 0.99) as u64;
        let least = if self.covers(parts) {
            1
        } else {
            let share = tokens.div_ceil(ESTIMATE_MARGIN_DIVISOR);
            let is_estimate = parts.0[PartKind::Text as usize] > 0;
            let unknown = unknown_tokens(parts, has_tools);
            if is_estimate { share + unknown } else { share.max(unknown) }
        };
        margin.max(least).max(1)
    }
}

/// Forgets that replicas count differently once the newest counts are all of the same kind, or too few are upper ones to
/// be fitted. Then the older counts of the other kind are outdated.
fn forget_lost_replicas(observations: &mut Vec<PromptObservation>) {
    let Some(newest) = observations.last().copied() else { return };
    if !observations.iter().any(|one| one.is_lower) {
        return;
    }
    let same = observations.iter().rev().take_while(|one| one.is_lower == newest.is_lower);
    if same.count() >= WINDOW {
        observations.retain(|one| one.is_lower == newest.is_lower);
    } else if observations.iter().filter(|one| !one.is_lower).count() >= MIN_OBSERVATIONS {
        return;
    }
    // The neighbors may be others now.
    observations.iter_mut().for_each(|one| (one.is_lower, one.continues) = (false, false));
}

/// Returns the most tokens that a template may add to parts beyond what is estimated for them.
///
/// **Source**: the templates of Qwen 2.5 and 3, Llama 3.1, Gemma 3, Phi-3, Mistral and SmolLM. The head may contain a
/// system message of the template (up to 40 tokens, with a date) or the instructions for tools (up to 160, in
/// SmolLM2's 190); a call has tags, JSON keys and line breaks around it (up to 32), and a result has tags (up to 16).
fn unknown_tokens(parts: &InexactParts, has_tools: bool) -> u64 {
    const MOST: [(PartKind, u64); N_KINDS] = [
        (PartKind::Head, 160),
        (PartKind::User, 8),
        (PartKind::Call, 32),
        (PartKind::Result, 16),
        (PartKind::Assistant, 8),
        (PartKind::Text, 0),
        (PartKind::System, 0),
    ];
    // Instructions may be half as long again as the longest of these.
    const MORE_WITH_TOOLS: u64 = 128;
    let most: u64 =
        MOST.into_iter().map(|(kind, most)| u64::from(parts.0[kind as usize]) * most).sum();
    let is_head_unknown = parts.0[PartKind::Head as usize] > 0;
    if has_tools && is_head_unknown { most + MORE_WITH_TOOLS } else { most }
}

/// Returns whether the server's count of a prompt is usable as an observation, which it is not if the server truncated
/// the prompt.
///
/// `has_vocabulary`: texts are counted exactly, so that a much smaller count means truncation.
pub(crate) const fn is_plausible(
    counted: u64,
    read: u64,
    num_ctx: u32,
    has_vocabulary: bool,
) -> bool {
    let window = num_ctx as u64;
    let is_truncated = if has_vocabulary { read * 4 < counted * 3 } else { read * 8 < counted };
    read > 0 && !is_truncated && counted < window && read + 1 < window
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns parts without a system message.
    fn parts(parts: [u32; N_KINDS - 1]) -> InexactParts {
        let mut all = InexactParts::default();
        all.0[..N_KINDS - 1].copy_from_slice(&parts);
        all
    }

    #[test]
    fn constant_that_earlier_prompts_did_not_have_is_learned_after_two_turns() {
        let mut calibration = Calibration::default();
        let system = |mut parts: InexactParts, n| {
            parts.add(PartKind::System, n);
            parts
        };
        // Rendered conversations: those without a system message have a longer default one.
        for turn in 0..8 {
            let parts = system(parts([1, 0, 0, 0, 0, 0]), turn % 2);
            calibration = calibration.with(parts, 100, if turn % 2 == 0 { 152 } else { 130 });
        }
        for n in [0, 1] {
            let expect = if n == 0 { 152 } else { 130 };
            assert_eq!(calibration.corrected(&system(parts([1, 0, 0, 0, 0, 0]), n), 100), expect);
        }
        let now = system(parts([1, 0, 0, 0, 0, 0]), 1);
        for (turn, corrected) in [(0, 130), (1, 139), (2, 176)] {
            assert_eq!(calibration.corrected(&now, 100), corrected, "{turn}");
            calibration = calibration.with(now, 100, 176);
        }
        assert!(calibration.margin(&now, 1000, true) >= 46, "earlier prompts had less");
    }

    /// The counts of a template of Mistral, which drops tools and the system message where the newest message is a result
    /// of a tool. The best weights without a minimum are 25 for the head and -28 for the user.
    #[test]
    fn parts_of_a_prompt_add_up_to_its_count() {
        let rows = [
            ([1, 1, 0, 0, 0, 0], 1, 38, 35),
            ([1, 1, 0, 0, 0, 0], 1, 96, 93),
            ([1, 1, 0, 0, 0, 0], 1, 74, 70),
            ([0, 0, 1, 1, 2, 0], 0, 91, 127),
            ([0, 1, 2, 2, 1, 0], 0, 137, 209),
            ([0, 0, 1, 1, 1, 0], 0, 70, 111),
            ([1, 1, 3, 3, 3, 0], 1, 173, 226),
            ([0, 1, 1, 1, 1, 0], 0, 71, 67),
            ([1, 1, 2, 2, 3, 0], 1, 143, 184),
            ([0, 0, 1, 1, 2, 0], 0, 127, 163),
            ([0, 1, 1, 1, 1, 0], 0, 83, 52),
            ([1, 1, 0, 0, 0, 0], 1, 46, 43),
            ([1, 1, 0, 0, 0, 0], 1, 65, 62),
        ];
        let mut calibration = Calibration::default();
        for (kinds, n_system, counted, read) in rows {
            let mut parts = parts(kinds);
            parts.add(PartKind::System, n_system);
            calibration = calibration.with(parts, counted, read);
        }
        let mut head = parts([1, 0, 0, 0, 0, 0]);
        head.add(PartKind::System, 1);
        let user = parts([0, 1, 0, 0, 0, 0]);
        let mut prompt = head;
        prompt.add(PartKind::User, 1);
        let (n_head, n_user) = (11, 12);
        let sum = calibration.corrected(&head, n_head) + calibration.corrected(&user, n_user);
        assert_eq!(sum, calibration.corrected(&prompt, n_head + n_user));
        assert_eq!(sum, n_head + n_user - 3);
    }

    /// The best weights of these prompts are 5 for the head and -6 for the user. With the user's raised to its minimum,
    /// the assistant's explains the rest, but the prompts still do not tell the two kinds apart.
    #[test]
    fn raised_weight_covers_no_other_prompts() {
        let mut calibration = Calibration::default();
        let prompt = |n_user, n_assistant| parts([1, n_user, 0, 0, n_assistant, 0]);
        for turn in 0..4 {
            let read = 999 - 6 * u64::from(turn);
            calibration = calibration.with(prompt(turn + 1, turn), 1000, read);
        }
        let covered = prompt(6, 5);
        assert_eq!(calibration.corrected(&covered, 1000), 969);
        assert_eq!(calibration.margin(&covered, 1000, false), 1);
        let real = 1000 - 5 - 5 * 6;
        let other = prompt(5, 6);
        let missed = calibration.corrected(&other, 1000).abs_diff(real);
        assert!(missed > 1 && missed <= calibration.margin(&other, 1000, false), "{missed}");
    }

    #[test]
    fn constant_difference_is_corrected() {
        let mut calibration = Calibration::default();
        assert_eq!(calibration.margin(&parts([1, 1, 0, 0, 0, 0]), 1000, false), 168);
        assert_eq!(calibration.margin(&parts([1, 1, 0, 0, 0, 0]), 1000, true), 296);
        assert_eq!(calibration.margin(&parts([0, 1, 0, 0, 0, 0]), 10, true), 8);
        for turn in 0..4 {
            let parts = parts([1, 1 + turn, 0, 0, turn, 0]);
            calibration = calibration.with(parts, 100 + u64::from(turn), 117 + u64::from(turn));
            assert_eq!(calibration.corrected(&parts, 500), 517);
        }
        assert_eq!(calibration.margin(&parts([1, 9, 0, 0, 8, 0]), 1000, false), 1);
        let stored = serde_json::to_string(&calibration).unwrap();
        let first = r#"[{"parts":[1,1,0,0,0,0,0],"counted":100,"read":117,"missed":0},"#;
        assert!(stored.starts_with(first), "{stored}");
        assert_eq!(serde_json::from_str::<Calibration>(&stored).unwrap(), calibration);
    }

    /// Adds a turn of a chat to which the server adds `more` tokens beyond 7 for the head and 5 for a message.
    fn observed(calibration: &Calibration, turn: u64, more: u64, continues: bool) -> Calibration {
        let n = u32::try_from(turn).unwrap();
        let counted = 100 + 30 * turn;
        let read = counted + 7 + 5 * (2 * turn + 1) + more;
        calibration.with_turn(parts([1, n + 1, 0, 0, n, 0]), counted, read, continues)
    }

    /// Observes the turns of a chat, each with the tokens that the server adds.
    fn chat(more: &[u64]) -> Calibration {
        let turns = (0_u64..).zip(more);
        turns.fold(Calibration::default(), |sum, (turn, more)| observed(&sum, turn, *more, true))
    }

    #[test]
    fn replicas_that_count_alike_again_are_forgotten() {
        for last in [0, 20] {
            let (mut calibration, mut n_found) = (Calibration::default(), 0);
            for turn in 0..88 {
                let more = if turn < 8 { turn % 2 * 20 } else { last };
                let is_known = calibration.difference().is_some();
                calibration = observed(&calibration, turn, more, true);
                n_found += usize::from(!is_known && calibration.difference().is_some());
                if turn >= 16 {
                    let next = u32::try_from(turn).unwrap() + 1;
                    let parts = parts([1, next + 1, 0, 0, next, 0]);
                    let real = 1000 + 7 + 5 * (2 * u64::from(next) + 1) + last;
                    assert_eq!(calibration.corrected(&parts, 1000), real, "{last} {turn}");
                    assert_eq!(calibration.difference(), None, "{last} {turn}");
                }
            }
            assert_eq!(n_found, 1, "{last}");
        }
    }

    #[test]
    fn sessions_in_turns_are_no_replicas() {
        // The template removes 20 tokens of blanks from the system prompt of one of two sessions.
        for n_in_a_row in [1, 2] {
            let turns = 0..24_u64;
            let both = turns.fold(Calibration::default(), |sum, at| {
                let (session, place) = (at / n_in_a_row % 2, at % n_in_a_row);
                let turn = at / (2 * n_in_a_row) * n_in_a_row + place;
                let now = observed(&sum, turn, session * 20, place > 0);
                assert_eq!(now.difference(), None, "{n_in_a_row} {at}");
                now
            });
            // They stay in the margin.
            assert!(both.margin(&parts([1, 9, 0, 0, 8, 0]), 1000, false) >= 10);
        }
    }

    #[test]
    fn replicas_that_count_differently_are_found_by_counts_that_go_back() {
        let check = |more: &[u64], expect: Option<u64>| {
            assert_eq!(chat(more).difference(), expect, "{more:?}");
        };
        check(&[0, 20, 0, 20, 0, 20], Some(20));
        check(&[0, 0, 20, 20, 0, 20, 20, 0], Some(20));
        check(&[20, 0, 0, 0, 20, 0, 20, 20, 20, 20], Some(20));
        check(&[0, 2, 0, 2, 0, 2], Some(2));
        check(&[0; 24], None);
        // Too few, a change for good, a change that was taken back, one more token, and counts of three values.
        check(&[0, 20, 0, 20, 0], None);
        check(&[0, 0, 0, 0, 20, 20, 20, 20], None);
        check(&[0, 0, 0, 20, 20, 20, 0, 0], None);
        check(&[0, 1, 0, 1, 0, 1, 0, 1], None);
        check(&[0, 20, 9, 20, 0, 9, 20, 0], None);
    }

    #[test]
    fn counts_of_replicas_are_no_drift() {
        let turns: Vec<u64> = (0..40).map(|turn| if turn % 2 == 0 { 0 } else { 20 }).collect();
        for n in 6..turns.len() {
            let calibration = chat(&turns[..n]);
            let next = u32::try_from(n).unwrap();
            let parts = parts([1, next + 1, 0, 0, next, 0]);
            let real = 1000 + 7 + 5 * (2 * n as u64 + 1);
            assert_eq!(calibration.corrected(&parts, 1000), real + 20, "{n}");
            // A prompt has at most the corrected count, and at least that of the other replica.
            let margin = calibration.margin(&parts, 1000, false);
            assert!((20..60).contains(&margin), "{n}: {margin}");
        }
        // A session that stays at one of the replicas for some turns changes nothing, and the pattern is known after a
        // restart.
        let stays = chat(&[&turns[..8], &[0; 7]].concat());
        assert_eq!(stays.difference(), Some(20));
        let stored = serde_json::to_string(&stays).unwrap();
        assert_eq!(serde_json::from_str::<Calibration>(&stored).unwrap(), stays);
        // Once all replicas are the same, it is forgotten.
        assert_eq!(chat(&[&turns[..8], &[20; 24]].concat()).difference(), None);
        // A server that changes is learned as before.
        let changed = chat(&[&turns[..8], &[50; 24]].concat());
        assert_eq!(changed.difference(), None);
        assert_eq!(changed.corrected(&parts([1, 1, 0, 0, 0, 0]), 100), 162);
    }

    #[test]
    fn repeated_probes_are_no_further_evidence() {
        let probes = |read: u64| {
            let one = Calibration::default().with(parts([1, 1, 0, 0, 0, 0]), 100, read);
            one.with(parts([1, 2, 0, 0, 1, 0]), 120, read + 20)
        };
        let again = probes(110).followed_by(&probes(105));
        assert_eq!(again, probes(110), "the newer counts replace the older ones");
        let answer = Calibration::default().with(parts([1, 1, 0, 0, 0, 0]), 90, 100);
        assert!(again.followed_by(&answer).is_settled());
    }

    #[test]
    fn unobserved_part_kind_keeps_the_default_margin() {
        let mut calibration = Calibration::default();
        for turn in 0..9 {
            calibration = calibration.with(parts([1, 1 + turn, 0, 0, turn, 0]), 100, 110);
        }
        assert_eq!(calibration.margin(&parts([1, 9, 0, 0, 8, 0]), 900, false), 1);
        assert_eq!(calibration.margin(&parts([1, 9, 1, 1, 8, 0]), 900, false), 344);
    }

    #[test]
    fn single_error_stays_in_the_margin_until_it_is_dropped() {
        let mut calibration = Calibration::default();
        let one = parts([1, 1, 0, 0, 0, 0]);
        for read in [110, 110, 110, 150] {
            calibration = calibration.with(one, 100, read);
        }
        assert_eq!(calibration.margin(&one, 1000, false), 40);
        for _ in 0..2 * MAX_OBSERVATIONS {
            calibration = calibration.with(one, 100, 110);
        }
        assert_eq!(
            (calibration.observations.len(), calibration.corrected(&one, 100)),
            (MAX_OBSERVATIONS, 110)
        );
        assert!(calibration.margin(&one, 1000, false) < 10);
    }

    #[test]
    fn estimate_is_corrected_by_a_share() {
        let mut calibration = Calibration::default();
        for tokens in [100, 400, 900, 1500] {
            let parts = parts([1, 1, 0, 0, 0, tokens]);
            calibration = calibration.with(parts, tokens.into(), u64::from(tokens) * 3 + 20);
        }
        let parts = parts([1, 1, 0, 0, 0, 2000]);
        assert_eq!(calibration.corrected(&parts, 2000), 6020);
        assert!(calibration.margin(&parts, 6020, false) < 20);
    }

    #[test]
    fn truncated_prompt_is_not_plausible() {
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
        fn template_overhead_is_found(
            weights in proptest::array::uniform5(-5_i64..60),
            texts in proptest::collection::vec((5_u64..4000, 0_u32..3), 7..20),
        ) {
            let mut calibration = Calibration::default();
            let (mut all, mut counted) = (parts([1, 0, 0, 0, 0, 0]), 50);
            for (at, (text, n_calls)) in texts.iter().enumerate() {
                counted += text;
                all.add(PartKind::User, 1);
                if *n_calls > 0 {
                    all.add(PartKind::Assistant, 1);
                    all.add(PartKind::Call, *n_calls);
                    all.add(PartKind::Result, *n_calls);
                }
                let real = all.0.iter().zip(weights).map(|(n, weight)| i64::from(*n) * weight);
                let read = (counted + 1000).saturating_add_signed(real.sum());
                let corrected = calibration.corrected(&all, counted + 1000);
                let margin = calibration.margin(&all, corrected, false);
                if calibration.covers(&all) {
                    prop_assert!(corrected.abs_diff(read) <= margin, "{corrected} {read} {calibration:?}");
                    prop_assert!(margin <= 1 + at as u64 * 4, "{margin} {calibration:?}");
                }
                calibration = calibration.with(all, counted + 1000, read);
                let now = calibration.corrected(&all, counted + 1000);
                prop_assert!(now.abs_diff(read) <= 1 + at as u64 * 4, "{now} {read}");
                all.add(PartKind::Assistant, 1);
            }
        }
    }
}
