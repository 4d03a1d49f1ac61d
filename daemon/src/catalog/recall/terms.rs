//! The terms of a question: its content words with their stems, identifiers, numbers, and pairs of CJK characters.
//!
//! Pure. An expression contains only quoted tokens, never raw input, and no token contains a quotation mark.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

use ollm_protocol::content::Role;
use rustc_hash::FxHashSet;

use super::numbers::*;
use crate::catalog::document::role_term;
use crate::catalog::query::fulltext::quoted;
use crate::catalog::stems::TextLanguage;
use crate::catalog::words::{self, RunKind};
use crate::languages::{WordClass, entries};

/// A set of terms, one bit for each.
pub(super) type TermSet = u32;

/// The kind of a term, the most telling first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TermKind {
    /// A word with inner structure, a file name, a long number, or words joined by dots or hyphens.
    Value,
    Word,
    CjkPair,
    /// A part of an identifier.
    Part,
}

/// A term of a question.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RecallTerm {
    /// The word as it was written, in lower case.
    pub word: String,
    pub kind: TermKind,
    /// Set if it belongs to a date.
    pub is_date: bool,
    /// The FTS5 expression that finds its documents.
    pub expression: String,
    /// The tokens by which it is found in a text; a stem begins with [`words::STEM`].
    tokens: Vec<String>,
}

impl RecallTerm {
    /// Returns its weight against a word.
    pub(super) const fn weight(&self) -> f64 {
        match self.kind {
            TermKind::Value | TermKind::Word => 1.0,
            TermKind::CjkPair => CJK_WEIGHT,
            TermKind::Part => PART_WEIGHT,
        }
    }
}

/// The terms of a question.
pub(super) struct RecallTerms {
    pub terms: Vec<RecallTerm>,
    /// The terms of a token.
    by_token: HashMap<String, TermSet>,
    /// All words of the question and their stems, in the form of tokens.
    said: FxHashSet<String>,
}

impl RecallTerms {
    /// Parses a question. A question of stop words and punctuation has no terms.
    pub(super) fn parse(question: &str) -> Self {
        let mut parser = TermParser::new(question);
        for side in sides(question) {
            side.split_whitespace().for_each(|chunk| parser.add_chunk(chunk));
        }
        let mut terms = parser.terms;
        let dates = words_of_dates(question);
        for term in &mut terms {
            // `2024-06-01` is a term as a whole too.
            let mut parts = term.word.split(|char: char| !char.is_alphanumeric());
            term.is_date = parts.all(|part| dates.contains(part));
        }
        if terms.len() > MAX_TERMS {
            // Longer words are rarer.
            terms.sort_by_key(|term| (term.kind, std::cmp::Reverse(term.word.len())));
            terms.truncate(MAX_TERMS);
        }
        let mut by_token: HashMap<String, TermSet> = HashMap::new();
        for (number, term) in terms.iter().enumerate() {
            for token in &term.tokens {
                *by_token.entry(token.clone()).or_default() |= 1 << number;
            }
        }
        Self { terms, by_token, said: said(question, parser.language) }
    }

    /// Returns whether a text says more than the question: at least one word of content that the question lacks, and
    /// in another question a quarter of them, because people seldom ask twice in the same words.
    pub(super) fn says_more(&self, text: &str) -> bool {
        let language = TextLanguage::of(text);
        let (mut n_words, mut n_new, mut has_new_value) = (0_usize, 0_usize, false);
        words::each_token(text, |token, range| {
            let is_number = token.bytes().all(|byte| byte.is_ascii_digit());
            let is_last_of_cjk = text[range].chars().count() == 1 && !token.is_ascii();
            if !is_last_of_cjk && (token.len() > 1 || is_number) && !language.is_stop_word(token) {
                n_words += 1;
                let is_said = self.said.contains(token)
                    || language.stem(token).is_some_and(|stem| self.said.contains(&*stem));
                n_new += usize::from(!is_said);
                has_new_value |= !is_said && token.bytes().any(|byte| byte.is_ascii_digit());
            }
            ControlFlow::Continue(())
        });
        let least = if is_question(text) { n_words / NEW_DIVISOR + 1 } else { 1 };
        has_new_value || n_new >= least
    }

