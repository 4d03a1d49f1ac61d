//! Search: candidates from the index, texts from the logs.
//!
//! The index says which documents have all the words; each hit is then read from its log, because the snippet is
//! cut from there, and because phrases can be verified only there. A document whose record or session is gone is
//! passed over. The reading connection is held only while candidates are looked up, never while a log is read.

mod rank;

use std::collections::HashMap;
use std::collections::hash_map::Entry::Vacant;
use std::ops::Range;

use ollm_protocol::content::{Role, SearchHit, SearchSort};
use ollm_protocol::{Seq, SessionId, Timestamp};
use rusqlite::Connection;

use super::document::{Document, project_term, role_term, session_term};
use super::entries::{READ_BYTES, read_bytes};
use super::query::text::{self, Origin};
use super::query::{self, SessionName};
use super::snippet::snippet;
use super::terms::{Term, Terms, expression, first_matches};
use super::{Catalog, CatalogError, Shared};
use crate::session::index::IndexEntry;

/// The most documents that are read for one page: 8 to 10 ms of work. A page that reaches it may have fewer hits
/// than asked for, and its cursor goes on.
const MAX_CANDIDATES: usize = 1_000;
/// The newest candidates among which [`SearchSort::Relevance`] chooses.
const RELEVANCE_POOL: usize = 500;
/// The most candidates that are asked for first.
const READ_CANDIDATES: usize = 128;
/// The most that are asked for after those: whoever needs so many needs most of them, and the index begins anew
/// with every question.
const READ_MORE: usize = 450;

/// What to search for.
#[derive(Clone, Debug)]
pub(crate) struct SearchQuery<'a> {
    /// The words; the language is described at `SessionSearchParams`.
    pub query: &'a str,
    /// Only in one session.
    pub session_id: Option<SessionId>,
    /// Only in one project.
    pub project_hash: Option<&'a str>,
    /// Only what one role said.
    pub role: Option<Role>,
    /// Only from an instant on.
    pub since: Option<Timestamp>,
    /// Only before an instant.
    pub until: Option<Timestamp>,
    /// The order of the hits. By relevance, the pages end where the newest 500 candidates do.
    pub sort: SearchSort,
    /// The most hits.
    pub limit: usize,
    /// Continue after an earlier page of the same query.
    pub cursor: Option<&'a str>,
}

/// A page of hits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SearchPage {
    /// The hits. By time their score is `1 / (1 + rank)`, by relevance that of [`rank`].
    pub hits: Vec<SearchHit>,
    /// Where the next page begins; absent at the end.
    pub next_cursor: Option<String>,
    /// Sessions whose newest records are not searched yet.
    pub behind: u64,
}

impl Catalog {
    /// Finds text in everything that was indexed. Newest first means by the hour in which it was said, and within
    /// a page exactly.
    ///
    /// **Errors**: [`CatalogError::EmptyQuery`], [`CatalogError::QueryTooLong`], [`CatalogError::InvalidCursor`].
    pub(crate) fn search(&self, query: &SearchQuery<'_>) -> Result<SearchPage, CatalogError> {
        let terms = Terms::parse(query.query)?;
        let cursor = query.cursor.map(|cursor| Cursor::parse(cursor, query.sort)).transpose()?;
        let shared = &*self.shared;
        let behind = shared.queue.behind() as u64;
        let empty = SearchPage { hits: Vec::new(), next_cursor: None, behind };
        let Some(range) = shared.read(|conn| Scope::of(conn, query))? else { return Ok(empty) };
        let mut search =
            Search { shared, query, terms: &terms, scope: range, sessions: HashMap::new() };
        let (hits, next) = match query.sort {
            SearchSort::Newest => search.newest(cursor)?,
            SearchSort::Relevance => search.relevance(cursor)?,
        };
        Ok(SearchPage { hits, next_cursor: next.map(|cursor| cursor.to_string()), ..empty })
    }
}

/// Where a page ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cursor {
    /// The last document that was looked at.
    Newest(i64),
    /// The newest document of the pool, and how many hits came before.
    Relevance(i64, usize),
}

