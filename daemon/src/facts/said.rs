//! The search for facts in a text, which can say them in other words: notes and prompts do.

use std::ops::Range;

use super::candidate::FactValue;
use super::lexicon::is_unit;
use super::values::FactValueKind;

/// The text of a fact and its values, normalized.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SearchedFact {
    text: String,
    values: Vec<String>,
    /// Set if all values are numbers, dates or names, which other things may have as well.
    is_plain: bool,
}

impl SearchedFact {
    pub(super) fn new(text: &str, values: &[FactValue]) -> Self {
        let is_plain = is_plain(values);
        let values = values.iter().map(|value| normalized(&value.text)).collect();
        Self { text: normalized(text), values, is_plain }
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
    pub(crate) fn says(&self, fact: &SearchedFact) -> bool {
        if fact.values.is_empty() {
            return self.says_rule(&fact.text);
        }
        self.says_values(fact, |_| true)
    }

    /// Returns whether one line says a fact, and not a similar one: a unit is not a word of the subject, because `14 days`
    /// is said of many things, and a rule with a single long word must be there as a whole.
    pub(super) fn says_surely(&self, fact: &SearchedFact) -> bool {
        if !fact.values.is_empty() {
            return self.says_values(fact, |word| !is_unit(word));
        }
        let text = fact.text.trim();
        if rule_words(text).nth(1).is_some() {
            return self.says_rule(&fact.text);
        }
        !text.is_empty() && self.lines().any(|line| has_word(line, text))
    }

    /// Returns whether one line has all values of a fact, and beside values that mean little alone a word of the subject
    /// that `may_name` it.
    fn says_values(&self, fact: &SearchedFact, may_name: impl Fn(&str) -> bool) -> bool {
        let SearchedFact { text, values, is_plain } = fact;
        // Most facts are missing as a whole, which is seen without looking at each line.
        if !values.iter().all(|value| self.all.contains(value.trim())) {
            return false;
        }
        let subject: Vec<&str> = text
            .split(' ')
            .filter(|word| word.chars().count() > 3)
            .filter(|word| !values.iter().any(|value| value.contains(*word)) && may_name(word))
            .collect();
        let needs_subject = is_short(values) || *is_plain && !subject.is_empty();
        self.lines().any(|line| {
            values.iter().all(|value| has_word(line, value.trim()))
                && (!needs_subject || subject.iter().any(|word| has_word(line, word)))
        })
    }

    /// Returns whether one line has most words of a rule.
    fn says_rule(&self, text: &str) -> bool {
        let words: Vec<&str> = rule_words(text).collect();
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

/// Returns the words by which a normalized rule is looked for.
fn rule_words(text: &str) -> impl Iterator<Item = &str> {
    text.split(' ').filter(|word| word.chars().count() > 2)
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

/// Returns whether a normalized line has some words. They must not be parts of longer words, unless the script joins
/// words.
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
