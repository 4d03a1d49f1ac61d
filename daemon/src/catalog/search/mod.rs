//! Full-text search: candidates from the index, texts from the logs.
//!
//! The index finds the documents with all words of a query. Each candidate is then read from its log, because
//! snippets are cut from there and phrases can be verified only there. A document whose record or session no longer
//! exists is skipped.
//!
//! **Invariant**: the read connection is held only while candidates are looked up, never while a log is read.

mod rank;
mod snippet;
mod terms;

use std::collections::HashMap;
use std::collections::hash_map::Entry::Vacant;
use std::fmt;
use std::ops::{Range, RangeInclusive};

use ollm_protocol::content::{Role, SearchHit, SearchSort};
use ollm_protocol::{SessionId, Timestamp};
use rusqlite::Connection;

use super::database::CatalogShared;
use super::document::{SearchDocument, project_term, role_term, session_term};
use super::error::CatalogError;
use super::query::fulltext::{self, DocumentOrigin};
use super::query::sessions::{self, SessionTitle};
use super::reading::{read_documents, session_title, split_by_bytes};
use rank::{MatchStatistics, rank};
use snippet::snippet;
use terms::{ParsedQuery, SearchTerm, first_matches};

/// Maximum number of documents that one page reads: 8 to 10 ms of work. A page that reaches this limit may have fewer
/// hits than requested; its cursor continues the search.
const MAX_CANDIDATES: usize = 1_000;
/// Number of newest candidates among which [`SearchSort::Relevance`] chooses.
const RELEVANCE_POOL: usize = 500;
/// Maximum number of candidates in the first request to the index.
const FIRST_CANDIDATES: usize = 128;
/// Number of candidates in later requests. A query that needs a second request mostly needs many candidates, and every
/// request repeats the lookup in the index.
const MORE_CANDIDATES: usize = 450;

/// The parameters of a search.
#[derive(Clone, Debug)]
pub(crate) struct SearchQuery<'a> {
    /// The words; `SessionSearchParams` describes the language.
    pub query: &'a str,
    /// Search only one session.
    pub session_id: Option<SessionId>,
    /// Search only one project.
    pub project_hash: Option<&'a str>,
    /// Search only the text of one role.
    pub role: Option<Role>,
    /// Search only text since this time.
    pub since: Option<Timestamp>,
    /// Search only text before this time.
    pub until: Option<Timestamp>,
    /// The order of the hits. Pages by relevance end with the newest 500 candidates.
    pub sort: SearchSort,
    /// Maximum number of hits on a page.
    pub limit: usize,
    /// Continue after an earlier page of the same query.
    pub cursor: Option<&'a str>,
}

/// A page of hits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SearchPage {
    /// The hits. Their score is `1 / (1 + rank)` when sorted by time, and that of [`rank()`] when sorted by relevance.
    pub hits: Vec<SearchHit>,
    /// The cursor of the next page; absent at the end.
    pub next_cursor: Option<String>,
    /// Number of sessions whose newest records are not indexed yet.
    pub behind: u64,
}

/// Searches all indexed text.
pub(super) fn search(
    shared: &CatalogShared,
    query: &SearchQuery<'_>,
) -> Result<SearchPage, CatalogError> {
    let parsed = ParsedQuery::parse(query.query)?;
    let cursor = query.cursor.map(|cursor| SearchCursor::parse(cursor, query.sort)).transpose()?;
    let behind = shared.queue.behind() as u64;
    let Some(filter) = shared.read(|conn| IndexFilter::of(conn, query))? else {
        return Ok(SearchPage { hits: Vec::new(), next_cursor: None, behind });
    };
    let mut search = Search { shared, query, parsed: &parsed, filter, titles: HashMap::new() };
    let (hits, next) = match query.sort {
        SearchSort::Newest => search.newest(cursor)?,
        SearchSort::Relevance => search.relevance(cursor)?,
    };
    Ok(SearchPage { hits, next_cursor: next.map(|cursor| cursor.to_string()), behind })
}

/// The position at which a page ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SearchCursor {
    /// The last document that was examined.
    Newest(i64),
    /// The newest document of the pool, and the number of hits on earlier pages.
    Relevance(i64, usize),
}

impl SearchCursor {
    fn parse(cursor: &str, sort: SearchSort) -> Result<Self, CatalogError> {
        let parsed = match sort {
            SearchSort::Newest => {
                cursor.strip_prefix('n').and_then(|id| id.parse().ok()).map(Self::Newest)
            }
            SearchSort::Relevance => cursor.strip_prefix('r').and_then(|numbers| {
                let (newest, skip) = numbers.split_once('-')?;
                Some(Self::Relevance(newest.parse().ok()?, skip.parse().ok()?))
            }),
        };
        parsed.filter(|cursor| cursor.docid() >= 0).ok_or(CatalogError::InvalidCursor)
    }

