//! Scanners of the rules that cut text into words in one pass: GPT-2's, the family of cl100k (Llama 3, Qwen), the
//! family that tells capitals from small letters (GPT-4o, Tekken), and DeepSeek V3's last step.
//!
//! Must not know vocabularies. **Invariant**: a scanner answers with a position beyond the one that it was given,
//! and looks at a character a bounded number of times, so that a piece costs linear time.
//!
//! **Source**: `unicode_regex_split_custom_*` and the expressions in llama.cpp's `llama-vocab.cpp`.

use super::class::{ANY, LETTER, MARK, NUMBER, PUNCTUATION, SPACE, SYMBOL, Scan};

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
