//! The ranking of recall: BM25 over the terms of a question joined by OR, the scores of the neighboring messages, and
//! the score of the whole session.
//!
//! The index knows which documents contain a term but not how often, so every occurrence counts once; in messages that
//! changes next to nothing. The work is bounded: a term that occurs too often is read only among the newest documents,
//! and only the best documents get the scores of their neighbors.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use rusqlite::Connection;
use rustc_hash::{FxHashMap, FxHashSet};

use super::numbers::*;
use super::terms::{RecallTerms, TermSet};
use crate::catalog::document::read_bytes;
use crate::catalog::query::fulltext::{self, DocumentOrigin};
use crate::catalog::query::sessions;

const DAY_HOURS: f64 = 24.0;
/// Number of documents with a term that are read at first.
const FIRST_POSTINGS: usize = 512;
/// Number of neighboring rows that are read on each side: a message's neighbors lie near it unless many sessions were
/// active in the same minute.
const WINDOW_ROWS: usize = 5;

/// The documents that a question is asked of.
pub(super) struct RecallRange {
    /// The private term that all of them contain; absent if most documents in `docids` do anyway.
    pub private_term: Option<String>,
    pub docids: RangeInclusive<i64>,
    /// The numbers of their sessions; `None` for all.
    pub sessions: Option<FxHashSet<i64>>,
    /// About how many they are.
    pub documents: f64,
    /// The limits of the work.
    pub limits: RankingLimits,
}

/// The limits of the work for one question.
#[derive(Clone, Copy)]
pub(super) struct RankingLimits {
    /// Number of documents with a term, over all terms.
    pub postings: usize,
    /// Number of documents with one term. A term with more ranks what other terms select, and selects only the newest.
    pub term_postings: usize,
    /// Number of documents whose neighbors are read.
    pub seeds: usize,
    /// Number of documents by which sessions are scored; 0 within one session.
    pub session_documents: usize,
}

/// The number of documents up to which a question may read nearly all that have its words.
const FEW_DOCUMENTS: f64 = 5_000.0;
/// The limits for so few documents, whose rows lie on few pages.
const AMONG_FEW: RankingLimits =
    RankingLimits { postings: 24_576, term_postings: 8_192, seeds: 320, session_documents: 2_000 };
/// The limits within a long session: about 3 ms.
const WITHIN_SESSION: RankingLimits =
    RankingLimits { postings: 4_096, term_postings: 2_048, seeds: 64, session_documents: 0 };
/// The limits over many sessions: about 6 ms for a gigabyte. Every row lies on a page of its own there.
const OVER_SESSIONS: RankingLimits =
    RankingLimits { postings: 6_144, term_postings: 3_072, seeds: 96, session_documents: 256 };

impl RankingLimits {
    /// Returns the limits for a question that is asked of about `documents`.
    pub(super) fn of(documents: f64, is_one_session: bool) -> Self {
        match (documents <= FEW_DOCUMENTS, is_one_session) {
            (true, false) => AMONG_FEW,
            (true, true) => Self { session_documents: 0, ..AMONG_FEW },
            (false, false) => OVER_SESSIONS,
            (false, true) => WITHIN_SESSION,
        }
    }

    /// Returns the limits while a turn waits: half of everything, unless there are few documents.
    pub(super) fn in_turn(self) -> Self {
        if self.postings == AMONG_FEW.postings {
            return self;
        }
        Self {
            postings: self.postings / 2,
            term_postings: self.term_postings / 2,
            seeds: self.seeds / 2,
            session_documents: self.session_documents / 2,
        }
    }
}

/// A document with its score.
pub(super) struct RankedDocument {
    pub origin: DocumentOrigin,
    pub score: f64,
    /// The score of the document and its neighbors, against the weight of the question's terms, found or not.
    pub share: f64,
    /// The terms that it contains itself.
    pub terms: TermSet,
}

/// The documents for a question, the best first, and how rare its terms are.
pub(super) struct RankedDocuments {
    pub documents: Vec<RankedDocument>,
    /// The number of documents with each term.
    pub frequencies: Vec<f64>,
}

