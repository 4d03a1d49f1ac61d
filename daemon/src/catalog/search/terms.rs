//! The query language: the FTS5 expression that finds candidates, and the terms that their text must contain.
//!
//! The words of a query are joined by AND. A word matches whole, as the index contains it; the parts of identifiers
//! are words of the index too, and so are each two of them in a row. So `UserName` and `user_name` match every word that
//! has these parts in a row, such as `getUserName`. `"a phrase"` is an AND of its words, and the text must contain the
//! phrase, in any case and with any white space. `word*` matches prefixes of at least [`MIN_PREFIX_CHARS`] letters; a shorter one is a
//! word. Words joined by single dots or hyphens (`os.path`, `2024-06-01`) are a phrase without quotes. CJK text is an
//! AND of its pairs, and the text must contain it; a single character matches the pairs that begin with it.
//!
//! Pure. An expression contains only quoted tokens, never raw input, and no token contains a quotation mark.

use std::ops::{ControlFlow, Range};

use crate::catalog::error::CatalogError;
use crate::catalog::query::fulltext::quoted;
use crate::catalog::words::{self, RunKind};

/// Maximum length of a query in bytes: far more than people type, and little enough to verify cheaply.
const MAX_QUERY_BYTES: usize = 4_096;
/// Maximum number of tokens of an expression, because FTS5 rejects deep ones. Only the text is checked for the others.
const MAX_TOKENS: usize = 48;
/// The characters that join two words to one name.
const JOINTS: [char; 2] = ['.', '-'];
/// Minimum length of a prefix in characters; shorter ones match too many words to be fast.
const MIN_PREFIX_CHARS: usize = 3;
/// Characters above ASCII whose lower case contains an ASCII letter: the Kelvin sign, and the capital I with a dot.
const FOLDED_INTO_ASCII: [&[u8]; 2] = ["\u{212A}".as_bytes(), "\u{130}".as_bytes()];

/// A parsed query.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ParsedQuery {
    /// The tokens that the index is asked for.
    tokens: Vec<IndexToken>,
    /// The terms that a text must contain, without duplicates.
    pub terms: Vec<SearchTerm>,
}

/// A token of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IndexToken {
    /// The token, in the form that [`words`] produces.
    token: String,
    is_prefix: bool,
}

/// A term that a text must contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SearchTerm {
    Token(String),
    TokenPrefix(String),
    /// A word with these parts in a row, in the form of tokens: three or more, because two are a token.
    Parts(Vec<String>),
    /// These characters in a row, folded.
    Phrase(Vec<char>),
}

impl ParsedQuery {
    pub(super) fn parse(query: &str) -> Result<Self, CatalogError> {
        if query.len() > MAX_QUERY_BYTES {
            return Err(CatalogError::QueryTooLong { limit_bytes: MAX_QUERY_BYTES });
        }
        let mut parsed = Self { tokens: Vec::new(), terms: Vec::new() };
        for (at, section) in query.split('"').enumerate() {
            // Every second section is quoted; an unclosed one extends to the end.
            if at % 2 == 1 {
                parsed.add_phrase(section);
            } else {
                section.split_whitespace().for_each(|chunk| parsed.add_chunk(chunk));
            }
        }
        if parsed.tokens.is_empty() { Err(CatalogError::EmptyQuery) } else { Ok(parsed) }
    }

    /// Returns the FTS5 expression that matches documents with all tokens and all `private_terms`.
    pub(super) fn expression(&self, private_terms: &[String]) -> String {
        let private_terms = private_terms.iter().map(|term| quoted(term));
        let tokens = self.tokens.iter().map(|IndexToken { token, is_prefix }| {
            quoted(token) + if *is_prefix { " *" } else { "" }
        });
        private_terms.chain(tokens).collect::<Vec<_>>().join(" AND ")
    }

    /// Returns whether many candidates can still fail to match; tokens are certain, because the index has them, and so
    /// are parts in nearly all texts that have their pairs.
    pub(super) fn needs_verification(&self) -> bool {
        self.terms.iter().any(|term| matches!(term, SearchTerm::Phrase(_)))
    }

    /// Returns false only if no record can match whose line in the log is `json`.
    pub(super) fn may_match(&self, json: &[u8]) -> bool {
        self.terms.iter().all(|term| match term {
            SearchTerm::Phrase(phrase) => may_contain(json, phrase),
            _ => true,
        })
    }

