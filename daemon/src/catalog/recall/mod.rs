//! Recall: the messages that answer a question, found by the words of the question, not by all of them together.
//!
//! The index ranks; only the messages that are returned are read from their logs, and their neighbors where these
//! explain them. A question with nothing to search for finds nothing, which is no error.
//!
//! **Invariant**: the read connection is held only while documents are ranked, never while a log is read.

mod excerpt;
mod numbers;
mod ranking;
mod terms;

use std::collections::HashMap;
use std::collections::hash_map::Entry::Vacant;

use ollm_protocol::content::Role;
use ollm_protocol::{Seq, SessionId, Timestamp};
use rusqlite::Connection;

use super::database::CatalogShared;
use super::document::{SearchDocument, project_term, session_term};
use super::error::CatalogError;
use super::query::fulltext::{self, DocumentOrigin};
use super::query::sessions::{self, SessionTitle};
use super::reading::{read_documents, session_title, split_by_bytes};
use excerpt::{Excerpt, excerpt};
use numbers::*;
use ranking::{RankedDocument, RankedDocuments, RankingLimits, RecallRange, rank};
use terms::{RecallTerms, is_question};

/// Maximum number of ranked documents that are looked at, including those that the caller excludes.
const MAX_RANKED: usize = 1_000;
/// Number of ranked documents whose sessions are looked up together.
const MIN_BATCH: usize = 8;
const MAX_BATCH: usize = 64;
/// Maximum number of messages that are read for a turn, which waits.
const MAX_TURN_READS: usize = 64;
/// The number of indexed records from which a session or project is not looked up by its private term: joining its
/// documents with each term would take longer than reading those of all sessions in its time.
const MANY_RECORDS: u64 = 20_000;
/// The share of all documents from which a project with many records is not looked up by its private term.
const LARGE_PROJECT_SHARE: f64 = 0.3;
/// Number of neighboring rows in which the neighbor of a message is looked for.
const NEIGHBOR_ROWS: usize = 8;

/// The sessions that a question is asked of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RecallScope<'a> {
    Session(SessionId),
    /// The hash of a project.
    Project(&'a str),
    All,
}

/// The time in which messages are looked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecallPeriod {
    /// Only messages of this time or later.
    pub since: Option<Timestamp>,
    /// Only messages before this time.
    pub until: Option<Timestamp>,
}

impl RecallPeriod {
    fn contains(&self, at: Timestamp) -> bool {
        self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at < until)
    }

    /// Narrows a range of documents to the hours of the period.
    fn narrow(&self, conn: &Connection, range: &mut RecallRange) -> rusqlite::Result<()> {
        let (mut first, mut last) = (*range.docids.start(), *range.docids.end());
        if let Some(since) = self.since {
            first = first.max(fulltext::first_docid(since));
        }
        if let Some(until) = self.until {
            last = last.min(fulltext::last_docid(until, fulltext::spill_hours(conn)?));
        }
        range.docids = first..=last;
        Ok(())
    }
}

/// The rules for the prompt of a turn: it has only messages with enough of the question, and with more than it says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnRules {
    /// Set if the question points back, so that less of it suffices.
    pub points_back: bool,
    /// The record of the question, if it is recorded already. It is not searched, nor what followed it.
    pub question: Option<(SessionId, Seq)>,
}

/// A question.
pub(crate) struct RecallQuery<'a> {
    /// Any text.
    pub question: &'a str,
    pub scope: RecallScope<'a>,
    /// Maximum number of messages.
    pub limit: usize,
    pub period: RecallPeriod,
    /// Set for the prompt of a turn.
    pub turn: Option<TurnRules>,
    /// Returns whether a message may be found.
    pub wants: &'a dyn Fn(SessionId, Seq) -> bool,
}

/// A message that was found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecalledMessage {
    pub session_id: SessionId,
    /// The title of the session.
    pub title: String,
    pub seq: Seq,
    pub role: Role,
    pub at: Timestamp,
    /// Whole sentences around the match. If a neighboring message explains it, both, each with its role on a line.
    pub excerpt: String,
    /// Set if the excerpt has a neighboring message.
    pub has_neighbor: bool,
    /// The excerpt without the neighboring message, if that alone says more than the question.
    pub alone: Option<String>,
    pub score: f64,
    /// The words of the question that the message contains.
    pub matched: Vec<String>,
    /// Set if the excerpt says more than the question.
    pub says_more: bool,
}

