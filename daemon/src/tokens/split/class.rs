//! The character classes of split rules, and the reader through which scanners see a text.
//!
//! Must not know rules or vocabularies.
//!
//! **Invariant**: the class of a character is exactly one bit, so that "one of" and "none of" are masks; the class 0
//! means the end of the text.
//!
//! **Source**: llama.cpp's `unicode-data.cpp`, which is Unicode 15.1. The general categories come from the crate
//! `unicode-general-category` (Unicode 16, as Hugging Face's library), and [`ADDED_IN_16`] lists its additions. Compared
//! over all code points, nothing else differs, and `char::is_whitespace` equals the engine's white space.

use std::sync::LazyLock;

use unicode_general_category::{GeneralCategory as Category, get_general_category};

/// `\p{L}`.
pub(super) const LETTER: u8 = 1;
/// `\p{N}`.
pub(super) const NUMBER: u8 = 2;
/// White space of any category.
pub(super) const SPACE: u8 = 4;
/// `\p{P}`.
pub(super) const PUNCTUATION: u8 = 8;
/// `\p{S}`.
pub(super) const SYMBOL: u8 = 16;
/// `\p{M}`.
pub(super) const MARK: u8 = 32;
/// All other characters: controls, formats, private use, unassigned.
const OTHER: u8 = 64;
/// Every class.
pub(super) const ANY: u8 = 127;

/// The code points that Unicode 16 assigned; in the engine's tables they are unassigned.
#[rustfmt::skip]
const ADDED_IN_16: &[(u32, u32)] = &[
    (0x897, 0x897), (0x1b4e, 0x1b4f), (0x1b7f, 0x1b7f), (0x1c89, 0x1c8a), (0x2427, 0x2429), (0x31e4, 0x31e5),
    (0xa7cb, 0xa7cd), (0xa7da, 0xa7dc), (0x105c0, 0x105f3), (0x10d40, 0x10d65), (0x10d69, 0x10d85),
    (0x10d8e, 0x10d8f), (0x10ec2, 0x10ec4), (0x10efc, 0x10efc), (0x11380, 0x113e2), (0x116d0, 0x116e3),
    (0x11bc0, 0x11be1), (0x11bf0, 0x11bf9), (0x11f5a, 0x11f5a), (0x13460, 0x143fa), (0x16100, 0x16139),
    (0x16d40, 0x16d79), (0x18cff, 0x18cff), (0x1cc00, 0x1ccf9), (0x1cd00, 0x1ceb3), (0x1e5d0, 0x1e5fa),
    (0x1e5ff, 0x1e5ff), (0x1f8b2, 0x1f8bb), (0x1f8c0, 0x1f8c1), (0x1fa89, 0x1fa89), (0x1fa8f, 0x1fa8f),
    (0x1fabe, 0x1fabe), (0x1fac6, 0x1fac6), (0x1fadc, 0x1fadc), (0x1fadf, 0x1fadf), (0x1fae9, 0x1fae9),
    (0x1fbcb, 0x1fbef),
];

/// The tables by which an engine knows characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CharTables {
    /// Unicode 15.1, as in llama.cpp.
    LlamaCpp,
    /// Unicode 15.0, where only space, tab, line feed, form feed and carriage return are white space, as in Go.
    Go,
    /// Unicode 16, where `ſ` is a small `S`, as in Hugging Face's library.
    HuggingFace,
}

const ASCII: [u8; 128] = ascii_classes(b'\x0b');
/// The classes if a vertical tab is no white space.
const ASCII_WITHOUT_VT: [u8; 128] = ascii_classes(0xff);

/// Returns the classes of ASCII, where `vertical_tab` is white space.
const fn ascii_classes(vertical_tab: u8) -> [u8; 128] {
    let mut classes = [OTHER; 128];
    let mut byte = 0;
    while byte < 128_u8 {
        classes[byte as usize] = match byte {
            b'a'..=b'z' | b'A'..=b'Z' => LETTER,
            b'0'..=b'9' => NUMBER,
            b' ' | b'\t' | b'\n' | b'\x0c' | b'\r' => SPACE,
            _ if byte == vertical_tab => SPACE,
            b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'`' | b'|' | b'~' => SYMBOL,
            b'!'..=b'~' => PUNCTUATION,
            _ => OTHER,
        };
        byte += 1;
    }
    classes
}

/// Number of code points in a block of the table.
const BLOCK: usize = 256;

/// The classes of all code points. Equal blocks are stored once.
struct ClassTable {
    block_of: Vec<u16>,
    classes: Vec<u8>,
}

static TABLE: LazyLock<ClassTable> = LazyLock::new(|| ClassTable::new(class_of));
/// The classes for [`CharTables::HuggingFace`].
static TABLE_OF_16: LazyLock<ClassTable> = LazyLock::new(|| ClassTable::new(class_in_16));
/// The classes for [`CharTables::Go`].
static TABLE_OF_GO: LazyLock<ClassTable> = LazyLock::new(|| ClassTable::new(class_in_go));

