//! How well a text answers a query, by what is in the text.
//!
//! Close to BM25 within the pool of candidates: every candidate has every term, so the rarity of a term says
//! nothing here, and what counts is how often the terms come for the length of the text, how close together, and
//! whether the title of the session has them. Pure.

use super::Candidate;
use crate::catalog::terms::{Term, all_matches, first_matches};

/// How soon further occurrences stop to count, as in BM25.
const SATURATION: f64 = 1.2;
/// How much a long text is held against its occurrences, as in BM25.
const LENGTH_SHARE: f64 = 0.75;
/// What all terms side by side are worth, against one term that fills its text.
const PROXIMITY: f64 = 1.0;
/// What a title with all terms is worth.
const TITLE: f64 = 1.5;
/// Bytes between terms at which their proximity is worth half.
const NEAR_BYTES: f64 = 40.0;

/// What of a text its score is made from.
#[derive(Debug)]
pub(super) struct Weight {
    frequencies: Vec<u32>,
    bytes: usize,
    /// Bytes from the first to the last of the closest occurrences of all terms.
    span_bytes: Option<usize>,
    in_title: bool,
}

impl Weight {
    /// The weight of a text in a session with this title.
    pub(super) fn of(text: &str, title: &str, terms: &[Term]) -> Self {
        let matches = all_matches(terms, text);
        let mut frequencies = vec![0; terms.len()];
        for (term, _) in &matches {
            frequencies[*term] += 1;
        }
        let places = matches.iter().map(|(term, range)| (*term, range.start));
        let span_bytes = closest(&places.collect::<Vec<_>>(), &frequencies);
        Self {
            frequencies,
            bytes: text.len(),
            span_bytes,
            in_title: first_matches(terms, title).is_some(),
        }
    }

    fn score(&self, mean_bytes: f64) -> f64 {
        let length =
            1.0 - LENGTH_SHARE + LENGTH_SHARE * approximate(self.bytes) / mean_bytes.max(1.0);
        let terms: f64 = self
            .frequencies
            .iter()
            .map(|count| f64::from(*count))
            .map(|count| count * (SATURATION + 1.0) / (count + SATURATION * length))
            .sum();
        let near =
            self.span_bytes.map_or(0.0, |span| PROXIMITY / (1.0 + approximate(span) / NEAR_BYTES));
        terms + near + if self.in_title { TITLE } else { 0.0 }
    }
}

/// Candidates that are ranked together.
#[derive(Default)]
pub(super) struct Pool {
    found: Vec<(Weight, Candidate)>,
}

impl Pool {
    /// Adds a candidate; newer ones first.
    pub(super) fn add(&mut self, weight: Weight, candidate: Candidate) {
        self.found.push((weight, candidate));
    }

    /// The candidates with their scores, best first; of equals the newest.
    pub(super) fn ranked(self) -> Vec<(Candidate, f64)> {
        let bytes: usize = self.found.iter().map(|(weight, _)| weight.bytes).sum();
        let mean_bytes = approximate(bytes) / approximate(self.found.len().max(1));
        let scored =
            self.found.into_iter().map(|(weight, found)| (found, weight.score(mean_bytes)));
        let mut ranked: Vec<_> = scored.collect();
        ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        ranked
    }
}

/// The shortest stretch that has every term that occurs; `None` when fewer than two do.
fn closest(places: &[(usize, usize)], frequencies: &[u32]) -> Option<usize> {
    let n_terms = frequencies.iter().filter(|count| **count > 0).count();
    if n_terms < 2 {
        return None;
    }
    let mut inside = vec![0_u32; frequencies.len()];
    let (mut n_inside, mut from, mut best) = (0, 0, None);
    for (term, end) in places {
        n_inside += usize::from(inside[*term] == 0);
        inside[*term] += 1;
        while n_inside == n_terms {
            let (first, start) = places[from];
            best = Some(best.map_or(end - start, |best: usize| best.min(end - start)));
            inside[first] -= 1;
            n_inside -= usize::from(inside[first] == 0);
            from += 1;
        }
    }
    best
}

#[expect(clippy::cast_precision_loss, reason = "a score needs no more than its first digits")]
const fn approximate(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::terms::Terms;

    fn score(text: &str, title: &str) -> f64 {
        let terms = Terms::parse("alpha beta").expect("parses").terms;
        Weight::of(text, title, &terms).score(60.0)
    }

    #[test]
    fn more_closer_and_titled_is_better() {
        let filler = "word ".repeat(10);
        let plain = score(&format!("alpha {filler} beta"), "");
        assert!(score(&format!("alpha alpha {filler} beta"), "") > plain);
        assert!(score(&format!("alpha beta {filler}"), "") > plain);
        assert!(score(&format!("alpha {filler} beta"), "Alpha and beta") > plain);
        assert!(score(&format!("alpha {filler} beta {filler} {filler}"), "") < plain);
    }

    #[test]
    fn the_closest_stretch_is_found() {
        let check = |places: &[(usize, usize)], expect| {
            let mut frequencies = vec![0; 2];
            places.iter().for_each(|(term, _)| frequencies[*term] += 1);
            assert_eq!(closest(places, &frequencies), expect, "{places:?}");
        };
        check(&[(0, 0), (1, 50), (0, 55), (1, 90)], Some(5));
        check(&[(0, 0), (0, 9)], None);
    }
}
