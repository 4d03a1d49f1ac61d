//! The values in a sentence: what a reader could not guess if it were lost. Numbers beyond small counts, paths, URLs,
//! addresses, versions, dates, identifiers, quoted text and names, found by their form in any language.

use std::ops::Range;

use super::lexicon::is_unit;
use super::numbers::*;
use super::sentences::for_each_sentence_of_line;
use crate::languages::{WordClass, has_class, is_joined_script};

/// Brackets and punctuation at which a word ends.
const BRACKETS: &str = "()[]{}<>\"`“”„«»!?;|=…—、。，：；！？（）「」『』《》؟،؛।‘*→·";
/// Signs behind a word that belong to it.
const SIGNS_BEHIND: &str = "/%$€£¥₹°+#";
/// Signs before a word that belong to it.
const SIGNS_BEFORE: &str = "/~.-#@$€£¥₹\\+_%";
/// Characters of numerals in Chinese and Japanese.
const HAN_DIGITS: &str = "〇零一二三四五六七八九十百千万亿萬億兆";

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum FactValueKind {
    /// A text in quotation marks or backticks.
    Quoted,
    /// A URL, a host, an e-mail or network address.
    Address,
    /// A path of a file or a directory, or the name of a file.
    Path,
    /// A number, an amount, a date in digits, a time, a version or a hexadecimal number.
    Number,
    /// A day or a month by its name.
    Date,
    /// A word with inner structure, such as `user_id`, `v2-beta` or `--dry-run`.
    Identifier,
    /// One or more words with capitals.
    Name,
    /// A pictograph.
    Symbol,
}

/// A value as it stands in its sentence.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FoundValue {
    pub(super) range: Range<usize>,
    pub(super) kind: FactValueKind,
    /// How much the value says: 1 for a name, up to 3 for an address.
    pub(super) weight: f32,
}

/// The properties of a sentence's language that values depend on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Orthography {
    /// Whether every noun is written with a capital.
    pub(super) has_capital_nouns: bool,
}

/// Returns the values of all sentences of a line, by their kind and their place in the line, in order.
pub(crate) fn values_of_line(line: &str) -> Vec<(FactValueKind, Range<usize>)> {
    let mut found = Vec::new();
    let mut end = 0;
    for_each_sentence_of_line(line, &mut |sentence| {
        let start = end + line[end..].find(sentence).unwrap_or_default();
        end = start + sentence.len();
        let values = values_of(sentence, Orthography::default()).into_iter();
        found.extend(
            values.map(|FoundValue { range, kind, .. }| {
                (kind, start + range.start..start + range.end)
            }),
        );
    });
    found
}

/// Returns the values of a sentence in order, without overlaps.
pub(super) fn values_of(sentence: &str, orthography: Orthography) -> Vec<FoundValue> {
    let mut found = links(sentence);
    found.extend(quotes(sentence, &found));
    found.sort_by_key(|value| value.range.start);
    let n_whole = found.len();
    let words = words_outside(sentence, &found[..n_whole]);
    let is_shouted = is_shouted(sentence);
    for (at, range) in words.iter().enumerate() {
        let word = &sentence[range.clone()];
        let next = words.get(at + 1).map(|next| &sentence[next.clone()]);
        let is_first = at == 0 || ends_clause(&sentence[words[at - 1].end..range.start]);
        if word.starts_with(is_joined_script) {
            found.extend(joined_numbers(word).map(|number| FoundValue {
                range: range.start + number.start..range.start + number.end,
                kind: FactValueKind::Number,
                weight: 1.5,
            }));
            continue;
        }
        let value = shaped(word)
            .or_else(|| number(word, next))
            .or_else(|| named(word, is_first || is_shouted, orthography));
        if let Some((kind, weight)) = value {
            found.push(FoundValue { range: range.clone(), kind, weight });
        }
    }
    found.sort_by_key(|value| value.range.start);
    let mut joined = join_names(sentence, found);
    joined.truncate(MAX_VALUES);
    joined
}

