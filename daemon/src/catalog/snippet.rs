//! A line around a match, fit to be shown anywhere.
//!
//! Pure. The line has no control characters, no escape sequences and no marks that turn the direction of writing
//! around, whatever the text has.

use std::ops::Range;

use super::terms::{Term, all_matches};

/// About how many characters a snippet has.
const CHARS: usize = 160;
/// How many of them lie before the first match.
const CHARS_BEFORE: usize = 40;
/// How far a cut moves to fall between two words.
const WORD_SLACK: usize = 16;
/// Bytes of text that are looked at for one character of the snippet: enough for white space and escape
/// sequences in between, bounded for a text that is nothing else.
const BYTES_PER_CHAR: usize = 8;

/// A line with its matches.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Snippet {
    /// The text.
    pub line: String,
    /// Pairs of character offsets, start and end.
    pub matches: Vec<(u32, u32)>,
}

/// One character of the line and the byte of the text that it comes from.
type Shown = (char, usize);

/// The line around `focus`, in bytes of `text`.
pub(super) fn snippet(text: &str, focus: &Range<usize>, terms: &[Term]) -> Snippet {
    let window = window(text, focus);
    let shown = clean(&text[window.clone()], window.start);
    let at = shown.partition_point(|(_, byte)| *byte < focus.start);
    let from = word_start(&shown, at.saturating_sub(CHARS_BEFORE), at);
    let focus_end = shown.partition_point(|(_, byte)| *byte < focus.end);
    let to = word_end(&shown, (from + CHARS).min(shown.len()), focus_end);
    let before = from > 0 || has_words(&text[..window.start]);
    let after = to < shown.len() || has_words(&text[window.end..]);
    render(&shown[from..to], &matched(text, &window, terms), (before, after))
}

fn has_words(text: &str) -> bool {
    text.chars().any(|char| !char.is_whitespace())
}

/// The stretch of text that the line is taken from.
fn window(text: &str, focus: &Range<usize>) -> Range<usize> {
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

fn matched(text: &str, window: &Range<usize>, terms: &[Term]) -> Vec<Range<usize>> {
    all_matches(terms, &text[window.clone()])
        .into_iter()
        .map(|(_, range)| window.start + range.start..window.start + range.end)
        .collect()
}

/// The text on one line: white space folded, and nothing that a terminal acts on.
fn clean(text: &str, offset: usize) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        if char == '\u{1b}' {
            skip_escape(&mut chars);
        } else if char.is_whitespace() {
            if shown.last().is_some_and(|(last, _)| *last != ' ') {
                shown.push((' ', offset + at));
            }
        } else if !char.is_control() && !is_directional(char) {
            shown.push((char, offset + at));
        }
    }
    if shown.last().is_some_and(|(last, _)| *last == ' ') {
        shown.pop();
    }
    shown
}

/// Skips what follows an escape character: `[` to its final byte, the strings of a terminal to their end, or one
/// character.
fn skip_escape(chars: &mut std::iter::Peekable<std::str::CharIndices<'_>>) {
    let Some((_, kind)) = chars.next_if(|(_, char)| !char.is_control()) else { return };
    match kind {
        '[' => while chars.next_if(|(_, char)| matches!(char, ' '..='?')).is_some() {},
        ']' | 'P' | 'X' | '^' | '_' => {
            while chars.next_if(|(_, char)| !char.is_control()).is_some() {}
            return;
        }
        _ => return,
    }
    chars.next_if(|(_, char)| matches!(char, '@'..='~'));
}

/// Marks that change the direction of writing, or are invisible.
fn is_directional(char: char) -> bool {
    matches!(char, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// A beginning near `from` that does not cut a word, before `at`.
fn word_start(shown: &[Shown], from: usize, at: usize) -> usize {
    if from == 0 {
        return 0;
    }
    let near = &shown[from - 1..at.min(from + WORD_SLACK).max(from)];
    near.iter().position(|(char, _)| *char == ' ').map_or(from, |space| from + space)
}

/// An end near `to` that does not cut a word, not before `least`.
fn word_end(shown: &[Shown], to: usize, least: usize) -> usize {
    if to == shown.len() {
        return to;
    }
    let from = to.saturating_sub(WORD_SLACK).max(least.min(to));
    shown[from..=to].iter().rposition(|(char, _)| *char == ' ').map_or(to, |space| from + space)
}

fn render(shown: &[Shown], matched: &[Range<usize>], (before, after): (bool, bool)) -> Snippet {
    let mut line = String::new();
    let mut n_chars = 0_u32;
    if before {
        line.push('…');
        n_chars += 1;
    }
    let mut matches: Vec<(u32, u32)> = Vec::new();
    let mut ranges = matched.iter().peekable();
    for (char, byte) in shown {
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
    if after {
        line.push('…');
    }
    Snippet { line, matches }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::catalog::terms::{Terms, first_matches};

    fn snippet_of(text: &str, query: &str) -> (String, Vec<String>) {
        let terms = Terms::parse(query).expect("parses").terms;
        let first = first_matches(&terms, text).expect("matches");
        let found = snippet(text, &first[0], &terms);
        let chars: Vec<char> = found.line.chars().collect();
        let marked = found
            .matches
            .iter()
            .map(|(from, to)| chars[*from as usize..*to as usize].iter().collect());
        (found.line.clone(), marked.collect())
    }

    #[test]
    fn a_snippet_is_one_clean_line_with_its_matches() {
        let check = |text: &str, query: &str, line: &str, marked: &[&str]| {
            let (found, matches) = snippet_of(text, query);
            assert_eq!(
                (found.as_str(), &matches[..]),
                (line, &marked.iter().map(ToString::to_string).collect::<Vec<_>>()[..])
            );
        };
        check("one\n\ttwo  three", "two", "one two three", &["two"]);
        check("a \u{1b}[31mred\u{1b}[0m fish\u{7}", "fish", "a red fish", &["fish"]);
        check("x \u{1b}]0;title\u{7}y \u{1b}(Bz\u{1b}", "y", "x y Bz", &["y"]);
        check("abc \u{202e}def", "def", "abc def", &["def"]);
        check("fooBar foo_bar", "foo", "fooBar foo_bar", &["foo", "foo"]);
        check("私は日本語を話す", "日本語", "私は日本語を話す", &["日本語"]);
        check("a  b", "\"a b\"", "a b", &["a b"]);
    }

    #[test]
    fn a_long_text_is_cut_between_words() {
        let text = format!("{} needle {}", "hay ".repeat(100), "straw ".repeat(100));
        let (line, marked) = snippet_of(&text, "needle");
        assert!(line.starts_with("…hay ") && line.ends_with(" straw…"), "{line}");
        assert!((120..=165).contains(&line.chars().count()), "{line}");
        assert_eq!(marked, ["needle"]);
    }

    proptest! {
        #[test]
        fn no_text_breaks_a_snippet(before in any::<String>(), after in any::<String>(), width in 0..400_usize) {
            let text = format!("{before}{}\u{1b}[ needle\u{9b}é{after}", "é\n".repeat(width));
            let terms = Terms::parse("needle").expect("parses").terms;
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