impl ClassTable {
    fn new(class_of: fn(u32) -> u8) -> Self {
        let mut table = Self { block_of: Vec::new(), classes: Vec::new() };
        for first in (0..=u32::from(char::MAX)).step_by(BLOCK) {
            let block: Vec<u8> = (first..first + 256).map(class_of).collect();
            let known = table.classes.chunks(BLOCK).position(|other| other == block);
            let at = known.unwrap_or_else(|| {
                table.classes.extend(&block);
                table.classes.len() / BLOCK - 1
            });
            table.block_of.push(u16::try_from(at).unwrap_or(0));
        }
        table
    }

    fn class(&self, code: u32) -> u8 {
        let block = self.block_of.get(code as usize / BLOCK).copied().unwrap_or_default();
        self.classes[usize::from(block) * BLOCK + code as usize % BLOCK]
    }
}

/// The planes without assigned code points. **Source**: Unicode 15.
const UNASSIGNED: std::ops::Range<u32> = 0x3_2400..0xe_0000;
/// The last assigned code point before the private use planes. **Source**: Unicode 15.
const LAST_ASSIGNED: u32 = 0xe_01ef;

/// Returns the class of a code point in Unicode 15.1.
fn class_of(code: u32) -> u8 {
    let near = ADDED_IN_16.partition_point(|(_, last)| *last < code);
    if ADDED_IN_16.get(near).is_some_and(|(first, _)| *first <= code) {
        return OTHER;
    }
    class_in_16(code)
}

/// Returns the class of a code point, from the categories of the crate.
fn class_in_16(code: u32) -> u8 {
    // Most code points are unassigned, and a lookup in the crate's table is slow in unoptimized builds.
    if UNASSIGNED.contains(&code) || code > LAST_ASSIGNED {
        return OTHER;
    }
    let Some(char) = char::from_u32(code) else { return OTHER };
    if char.is_whitespace() {
        return SPACE;
    }
    match get_general_category(char) {
        Category::UppercaseLetter
        | Category::LowercaseLetter
        | Category::TitlecaseLetter
        | Category::ModifierLetter
        | Category::OtherLetter => LETTER,
        Category::DecimalNumber | Category::LetterNumber | Category::OtherNumber => NUMBER,
        Category::NonspacingMark | Category::SpacingMark | Category::EnclosingMark => MARK,
        Category::ConnectorPunctuation
        | Category::DashPunctuation
        | Category::OpenPunctuation
        | Category::ClosePunctuation
        | Category::InitialPunctuation
        | Category::FinalPunctuation
        | Category::OtherPunctuation => PUNCTUATION,
        Category::MathSymbol
        | Category::CurrencySymbol
        | Category::ModifierSymbol
        | Category::OtherSymbol => SYMBOL,
        _ => OTHER,
    }
}

/// Returns the class of a code point for Go's tables, which are Unicode 15.0, and its white space.
fn class_in_go(code: u32) -> u8 {
    // The code points that Unicode 15.1 assigned.
    const ADDED_IN_15_1: [(u32, u32); 3] =
        [(0x2ffc, 0x2fff), (0x31ef, 0x31ef), (0x2_ebf0, 0x2_ee5d)];
    match class_of(code) {
        SPACE if !matches!(code, 0x20 | 0x09 | 0x0a | 0x0c | 0x0d) => OTHER,
        _ if ADDED_IN_15_1.iter().any(|(first, last)| (*first..=*last).contains(&code)) => OTHER,
        class => class,
    }
}

/// Returns whether a letter or mark of a class may be in the upper part and in the lower part of a cased word: `\p{Lu}`,
/// `\p{Lt}`, `\p{Lm}`, `\p{Lo}` and `\p{M}`, or `\p{Ll}` instead of `\p{Lu}` and `\p{Lt}`.
pub(super) fn cases(code: u32, class: u8) -> (bool, bool) {
    match char::from_u32(code).map(get_general_category) {
        Some(Category::UppercaseLetter | Category::TitlecaseLetter) => (true, false),
        Some(Category::LowercaseLetter) => (false, true),
        Some(_) if class & (LETTER | MARK) != 0 => (true, true),
        _ => (false, false),
    }
}

/// Reads the characters of one piece of text. A rule sees nothing outside of the piece.
#[derive(Clone, Copy)]
pub(super) struct CharReader<'t> {
    pub(super) text: &'t [u8],
    ascii: &'static [u8; 128],
    table: &'static ClassTable,
    /// Set if `ſ` is a small `S` where case does not matter.
    pub(super) folds_long_s: bool,
}

