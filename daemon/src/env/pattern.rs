//! Patterns for the names of variables: `*` matches any characters, `?` matches one; case is ignored.
//!
//! A pattern is compared with the words of a name. Words are separated by `_`, by any other character that is neither
//! letter nor digit, and by a change from a lower to an upper case letter. So `apiKey`, `api-key` and `API_KEY` are one
//! name, and `*_KEY` matches neither `MONKEY` nor `KEYBOARD`. A number at the end of a name is ignored.

/// The longest pattern in bytes. Names of variables are far shorter, so a longer pattern is a mistake.
const MAX_BYTES: usize = 256;

/// A pattern in upper case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamePattern(String);

/// The reason why a text is not a pattern, worded to follow the text in a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PatternError {
    #[error("is empty")]
    Empty,
    #[error("has more than {MAX_BYTES} bytes")]
    TooLong,
    #[error("contains {0:?}, but only letters, digits, `_`, `-`, `.`, `*` and `?` are allowed")]
    InvalidChar(char),
}

/// The forms of a name that patterns are compared with, all in upper case.
pub(super) struct VariableName {
    exact: String,
    /// The words, separated by `_`.
    words: String,
    /// The words without a number at the end.
    unnumbered: String,
}

impl VariableName {
    pub(super) fn new(name: &str) -> Self {
        let words = words_of(name);
        let unnumbered = words.trim_end_matches(|char: char| char == '_' || char.is_numeric());
        Self { exact: name.to_uppercase(), unnumbered: unnumbered.to_owned(), words }
    }
}

fn words_of(name: &str) -> String {
    let mut words = String::with_capacity(name.len() + 4);
    let mut after_lowercase = false;
    for char in name.chars() {
        if !char.is_alphanumeric() {
            words.push('_');
        } else {
            if after_lowercase && char.is_uppercase() {
                words.push('_');
            }
            words.extend(char.to_uppercase());
        }
        after_lowercase = char.is_lowercase();
    }
    words
}

impl NamePattern {
    /// Creates a pattern from a text that is known to be valid.
    pub(super) fn built_in(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Parses a configured pattern.
    pub(super) fn parse(text: &str) -> Result<Self, PatternError> {
        let text = text.trim();
        let is_invalid =
            |char: &char| !(char.is_alphanumeric() || ['_', '-', '.', '*', '?'].contains(char));
        match text.chars().find(is_invalid) {
            _ if text.is_empty() => Err(PatternError::Empty),
            _ if text.len() > MAX_BYTES => Err(PatternError::TooLong),
            Some(char) => Err(PatternError::InvalidChar(char)),
            None => Ok(Self(text.to_uppercase())),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the pattern matches any form of the name.
    pub(super) fn matches(&self, name: &VariableName) -> bool {
        [&name.exact, &name.words, &name.unnumbered].into_iter().any(|form| self.matches_text(form))
    }

    /// Returns whether the pattern matches the name itself, apart from case.
    pub(super) fn matches_exactly(&self, name: &VariableName) -> bool {
        self.matches_text(&name.exact)
    }

    /// Backtracks to the last `*` at a mismatch. The time is linear for one `*`, and at worst the product of both
    /// lengths.
    fn matches_text(&self, text: &str) -> bool {
        let (pattern, text): (Vec<char>, Vec<char>) =
            (self.0.chars().collect(), text.chars().collect());
        let (mut at, mut read) = (0, 0);
        let mut star = None;
        while read < text.len() {
            match pattern.get(at) {
                Some('*') => {
                    star = Some((at, read));
                    at += 1;
                }
                Some(char) if *char == '?' || *char == text[read] => {
                    (at, read) = (at + 1, read + 1);
                }
                _ => match &mut star {
                    Some((after, taken)) => {
                        *taken += 1;
                        (at, read) = (*after + 1, *taken);
                    }
                    None => return false,
                },
            }
        }
        pattern[at..].iter().all(|char| *char == '*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_words_of_names() {
        let check = |pattern: &str, name: &str, expect: bool| {
            let parsed = NamePattern::parse(pattern).unwrap();
            assert_eq!(parsed.matches(&VariableName::new(name)), expect, "{pattern} {name}");
        };
        check("*_KEY", "API_KEY", true);
        check("*_key", "api_key", true);
        check("*_KEY", "apiKey", true);
        check("*_KEY", "api-key", true);
        check("*_KEY", "api.key", true);
        check("*_KEY", "API_KEY_2", true);
        check("*_KEY", "API_KEY2", true);
        check("*_KEY", "MONKEY", false);
        check("*_KEY", "KEYBOARD", false);
        check("*_KEY", "API_KEYS", false);
        check("*_PWD", "PWD", false);
        check("*_PWD", "OLDPWD", false);
        check("*_PWD", "DB_PWD", true);
        check("TOKEN", "TOKENIZERS", false);
        check("TOKEN", "token", true);
        check("PG*PASSWORD", "PGPASSWORD", true);
        check("A?C*", "ABC", true);
        check("A?C*", "AC", false);
        check("*", "", true);
        check("*_*_*", "A_B", false);
        check("*A*A*A*B", &"A".repeat(200), false);
        check("N\u{c4}ME_*", "n\u{e4}me_x", true);
    }

    #[test]
    fn invalid_pattern_is_an_error() {
        let check = |text: &str, error| assert_eq!(NamePattern::parse(text), Err(error), "{text}");
        check("", PatternError::Empty);
        check("  ", PatternError::Empty);
        check("[bad", PatternError::InvalidChar('['));
        check("A=B", PatternError::InvalidChar('='));
        check("A B", PatternError::InvalidChar(' '));
        check("(", PatternError::InvalidChar('('));
        check(&"A".repeat(257), PatternError::TooLong);
    }
}
