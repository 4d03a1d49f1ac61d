//! The `<facts>` block of a head: the best facts that nothing else in the prompt says, as short lines in the order of
//! the log, each under its day.

use std::collections::HashSet;

use ollm_protocol::Seq;

use super::fold::{KnownFact, RankedFact};
use super::numbers::*;
use super::said::SaidText;

/// Maximum number of blocks that are counted as a whole, to find room that the counts of single lines hide.
const MAX_EXACT_COUNTS: usize = 8;

/// The facts that a head shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FactBlock {
    /// The lines, without the tags of the block.
    pub(crate) text: String,
    /// The facts in it, by record and number, in the order of the log.
    pub(crate) shown: Vec<(Seq, u32)>,
    /// The facts that nothing shows, because they did not fit.
    pub(crate) left_out: Vec<(Seq, u32)>,
}

/// The text of the prompt besides the block.
pub(crate) struct ShownText<'s> {
    /// The text that may say a fact in other words: the notes.
    pub(crate) notes: &'s str,
    /// Whether a record is shown whole.
    pub(crate) has_record: &'s dyn Fn(Seq) -> bool,
}

/// Returns the block of the best facts within a number of tokens.
///
/// The lines of one day stand under a line with that day. Facts that the notes say, or whose record is shown, need no
/// line.
pub(crate) fn fact_block(
    facts: &[RankedFact<'_>],
    shown: &ShownText<'_>,
    room: u64,
    count: &dyn Fn(&str) -> u64,
) -> FactBlock {
    let mut kept: Vec<&KnownFact> = Vec::new();
    let mut days = HashSet::new();
    let mut left_out = Vec::new();
    let mut left = room;
    let mut n_exact = 0;
    for fact in missing_facts(facts, shown, count) {
        let heading = heading(fact);
        let of_day = if days.contains(&heading) { 0 } else { count(&heading) + 1 };
        let cost = count(&line(fact)) + of_day + 1;
        if cost <= left {
            left -= cost;
        } else {
            // The parts count more than the whole.
            let whole = (n_exact < MAX_EXACT_COUNTS).then(|| count(&render_with(&kept, fact)));
            n_exact += 1;
            let Some(rest) = whole.and_then(|whole| room.checked_sub(whole)) else {
                left_out.push(key(fact));
                continue;
            };
            left = rest;
        }
        days.insert(heading);
        kept.push(fact);
    }
    kept.sort_by_key(|fact| key(fact));
    loop {
        let text = render(&kept);
        // Parts may count a little less than the whole.
        if kept.is_empty() || count(&text) <= room {
            left_out.sort_unstable();
            let shown = kept.iter().map(|fact| key(fact)).collect();
            return FactBlock { text, shown, left_out };
        }
        left_out.extend(kept.pop().map(key));
    }
}

/// Returns the facts that nothing shows, the best first; of equal ones the newest, which other text has had the least time to
/// repeat.
fn missing_facts<'f>(
    facts: &[RankedFact<'f>],
    shown: &ShownText<'_>,
    count: &dyn Fn(&str) -> u64,
) -> Vec<&'f KnownFact> {
    let notes = SaidText::new(shown.notes);
    // Only the line of a fact in doubt says the fact before it.
    let is_said = |fact: &KnownFact| {
        !fact.is_in_doubt() && ((shown.has_record)(fact.seq) || notes.says(&fact.searched))
    };
    let mut missing: Vec<(f32, &KnownFact)> = facts
        .iter()
        .filter(|ranked| ranked.is_worth_showing() && !is_said(ranked.fact))
        .map(|ranked| (worth(ranked, count), ranked.fact))
        .collect();
    missing.sort_by(|(one_worth, one), (other_worth, other)| {
        other_worth.total_cmp(one_worth).then_with(|| key(other).cmp(&key(one)))
    });
    missing.into_iter().map(|(_, fact)| fact).collect()
}

/// Returns the value by which facts compete for room: their score, less for long lines.
pub(super) fn worth(ranked: &RankedFact<'_>, count: &dyn Fn(&str) -> u64) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "at most some hundred tokens")]
    let tokens = count(&ranked.fact.shown()) as f32;
    ranked.score - tokens / TOKENS_PER_SCORE
}

const fn key(fact: &KnownFact) -> (Seq, u32) {
    (fact.seq, fact.index)
}

fn day(fact: &KnownFact) -> String {
    let mut at = fact.at.to_string();
    at.truncate(10);
    at
}

fn heading(fact: &KnownFact) -> String {
    format!("{}:", day(fact))
}

fn line(fact: &KnownFact) -> String {
    format!("- {}", fact.shown())
}

/// Renders facts in the order of the log, with another one among them.
fn render_with(facts: &[&KnownFact], other: &KnownFact) -> String {
    let mut all = [facts, &[other]].concat();
    all.sort_by_key(|fact| key(fact));
    render(&all)
}

fn render(facts: &[&KnownFact]) -> String {
    let mut lines = Vec::with_capacity(facts.len() + 1);
    let mut before = String::new();
    for fact in facts {
        let heading = heading(fact);
        if heading != before {
            lines.push(heading.clone());
            before = heading;
        }
        lines.push(line(fact));
    }
    lines.join("\n")
}

/// Returns the texts of the facts in a block.
pub(crate) fn block_lines(block: &str) -> impl Iterator<Item = &str> {
    block.lines().filter_map(|line| line.strip_prefix("- "))
}