impl<'t> CharReader<'t> {
    /// Creates a reader of UTF-8 text. Invalid bytes have an arbitrary class, and never cause a panic.
    pub(super) fn new(text: &'t [u8], tables: CharTables) -> Self {
        let (ascii, table) = match tables {
            CharTables::LlamaCpp => (&ASCII, &TABLE),
            CharTables::Go => (&ASCII_WITHOUT_VT, &TABLE_OF_GO),
            CharTables::HuggingFace => (&ASCII, &TABLE_OF_16),
        };
        Self { text, ascii, table, folds_long_s: tables == CharTables::HuggingFace }
    }

    /// Returns the class and the length in bytes of the character at a position; (0, 0) at the end.
    #[inline]
    pub(super) fn class(self, at: usize) -> (u8, usize) {
        match self.text.get(at) {
            None => (0, 0),
            Some(&byte) if byte < 0x80 => (self.ascii[usize::from(byte)], 1),
            Some(_) => self.wide(at),
        }
    }

    fn wide(self, at: usize) -> (u8, usize) {
        let (code, len) = self.code(at);
        (self.table.class(code), len)
    }

    /// Returns the code point at a position and its length in bytes; (0, 0) at the end.
    pub(super) fn code(self, at: usize) -> (u32, usize) {
        let byte = |offset: usize| u32::from(self.text.get(at + offset).copied().unwrap_or(0x80));
        let more = |offset: usize| byte(offset) & 0x3f;
        let Some(&first) = self.text.get(at) else { return (0, 0) };
        let (code, len) = match first {
            0..0xc0 => (u32::from(first), 1),
            0xc0..0xe0 => ((byte(0) & 0x1f) << 6 | more(1), 2),
            0xe0..0xf0 => ((byte(0) & 0x0f) << 12 | more(1) << 6 | more(2), 3),
            0xf0.. => ((byte(0) & 0x07) << 18 | more(1) << 12 | more(2) << 6 | more(3), 4),
        };
        (code, len.min(self.text.len() - at))
    }

    /// Returns the end of the longest run of characters of the classes in `mask`.
    #[inline]
    pub(super) fn run(self, mut at: usize, mask: u8) -> usize {
        loop {
            while let Some(&byte) = self.text.get(at)
                && byte < 0x80
            {
                if self.ascii[usize::from(byte)] & mask == 0 {
                    return at;
                }
                at += 1;
            }
            let (class, len) = self.class(at);
            if class & mask == 0 {
                return at;
            }
            at += len;
        }
    }

    /// Returns the end of a run of at most `limit` characters of the classes in `mask`.
    pub(super) fn run_up_to(self, mut at: usize, mask: u8, limit: usize) -> usize {
        for _ in 0..limit {
            let (class, len) = self.class(at);
            if class & mask == 0 {
                break;
            }
            at += len;
        }
        at
    }

    /// Returns the end of the longest run of the bytes in `set`.
    pub(super) fn run_of_bytes(self, at: usize, set: &[u8]) -> usize {
        let rest = self.text.get(at..).unwrap_or_default();
        at + rest.iter().position(|byte| !set.contains(byte)).unwrap_or(rest.len())
    }

    /// Returns the end of the white space at a position: `\s*[\r\n]+|\s+(?!\S)|\s+`, or without `ends_at_break`
    /// `\s+(?!\S)|\s+`.
    pub(super) fn white_space(self, at: usize, ends_at_break: bool) -> usize {
        let end = self.run(at, SPACE);
        let run = &self.text[at..end];
        if ends_at_break && let Some(last) = memchr::memrchr2(b'\n', b'\r', run) {
            return at + last + 1;
        }
        if end == self.text.len() {
            return end;
        }
        // The last character of the run belongs to the next word, unless it is the only one.
        let is_char_start = |byte: &u8| byte & 0xc0 != 0x80;
        match run.iter().rposition(is_char_start) {
            Some(last) if last > 0 => at + last,
            _ => end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_unicode_15() {
        let count = |class: u8| {
            (0..=u32::from(char::MAX)).filter(|code| TABLE.class(*code) == class).count()
        };
        // Counted over llama.cpp's own table.
        assert_eq!(
            [LETTER, NUMBER, SPACE, PUNCTUATION, SYMBOL, MARK].map(count),
            [136_726, 1_831, 25, 842, 7_775, 2_450]
        );
    }

    #[test]
    fn ascii_classes_equal_the_table() {
        for byte in 0..128_u8 {
            let code = u32::from(byte);
            assert_eq!(ASCII[usize::from(byte)], TABLE.class(code), "{byte:#x}");
            let in_go = ASCII_WITHOUT_VT[usize::from(byte)];
            assert_eq!(in_go, TABLE_OF_GO.class(code), "{byte:#x}");
        }
    }

    #[test]
    fn invalid_bytes_are_read_to_the_end() {
        let reader = CharReader::new(&[0xf0, 0x9f], CharTables::LlamaCpp);
        assert_eq!(reader.class(0).1, 2);
        assert_eq!(reader.run(0, ANY), 2);
    }
}
