//! Removing a session so that no byte of it is left in any file of the catalog.
//!
//! What makes that true:
//! - `secure_delete` overwrites freed cells and pages with zeros;
//! - FTS5's own secure deletion takes words out of its pages instead of adding marks that hide them, which needs
//!   the tokens that the document was added with, so its record is read once more;
//! - the prefixes by which FTS5 finds its pages are cut where only the removed words had them ([`blur`]);
//! - the WAL is emptied and cut to nothing, and files that were moved aside are removed.
//!
//! Where a record cannot be read again (its log is already gone after a crash, or was replaced), the words of its
//! session cannot be taken out one by one: the whole index is dropped and made anew from the other logs.

use std::collections::BTreeSet;

use ollm_protocol::SessionId;
use rusqlite::Connection;

use super::document::{Document, session_term};
use super::index::{Entries, READ_BYTES, READ_RECORDS, Writer, read_bytes};
use super::query::text::{self, Origin};
use super::query::{self, SessionRow};
use super::{CatalogError, rebuild, schema, terms};
use crate::session::index::IndexSource;

/// Documents from which on dropping the index and making it anew costs less than taking a session out of it,
/// when it is also most of all documents.
const MANY_DOCUMENTS: usize = 20_000;

/// Removes a session, its words, and what the files still held of them.
pub(super) fn forget(writer: &mut Writer, id: SessionId) -> Result<(), CatalogError> {
    let outcome = remove(writer, id).and_then(|()| scrub(writer));
    if outcome.is_err()
        && let Some(conn) = &writer.conn
    {
        query::rollback(conn);
        writer.rows_replaced();
    }
    outcome
}

/// Empties the journal and removes files that were moved aside.
pub(super) fn scrub(writer: &Writer) -> Result<(), CatalogError> {
    let path = &writer.shared.path;
    let emptied = query::truncate_wal(writer.conn()?)
        .map_err(|error| writer.shared.database_error("empty the journal of", error))?;
    if !emptied {
        return Err(CatalogError::JournalInUse { path: path.clone() });
    }
    schema::remove_aside(path)
}

/// Takes the documents of a session out of the index, and adds their words to `removed`; false when some of them
/// could not be read again.
pub(super) fn remove_documents(
    conn: &Connection,
    source: &dyn IndexSource,
    (id, row): (SessionId, &SessionRow),
    removed: &mut BTreeSet<Box<str>>,
) -> rusqlite::Result<bool> {
    let docids = documents_of(conn, row)?;
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
            let tokens = document.tokens(row.num, row.project.as_deref());
            text::remove_document(conn, docid, &tokens)?;
            for token in
                tokens.split(' ').filter(|token| !removed.contains(*token)).collect::<Vec<_>>()
            {
                removed.insert(token.into());
            }
        }
    }
    Ok(true)
}

fn remove(writer: &mut Writer, id: SessionId) -> Result<(), CatalogError> {
    let shared = std::sync::Arc::clone(&writer.shared);
    let fail = |error| shared.database_error("remove a session from", error);
    let conn = writer.conn()?;
    let Some(row) = query::session(conn, id).map_err(fail)? else { return Ok(()) };
    query::begin(conn).map_err(fail)?;
    let clean = remove_rows(conn, &*shared.source, id, &row).map_err(fail)?;
    query::commit(conn).map_err(fail)?;
    if clean { Ok(()) } else { rebuild::reset_search(writer) }
}

/// True when the words of the session are out of the index.
fn remove_rows(
    conn: &Connection,
    source: &dyn IndexSource,
    id: SessionId,
    row: &SessionRow,
) -> rusqlite::Result<bool> {
    let mut removed = BTreeSet::new();
    let clean = !row.orphans
        && !is_most(conn, row)?
        && remove_documents(conn, source, (id, row), &mut removed)?;
    if clean {
        text::flush(conn)?;
        blur(conn, &removed)?;
    }
    query::remove_session(conn, row.num)?;
    Ok(clean)
}

fn documents_of(conn: &Connection, row: &SessionRow) -> rusqlite::Result<Vec<i64>> {
    let mine = terms::expression(&[], &[session_term(row.num)]);
    text::matching(conn, &mine, (i64::MIN, i64::MAX), usize::MAX)
}

fn is_most(conn: &Connection, row: &SessionRow) -> rusqlite::Result<bool> {
    let mine = documents_of(conn, row)?.len();
    Ok(mine > MANY_DOCUMENTS && mine as u64 * 2 > text::n_documents(conn)?)
}

/// Rewrites the prefixes in FTS5's table of pages that only removed words had.
///
/// FTS5 finds a page by the shortest prefix of its first word that is greater than the last word before it. The
/// prefix stays when the word is removed, and may be all of the word. It is replaced by its shortest prefix that
/// no word has, with the last byte increased: nothing lies between the two, so it separates the same pages, and
/// all but its last byte is the beginning of a word that lives.
fn blur(conn: &Connection, removed: &BTreeSet<Box<str>>) -> rusqlite::Result<()> {
    let removed: BTreeSet<&[u8]> = removed.iter().map(|word| word.as_bytes()).collect();
    for separator in text::page_separators(conn)? {
        // The first byte names the index that the word is in; there is only one.
        let Some((index, prefix)) = separator.term.split_first() else { continue };
        let was_removed =
            removed.range(prefix..).next().is_some_and(|word| word.starts_with(prefix));
        if was_removed && let Some(blurred) = blurred(conn, prefix)? {
            text::set_separator(conn, &separator, &[&[*index], &blurred[..]].concat())?;
        }
    }
    Ok(())
}

fn blurred(conn: &Connection, separator: &[u8]) -> rusqlite::Result<Option<Vec<u8>>> {
    for end in 1..=separator.len() {
        let (prefix, last) = (&separator[..end - 1], separator[end - 1]);
        if !text::has_word_from(conn, &separator[..end])? {
            // No byte of a word in UTF-8 is 255.
            return Ok(Some([prefix, &[last.saturating_add(1)]].concat()));
        }
    }
    Ok(None)
}
