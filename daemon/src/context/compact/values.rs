//! Values: the parts of a text that have to survive word for word: numbers, paths, identifiers, quoted words and names.
//!
//! A value is recognized by its form alone, in any language. Small counts, the numbers of records (`#7`) and the first
//! word of a sentence are no values. In a text that capitalizes many of its words, as German does, capitals say nothing,
//! and names are not looked for.

use std::collections::BTreeSet;

/// The largest number that is a count and no value.
const LARGEST_COUNT: u32 = 12;
/// Characters of the longest quoted value; a longer quote is prose.
const MAX_QUOTED_CHARS: usize = 60;
/// Bytes of the longest word that is a value; a longer one is data.
const MAX_WORD_BYTES: usize = 120;
/// Words that a text must have before the share of its capitals says anything.
const MIN_WORDS_FOR_CAPITALS: usize = 8;
/// The divisor of the words within sentences that may be capitalized in a text whose capitals are names.
const CAPITALS_DIVISOR: usize = 4;
/// Frequent short words, which say nothing about the subject of a line.
const STOP_WORDS: &[&str] = &[
    "the",
    "and",
    "for",
    "are",
    "was",
    "now",
    "new",
    "not",
    "has",
    "had",
    "have",
    "with",
    "this",
    "that",
    "these",
    "use",
    "uses",
    "used",
    "from",
    "into",
    "its",
    "will",
    "must",
    "should",
    "all",
    "der",
    "die",
    "das",
    "und",
    "ist",
    "den",
    "dem",
    "ein",
    "eine",
    "les",
    "des",
    "est",
    "une",
    "los",
    "las",
    "una",
    "del",
    "por",
    "con",
    "het",
    "een",
    "van",
    "user",
    "assistant",
];

/// The form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ValueKind {
    /// A number with its unit, a date, a time, a version.
    Number,
    Path,
    /// A name from code, an address, an option of a command.
    Identifier,
    Quoted,
    Name,
}

/// A value, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Value {
    pub(super) kind: ValueKind,
    pub(super) text: String,
}

/// Whether capitals within sentences are names in a text, because few words have them.
pub(super) fn has_names(text: &str) -> bool {
    let (mut n_words, mut n_capitals) = (0_usize, 0_usize);
    for word in text.lines().flat_map(scan).filter(|piece| !piece.is_first) {
        n_words += 1;
        n_capitals += usize::from(word.text.starts_with(char::is_uppercase));
    }
    n_words < MIN_WORDS_FOR_CAPITALS || n_capitals * CAPITALS_DIVISOR < n_words
}

/// Returns the distinct values of a text, sorted. `names`: whether capitals are names, see [`has_names`].
pub(super) fn values(text: &str, names: bool) -> Vec<Value> {
    let pieces = text.lines().flat_map(scan);
    let found = pieces.filter_map(|piece| {
        let kind = kind_of(&piece).filter(|kind| names || *kind != ValueKind::Name)?;
        Some(Value { kind, text: piece.text.to_lowercase() })
    });
    found.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns whether a text has a value that is no name.
pub(super) fn has_value(text: &str) -> bool {
    text.lines().flat_map(scan).any(|piece| kind_of(&piece).is_some_and(|it| it != ValueKind::Name))
}

/// Returns the words that say what a line is about, in lower case: all but stop words and the values of one kind. Of a
/// script without spaces, pairs of characters take the place of words.
pub(super) fn subject(line: &str, without: ValueKind) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for piece in scan(line) {
        let text = piece.text.to_lowercase();
        let is_value = kind_of(&piece) == Some(without);
        let says_something = text.chars().filter(|char| char.is_alphanumeric()).count() > 2;
        if !is_value && says_something && !STOP_WORDS.contains(&text.as_str()) {
            words.insert(text);
        }
    }
    let chars: Vec<char> = line.chars().collect();
    let pairs = chars.windows(2).filter(|pair| pair.iter().all(|char| is_unspaced(*char)));
    words.extend(pairs.map(|pair| pair.iter().collect::<String>()));
    words
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
    let is_part = |char: char| char.is_alphanumeric() && !is_unspaced(char);
    let before = text[..at].chars().next_back().is_some_and(is_part);
    let after = text[at..].chars().next().is_some_and(is_part);
    !(before && after)
}

/// A word, or a quoted text.
#[derive(Clone, Copy, Debug)]
struct Piece<'a> {
    text: &'a str,
    is_quoted: bool,
    /// A sentence begins with it, so that its capital says nothing.
    is_first: bool,
}

/// Returns the words and the quoted texts of a line.
fn scan(line: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = line;
    let mut is_first = true;
    std::iter::from_fn(move || {
        loop {
            let next = rest.chars().next()?;
            if let Some((inner, behind)) = quoted(rest) {
                rest = behind;
                let piece = Piece { text: inner, is_quoted: true, is_first };
                is_first = false;
                return Some(piece);
            }
            let len = rest.find(|char| !is_word_char(char)).unwrap_or(rest.len());
            if len == 0 {
                // Brackets and quotes begin no sentence of their own, but often a title.
                is_first |= matches!(next, '。' | '!' | '?' | '？' | '！' | '(' | '"' | '“' | '|');
                rest = &rest[next.len_utf8()..];
                continue;
            }
            let word = &rest[..len];
            rest = &rest[len..];
            let was_first = is_first;
            is_first = word.ends_with(['.', ':']);
            let text = trimmed(word);
            if text.chars().any(char::is_alphanumeric) {
                return Some(Piece { text, is_quoted: false, is_first: was_first });
            }
            // A bullet or a dash.
            is_first |= was_first;
        }
    })
}

