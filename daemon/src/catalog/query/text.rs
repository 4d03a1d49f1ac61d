//! Every statement on the full-text index and the documents behind it.
//!
//! A document's id is `hours since 2020 << 12 | n`, so that the newest come first in the order of ids, whatever
//! the order in which sessions were recorded or imported.

use ollm_protocol::content::RecordKind;
use ollm_protocol::{Seq, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use super::shards::{self, Filling};
use super::{signed, unsigned};
use crate::session::index::IndexEntry;

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
#[derive(Clone, Copy, Debug)]
pub(in crate::catalog) struct Origin {
    /// The number of its session.
    pub session: i64,
    /// The record.
    pub seq: Seq,
    /// Where it lies in the log; nothing else of this is stored with a document.
    pub entry: IndexEntry,
}

/// Says where a document comes from.
pub(in crate::catalog) fn put_origin(
    conn: &Connection,
    docid: i64,
    origin: &Origin,
) -> rusqlite::Result<()> {
    let IndexEntry { offset, len, .. } = origin.entry;
    let has_blobs = i64::from(origin.entry.has(IndexEntry::HAS_BLOBS));
    conn.prepare_cached(
        "INSERT INTO docs (docid, session, seq, offset, len) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![
        docid,
        origin.session,
        signed(origin.seq.0),
        signed(offset),
        i64::from(len) << 1 | has_blobs
    ])
    .map(drop)
}

/// Adds documents with their words, which `documents` has in the order of ids: FTS5 writes out what it has
/// gathered whenever an id is not above the one before.
pub(in crate::catalog) fn put_words(
    conn: &Connection,
    documents: &[(i64, String)],
) -> rusqlite::Result<()> {
    let mut filling = Filling::new(conn)?;
    for (docid, tokens) in documents {
        let shard = filling.shard_of(*docid, tokens.len())?;
        conn.prepare_cached(&format!("INSERT INTO words_{shard} (rowid, text) VALUES (?1, ?2)"))?
            .execute(params![docid, tokens])?;
    }
    filling.finish()
}

/// Takes documents out of a shard. Their words stay in the files until it is merged.
pub(in crate::catalog) fn remove_documents(
    conn: &Connection,
    shard: i64,
    docids: &[i64],
) -> rusqlite::Result<()> {
    let mut words = conn.prepare_cached(&format!("DELETE FROM words_{shard} WHERE rowid = ?1"))?;
    let mut docs = conn.prepare_cached("DELETE FROM docs WHERE docid = ?1")?;
    for docid in docids {
        words.execute([docid])?;
        docs.execute([docid])?;
    }
    if docids.is_empty() { Ok(()) } else { shards::set_unmerged(conn, shard, true) }
}

/// Where a document comes from; `None` where it is gone.
pub(in crate::catalog) fn origin(
    conn: &Connection,
    docid: i64,
) -> rusqlite::Result<Option<Origin>> {
    conn.prepare_cached("SELECT session, seq, offset, len FROM docs WHERE docid = ?1")?
        .query_row([docid], |row| {
            let len: i64 = row.get(3)?;
            let place = (unsigned(row, 2)?, u32::try_from(len >> 1).unwrap_or_default());
            let flags = if len & 1 == 1 { IndexEntry::HAS_BLOBS } else { 0 };
            let entry = IndexEntry::new(place, None, RecordKind::Message, None, 0, flags);
            Ok(Origin { session: row.get(0)?, seq: Seq(unsigned(row, 1)?), entry })
        })
        .optional()
}

/// The newest documents that match an FTS5 expression, within a range of ids.
pub(in crate::catalog) fn matching(
    conn: &Connection,
    expression: &str,
    (from, to): (i64, i64),
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    let mut found = Vec::new();
    let mut end = to;
    for shard in shards::newest_first(conn)? {
        if found.len() >= limit || end < from {
            break;
        }
        if shard.first <= end {
            let range = (from, end);
            let more = matching_in(conn, shard.num, expression, range, limit - found.len())?;
            found.extend(more);
            end = shard.first - 1;
        }
    }
    Ok(found)
}

/// The newest documents of one shard that match an FTS5 expression, within a range of ids.
pub(in crate::catalog) fn matching_in(
    conn: &Connection,
    shard: i64,
    expression: &str,
    (from, to): (i64, i64),
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    conn.prepare_cached(&format!(
        "SELECT rowid FROM words_{shard} WHERE words_{shard} MATCH ?1 AND rowid BETWEEN ?2 AND ?3
         ORDER BY rowid DESC LIMIT ?4"
    ))?
    .query_map(params![expression, from, to, signed(limit as u64)], |row| row.get(0))?
    .collect()
}

/// Drops the index with all documents and makes an empty one.
pub(in crate::catalog) fn reset(conn: &Connection) -> rusqlite::Result<()> {
    shards::reset(conn)?;
    conn.execute_batch("DELETE FROM docs; DELETE FROM facts WHERE name = 'spillHours';")
}

/// Goes on with the merge of a shard that is under way, by about `pages` pages; false when none is.
pub(in crate::catalog) fn merge_on(
    conn: &Connection,
    shard: i64,
    pages: i64,
) -> rusqlite::Result<bool> {
    let before = conn.total_changes();
    merge_step(conn, shard, pages)?;
    // A step that changes only the index's own record found nothing to do.
    // (sqlite.org/fts5.html, "The merge command")
    Ok(conn.total_changes() - before >= 2)
}

/// Begins a merge of all segments of a shard into one. Where no other merge is under way, everything that was
/// taken out before this is gone from the files when [`merge_on`] has no more to do.
pub(in crate::catalog) fn begin_merge(
    conn: &Connection,
    shard: i64,
    pages: i64,
) -> rusqlite::Result<()> {
    merge_step(conn, shard, -pages)
}

fn merge_step(conn: &Connection, shard: i64, pages: i64) -> rusqlite::Result<()> {
    let sql = format!("INSERT INTO words_{shard} (words_{shard}, rank) VALUES ('merge', ?1)");
    conn.prepare_cached(&sql)?.execute([pages]).map(drop)
}