impl RankedDocuments {
    /// Returns a weight for each term by its rarity.
    pub(super) fn rarities(&self) -> Vec<f64> {
        self.frequencies.iter().map(|n| 1.0 / (1.0 + n.sqrt())).collect()
    }
}

/// Ranks the documents of a range by a question. Their age is that against the newest of them, so that the same records
/// give the same result at any time.
pub(super) fn rank(
    conn: &Connection,
    terms: &RecallTerms,
    range: &RecallRange,
) -> rusqlite::Result<RankedDocuments> {
    let postings = Postings::read(conn, terms, range)?;
    let mut ranking = Ranking::new(conn, terms, range, postings);
    ranking.read_rows()?;
    let mut documents = ranking.score()?;
    let hour = |document: &RankedDocument| document.origin.docid >> fulltext::HOUR_BITS;
    let newest = documents.iter().map(hour).max().unwrap_or_default();
    for document in &mut documents {
        document.score *= age_factor(newest - hour(document));
    }
    documents.sort_by(|one, other| {
        other.score.total_cmp(&one.score).then(other.origin.docid.cmp(&one.origin.docid))
    });
    let Postings { frequencies, .. } = ranking.postings;
    Ok(RankedDocuments { documents, frequencies })
}

fn age_factor(hours: i64) -> f64 {
    let days = to_f64(hours.max(0)) / DAY_HOURS;
    1.0 - AGE_PENALTY * days / (days + HALF_AGE_DAYS)
}

/// The documents with each term.
struct Postings {
    /// The terms of each document.
    sets: FxHashMap<i64, TermSet>,
    /// The number of documents with each term, estimated for terms that were not read to their end.
    frequencies: Vec<f64>,
}

impl Postings {
    fn read(conn: &Connection, terms: &RecallTerms, range: &RecallRange) -> rusqlite::Result<Self> {
        let capacity = range.limits.postings.min(FIRST_POSTINGS * terms.terms.len());
        let mut sets: FxHashMap<i64, TermSet> =
            FxHashMap::with_capacity_and_hasher(capacity, rustc_hash::FxBuildHasher);
        let mut frequencies = vec![0.0; terms.terms.len()];
        let mut left = range.limits.postings;
        // The terms that were not read to their end, with the oldest document that was read and their number.
        let mut rest: Vec<(usize, i64, usize)> = Vec::new();
        let mut add = |number: usize, found: &[i64]| {
            found.iter().for_each(|docid| *sets.entry(*docid).or_default() |= 1 << number);
        };
        let shards = fulltext::list_shards(conn)?;
        for (number, term) in terms.terms.iter().enumerate() {
            let expression = expression(range, &term.expression);
            let limit = FIRST_POSTINGS.min(left);
            let found = fulltext::matching(conn, &expression, &range.docids, limit)?;
            add(number, &found);
            left -= found.len();
            frequencies[number] = to_f64(found.len());
            if let Some(oldest) = found.last().filter(|_| found.len() == limit) {
                let read = fulltext::documents_in(&shards, &(*oldest..=*range.docids.end()));
                let all = fulltext::documents_in(&shards, &range.docids);
                frequencies[number] *= (all / read.max(1.0)).max(1.0);
                rest.push((number, *oldest, found.len()));
            }
        }
        // The rarest first: what remains to be read is worth most for them.
        rest.sort_by(|(one, ..), (other, ..)| frequencies[*one].total_cmp(&frequencies[*other]));
        for (number, oldest, n_read) in rest {
            if left == 0 || oldest <= *range.docids.start() {
                break;
            }
            let older = *range.docids.start()..=oldest - 1;
            let expression = expression(range, &terms.terms[number].expression);
            let limit = left.min(range.limits.term_postings.saturating_sub(n_read));
            let found = fulltext::matching(conn, &expression, &older, limit)?;
            add(number, &found);
            if found.len() < limit {
                frequencies[number] = to_f64(n_read + found.len());
            }
            left -= found.len();
        }
        Ok(Self { sets, frequencies })
    }
}

/// Returns the expression of a term within a range.
fn expression(range: &RecallRange, term: &str) -> String {
    match &range.private_term {
        Some(private) => format!("{} AND {term}", fulltext::quoted(private)),
        None => term.to_owned(),
    }
}

