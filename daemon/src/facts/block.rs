//! The `<facts>` block of a head: the best facts that nothing else in the prompt says, as short lines in the order of
//! the log, each under its day.

use std::collections::HashSet;
use std::ops::Range;

use ollm_protocol::Seq;

use super::candidate::FactValue;
use super::fold::{KnownFact, RankedFact};
use super::values::FactValueKind;

/// The points for which a fact may take this many more tokens than another.
const TOKENS_PER_POINT: f32 = 12.0;

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

/// What the prompt shows besides the block.
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
    let mut missing: Vec<(f32, &KnownFact)> = facts
        .iter()
        .filter(|ranked| ranked.is_worth_showing())
        .filter(|ranked| !(shown.has_record)(ranked.fact.seq) && !notes.says(ranked.fact))
        .map(|ranked| (worth(ranked, count), ranked.fact))
        .collect();
    missing.sort_by(|(one_worth, one), (other_worth, other)| {
        other_worth.total_cmp(one_worth).then_with(|| key(other).cmp(&key(one)))
    });
    missing.into_iter().map(|(_, fact)| fact).collect()
}

/// Returns the value by which facts compete for room: their score, less for long lines.
fn worth(ranked: &RankedFact<'_>, count: &dyn Fn(&str) -> u64) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "at most some hundred tokens")]
    let tokens = count(&ranked.fact.text) as f32;
    ranked.score - tokens / TOKENS_PER_POINT
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
    format!("- {}", fact.text)
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

/// The text of a fact and its values, normalized.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SearchedFact {
    text: String,
    values: Vec<String>,
}

impl SearchedFact {
    pub(super) fn new(text: &str, values: &[FactValue]) -> Self {
        let values = values.iter().map(|value| normalized(&value.text)).collect();
        Self { text: normalized(text), values }
    }
}

/// A text, prepared for looking facts up in its lines.
pub(crate) struct SaidText {
    /// All lines, normalized, one after another.
    all: String,
    lines: Vec<Range<usize>>,
}

impl SaidText {
    pub(crate) fn new(text: &str) -> Self {
        let (mut all, mut lines) = (String::new(), Vec::new());
        for line in text.lines().map(normalized).filter(|line| !line.trim().is_empty()) {
            let start = all.len();
            all.push_str(&line);
            lines.push(start..all.len());
        }
        Self { all, lines }
    }

    fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(|line| &self.all[line.clone()])
    }

    /// Returns whether one line has all values of a fact, or most words of a fact without values.
    ///
    /// Values that mean little alone, such as numbers, dates and names, count only beside a word of the subject.
    pub(crate) fn says(&self, fact: &KnownFact) -> bool {
        let SearchedFact { text, values } = &fact.searched;
        if values.is_empty() {
            return self.says_rule(text);
        }
        // Most facts are missing as a whole, which is seen without looking at each line.
        if !values.iter().all(|value| self.all.contains(value.trim())) {
            return false;
        }
        let subject: Vec<&str> = text
            .split(' ')
            .filter(|word| word.chars().count() > 3)
            .filter(|word| !values.iter().any(|value| value.contains(*word)))
            .collect();
        let needs_subject = is_short(values) || is_plain(&fact.values) && !subject.is_empty();
        self.lines().any(|line| {
            values.iter().all(|value| has_word(line, value.trim()))
                && (!needs_subject || subject.iter().any(|word| has_word(line, word)))
        })
    }

    /// Returns whether one line has most words of a rule.
    fn says_rule(&self, text: &str) -> bool {
        let words: Vec<&str> = text.split(' ').filter(|word| word.chars().count() > 2).collect();
        let is_most = |n: usize| !words.is_empty() && n * 5 >= words.len() * 4;
        let is_trivial = text.trim().is_empty();
        if !is_trivial && self.all.contains(text.trim()) {
            return true;
        }
        is_most(words.iter().filter(|word| self.all.contains(**word)).count())
            && self
                .lines()
                .any(|line| is_most(words.iter().filter(|word| has_word(line, word)).count()))
    }
}

/// Returns whether normalized values are too short to mean one thing.
fn is_short(values: &[String]) -> bool {
    values.iter().map(|value| value.chars().count()).sum::<usize>() < 8
}

/// Returns whether all values are numbers, dates or names, which other things may have as well.
fn is_plain(values: &[FactValue]) -> bool {
    use FactValueKind::{Date, Name, Number};
    values.iter().all(|value| matches!(value.kind, Number | Date | Name))
}

/// Returns a text in lower case with single spaces in place of punctuation, with a space at both ends.
fn normalized(text: &str) -> String {
    let mut normal = String::with_capacity(text.len() + 2);
    normal.push(' ');
    for char in text.chars() {
        if char.is_alphanumeric() {
            normal.extend(char.to_lowercase());
        } else if !normal.ends_with(' ') {
            normal.push(' ');
        }
    }
    if !normal.ends_with(' ') {
        normal.push(' ');
    }
    normal
}

/// Whether a normalized line has a word or words, not as a part of longer ones unless the script joins them.
fn has_word(line: &str, word: &str) -> bool {
    if word.is_empty() {
        return true;
    }
    let is_joined =
        |char: Option<char>| char.is_none_or(|char| !char.is_ascii_alphanumeric() && char != ' ');
    line.match_indices(word).any(|(at, _)| {
        let (before, after) =
            (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
        let is_edge = |char: Option<char>| char.is_none_or(|char| char == ' ');
        let is_alphabetic = word.chars().all(|char| char.is_alphabetic() && char as u32 > 0x2E80);
        is_edge(before) && is_edge(after)
            || is_alphabetic
            || word.chars().all(char::is_numeric) && is_joined(before) && is_joined(after)
            || is_edge(before) && is_joined(after)
            || is_joined(before) && is_edge(after)
    })
}
