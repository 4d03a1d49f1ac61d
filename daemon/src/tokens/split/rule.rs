//! The steps that split rules consist of: word scanners and character sets.
//!
//! Each step splits every piece that the step before it produced, and sees nothing beyond the ends of that piece.
//! Text that an expression does not match is a piece of its own.
//! Must not know which name stands for which rule.
//!
//! **Invariants**: the words of a text, concatenated, are the text; the cost is linear, because a scanner always
//! advances and looks at each character a bounded number of times.
//!
//! **Source**: `llm_tokenizer_bpe` in llama.cpp's `llama-vocab.cpp`, and `unicode_regex_split` with the
//! `unicode_regex_split_custom_*` functions in its `unicode.cpp`.

use super::class::{ANY, LETTER, MARK, NUMBER, PUNCTUATION, SPACE, SYMBOL, Scan};

/// How one family of vocabularies cuts text into words.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Rule(pub(super) &'static [Step]);

impl Rule {
    /// Gives every word of a text, in order, as its first byte and the one after its last.
    #[inline]
    pub(in super::super) fn split(self, text: &[u8], emit: &mut impl FnMut(usize, usize)) {
        let scan = Scan::new(text);
        // The common rules have one step, which is worth a loop of its own for each.
        match self.0 {
            [Step::Gpt2] => each(scan, |at| gpt2(scan, at), emit),
            [Step::Words(rule)] => each(scan, |at| words(scan, at, *rule), emit),
            steps => cut_all(steps, text, 0, emit),
        }
    }
}

/// One pass over the text.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Words as GPT-2 cuts them.
    Gpt2,
    /// Words as cl100k and its descendants cut them.
    Words(Words),
    /// Words in which a capital begins a new one.
    Cased(Cased),
    /// The last step of DeepSeek V3.
    DeepSeek3,
    /// Runs of a set, at most so many characters each.
    Runs(Set, usize),
    /// Groups of exactly three ASCII digits.
    Triples,
    /// Runs of a set, each with one white space before it.
    AfterSpace(Set),
    /// The white space at the end: `\s+$`.
    TrailingSpace,
}

/// Cuts a text by a scanner that always finds a word.
#[inline]
pub(super) fn each(
    scan: Scan<'_>,
    end_of: impl Fn(usize) -> usize,
    emit: &mut impl FnMut(usize, usize),
) {
    let mut at = 0;
    while at < scan.text.len() {
        let end = end_of(at);
        emit(at, end);
        at = end;
    }
}
/// Cuts a piece by all steps; `offset` is where it lies in the text.
pub(super) fn cut_all(
    steps: &[Step],
    piece: &[u8],
    offset: usize,
    emit: &mut dyn FnMut(usize, usize),
) {
    match steps {
        [] => emit(offset, offset + piece.len()),
        [last] => last.cut(piece, &mut |start, end| emit(offset + start, offset + end)),
        [step, rest @ ..] => step.cut(piece, &mut |start, end| {
            cut_all(rest, &piece[start..end], offset + start, emit);
        }),
    }
}

impl Step {
    fn cut(self, piece: &[u8], emit: &mut dyn FnMut(usize, usize)) {
        let scan = Scan::new(piece);
        let mut emit = |start: usize, end: usize| emit(start, end);
        match self {
            Self::Gpt2 => each(scan, |at| gpt2(scan, at), &mut emit),
            Self::Words(rule) => each(scan, |at| words(scan, at, rule), &mut emit),
            Self::Cased(rule) => each(scan, |at| cased(scan, at, rule), &mut emit),
            Self::DeepSeek3 => matches(scan, |at| deepseek3(scan, at), &mut emit),
            Self::Runs(set, limit) => matches(scan, |at| run(scan, at, set, limit), &mut emit),
            Self::Triples => {
                matches(scan, |at| run(scan, at, digits, 3).filter(|end| end - at == 3), &mut emit)
            }
            Self::AfterSpace(set) => matches(scan, |at| after_space(scan, at, set), &mut emit),
            Self::TrailingSpace => {
                let end = trailing_space(scan);
                for (start, end) in [(0, end), (end, piece.len())] {
                    if start < end {
                        emit(start, end);
                    }
                }
            }
        }
    }
}

