//! Estimated token counts, for texts without a vocabulary and for template overhead without a template.
//!
//! The estimate of a text is one pass over its bytes that adds a cost per class of text.
//! Must not know messages or templates.
//!
//! **Invariant**: counting is linear and never fails; splitting a text at a line break changes the sum by at most
//! two tokens, so that sums of parts can be used as a bound.
//!
//! **Source**: the costs were fitted by least squares to Qwen2's vocabulary and then raised a little, because an
//! underestimate overflows a window while an overestimate only leaves room.
//! Measured against that vocabulary over 2 MB (two recorded agent sessions, their JSON, Python, Rust and Markdown):
//! each sum is 1.00 to 1.04 of the real count, and 96 of 100 pieces of 600 characters are 0.83 to 1.21 of it
//! (characters divided by four: sums from 0.71 to 1.10). Short samples: German 1.0, Russian 1.1, Arabic 1.1,
//! Korean 1.0, Chinese and Japanese 1.2, hexadecimal 1.1, Base64 0.8.

/// Tokens that a chat template adds to one message.
///
/// **Source**: ChatML (`<|im_start|>`, role, line break, `<|im_end|>`, line break) and the Llama 3 template add
/// five; other common templates add three to five. With a smaller value, many short messages could exceed the window.
pub(super) const MESSAGE_OVERHEAD_TOKENS: u32 = 5;

/// Tokens that a chat template adds to one tool call or tool definition: tags, JSON keys and the id. Names and
/// arguments are counted as text.
pub(super) const TOOL_OVERHEAD_TOKENS: u32 = 12;

/// The margin of an estimated count, as a divisor: a tenth. Estimates are off by a few percent, and a server whose
/// window overflows silently drops the oldest half of the conversation.
pub(crate) const ESTIMATE_MARGIN_DIVISOR: u64 = 10;

/// Tokens of one image. Vision models use from 256 (Gemma 3) to about 1,280 (Qwen2-VL at its usual limit),
/// independent of the file size. A smaller value could overflow the window.
pub(crate) const IMAGE_TOKENS: u32 = 1280;

/// Cost units per token; integer sums of sixteenths are exact.
const UNIT: u64 = 16;

/// The cost of a word, or of a part of a camelCase word, by its number of letters; a preceding space is extra.
const WORD: [u64; 13] = [0, 7, 6, 7, 9, 9, 9, 10, 10, 11, 15, 15, 20];
/// The cost of each letter beyond the table.
const WORD_MORE: u64 = 4;
/// The extra cost of a piece of one or two letters that directly follows a letter or digit. Such pieces occur in
/// base64, hashes and other text without words, for which vocabularies have no long tokens.
const GLUED: u64 = 14;
/// The cost of a word in capitals, by its number of letters.
const CAPITALS: [u64; 6] = [0, 7, 9, 13, 15, 18];
/// The cost of each capital beyond the table.
const CAPITALS_MORE: u64 = 7;
/// The cost of a digit. Qwen and Gemma use one token per digit, Llama 3 one per three digits.
const DIGIT: u64 = 17;
/// The costs in a run of ASCII punctuation: of the first sign, of one that differs from the sign before it, and of
/// one that repeats it.
const SIGN: u64 = 13;
const SIGN_OTHER: u64 = 6;
const SIGN_SAME: u64 = 1;
/// The cost of a single space or tab, which usually belongs to the next word's token.
const SPACE: u64 = 10;
/// The cost of a run of spaces or tabs: one token for the run and a share of the next word's.
const SPACES: u64 = 26;
/// The cost of each space beyond 16; vocabularies contain runs of common lengths only.
const SPACES_MORE: u64 = 1;
/// The cost of white space that contains a line break, by its length in bytes.
const BREAK: [u64; 4] = [0, 8, 12, 22];
/// The cost of a control character, which is usually a token of its own.
const CONTROL: u64 = 16;
/// The cost of an accented Latin letter, which splits the word around it.
const ACCENTED: u64 = 21;
/// The cost of a letter of two bytes: Greek, Cyrillic, Hebrew, Arabic.
const TWO_BYTES: u64 = 5;
/// The cost of a letter of an Indic, Thai or similar script.
const INDIC: u64 = 17;
/// The cost of a Han or kana character or of its punctuation.
const HAN: u64 = 12;
/// The cost of a Hangul syllable.
const HANGUL: u64 = 14;
/// The cost of another three-byte character: arrows, box drawing, dingbats.
const SYMBOL: u64 = 12;
/// The cost of a four-byte character, usually an emoji or a rare Han character.
const FOUR_BYTES: u64 = 28;