    /// Calls `each` with the places in a text that match terms, in order.
    pub(super) fn each_match(&self, text: &str, mut each: impl FnMut(TermSet, Range<usize>)) {
        let language = TextLanguage::of(text);
        let mut key = String::new();
        words::each_token(text, |token, range| {
            let mut found = self.by_token.get(token).copied().unwrap_or_default();
            if let Some(stem) = language.stem(token) {
                key.clear();
                key.push(words::STEM);
                key.push_str(&stem);
                found |= self.by_token.get(&key).copied().unwrap_or_default();
            }
            if found != 0 {
                each(found, range);
            }
            ControlFlow::Continue(())
        });
    }

    /// Returns the words of a set of terms, in the order of the question. Parts of identifiers are named only where the
    /// identifier is not.
    pub(super) fn words(&self, set: TermSet) -> Vec<String> {
        let found = self.terms.iter().enumerate().filter(|(number, _)| set >> number & 1 == 1);
        let mut words: Vec<String> = Vec::new();
        for (_, term) in found {
            let is_part = term.kind == TermKind::Part;
            let is_named =
                words.iter().any(|word| *word == term.word || is_part && word.contains(&term.word));
            if !is_named {
                words.push(term.word.clone());
            }
        }
        words
    }
}

struct TermParser {
    language: TextLanguage,
    terms: Vec<RecallTerm>,
}

impl TermParser {
    fn new(question: &str) -> Self {
        Self { language: TextLanguage::of(question), terms: Vec::new() }
    }

    fn add_chunk(&mut self, chunk: &str) {
        let runs: Vec<_> = words::runs(chunk).collect();
        let mut joined: Option<(usize, usize)> = None;
        for (at, (kind, range)) in runs.iter().enumerate() {
            let previous = at.checked_sub(1).map(|at| &runs[at].1);
            if let Some(name) = words::file_name(chunk, previous, range) {
                let token = words::whole(&chunk[name.clone()]);
                self.add(&chunk[name], TermKind::Value, quoted(&token), vec![token]);
            }
            match kind {
                RunKind::Cjk => self.add_cjk(&chunk[range.clone()]),
                RunKind::Word => self.add_word(&chunk[range.clone()]),
            }
            let is_joined = *kind == RunKind::Word
                && previous.is_some_and(|before| is_joint(&chunk[before.end..range.start]));
            match &mut joined {
                Some((_, last)) if is_joined => *last = at,
                _ => {
                    self.add_joined(chunk, &runs, joined.take());
                    joined = Some((at, at));
                }
            }
        }
        self.add_joined(chunk, &runs, joined);
    }

    /// Adds words that were joined by dots, hyphens or colons, such as `10.0.0.7`, `2024-06-01` and `os.path`, as one
    /// value.
    fn add_joined(
        &mut self,
        chunk: &str,
        runs: &[(RunKind, Range<usize>)],
        joined: Option<(usize, usize)>,
    ) {
        let Some((first, last)) = joined.filter(|(first, last)| first < last) else { return };
        let parts = &runs[first..=last];
        let text = &chunk[parts[0].1.start..parts[parts.len() - 1].1.end];
        // `well-known` is two words, of which each is searched anyway, and a file name is a token of its own.
        let is_value = text.contains('.') || text.bytes().any(|byte| byte.is_ascii_digit());
        if !is_value || self.terms.iter().any(|term| term.word == text.to_lowercase()) {
            return;
        }
        let tokens = parts.iter().map(|(_, range)| quoted(&words::whole(&chunk[range.clone()])));
        let expression = tokens.collect::<Vec<_>>().join(" AND ");
        self.add(text, TermKind::Value, format!("({expression})"), Vec::new());
    }

    fn add_word(&mut self, word: &str) {
        let whole = words::whole(word);
        if word.bytes().all(|byte| byte == b'_') {
            return;
        }
        let parts = words::parts(word);
        if parts.len() > 1 {
            let mut tokens = vec![whole];
            let mut expression = quoted(&tokens[0]);
            let pairs = words::pairs(word);
            if let [first, others @ ..] = &pairs[..] {
                let others: String =
                    others.iter().map(|pair| format!(" AND {}", quoted(pair))).collect();
                expression = format!("({expression} OR ({}{others}))", quoted(first));
                tokens.extend(others.is_empty().then(|| first.clone()));
            }
            self.add(word, TermKind::Value, expression, tokens);
            for part in parts {
                self.add_plain(part, TermKind::Part);
            }
        } else {
            self.add_plain(word, TermKind::Word);
        }
    }