    fn add_phrase(&mut self, phrase: &str) {
        let found: Vec<_> = words::runs(phrase).collect();
        for (kind, range) in &found {
            self.add_run(*kind, &phrase[range.clone()], false);
        }
        if let (Some((_, first)), Some((_, last))) = (found.first(), found.last()) {
            self.add_phrase_term(&phrase[first.start..last.end]);
        }
    }

    fn add_chunk(&mut self, chunk: &str) {
        let found: Vec<_> = words::runs(chunk).collect();
        let mut joined: Option<Range<usize>> = None;
        for (at, (kind, range)) in found.iter().enumerate() {
            let is_prefix = chunk[range.end..].starts_with('*');
            self.add_run(*kind, &chunk[range.clone()], is_prefix);
            let previous = at.checked_sub(1).map(|at| &found[at].1);
            if let Some(name) = words::file_name(chunk, previous, range) {
                self.add_token(words::whole(&chunk[name]), false);
            }
            match joined.take() {
                Some(before) if is_joint(&chunk[before.end..range.start]) => {
                    joined = Some(before.start..range.end)
                }
                before => {
                    self.add_joined(chunk, before);
                    joined = Some(range.clone());
                }
            }
        }
        self.add_joined(chunk, joined);
    }

    /// Adds the phrase of words that were joined by dots or hyphens.
    fn add_joined(&mut self, chunk: &str, range: Option<Range<usize>>) {
        if let Some(text) = range.map(|range| &chunk[range]).filter(|text| text.contains(JOINTS)) {
            self.add_phrase_term(text);
        }
    }

    fn add_run(&mut self, kind: RunKind, text: &str, is_prefix: bool) {
        match kind {
            RunKind::Cjk => self.add_cjk(text),
            RunKind::Word if text.bytes().all(|byte| byte == b'_') => {}
            RunKind::Word => {
                let token = words::whole(text);
                let is_prefix = is_prefix && token.chars().count() >= MIN_PREFIX_CHARS;
                if !is_prefix && self.add_parts(text) {
                    return;
                }
                self.add_token(token.clone(), is_prefix);
                self.add_term(if is_prefix {
                    SearchTerm::TokenPrefix(token)
                } else {
                    SearchTerm::Token(token)
                });
            }
        }
    }

    /// Adds a word with inner structure by its parts; returns false for a word without.
    fn add_parts(&mut self, word: &str) -> bool {
        let pairs = words::pairs(word);
        let term = match &pairs[..] {
            [] => return false,
            [pair] => SearchTerm::Token(pair.clone()),
            _ => SearchTerm::Parts(words::parts(word).into_iter().map(words::whole).collect()),
        };
        pairs.into_iter().for_each(|pair| self.add_token(pair, false));
        self.add_term(term);
        true
    }

    fn add_cjk(&mut self, text: &str) {
        let chars: Vec<char> = text.chars().collect();
        if chars.len() == 1 {
            self.add_token(text.to_owned(), true);
        }
        for pair in chars.windows(2) {
            self.add_token(pair.iter().collect(), false);
        }
        self.add_phrase_term(text);
    }

    fn add_phrase_term(&mut self, text: &str) {
        self.add_term(SearchTerm::Phrase(folded(text).map(|(char, _)| char).collect()));
    }

    fn add_token(&mut self, token: String, is_prefix: bool) {
        let token = IndexToken { token, is_prefix };
        if self.tokens.len() < MAX_TOKENS && !self.tokens.contains(&token) {
            self.tokens.push(token);
        }
    }

    fn add_term(&mut self, term: SearchTerm) {
        if !self.terms.contains(&term) {
            self.terms.push(term);
        }
    }
}

impl SearchTerm {
    fn matches_token(&self, token: &str) -> bool {
        match self {
            Self::Token(word) => word == token,
            Self::TokenPrefix(prefix) => token.starts_with(prefix),
            Self::Parts(_) | Self::Phrase(_) => false,
        }
    }
}