/// Returns a word without the punctuation at its ends; a path keeps its beginning.
fn trimmed(word: &str) -> &str {
    let text = word.trim_end_matches(['.', ':', '-', '+', '&', '%', '/', '\\', '~', '@']);
    let text = text.trim_start_matches([':', '+', '&', '%', '$']);
    match text.strip_prefix('-') {
        Some(_) if !text.starts_with("--") => text.trim_start_matches('-'),
        _ => text,
    }
}

/// Returns the text between the quotes that a text begins with, and the text behind them.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let first = text.chars().next()?;
    let last: &[char] = match first {
        '`' => &['`'],
        '"' => &['"'],
        '“' => &['”'],
        '„' => &['“', '”'],
        '«' => &['»'],
        '»' => &['«'],
        '「' => &['」'],
        '『' => &['』'],
        '‹' => &['›'],
        _ => return None,
    };
    let inside = &text[first.len_utf8()..];
    let end = inside.find(last)?;
    let inner = inside[..end].trim();
    let n_chars = inner.chars().count();
    let end_len = inside[end..].chars().next().map_or(0, char::len_utf8);
    (2..=MAX_QUOTED_CHARS).contains(&n_chars).then_some((inner, &inside[end + end_len..]))
}

/// Whether a character belongs to a word. Scripts without spaces have no words.
fn is_word_char(char: char) -> bool {
    (char.is_alphanumeric() && !is_unspaced(char))
        || matches!(
            char,
            '_' | '-' | '.' | '/' | '\\' | ':' | '@' | '#' | '+' | '%' | '$' | '~' | '&'
        )
}

/// Whether a character belongs to a script that puts no spaces between words.
fn is_unspaced(char: char) -> bool {
    matches!(u32::from(char), 0x0e00..=0x0eff | 0x1000..=0x109f | 0x1780..=0x17ff | 0x3040..=0x30ff
        | 0x3400..=0x9fff | 0xf900..=0xfaff | 0x2_0000..=0x3_ffff)
}

/// Returns the kind of a word or quote, or `None` if it is no value.
fn kind_of(piece: &Piece<'_>) -> Option<ValueKind> {
    let text = piece.text;
    if piece.is_quoted {
        return Some(ValueKind::Quoted);
    }
    if text.len() > MAX_WORD_BYTES || text.starts_with('#') && !has_letter(text) {
        return None;
    }
    let has_digit = text.contains(char::is_numeric);
    if is_path(text, has_digit) {
        return Some(ValueKind::Path);
    }
    if has_digit {
        let is_count = text.parse::<u32>().is_ok_and(|count| count <= LARGEST_COUNT);
        let unversioned = text.strip_prefix(['v', 'V']).unwrap_or(text);
        let is_number = unversioned.starts_with(char::is_numeric);
        let kind = if is_number { ValueKind::Number } else { ValueKind::Identifier };
        return (!is_count).then_some(kind);
    }
    if is_identifier(text) {
        return Some(ValueKind::Identifier);
    }
    let mut chars = text.chars();
    let begins_upper = chars.next().is_some_and(char::is_uppercase);
    let is_acronym = begins_upper && text.len() > 1 && chars.all(|char| !char.is_lowercase());
    let is_name = begins_upper && !piece.is_first && text.chars().count() > 1;
    (is_acronym || is_name).then_some(ValueKind::Name)
}

fn has_letter(text: &str) -> bool {
    text.contains(char::is_alphabetic)
}

/// Whether a word is a path or an address with slashes; `and/or` is none.
fn is_path(text: &str, has_digit: bool) -> bool {
    let n_slashes = text.matches(['/', '\\']).count();
    let is_rooted = text.starts_with(['/', '~', '\\']) || text.starts_with("./");
    n_slashes > 0
        && has_letter(text)
        && (is_rooted || n_slashes > 1 || has_digit || text.contains(['.', '_', ':']))
}

/// Whether a word is written as code, addresses and options are.
fn is_identifier(text: &str) -> bool {
    let is_inner = |mark: char| text.trim_matches(mark).contains(mark);
    let is_dotted = || {
        let mut parts = text.split('.');
        text.len() > 3 && is_inner('.') && parts.all(|part| part.chars().count() != 1)
    };
    let is_mixed = || {
        let pairs = text.chars().zip(text.chars().skip(1));
        pairs.into_iter().any(|(before, after)| before.is_lowercase() && after.is_uppercase())
    };
    text.contains("::")
        || text.starts_with("--")
        || is_inner('_')
        || is_inner('@')
        || is_dotted()
        || is_mixed()
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
            &["a@example.com", "https://example.com/a"],
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
            SearchedText::new(text).has(&Value { kind: ValueKind::Number, text: value.to_owned() })
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
        check("- the staging port: 48213 (user, #7)", ValueKind::Number, &["port", "staging"]);
        check("- staging port in src/a.rs", ValueKind::Path, &["port", "staging"]);
        check("- 端口是48213", ValueKind::Number, &["口是", "端口"]);
    }
}