    fn add_plain(&mut self, word: &str, kind: TermKind) {
        let token = words::whole(word);
        let is_number = token.bytes().all(|byte| byte.is_ascii_digit());
        let is_short = token.len() < 2 && !is_number;
        if is_short || self.language.is_stop_word(&token) {
            return;
        }
        let kind = match kind {
            TermKind::Word if is_number && token.len() >= MIN_VALUE_DIGITS => TermKind::Value,
            kind => kind,
        };
        let mut tokens = vec![token.clone()];
        for language in [self.language, TextLanguage::english()] {
            // A text that has the stem itself as a word has no other token for it.
            let stem = language.stem(&token).unwrap_or(token.as_str().into());
            tokens.extend([format!("{}{stem}", words::STEM), stem.into_owned()]);
        }
        tokens.sort_unstable();
        tokens.dedup();
        let mut alternatives: Vec<String> = tokens.iter().map(|token| quoted(token)).collect();
        let roles = [Role::System, Role::User, Role::Assistant, Role::Tool];
        let role = roles.into_iter().find(|role| role.as_str() == token);
        alternatives.extend(role.map(|role| quoted(&role_term(role))));
        self.add(word, kind, format!("({})", alternatives.join(" OR ")), tokens);
    }

    fn add_cjk(&mut self, text: &str) {
        let chars: Vec<char> = text.chars().collect();
        for pair in chars.windows(2) {
            let token: String = pair.iter().collect();
            self.add(&token.clone(), TermKind::CjkPair, quoted(&token), vec![token]);
        }
        if let [_] = chars[..] {
            self.add(text, TermKind::CjkPair, quoted(text), vec![text.to_owned()]);
        }
    }

    fn add(&mut self, word: &str, kind: TermKind, expression: String, tokens: Vec<String>) {
        if self.terms.iter().all(|term| term.expression != expression) {
            let word = word.to_lowercase();
            self.terms.push(RecallTerm { word, kind, is_date: false, expression, tokens });
        }
    }
}

/// Returns all words of a question and their stems.
fn said(question: &str, language: TextLanguage) -> FxHashSet<String> {
    let mut said = FxHashSet::default();
    for side in sides(question) {
        words::each_token(side, |token, _| {
            for language in [language, TextLanguage::english()] {
                said.extend(language.stem(token).map(std::borrow::Cow::into_owned));
            }
            said.insert(token.to_owned());
            ControlFlow::Continue(())
        });
    }
    said
}

/// Returns the words of the dates in a question, in lower case: names of days and months, years, and the numbers beside them.
fn words_of_dates(question: &str) -> FxHashSet<String> {
    let words: Vec<String> = sides(question)
        .flat_map(|side| side.split(|char: char| !char.is_alphanumeric()))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let is_number = |word: &String, n_digits| {
        word.len() <= n_digits && word.bytes().all(|byte| byte.is_ascii_digit())
    };
    let names_date = |word: &String| {
        let is_year = is_number(word, 4) && YEARS.contains(&word.parse().unwrap_or_default());
        is_year || entries(word).iter().any(|entry| entry.class == WordClass::Date)
    };
    let mut dates: FxHashSet<String> = FxHashSet::default();
    for at in (0..words.len()).filter(|at| names_date(&words[*at])) {
        let near = &words[at.saturating_sub(DATE_WORDS)..words.len().min(at + DATE_WORDS + 1)];
        dates.extend(near.iter().filter(|word| is_number(word, 2)).cloned());
        dates.insert(words[at].clone());
    }
    dates
}

/// Returns the parts of a question that are searched.
fn sides(question: &str) -> impl Iterator<Item = &str> {
    let mut from = question.len().saturating_sub(MAX_SIDE_BYTES);
    let mut to = question.len().min(MAX_SIDE_BYTES);
    if from <= to {
        (from, to) = (question.len(), question.len());
    }
    while !question.is_char_boundary(from) {
        from += 1;
    }
    while !question.is_char_boundary(to) {
        to -= 1;
    }
    [&question[..to], &question[from..]].into_iter()
}