/// Returns the URLs in a sentence, which may contain any punctuation.
fn links(sentence: &str) -> Vec<FoundValue> {
    let mut found: Vec<FoundValue> = Vec::new();
    for (at, _) in sentence.match_indices("://") {
        let scheme = sentence[..at].bytes().rev().take_while(u8::is_ascii_alphanumeric).count();
        let is_end = |char: char| {
            char.is_whitespace()
                || matches!(char, '<' | '>' | '"' | '`' | '”' | '」' | '。' | '、' | '，')
        };
        let end = sentence[at..].find(is_end).map_or(sentence.len(), |len| at + len);
        let whole = &sentence[at - scheme..end];
        let len = whole.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', ']', '\'', '*']).len();
        let range = at - scheme..at - scheme + len;
        let is_new = found.last().is_none_or(|last| last.range.end <= range.start);
        if scheme > 0 && len > scheme + 3 && is_new {
            found.push(FoundValue { range, kind: FactValueKind::Address, weight: 3.0 });
        }
    }
    found
}

/// Returns the texts in quotation marks, outside of links.
fn quotes(sentence: &str, links: &[FoundValue]) -> Vec<FoundValue> {
    let mut found = Vec::new();
    let mut skip_to = 0;
    let mut before = ' ';
    for (at, char) in sentence.char_indices() {
        let (opening, was_before) = (char, before);
        before = char;
        if at < skip_to || links.iter().any(|link| link.range.contains(&at)) {
            continue;
        }
        let closing: &[char] = match opening {
            '`' => &['`'],
            '"' => &['"'],
            '“' | '”' => &['”', '“'],
            '„' => &['“', '”', '"'],
            '«' => &['»'],
            '»' => &['«'],
            '「' => &['」'],
            '『' => &['』'],
            '《' => &['》'],
            '‘' => &['’'],
            // An apostrophe follows a letter.
            '\'' if !was_before.is_alphanumeric() => &['\''],
            _ => continue,
        };
        let start = at + opening.len_utf8();
        let inner = &sentence[start..];
        let is_closing = |(end, char): &(usize, char)| {
            let next = inner[end + char.len_utf8()..].chars().next();
            closing.contains(char)
                && (*char != '\'' && *char != '’' || !next.is_some_and(char::is_alphanumeric))
        };
        let Some((len, close)) = inner.char_indices().take(MAX_QUOTE_CHARS).find(is_closing) else {
            continue;
        };
        skip_to = start + len + close.len_utf8();
        let has_link = links.iter().any(|link| link.range.start < skip_to && link.range.end > at);
        if !has_link && inner[..len].chars().any(char::is_alphanumeric) {
            let range = start..start + len;
            let weight = if opening == '`' { 2.5 } else { 2.0 };
            found.push(FoundValue { range, kind: FactValueKind::Quoted, weight });
        }
    }
    found
}

/// Returns the words of a sentence outside of quotes. A word ends at spaces, at brackets and most punctuation, and
/// where a script that separates words meets one that does not.
fn words_outside(sentence: &str, quotes: &[FoundValue]) -> Vec<Range<usize>> {
    let mut words = Vec::new();
    let mut start = None;
    let mut was_joined = false;
    let mut quotes = quotes.iter().map(|quote| quote.range.clone()).peekable();
    let mut chars = sentence.char_indices().peekable();
    let mut before = ' ';
    while let Some((at, char)) = chars.next() {
        while quotes.peek().is_some_and(|quote| quote.end <= at) {
            quotes.next();
        }
        let is_quoted = quotes.peek().is_some_and(|quote| quote.contains(&at));
        let next = chars.peek().map_or(' ', |(_, next)| *next);
        let is_inner =
            (before.is_alphanumeric() || before == ':') && (next.is_alphanumeric() || next == ':');
        let is_break = is_quoted
            || char.is_whitespace()
            || !char.is_ascii_alphanumeric() && BRACKETS.contains(char)
            || (matches!(char, ',' | ':' | '\'' | '’')
                && !(char == ':' && next == '\\')
                && !(is_inner && is_numeric_mark(char, before, next)));
        let is_joined = is_joined_script(char);
        if is_break || (start.is_some() && is_joined != was_joined) {
            words.extend(start.take().map(|start| start..at));
        }
        if !is_break && start.is_none() {
            start = Some(at);
        }
        was_joined = is_joined;
        before = char;
    }
    words.extend(start.map(|start| start..sentence.len()));
    words.into_iter().filter_map(|range| trimmed(sentence, range)).collect()
}

/// Whether a mark between two characters belongs to a number or an address: `1,000`, `14:30`, `fe80::1`.
fn is_numeric_mark(mark: char, before: char, next: char) -> bool {
    match mark {
        ',' => before.is_numeric() && next.is_numeric(),
        ':' => {
            [before, next].iter().all(|char| char.is_ascii_hexdigit() || *char == ':')
                || before.is_alphanumeric() && next.is_numeric()
        }
        _ => false,
    }
}

