//! Removing a session so that no byte of it is left in any file of the catalog.
//!
//! What makes that true:
//! - `secure_delete` overwrites freed cells and pages with zeros;
//! - the documents' words are taken out of the index, which needs the tokens that they were added with, so their
//!   records are read once more; FTS5 then still has them behind marks that hide them, so all of its segments are
//!   merged into one, which drops both;
//! - the WAL is emptied and cut to nothing, and files that were moved aside are removed.
//!
//! The merge costs time by the size of the index (some 25 ms for each MB), so it is done once for all sessions
//! that go together. FTS5's own `secure-delete` would take out each word at its place, but walks the list of all
//! documents of a common word for each one: a session of 1,000 records among 60,000 took 15 s.
//!
//! Where a record cannot be read again (its log is already gone after a crash, or was replaced), the words of its
//! session cannot be taken out one by one: the whole index is dropped and made anew from the other logs.
//!
//! A crash in the middle is finished at the next start: a fact in the database says that the files still hold
//! what was removed, from the same transaction on that removes it.

use std::sync::Arc;

use ollm_protocol::SessionId;
use rusqlite::Connection;

use super::document::{Document, session_term};
use super::entries::{Entries, READ_BYTES, READ_RECORDS, read_bytes};
use super::index::Writer;
use super::query::text::{self, Origin};
use super::query::{self, SessionRow};
use super::{CatalogError, rebuild, schema, terms};
use crate::session::index::IndexSource;

/// Pages that one step of the merge writes: 8 MB, which bounds the journal.
const MERGE_PAGES: i64 = 2_000;

/// Removes sessions, their words, and what the files still held of them.
pub(super) fn forget(writer: &mut Writer, ids: &[SessionId]) -> Result<(), CatalogError> {
    let outcome = remove(writer, ids).and_then(|()| scrub(writer));
    if outcome.is_err()
        && let Some(conn) = &writer.conn
    {
        query::rollback(conn);
        writer.rows_replaced();
    }
    outcome
}

/// Makes what was removed unreadable: merges the index, empties the journal, removes files that were moved aside.
/// The fact that asks for it goes last.
pub(super) fn scrub(writer: &Writer) -> Result<(), CatalogError> {
    let shared = &writer.shared;
    let fail = |error| shared.database_error("empty the journal of", error);
    let conn = writer.conn()?;
    let needed = query::needs_scrub(conn).map_err(fail)?;
    if needed {
        text::merge(conn, MERGE_PAGES)
            .map_err(|error| shared.database_error("merge the index of", error))?;
    }
    if !query::truncate_wal(conn).map_err(fail)? {
        return Err(CatalogError::JournalInUse { path: shared.path.clone() });
    }
    schema::remove_aside(&shared.path)?;
    if needed { query::set_needs_scrub(conn, false).map_err(fail) } else { Ok(()) }
}

/// Takes the documents of a session out of the index; false when some of them could not be read again. Their
/// words stay in the files until the index is merged.
pub(super) fn remove_documents(
    conn: &Connection,
    source: &dyn IndexSource,
    id: SessionId,
    row: &SessionRow,
) -> rusqlite::Result<bool> {
    let mine = terms::expression(&[], &[session_term(row.num)]);
    let docids = text::matching(conn, &mine, (i64::MIN, i64::MAX), usize::MAX)?;
    let mut reader = Entries::new(conn, row.num);
    let mut rest = &docids[..];
    while !rest.is_empty() {
        let (mut batch, mut wanted, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some((docid, later)) = rest.split_first()
            && batch.len() < READ_RECORDS
            && bytes < READ_BYTES
        {
            rest = later;
            let Some(Origin { seq, .. }) = text::origin(conn, *docid)? else { return Ok(false) };
            let Some(entry) = reader.read(seq.0)? else { return Ok(false) };
            bytes += read_bytes(&entry);
            batch.push(*docid);
            wanted.push((seq, entry));
        }
        let Ok(records) = source.records(id, &wanted) else { return Ok(false) };
        if records.len() != batch.len() {
            return Ok(false);
        }
        for (docid, record) in batch.into_iter().zip(records) {
            let Some(document) = record.as_ref().and_then(Document::of) else { return Ok(false) };
            text::remove_document(conn, docid, &document.tokens(row.num, row.project.as_deref()))?;
        }
    }
    Ok(true)
}

fn remove(writer: &mut Writer, ids: &[SessionId]) -> Result<(), CatalogError> {
    let shared = Arc::clone(&writer.shared);
    let conn = writer.conn()?;
    let clean = query::begin(conn)
        .and_then(|()| remove_rows(conn, &*shared.source, ids))
        .and_then(|clean| query::commit(conn).map(|()| clean))
        .map_err(|error| shared.database_error("remove a session from", error))?;
    if clean { Ok(()) } else { rebuild::reset_search(writer) }
}

/// True when the words of all sessions are out of the index.
fn remove_rows(
    conn: &Connection,
    source: &dyn IndexSource,
    ids: &[SessionId],
) -> rusqlite::Result<bool> {
    let mut clean = true;
    for id in ids {
        let Some(row) = query::session(conn, *id)? else { continue };
        clean = clean && !row.orphans && remove_documents(conn, source, *id, &row)?;
        query::remove_session(conn, row.num)?;
        query::set_needs_scrub(conn, true)?;
    }
    Ok(clean)
}
