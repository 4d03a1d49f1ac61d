//! The points of the words of a sentence: how much more likely a sentence with the word states something that lasts, or
//! takes the place of what was said before.
//!
//! The classes of `languages` say what kind of sentence it is. Words say what people keep, `my`, `allergic`, `deploy`, and
//! how they correct themselves. A word is in `words.txt` only if at least three people said it among the labeled sentences,
//! and in `replacement.txt` only if at least five of the labeled corrections and their like have it, with the points that
//! `cargo bench --bench facts` fits to all of them together. A language without words there has its features alone.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use super::numbers::STEM_CHARS;
use crate::languages::is_joined_script;

/// The points of a word or of all words of a sentence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WordPoints {
    /// For stating something that lasts.
    pub(super) lasting: i32,
    /// For taking the place of an earlier fact.
    pub(super) replacing: i32,
}

/// The points of each word and pair of words in the files.
static WORDS: LazyLock<FxHashMap<&'static str, WordPoints>> = LazyLock::new(|| {
    let mut all: FxHashMap<&str, WordPoints> = FxHashMap::default();
    for_each_entry(include_str!("words.txt"), |word, points| {
        all.entry(word).or_default().lasting = points;
    });
    for_each_entry(include_str!("replacement.txt"), |word, points| {
        all.entry(word).or_default().replacing = points;
    });
    all
});

/// Calls `visit` with each word of a file and its points: the lines that begin with points and a colon.
fn for_each_entry(file: &'static str, mut visit: impl FnMut(&'static str, i32)) {
    for line in file.lines().filter(|line| !line.starts_with('#')) {
        let Some((points, words)) = line.split_once(':') else { continue };
        let points = points.parse().unwrap_or(0);
        words.split_whitespace().for_each(|word| visit(word, points));
    }
}

/// Returns the sums of the points of the words of a sentence, each word counted once.
pub(super) fn word_points(sentence: &str) -> WordPoints {
    let mut found: Vec<(&'static str, WordPoints)> = Vec::new();
    for_each_word(sentence, |word| {
        if let Some((word, points)) = WORDS.get_key_value(word) {
            found.push((*word, *points));
        }
    });
    found.sort_unstable_by_key(|(word, _)| *word);
    found.dedup_by_key(|(word, _)| *word);
    let add = |sum: WordPoints, (_, points): (&str, WordPoints)| WordPoints {
        lasting: sum.lasting + points.lasting,
        replacing: sum.replacing + points.replacing,
    };
    found.into_iter().fold(WordPoints::default(), add)
}

/// Calls `visit` with the words of a sentence in lower case, shortened to their beginnings; with pairs of neighbors, joined
/// by `_`; and with the first word behind a `^`. Pairs of characters stand for words in scripts that join them.
pub(crate) fn for_each_word(sentence: &str, mut visit: impl FnMut(&str)) {
    let lower = sentence.to_lowercase().replace('’', "'");
    let mut before = String::new();
    for word in lower.split(|char: char| !char.is_alphanumeric() && char != '\'') {
        let word = word.trim_matches('\'');
        if word.is_empty() {
            continue;
        }
        if word.contains(is_joined_script) {
            for_each_pair(word, &mut visit);
            before.clear();
            continue;
        }
        let end = word.char_indices().nth(STEM_CHARS).map_or(word.len(), |(end, _)| end);
        let stem = &word[..end];
        visit(stem);
        // The buffer has the word before, and becomes the pair.
        before.push(if before.is_empty() { '^' } else { '_' });
        before.push_str(stem);
        visit(&before);
        stem.clone_into(&mut before);
    }
}

fn for_each_pair(word: &str, visit: &mut impl FnMut(&str)) {
    let mut starts = word.char_indices().map(|(at, _)| at);
    let mut ends = word.char_indices().map(|(at, char)| at + char.len_utf8()).skip(1);
    while let (Some(start), Some(end)) = (starts.next(), ends.next()) {
        visit(&word[start..end]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(sentence: &str) -> Vec<String> {
        let mut words = Vec::new();
        for_each_word(sentence, |word| words.push(word.to_owned()));
        words
    }

    #[test]
    fn words_are_shortened_and_joined_to_pairs() {
        assert_eq!(words("I’m allergic."), ["i'm", "^i'm", "allerg", "i'm_allerg"]);
        assert_eq!(words("端口是 80"), ["端口", "口是", "80", "^80"]);
    }

    #[test]
    fn files_have_points_and_words_that_a_sentence_can_have() {
        for file in [include_str!("words.txt"), include_str!("replacement.txt")] {
            let mut known = Vec::new();
            let lines = file.lines().filter(|line| !line.starts_with('#') && line.contains(':'));
            for line in lines {
                let (points, words) = line.split_once(": ").expect("points and words");
                assert!(points.parse::<i32>().is_ok_and(|points| points != 0), "{line}");
                known.extend(words.split_whitespace());
            }
            let n_words = known.len();
            known.sort_unstable();
            known.dedup();
            assert!(known.len() == n_words && n_words > 0, "a word stands there twice");
            assert!(known.iter().all(|word| *word == word.to_lowercase()));
        }
    }
}
