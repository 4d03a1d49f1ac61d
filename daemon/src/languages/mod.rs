//! The words of languages that decide what a sentence says: one file for each language, with all classes of words.
//!
//! The files are made to be edited by people who speak the language: each explains its classes at its top, and a test
//! checks them by file and line. They have closed classes of words only, which say what kind of sentence it is and
//! never what it is about. Languages that a short sentence hardly tells apart share a file. A language that is missing
//! loses rules and marks without a value and nothing else, because values are found in any language.
//!
//! Pure. The files are part of the program and parsed at the first use, in a few milliseconds.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{self, StrDeserializer};

/// The files with their names. The place of a file is the bit of its language in [`WordEntry::languages`].
const FILES: [(&str, &str); 20] = [
    ("english", include_str!("english.words")),
    ("german", include_str!("german.words")),
    ("french", include_str!("french.words")),
    ("spanish", include_str!("spanish.words")),
    ("italian", include_str!("italian.words")),
    ("portuguese", include_str!("portuguese.words")),
    ("dutch", include_str!("dutch.words")),
    ("scandinavian", include_str!("scandinavian.words")),
    ("polish", include_str!("polish.words")),
    ("russian-ukrainian", include_str!("russian-ukrainian.words")),
    ("turkish", include_str!("turkish.words")),
    ("arabic", include_str!("arabic.words")),
    ("hebrew", include_str!("hebrew.words")),
    ("hindi", include_str!("hindi.words")),
    ("vietnamese", include_str!("vietnamese.words")),
    ("indonesian-malay", include_str!("indonesian-malay.words")),
    ("chinese", include_str!("chinese.words")),
    ("japanese", include_str!("japanese.words")),
    ("korean", include_str!("korean.words")),
    ("thai", include_str!("thai.words")),
];
/// The bit of English.
pub(crate) const ENGLISH: u32 = 1;
/// The bit of German, which writes all nouns with a capital.
pub(crate) const GERMAN: u32 = 1 << 1;

/// A class of words, by its name in the files, which explain it.
///
/// The words of the classes up to `Function` mean something only in a sentence of their own language. Those of the
/// classes from `Copula` on are looked for as texts, because most languages join or bend the words around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub(crate) enum WordClass {
    Rule,
    Advice,
    Naming,
    Remember,
    Change,
    Retract,
    Question,
    Command,
    Statement,
    Own,
    Filler,
    Date,
    Unit,
    Transient,
    Pronoun,
    Speaker,
    Addressee,
    Doubt,
    Report,
    Feeling,
    Liking,
    Habit,
    Person,
    Life,
    Plan,
    Episode,
    Setting,
    Courtesy,
    Back,
    Assent,
    Material,
    Function,
    Denial,
    Number,
    Interrogative,
    Abbreviation,
    Capital,
    Common,
    Copula,
    Decision,
    Next,
    Error,
    Address,
}

/// The number of classes.
const N_CLASSES: usize = WordClass::Address as usize + 1;

/// A word or the rest of a phrase, with its class.
#[derive(Clone, Copy)]
pub(crate) struct WordEntry {
    pub(crate) class: WordClass,
    /// The languages of the word, one bit for each.
    pub(crate) languages: u32,
    /// The words that must follow, separated by `_`.
    pub(crate) rest: &'static str,
}

/// The words of all files.
struct Words {
    /// The words that spaces separate, and the phrases of such words by their first one.
    spaced: FxHashMap<&'static str, Vec<WordEntry>>,
    /// The words of scripts that join words, by their first character.
    joined: FxHashMap<char, Vec<(&'static str, WordClass)>>,
    /// The words of each class that are looked for as texts, and those of scripts that join words.
    texts: [Vec<&'static str>; N_CLASSES],
}

static WORDS: LazyLock<Words> = LazyLock::new(|| {
    let mut all = Words {
        spaced: FxHashMap::default(),
        joined: FxHashMap::default(),
        texts: std::array::from_fn(|_| Vec::new()),
    };
    for (number, (_, file)) in FILES.into_iter().enumerate() {
        for_each_word(file, |_, class, word| {
            // A test finds names of classes that are unknown.
            if let Some(class) = class {
                all.add(1 << number, class, word);
            }
        });
    }
    all
});

impl Words {
    fn add(&mut self, language: u32, class: WordClass, word: &'static str) {
        let first = word.chars().next().unwrap_or_default();
        let is_joined = is_joined_script(first);
        if is_joined || class >= WordClass::Copula {
            let text = if word.contains('_') { word.replace('_', " ").leak() } else { word };
            self.texts[class as usize].push(text);
            if is_joined && class <= WordClass::Function {
                self.joined.entry(first).or_default().push((text, class));
            }
            return;
        }
        let (first, rest) = word.split_once('_').unwrap_or((word, ""));
        let entries = self.spaced.entry(first).or_default();
        let same = entries.iter_mut().find(|one| one.class == class && one.rest == rest);
        match same {
            Some(entry) => entry.languages |= language,
            None => entries.push(WordEntry { class, languages: language, rest }),
        }
    }
}

/// Calls `visit` with the number of the line, the class, which is `None` if its name is unknown, and the word, for each
/// word of a file.
fn for_each_word(
    file: &'static str,
    mut visit: impl FnMut(usize, Option<WordClass>, &'static str),
) {
    let mut class = None;
    for (at, line) in file.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let mut words = line;
        if !line.starts_with(' ') {
            let (name, rest) = line.split_once(':').unwrap_or((line, ""));
            (class, words) = (class_named(name), rest);
        }
        words.split_whitespace().for_each(|word| visit(at + 1, class, word));
    }
}

fn class_named(name: &str) -> Option<WordClass> {
    let name: StrDeserializer<'_, value::Error> = name.into_deserializer();
    WordClass::deserialize(name).ok()
}

/// Returns the entries of a lower-case word that spaces separate from others, in all languages.
pub(crate) fn entries(word: &str) -> &'static [WordEntry] {
    WORDS.spaced.get(word).map_or(&[], Vec::as_slice)
}

/// Returns the words that a character of a script that joins words begins.
pub(crate) fn joined_words(first: char) -> &'static [(&'static str, WordClass)] {
    WORDS.joined.get(&first).map_or(&[], Vec::as_slice)
}

