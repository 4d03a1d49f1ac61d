//! What a query asks for: the FTS5 expression that finds candidates, and what their text must have.
//!
//! The words of a query are joined by AND. A word is matched whole, as the index has it; the parts of identifiers
//! are words of the index too. `"a phrase"` is an AND of its words, and then the text must have it, in any case
//! and with any white space. `word*` finds beginnings from [`MIN_PREFIX_CHARS`] letters on; a shorter one is a
//! word. Words joined by single dots or hyphens (`os.path`, `2024-06-01`) are a phrase without quotes. CJK text is
//! an AND of its pairs, and then the text must have it; one character finds the pairs that begin with it.
//!
//! Pure. Raw input never reaches an expression: only tokens do, each in quotes, and no token has a quote.

use std::ops::{ControlFlow, Range};

use super::CatalogError;
use super::line;
use super::words::{self, Stretch};

/// The longest query, in bytes: far above what people type, small enough that verifying it stays cheap.
pub(super) const MAX_QUERY_BYTES: usize = 4_096;
/// Tokens that the index is asked for; what is beyond is verified in the text. FTS5 refuses deep expressions.
const MAX_TOKENS: usize = 48;
/// What makes one name of the two words that it stands between.
const JOINTS: [char; 2] = ['.', '-'];
/// Beginnings shorter than this match too many words to be fast.
const MIN_PREFIX_CHARS: usize = 3;

/// A parsed query.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// What the index is asked for.
    pub tokens: Vec<IndexToken>,
    /// What a text must have, without duplicates.
    pub terms: Vec<Term>,
}

/// One token of the expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IndexToken {
    /// As [`words`] makes them.
    pub token: String,
    /// It may go on.
    pub prefix: bool,
}

/// One thing that a text must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Term {
    /// A token.
    Word(String),
    /// A token that begins so.
    Prefix(String),
    /// These characters in a row, folded.
    Text(Vec<char>),
}

impl Terms {
    /// Reads a query.
    pub(super) fn parse(query: &str) -> Result<Self, CatalogError> {
        if query.len() > MAX_QUERY_BYTES {
            return Err(CatalogError::QueryTooLong { limit_bytes: MAX_QUERY_BYTES });
        }
        let mut terms = Self { tokens: Vec::new(), terms: Vec::new() };
        for (at, piece) in query.split('"').enumerate() {
            // Every second piece stands in quotes; one that is not closed goes to the end.
            if at % 2 == 1 {
                terms.add_phrase(piece);
            } else {
                piece.split_whitespace().for_each(|chunk| terms.add_chunk(chunk));
            }
        }
        if terms.tokens.is_empty() { Err(CatalogError::EmptyQuery) } else { Ok(terms) }
    }

    /// Whether the text of a candidate can still fail: words come from the index and are there.
    pub(super) fn needs_text(&self) -> bool {
        self.terms.iter().any(|term| matches!(term, Term::Text(_)))
    }

    /// Whether a record can match whose line in the log is `json`; false only when it cannot.
    pub(super) fn may_match(&self, json: &[u8]) -> bool {
        self.terms.iter().all(|term| match term {
            Term::Text(wanted) => line::may_have(json, wanted),
            _ => true,
        })
    }

    fn add_phrase(&mut self, phrase: &str) {
        let found: Vec<_> = words::stretches(phrase).collect();
        for (stretch, range) in &found {
            self.add_stretch(*stretch, &phrase[range.clone()], false);
        }
        if let (Some((_, first)), Some((_, last))) = (found.first(), found.last()) {
            self.add_text(&phrase[first.start..last.end]);
        }
    }

