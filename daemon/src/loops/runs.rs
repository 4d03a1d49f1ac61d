//! How often the newest calls repeat those before them, for every length of a cycle.
//!
//! Keeps four calls and two counters a length: whether calls `n`, `n - p`, `n - 2p` and so on are equal needs only
//! the comparison of the newest with the one `p` before it.

use std::sync::Arc;

use ollm_protocol::content::{LoopKind, LoopPattern};

use super::canonical::Digest;
use super::output::Output;

/// The longest cycle that is looked for. Longer ones are rare, and `maxTurns` ends those.
pub(super) const MAX_CYCLE: usize = 4;

/// One call, completed or not.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// The tool, harmless to show.
    pub(super) tool: String,
    /// Tool and arguments.
    pub(super) digest: Digest,
    /// The result, where there is one.
    pub(super) output: Option<Arc<Output>>,
}

/// The newest calls and what repeats in them.
#[derive(Clone, Debug, Default)]
pub(super) struct Runs {
    /// Newest first.
    last: [Option<Call>; MAX_CYCLE],
    /// By cycle length less one: for how many calls in a row the call equals the one a cycle before.
    equal: [u32; MAX_CYCLE],
    /// The same, where the results equal each other too.
    same: [u32; MAX_CYCLE],
}

impl Runs {
    /// Takes the next call.
    pub(super) fn push(&mut self, call: Call) {
        for (at, before) in self.last.iter().enumerate() {
            let equal = before.as_ref().filter(|before| before.digest == call.digest);
            let same = equal.is_some_and(|before| match (&before.output, &call.output) {
                (Some(before), Some(now)) => now.repeats(before),
                _ => false,
            });
            self.equal[at] = if equal.is_some() { self.equal[at].saturating_add(1) } else { 0 };
            self.same[at] = if same { self.same[at].saturating_add(1) } else { 0 };
        }
        self.last.rotate_right(1);
        self.last[0] = Some(call);
    }

    /// What repeats `threshold` times.
    ///
    /// A single call must be repeated `threshold` times. A cycle must go round as often, or once less (but twice)
    /// where its results were the same each time: `A-B-A-B` with nothing new in it is going in circles, while a
    /// build and a test that take turns with changing results are work.
    pub(super) fn found(&self, threshold: u32) -> Option<LoopPattern> {
        if self.equal[0].saturating_add(1) >= threshold {
            return Some(self.pattern(LoopKind::Call, 1));
        }
        let again = threshold.saturating_sub(1).max(1);
        let again_same = threshold.saturating_sub(2).max(1);
        (2..=MAX_CYCLE)
            .find(|length| {
                let calls = |rounds: u32| rounds.saturating_mul(*length as u32);
                self.equal[length - 1] >= calls(again) || self.same[length - 1] >= calls(again_same)
            })
            .map(|length| self.pattern(LoopKind::Cycle, length))
    }

    fn pattern(&self, kind: LoopKind, length: usize) -> LoopPattern {
        let newest = self.last[..length].iter().rev().flatten();
        let tools = newest.map(|call| call.tool.clone()).collect();
        LoopPattern { kind, tools, count: self.equal[length - 1] / length as u32 + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls by their letters; a digit behind one is its result.
    fn found(calls: &str, threshold: u32) -> Option<(LoopKind, String, u32)> {
        let mut runs = Runs::default();
        let mut chars = calls.chars().peekable();
        while let Some(tool) = chars.next() {
            let output = chars.next_if(char::is_ascii_digit).map(|digit| {
                let text = ["red", "green", "blue"][digit.to_digit(10).unwrap() as usize];
                Arc::new(Output::new(text, false))
            });
            runs.push(Call { tool: tool.to_string(), digest: [tool as u8; 16], output });
        }
        runs.found(threshold).map(|found| (found.kind, found.tools.concat(), found.count))
    }

    #[test]
    fn what_repeats_is_found_at_its_last_call_and_not_before() {
        let check = |calls: &str, threshold, expect: Option<(LoopKind, &str, u32)>| {
            let expect = expect.map(|(kind, tools, count)| (kind, tools.to_owned(), count));
            assert_eq!(found(calls, threshold), expect, "{calls} {threshold}");
        };
        let call = |tool, count| Some((LoopKind::Call, tool, count));
        let cycle = |tools, count| Some((LoopKind::Cycle, tools, count));
        check("", 3, None);
        check("AA", 3, None);
        check("AAA", 3, call("A", 3));
        check("BAAA", 3, call("A", 3));
        check("AABA", 3, None);
        check("AA", 2, call("A", 2));
        check("AAAAAAAAA", 10, None);
        check("AAAAAAAAAA", 10, call("A", 10));
        // With the same results two rounds are enough, else it takes three.
        check("A0B1A0B1", 3, cycle("AB", 2));
        check("A0B1A0B2", 3, None);
        check("A0B0A1B1A2B2", 3, cycle("AB", 3));
        check("ABABA", 3, None);
        check("ABABAB", 3, cycle("AB", 3));
        check("A0B0C0A0B0C0", 3, cycle("ABC", 2));
        check("A0B0C0D0A0B0C0D0", 3, cycle("ABCD", 2));
        check("A0B0C0D0E0A0B0C0D0E0", 3, None);
        check("ABCABCABC", 3, cycle("ABC", 3));
        check("ABAB", 2, cycle("AB", 2));
        check("A0B0A0B0", 5, None);
        check("A0B0A0B0A0B0A0B0", 5, cycle("AB", 4));
        check("ABABABAB", 5, None);
        check("ABACABAD", 3, None);
    }

    #[test]
    fn one_repetition_less_than_the_threshold_is_never_a_loop() {
        for threshold in 2..40 {
            for result in ["", "0"] {
                let one = format!("A{result}");
                assert_eq!(found(&one.repeat(threshold - 1), threshold as u32), None);
                let whole = found(&one.repeat(threshold), threshold as u32);
                assert_eq!(whole, Some((LoopKind::Call, "A".to_owned(), threshold as u32)));
            }
        }
    }
}