impl Cursor {
    fn parse(cursor: &str, sort: SearchSort) -> Result<Self, CatalogError> {
        let parsed = match sort {
            SearchSort::Newest => {
                cursor.strip_prefix('n').and_then(|id| id.parse().ok()).map(Self::Newest)
            }
            SearchSort::Relevance => cursor.strip_prefix('r').and_then(|rest| {
                let (newest, skip) = rest.split_once('-')?;
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

impl std::fmt::Display for Cursor {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Newest(docid) => write!(out, "n{docid}"),
            Self::Relevance(docid, skip) => write!(out, "r{docid}-{skip}"),
        }
    }
}

/// The filters as the index takes them.
struct Scope {
    terms: Vec<String>,
    docids: (i64, i64),
}

impl Scope {
    /// `None` when nothing can match, because the session is not known.
    fn of(conn: &Connection, query: &SearchQuery<'_>) -> rusqlite::Result<Option<Self>> {
        let mut terms = Vec::new();
        if let Some(id) = query.session_id {
            let Some(row) = query::session(conn, id)? else { return Ok(None) };
            terms.push(session_term(row.num));
        }
        terms.extend(query.project_hash.map(project_term));
        terms.extend(query.role.map(role_term));
        let from = query.since.map_or(0, text::first_docid);
        let to = match query.until {
            Some(until) => text::last_docid(until, text::spill_hours(conn)?),
            None => i64::MAX,
        };
        Ok(Some(Self { terms, docids: (from, to) }))
    }
}

/// A document that may be a hit, with what it takes to read it.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    docid: i64,
    session: i64,
    seq: Seq,
    entry: IndexEntry,
}

/// A candidate whose text has been read and has all terms.
struct Match<'a> {
    candidate: &'a Candidate,
    document: &'a Document,
    session: &'a SessionName,
    first: Vec<Range<usize>>,
}

struct Search<'a> {
    shared: &'a Shared,
    query: &'a SearchQuery<'a>,
    terms: &'a Terms,
    scope: Scope,
    /// Sessions of candidates by number; `None` for those that are gone.
    sessions: HashMap<i64, Option<SessionName>>,
}

type Page = (Vec<SearchHit>, Option<Cursor>);

