//! Text to index tokens, in the same way for text that is indexed, searched and highlighted.
//!
//! FTS5 splits its input with the `ascii` tokenizer, which joins ASCII letters, digits and every byte above 127 and
//! drops all other bytes. Each token made here must be exactly one token there, so punctuation inside a token is
//! written as a C1 control character ([`UNDERSCORE`], [`DOT`]): two bytes in UTF-8, and never part of a word, because
//! control characters are not alphanumeric. [`PRIVATE`] begins the private terms of a document (session, project,
//! role) and [`STEM`] its stems, which no text can contain for the same reason.
//!
//! The rules:
//! - a word is a run of letters, digits and `_`, in lower case;
//! - a word with inner structure (`foo_bar`, `camelCase`, `HTTPServer2`) gives itself, its parts, and each two parts
//!   in a row as one word (`username` for `getUserName` and `user_name`), by which a part of several words is found;
//! - a file name (`main.rs`) gives its words and itself, for the extensions in [`EXTENSIONS`];
//! - a run of Chinese, Japanese or Korean characters gives its overlapping pairs and its last character alone, so
//!   that every character begins some token and every longer substring is an AND of pairs.
//!
//! Pure. A change of these rules needs a new [`super::query::schema::VERSION`].

use std::ops::{ControlFlow, Range};

/// Replaces `_` inside a token.
pub(super) const UNDERSCORE: char = '\u{80}';
/// Replaces `.` inside a token.
pub(super) const DOT: char = '\u{81}';
/// Begins a private term of a document.
pub(super) const PRIVATE: char = '\u{82}';
/// Begins the stem of a word, where the stem differs from the word.
pub(super) const STEM: char = '\u{83}';

/// Maximum length of a token in bytes; a longer word is found by its beginning. Such words are keys and encoded data,
/// of which no query contains more.
const MAX_TOKEN_BYTES: usize = 64;

/// Maximum number of parts of a word; a word with more parts is encoded data, whose parts have no meaning.
const MAX_PARTS: usize = 8;

/// Minimum length in bytes of the token that two parts in a row make. Shorter ones, such as `9a3` of hexadecimal data,
/// would fill the index.
const MIN_PAIR_BYTES: usize = 4;

/// The extensions that make `name.ext` a token of its own. Without that token, the search for a file would read every
/// record with both common words. `x.y` with any other `y` is mostly a field or a method, and would add an eighth to
/// the index. Sorted.
const EXTENSIONS: &[&str] = &[
    "bash", "bat", "c", "cc", "cfg", "conf", "cpp", "cs", "css", "csv", "go", "h", "hpp", "html",
    "ini", "ipynb", "java", "js", "json", "jsonl", "jsx", "kt", "lock", "log", "lua", "md", "mjs",
    "php", "png", "proto", "py", "rb", "rs", "scss", "sh", "sql", "svg", "swift", "toml", "ts",
    "tsx", "txt", "vue", "xml", "yaml", "yml", "zig",
];

/// The kind of a run of characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunKind {
    /// Letters, digits and `_`.
    Word,
    /// Chinese, Japanese or Korean characters.
    Cjk,
}

/// Returns the words and CJK runs of `text` with their byte ranges, in order.
pub(super) fn runs(text: &str) -> impl Iterator<Item = (RunKind, Range<usize>)> + '_ {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        // Nearly all text is ASCII, and indexing spends most of its time in this loop.
        while bytes.get(at).is_some_and(|byte| byte.is_ascii() && !is_word_byte(*byte)) {
            at += 1;
        }
        let mut run: Option<(RunKind, usize)> = None;
        while let Some(byte) = bytes.get(at) {
            let (kind, len) = if byte.is_ascii() {
                (is_word_byte(*byte).then_some(RunKind::Word), 1)
            } else {
                text[at..]
                    .chars()
                    .next()
                    .map_or((None, 1), |char| (run_kind(char), char.len_utf8()))
            };
            match (run, kind) {
                (None, Some(kind)) => run = Some((kind, at)),
                (Some((current, from)), kind) if kind != Some(current) => {
                    return Some((current, from..at));
                }
                _ => {}
            }
            at += len;
        }
        run.map(|(kind, from)| (kind, from..bytes.len()))
    })
}