/// Cuts a text by an expression: what lies between two matches is a piece too.
fn matches(
    scan: Scan<'_>,
    end_of: impl Fn(usize) -> Option<usize>,
    emit: &mut impl FnMut(usize, usize),
) {
    let (mut gap, mut at) = (0, 0);
    while at < scan.text.len() {
        let Some(end) = end_of(at) else {
            at += scan.class(at).1;
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

fn run(scan: Scan<'_>, at: usize, set: Set, limit: usize) -> Option<usize> {
    let mut end = at;
    for _ in 0..limit {
        let len = set(scan, end);
        if len == 0 {
            break;
        }
        end += len;
    }
    (end > at).then_some(end)
}

fn after_space(scan: Scan<'_>, at: usize, set: Set) -> Option<usize> {
    let (class, len) = scan.class(at);
    let behind = (class & SPACE != 0).then(|| run(scan, at + len, set, usize::MAX)).flatten();
    behind.or_else(|| run(scan, at, set, usize::MAX))
}

/// Where the white space at the end begins.
fn trailing_space(scan: Scan<'_>) -> usize {
    let mut begin = scan.text.len();
    while begin > 0 {
        let before = scan.text[..begin].iter().rposition(|byte| byte & 0xc0 != 0x80);
        match before {
            Some(at) if scan.class(at).0 & SPACE != 0 => begin = at,
            _ => break,
        }
    }
    begin
}

/// What differs between the rules that descend from cl100k.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    /// What a word is made of: letters, with Qwen 3.5 their marks too.
    pub(super) letters: u8,
    /// The most digits that stay together.
    pub(super) digits: usize,
}

/// What differs between the rules that tell capitals from small letters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cased {
    /// The most digits that stay together.
    pub(super) digits: usize,
    /// Whether `'s` and the like belong to the word before them.
    pub(super) contractions: bool,
}

/// The length of an English contraction at a position, or 0.
fn contraction(scan: Scan<'_>, at: usize, any_case: bool) -> usize {
    let fold = |offset: usize| {
        let byte = scan.text.get(at + offset).copied().unwrap_or_default();
        if any_case { byte.to_ascii_lowercase() } else { byte }
    };
    if scan.text.get(at) != Some(&b'\'') {
        return 0;
    }
    match (fold(1), fold(2)) {
        (b's' | b't' | b'm' | b'd', _) => 2,
        (b'r' | b'v', b'e') | (b'l', b'l') => 3,
        _ => 0,
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
#[inline]
pub(super) fn gpt2(scan: Scan<'_>, at: usize) -> usize {
    const OTHERS: u8 = ANY & !(LETTER | NUMBER | SPACE);
    let first = scan.text[at];
    if first == b'\'' {
        let len = contraction(scan, at, false);
        if len > 0 {
            return at + len;
        }
    }
    let start = at + usize::from(first == b' ');
    let (class, _) = scan.class(start);
    let group = [LETTER, NUMBER, OTHERS].into_iter().find(|group| class & group != 0);
    match group {
        Some(group) => scan.run(start, group),
        None => scan.blank(at, false),
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
#[inline]
pub(super) fn words(scan: Scan<'_>, at: usize, rule: Words) -> usize {
    let others = ANY & !(rule.letters | NUMBER | SPACE);
    let first = scan.text[at];
    if first == b'\'' {
        let len = contraction(scan, at, true);
        if len > 0 {
            return at + len;
        }
    }
    let (class, len) = scan.class(at);
    if class & NUMBER != 0 {
        return scan.run_up_to(at, NUMBER, rule.digits);
    }
    let (next, _) = scan.class(at + len);
    if first != b'\r' && first != b'\n' && (class | next) & rule.letters != 0 {
        return scan.run(at + len, rule.letters);
    }
    let is_other = if first == b' ' { next & others != 0 } else { class & others != 0 };
    if is_other {
        return scan.bytes(scan.run(at + len, others), b"\r\n");
    }
    scan.blank(at, true)
}

/// `[^\r\n\p{L}\p{N}]?U*W+|[^\r\n\p{L}\p{N}]?U+W*|\p{N}{1,n}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`, where
/// `U` is any letter but `a-z` and `W` any letter but `A-Z`; a contraction may follow a word.
pub(super) fn cased(scan: Scan<'_>, at: usize, rule: Cased) -> usize {
    const OTHERS: u8 = ANY & !(LETTER | NUMBER | SPACE);
    let first = scan.text[at];
    let (class, len) = scan.class(at);
    if class & NUMBER != 0 {
        return scan.run_up_to(at, NUMBER, rule.digits);
    }
    let is_break = first == b'\r' || first == b'\n';
    let (next, _) = scan.class(at + len);
    let letters = match (class & LETTER != 0, next & LETTER != 0) {
        (true, _) => Some(at),
        (false, true) if !is_break => Some(at + len),
        _ => None,
    };
    if let Some(letters) = letters {
        let end = cased_word(scan, letters);
        return end + if rule.contractions { contraction(scan, end, true) } else { 0 };
    }
    let is_other = if first == b' ' { next & OTHERS != 0 } else { class & OTHERS != 0 };
    if is_other {
        return scan.bytes(scan.run(at + len, OTHERS), b"\r\n/");
    }
    scan.blank(at, true)
}

/// The end of `U*W+`, or where that does not match of `U+`; there is a letter at the position.
fn cased_word(scan: Scan<'_>, start: usize) -> usize {
    // What is neither: a letter outside of ASCII, which is both U and W.
    let mut after_both = None;
    let mut at = start;
    loop {
        let (class, len) = scan.class(at);
        if class & LETTER == 0 {
            // No small letter ends the word, so the expression goes back to the last letter that is both.
            return after_both.unwrap_or(at);
        }
        match scan.text[at] {
            b'a'..=b'z' => break,
            b'A'..=b'Z' => {}
            _ => after_both = Some(at + len),
        }
        at += len;
    }
    loop {
        let (class, len) = scan.class(at);
        if class & LETTER == 0 || scan.text[at].is_ascii_uppercase() {
            return at;
        }
        at += len;
    }
}

/// ``[!-/:-@[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+``
pub(super) fn deepseek3(scan: Scan<'_>, at: usize) -> Option<usize> {
    const SIGNS: u8 = PUNCTUATION | SYMBOL;
    const WORD: u8 = LETTER | MARK;
    let first = *scan.text.get(at)?;
    let rest = &scan.text[at + 1..];
    if first.is_ascii_punctuation() && rest.first().is_some_and(u8::is_ascii_alphabetic) {
        let end = rest.iter().position(|byte| !byte.is_ascii_alphabetic());
        return Some(end.map_or(scan.text.len(), |end| at + 1 + end));
    }
    let (class, len) = scan.class(at);
    let (next, _) = scan.class(at + len);
    let may_lead = class & (LETTER | SIGNS) == 0 && first != b'\r' && first != b'\n';
    if class & WORD != 0 || (may_lead && next & WORD != 0) {
        return Some(scan.run(at + len, WORD));
    }
    if class & SIGNS != 0 || (first == b' ' && next & SIGNS != 0) {
        return Some(scan.bytes(scan.run(at + len, SIGNS), b"\r\n"));
    }
    (class & SPACE != 0).then(|| scan.blank(at, true))
}

/// The length in bytes of the character at a position when it belongs to the set, else 0.
pub(super) type Set = fn(Scan<'_>, usize) -> usize;

fn in_class(scan: Scan<'_>, at: usize, mask: u8) -> usize {
    let (class, len) = scan.class(at);
    if class & mask == 0 { 0 } else { len }
}

fn in_ranges(scan: Scan<'_>, at: usize, ranges: &[(u32, u32)]) -> usize {
    let (code, len) = scan.code(at);
    let near = ranges.partition_point(|(_, last)| *last < code);
    let is_in = ranges.get(near).is_some_and(|(first, _)| *first <= code);
    if is_in && in_class(scan, at, SPACE) == 0 { len } else { 0 }
}

fn in_bytes(scan: Scan<'_>, at: usize, bytes: &[u8]) -> usize {
    usize::from(scan.text.get(at).is_some_and(|byte| bytes.contains(byte)))
}

/// `\p{L}`
pub(super) fn letters(scan: Scan<'_>, at: usize) -> usize {
    in_class(scan, at, LETTER)
}

/// `\p{N}`
pub(super) fn numbers(scan: Scan<'_>, at: usize) -> usize {
    in_class(scan, at, NUMBER)
}

/// `\p{P}`
pub(super) fn punctuation(scan: Scan<'_>, at: usize) -> usize {
    in_class(scan, at, PUNCTUATION)
}

/// ``[\p{P}\$\+<=>\^~\|`]``
pub(super) fn falcon_signs(scan: Scan<'_>, at: usize) -> usize {
    in_class(scan, at, PUNCTUATION) | in_bytes(scan, at, b"$+<=>^~|`")
}

/// `[\p{P}\$\+<=>\^~\|]`
pub(super) fn default_signs(scan: Scan<'_>, at: usize) -> usize {
    in_class(scan, at, PUNCTUATION) | in_bytes(scan, at, b"$+<=>^~|")
}

/// `[\r\n]`
pub(super) fn breaks(scan: Scan<'_>, at: usize) -> usize {
    in_bytes(scan, at, b"\r\n")
}

/// `\n`
pub(super) fn line_feeds(scan: Scan<'_>, at: usize) -> usize {
    in_bytes(scan, at, b"\n")
}

/// `[0-9]`
pub(super) fn digits(scan: Scan<'_>, at: usize) -> usize {
    usize::from(scan.text.get(at).is_some_and(u8::is_ascii_digit))
}

/// Han and kana, as DeepSeek V3 splits them off.
pub(super) fn han_and_kana(scan: Scan<'_>, at: usize) -> usize {
    in_ranges(scan, at, &[(0x3040, 0x30ff), (0x4e00, 0x9fa5)])
}

/// What the older DeepSeek rules take for Asian text: everything from U+0800 to the last Han, and Hangul.
pub(super) fn asian(scan: Scan<'_>, at: usize) -> usize {
    in_ranges(scan, at, &[(0x800, 0x9fa5), (0xac00, 0xd7ff)])
}

/// The signs of DeepSeek's first rule; the second range holds the ASCII letters too.
pub(super) fn deepseek_signs(scan: Scan<'_>, at: usize) -> usize {
    const RANGES: &[(u32, u32)] = &[
        (0x21, 0x2f),
        (0x3a, 0x7e),
        (0x2018, 0x201f),
        (0x3000, 0x3002),
        (0xff01, 0xff0f),
        (0xff1a, 0xff5e),
    ];
    in_ranges(scan, at, RANGES)
}

/// The cased letters of DeepSeek's first rule.
pub(super) fn deepseek_letters(scan: Scan<'_>, at: usize) -> usize {
    in_ranges(scan, at, CASED_LETTERS)
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