    const fn docid(self) -> i64 {
        match self {
            Self::Newest(docid) | Self::Relevance(docid, _) => docid,
        }
    }
}

impl fmt::Display for SearchCursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newest(docid) => write!(out, "n{docid}"),
            Self::Relevance(docid, skip) => write!(out, "r{docid}-{skip}"),
        }
    }
}

/// The filters of a query in the form that the index takes.
struct IndexFilter {
    private_terms: Vec<String>,
    docids: RangeInclusive<i64>,
}

impl IndexFilter {
    /// Translates the filters; `None` when the session is unknown, so that nothing can match.
    fn of(conn: &Connection, query: &SearchQuery<'_>) -> rusqlite::Result<Option<Self>> {
        let mut private_terms = Vec::new();
        if let Some(id) = query.session_id {
            let Some(row) = sessions::read_row(conn, id)? else { return Ok(None) };
            private_terms.push(session_term(row.num));
        }
        private_terms.extend(query.project_hash.map(project_term));
        private_terms.extend(query.role.map(role_term));
        let first = query.since.map_or(0, fulltext::first_docid);
        let last = match query.until {
            Some(until) => fulltext::last_docid(until, fulltext::spill_hours(conn)?),
            None => i64::MAX,
        };
        Ok(Some(Self { private_terms, docids: first..=last }))
    }
}

/// A candidate whose text was read and contains all terms.
struct VerifiedMatch<'a> {
    candidate: &'a DocumentOrigin,
    document: &'a SearchDocument,
    session: &'a SessionTitle,
    /// The first match of each term, in bytes of the text.
    first: Vec<Range<usize>>,
}

/// A search in progress.
struct Search<'a> {
    shared: &'a CatalogShared,
    query: &'a SearchQuery<'a>,
    parsed: &'a ParsedQuery,
    filter: IndexFilter,
    /// The candidates' sessions by number; `None` for removed ones.
    titles: HashMap<i64, Option<SessionTitle>>,
}