/// Returns a word without the punctuation around it; some words begin with a mark of their own.
fn trimmed(sentence: &str, range: Range<usize>) -> Option<Range<usize>> {
    let word = &sentence[range.clone()];
    let is_outside = |char: char, signs: &str| {
        !char.is_alphanumeric() && !signs.contains(char) && !is_pictograph(char)
    };
    let end = word.trim_end_matches(|char| is_outside(char, SIGNS_BEHIND));
    let kept = end.trim_start_matches(|char| is_outside(char, SIGNS_BEFORE));
    let start = range.start + end.len() - kept.len();
    (!kept.is_empty()).then(|| start..start + kept.len())
}

/// Whether the text between two words begins a new clause, in which a capital says nothing.
fn ends_clause(between: &str) -> bool {
    between.contains([':', '!', '?', '"', '“', '„', '«', '(', '—', '-', '•', '|'])
}

/// Whether most letters are capitals, so that they say nothing.
fn is_shouted(sentence: &str) -> bool {
    let n_upper = sentence.chars().filter(|char| char.is_uppercase()).count();
    let n_lower = sentence.chars().filter(|char| char.is_lowercase()).count();
    n_upper > 8 && n_upper > n_lower
}

/// Returns the kind of a word that its shape gives away: addresses, paths, identifiers, symbols.
fn shaped(word: &str) -> Option<(FactValueKind, f32)> {
    if word.len() > MAX_WORD_BYTES {
        return None;
    }
    if word.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-')
        && !word.starts_with("--")
    {
        // Nearly all words; a capital within makes an identifier.
        return is_identifier(word, false).then_some((FactValueKind::Identifier, 2.0));
    }
    if word.chars().any(is_pictograph) {
        return Some((FactValueKind::Symbol, if word.chars().all(is_face) { 0.3 } else { 1.0 }));
    }
    let has_digit = word.contains(|char: char| char.is_numeric());
    let has_letter = word.contains(char::is_alphabetic);
    if word.starts_with("www.") {
        return Some((FactValueKind::Address, 3.0));
    }
    if let Some((name, host)) = word.split_once('@')
        && !name.is_empty()
        && !host.is_empty()
    {
        return Some((FactValueKind::Address, 3.0));
    }
    if is_network_address(word) {
        return Some((FactValueKind::Address, 3.0));
    }
    if is_path(word, has_digit) {
        return Some((FactValueKind::Path, 2.5));
    }
    if !has_letter {
        return None;
    }
    if let Some((stem, end)) = word.rsplit_once('.')
        && is_dotted(stem, end)
    {
        let kind = if word.matches('.').count() > 1 && !has_digit {
            FactValueKind::Address
        } else {
            FactValueKind::Path
        };
        return Some((kind, 2.5));
    }
    if is_identifier(word, has_digit) {
        return Some((FactValueKind::Identifier, 2.0));
    }
    None
}

/// Whether a word is an IP or hardware address, with or without a port or a length.
fn is_network_address(word: &str) -> bool {
    let n_dots = word.bytes().filter(|byte| *byte == b'.').count();
    let n_colons = word.bytes().filter(|byte| *byte == b':').count();
    let is_numeric = word.bytes().all(|byte| byte.is_ascii_digit() || b".:/".contains(&byte));
    let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit() || b":/".contains(&byte));
    let has_port = word.rsplit_once(':').is_some_and(|(host, port)| {
        host.contains(char::is_alphabetic)
            && !port.is_empty()
            && port.bytes().all(|byte| byte.is_ascii_digit())
    });
    n_dots == 3 && is_numeric && word.starts_with(|char: char| char.is_ascii_digit())
        || n_colons >= 3 && is_hex
        || has_port
}

/// Whether a word is a path. `and/or` and `km/h` are not.
fn is_path(word: &str, has_digit: bool) -> bool {
    let is_drive = word.as_bytes().get(1) == Some(&b':') && word.contains('\\');
    let starts = ["/", "~/", "./", "../", "\\\\"].iter().any(|start| word.starts_with(start));
    let n_parts = word.split('/').filter(|part| part.contains(char::is_alphanumeric)).count();
    if is_drive || (starts && word.len() > 2 && n_parts > 0) {
        return true;
    }
    if !word.contains('/') || !word.contains(char::is_alphabetic) {
        return false;
    }
    let has_mark = word.contains(['.', '_', '-', '*']) || has_digit;
    let shortest = word.split('/').map(str::len).min().unwrap_or_default();
    n_parts > 2 || n_parts > 0 && word.ends_with('/') || n_parts == 2 && (has_mark || shortest >= 4)
}

