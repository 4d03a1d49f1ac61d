//! Languages of texts: their stop words, and the stems of their words.
//!
//! The language of a text is the one whose stop words it clearly has most of. A text with few stop words, such as a
//! short question, counts as English, or as the main language of its script. A wrong guess costs the other forms of a
//! word, never the word itself, because the index has each word as it was written too.
//!
//! Pure. A change of the languages or of the stemming library needs a new [`super::query::schema::VERSION`].

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::OnceLock;

use frostem::{Algorithm, Stemmer};
use rustc_hash::FxHashMap;

use super::words;

/// The languages: their stemmers, and the codes of their stop words. English is the first, which a tie prefers.
const LANGUAGES: &[(Algorithm, &str)] = &[
    (Algorithm::English, "en"),
    (Algorithm::Arabic, "ar"),
    (Algorithm::Basque, "eu"),
    (Algorithm::Catalan, "ca"),
    (Algorithm::Danish, "da"),
    (Algorithm::Dutch, "nl"),
    (Algorithm::Finnish, "fi"),
    (Algorithm::French, "fr"),
    (Algorithm::German, "de"),
    (Algorithm::Greek, "el"),
    (Algorithm::Hungarian, "hu"),
    (Algorithm::Indonesian, "id"),
    (Algorithm::Italian, "it"),
    (Algorithm::Norwegian, "no"),
    (Algorithm::Portuguese, "pt"),
    (Algorithm::Romanian, "ro"),
    (Algorithm::Russian, "ru"),
    (Algorithm::Spanish, "es"),
    (Algorithm::Swedish, "sv"),
    (Algorithm::Tamil, "ta"),
    (Algorithm::Turkish, "tr"),
];
/// Number of words by which the language of a text is found.
const MAX_SAMPLE_WORDS: usize = 200;
/// The lengths of words that have a stem, in bytes. Longer words are mostly encoded data.
const STEMMED_BYTES: std::ops::RangeInclusive<usize> = 3..=48;

/// The language of a text.
#[derive(Clone, Copy)]
pub(super) struct TextLanguage {
    /// The place in [`LANGUAGES`].
    number: usize,
    stemmer: Stemmer,
}

impl TextLanguage {
    fn new(number: usize) -> Self {
        Self { number, stemmer: Stemmer::new(LANGUAGES[number].0) }
    }

    pub(super) fn english() -> Self {
        Self::new(0)
    }

    /// Returns the language of a text.
    pub(super) fn of(text: &str) -> Self {
        let mut counts = [0_u32; LANGUAGES.len()];
        let (mut n_words, mut of_script) = (0, 0);
        words::each_token(text, |word, _| {
            let mut languages = stop_word_languages(word);
            while languages != 0 {
                counts[languages.trailing_zeros() as usize] += 1;
                languages &= languages - 1;
            }
            if of_script == 0 {
                of_script = word.chars().next().map_or(0, language_of_script);
            }
            n_words += 1;
            if n_words == MAX_SAMPLE_WORDS {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        let most = counts.iter().copied().max().unwrap_or_default();
        let found = counts.iter().position(|count| *count == most);
        // Short words such as `no` and `so` are stop words of many languages.
        let is_clear = most >= 2 && most > counts[0] + counts[0] / 2;
        Self::new(found.filter(|_| is_clear).unwrap_or(of_script))
    }

    /// Returns whether a token is a stop word of this language.
    pub(super) fn is_stop_word(self, token: &str) -> bool {
        stop_word_languages(token) >> self.number & 1 == 1
    }

    /// Returns the stem of a token, or `None` if the token is not a word or is its own stem.
    pub(super) fn stem(self, token: &str) -> Option<Cow<'_, str>> {
        let is_word =
            STEMMED_BYTES.contains(&token.len()) && token.chars().all(char::is_alphabetic);
        if !is_word || token.chars().next().is_some_and(words::is_cjk) {
            return None;
        }
        Some(self.stemmer.stem(token)).filter(|stem| stem != token && !stem.is_empty())
    }
}

impl PartialEq for TextLanguage {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

/// Returns the number of the main language of a character's script; that of English for other scripts.
fn language_of_script(char: char) -> usize {
    let code = match u32::from(char) {
        0x0370..=0x03FF => "el",
        0x0400..=0x052F => "ru",
        0x0600..=0x06FF => "ar",
        0x0B80..=0x0BFF => "ta",
        _ => "en",
    };
    LANGUAGES.iter().position(|(_, of)| *of == code).unwrap_or_default()
}

/// Returns the languages of which a token is a stop word, one bit for each.
fn stop_word_languages(token: &str) -> u32 {
    static STOP_WORDS: OnceLock<FxHashMap<&'static str, u32>> = OnceLock::new();
    let all = STOP_WORDS.get_or_init(|| {
        let mut all = FxHashMap::default();
        for (number, (_, code)) in LANGUAGES.iter().enumerate() {
            for word in stop_words::lookup(code).unwrap_or_default() {
                // Texts are split at apostrophes: `isn't` has the words `isn` and `t`.
                for part in word.split(['\'', '’', ' ']).filter(|part| !part.is_empty()) {
                    *all.entry(part).or_default() |= 1 << number;
                }
            }
        }
        all
    });
    all.get(token).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn language_of_a_text_is_that_of_its_stop_words() {
        let check = |text: &str, code: &str| {
            assert_eq!(LANGUAGES[TextLanguage::of(text).number].1, code, "{text}");
        };
        check("Which port does staging use?", "en");
        check("Welchen Port hat die Umgebung, und warum ist das so?", "de");
        check("¿Qué puerto usa el servidor de pruebas y por qué?", "es");
        check("Quel est le port du serveur ?", "fr");
        check("Какой порт", "ru");
        check("cargo build", "en");
        check("日本語", "en");
        check("", "en");
    }

    #[test]
    fn every_language_has_stop_words() {
        for (_, code) in LANGUAGES {
            assert!(stop_words::lookup(code).is_some_and(|words| words.len() > 20), "{code}");
        }
    }

    #[test]
    fn forms_of_a_word_have_one_stem() {
        let check = |text: &str, forms: &[&str]| {
            let language = TextLanguage::of(text);
            let stems: Vec<_> =
                forms.iter().map(|form| language.stem(form).unwrap_or((*form).into())).collect();
            assert!(stems.iter().all(|stem| *stem == stems[0]), "{stems:?}");
        };
        check("it is for the", &["move", "moved", "moving", "moves"]);
        check("das ist für die", &["haus", "hauses"]);
        check("это для нас", &["книга", "книги", "книгу"]);
        let english = TextLanguage::english();
        assert_eq!(english.stem("move"), None);
        for token in ["48213", "get\u{80}user", "日本", "a", ""] {
            assert_eq!(english.stem(token), None, "{token}");
        }
    }
}
