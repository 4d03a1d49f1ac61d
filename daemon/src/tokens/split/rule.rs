//! The steps that split rules consist of: word scanners and character sets.
//!
//! Each step splits every piece that the previous step produced, and sees nothing beyond the ends of that piece.
//! Text that an expression does not match is a piece of its own.
//! Must not know which name stands for which rule.
//!
//! **Invariants**: the words of a text, concatenated, are the text; the cost is linear, because a scanner always
//! advances and looks at each character a bounded number of times.
//!
//! **Source**: `llm_tokenizer_bpe` in llama.cpp's `llama-vocab.cpp`, and `unicode_regex_split` with the
//! `unicode_regex_split_custom_*` functions in its `unicode.cpp`.

use super::class::{
    ANY, CharReader, CharTables, LETTER, MARK, NUMBER, PUNCTUATION, SPACE, SYMBOL, cases,
};

/// The way in which a family of vocabularies splits text into words.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct SplitRule {
    pub(super) steps: &'static [SplitStep],
    pub(super) tables: CharTables,
}

impl SplitRule {
    /// Calls `emit` with the start and end of each word of a text, in order.
    #[inline]
    pub(in super::super) fn split(self, text: &[u8], emit: &mut impl FnMut(usize, usize)) {
        match self.steps {
            // The common rules have one step, into which `emit` can be inlined.
            [step] => step.split(CharReader::new(text, self.tables), emit),
            steps => split_by_steps(steps, self.tables, text, 0, emit),
        }
    }
}

/// One pass over the text.
#[derive(Clone, Copy, Debug)]
pub(super) enum SplitStep {
    /// The words of GPT-2.
    Gpt2,
    /// The words of cl100k and its descendants.
    Cl100k(Cl100kRule),
    /// Words in which a capital begins a new word.
    Cased(CasedRule),
    /// The same by the expressions that models come with, which know the case of all letters.
    CasedByClasses(CasedRule),
    /// The last step of DeepSeek V3.
    DeepSeek3,
    /// Runs of line feeds, each with an optional carriage return before it.
    LineBreaks,
    /// Runs of a character set, each of at most the given number of characters.
    Runs(CharSet, usize),
    /// Groups of exactly three ASCII digits.
    DigitTriples,
    /// Runs of a character set, each with one preceding white space character.
    RunsWithSpace(CharSet),
    /// The white space at the end: `\s+$`.
    TrailingSpace,
}

/// The parameters of the rules that descend from cl100k (Llama 3, Qwen).
#[derive(Clone, Copy, Debug)]
pub(super) struct Cl100kRule {
    /// The character classes of a word: letters, and for Qwen 3.5 also marks.
    pub(super) letters: u8,
    /// Maximum number of digits in a word.
    pub(super) max_digits: usize,
}

/// The parameters of the rules that distinguish capitals from small letters (GPT-4o, Tekken).
#[derive(Clone, Copy, Debug)]
pub(super) struct CasedRule {
    /// Maximum number of digits in a word.
    pub(super) max_digits: usize,
    /// Whether `'s` and other contractions belong to the preceding word.
    pub(super) contractions: bool,
}