/// Whether `stem.end` is a file, a host or a dotted name. Sentences without a space between them, initials and
/// abbreviations are none.
fn is_dotted(stem: &str, end: &str) -> bool {
    let is_end = (1..=12).contains(&end.len())
        && end.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && end.contains(|char: char| char.is_ascii_lowercase() || char.is_ascii_digit());
    let is_initials = stem.split('.').all(|part| part.chars().count() <= 1) && end.len() <= 1;
    let is_next_sentence = end.starts_with(|char: char| char.is_ascii_uppercase());
    stem.is_empty() && is_end && end.len() > 1
        || stem.contains(char::is_alphabetic) && is_end && !is_initials && !is_next_sentence
}

/// Whether a word has the inner structure of an identifier.
fn is_identifier(word: &str, has_digit: bool) -> bool {
    let body =
        word.trim_matches(|char: char| matches!(char, '_' | '#' | '@' | '-' | '.' | '$' | '%'));
    let is_marked = (word.starts_with('@')
        || word.starts_with('#')
        || word.starts_with("--")
        || word.starts_with('$'))
        && body.len() > 1;
    let chars = || body.chars();
    let has_camel =
        chars().zip(chars().skip(1)).any(|(one, next)| one.is_lowercase() && next.is_uppercase());
    let has_underscore = body.contains('_');
    // `10th`, `4k` and `5s` are numbers; `k8s` and `RFC-2119` are not.
    let starts_with_letter = chars().next().is_some_and(char::is_alphabetic);
    let is_mixed = has_digit && starts_with_letter && body.len() > 1;
    let is_code =
        has_digit && body.len() >= 6 && chars().filter(|char| char.is_alphabetic()).count() > 1;
    let is_key =
        body.contains('+') && body.split('+').all(|part| !part.is_empty()) && body.len() > 2;
    is_marked || has_camel || has_underscore || is_mixed || is_code || is_key
}

/// Returns the kind of a word that is a number beyond small counts, or a small one before a unit or a month.
fn number(word: &str, next: Option<&str>) -> Option<(FactValueKind, f32)> {
    let n_digits = word.chars().filter(|char| char.is_numeric()).count();
    if n_digits == 0 || word.len() > 64 {
        return None;
    }
    let has_mark = word.contains(['.', ',', ':', '/', '%', '$', '€', '£', '¥', '₹', '°', '+'])
        || word.chars().skip(1).any(|char| char == '-');
    let has_letter = word.contains(char::is_alphabetic);
    let is_small = word.parse::<u64>().is_ok_and(|number| number <= MAX_SMALL_COUNT);
    let weight = match n_digits {
        _ if is_small && !next.is_some_and(|next| is_unit(&next.to_lowercase())) => return None,
        1 | 2 if !has_mark && !has_letter => 1.5,
        1 | 2 => 2.0,
        _ => 2.5,
    };
    Some((FactValueKind::Number, weight))
}

/// Returns the kind of a word with capitals that is not the first of its clause.
fn named(word: &str, is_first: bool, orthography: Orthography) -> Option<(FactValueKind, f32)> {
    let first = word.chars().next()?;
    let n_chars = word.chars().count();
    if !first.is_uppercase() || n_chars < 2 || has_class(word, WordClass::Capital) {
        return None;
    }
    if word.chars().filter(|char| char.is_alphabetic()).all(char::is_uppercase) {
        // Acronyms are common words of their field.
        return Some((FactValueKind::Name, if n_chars > 5 { 1.0 } else { 0.6 }));
    }
    match (is_first, orthography.has_capital_nouns) {
        (true, _) => None,
        (false, true) => Some((FactValueKind::Name, 0.3)),
        (false, false) => Some((FactValueKind::Name, 1.0)),
    }
}