impl Search<'_> {
    fn newest(&mut self, cursor: Option<Cursor>) -> Result<Page, CatalogError> {
        let limit = self.query.limit;
        let mut hits: Vec<(i64, SearchHit)> = Vec::new();
        let terms = self.terms;
        let last = self.each_match(cursor.map(Cursor::docid), MAX_CANDIDATES, limit, |found| {
            hits.push((found.candidate.docid, hit(&found, &terms.terms)));
            hits.len() < limit
        })?;
        hits.sort_by_key(|(docid, hit)| std::cmp::Reverse((hit.at, *docid)));
        let scored = hits.into_iter().enumerate().map(|(rank, (_, hit))| {
            #[expect(clippy::cast_precision_loss, reason = "a page has at most some hundred hits")]
            let score = 1.0 / (1.0 + rank as f64);
            SearchHit { score, ..hit }
        });
        Ok((scored.collect(), last.map(Cursor::Newest)))
    }

    fn relevance(&mut self, cursor: Option<Cursor>) -> Result<Page, CatalogError> {
        let (before, skip) = match cursor {
            Some(Cursor::Relevance(newest, skip)) => (Some(newest.saturating_add(1)), skip),
            _ => (None, 0),
        };
        let mut pool = rank::Pool::default();
        let mut newest = None;
        let terms = self.terms;
        self.each_match(before, RELEVANCE_POOL, RELEVANCE_POOL, |found| {
            newest.get_or_insert(found.candidate.docid);
            let weight = rank::Weight::of(&found.document.text, &found.session.title, &terms.terms);
            pool.add(weight, *found.candidate);
            true
        })?;
        let ranked = pool.ranked();
        let end = skip.saturating_add(self.query.limit);
        let next =
            newest.filter(|_| end < ranked.len()).map(|newest| Cursor::Relevance(newest, end));
        // Snippets are cut only for the page: its records are read a second time, the pool's texts are not kept.
        let (page, scores): (Vec<_>, Vec<_>) =
            ranked.into_iter().skip(skip).take(self.query.limit).unzip();
        let mut hits = HashMap::with_capacity(page.len());
        for batch in by_bytes(&page) {
            self.read_batch(batch, &mut |found| {
                hits.insert(found.candidate.docid, hit(&found, &terms.terms));
                true
            });
        }
        let scored = page.iter().zip(scores).filter_map(|(candidate, score)| {
            Some(SearchHit { score, ..hits.remove(&candidate.docid)? })
        });
        Ok((scored.collect(), next))
    }

    /// Gives the matches among the newest `most` candidates before `before`, until `each` returns false. Gives the
    /// last candidate that was looked at, unless there are no more.
    fn each_match(
        &mut self,
        before: Option<i64>,
        most: usize,
        wanted: usize,
        mut each: impl FnMut(Match<'_>) -> bool,
    ) -> Result<Option<i64>, CatalogError> {
        let (from, mut to) = self.scope.docids;
        to = before.map_or(to, |before| to.min(before.saturating_sub(1)));
        let mut left = most;
        // A first read of about what is wanted; phrases often need more than that.
        let mut size = if self.terms.needs_text() {
            READ_CANDIDATES
        } else {
            wanted.clamp(1, READ_CANDIDATES)
        };
        while left > 0 && from <= to {
            size = size.min(left);
            let (docids, candidates) = self.candidates((from, to), size)?;
            let complete = docids.len() < size;
            for batch in by_bytes(&candidates) {
                if let Some(last) = self.read_batch(batch, &mut each) {
                    let more = !complete || docids.last() != Some(&last);
                    return Ok(more.then_some(last));
                }
            }
            let Some(last) = docids.last().filter(|_| !complete) else { return Ok(None) };
            to = last - 1;
            left -= docids.len();
            size = READ_MORE;
        }
        Ok((from <= to).then_some(to + 1))
    }

    /// The ids of the newest documents in a range, and those of them that can still be read.
    fn candidates(
        &mut self,
        range: (i64, i64),
        limit: usize,
    ) -> Result<(Vec<i64>, Vec<Candidate>), CatalogError> {
        let wanted = expression(&self.terms.tokens, &self.scope.terms);
        let sessions = &mut self.sessions;
        let hidden = self.shared.queue.hidden();
        self.shared.read(|conn| {
            let docids = text::matching(conn, &wanted, range, limit)?;
            let mut candidates = Vec::with_capacity(docids.len());
            for docid in &docids {
                let Some(Origin { session, seq, entry }) = text::origin(conn, *docid)? else {
                    continue;
                };
                if let Vacant(place) = sessions.entry(session) {
                    let name = query::session_name(conn, session)?;
                    place.insert(name.filter(|name| !hidden.contains(&name.session_id)));
                }
                candidates.push(Candidate { docid: *docid, session, seq, entry });
            }
            Ok((docids, candidates))
        })
    }

    /// Reads candidates and gives the matches in order. The last one that was looked at, when `each` has enough.
    fn read_batch(
        &self,
        batch: &[Candidate],
        each: &mut impl FnMut(Match<'_>) -> bool,
    ) -> Option<i64> {
        let mut texts: HashMap<i64, Document> = HashMap::with_capacity(batch.len());
        let mut by_session: HashMap<i64, Vec<&Candidate>> = HashMap::new();
        for candidate in batch {
            by_session.entry(candidate.session).or_default().push(candidate);
        }
        for (num, candidates) in by_session {
            let Some(Some(session)) = self.sessions.get(&num) else { continue };
            let wanted: Vec<_> =
                candidates.iter().map(|candidate| (candidate.seq, candidate.entry)).collect();
            // A log that cannot be read is no reason to fail the search in all others.
            let may_match = |line: &[u8]| self.terms.may_match(line);
            let source = &self.shared.source;
            let Ok(records) = source.records(session.session_id, &wanted, &may_match) else {
                continue;
            };
            for (candidate, record) in candidates.into_iter().zip(records) {
                if let Some(document) = record.as_ref().and_then(Document::of) {
                    texts.insert(candidate.docid, document);
                }
            }
        }
        for candidate in batch {
            let Some(document) = texts.get(&candidate.docid) else { continue };
            let Some(Some(session)) = self.sessions.get(&candidate.session) else { continue };
            let within = self.query.since.is_none_or(|since| document.at >= since)
                && self.query.until.is_none_or(|until| document.at < until);
            if !within {
                continue;
            }
            let Some(first) = first_matches(&self.terms.terms, &document.text) else { continue };
            if !each(Match { candidate, document, session, first }) {
                return Some(candidate.docid);
            }
        }
        None
    }
}

/// Splits candidates so that each batch fits into memory.
fn by_bytes(candidates: &[Candidate]) -> impl Iterator<Item = &[Candidate]> {
    let mut rest = candidates;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|candidate| {
            let before = bytes;
            bytes += read_bytes(&candidate.entry);
            before == 0 || bytes <= READ_BYTES
        });
        let (batch, later) = rest.split_at(fits.count());
        rest = later;
        (!batch.is_empty()).then_some(batch)
    })
}

fn hit(found: &Match<'_>, terms: &[Term]) -> SearchHit {
    let text = &found.document.text;
    let focus = found.first.iter().min_by_key(|range| range.start).cloned().unwrap_or(0..0);
    let snippet = snippet(text, &focus, terms);
    SearchHit {
        session_id: found.session.session_id,
        title: found.session.title.clone(),
        seq: found.document.seq,
        role: found.document.role,
        at: found.document.at,
        snippet: snippet.line,
        matches: snippet.matches,
        score: 0.0,
    }
}
