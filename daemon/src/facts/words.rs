//! The points of the words of a sentence: how much more likely a sentence with the word states something that lasts.
//!
//! The classes of `languages` say what kind of sentence it is. Words say what people keep: `my`, `allergic`, `deploy`. A word
//! is in `words.txt` only if at least three people said it among the labeled sentences, and with the points that
//! `cargo bench --bench facts` fits to all of them together. A language without words there has its features alone.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use super::numbers::STEM_CHARS;
use crate::languages::is_joined_script;

/// The points of each word and pair of words in `words.txt`.
static WORDS: LazyLock<FxHashMap<&'static str, i32>> = LazyLock::new(|| {
    let lines = include_str!("words.txt").lines().filter(|line| !line.starts_with('#'));
    let of_line = |line: &'static str| {
        let (points, words) = line.split_once(':').unwrap_or(("0", line));
        let points = points.parse().unwrap_or(0);
        words.split_whitespace().map(move |word| (word, points))
    };
    lines.flat_map(of_line).collect()
});

/// Returns the sum of the points of the words of a sentence, each counted once.
pub(super) fn word_points(sentence: &str) -> i32 {
    let mut found: Vec<(&'static str, i32)> = Vec::new();
    for_each_word(sentence, |word| {
        if let Some((word, points)) = WORDS.get_key_value(word) {
            found.push((*word, *points));
        }
    });
    found.sort_unstable();
    found.dedup();
    found.into_iter().map(|(_, points)| points).sum()
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
    fn file_has_points_and_words_that_a_sentence_can_have() {
        let mut known = Vec::new();
        for line in include_str!("words.txt").lines().filter(|line| !line.starts_with('#')) {
            let (points, words) = line.split_once(": ").expect("points and words");
            assert!(points.parse::<i32>().is_ok_and(|points| points != 0), "{line}");
            known.extend(words.split_whitespace());
        }
        let n_words = known.len();
        known.sort_unstable();
        known.dedup();
        assert!(known.len() == n_words && n_words == WORDS.len(), "a word stands there twice");
        assert!(known.iter().all(|word| *word == word.to_lowercase()));
    }
}