impl Search<'_> {
    fn newest(
        &mut self,
        cursor: Option<SearchCursor>,
    ) -> Result<(Vec<SearchHit>, Option<SearchCursor>), CatalogError> {
        let limit = self.query.limit;
        let mut hits: Vec<(i64, SearchHit)> = Vec::new();
        let terms = &self.parsed.terms;
        let before = cursor.map(SearchCursor::docid);
        let last = self.each_match(before, MAX_CANDIDATES, limit, |found| {
            hits.push((found.candidate.docid, found.to_hit(terms)));
            hits.len() < limit
        })?;
        hits.sort_by_key(|(docid, hit)| std::cmp::Reverse((hit.at, *docid)));
        let scored = hits.into_iter().enumerate().map(|(rank, (_, hit))| {
            #[expect(clippy::cast_precision_loss, reason = "a page has at most some hundred hits")]
            let score = 1.0 / (1.0 + rank as f64);
            SearchHit { score, ..hit }
        });
        Ok((scored.collect(), last.map(SearchCursor::Newest)))
    }

    fn relevance(
        &mut self,
        cursor: Option<SearchCursor>,
    ) -> Result<(Vec<SearchHit>, Option<SearchCursor>), CatalogError> {
        let (before, skip) = match cursor {
            Some(SearchCursor::Relevance(newest, skip)) => (Some(newest.saturating_add(1)), skip),
            _ => (None, 0),
        };
        let mut pool = Vec::new();
        let mut newest = None;
        let terms = &self.parsed.terms;
        self.each_match(before, RELEVANCE_POOL, RELEVANCE_POOL, |found| {
            newest.get_or_insert(found.candidate.docid);
            let statistics = MatchStatistics::of(&found.document.text, &found.session.title, terms);
            pool.push((statistics, *found.candidate));
            true
        })?;
        let ranked = rank(pool);
        let end = skip.saturating_add(self.query.limit);
        let next = newest
            .filter(|_| end < ranked.len())
            .map(|newest| SearchCursor::Relevance(newest, end));
        // The texts of the pool are not kept, so the records of the page are read again for their snippets.
        let (page, scores): (Vec<_>, Vec<_>) =
            ranked.into_iter().skip(skip).take(self.query.limit).unzip();
        let mut hits = HashMap::with_capacity(page.len());
        for batch in split_by_bytes(&page) {
            self.read_batch(batch, &mut |found| {
                hits.insert(found.candidate.docid, found.to_hit(terms));
                true
            });
        }
        let scored = page.iter().zip(scores).filter_map(|(candidate, score)| {
            Some(SearchHit { score, ..hits.remove(&candidate.docid)? })
        });
        Ok((scored.collect(), next))
    }

    /// Calls `each` with the matches among the newest `max_candidates` candidates before the document `before`, until
    /// it returns false. Returns the last candidate that was examined, or `None` if there are no more.
    fn each_match(
        &mut self,
        before: Option<i64>,
        max_candidates: usize,
        n_wanted: usize,
        mut each: impl FnMut(VerifiedMatch<'_>) -> bool,
    ) -> Result<Option<i64>, CatalogError> {
        let (first, mut last) = (*self.filter.docids.start(), *self.filter.docids.end());
        last = before.map_or(last, |before| last.min(before.saturating_sub(1)));
        let mut left = max_candidates;
        // The first request is about the number of wanted hits, except for phrases, which often need more.
        let mut size = if self.parsed.needs_verification() {
            FIRST_CANDIDATES
        } else {
            n_wanted.clamp(1, FIRST_CANDIDATES)
        };
        while left > 0 && first <= last {
            size = size.min(left);
            let (docids, candidates) = self.candidates(&(first..=last), size)?;
            let is_complete = docids.len() < size;
            for batch in split_by_bytes(&candidates) {
                if let Some(examined) = self.read_batch(batch, &mut each) {
                    let has_more = !is_complete || docids.last() != Some(&examined);
                    return Ok(has_more.then_some(examined));
                }
            }
            let Some(oldest) = docids.last().filter(|_| !is_complete) else { return Ok(None) };
            last = oldest - 1;
            left -= docids.len();
            size = MORE_CANDIDATES;
        }
        Ok((first <= last).then_some(last + 1))
    }

    /// Returns the ids of the newest matching documents in a range, and those documents that can still be read.
    fn candidates(
        &mut self,
        docids: &RangeInclusive<i64>,
        limit: usize,
    ) -> Result<(Vec<i64>, Vec<DocumentOrigin>), CatalogError> {
        let expression = self.parsed.expression(&self.filter.private_terms);
        let titles = &mut self.titles;
        let hidden = self.shared.queue.hidden();
        self.shared.read(|conn| {
            let docids = fulltext::matching(conn, &expression, docids, limit)?;
            let mut candidates = Vec::with_capacity(docids.len());
            for docid in &docids {
                let Some(origin) = fulltext::origin(conn, *docid)? else { continue };
                if let Vacant(slot) = titles.entry(origin.session) {
                    slot.insert(session_title(conn, origin.session, &hidden)?);
                }
                candidates.push(origin);
            }
            Ok((docids, candidates))
        })
    }

    /// Reads candidates and calls `each` with the matches, in order. Returns the last candidate that was examined if
    /// `each` returned false.
    fn read_batch(
        &self,
        batch: &[DocumentOrigin],
        each: &mut impl FnMut(VerifiedMatch<'_>) -> bool,
    ) -> Option<i64> {
        let session_of =
            |num| self.titles.get(&num).and_then(|title| Some(title.as_ref()?.session_id));
        let wants = |line: &[u8]| self.parsed.may_match(line);
        let documents = read_documents(&*self.shared.source, batch, session_of, &wants);
        for candidate in batch {
            let Some(document) = documents.get(&candidate.docid) else { continue };
            let Some(Some(session)) = self.titles.get(&candidate.session) else { continue };
            let is_in_time = self.query.since.is_none_or(|since| document.at >= since)
                && self.query.until.is_none_or(|until| document.at < until);
            if !is_in_time {
                continue;
            }
            let Some(first) = first_matches(&self.parsed.terms, &document.text) else { continue };
            if !each(VerifiedMatch { candidate, document, session, first }) {
                return Some(candidate.docid);
            }
        }
        None
    }
}

impl VerifiedMatch<'_> {
    fn to_hit(&self, terms: &[SearchTerm]) -> SearchHit {
        let text = &self.document.text;
        let focus = self.first.iter().min_by_key(|range| range.start).cloned().unwrap_or(0..0);
        let snippet = snippet(text, &focus, terms);
        SearchHit {
            session_id: self.session.session_id,
            short_id: None,
            title: self.session.title.clone(),
            seq: self.document.seq,
            role: self.document.role,
            at: self.document.at,
            snippet: snippet.line,
            matches: snippet.matches,
            score: 0.0,
            other_branch: false,
        }
    }
}