/// Returns whether the text between two words is a single joint of a value.
fn is_joint(between: &str) -> bool {
    matches!(between, "." | "-" | ":")
}

/// Returns whether a text ends with a question.
pub(super) fn is_question(text: &str) -> bool {
    text.trim_end_matches(|char: char| char.is_whitespace() || "\"'`)”»*_".contains(char))
        .ends_with(['?', '？', '؟'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_ends_with_its_mark() {
        assert!(is_question("Which one? "));
        assert!(is_question("(really?)"));
        assert!(is_question("どれですか？"));
        assert!(!is_question("No."));
    }

    fn words_of(question: &str) -> String {
        let terms = RecallTerms::parse(question).terms;
        terms.iter().map(|term| term.word.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn question_becomes_its_content_words() {
        let check = |question: &str, expect: &str| {
            assert_eq!(words_of(question), expect, "{question}");
        };
        check("Which port does staging use?", "port staging use");
        check("What is UserName in main.rs", "username user name main main.rs rs");
        check("ping 10.0.0.7 on 2024-06-01", "ping 10 0 7 10.0.0.7 2024 06 01 2024-06-01");
        check("日本語は", "日本 本語 語は");
        check("Welchen Port hat die Umgebung?", "port umgebung");
        check("the", "");
        check("?! ___ -- \"\"", "");
        check("", "");
    }

    #[test]
    fn date_has_its_numbers_and_not_those_that_stand_apart() {
        let check = |question: &str, expect: &[&str]| {
            let dates = words_of_dates(question);
            assert_eq!(dates.len(), expect.len(), "{question}: {dates:?}");
            assert!(expect.iter().all(|word| dates.contains(*word)), "{question}: {dates:?}");
        };
        check("What happened on October 13, 2023?", &["october", "13", "2023"]);
        check("¿Qué dije el 3 de octubre?", &["3", "octubre"]);
        check("Was war am Freitag?", &["freitag"]);
        check("Which of the 12 racks hums since 2021?", &["2021"]);
        check("Does port 8080 take 16 clients?", &[]);
    }

    #[test]
    fn long_question_has_a_bounded_number_of_terms_from_both_ends() {
        let text: String = (0..20_000).map(|n| format!("word{n} ")).collect();
        let terms = RecallTerms::parse(&format!("{text} getUserName"));
        assert_eq!(terms.terms.len(), MAX_TERMS);
        assert!(terms.terms.iter().any(|term| term.word == "getusername"));
        let umlauts = "ü".repeat(64 << 10);
        assert!(RecallTerms::parse(&umlauts).terms.len() <= 2);
    }

    #[test]
    fn text_that_repeats_the_question_says_no_more() {
        let check = |text: &str, expect: bool| {
            let terms = RecallTerms::parse("Which port does the staging server use?");
            assert_eq!(terms.says_more(text), expect, "{text}");
        };
        check("Which port does the staging server use?", false);
        check("which ports do staging servers use", false);
        check("What port is staging using, again?", false);
        check("The staging server uses port 48213.", true);
        check("The staging server uses the blue port.", true);
        check("Does the production server of the shop use another firewall?", true);
        check("Which port does staging server 7 use?", true);
        check("", false);
        let terms = RecallTerms::parse("日本語の本はどこですか？");
        assert!(!terms.says_more("日本語の本はどこですか"));
        assert!(terms.says_more("日本語の本は東京にあります"));
    }

    #[test]
    fn terms_match_other_forms_of_their_words() {
        let terms = RecallTerms::parse("When did she move the boxes?");
        let mut found = Vec::new();
        let text = "They were moving a box, she moved it";
        terms.each_match(text, |set, range| found.push((terms.words(set), &text[range])));
        let words: Vec<_> = found.iter().map(|(words, at)| (words[0].as_str(), *at)).collect();
        assert_eq!(words, [("move", "moving"), ("boxes", "box"), ("move", "moved")]);
    }
}