/// Returns the length in bytes of the character at a position if it belongs to the set, else 0.
pub(super) type CharSet = fn(CharReader<'_>, usize) -> usize;

/// Splits a text with a scanner that matches at every position.
#[inline]
fn split_fully(
    reader: CharReader<'_>,
    end_of: impl Fn(usize) -> usize,
    emit: &mut impl FnMut(usize, usize),
) {
    let mut at = 0;
    while at < reader.text.len() {
        let end = end_of(at);
        emit(at, end);
        at = end;
    }
}

/// Splits a text with an expression. The text between two matches is a piece too.
fn split_by_matches(
    reader: CharReader<'_>,
    match_end: impl Fn(usize) -> Option<usize>,
    emit: &mut impl FnMut(usize, usize),
) {
    let (mut gap, mut at) = (0, 0);
    while at < reader.text.len() {
        let Some(end) = match_end(at) else {
            at += reader.class(at).1;
            continue;
        };
        if gap < at {
            emit(gap, at);
        }
        emit(at, end);
        (gap, at) = (end, end);
    }
    if gap < at {
        emit(gap, at);
    }
}

/// Splits a piece, which begins at `offset` of the text, by several steps.
fn split_by_steps(
    steps: &[SplitStep],
    tables: CharTables,
    piece: &[u8],
    offset: usize,
    emit: &mut dyn FnMut(usize, usize),
) {
    match steps {
        [] => emit(offset, offset + piece.len()),
        [last] => {
            let reader = CharReader::new(piece, tables);
            last.split(reader, &mut |start, end| emit(offset + start, offset + end));
        }
        [step, rest @ ..] => {
            step.split(CharReader::new(piece, tables), &mut |start, end| {
                split_by_steps(rest, tables, &piece[start..end], offset + start, emit);
            });
        }
    }
}

impl SplitStep {
    #[inline]
    fn split(self, reader: CharReader<'_>, emit: &mut impl FnMut(usize, usize)) {
        let piece = reader.text;
        match self {
            Self::Gpt2 => split_fully(reader, |at| gpt2_word(reader, at), emit),
            Self::Cl100k(rule) => {
                split_fully(reader, |at| cl100k_word(reader, at, rule), emit);
            }
            Self::Cased(rule) => split_fully(reader, |at| cased_word(reader, at, rule), emit),
            Self::CasedByClasses(rule) => {
                split_by_matches(reader, |at| cased_word_by_classes(reader, at, rule), emit);
            }
            Self::LineBreaks => split_by_matches(reader, |at| line_breaks(piece, at), emit),
            Self::DeepSeek3 => {
                split_by_matches(reader, |at| deepseek3_word(reader, at), emit);
            }
            Self::Runs(set, limit) => {
                split_by_matches(reader, |at| run(reader, at, set, limit), emit);
            }
            Self::DigitTriples => {
                let triple = |at: usize| {
                    let next = piece.get(at..at + 3)?;
                    next.iter().all(u8::is_ascii_digit).then_some(at + 3)
                };
                split_by_matches(reader, triple, emit);
            }
            Self::RunsWithSpace(set) => {
                split_by_matches(reader, |at| run_with_space(reader, at, set), emit);
            }
            Self::TrailingSpace => {
                let end = trailing_space(reader);
                for (start, end) in [(0, end), (end, piece.len())] {
                    if start < end {
                        emit(start, end);
                    }
                }
            }
        }
    }
}

fn run(reader: CharReader<'_>, at: usize, set: CharSet, limit: usize) -> Option<usize> {
    let mut end = at;
    for _ in 0..limit {
        let len = set(reader, end);
        if len == 0 {
            break;
        }
        end += len;
    }
    (end > at).then_some(end)
}

fn run_with_space(reader: CharReader<'_>, at: usize, set: CharSet) -> Option<usize> {
    let (class, len) = reader.class(at);
    let spaced = (class & SPACE != 0).then(|| run(reader, at + len, set, usize::MAX)).flatten();
    spaced.or_else(|| run(reader, at, set, usize::MAX))
}

/// Returns the start of the white space at the end of the text.
fn trailing_space(reader: CharReader<'_>) -> usize {
    let mut start = reader.text.len();
    while start > 0 {
        let previous = reader.text[..start].iter().rposition(|byte| byte & 0xc0 != 0x80);
        match previous {
            Some(at) if reader.class(at).0 & SPACE != 0 => start = at,
            _ => break,
        }
    }
    start
}

/// Returns the length of the English contraction at a position, or 0.
fn contraction(reader: CharReader<'_>, at: usize, any_case: bool) -> usize {
    let fold = |offset: usize| {
        let byte = reader.text.get(at + offset).copied().unwrap_or_default();
        if any_case { byte.to_ascii_lowercase() } else { byte }
    };
    if reader.text.get(at) != Some(&b'\'') {
        return 0;
    }
    if any_case && reader.folds_long_s && reader.text[at + 1..].starts_with("ſ".as_bytes()) {
        return "'ſ".len();
    }
    match (fold(1), fold(2)) {
        (b's' | b't' | b'm' | b'd', _) => 2,
        (b'r' | b'v', b'e') | (b'l', b'l') => 3,
        _ => 0,
    }
}

/// Returns the end of the GPT-2 word at a position:
/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
#[inline]
fn gpt2_word(reader: CharReader<'_>, at: usize) -> usize {
    const OTHERS: u8 = ANY & !(LETTER | NUMBER | SPACE);
    let first = reader.text[at];
    if first == b'\'' {
        let len = contraction(reader, at, false);
        if len > 0 {
            return at + len;
        }
    }
    let start = at + usize::from(first == b' ');
    let (class, _) = reader.class(start);
    let group = [LETTER, NUMBER, OTHERS].into_iter().find(|group| class & group != 0);
    match group {
        Some(group) => reader.run(start, group),
        None => reader.white_space(at, false),
    }
}

/// Returns the end of the cl100k word at a position:
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,n}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`.
#[inline]
fn cl100k_word(reader: CharReader<'_>, at: usize, rule: Cl100kRule) -> usize {
    let others = ANY & !(rule.letters | NUMBER | SPACE);
    let first = reader.text[at];
    if first == b'\'' {
        let len = contraction(reader, at, true);
        if len > 0 {
            return at + len;
        }
    }
    let (class, len) = reader.class(at);
    if class & NUMBER != 0 {
        return reader.run_up_to(at, NUMBER, rule.max_digits);
    }
    let (next, _) = reader.class(at + len);
    if first != b'\r' && first != b'\n' && (class | next) & rule.letters != 0 {
        return reader.run(at + len, rule.letters);
    }
    let is_other = if first == b' ' { next & others != 0 } else { class & others != 0 };
    if is_other {
        return reader.run_of_bytes(reader.run(at + len, others), b"\r\n");
    }
    reader.white_space(at, true)
}

/// Returns the end of the cased word at a position:
/// `[^\r\n\p{L}\p{N}]?U*W+|[^\r\n\p{L}\p{N}]?U+W*|\p{N}{1,n}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`, where
/// `U` is any letter except `a-z` and `W` any letter except `A-Z`, and a contraction may follow a word.
fn cased_word(reader: CharReader<'_>, at: usize, rule: CasedRule) -> usize {
    const OTHERS: u8 = ANY & !(LETTER | NUMBER | SPACE);
    let first = reader.text[at];
    let (class, len) = reader.class(at);
    if class & NUMBER != 0 {
        return reader.run_up_to(at, NUMBER, rule.max_digits);
    }
    let is_break = first == b'\r' || first == b'\n';
    let (next, _) = reader.class(at + len);
    let letters = match (class & LETTER != 0, next & LETTER != 0) {
        (true, _) => Some(at),
        (false, true) if !is_break => Some(at + len),
        _ => None,
    };
    if let Some(letters) = letters {
        let end = cased_letters(reader, letters);
        return end + if rule.contractions { contraction(reader, end, true) } else { 0 };
    }
    let is_other = if first == b' ' { next & OTHERS != 0 } else { class & OTHERS != 0 };
    if is_other {
        return reader.run_of_bytes(reader.run(at + len, OTHERS), b"\r\n/");
    }
    reader.white_space(at, true)
}

/// Returns the end of `U*W+` or, if that does not match, of `U+`. A letter must be at `start`.
fn cased_letters(reader: CharReader<'_>, start: usize) -> usize {
    // The end of the last letter outside ASCII, which is both U and W.
    let mut after_both = None;
    let mut at = start;
    loop {
        let (class, len) = reader.class(at);
        if class & LETTER == 0 {
            // Without a small letter, the expression backtracks to the last letter that is both.
            return after_both.unwrap_or(at);
        }
        match reader.text[at] {
            b'a'..=b'z' => break,
            b'A'..=b'Z' => {}
            _ => after_both = Some(at + len),
        }
        at += len;
    }
    loop {
        let (class, len) = reader.class(at);
        if class & LETTER == 0 || reader.text[at].is_ascii_uppercase() {
            return at;
        }
        at += len;
    }
}

/// Returns the end of the cased word at a position, as Hugging Face's library and Ollama's engine in Go find it:
/// `[^\r\n\p{L}\p{N}]?U*W+|[^\r\n\p{L}\p{N}]?U+W*|\p{N}{1,n}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
/// where `U` is `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]` and `W` is `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`, and a contraction may follow a
/// word.
fn cased_word_by_classes(reader: CharReader<'_>, at: usize, rule: CasedRule) -> Option<usize> {
    const OTHERS: u8 = ANY & !(LETTER | NUMBER | SPACE);
    let first = *reader.text.get(at)?;
    let (class, len) = reader.class(at);
    let may_lead = class & (LETTER | NUMBER) == 0 && first != b'\r' && first != b'\n';
    let starts = [may_lead.then_some(at + len), Some(at)];
    let mut starts_in_order = starts.iter().flatten();
    let word = starts_in_order
        .clone()
        .find_map(|start| lower_word(reader, *start))
        .or_else(|| starts_in_order.find_map(|start| upper_word(reader, *start)));
    if let Some(end) = word {
        return Some(end + if rule.contractions { contraction(reader, end, true) } else { 0 });
    }
    if class & NUMBER != 0 {
        return Some(reader.run_up_to(at, NUMBER, rule.max_digits));
    }
    let (next, _) = reader.class(at + len);
    let is_other = if first == b' ' { next & OTHERS != 0 } else { class & OTHERS != 0 };
    if is_other {
        return Some(reader.run_of_bytes(reader.run(at + len, OTHERS), b"\r\n/"));
    }
    (class & SPACE != 0).then(|| reader.white_space(at, true))
}

