//! Every statement on the full-text index and the documents behind it.
//!
//! A document's id is `hours since 2020 << 12 | n`, so that the newest come first in the order of ids, whatever
//! the order in which sessions were recorded or imported.

use ollm_protocol::{Seq, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use super::{schema, signed, unsigned};

/// 2020-01-01T00:00:00Z in milliseconds since 1970; what is older counts as of that hour.
const EPOCH_MS: i64 = 1_577_836_800_000;
const HOUR_MS: i64 = 3_600_000;
/// Bits of a document's id that number the documents of one hour.
const HOUR_BITS: u32 = 12;
/// Documents that one hour has ids for.
pub(in crate::catalog) const HOUR_IDS: i64 = 1 << HOUR_BITS;

/// The first id of the hour that `at` lies in.
pub(in crate::catalog) fn first_docid(at: Timestamp) -> i64 {
    hour_of(at.unix_ms()) << HOUR_BITS
}

/// The last id that a document said before `until` can have, when documents were put up to `spill_hours` late.
pub(in crate::catalog) fn last_docid(until: Timestamp, spill_hours: i64) -> i64 {
    ((hour_of(until.unix_ms()) + spill_hours + 1) << HOUR_BITS) - 1
}

const fn hour_of(unix_ms: i64) -> i64 {
    let hour = (unix_ms - EPOCH_MS) / HOUR_MS;
    if hour < 0 { 0 } else { hour }
}

/// The greatest id in use from `from` to `to`.
pub(in crate::catalog) fn greatest_docid(
    conn: &Connection,
    from: i64,
    to: i64,
) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached("SELECT max(docid) FROM docs WHERE docid BETWEEN ?1 AND ?2")?
        .query_row([from, to], |row| row.get(0))
}

/// The most hours that a document lies after its own, because an import filled them.
pub(in crate::catalog) fn spill_hours(conn: &Connection) -> rusqlite::Result<i64> {
    let found = conn
        .prepare_cached("SELECT value FROM facts WHERE name = 'spillHours'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(found.unwrap_or(0))
}

/// Remembers a larger spill.
pub(in crate::catalog) fn set_spill_hours(conn: &Connection, hours: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT OR REPLACE INTO facts (name, value) VALUES ('spillHours', ?1)")?
        .execute([hours])
        .map(drop)
}

/// Where a document comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::catalog) struct Origin {
    /// The number of its session.
    pub session: i64,
    /// The record.
    pub seq: Seq,
}

/// Adds a document.
pub(in crate::catalog) fn put_document(
    conn: &Connection,
    docid: i64,
    origin: Origin,
    tokens: &str,
) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT INTO docs (docid, session, seq) VALUES (?1, ?2, ?3)")?
        .execute(params![docid, origin.session, signed(origin.seq.0)])?;
    conn.prepare_cached("INSERT INTO words (rowid, text) VALUES (?1, ?2)")?
        .execute(params![docid, tokens])
        .map(drop)
}

/// Takes a document out; `tokens` must be those that it was added with.
pub(in crate::catalog) fn remove_document(
    conn: &Connection,
    docid: i64,
    tokens: &str,
) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT INTO words (words, rowid, text) VALUES ('delete', ?1, ?2)")?
        .execute(params![docid, tokens])?;
    conn.prepare_cached("DELETE FROM docs WHERE docid = ?1")?.execute([docid]).map(drop)
}

/// Where a document comes from; `None` where it is gone.
pub(in crate::catalog) fn origin(
    conn: &Connection,
    docid: i64,
) -> rusqlite::Result<Option<Origin>> {
    conn.prepare_cached("SELECT session, seq FROM docs WHERE docid = ?1")?
        .query_row([docid], |row| Ok(Origin { session: row.get(0)?, seq: Seq(unsigned(row, 1)?) }))
        .optional()
}

/// The newest documents that match an FTS5 expression, within a range of ids.
pub(in crate::catalog) fn matching(
    conn: &Connection,
    expression: &str,
    (from, to): (i64, i64),
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    conn.prepare_cached(
        "SELECT rowid FROM words WHERE words MATCH ?1 AND rowid BETWEEN ?2 AND ?3
         ORDER BY rowid DESC LIMIT ?4",
    )?
    .query_map(params![expression, from, to, signed(limit as u64)], |row| row.get(0))?
    .collect()
}

/// How much FTS5 holds in memory before it writes a segment, in bytes.
pub(in crate::catalog) fn set_hash_bytes(conn: &Connection, bytes: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT INTO words (words, rank) VALUES ('hashsize', ?1)")?
        .execute([bytes])
        .map(drop)
}

/// Drops the index with all documents and makes an empty one; sessions keep their other rows.
pub(in crate::catalog) fn reset(conn: &Connection) -> rusqlite::Result<()> {
    conn.flush_prepared_statement_cache();
    conn.execute_batch(&format!(
        "DROP TABLE words; DELETE FROM docs; DELETE FROM facts WHERE name = 'spillHours';
         UPDATE sessions SET text_records = 0, orphans = 0; {}",
        schema::WORDS
    ))
}

/// Merges all segments of the index into one, `pages` to a transaction; removed words are gone after it.
pub(in crate::catalog) fn merge(conn: &Connection, pages: i64) -> rusqlite::Result<()> {
    // A negative number begins a merge of all segments, a positive one goes on; a step that changes only the
    // index's own record found nothing more to do. (sqlite.org/fts5.html, "The merge command")
    let mut step = -pages;
    loop {
        let before = conn.total_changes();
        conn.prepare_cached("INSERT INTO words (words, rank) VALUES ('merge', ?1)")?
            .execute([step])?;
        if step > 0 && conn.total_changes() - before < 2 {
            return Ok(());
        }
        step = pages;
    }
}