impl RecalledMessage {
    /// Returns the message without its neighbor, if it has one and says more than the question even so.
    pub(crate) fn without_neighbor(&self) -> Option<Self> {
        let excerpt = self.alone.clone()?;
        Some(Self { excerpt, has_neighbor: false, alone: None, ..self.clone() })
    }
}

/// The messages for a question.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RecalledPage {
    /// The messages, the best first.
    pub messages: Vec<RecalledMessage>,
    /// Number of sessions whose newest records are not indexed yet.
    pub behind: u64,
}

/// Finds the messages for a question.
pub(super) fn recall(
    shared: &CatalogShared,
    query: &RecallQuery<'_>,
) -> Result<RecalledPage, CatalogError> {
    let behind = shared.queue.behind() as u64;
    let terms = RecallTerms::parse(query.question);
    if terms.terms.is_empty() || query.limit == 0 {
        return Ok(RecalledPage { messages: Vec::new(), behind });
    }
    let ranked = shared.read(|conn| {
        let Some(mut range) = range_of(conn, query.scope)? else { return Ok(None) };
        query.period.narrow(conn, &mut range)?;
        if range.docids.is_empty() {
            return Ok(None);
        }
        if let Some(turn) = query.turn {
            range.limits = range.limits.in_turn();
            if let Some((id, seq)) = turn.question {
                end_before(conn, &mut range, id, seq)?;
            }
        }
        Ok(Some((rank(conn, &terms, &range)?, *range.docids.end())))
    })?;
    let Some((ranked, last_docid)) = ranked else {
        return Ok(RecalledPage { messages: Vec::new(), behind });
    };
    let mut search = Recall { shared, query, terms: &terms, last_docid, titles: HashMap::new() };
    let messages = search.messages(&ranked)?;
    Ok(RecalledPage { messages, behind })
}

/// Returns the documents of a scope; `None` if there are none.
fn range_of(conn: &Connection, scope: RecallScope<'_>) -> rusqlite::Result<Option<RecallRange>> {
    let shards = fulltext::list_shards(conn)?;
    let everything = 0..=i64::MAX;
    let all = fulltext::documents_in(&shards, &everything);
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let to_f64 = |count: u64| count as f64;
    Ok(match scope {
        RecallScope::All => Some(RecallRange {
            private_term: None,
            docids: everything,
            sessions: None,
            documents: all,
            limits: RankingLimits::of(all, false),
        }),
        RecallScope::Session(id) => {
            let Some(row) = sessions::read_row(conn, id)? else { return Ok(None) };
            let term = session_term(row.num);
            let Some(docids) = fulltext::ends_of(conn, &fulltext::quoted(&term))? else {
                return Ok(None);
            };
            let is_large = row.text_records >= MANY_RECORDS;
            let documents = if is_large {
                fulltext::documents_in(&shards, &docids)
            } else {
                to_f64(row.text_records)
            };
            Some(RecallRange {
                private_term: (!is_large).then_some(term),
                docids,
                sessions: Some([row.num].into_iter().collect()),
                documents,
                limits: RankingLimits::of(documents, true),
            })
        }
        RecallScope::Project(hash) => {
            let sessions = sessions::of_project(conn, hash)?;
            let records = to_f64(sessions.iter().map(|(_, records)| records).sum());
            let is_large = records >= to_f64(MANY_RECORDS) && records >= LARGE_PROJECT_SHARE * all;
            let documents = if is_large { all } else { records };
            (!sessions.is_empty()).then(|| RecallRange {
                private_term: (!is_large).then(|| project_term(hash)),
                docids: everything,
                sessions: Some(sessions.iter().map(|(num, _)| *num).collect()),
                documents,
                limits: RankingLimits::of(documents, false),
            })
        }
    })
}

/// Ends a range before a record of a session, so that the result does not depend on whether that record is indexed yet.
fn end_before(
    conn: &Connection,
    range: &mut RecallRange,
    id: SessionId,
    seq: Seq,
) -> rusqlite::Result<()> {
    let Some(row) = sessions::read_row(conn, id)? else { return Ok(()) };
    let term = fulltext::quoted(&session_term(row.num));
    while let Some(newest) = fulltext::matching(conn, &term, &range.docids, 1)?.pop() {
        if fulltext::origin(conn, newest)?.is_none_or(|origin| origin.seq < seq) {
            break;
        }
        range.docids = *range.docids.start()..=newest - 1;
        range.documents -= 1.0;
    }
    Ok(())
}