/// A ranking in progress.
struct Ranking<'a> {
    conn: &'a Connection,
    range: &'a RecallRange,
    postings: Postings,
    /// The weight of each term: its rarity and its kind.
    weights: Vec<f64>,
    /// The weight of all terms, without those of dates that no message has: people ask when something was said, and seldom say
    /// the date with it.
    question: f64,
    /// The documents that can get a score, by id.
    rows: BTreeMap<i64, DocumentOrigin>,
}

impl<'a> Ranking<'a> {
    fn new(
        conn: &'a Connection,
        terms: &RecallTerms,
        range: &'a RecallRange,
        postings: Postings,
    ) -> Self {
        let weigh = |(term, n): (&super::terms::RecallTerm, &f64)| {
            rarity(range.documents.max(*n), *n) * term.weight()
        };
        let of_terms = || terms.terms.iter().zip(&postings.frequencies);
        let weights: Vec<f64> = of_terms().map(weigh).collect();
        let counts = of_terms().map(|(term, n)| !term.is_date || *n > 0.0);
        let question =
            weights.iter().zip(counts).filter(|(_, counts)| *counts).map(|(it, _)| it).sum();
        Self { conn, range, postings, weights, question, rows: BTreeMap::new() }
    }

    /// Reads the rows of the best documents and of their neighbors.
    fn read_rows(&mut self) -> rusqlite::Result<()> {
        let mut best: Vec<(f64, i64)> =
            self.postings.sets.iter().map(|(docid, set)| (self.weight(*set), *docid)).collect();
        let limits = self.range.limits;
        let n_best = limits.seeds.max(limits.session_documents);
        let order = |one: &(f64, i64), other: &(f64, i64)| {
            other.0.total_cmp(&one.0).then(other.1.cmp(&one.1))
        };
        if best.len() > n_best {
            best.select_nth_unstable_by(n_best, order);
            best.truncate(n_best);
        }
        best.sort_unstable_by(order);
        let n_seeds = limits.seeds.min(best.len());
        let (seeds, others) = best.split_at_mut(n_seeds);
        // Rows are read in the order of their ids, because neighboring rows lie on one page.
        seeds.sort_unstable_by_key(|(_, docid)| *docid);
        others.sort_unstable_by_key(|(_, docid)| *docid);
        for (_, docid) in seeds {
            for origin in fulltext::origins_around(self.conn, *docid, WINDOW_ROWS)? {
                self.add_row(origin);
            }
        }
        for (_, docid) in others {
            if !self.rows.contains_key(docid)
                && let Some(origin) = fulltext::origin(self.conn, *docid)?
            {
                self.add_row(origin);
            }
        }
        Ok(())
    }

    fn add_row(&mut self, origin: DocumentOrigin) {
        let sessions = self.range.sessions.as_ref();
        if sessions.is_none_or(|sessions| sessions.contains(&origin.session)) {
            self.rows.insert(origin.docid, origin);
        }
    }

    fn weight(&self, set: TermSet) -> f64 {
        each_term(set).map(|number| self.weights[number]).sum()
    }

    fn set(&self, docid: i64) -> TermSet {
        self.postings.sets.get(&docid).copied().unwrap_or_default()
    }

    fn score(&self) -> rusqlite::Result<Vec<RankedDocument>> {
        let total: f64 = self.rows.values().map(length).sum();
        let mean = total / to_f64(self.rows.len().max(1));
        let mut by_session: FxHashMap<i64, Vec<(&DocumentOrigin, f64)>> = FxHashMap::default();
        for origin in self.rows.values() {
            let own = self.weight(self.set(origin.docid)) * saturated(1.0, length(origin) / mean);
            by_session.entry(origin.session).or_default().push((origin, own));
        }
        let bonus = self.session_scores(&by_session)?;
        let mut documents = Vec::with_capacity(self.rows.len());
        for (session, mut rows) in by_session {
            rows.sort_unstable_by_key(|(origin, _)| (origin.seq, origin.docid));
            let of_session = SESSION_SHARE * bonus.get(&session).copied().unwrap_or_default();
            for (at, (origin, own)) in rows.iter().enumerate() {
                let score = own + neighbors(&rows, at);
                if score > 0.0 {
                    let terms = self.set(origin.docid);
                    let (origin, share) = (**origin, score / self.question);
                    documents.push(RankedDocument {
                        origin,
                        score: score + of_session,
                        share,
                        terms,
                    });
                }
            }
        }
        Ok(documents)
    }