/// Returns whether the character at a position is in `U` and in `W`, and its length.
fn cases_at(reader: CharReader<'_>, at: usize) -> (bool, bool, usize) {
    match reader.text.get(at) {
        None => (false, false, 0),
        Some(byte) if byte.is_ascii() => (byte.is_ascii_uppercase(), byte.is_ascii_lowercase(), 1),
        Some(_) => {
            let (code, len) = reader.code(at);
            let (is_upper, is_lower) = cases(code, reader.class(at).0);
            (is_upper, is_lower, len)
        }
    }
}

/// Returns the end of `U*W+` at a position.
fn lower_word(reader: CharReader<'_>, start: usize) -> Option<usize> {
    let (mut at, mut after_both) = (start, None);
    loop {
        match cases_at(reader, at) {
            (true, is_lower, len) => {
                at += len;
                after_both = if is_lower { Some(at) } else { after_both };
            }
            (false, true, _) => break,
            // Without a small letter, the expression backtracks to the last letter that is in both sets.
            (false, false, _) => return after_both,
        }
    }
    while let (_, true, len) = cases_at(reader, at) {
        at += len;
    }
    Some(at)
}

/// Returns the end of `U+W*` at a position, where `U*W+` does not match.
fn upper_word(reader: CharReader<'_>, start: usize) -> Option<usize> {
    let mut at = start;
    while let (true, _, len) = cases_at(reader, at) {
        at += len;
    }
    (at > start).then_some(at)
}