/// Estimates the tokens of a text; 0 only for the empty text.
pub(super) fn count(text: &str) -> u32 {
    let bytes = text.as_bytes();
    let mut sixteenths = 0;
    let mut at = 0;
    while let Some(&first) = bytes.get(at) {
        let (cost, len) = match first {
            b'a'..=b'z' | b'A'..=b'Z' => {
                let (cost, len) = word(&bytes[at..]);
                let glued = len <= 2 && at > 0 && bytes[at - 1].is_ascii_alphanumeric();
                (if glued { cost + GLUED } else { cost }, len)
            }
            b'0'..=b'9' => (DIGIT, 1),
            b' ' | b'\t' | b'\n' | b'\r' => blank(&bytes[at..]),
            b'!'..=b'~' => signs(&bytes[at..]),
            0..=0x7f => (CONTROL, 1),
            _ => wide(first, bytes.get(at + 1).copied().unwrap_or_default()),
        };
        sixteenths += cost;
        at += len;
    }
    u32::try_from(sixteenths.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

/// Returns the length of the longest prefix whose bytes satisfy `is`.
fn run(bytes: &[u8], is: impl Fn(&u8) -> bool) -> usize {
    bytes.iter().position(|byte| !is(byte)).unwrap_or(bytes.len())
}

/// Looks up the cost of a length; beyond the table each step costs `more`.
fn cost_of(table: &[u64], more: u64, len: usize) -> u64 {
    let last = table.len() - 1;
    table[len.min(last)] + more * len.saturating_sub(last) as u64
}

/// Returns cost and length of a word piece: capitals, or at most one capital and small letters. `HTMLParser` is
/// `HTML` and `Parser`.
fn word(bytes: &[u8]) -> (u64, usize) {
    let capitals = run(bytes, u8::is_ascii_uppercase);
    let small = run(&bytes[capitals..], u8::is_ascii_lowercase);
    match (capitals, small) {
        (2.., 0) => (cost_of(&CAPITALS, CAPITALS_MORE, capitals), capitals),
        (2.., _) => (cost_of(&CAPITALS, CAPITALS_MORE, capitals - 1), capitals - 1),
        _ => (cost_of(&WORD, WORD_MORE, capitals + small), capitals + small),
    }
}

/// Returns cost and length of a run of white space. A run with a line break is a token of its own; other runs are
/// usually part of the next word's token.
fn blank(bytes: &[u8]) -> (u64, usize) {
    let len = run(bytes, |byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    let cost = match (bytes[..len].contains(&b'\n'), len) {
        (true, _) => cost_of(&BREAK, 0, len),
        (false, 1) => SPACE,
        (false, _) => SPACES,
    };
    (cost + SPACES_MORE * len.saturating_sub(16) as u64, len)
}

/// Returns cost and length of a run of punctuation and operators. Runs share tokens, above all lines such as `----`.
fn signs(bytes: &[u8]) -> (u64, usize) {
    let len = run(bytes, u8::is_ascii_punctuation);
    let pairs = bytes[..len].windows(2);
    let cost =
        pairs.fold(SIGN, |sum, pair| sum + if pair[0] == pair[1] { SIGN_SAME } else { SIGN_OTHER });
    (cost, len)
}

/// Returns cost and length of a character outside ASCII, by its first two bytes.
const fn wide(first: u8, second: u8) -> (u64, usize) {
    match first {
        // U+0080..U+024F; then U+0250..U+07FF.
        0xc2..=0xc8 => (ACCENTED, 2),
        0xc9 => (if second < 0x90 { ACCENTED } else { TWO_BYTES }, 2),
        0xca..=0xdf => (TWO_BYTES, 2),
        // U+0800..U+1FFF.
        0xe0 | 0xe1 => (INDIC, 3),
        0xe2 => (SYMBOL, 3),
        // U+3000..U+9FFF, U+AC00..U+D7AF, U+FF00..U+FFEF.
        0xe3..=0xe9 | 0xef => (HAN, 3),
        0xea => (if second < 0xb0 { INDIC } else { HANGUL }, 3),
        0xeb..=0xed => (HANGUL, 3),
        0xee => (SYMBOL, 3),
        0xf0..=0xf7 => (FOUR_BYTES, 4),
        _ => (SYMBOL, 1),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn estimate_is_near_the_count_of_qwen2() {
        let check = |text: &str, real: u32| {
            let estimate = f64::from(count(text));
            let ratio = estimate / f64::from(real);
            assert!((0.80..=1.35).contains(&ratio), "{text:?}: {estimate} for {real}");
        };
        check(
            "The daemon keeps every session in an append-only log, so nothing that was acknowledged is ever lost.",
            20,
        );
        check(
            "fn main() -> Result<(), Error> {\n    let config = Config::load(&home)?;\n    println!(\"{config:?}\");\n}\n",
            26,
        );
        check(
            "{\"seq\":3,\"parent\":2,\"at\":\"2026-01-27T10:00:00.000Z\",\"type\":\"message\",\"tokens\":12}",
            45,
        );
        check("aGVsbG8gd29ybGQsIHRoaXMgaXMgYmFzZTY0IHRleHQgb2Ygc29tZSBsZW5ndGg=", 46);
        check("程序把每次对话保存在日志里，从不丢失任何一个字。", 16);
        check("このプログラムはすべての会話を記録します。", 12);
        check(
            "Программа сохраняет каждую беседу в журнале и никогда не теряет ни одного слова.",
            23,
        );
        check("Größere Änderungen müssen überprüft werden, bevor sie veröffentlicht werden.", 18);
        check("getUserByIdAndName(parseHTTPResponse, max_retry_count)", 12);
        check("1234567890 and 0x7fffe8a0c3d1", 24);
        assert_eq!(count(""), 0);
        assert_eq!(count("a"), 1);
    }

    proptest! {
        #[test]
        fn parts_split_at_line_breaks_bound_the_whole(a in ".{0,80}", b in "\\PC{0,80}") {
            let whole = count(&format!("{a}\n\n{b}"));
            prop_assert!(whole <= count(&a) + count(&b) + 1);
            prop_assert!(count(&a) + count(&b) <= whole + 2);
        }

        #[test]
        fn appended_character_changes_the_estimate_little(text in any::<String>(), more in any::<char>()) {
            let longer = count(&format!("{text}{more}"));
            prop_assert!(longer + 2 >= count(&text));
            prop_assert!((longer as usize) <= count(&text) as usize + 3);
        }
    }
}
