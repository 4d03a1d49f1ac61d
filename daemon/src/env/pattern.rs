//! Patterns of names: `*` stands for any run of characters, `?` for one; case is irrelevant.
//!
//! A name is judged by its words: `_`, every other sign and a change from small to capital letters part them, so
//! `apiKey`, `api-key` and `API_KEY` are one name, and `*_KEY` fits neither `MONKEY` nor `KEYBOARD`. A number at
//! the end does not make another name of it.

use std::fmt;

/// The longest pattern in bytes; names of variables are far shorter, and a longer one is something else by mistake.
const MAX_BYTES: usize = 256;

/// A pattern in capitals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(String);

/// Why a text is no pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    Empty,
    TooLong,
    Sign(char),
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => out.write_str("is empty"),
            Self::TooLong => write!(out, "has more than {MAX_BYTES} bytes"),
            Self::Sign(sign) => write!(
                out,
                "has {sign:?}, while only letters, digits, `_`, `-`, `.`, `*` and `?` may be in one"
            ),
        }
    }
}

/// A name in the forms in which it is compared, all in capitals.
pub(super) struct Name {
    as_is: String,
    words: String,
    without_number: String,
}

impl Name {
    /// Takes a name apart.
    pub(super) fn new(name: &str) -> Self {
        let words = words(name);
        let without_number = words.trim_end_matches(|sign: char| sign == '_' || sign.is_numeric());
        Self { as_is: name.to_uppercase(), without_number: without_number.to_owned(), words }
    }
}

fn words(name: &str) -> String {
    let mut words = String::with_capacity(name.len() + 4);
    let mut was_small = false;
    for sign in name.chars() {
        if !sign.is_alphanumeric() {
            words.push('_');
        } else {
            if was_small && sign.is_uppercase() {
                words.push('_');
            }
            words.extend(sign.to_uppercase());
        }
        was_small = sign.is_lowercase();
    }
    words
}

impl Pattern {
    /// A pattern of this program.
    pub(super) fn built_in(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// A pattern of the configuration.
    pub(super) fn read(text: &str) -> Result<Self, Problem> {
        let text = text.trim();
        let is_odd =
            |sign: &char| !(sign.is_alphanumeric() || ['_', '-', '.', '*', '?'].contains(sign));
        match text.chars().find(is_odd) {
            _ if text.is_empty() => Err(Problem::Empty),
            _ if text.len() > MAX_BYTES => Err(Problem::TooLong),
            Some(sign) => Err(Problem::Sign(sign)),
            None => Ok(Self(text.to_uppercase())),
        }
    }

    /// The pattern as it is shown.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Whether the name fits in any of its forms.
    pub(super) fn fits(&self, name: &Name) -> bool {
        [&name.as_is, &name.words, &name.without_number]
            .into_iter()
            .any(|form| self.fits_text(form))
    }

    /// Whether the name itself fits, apart from case.
    pub(super) fn fits_as_is(&self, name: &Name) -> bool {
        self.fits_text(&name.as_is)
    }

    /// Goes back to the last `*` where something does not fit; that is linear for one `*` and at worst the product
    /// of both lengths.
    fn fits_text(&self, text: &str) -> bool {
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
                Some(sign) if *sign == '?' || *sign == text[read] => {
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
        pattern[at..].iter().all(|sign| *sign == '*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_words_of_names() {
        let check = |pattern: &str, name: &str, fits: bool| {
            let read = Pattern::read(pattern).unwrap();
            assert_eq!(read.fits(&Name::new(name)), fits, "{pattern} {name}");
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
    fn what_is_no_pattern_is_said() {
        let check = |text: &str, problem| assert_eq!(Pattern::read(text), Err(problem), "{text}");
        check("", Problem::Empty);
        check("  ", Problem::Empty);
        check("[bad", Problem::Sign('['));
        check("A=B", Problem::Sign('='));
        check("A B", Problem::Sign(' '));
        check("(", Problem::Sign('('));
        check(&"A".repeat(257), Problem::TooLong);
    }
}
