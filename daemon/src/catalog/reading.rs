//! Reading what search and recall show of documents: the titles of their sessions, and their texts from the logs.

use std::collections::{HashMap, HashSet};

use ollm_protocol::SessionId;
use ollm_protocol::limits::BoundedField;
use rusqlite::Connection;

use super::document::{READ_BYTES, SearchDocument, read_bytes};
use super::query::fulltext::DocumentOrigin;
use super::query::sessions::{self, SessionTitle};
use crate::session::index::IndexSource;

/// Returns the title of a session by its number; `None` if it is removed or hidden.
pub(super) fn session_title(
    conn: &Connection,
    num: i64,
    hidden: &HashSet<SessionId>,
) -> rusqlite::Result<Option<SessionTitle>> {
    let mut title: Option<SessionTitle> = sessions::details(conn, num)?;
    // A log can have a title of any size.
    if let Some(title) = &mut title {
        BoundedField::Title.shorten(&mut title.title);
    }
    Ok(title.filter(|title| !hidden.contains(&title.session_id)))
}

/// Reads the documents of candidates, with one call of the source for each session, and returns them by id. A log that
/// cannot be read does not fail the others. `wants` is passed to [`IndexSource::records`].
pub(super) fn read_documents(
    source: &dyn IndexSource,
    candidates: &[DocumentOrigin],
    session_of: impl Fn(i64) -> Option<SessionId>,
    wants: &dyn Fn(&[u8]) -> bool,
) -> HashMap<i64, SearchDocument> {
    let mut documents = HashMap::with_capacity(candidates.len());
    let mut by_session: HashMap<i64, Vec<&DocumentOrigin>> = HashMap::new();
    for candidate in candidates {
        by_session.entry(candidate.session).or_default().push(candidate);
    }
    for (num, candidates) in by_session {
        let Some(session) = session_of(num) else { continue };
        let entries: Vec<_> =
            candidates.iter().map(|candidate| (candidate.seq, candidate.entry)).collect();
        let records = source.records(session, &entries, wants);
        for (candidate, record) in candidates.into_iter().zip(records.unwrap_or_default()) {
            if let Some(document) = record.as_ref().and_then(SearchDocument::of) {
                documents.insert(candidate.docid, document);
            }
        }
    }
    documents
}

/// Splits candidates into batches that fit into memory.
pub(super) fn split_by_bytes(
    candidates: &[DocumentOrigin],
) -> impl Iterator<Item = &[DocumentOrigin]> {
    let mut remaining = candidates;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fitting = remaining.iter().take_while(|candidate| {
            let before = bytes;
            bytes += read_bytes(&candidate.entry);
            before == 0 || bytes <= READ_BYTES
        });
        let (batch, later) = remaining.split_at(fitting.count());
        remaining = later;
        (!batch.is_empty()).then_some(batch)
    })
}