    fn add_chunk(&mut self, chunk: &str) {
        let found: Vec<_> = words::stretches(chunk).collect();
        let mut joined: Option<Range<usize>> = None;
        for (at, (stretch, range)) in found.iter().enumerate() {
            let prefix = chunk[range.end..].starts_with('*');
            self.add_stretch(*stretch, &chunk[range.clone()], prefix);
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

    fn add_joined(&mut self, chunk: &str, range: Option<Range<usize>>) {
        if let Some(text) = range.map(|range| &chunk[range]).filter(|text| text.contains(JOINTS)) {
            self.add_text(text);
        }
    }

    fn add_stretch(&mut self, stretch: Stretch, text: &str, prefix: bool) {
        match stretch {
            Stretch::Cjk => self.add_cjk(text),
            Stretch::Word if text.bytes().all(|byte| byte == b'_') => {}
            Stretch::Word => {
                let token = words::whole(text);
                let prefix = prefix && token.chars().count() >= MIN_PREFIX_CHARS;
                self.add_token(token.clone(), prefix);
                self.add_term(if prefix { Term::Prefix(token) } else { Term::Word(token) });
            }
        }
    }

    fn add_cjk(&mut self, text: &str) {
        let chars: Vec<char> = text.chars().collect();
        if chars.len() == 1 {
            self.add_token(text.to_owned(), true);
        }
        for pair in chars.windows(2) {
            self.add_token(pair.iter().collect(), false);
        }
        self.add_text(text);
    }

    fn add_text(&mut self, text: &str) {
        self.add_term(Term::Text(folded(text).map(|(char, _)| char).collect()));
    }

    fn add_token(&mut self, token: String, prefix: bool) {
        let token = IndexToken { token, prefix };
        if self.tokens.len() < MAX_TOKENS && !self.tokens.contains(&token) {
            self.tokens.push(token);
        }
    }

    fn add_term(&mut self, term: Term) {
        if !self.terms.contains(&term) {
            self.terms.push(term);
        }
    }
}

/// Whether this text between two words is one joint; `--` and `...` end a name.
fn is_joint(between: &str) -> bool {
    let mut chars = between.chars();
    chars.next().is_some_and(|char| JOINTS.contains(&char)) && chars.next().is_none()
}

/// The FTS5 expression that all of these are joined in by AND.
pub(super) fn expression(tokens: &[IndexToken], filters: &[String]) -> String {
    let filters = filters.iter().map(|filter| format!("\"{filter}\""));
    let tokens = tokens.iter().map(|token| {
        let star = if token.prefix { " *" } else { "" };
        format!("\"{}\"{star}", token.token)
    });
    filters.chain(tokens).collect::<Vec<_>>().join(" AND ")
}

/// Where the first match of each term lies in `text`, in bytes; `None` when one has no match.
pub(super) fn first_matches(terms: &[Term], text: &str) -> Option<Vec<Range<usize>>> {
    let mut first: Vec<Option<Range<usize>>> = vec![None; terms.len()];
    for (term, slot) in terms.iter().zip(&mut first) {
        if let Term::Text(wanted) = term {
            *slot = Some(find_folded(text, wanted)?);
        }
    }
    let mut missing = first.iter().filter(|slot| slot.is_none()).count();
    if missing > 0 {
        words::each_token(text, |token, range| {
            for (term, slot) in terms.iter().zip(&mut first) {
                if slot.is_none() && term.is_token(token) {
                    *slot = Some(range.clone());
                    missing -= 1;
                }
            }
            if missing == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }
    first.into_iter().collect()
}

/// Where all terms match in `text`, in bytes: sorted, none within another, with the number of the term.
pub(super) fn all_matches(terms: &[Term], text: &str) -> Vec<(usize, Range<usize>)> {
    let mut found = Vec::new();
    for (number, term) in terms.iter().enumerate() {
        let Term::Text(wanted) = term else { continue };
        let mut from = 0;
        while let Some(range) = find_folded(&text[from..], wanted) {
            found.push((number, from + range.start..from + range.end));
            from += range.end;
        }
    }
    words::each_token(text, |token, range| {
        found.extend(
            terms
                .iter()
                .enumerate()
                .filter(|(_, term)| term.is_token(token))
                .map(|(number, _)| (number, range.clone())),
        );
        ControlFlow::Continue(())
    });
    found.sort_by_key(|(_, range)| (range.start, std::cmp::Reverse(range.end)));
    let mut end = 0;
    found.retain(|(_, range)| {
        let apart = range.start >= end;
        end = end.max(range.end);
        apart
    });
    found
}

impl Term {
    fn is_token(&self, token: &str) -> bool {
        match self {
            Self::Word(word) => word == token,
            Self::Prefix(prefix) => token.starts_with(prefix),
            Self::Text(_) => false,
        }
    }
}

/// The characters of a text in lower case, white space as one space each time, with the byte that each begins at.
fn folded(text: &str) -> impl Iterator<Item = (char, usize)> + '_ {
    let mut after_space = false;
    text.char_indices()
        .filter(move |(_, char)| {
            let space = char.is_whitespace();
            !std::mem::replace(&mut after_space, space) || !space
        })
        .flat_map(|(at, char)| {
            let char = if char.is_whitespace() { ' ' } else { char };
            words::fold(char).map(move |char| (char, at))
        })
}

/// The first place where the folded text has `wanted`.
fn find_folded(text: &str, wanted: &[char]) -> Option<Range<usize>> {
    let first = *wanted.first()?;
    if let Some(byte) = u8::try_from(first).ok().filter(u8::is_ascii) {
        // Verifying phrases in a thousand texts is mostly this search.
        let mut places = memchr::memchr2_iter(byte, byte.to_ascii_uppercase(), text.as_bytes());
        return places.find_map(|at| match_at(text, at, wanted));
    }
    let mut places =
        text.char_indices().filter(|(_, char)| words::fold(*char).next() == Some(first));
    places.find_map(|(at, _)| match_at(text, at, wanted))
}

/// The bytes of `wanted` when the folded text goes on so at `at`.
fn match_at(text: &str, at: usize, wanted: &[char]) -> Option<Range<usize>> {
    let mut found = folded(&text[at..]);
    if !wanted.iter().all(|char| found.next().is_some_and(|(next, _)| next == *char)) {
        return None;
    }
    let rest = found.next().map_or(text.len(), |(_, offset)| at + offset);
    // White space that was folded into the end is not part of the match.
    Some(at..at + text[at..rest].trim_end().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expression_of(query: &str) -> String {
        Terms::parse(query)
            .map_or_else(|error| error.to_string(), |terms| expression(&terms.tokens, &[]))
    }

    #[test]
    fn a_query_becomes_an_expression_of_quoted_tokens() {
        let check = |query: &str, expect: &str| assert_eq!(expression_of(query), expect, "{query}");
        check("Hello world hello", "\"hello\" AND \"world\"");
        check("foo_bar", "\"foo\u{80}bar\"");
        check("camelCase", "\"camelcase\"");
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
            Terms::parse(&"x".repeat(MAX_QUERY_BYTES + 1)),
            Err(CatalogError::QueryTooLong { .. })
        ));
    }

    #[test]
    fn the_index_is_asked_for_a_bounded_number_of_tokens() {
        let many: Vec<String> = (0..500).map(|n| format!("w{n}")).collect();
        let terms = Terms::parse(&many.join(" ")).expect("parses");
        assert_eq!((terms.tokens.len(), terms.terms.len()), (MAX_TOKENS, 500));
    }

    #[test]
    fn a_text_has_all_terms_or_does_not_match() {
        let check = |query: &str, text: &str, expect: bool| {
            let terms = Terms::parse(query).expect("parses").terms;
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
        check("größe", "GRÖSSE GRÖẞE Größe", true);
    }

    #[test]
    fn matches_do_not_overlap() {
        let terms = Terms::parse("\"foo bar\" foo").expect("parses").terms;
        let found: Vec<_> =
            all_matches(&terms, "foo  bar, foo_x").into_iter().map(|(_, range)| range).collect();
        assert_eq!(found, [0..8, 10..13]);
    }
}