/// Calls `each` with every token of `text` and the bytes that it comes from, until `each` breaks.
pub(super) fn each_token(text: &str, mut each: impl FnMut(&str, Range<usize>) -> ControlFlow<()>) {
    let mut token = String::new();
    let mut previous: Option<Range<usize>> = None;
    for (kind, range) in runs(text) {
        let flow = match kind {
            RunKind::Cjk => cjk_tokens(text, range.clone(), &mut each),
            RunKind::Word => word_tokens(text, range.clone(), &mut token, &mut each),
        };
        if flow.is_break() {
            return;
        }
        if let Some(name) = file_name(text, previous.as_ref(), &range) {
            write_token(&text[name.clone()], &mut token);
            if each(&token, name).is_break() {
                return;
            }
        }
        previous = Some(range);
    }
}

/// Returns the bytes of `name.ext` if `previous` and `word` are its two words.
pub(super) fn file_name(
    text: &str,
    previous: Option<&Range<usize>>,
    word: &Range<usize>,
) -> Option<Range<usize>> {
    let name = previous.filter(|name| name.end + 1 == word.start)?;
    let is_dotted = text.as_bytes()[name.end] == b'.';
    (is_dotted && is_extension(&text[word.clone()])).then_some(name.start..word.end)
}

/// Returns the token of a whole word or file name.
pub(super) fn whole(word: &str) -> String {
    let mut token = String::new();
    write_token(word, &mut token);
    token
}

/// Returns the parts of a word with inner structure; nothing for a word without or with too many parts.
pub(super) fn parts(word: &str) -> Vec<&str> {
    let (parts, n_parts) = split_word(word);
    let is_whole = n_parts == 1 && parts[0].len() == word.len();
    let parts = parts.into_iter().take(if is_whole || n_parts > MAX_PARTS { 0 } else { n_parts });
    parts.map(|part| &word[part]).collect()
}

/// Returns the tokens of each two parts in a row of a word with inner structure; nothing if it has none, or a pair that
/// is too short to be indexed.
pub(super) fn pairs(word: &str) -> Vec<String> {
    let parts = parts(word);
    let tokens: Vec<String> = parts.windows(2).map(|pair| pair_token(pair[0], pair[1])).collect();
    let is_indexed = tokens.iter().all(|token| token.len() >= MIN_PAIR_BYTES);
    if is_indexed { tokens } else { Vec::new() }
}

/// Returns a character in lower case; text is compared character by character.
pub(super) fn fold(char: char) -> impl Iterator<Item = char> {
    char.to_lowercase()
}

const fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns the kind of run that a character above ASCII belongs to.
fn run_kind(char: char) -> Option<RunKind> {
    if is_cjk(char) { Some(RunKind::Cjk) } else { char.is_alphanumeric().then_some(RunKind::Word) }
}

/// Returns whether a character belongs to a script without spaces between words, or to Korean, whose words change at
/// their end.
pub(super) fn is_cjk(char: char) -> bool {
    matches!(u32::from(char),
        0x1100..=0x11FF | 0x3005..=0x3007 | 0x3041..=0x3096 | 0x309D..=0x309F | 0x30A1..=0x30FA
        | 0x30FC..=0x30FF | 0x3131..=0x318E | 0x31F0..=0x31FF | 0x3400..=0x4DBF | 0x4E00..=0x9FFF
        | 0xA960..=0xA97C | 0xAC00..=0xD7FB | 0xF900..=0xFAFF | 0xFF66..=0xFFDC | 0x20000..=0x3FFFD)
}