/// A recall in progress.
struct Recall<'a> {
    shared: &'a CatalogShared,
    query: &'a RecallQuery<'a>,
    terms: &'a RecallTerms,
    /// The end of the range.
    last_docid: i64,
    /// The sessions of ranked documents by number; `None` for removed ones.
    titles: HashMap<i64, Option<SessionTitle>>,
}

impl Recall<'_> {
    /// Reads the best documents until there are enough.
    fn messages(&mut self, ranked: &RankedDocuments) -> Result<Vec<RecalledMessage>, CatalogError> {
        let mut found = Vec::new();
        let (mut left, least, least_beside) = match self.query.turn {
            Some(TurnRules { points_back: true, .. }) => {
                (MAX_TURN_READS, MIN_SHARE_BACK, MIN_SHARE_BACK)
            }
            Some(_) => (MAX_TURN_READS, MIN_SHARE, MIN_SHARE_BESIDE),
            None => (MAX_RANKED, 0.0, 0.0),
        };
        let best = ranked.documents.iter().take(MAX_RANKED);
        let best = best.filter(|document| document.share >= least_beside);
        let (enough, less): (Vec<_>, Vec<_>) = best.partition(|document| document.share >= least);
        self.read_best(&enough, ranked, &mut left, &mut found)?;
        // What has less of the question is worth a place only if the talk has what the question is about.
        if !found.is_empty() {
            self.read_best(&less, ranked, &mut left, &mut found)?;
        }
        Ok(found)
    }

    /// Reads ranked documents in their order, and adds messages until there are enough, or `left` more were read.
    fn read_best(
        &mut self,
        documents: &[&RankedDocument],
        of: &RankedDocuments,
        left: &mut usize,
        found: &mut Vec<RecalledMessage>,
    ) -> Result<(), CatalogError> {
        for batch in documents.chunks(self.query.limit.clamp(MIN_BATCH, MAX_BATCH)) {
            let mut wanted = self.wanted(batch)?.into_iter();
            while found.len() < self.query.limit && *left > 0 {
                let n = (*left).min(self.query.limit - found.len());
                let now: Vec<_> = wanted.by_ref().take(n).collect();
                if now.is_empty() {
                    break;
                }
                *left -= now.len();
                self.read(&now, of, found)?;
            }
            if found.len() >= self.query.limit || *left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Returns the documents whose sessions exist and that the caller wants.
    fn wanted<'b>(
        &mut self,
        batch: &[&'b RankedDocument],
    ) -> Result<Vec<&'b RankedDocument>, CatalogError> {
        let hidden = self.shared.queue.hidden();
        let titles = &mut self.titles;
        self.shared.read(|conn| {
            for document in batch {
                let num = document.origin.session;
                if let Vacant(slot) = titles.entry(num) {
                    slot.insert(session_title(conn, num, &hidden)?);
                }
            }
            Ok(())
        })?;
        let is_wanted = |document: &&&RankedDocument| {
            let session = self.session_of(document.origin.session);
            session.is_some_and(|id| (self.query.wants)(id, document.origin.seq))
        };
        Ok(batch.iter().filter(is_wanted).copied().collect())
    }

    fn session_of(&self, num: i64) -> Option<SessionId> {
        self.titles.get(&num).and_then(|title| Some(title.as_ref()?.session_id))
    }

    fn read_all(&self, origins: &[DocumentOrigin]) -> HashMap<i64, SearchDocument> {
        let source = &*self.shared.source;
        let read = |batch| read_documents(source, batch, |num| self.session_of(num), &|_| true);
        split_by_bytes(origins).flat_map(read).collect()
    }

    /// Reads ranked documents, and adds the messages in their order.
    fn read(
        &self,
        ranked: &[&RankedDocument],
        of: &RankedDocuments,
        found: &mut Vec<RecalledMessage>,
    ) -> Result<(), CatalogError> {
        let origins: Vec<_> = ranked.iter().map(|document| document.origin).collect();
        let documents = self.read_all(&origins);
        let neighbors = self.neighbors(&origins, &documents)?;
        for RankedDocument { origin, score, terms, .. } in ranked {
            let Some(document) = documents.get(&origin.docid) else { continue };
            if !self.query.period.contains(document.at) {
                continue;
            }
            let Some(Some(title)) = self.titles.get(&origin.session) else { continue };
            let Excerpt { text, terms: in_text } =
                excerpt(&document.text, self.terms, &of.rarities());
            let terms = terms | in_text;
            let around = with_neighbor(document, neighbors.get(&origin.docid));
            let says_more = std::iter::once(&text).chain(around.as_ref().map(|it| &it.text));
            let says_more = says_more.into_iter().any(|text| self.terms.says_more(text));
            let excerpt = around.as_ref().map(|around| around.beside(document.role, &text));
            let has_neighbor = excerpt.is_some();
            let alone = (has_neighbor && self.terms.says_more(&text)).then(|| text.clone());
            let excerpt = excerpt.unwrap_or(text);
            // A turn needs what is said again and again once, and nothing that only stands beside a word of the question.
            let is_known = || found.iter().any(|known| known.excerpt == excerpt);
            if self.query.turn.is_some() && (terms == 0 || !says_more || is_known()) {
                continue;
            }
            found.push(RecalledMessage {
                session_id: title.session_id,
                title: title.title.clone(),
                seq: document.seq,
                role: document.role,
                at: document.at,
                excerpt,
                has_neighbor,
                alone,
                score: *score,
                matched: self.terms.words(terms),
                says_more,
            });
        }
        Ok(())
    }

    /// Returns the message before and after each document that such a message may explain.
    fn neighbors(
        &self,
        origins: &[DocumentOrigin],
        documents: &HashMap<i64, SearchDocument>,
    ) -> Result<HashMap<i64, Neighbors>, CatalogError> {
        let open: Vec<_> = origins
            .iter()
            .filter(|origin| {
                documents.get(&origin.docid).is_some_and(|document| {
                    is_question(&document.text) || document.text.len() <= SHORT_ANSWER_BYTES
                })
            })
            .collect();
        let around = self.shared.read(|conn| {
            open.iter()
                .map(|origin| fulltext::origins_around(conn, origin.docid, NEIGHBOR_ROWS))
                .collect::<rusqlite::Result<Vec<_>>>()
        })?;
        let mut wanted = Vec::new();
        let mut pairs = Vec::new();
        for (origin, around) in open.iter().zip(around) {
            let of_session = around
                .iter()
                .filter(|other| other.session == origin.session && other.docid <= self.last_docid);
            let before = of_session
                .clone()
                .filter(|other| other.seq < origin.seq)
                .max_by_key(|other| other.seq);
            let after =
                of_session.filter(|other| other.seq > origin.seq).min_by_key(|other| other.seq);
            wanted.extend(before.into_iter().chain(after).copied());
            pairs.push((origin.docid, before.map(|it| it.docid), after.map(|it| it.docid)));
        }
        wanted.sort_unstable_by_key(|origin| origin.docid);
        wanted.dedup_by_key(|origin| origin.docid);
        let texts = self.read_all(&wanted);
        let line = |docid: Option<i64>| {
            let document = texts.get(&docid?)?;
            Some((document.role, document.text.clone()))
        };
        let neighbors = pairs.into_iter().map(|(docid, before, after)| {
            (docid, Neighbors { before: line(before), after: line(after) })
        });
        Ok(neighbors.collect())
    }
}

