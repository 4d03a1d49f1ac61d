//! The line around a match that a hit shows.
//!
//! Pure. Whatever the text contains, the line has no control characters, no escape sequences and no characters that
//! change the direction of writing, so it can be printed anywhere.

use std::ops::Range;

use ollm_protocol::sanitize::Sanitizer;

use super::terms::{SearchTerm, all_matches};

/// The approximate length of a snippet, in characters.
const CHARS: usize = 160;
/// Number of characters before the first match.
const CHARS_BEFORE: usize = 40;
/// The distance that a cut moves to fall between two words, in characters.
const WORD_SLACK: usize = 16;
/// Bytes of text that are examined for one character of the snippet: enough for white space and escape sequences in
/// between, and a limit for a text that consists of them.
const BYTES_PER_CHAR: usize = 8;

/// A line with its matches.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Snippet {
    pub line: String,
    /// Pairs of character offsets, start and end.
    pub matches: Vec<(u32, u32)>,
}

/// One character of the line, and the byte of the text that it comes from.
type SnippetChar = (char, usize);

/// Returns the line around `focus`, which is a range of bytes of `text`.
pub(super) fn snippet(text: &str, focus: &Range<usize>, terms: &[SearchTerm]) -> Snippet {
    let window = window_around(text, focus);
    let chars = clean(&text[window.clone()], window.start);
    let focus_start = chars.partition_point(|(_, byte)| *byte < focus.start);
    let focus_end = chars.partition_point(|(_, byte)| *byte < focus.end);
    let from = word_start(&chars, focus_start.saturating_sub(CHARS_BEFORE), focus_start);
    let to = word_end(&chars, (from + CHARS).min(chars.len()), focus_end);
    let is_cut_before = from > 0 || has_words(&text[..window.start]);
    let is_cut_after = to < chars.len() || has_words(&text[window.end..]);
    let matches: Vec<_> = all_matches(terms, &text[window.clone()])
        .into_iter()
        .map(|(_, range)| window.start + range.start..window.start + range.end)
        .collect();
    render(&chars[from..to], &matches, (is_cut_before, is_cut_after))
}

fn has_words(text: &str) -> bool {
    text.chars().any(|char| !char.is_whitespace())
}

/// Returns the stretch of text that the line is taken from.
fn window_around(text: &str, focus: &Range<usize>) -> Range<usize> {
    let mut from = focus.start.saturating_sub((CHARS_BEFORE + WORD_SLACK) * BYTES_PER_CHAR);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let mut to = (focus.start + CHARS * BYTES_PER_CHAR).min(text.len());
    while !text.is_char_boundary(to) {
        to -= 1;
    }
    from..to
}

/// Puts text on one line: folds white space, and removes everything that a terminal interprets.
fn clean(text: &str, offset: usize) -> Vec<SnippetChar> {
    let mut cleaned: Vec<SnippetChar> = Vec::new();
    let mut sanitizer = Sanitizer::default();
    for (at, char) in text.char_indices() {
        match sanitizer.push_char(char) {
            Some(char) if char.is_whitespace() => {
                let is_first = cleaned.last().is_some_and(|(last, _)| *last != ' ');
                cleaned.extend(is_first.then_some((' ', offset + at)));
            }
            Some(char) if !is_invisible(char) => cleaned.push((char, offset + at)),
            _ => {}
        }
    }
    if cleaned.last().is_some_and(|(last, _)| *last == ' ') {
        cleaned.pop();
    }
    cleaned
}

/// Returns whether a character has no width or only sets the direction of writing; others like it are unsafe.
const fn is_invisible(char: char) -> bool {
    matches!(char, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2060}'..='\u{2065}' | '\u{feff}')
}

/// Returns a beginning near `from` and before `limit` that does not cut a word.
fn word_start(chars: &[SnippetChar], from: usize, limit: usize) -> usize {
    if from == 0 {
        return 0;
    }
    let near = &chars[from - 1..limit.min(from + WORD_SLACK).max(from)];
    near.iter().position(|(char, _)| *char == ' ').map_or(from, |space| from + space)
}