/// Calls `each` with the bytes of parts in a row, as they occur in words of `text`, until it breaks.
fn each_parts(
    text: &str,
    wanted: &[String],
    mut each: impl FnMut(Range<usize>) -> ControlFlow<()>,
) {
    for (kind, range) in words::runs(text) {
        let word = &text[range];
        // Nearly all words are in lower case, and have no parts.
        if kind == RunKind::Cjk || word.bytes().all(|byte| byte.is_ascii_lowercase()) {
            continue;
        }
        let parts = words::parts(word);
        let offset = |part: &str| part.as_ptr().addr() - text.as_ptr().addr();
        for window in parts.windows(wanted.len()) {
            if window.iter().zip(wanted).all(|(part, wanted)| words::whole(part) == *wanted)
                && let [first, .., last] = window
                && each(offset(first)..offset(last) + last.len()).is_break()
            {
                return;
            }
        }
    }
}

/// Returns the bytes of the first match of each term in `text`; `None` if any term has no match.
pub(super) fn first_matches(terms: &[SearchTerm], text: &str) -> Option<Vec<Range<usize>>> {
    let mut first: Vec<Option<Range<usize>>> = vec![None; terms.len()];
    for (term, slot) in terms.iter().zip(&mut first) {
        match term {
            SearchTerm::Phrase(phrase) => *slot = Some(find_folded(text, phrase)?),
            SearchTerm::Parts(parts) => {
                each_parts(text, parts, |range| {
                    *slot = Some(range);
                    ControlFlow::Break(())
                });
                slot.as_ref()?;
            }
            SearchTerm::Token(_) | SearchTerm::TokenPrefix(_) => {}
        }
    }
    let mut missing = first.iter().filter(|slot| slot.is_none()).count();
    if missing > 0 {
        words::each_token(text, |token, range| {
            for (term, slot) in terms.iter().zip(&mut first) {
                if slot.is_none() && term.matches_token(token) {
                    *slot = Some(range.clone());
                    missing -= 1;
                }
            }
            if missing == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }
    first.into_iter().collect()
}

/// Returns the bytes of all matches in `text` with the number of the term, sorted; none lies within another.
pub(super) fn all_matches(terms: &[SearchTerm], text: &str) -> Vec<(usize, Range<usize>)> {
    let mut found = Vec::new();
    for (number, term) in terms.iter().enumerate() {
        if let SearchTerm::Parts(parts) = term {
            each_parts(text, parts, |range| {
                found.push((number, range));
                ControlFlow::Continue(())
            });
        }
        let SearchTerm::Phrase(phrase) = term else { continue };
        let mut from = 0;
        while let Some(range) = find_folded(&text[from..], phrase) {
            found.push((number, from + range.start..from + range.end));
            from += range.end;
        }
    }
    words::each_token(text, |token, range| {
        let matching = terms.iter().enumerate().filter(|(_, term)| term.matches_token(token));
        found.extend(matching.map(|(number, _)| (number, range.clone())));
        ControlFlow::Continue(())
    });
    found.sort_by_key(|(_, range)| (range.start, std::cmp::Reverse(range.end)));
    let mut end = 0;
    found.retain(|(_, range)| {
        let is_apart = range.start >= end;
        end = end.max(range.end);
        is_apart
    });
    found
}

/// Returns whether the text between two words is a single joint; `--` and `...` end a name.
fn is_joint(between: &str) -> bool {
    let mut chars = between.chars();
    chars.next().is_some_and(|char| JOINTS.contains(&char)) && chars.next().is_none()
}

/// Returns the characters of a text in lower case with the byte at which each begins; white space becomes one space.
fn folded(text: &str) -> impl Iterator<Item = (char, usize)> + '_ {
    let mut after_space = false;
    text.char_indices()
        .filter(move |(_, char)| {
            let is_space = char.is_whitespace();
            !std::mem::replace(&mut after_space, is_space) || !is_space
        })
        .flat_map(|(at, char)| {
            let char = if char.is_whitespace() { ' ' } else { char };
            words::fold(char).map(move |char| (char, at))
        })
}

/// Returns the bytes of the first occurrence of a phrase in the folded text.
fn find_folded(text: &str, phrase: &[char]) -> Option<Range<usize>> {
    let first = *phrase.first()?;
    if let Some(byte) = u8::try_from(first).ok().filter(u8::is_ascii) {
        // The verification of phrases in a thousand texts spends most of its time here.
        let mut starts = memchr::memchr2_iter(byte, byte.to_ascii_uppercase(), text.as_bytes());
        return starts.find_map(|at| match_at(text, at, phrase));
    }
    let mut starts =
        text.char_indices().filter(|(_, char)| words::fold(*char).next() == Some(first));
    starts.find_map(|(at, _)| match_at(text, at, phrase))
}

/// Returns the bytes of a phrase that begins at `at` in the folded text.
fn match_at(text: &str, at: usize, phrase: &[char]) -> Option<Range<usize>> {
    let mut found = folded(&text[at..]);
    if !phrase.iter().all(|char| found.next().is_some_and(|(next, _)| next == *char)) {
        return None;
    }
    let end = found.next().map_or(text.len(), |(_, offset)| at + offset);
    // White space that was folded into the end is not part of the match.
    Some(at..at + text[at..end].trim_end().len())
}

/// Returns false only if no text in a line of JSON can contain a phrase.
///
/// Many texts contain the words of a common phrase in other places, and parsing a thousand lines to find that out
/// takes longer than the remaining search. So the bytes of the line are checked first, and a line passes wherever
/// JSON could hide a match: in an escape, across two parts of a message, or in a letter whose lower case is ASCII.
fn may_contain(json: &[u8], phrase: &[char]) -> bool {
    let Some(phrase) = phrase.iter().map(|char| unescaped(*char)).collect::<Option<Vec<u8>>>()
    else {
        return true;
    };
    let Some(first) = phrase.first() else { return true };
    memchr::memchr2_iter(*first, first.to_ascii_uppercase(), json)
        .any(|at| may_begin_with(&json[at..], &phrase))
        || FOLDED_INTO_ASCII.iter().any(|char| memchr::memmem::find(json, char).is_some())
}

/// Returns the byte of a character that JSON never escapes.
fn unescaped(char: char) -> Option<u8> {
    u8::try_from(char)
        .ok()
        .filter(|byte| byte.is_ascii() && !byte.is_ascii_control() && !matches!(byte, b'"' | b'\\'))
}

/// Returns whether JSON begins with a phrase, or hides at some byte whether it does.
fn may_begin_with(json: &[u8], phrase: &[u8]) -> bool {
    let mut at = 0;
    for byte in phrase {
        let Some(found) = json.get(at) else { return false };
        at += 1;
        if byte == found || byte.eq_ignore_ascii_case(found) {
            continue;
        }
        // White space can be longer than one space, escaped, above ASCII, or lie between two parts.
        let can_hide_space = |byte: u8| matches!(byte, b' ' | b'\\' | b'"') || !byte.is_ascii();
        let before = at.checked_sub(2).map(|before| json[before]);
        let next = json.get(at).copied();
        // Numbers among the arguments of a call are parts of their own.
        let ends_number = matches!(found, b',' | b'}' | b']') && next != Some(b' ');
        return *byte == b' ' && (can_hide_space(*found) || ends_number)
            || can_hide_space(*found) && before == Some(b' ');
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expression_of(query: &str) -> String {
        ParsedQuery::parse(query)
            .map_or_else(|error| error.to_string(), |parsed| parsed.expression(&[]))
    }

    #[test]
    fn query_becomes_an_expression_of_quoted_tokens() {
        let check = |query: &str, expect: &str| assert_eq!(expression_of(query), expect, "{query}");
        check("Hello world hello", "\"hello\" AND \"world\"");
        check("foo_bar", "\"foobar\"");
        check("camelCase", "\"camelcase\"");
        check("getUserName", "\"getuser\" AND \"username\"");
        check("x_y 9a3b", "\"x\u{80}y\" AND \"9a3b\"");
        check("user_na*", "\"user\u{80}na\" *");
        check("\"to be\" or", "\"to\" AND \"be\" AND \"or\"");
        check("config* fo*", "\"config\" * AND \"fo\"");
        check("x86_64-linux", "\"x86\u{80}64\" AND \"linux\"");
        check("a.b(c)", "\"a\" AND \"b\" AND \"c\"");
        check("src/main.rs", "\"src\" AND \"main\" AND \"rs\" AND \"main\u{81}rs\"");
        check("日本語", "\"日本\" AND \"本語\"");
        check("本", "\"本\" *");
        check(
            "NOT x OR (y NEAR z) text:w ^q",
            "\"not\" AND \"x\" AND \"or\" AND \"y\" AND \"near\" AND \"z\" AND \"text\" AND \"w\" AND \"q\"",
        );
        check("\"unclosed here", "\"unclosed\" AND \"here\"");
        check("", "the query has no word to search for");
        check("?! ___ \"--\"", "the query has no word to search for");
        assert!(matches!(
            ParsedQuery::parse(&"x".repeat(MAX_QUERY_BYTES + 1)),
            Err(CatalogError::QueryTooLong { .. })
        ));
    }

    #[test]
    fn expression_has_a_bounded_number_of_tokens() {
        let many: Vec<String> = (0..500).map(|n| format!("w{n}")).collect();
        let parsed = ParsedQuery::parse(&many.join(" ")).expect("parses");
        assert_eq!((parsed.tokens.len(), parsed.terms.len()), (MAX_TOKENS, 500));
    }

    #[test]
    fn text_matches_only_if_it_contains_all_terms() {
        let check = |query: &str, text: &str, expect: bool| {
            let terms = ParsedQuery::parse(query).expect("parses").terms;
            assert_eq!(first_matches(&terms, text).is_some(), expect, "{query} in {text}");
        };
        check("\"hello  World\"", "say HELLO\n\t world!", true);
        check("\"hello world\"", "hello, world", false);
        check("os.path", "import os.path.join", true);
        check("os.path", "path of the os", false);
        check("foo-bar", "the Foo-Bar flag", true);
        check("foo-bar", "foo and bar", false);
        check("2024-06-01", "since 2024-06-01T08:00", true);
        check("2024-06-01", "06 of 01 in 2024", false);
        check("x86_64-linux", "built for x86_64-linux-gnu", true);
        check("x86_64-linux", "linux on x86_64", false);
        check("--no-spawn", "give --no-spawn", true);
        check("--no-spawn", "no, spawn it", false);
        check("serde-1.0.2", "serde-1.0.228", false);
        check("foo--bar -bar-", "bar, foo", true);
        check("foo-bar*", "foo-barrier", true);
        check("foo-bar*", "foo barrier", false);
        check("本語", "日本語", true);
        check("日語", "日本語", false);
        check("conf*", "the Configuration", true);
        check("server http", "HTTPServer", true);
        check("UserName", "call getUserName() here", true);
        check("UserName", "the user_name column", true);
        check("UserName", "USER_NAME_2", true);
        check("UserName", "the user name", false);
        check("user_name", "getUserName", true);
        check("UserName", "nameUser", false);
        check("get_user_name", "forgetUserName GetUserName2", true);
        check("getUserName", "getUser then userName", false);
        check("utf8", "decode_utf8_lossy", true);
        check("größe", "GRÖSSE GRÖẞE Größe", true);
    }

    #[test]
    fn matches_do_not_overlap() {
        let terms = ParsedQuery::parse("\"foo bar\" foo").expect("parses").terms;
        let found: Vec<_> =
            all_matches(&terms, "foo  bar, foo_x").into_iter().map(|(_, range)| range).collect();
        assert_eq!(found, [0..8, 10..13]);
    }

    #[test]
    fn line_is_rejected_only_when_it_cannot_match() {
        let check = |text: &str, phrase: &str, expect: bool| {
            let json = serde_json::to_vec(&serde_json::json!({ "text": text })).expect("is JSON");
            let chars: Vec<char> = phrase.chars().collect();
            assert_eq!(may_contain(&json, &chars), expect, "{phrase} in {text}");
        };
        check("say Hello world", "hello world", true);
        check("hello there, world", "hello world", false);
        check("hello", "hello world", true);
        check("hello\nworld", "hello world", true);
        check("hello  \n world", "hello world", true);
        check("hello\u{3000}world", "hello world", true);
        check("worldhello", "hello world", true);
        check("os.path", "os.path", true);
        check("os path", "os.path", false);
        check("\u{212A}elvin scale", "kelvin scale", true);
        check("elvin scale", "kelvin scale", false);
        check("any", "größe", true);
        assert!(may_contain(br#"{"args":{"a":1,"b":2}}"#, &['1', ' ', '2']));
    }

    proptest! {
        #[test]
        fn line_of_a_matching_text_is_never_rejected(
            texts in prop::collection::vec("[abAB \\n\\t\"\\\\é.\u{3000}\u{212A}k]{0,12}", 1..4),
            query in "[abk]{1,2}[ .][abk]{1,2}( [abk])?",
        ) {
            let parsed = ParsedQuery::parse(&format!("\"{query}\"")).expect("parses");
            let json = serde_json::to_vec(&texts).expect("is JSON");
            if first_matches(&parsed.terms, &texts.join("\n")).is_some() {
                prop_assert!(parsed.may_match(&json), "{query:?} in {texts:?}");
            }
        }
    }
}