/// Joins adjacent names: `Ada Lovelace` is one value.
fn join_names(sentence: &str, found: Vec<FoundValue>) -> Vec<FoundValue> {
    let mut joined: Vec<FoundValue> = Vec::with_capacity(found.len());
    for value in found {
        match joined.last_mut() {
            Some(last)
                if last.kind == FactValueKind::Name
                    && value.kind == FactValueKind::Name
                    && sentence[last.range.end..value.range.start].trim().is_empty() =>
            {
                last.range.end = value.range.end;
                last.weight = (last.weight + value.weight).min(2.0);
            }
            _ => joined.push(value),
        }
    }
    joined
}

/// Returns the numerals of at least two characters in a run of a joined script.
fn joined_numbers(run: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let is_digit = |char| HAN_DIGITS.contains(char);
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < run.len() {
            let start = at + run[at..].find(is_digit)?;
            let rest = &run[start..];
            at = start + rest.find(|char| !is_digit(char)).unwrap_or(rest.len());
            if run[start..at].chars().nth(1).is_some() {
                return Some(start..at);
            }
        }
        None
    })
}

const fn is_pictograph(char: char) -> bool {
    matches!(char, '\u{1F000}'..='\u{1FAFF}' | '\u{2600}'..='\u{27BF}' | '\u{2B50}'..='\u{2B55}')
}

/// Whether a pictograph shows a mood or applause, as people end sentences.
const fn is_face(char: char) -> bool {
    matches!(char,
        '\u{1F600}'..='\u{1F64F}' | '\u{1F910}'..='\u{1F92F}' | '\u{1F970}'..='\u{1F97A}' | '\u{1F44A}'..='\u{1F44F}'
        | '\u{1F389}' | '\u{1F525}' | '\u{1F4AF}' | '\u{1F680}' | '\u{2600}'..='\u{27BF}' | '\u{FE0F}' | '\u{200D}'
        | '\u{1F3FB}'..='\u{1F3FF}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sentence: &str) -> Vec<String> {
        let values = values_of(sentence, Orthography::default());
        values.iter().map(|value| sentence[value.range.clone()].to_owned()).collect()
    }

    #[test]
    fn values_are_found_by_their_form() {
        let check =
            |sentence: &str, expect: &[&str]| assert_eq!(found(sentence), expect, "{sentence}");
        check("The queue listens on 48213.", &["48213"]);
        check("We meet at 14:30 on 2026-05-12, not earlier", &["14:30", "2026-05-12"]);
        check("it costs 1,250.50 € or $99", &["1,250.50", "$99"]);
        check(
            "see https://example.org/a?b=1, and mail ada@example.org.",
            &["https://example.org/a?b=1", "ada@example.org"],
        );
        check("the host is 10.0.4.17:8080 (or fe80::1:2:3)", &["10.0.4.17:8080", "fe80::1:2:3"]);
        check("logs are in ~/var/logs/ and C:\\Temp\\x", &["~/var/logs/", "C:\\Temp\\x"]);
        check(
            "rename src/main.rs, and/or use main.py at 40 km/h",
            &["src/main.rs", "main.py", "40"],
        );
        check(
            "set user_id in getUserName of k8s with --dry-run",
            &["user_id", "getUserName", "k8s", "--dry-run"],
        );
        check("call it \"blue harbor\" or `x`", &["blue harbor", "x"]);
        check("nennen wir es „Morgenrot“ oder «Nord»", &["Morgenrot", "Nord"]);
        check("the lead is Ada Lovelace from Turin", &["Ada Lovelace", "Turin"]);
        check("Three of 4 tests and 12 files", &[]);
        check("it takes 5 minutes, 5%, 5s", &["5", "5%", "5s"]);
        check("don't use the user's own 'words'", &["words"]);
        check("e.g. this, i.e. that", &[]);
        check("デプロイ用のポートは48213です", &["48213"]);
        check("合言葉は「青い月」です", &["青い月"]);
        check("预算是三百万元", &["三百万"]);
        check("المنفذ هو ٤٨٢١٣", &["٤٨٢١٣"]);
        check("포트는 48213입니다", &["48213"]);
        check("our sign is 🦊🌙", &["🦊🌙"]);
        check("version v2.4.1-rc2 of 0x7ffe", &["v2.4.1-rc2", "0x7ffe"]);
    }

    #[test]
    fn nouns_with_capitals_say_little() {
        let german = Orthography { has_capital_nouns: true };
        let values = values_of("Mein Sohn geht in die Schule", german);
        assert!(values.iter().map(|value| value.weight).sum::<f32>() < 1.0, "{values:?}");
    }
}
