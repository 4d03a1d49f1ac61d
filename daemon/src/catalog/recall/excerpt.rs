//! The part of a text that answers a question: whole sentences around the matches, or all of a short text.
//!
//! Pure.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation as _;

use super::numbers::*;
use super::terms::{RecallTerms, TermSet};

/// An excerpt, and the terms of the question in the whole text.
pub(super) struct Excerpt {
    pub text: String,
    pub terms: TermSet,
}

/// Returns the sentences of a text that contain most of a question, or the whole text if it is short: what is asked for
/// often stands beside the words that are asked with. `weights` are those of the terms.
pub(super) fn excerpt(text: &str, terms: &RecallTerms, weights: &[f64]) -> Excerpt {
    let text = &text[..floor_char(text, MAX_TEXT_BYTES)];
    let mut matches: Vec<(TermSet, Range<usize>)> = Vec::new();
    let mut all = 0;
    terms.each_match(text, |set, range| {
        all |= set;
        matches.push((set, range));
    });
    if text.trim().len() <= MAX_EXCERPT_BYTES {
        return Excerpt { text: text.trim().to_owned(), terms: all };
    }
    let focus = best_stretch(&matches, weights).unwrap_or(0..0);
    Excerpt { text: sentences(text, focus, MAX_EXCERPT_BYTES), terms: all }
}

/// Returns the last sentences of a message before the one that was found, which may be the question to it.
pub(super) fn ending(text: &str) -> String {
    let text = text.trim_end();
    sentences(text, text.len().saturating_sub(1)..text.len(), MAX_NEIGHBOR_BYTES)
}

/// Returns the first sentences of a message after the one that was found, which may be the answer to it.
pub(super) fn beginning(text: &str) -> String {
    sentences(&text[..floor_char(text, MAX_TEXT_BYTES)], 0..0, MAX_NEIGHBOR_BYTES)
}

/// Returns the stretch of at most [`NEAR_BYTES`] whose different terms weigh most.
fn best_stretch(matches: &[(TermSet, Range<usize>)], weights: &[f64]) -> Option<Range<usize>> {
    let weight = |set: TermSet| -> f64 {
        let terms = weights.iter().enumerate().filter(|(number, _)| set >> number & 1 == 1);
        terms.map(|(_, weight)| weight).sum()
    };
    let mut best: Option<(f64, Range<usize>)> = None;
    for (at, (_, first)) in matches.iter().enumerate() {
        let near =
            matches[at..].iter().take_while(|(_, range)| range.end <= first.start + NEAR_BYTES);
        let (mut set, mut end) = (0, first.end);
        for (terms, range) in near {
            if terms & !set != 0 {
                set |= terms;
                end = end.max(range.end);
            }
        }
        let weight = weight(set);
        if best.as_ref().is_none_or(|(most, _)| weight > *most) {
            best = Some((weight, first.start..end));
        }
    }
    best.map(|(_, range)| range)
}

/// Returns the whole sentences around a range, and the next one if they are short.
fn sentences(text: &str, focus: Range<usize>, max_bytes: usize) -> String {
    let from = floor_char(text, focus.start.saturating_sub(max_bytes));
    let to = floor_char(text, focus.end.saturating_add(2 * max_bytes));
    let mut range: Option<Range<usize>> = None;
    for (offset, sentence) in text[from..to].split_sentence_bound_indices() {
        let (start, end) = (from + offset, from + offset + sentence.len());
        let is_in_focus = end > focus.start && (start < focus.end || start <= focus.start);
        match &mut range {
            None if is_in_focus => range = Some(start..end),
            Some(range) if is_in_focus || end - range.start <= EXTENDED_BYTES => range.end = end,
            Some(_) => break,
            None => {}
        }
    }
    cut(text, range.unwrap_or(from..to), &focus, max_bytes)
}

/// Cuts a range that is too long around its focus, between words.
fn cut(text: &str, range: Range<usize>, focus: &Range<usize>, max_bytes: usize) -> String {
    let trimmed = text[range.clone()].trim();
    if trimmed.len() <= max_bytes {
        return trimmed.to_owned();
    }
    let focus_end = focus.end.min(focus.start + max_bytes / 2);
    let from = focus_end.saturating_sub(max_bytes / 2).max(range.start);
    let from = floor_char(text, from);
    let to = floor_char(text, (from + max_bytes).min(range.end));
    let piece = &text[from..to];
    let skip = if from == range.start {
        0
    } else {
        piece.find(' ').filter(|at| *at < 40).map_or(0, |at| at + 1)
    };
    let keep = if to == range.end {
        piece.len()
    } else {
        piece.rfind(' ').filter(|at| *at > skip).unwrap_or(piece.len())
    };
    let before = if from == range.start { "" } else { "…" };
    let after = if to == range.end { "" } else { "…" };
    format!("{before}{}{after}", piece[skip..keep].trim())
}

/// Returns the greatest boundary of a character that is not above `at`.
fn floor_char(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn excerpt_of(text: &str, question: &str) -> String {
        let terms = RecallTerms::parse(question);
        excerpt(text, &terms, &vec![1.0; terms.terms.len()]).text
    }

    #[test]
    fn excerpt_is_whole_sentences_around_the_match() {
        let filler = "Nothing of interest was said here by anybody at all. ".repeat(20);
        let fact = "The staging port is 48213.";
        let text = format!("{filler}{fact} {filler}");
        let found = excerpt_of(&text, "which port does staging use?");
        assert!(found.starts_with(fact) && found.ends_with("at all."), "{found}");
        assert!(found.len() <= EXTENDED_BYTES, "{found}");
        assert_eq!(excerpt_of("One line\nport is here\n", "port"), "One line\nport is here");
        let whole = &filler[..MAX_EXCERPT_BYTES];
        assert_eq!(excerpt_of(whole, "interest"), whole.trim());
        assert_eq!(excerpt_of("nothing", "port"), "nothing");
        assert_eq!(excerpt_of("", "port"), "");
    }

    #[test]
    fn sentence_that_is_too_long_is_cut_between_words() {
        let hay = "hay ".repeat(1000);
        let found = excerpt_of(&format!("{hay}needle {hay}"), "needle");
        assert!(found.starts_with("…hay") && found.contains("needle") && found.ends_with("hay…"));
        assert!(found.len() <= MAX_EXCERPT_BYTES + 6);
    }

    #[test]
    fn stretch_with_most_terms_is_shown() {
        let hay = "Only hay. ".repeat(100);
        let text = format!("The port. {hay}The staging port. {hay}The staging.");
        assert!(excerpt_of(&text, "staging port").starts_with("The staging port."));
    }

    proptest! {
        #[test]
        fn any_text_gives_a_bounded_excerpt(before in any::<String>(), after in any::<String>(), n in 0..200_usize) {
            let text = format!("{}{before} needle {after}{}", "é ".repeat(n), "日本".repeat(n));
            let found = excerpt_of(&text, "needle 日本");
            prop_assert!(found.len() <= MAX_EXCERPT_BYTES + 6);
            prop_assert!(beginning(&text).len() <= MAX_NEIGHBOR_BYTES + 6);
            prop_assert!(ending(&text).len() <= MAX_NEIGHBOR_BYTES + 6);
        }
    }
}
