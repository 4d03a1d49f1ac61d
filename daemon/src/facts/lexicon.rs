//! What the words of a sentence say about its kind, by the classes of `languages`.

use crate::languages::{
    WordClass, WordEntry, entries, has_class, is_joined_script, joined_words, texts,
};

/// The classes of the words of a sentence, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClassSet(u64);

impl ClassSet {
    pub(super) const fn has(self, class: WordClass) -> bool {
        self.0 & (1 << class as u32) != 0
    }

    pub(super) const fn with(self, class: WordClass) -> Self {
        Self(self.0 | (1 << class as u32))
    }

    pub(super) const fn join(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What the lexicon knows of a sentence.
#[derive(Debug, Default)]
pub(super) struct Reading {
    /// The classes of each word, in order.
    pub(super) words: Vec<ClassSet>,
    /// The classes of all words.
    pub(super) all: ClassSet,
    /// The languages that most function words belong to, as a set of bits; all languages if there is none.
    pub(super) languages: u32,
}

/// Returns the words of a lower-case text.
pub(super) fn words_of(rest: &str) -> Vec<&str> {
    rest.split(|char| !is_word_char(char)).filter(|word| !word.is_empty()).collect()
}

/// Whether a character is within a word; the signs of Indian scripts between letters are.
fn is_word_char(char: char) -> bool {
    char.is_ascii_alphanumeric()
        || !char.is_ascii() && char.is_alphanumeric()
        || matches!(char, '\'' | '-' | '\u{0900}'..='\u{0963}' | '\u{0966}'..='\u{0DFF}' | '\u{200C}' | '\u{200D}')
}

/// Looks the lower-case words of a sentence up. A word means only what it means in the sentence's own language.
pub(super) fn read_words(words: &[&str], sentence: &str) -> Reading {
    let entries: Vec<&[WordEntry]> = words.iter().map(|word| entries(word)).collect();
    let languages = likely_languages(&entries);
    let mut reading =
        Reading { words: Vec::with_capacity(words.len()), languages, ..Reading::default() };
    for (at, entries) in entries.into_iter().enumerate() {
        let mut classes = ClassSet::default();
        for entry in entries.iter().filter(|entry| entry.languages & languages != 0) {
            if entry.rest.is_empty() || follows(&words[at + 1..], entry.rest) {
                classes = classes.with(entry.class);
            }
        }
        reading.all = reading.all.join(classes);
        reading.words.push(classes);
    }
    if sentence.chars().any(is_joined_script) {
        let whole = sentence.trim_matches(|char: char| !char.is_alphanumeric());
        for (at, char) in whole.char_indices() {
            for (word, class) in joined_words(char) {
                let is_there = whole[at..].starts_with(word);
                // A command begins or ends its sentence.
                let is_end = at == 0 || at + word.len() == whole.len();
                if is_there && (is_end || *class != WordClass::Command) {
                    reading.all = reading.all.with(*class);
                }
            }
        }
    }
    reading
}

/// Returns whether a lower-case word is a unit or a month or a day in any language.
pub(super) fn is_unit(word: &str) -> bool {
    has_class(word, WordClass::Unit)
        || is_date(word)
        || texts(WordClass::Unit).iter().any(|unit| word.starts_with(unit))
}

/// Returns whether a lower-case word is a month or a day in any language.
pub(super) fn is_date(word: &str) -> bool {
    has_class(word, WordClass::Date)
}

/// Returns whether a sentence in lower case denies or forbids something.
pub(super) fn denies(words: &[&str], sentence: &str) -> bool {
    // French joins the denial with the verb: `n'utilise`.
    let is_denial = |word: &&str| word.starts_with("n'") || has_class(word, WordClass::Denial);
    words.iter().any(is_denial)
        || sentence.chars().any(is_joined_script)
            && texts(WordClass::Denial).iter().any(|part| sentence.contains(part))
}

/// Returns whether a character of a joined script has no meaning of its own.
pub(super) fn is_function_char(char: char) -> bool {
    texts(WordClass::Function).iter().any(|function| function.starts_with(char))
}

/// Returns the languages with the most words of a sentence, function words first.
fn likely_languages(entries: &[&[WordEntry]]) -> u32 {
    let mut counts = [0_u32; u32::BITS as usize];
    let tells_language =
        |entry: &&WordEntry| entry.rest.is_empty() && entry.class <= WordClass::Function;
    for entry in entries.iter().copied().flatten().filter(tells_language) {
        let weight = if entry.class == WordClass::Function { 3 } else { 1 };
        let mut languages = entry.languages;
        while languages != 0 {
            counts[languages.trailing_zeros() as usize] += weight;
            languages &= languages - 1;
        }
    }
    let most = counts.iter().copied().max().unwrap_or_default();
    if most == 0 {
        return u32::MAX;
    }
    // Short sentences hardly tell related languages apart.
    let enough = if most > 6 { most - 2 } else { most.div_ceil(2) };
    let likely = |(at, count): (usize, &u32)| if *count >= enough { 1 << at } else { 0 };
    counts.iter().enumerate().map(likely).fold(0, |all, one| all | one)
}

fn follows(words: &[&str], rest: &str) -> bool {
    let mut words = words.iter();
    rest.split('_').all(|expected| words.next() == Some(&expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(sentence: &str) -> ClassSet {
        let words: Vec<&str> = sentence.split_whitespace().collect();
        read_words(&words, sentence).all
    }

    #[test]
    fn rules_are_recognized_in_many_languages() {
        let check = |sentence: &str| {
            assert!(classes(sentence).has(WordClass::Rule), "{sentence}");
        };
        check("never push to the main branch");
        check("do not touch the vendored code");
        check("die migrationen müssen vorher getestet werden");
        check("il faut toujours valider les entrées");
        check("los secretos nunca van en el repositorio");
        check("le password non vanno mai nei log, deve restare così");
        check("os testes devem passar antes do merge");
        check("de tests moeten altijd slagen");
        check("hasła muszą być zawsze szyfrowane");
        check("никогда не удаляй старые миграции");
        check("bu dosyayı asla değiştirme");
        check("يجب أن تكون الواجهة بالعربية");
        check("सभी उत्तर हमेशा हिंदी में दो");
        check("所有接口必须返回中文错误信息");
        check("コミットメッセージは必ず日本語で書く");
        check("모든 답변은 반드시 한국어로 작성");
        check("luôn kiểm tra dữ liệu đầu vào");
        check("jangan ubah berkas konfigurasi ini");
    }

    #[test]
    fn words_mean_what_they_mean_in_their_language() {
        // `nie` is "never" in German and "not" in Polish.
        assert!(classes("wir committen nie auf den hauptzweig").has(WordClass::Rule));
        assert!(!classes("to nie jest ten sam plik i nie wiem dlaczego").has(WordClass::Rule));
        assert!(!classes("the weather was nice today").has(WordClass::Rule));
    }
}
