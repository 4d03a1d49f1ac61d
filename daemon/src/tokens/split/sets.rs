//! Sets of characters that split rules spell out as ranges.
//!
//! Must not know vocabularies. White space outside of ASCII is in none of them: the engine replaces it by a vertical
//! tab before it asks an expression without `\p`.
//!
//! **Source**: the expressions in llama.cpp's `llama-vocab.cpp`.

use super::class::{LETTER, NUMBER, PUNCTUATION, SPACE, Scan};

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
