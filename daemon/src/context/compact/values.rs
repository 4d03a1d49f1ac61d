//! The values of notes, which have to survive word for word, and the words that say what a value belongs to.
//!
//! Values are found as in facts, by their form alone, in any language. In a text that capitalizes many of its words, as
//! German does, capitals say nothing, and names are not looked for.

use std::collections::BTreeSet;
use std::ops::Range;

use super::numbers::*;
use crate::facts::{FactValueKind, values_of_line};
use crate::languages::{WordClass, has_class, is_unspaced_script};

/// A value, in lower case, without the signs around a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Value {
    pub(super) kind: FactValueKind,
    pub(super) text: String,
}

/// Whether capitals within sentences are names in a text, because few words have them.
pub(super) fn has_names(text: &str) -> bool {
    let (mut n_words, mut n_capitals) = (0_usize, 0_usize);
    for line in text.lines() {
        for word in words(line).skip(1) {
            n_words += 1;
            n_capitals += usize::from(word.starts_with(char::is_uppercase));
        }
    }
    n_words < MIN_WORDS_FOR_CAPITALS || n_capitals * CAPITALS_DIVISOR < n_words
}

/// Returns the distinct values of a text, sorted. `names`: whether capitals are names, see [`has_names`].
pub(super) fn values(text: &str, names: bool) -> Vec<Value> {
    let is_kept = |value: &Value| names || value.kind != FactValueKind::Name;
    let found = text.lines().flat_map(|line| {
        let values = values_of_line(line).into_iter();
        values.filter_map(|(kind, range)| value(kind, &line[range]))
    });
    found.filter(is_kept).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns whether a line has a value that is no name.
pub(super) fn has_value(line: &str) -> bool {
    values_of_line(line)
        .into_iter()
        .any(|(kind, range)| kind != FactValueKind::Name && value(kind, &line[range]).is_some())
}

/// Returns the value that a part of a line is, or `None` for pictographs and the numbers of records, such as `#7`.
fn value(kind: FactValueKind, text: &str) -> Option<Value> {
    let is_record = || text.starts_with('#') && !text.contains(char::is_alphabetic);
    if kind == FactValueKind::Symbol || is_record() {
        return None;
    }
    let text = match kind {
        FactValueKind::Number => {
            text.trim_matches(|char: char| !char.is_alphanumeric() && char != '-')
        }
        _ => text,
    };
    Some(Value { kind, text: text.to_lowercase() })
}

/// Returns the subject of a line as words in lower case: all words except stop words and the last value of the kind
/// `without`, which the line states. In a script without spaces, pairs of characters take the place of words.
pub(super) fn subject(line: &str, without: FactValueKind) -> BTreeSet<String> {
    let values = values_of_line(line);
    let is_said = |(kind, range): &(FactValueKind, Range<usize>)| {
        value(*kind, &line[range.clone()]).is_some()
    };
    let last = values.iter().rposition(|one| one.0 == without && is_said(one));
    let is_no_word = |(at, one): &(usize, _)| Some(*at) == last || !is_said(one);
    let left_out = values.into_iter().enumerate().filter(is_no_word).map(|(_, one)| one);
    words_outside(line, left_out.collect())
}

/// Returns the subject of a line as [`subject`] does, without any value.
pub(super) fn subject_words(line: &str) -> BTreeSet<String> {
    words_outside(line, values_of_line(line))
}

fn words_outside(line: &str, values: Vec<(FactValueKind, Range<usize>)>) -> BTreeSet<String> {
    let mut rest = String::with_capacity(line.len());
    let mut end = 0;
    for (_, range) in values {
        rest.push_str(&line[end..range.start]);
        rest.push(' ');
        end = range.end;
    }
    rest.push_str(&line[end..]);
    let is_said = |word: &String| word.chars().count() > 1 && !has_class(word, WordClass::Common);
    let mut about: BTreeSet<String> = words(&rest).map(str::to_lowercase).filter(is_said).collect();
    let chars: Vec<char> = rest.chars().collect();
    let pairs = chars.windows(2).filter(|pair| pair.iter().all(|char| is_unspaced_script(*char)));
    about.extend(pairs.map(|pair| pair.iter().collect::<String>()));
    about
}

/// Returns the words of a line. Scripts without spaces have none.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|char: char| !char.is_alphanumeric() || is_unspaced_script(char))
        .filter(|word| !word.is_empty())
}