    /// Returns the score of each session as if it were one document.
    fn session_scores(
        &self,
        by_session: &FxHashMap<i64, Vec<(&DocumentOrigin, f64)>>,
    ) -> rusqlite::Result<FxHashMap<i64, f64>> {
        if self.range.limits.session_documents == 0 {
            return Ok(FxHashMap::default());
        }
        let n_sessions = match &self.range.sessions {
            Some(sessions) => to_f64(sessions.len()),
            None => to_f64(sessions::count(self.conn)?),
        };
        let mut counts: Vec<(i64, f64, Vec<f64>)> = Vec::with_capacity(by_session.len());
        for (session, rows) in by_session {
            let mut of_terms = vec![0.0; self.weights.len()];
            for (origin, _) in rows {
                each_term(self.set(origin.docid)).for_each(|number| of_terms[number] += 1.0);
            }
            let bytes = to_f64(sessions::log_bytes(self.conn, *session)?.unwrap_or_default());
            counts.push((*session, bytes, of_terms));
        }
        let mean = counts.iter().map(|(_, bytes, _)| bytes).sum::<f64>() / to_f64(counts.len());
        let rarities: Vec<f64> = (0..self.weights.len())
            .map(|number| {
                let seen = counts.iter().filter(|(.., of_terms)| of_terms[number] > 0.0).count();
                // Only the best documents were seen; a term in many documents is in many sessions.
                let share = self.postings.frequencies[number] / self.range.documents.max(1.0);
                rarity(n_sessions, to_f64(seen).max(share * n_sessions).min(n_sessions))
            })
            .collect();
        let scored = counts.into_iter().map(|(session, bytes, of_terms)| {
            let terms = of_terms.iter().zip(&rarities);
            let score = terms.map(|(n, rarity)| rarity * saturated(*n, bytes / mean)).sum();
            (session, score)
        });
        Ok(scored.collect())
    }
}

/// Returns the part of a document's score that comes from its neighbors. `rows` are of one session, in order.
fn neighbors(rows: &[(&DocumentOrigin, f64)], at: usize) -> f64 {
    let seq = |at: usize| rows[at].0.seq.0;
    let mut sum = 0.0;
    let mut before = at;
    for share in BEFORE_SHARES {
        let Some(next) = before.checked_sub(1) else { break };
        if seq(before) - seq(next) > NEAR_RECORDS {
            break;
        }
        before = next;
        sum += share * rows[before].1;
    }
    let mut after = at;
    for share in AFTER_SHARES {
        let next = after + 1;
        if next == rows.len() || seq(next) - seq(after) > NEAR_RECORDS {
            break;
        }
        after = next;
        sum += share * rows[after].1;
    }
    sum
}

/// Returns the rarity of a term that `n` of `all` documents have (the inverse document frequency of BM25).
fn rarity(all: f64, n: f64) -> f64 {
    (1.0 + (all - n + 0.5) / (n + 0.5)).ln()
}

/// Returns the share of a term's weight that `n` occurrences earn in a text of a length, relative to the mean.
fn saturated(n: f64, length: f64) -> f64 {
    n * (SATURATION + 1.0) / (n + SATURATION * (1.0 - LENGTH_SHARE + LENGTH_SHARE * length))
}

/// Returns the length of a document, by the bytes of its record.
fn length(origin: &DocumentOrigin) -> f64 {
    to_f64(read_bytes(&origin.entry).saturating_sub(RECORD_BYTES).max(1))
}

/// Returns the numbers of the terms in a set.
fn each_term(mut set: TermSet) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let number = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(number)
    })
}

#[expect(clippy::cast_precision_loss, reason = "a score needs no more than its first digits")]
fn to_f64<T: TryInto<u64>>(count: T) -> f64 {
    count.try_into().unwrap_or_default() as f64
}