/// Returns the end of `(?:\r?\n)+` at a position.
fn line_breaks(text: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        match text.get(at..).unwrap_or_default() {
            [b'\n', ..] => at += 1,
            [b'\r', b'\n', ..] => at += 2,
            _ => return (at > start).then_some(at),
        }
    }
}

/// Returns the end of the DeepSeek V3 word at a position:
/// ``[!-/:-@[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``.
fn deepseek3_word(reader: CharReader<'_>, at: usize) -> Option<usize> {
    const SIGNS: u8 = PUNCTUATION | SYMBOL;
    const WORD: u8 = LETTER | MARK;
    let first = *reader.text.get(at)?;
    let rest = &reader.text[at + 1..];
    if first.is_ascii_punctuation() && rest.first().is_some_and(u8::is_ascii_alphabetic) {
        let end = rest.iter().position(|byte| !byte.is_ascii_alphabetic());
        return Some(end.map_or(reader.text.len(), |end| at + 1 + end));
    }
    let (class, len) = reader.class(at);
    let (next, _) = reader.class(at + len);
    let may_lead = class & (LETTER | SIGNS) == 0 && first != b'\r' && first != b'\n';
    if class & WORD != 0 || (may_lead && next & WORD != 0) {
        return Some(reader.run(at + len, WORD));
    }
    if class & SIGNS != 0 || (first == b' ' && next & SIGNS != 0) {
        return Some(reader.run_of_bytes(reader.run(at + len, SIGNS), b"\r\n"));
    }
    (class & SPACE != 0).then(|| reader.white_space(at, true))
}