/// Returns whether a word that spaces separate from others has a class in any language.
pub(crate) fn has_class(word: &str, class: WordClass) -> bool {
    entries(word).iter().any(|entry| entry.class == class && entry.rest.is_empty())
}

/// Returns the texts of a class in all languages: all of them for the classes that are looked for as texts, and for the
/// others those of scripts that join words.
pub(crate) fn texts(class: WordClass) -> &'static [&'static str] {
    &WORDS.texts[class as usize]
}

/// Returns whether a character belongs to a script that puts no spaces between words.
pub(crate) const fn is_unspaced_script(char: char) -> bool {
    matches!(char,
        '\u{0E00}'..='\u{0EFF}' | '\u{1000}'..='\u{109F}' | '\u{1780}'..='\u{17FF}' | '\u{3040}'..='\u{30FF}'
        | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}' | '\u{F900}'..='\u{FAFF}' | '\u{20000}'..='\u{3FFFF}')
}

/// Returns whether nothing separates the words of a character's script, or endings join them, as in Korean.
pub(crate) const fn is_joined_script(char: char) -> bool {
    let is_korean =
        matches!(char, '\u{1100}'..='\u{11FF}' | '\u{3130}'..='\u{318F}' | '\u{AC00}'..='\u{D7AF}');
    is_korean || is_unspaced_script(char)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Returns the lines above the first class, without the one that names the language.
    fn header(file: &'static str) -> Vec<&'static str> {
        file.lines().skip(1).take_while(|line| line.starts_with('#')).collect()
    }

    #[test]
    fn files_have_valid_words_and_the_same_explanation() {
        let mut problems = Vec::new();
        let expected = header(FILES[0].1);
        for (name, file) in FILES {
            let mut known = HashSet::new();
            for_each_word(file, |line, class, word| {
                let mut check = |is_valid: bool, problem: &str| {
                    if !is_valid {
                        problems.push(format!("{name}.words:{line}: `{word}` {problem}"));
                    }
                };
                check(class.is_some(), "has a class that is not explained at the top");
                let is_lower = class == Some(WordClass::Capital) || word == word.to_lowercase();
                check(is_lower, "is not in lower case");
                check(known.insert((class.map(|class| class as u8), word)), "stands there twice");
                check(!word.starts_with('_') && !word.contains("__"), "has a space too many");
            });
            let differs = header(file).iter().zip(&expected).position(|(one, other)| one != other);
            if let Some(at) = differs {
                problems.push(format!("{name}.words:{}: is not as in the other files", at + 2));
            }
            let lines = file.lines().enumerate();
            for (at, _) in
                lines.filter(|(_, line)| !line.starts_with([' ', '#']) && !line.contains(": "))
            {
                problems.push(format!("{name}.words:{}: has no class with words", at + 1));
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn explanation_names_every_class_in_order() {
        let names = header(FILES[0].1).into_iter().filter(|line| line.contains("  "));
        let names = names.filter_map(|line| line[1..].split_whitespace().next());
        let classes: Vec<_> = names.filter_map(class_named).collect();
        assert!(classes.iter().map(|class| *class as usize).eq(0..N_CLASSES), "{classes:?}");
    }

    #[test]
    fn words_are_found_by_their_form() {
        assert!(has_class("never", WordClass::Rule) && has_class("nie", WordClass::Denial));
        assert!(!has_class("no", WordClass::Retract), "only `no longer` takes back");
        assert!(entries("no").iter().any(|entry| entry.rest == "longer"));
        assert!(texts(WordClass::Address).contains(&"hi "), "a space is needed behind it");
        assert!(joined_words('禁').contains(&("禁止", WordClass::Rule)));
        assert!(texts(WordClass::Unit).iter().all(|text| text.starts_with(is_joined_script)));
    }
}
