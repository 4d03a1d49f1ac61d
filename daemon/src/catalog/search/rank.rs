//! The relevance of a text for a query.
//!
//! The score resembles BM25 within a pool of candidates. Every candidate contains every term, so the rarity of a term
//! has no influence. A score depends on the number of occurrences for the length of the text, on their distance, and on
//! whether the session's title contains the terms. Pure.

use super::terms::{SearchTerm, all_matches, first_matches};

/// The saturation of further occurrences of a term, as in BM25.
const SATURATION: f64 = 1.2;
/// The weight of a text's length against its occurrences, as in BM25.
const LENGTH_SHARE: f64 = 0.75;
/// The bonus for all terms side by side, relative to one term that fills its text.
const PROXIMITY: f64 = 1.0;
/// The bonus for a title with all terms.
const TITLE: f64 = 1.5;
/// The distance of the terms at which their proximity counts half, in bytes.
const NEAR_BYTES: f64 = 40.0;

/// The properties of a text that its score is computed from.
#[derive(Debug)]
pub(super) struct MatchStatistics {
    /// Number of occurrences of each term.
    frequencies: Vec<u32>,
    bytes: usize,
    /// The shortest stretch that contains all terms, in bytes.
    span_bytes: Option<usize>,
    in_title: bool,
}

impl MatchStatistics {
    /// Measures a text in a session with this title.
    pub(super) fn of(text: &str, title: &str, terms: &[SearchTerm]) -> Self {
        let matches = all_matches(terms, text);
        let mut frequencies = vec![0; terms.len()];
        for (term, _) in &matches {
            frequencies[*term] += 1;
        }
        let starts: Vec<_> = matches.iter().map(|(term, range)| (*term, range.start)).collect();
        let span_bytes = shortest_span(&starts, &frequencies);
        let in_title = first_matches(terms, title).is_some();
        Self { frequencies, bytes: text.len(), span_bytes, in_title }
    }

    fn score(&self, mean_bytes: f64) -> f64 {
        let length = 1.0 - LENGTH_SHARE + LENGTH_SHARE * to_f64(self.bytes) / mean_bytes.max(1.0);
        let terms: f64 = self
            .frequencies
            .iter()
            .map(|count| f64::from(*count))
            .map(|count| count * (SATURATION + 1.0) / (count + SATURATION * length))
            .sum();
        let proximity =
            self.span_bytes.map_or(0.0, |span| PROXIMITY / (1.0 + to_f64(span) / NEAR_BYTES));
        terms + proximity + if self.in_title { TITLE } else { 0.0 }
    }
}

/// Orders candidates by score, the best first; candidates of equal score keep their order.
pub(super) fn rank<T>(pool: Vec<(MatchStatistics, T)>) -> Vec<(T, f64)> {
    let bytes: usize = pool.iter().map(|(statistics, _)| statistics.bytes).sum();
    let mean_bytes = to_f64(bytes) / to_f64(pool.len().max(1));
    let scored = pool.into_iter().map(|(statistics, item)| (item, statistics.score(mean_bytes)));
    let mut ranked: Vec<_> = scored.collect();
    ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    ranked
}

/// Returns the length of the shortest stretch with every term that occurs; `None` if fewer than two occur. `starts`
/// holds the number and first byte of each occurrence, in order.
fn shortest_span(starts: &[(usize, usize)], frequencies: &[u32]) -> Option<usize> {
    let n_terms = frequencies.iter().filter(|count| **count > 0).count();
    if n_terms < 2 {
        return None;
    }
    let mut inside = vec![0_u32; frequencies.len()];
    let (mut n_inside, mut from, mut shortest) = (0, 0, None);
    for (term, end) in starts {
        n_inside += usize::from(inside[*term] == 0);
        inside[*term] += 1;
        while n_inside == n_terms {
            let (first, start) = starts[from];
            shortest = Some(shortest.map_or(end - start, |span: usize| span.min(end - start)));
            inside[first] -= 1;
            n_inside -= usize::from(inside[first] == 0);
            from += 1;
        }
    }
    shortest
}

#[expect(clippy::cast_precision_loss, reason = "a score needs no more than its first digits")]
const fn to_f64(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::search::terms::ParsedQuery;

    fn score(text: &str, title: &str) -> f64 {
        let terms = ParsedQuery::parse("alpha beta").expect("parses").terms;
        MatchStatistics::of(text, title, &terms).score(60.0)
    }

    #[test]
    fn score_grows_with_occurrences_proximity_and_title() {
        let filler = "word ".repeat(10);
        let base = score(&format!("alpha {filler} beta"), "");
        assert!(score(&format!("alpha alpha {filler} beta"), "") > base);
        assert!(score(&format!("alpha beta {filler}"), "") > base);
        assert!(score(&format!("alpha {filler} beta"), "Alpha and beta") > base);
        assert!(score(&format!("alpha {filler} beta {filler} {filler}"), "") < base);
    }

    #[test]
    fn shortest_span_covers_all_terms() {
        let check = |starts: &[(usize, usize)], expect| {
            let mut frequencies = vec![0; 2];
            starts.iter().for_each(|(term, _)| frequencies[*term] += 1);
            assert_eq!(shortest_span(starts, &frequencies), expect, "{starts:?}");
        };
        check(&[(0, 0), (1, 50), (0, 55), (1, 90)], Some(5));
        check(&[(0, 0), (0, 9)], None);
    }
}