/// A text in which values are looked for.
pub(super) struct SearchedText(String);

impl SearchedText {
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_lowercase())
    }

    /// Returns whether the text has a value that is not a part of a longer word or number.
    pub(super) fn has(&self, value: &Value) -> bool {
        let Self(text) = self;
        let mut from = 0;
        while let Some(found) = text[from..].find(&value.text) {
            let (start, end) = (from + found, from + found + value.text.len());
            if ends_at(text, start) && ends_at(text, end) {
                return true;
            }
            from = end;
        }
        false
    }
}

/// Whether a word can begin or end at a position of a text.
fn ends_at(text: &str, at: usize) -> bool {
    let is_part = |char: char| char.is_alphanumeric() && !is_unspaced_script(char);
    let before = text[..at].chars().next_back().is_some_and(is_part);
    let after = text[at..].chars().next().is_some_and(is_part);
    !(before && after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        values(text, has_names(text)).into_iter().map(|value| value.text).collect()
    }

    #[test]
    fn values_are_found_by_their_form_in_any_language() {
        let check = |text: &str, expect: &[&str]| {
            let mut expect: Vec<&str> = expect.to_vec();
            let mut found = texts(text);
            found.sort();
            expect.sort_unstable();
            assert_eq!(found, expect, "{text}");
        };
        check("- staging port: 48213 (user, #7)", &["48213"]);
        check("- three of 12 tests passed, and/or 3.", &[]);
        check("Use `npm run build` with --watch", &["npm run build", "--watch"]);
        check(
            "edit src/lib.rs, ./a and lib.rs; e.g. parse_value",
            &["./a", "lib.rs", "parse_value", "src/lib.rs"],
        );
        check(
            "see https://example.com/a?b, mail to a@example.com",
            &["a@example.com", "https://example.com/a?b"],
        );
        check(
            "from 2026-03-05, at 12:30, v1.4.2 costs $49.99 and 85%",
            &["12:30", "2026-03-05", "49.99", "85", "v1.4.2"],
        );
        check("The reviewer is Anna, the API of TokenKind", &["anna", "api", "tokenkind"]);
        check("端口是48213，名字叫「海豚」", &["48213", "海豚"]);
        check("المنفذ ٤٨٢١٣", &["٤٨٢١٣"]);
        check(
            "Der Hafen der Datenbank ist 5433, das Kennwort der Anna kennt nur der Wirt im Haus",
            &["5433"],
        );
        check("", &[]);
    }

    #[test]
    fn value_is_found_as_a_whole_word() {
        let has = |text: &str, value: &str| {
            SearchedText::new(text)
                .has(&Value { kind: FactValueKind::Number, text: value.to_owned() })
        };
        assert!(has("localhost:48213/x", "48213") && has("端口是48213吧", "48213"));
        assert!(has("Uses TokenKind.", "tokenkind"));
        assert!(!has("148213 and 482130", "48213"));
        assert!(has("482130 or 48213", "48213"));
    }

    #[test]
    fn subject_is_what_a_line_says_something_about() {
        let check = |line: &str, without, expect: &[&str]| {
            let found: Vec<String> = subject(line, without).into_iter().collect();
            assert_eq!(found, expect, "{line}");
        };
        check("- the staging port: 48213 (user, #7)", FactValueKind::Number, &["port", "staging"]);
        check("- staging port in src/a.rs", FactValueKind::Path, &["port", "staging"]);
        check("- door 17 code: 7731", FactValueKind::Number, &["17", "code", "door"]);
        check("- the CI port is 8080", FactValueKind::Number, &["ci", "port"]);
        check("- 端口是48213", FactValueKind::Number, &["口是", "端口"]);
    }
}