fn in_class(reader: CharReader<'_>, at: usize, mask: u8) -> usize {
    let (class, len) = reader.class(at);
    if class & mask == 0 { 0 } else { len }
}

/// Matches a code point in sorted ranges.
///
/// White space outside ASCII is in no range: the engine replaces it by a vertical tab before it applies an expression
/// without `\p`.
fn in_ranges(reader: CharReader<'_>, at: usize, ranges: &[(u32, u32)]) -> usize {
    let (code, len) = reader.code(at);
    let near = ranges.partition_point(|(_, last)| *last < code);
    let is_in = ranges.get(near).is_some_and(|(first, _)| *first <= code);
    if is_in && in_class(reader, at, SPACE) == 0 { len } else { 0 }
}

fn in_bytes(reader: CharReader<'_>, at: usize, bytes: &[u8]) -> usize {
    usize::from(reader.text.get(at).is_some_and(|byte| bytes.contains(byte)))
}

/// `\p{L}`
pub(super) fn letters(reader: CharReader<'_>, at: usize) -> usize {
    in_class(reader, at, LETTER)
}

/// `\p{N}`
pub(super) fn numbers(reader: CharReader<'_>, at: usize) -> usize {
    in_class(reader, at, NUMBER)
}

/// `\p{P}`
pub(super) fn punctuation(reader: CharReader<'_>, at: usize) -> usize {
    in_class(reader, at, PUNCTUATION)
}

/// ``[\p{P}\$\+<=>\^~\|`]``
pub(super) fn falcon_signs(reader: CharReader<'_>, at: usize) -> usize {
    in_class(reader, at, PUNCTUATION) | in_bytes(reader, at, b"$+<=>^~|`")
}

/// `[\p{P}\$\+<=>\^~\|]`
pub(super) fn default_signs(reader: CharReader<'_>, at: usize) -> usize {
    in_class(reader, at, PUNCTUATION) | in_bytes(reader, at, b"$+<=>^~|")
}

/// `[\r\n]`
pub(super) fn breaks(reader: CharReader<'_>, at: usize) -> usize {
    in_bytes(reader, at, b"\r\n")
}

/// `\n`
pub(super) fn line_feeds(reader: CharReader<'_>, at: usize) -> usize {
    in_bytes(reader, at, b"\n")
}

/// Han and kana, which DeepSeek V3 splits off.
pub(super) fn han_and_kana(reader: CharReader<'_>, at: usize) -> usize {
    in_ranges(reader, at, &[(0x3040, 0x30ff), (0x4e00, 0x9fa5)])
}

/// Asian text by the older DeepSeek rules: U+0800 to the last Han character, and Hangul.
pub(super) fn asian(reader: CharReader<'_>, at: usize) -> usize {
    in_ranges(reader, at, &[(0x800, 0x9fa5), (0xac00, 0xd7ff)])
}