fn is_extension(word: &str) -> bool {
    EXTENSIONS
        .binary_search_by(|known| {
            known.bytes().cmp(word.bytes().map(|byte| byte.to_ascii_lowercase()))
        })
        .is_ok()
}

fn cjk_tokens(
    text: &str,
    range: Range<usize>,
    each: &mut impl FnMut(&str, Range<usize>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut chars = text[range.clone()].char_indices().peekable();
    while let Some((offset, char)) = chars.next() {
        let from = range.start + offset;
        let to = from + char.len_utf8() + chars.peek().map_or(0, |(_, next)| next.len_utf8());
        each(&text[from..to], from..to)?;
    }
    ControlFlow::Continue(())
}

fn word_tokens(
    text: &str,
    range: Range<usize>,
    token: &mut String,
    each: &mut impl FnMut(&str, Range<usize>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let word = &text[range.clone()];
    if word.len() <= MAX_TOKEN_BYTES && word.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return each(word, range);
    }
    if word.bytes().all(|byte| byte == b'_') {
        return ControlFlow::Continue(());
    }
    write_token(word, token);
    each(token, range.clone())?;
    let (parts, n_parts) = split_word(word);
    if n_parts > MAX_PARTS || (n_parts == 1 && parts[0].len() == word.len()) {
        return ControlFlow::Continue(());
    }
    let parts = &parts[..n_parts];
    for part in parts {
        write_token(&word[part.clone()], token);
        each(token, range.start + part.start..range.start + part.end)?;
    }
    for pair in parts.windows(2) {
        let (first, second) = (pair[0].clone(), pair[1].clone());
        let is_whole = second.end - first.start == word.len() && first.end == second.start;
        let pair = pair_token(&word[first.clone()], &word[second.clone()]);
        if !is_whole && pair.len() >= MIN_PAIR_BYTES {
            each(&pair, range.start + first.start..range.start + second.end)?;
        }
    }
    ControlFlow::Continue(())
}

/// Returns the token of two parts in a row, in which nothing stands between them.
fn pair_token(first: &str, second: &str) -> String {
    whole(&[first, second].concat())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CharCase {
    Underscore,
    Digit,
    Upper,
    Other,
}

/// Splits a word at `_`, between letters and digits, before an upper case letter that follows another case, and
/// before the last of several upper case letters that a lower case letter follows. A count above [`MAX_PARTS`] means
/// that only the first parts were stored.
fn split_word(word: &str) -> ([Range<usize>; MAX_PARTS], usize) {
    let mut parts: [Range<usize>; MAX_PARTS] = std::array::from_fn(|_| 0..0);
    let mut n_parts = 0;
    let mut add = |part: Range<usize>| {
        if !part.is_empty() {
            if let Some(slot) = parts.get_mut(n_parts) {
                *slot = part;
            }
            n_parts += 1;
        }
    };
    let (mut begin, mut last, mut last_at) = (0, CharCase::Underscore, 0);
    for (at, char) in word.char_indices() {
        let case = char_case(char);
        let cut = match (last, case) {
            (CharCase::Underscore, _) => None,
            (last, case) if last == case => None,
            // `Server` in `HTTPServer`: the part begins at the capital, not after it.
            (CharCase::Upper, CharCase::Other) => Some(last_at),
            _ => Some(at),
        };
        if let Some(cut) = cut {
            add(begin..cut);
            begin = cut;
        }
        if case == CharCase::Underscore {
            begin = at + char.len_utf8();
        }
        (last, last_at) = (case, at);
    }
    add(begin..word.len());
    (parts, n_parts)
}

fn char_case(char: char) -> CharCase {
    match char {
        '_' => CharCase::Underscore,
        _ if char.is_ascii_digit() => CharCase::Digit,
        _ if char.is_uppercase() => CharCase::Upper,
        _ => CharCase::Other,
    }
}

/// Replaces `token` with the token of a word: lower case, cut to the longest token.
fn write_token(word: &str, token: &mut String) {
    token.clear();
    for char in word.chars() {
        match char {
            '_' => token.push(UNDERSCORE),
            '.' => token.push(DOT),
            _ if char.is_ascii() => token.push(char.to_ascii_lowercase()),
            _ => token.extend(fold(char)),
        }
        if token.len() >= MAX_TOKEN_BYTES {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(text: &str) -> Vec<String> {
        let mut tokens = Vec::new();
        each_token(text, |token, range| {
            assert!(text.get(range).is_some_and(|source| !source.is_empty()), "{text}");
            tokens.push(token.replace(UNDERSCORE, "_").replace(DOT, "."));
            ControlFlow::Continue(())
        });
        tokens
    }

    #[test]
    fn text_becomes_words_and_their_parts() {
        let check = |text: &str, expect: &str| assert_eq!(tokens(text).join(" "), expect, "{text}");
        check("Hello, World!", "hello world");
        check("foo_bar", "foo_bar foo bar foobar");
        check("getUserName", "getusername get user name getuser username");
        check("camelCaseWord", "camelcaseword camel case word camelcase caseword");
        check("HTTPServer", "httpserver http server");
        check("utf8", "utf8 utf 8");
        check("decode_utf8", "decode_utf8 decode utf 8 decodeutf utf8");
        check("9a3b", "9a3b 9 a 3 b");
        check("__init__ ___ _x", "__init__ init _x x");
        check("src/main.rs", "src main rs main.rs");
        check("foo_bar.test.ts", "foo_bar foo bar foobar test ts test.ts");
        check("a.b(c) self.len()", "a b c self len");
        check("don't", "don t");
        check("Größe ÉCOLE", "größe école");
        check("日本語", "日本 本語 語");
        check("本", "本");
        check("foo日本bar", "foo 日本 本 bar");
        check("한국어 を", "한국 국어 어 を");
        check("", "");
    }

    #[test]
    fn encoded_data_becomes_one_token_per_word() {
        assert_eq!(tokens("a1b2c3d4e5f6").len(), 1);
        let long = "x".repeat(5000);
        assert_eq!(tokens(&long), ["x".repeat(MAX_TOKEN_BYTES)]);
    }

    #[test]
    fn extensions_are_sorted() {
        assert!(EXTENSIONS.is_sorted());
    }

    proptest! {
        /// The longest name has 61 bytes as a token, which is below the longest token.
        #[test]
        fn identifier_and_its_parts_are_tokens(parts in prop::collection::vec("[a-z]{2,7}", 2..MAX_PARTS)) {
            let snake = parts.join("_");
            let camel: String = parts.iter().map(|part| part[..1].to_uppercase() + &part[1..]).collect();
            for name in [&snake, &camel] {
                let found = tokens(&format!("let {name} = 1;"));
                prop_assert!(found.contains(&name.to_lowercase()));
                for part in &parts {
                    prop_assert!(found.contains(part), "{part} of {name} in {found:?}");
                }
                for pair in pairs(name) {
                    prop_assert!(found.contains(&pair), "{pair} of {name} in {found:?}");
                }
            }
        }

        #[test]
        fn token_is_exactly_one_token_for_fts5(text in any::<String>()) {
            each_token(&text, |token, _| {
                assert!(!token.is_empty() && !token.starts_with([PRIVATE, STEM]));
                assert!(token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte >= 0x80), "{token:?}");
                ControlFlow::Continue(())
            });
        }

        #[test]
        fn cjk_pairs_are_tokens_and_every_character_begins_one(text in "[一-龥ぁ-ん]{1,12}") {
            let found = tokens(&text);
            let chars: Vec<char> = text.chars().collect();
            for pair in chars.windows(2) {
                prop_assert!(found.contains(&pair.iter().collect::<String>()));
            }
            for char in chars {
                prop_assert!(found.iter().any(|token| token.starts_with(char)));
            }
        }
    }
}