/// The messages before and after one that was found: role and text.
struct Neighbors {
    before: Option<(Role, String)>,
    after: Option<(Role, String)>,
}

/// The part of a neighboring message that explains a message.
struct NeighborExcerpt {
    role: Role,
    text: String,
    is_before: bool,
}

impl NeighborExcerpt {
    /// Returns an excerpt together with this one, each on a line after its role.
    fn beside(&self, role: Role, excerpt: &str) -> String {
        let line = |role: Role, text: &str| format!("{}: {text}", role.as_str());
        let (own, other) = (line(role, excerpt), line(self.role, &self.text));
        let (first, second) = if self.is_before { (other, own) } else { (own, other) };
        format!("{first}\n{second}")
    }
}

/// Returns the answer to a question, or the question to a short answer.
fn with_neighbor(
    document: &SearchDocument,
    neighbors: Option<&Neighbors>,
) -> Option<NeighborExcerpt> {
    let neighbors = neighbors?;
    if is_question(&document.text) {
        let (role, text) = neighbors.after.as_ref()?;
        let text = excerpt::beginning(text);
        return Some(NeighborExcerpt { role: *role, text, is_before: false });
    }
    let (role, text) = neighbors.before.as_ref().filter(|(_, text)| is_question(text))?;
    Some(NeighborExcerpt { role: *role, text: excerpt::ending(text), is_before: true })
}