/// The signs of DeepSeek's first rule. Its second range also contains the ASCII letters.
pub(super) fn deepseek_signs(reader: CharReader<'_>, at: usize) -> usize {
    const RANGES: &[(u32, u32)] = &[
        (0x21, 0x2f),
        (0x3a, 0x7e),
        (0x2018, 0x201f),
        (0x3000, 0x3002),
        (0xff01, 0xff0f),
        (0xff1a, 0xff5e),
    ];
    in_ranges(reader, at, RANGES)
}

/// The cased letters of DeepSeek's first rule.
pub(super) fn deepseek_letters(reader: CharReader<'_>, at: usize) -> usize {
    in_ranges(reader, at, CASED_LETTERS)
}

#[rustfmt::skip]
const CASED_LETTERS: &[(u32, u32)] = &[
    (0x41, 0x5a), (0x61, 0x7a), (0xb5, 0xb5), (0xc0, 0xd6), (0xd8, 0xf6), (0xf8, 0x1ba), (0x1bc, 0x1bf),
    (0x1c4, 0x293), (0x295, 0x2af), (0x370, 0x373), (0x376, 0x376), (0x377, 0x377), (0x37b, 0x37d), (0x37f, 0x37f),
    (0x386, 0x386), (0x388, 0x38a), (0x38c, 0x38c), (0x38e, 0x3a1), (0x3a3, 0x3f5), (0x3f7, 0x481), (0x48a, 0x52f),
    (0x531, 0x556), (0x10a0, 0x10c5), (0x13a0, 0x13f5), (0x13f8, 0x13fd), (0x1c90, 0x1cba), (0x1cbd, 0x1cbf),
    (0x1d00, 0x1d2b), (0x1d6b, 0x1d77), (0x1d79, 0x1d9a), (0x1e00, 0x1f15), (0x1f18, 0x1f1d), (0x1f20, 0x1f45),
    (0x1f48, 0x1f4d), (0x1f50, 0x1f57), (0x1f59, 0x1f59), (0x1f5b, 0x1f5b), (0x1f5d, 0x1f5d), (0x1f5f, 0x1f7d),
    (0x1f80, 0x1fb4), (0x1fb6, 0x1fbc), (0x1fbe, 0x1fbe), (0x1fc2, 0x1fc4), (0x1fc6, 0x1fcc), (0x1fd0, 0x1fd3),
    (0x1fd6, 0x1fdb), (0x1fe0, 0x1fec), (0x1ff2, 0x1ff4), (0x1ff6, 0x1ffc), (0x2102, 0x2102), (0x2107, 0x2107),
    (0x210a, 0x2113), (0x2115, 0x2115), (0x2119, 0x211d), (0x2124, 0x2124), (0x2126, 0x2126), (0x2128, 0x2128),
    (0x212a, 0x212d), (0x212f, 0x2134), (0x2139, 0x2139), (0x213c, 0x213f), (0x2145, 0x2149), (0x214e, 0x214e),
    (0x2183, 0x2183), (0x2184, 0x2184), (0x2c00, 0x2c7b), (0x2c7e, 0x2ce4), (0x2ceb, 0x2cee), (0x2cf2, 0x2cf2),
    (0x2cf3, 0x2cf3), (0xa640, 0xa66d), (0xa680, 0xa69b), (0xa722, 0xa76f), (0xa771, 0xa787), (0xa78b, 0xa78e),
    (0xab70, 0xabbf), (0xfb00, 0xfb06), (0xfb13, 0xfb17), (0xff21, 0xff3a), (0xff41, 0xff5a), (0x10400, 0x1044f),
    (0x104b0, 0x104d3), (0x104d8, 0x104fb), (0x10c80, 0x10cb2), (0x10cc0, 0x10cf2), (0x118a0, 0x118df),
    (0x1e900, 0x1e943),
];