/// Returns an end near `to` and not before `least` that does not cut a word.
fn word_end(chars: &[SnippetChar], to: usize, least: usize) -> usize {
    if to == chars.len() {
        return to;
    }
    let from = to.saturating_sub(WORD_SLACK).max(least.min(to));
    chars[from..=to].iter().rposition(|(char, _)| *char == ' ').map_or(to, |space| from + space)
}

/// Joins characters to a line, with an ellipsis where the text was cut before or after it.
fn render(
    chars: &[SnippetChar],
    matched: &[Range<usize>],
    (is_cut_before, is_cut_after): (bool, bool),
) -> Snippet {
    let mut line = String::new();
    let mut n_chars = 0_u32;
    if is_cut_before {
        line.push('…');
        n_chars += 1;
    }
    let mut matches: Vec<(u32, u32)> = Vec::new();
    let mut ranges = matched.iter().peekable();
    for (char, byte) in chars {
        while ranges.next_if(|range| range.end <= *byte).is_some() {}
        if let Some(range) = ranges.peek().filter(|range| range.contains(byte)) {
            match matches.last_mut() {
                Some((_, end)) if *end == n_chars && range.start != *byte => *end += 1,
                _ => matches.push((n_chars, n_chars + 1)),
            }
        }
        line.push(*char);
        n_chars += 1;
    }
    if is_cut_after {
        line.push('…');
    }
    Snippet { line, matches }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::catalog::search::terms::{ParsedQuery, first_matches};

    fn snippet_of(text: &str, query: &str) -> (String, Vec<String>) {
        let terms = ParsedQuery::parse(query).expect("parses").terms;
        let first = first_matches(&terms, text).expect("matches");
        let found = snippet(text, &first[0], &terms);
        let chars: Vec<char> = found.line.chars().collect();
        let matched = found
            .matches
            .iter()
            .map(|(from, to)| chars[*from as usize..*to as usize].iter().collect());
        (found.line.clone(), matched.collect())
    }

    #[test]
    fn snippet_is_one_clean_line_with_its_matches() {
        let check = |text: &str, query: &str, line: &str, matched: &[&str]| {
            let (found, matches) = snippet_of(text, query);
            assert_eq!(
                (found.as_str(), &matches[..]),
                (line, &matched.iter().map(ToString::to_string).collect::<Vec<_>>()[..])
            );
        };
        check("one\n\ttwo  three", "two", "one two three", &["two"]);
        check("a \u{1b}[31mred\u{1b}[0m fish\u{7}", "fish", "a red fish", &["fish"]);
        check("x \u{1b}]0;title\u{7}y \u{1b}(Bz\u{1b}", "y", "x y z", &["y"]);
        check("abc \u{202e}def", "def", "abc def", &["def"]);
        check("fooBar foo_bar", "foo", "fooBar foo_bar", &["foo", "foo"]);
        check("私は日本語を話す", "日本語", "私は日本語を話す", &["日本語"]);
        check("a  b", "\"a b\"", "a b", &["a b"]);
    }

    #[test]
    fn long_text_is_cut_between_words() {
        let text = format!("{} needle {}", "hay ".repeat(100), "straw ".repeat(100));
        let (line, matched) = snippet_of(&text, "needle");
        assert!(line.starts_with("…hay ") && line.ends_with(" straw…"), "{line}");
        assert!((120..=165).contains(&line.chars().count()), "{line}");
        assert_eq!(matched, ["needle"]);
    }

    proptest! {
        #[test]
        fn any_text_gives_a_clean_bounded_line(before in any::<String>(), after in any::<String>(), width in 0..400_usize) {
            let text = format!("{before}{}\u{1b}[ needle\u{9b}é{after}", "é\n".repeat(width));
            let terms = ParsedQuery::parse("needle").expect("parses").terms;
            if let Some(first) = first_matches(&terms, &text) {
                let found = snippet(&text, &first[0], &terms);
                let n_chars = found.line.chars().count();
                prop_assert!(n_chars <= CHARS + WORD_SLACK + 2);
                prop_assert!(!found.line.chars().any(char::is_control));
                prop_assert!(found.matches.iter().all(|(from, to)| from < to && *to as usize <= n_chars));
            }
        }
    }
}
