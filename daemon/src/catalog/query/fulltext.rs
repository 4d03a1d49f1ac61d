//! The full-text index: its shards, the words in them, and the documents behind them.
//!
//! A shard is an FTS5 table of its own that holds the documents of a range of ids, which is a range of time. A
//! search begins at the newest shard and mostly ends there, so its cost does not grow with the history. A full shard
//! is merged once. To remove a session's words, only the shards that contain them are merged.
//!
//! A document's id is `hours since 2020 << 12 | n`, so that the order of ids is the order of time, in whatever order
//! sessions were recorded or imported.

use std::ops::RangeInclusive;

use ollm_protocol::content::RecordKind;
use ollm_protocol::{Seq, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{rewrite, signed, unsigned};
use crate::session::index::IndexEntry;

/// 2020-01-01T00:00:00Z in milliseconds since 1970; older documents get ids of that hour.
const EPOCH_MS: i64 = 1_577_836_800_000;
const HOUR_MS: i64 = 3_600_000;
/// Bits of a document's id that number the documents of one hour.
pub(crate) const HOUR_BITS: u32 = 12;
/// Number of document ids of one hour.
pub(crate) const HOUR_IDS: i64 = 1 << HOUR_BITS;

/// Number of documents in a full shard: searching the prefixes of five letters that a third of them contain takes
/// some milliseconds, and merging it a third of a second. Tests get many shards from few documents.
const MAX_SHARD_DOCUMENTS: i64 = if cfg!(test) { 64 } else { 1 << 16 };
/// Bytes of words in a full shard, whatever its number of documents.
const MAX_SHARD_BYTES: i64 = 64 << 20;
/// Memory that FTS5 uses before it writes a segment: what one batch needs at most, so that a batch becomes one
/// segment.
const HASH_BYTES: i64 = 8 << 20;

/// Returns the first id of the hour that contains `at`.
pub(crate) fn first_docid(at: Timestamp) -> i64 {
    hour_of(at.unix_ms()) << HOUR_BITS
}

/// Returns the last id that a document from before `until` can have, if documents spilled up to `spill_hours` into
/// later hours.
pub(crate) fn last_docid(until: Timestamp, spill_hours: i64) -> i64 {
    ((hour_of(until.unix_ms()) + spill_hours + 1) << HOUR_BITS) - 1
}

const fn hour_of(unix_ms: i64) -> i64 {
    let hour = (unix_ms - EPOCH_MS) / HOUR_MS;
    if hour < 0 { 0 } else { hour }
}

/// Returns whether the index has exactly the documents whose origins are stored.
pub(crate) fn has_all_documents(conn: &Connection) -> rusqlite::Result<bool> {
    let mut n_indexed = 0;
    for shard in list_shards(conn)? {
        let sql = format!(
            "SELECT count(*) FROM words_{}_docsize WHERE id IN (SELECT docid FROM docs)",
            shard.num
        );
        n_indexed += conn.query_row(&sql, [], |row| row.get::<_, i64>(0))?;
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM words_{}_docsize WHERE id NOT IN (SELECT docid FROM docs))",
            shard.num
        );
        if conn.query_row(&sql, [], |row| row.get(0))? {
            return Ok(false);
        }
    }
    let n_origins: i64 = conn.query_row("SELECT count(*) FROM docs", [], |row| row.get(0))?;
    Ok(n_indexed == n_origins)
}

/// Returns the greatest document id in use within a range.
pub(crate) fn greatest_docid(
    conn: &Connection,
    docids: RangeInclusive<i64>,
) -> rusqlite::Result<Option<i64>> {
    conn.prepare_cached("SELECT max(docid) FROM docs WHERE docid BETWEEN ?1 AND ?2")?
        .query_row([docids.start(), docids.end()], |row| row.get(0))
}

/// Returns the largest number of hours by which a document's id is later than its time, because an import filled
/// the hours between.
pub(crate) fn spill_hours(conn: &Connection) -> rusqlite::Result<i64> {
    let found = conn
        .prepare_cached("SELECT value FROM facts WHERE name = 'spillHours'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(found.unwrap_or(0))
}

pub(crate) fn set_spill_hours(conn: &Connection, hours: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT OR REPLACE INTO facts (name, value) VALUES ('spillHours', ?1)")?
        .execute([hours])
        .map(drop)
}

/// Returns the identity that the last seal gave to the transactions after it.
pub(crate) fn seal_id(conn: &Connection) -> rusqlite::Result<i64> {
    let found = conn
        .prepare_cached("SELECT value FROM facts WHERE name = 'seal'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(found.unwrap_or(0))
}

/// Returns a random number.
pub(crate) fn random_id(conn: &Connection) -> rusqlite::Result<i64> {
    conn.query_row("SELECT random()", [], |row| row.get(0))
}

pub(crate) fn set_seal_id(conn: &Connection, id: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT OR REPLACE INTO facts (name, value) VALUES ('seal', ?1)")?
        .execute([id])
        .map(drop)
}

/// The record behind a document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DocumentOrigin {
    /// The id of the document.
    pub docid: i64,
    /// The number of its session.
    pub session: i64,
    pub seq: Seq,
    /// Only the record's place in the log; a document stores nothing else of its entry.
    pub entry: IndexEntry,
}

/// Stores the origin of a document.
pub(crate) fn put_origin(conn: &Connection, origin: &DocumentOrigin) -> rusqlite::Result<()> {
    let IndexEntry { offset, len, .. } = origin.entry;
    let has_blobs = i64::from(origin.entry.has(IndexEntry::HAS_BLOBS));
    conn.prepare_cached(
        "INSERT INTO docs (docid, session, seq, offset, len) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![
        origin.docid,
        origin.session,
        signed(origin.seq.0),
        signed(offset),
        i64::from(len) << 1 | has_blobs
    ])
    .map(drop)
}

/// Returns the origin of a document; `None` for a removed one.
pub(crate) fn origin(conn: &Connection, docid: i64) -> rusqlite::Result<Option<DocumentOrigin>> {
    conn.prepare_cached("SELECT session, seq, offset, len, docid FROM docs WHERE docid = ?1")?
        .query_row([docid], origin_from_row)
        .optional()
}

/// Returns the origins of a document and of its nearest `n` neighbors on each side, of any session, in the order of
/// their ids.
pub(crate) fn origins_around(
    conn: &Connection,
    docid: i64,
    n: usize,
) -> rusqlite::Result<Vec<DocumentOrigin>> {
    let mut around = Vec::with_capacity(2 * n + 1);
    let before = "SELECT session, seq, offset, len, docid FROM docs WHERE docid < ?1 ORDER BY docid DESC LIMIT ?2";
    let mut statement = conn.prepare_cached(before)?;
    for origin in statement.query_map(params![docid, signed(n as u64)], origin_from_row)? {
        around.push(origin?);
    }
    around.reverse();
    let from = "SELECT session, seq, offset, len, docid FROM docs WHERE docid >= ?1 ORDER BY docid LIMIT ?2";
    let mut statement = conn.prepare_cached(from)?;
    for origin in statement.query_map(params![docid, signed(n as u64 + 1)], origin_from_row)? {
        around.push(origin?);
    }
    Ok(around)
}

/// Returns a document from a row with its columns and its id.
fn origin_from_row(row: &Row<'_>) -> rusqlite::Result<DocumentOrigin> {
    let len: i64 = row.get(3)?;
    let location = (unsigned(row, 2)?, u32::try_from(len >> 1).unwrap_or_default());
    let flags = if len & 1 == 1 { IndexEntry::HAS_BLOBS } else { 0 };
    let entry = IndexEntry::new(location, None, RecordKind::Message, None, 0, flags);
    let (session, seq) = (row.get(0)?, Seq(unsigned(row, 1)?));
    Ok(DocumentOrigin { docid: row.get(4)?, session, seq, entry })
}

/// Adds the words of documents, which must be ordered by id: FTS5 writes a segment whenever an id is not above the
/// one before. A full newest shard is followed by a new one.
pub(crate) fn put_words(conn: &Connection, documents: &[(i64, String)]) -> rusqlite::Result<()> {
    let mut shards = list_shards(conn)?;
    shards.reverse();
    let mut has_grown = vec![false; shards.len()];
    for (docid, words) in documents {
        let mut at = shards.partition_point(|shard| shard.first <= *docid).max(1) - 1;
        let newest = shards.last().filter(|_| at + 1 == shards.len());
        if newest.is_some_and(|shard| shard.is_full() && *docid > shard.last) {
            let num = shards.iter().map(|shard| shard.num).max().unwrap_or_default() + 1;
            set_unmerged(conn, shards[at].num, true)?;
            shards.push(create_shard(conn, num, *docid)?);
            has_grown.push(true);
            at += 1;
        }
        let shard = &mut shards[at];
        shard.last = shard.last.max(*docid);
        shard.documents += 1;
        shard.bytes += i64::try_from(words.len()).unwrap_or_default();
        has_grown[at] = true;
        let table = shard.num;
        conn.prepare_cached(&format!("INSERT INTO words_{table} (rowid, text) VALUES (?1, ?2)"))?
            .execute(params![docid, words])?;
    }
    for (shard, _) in shards.iter().zip(has_grown).filter(|(_, has_grown)| *has_grown) {
        conn.prepare_cached(
            "UPDATE shards SET last = ?2, documents = ?3, bytes = ?4 WHERE num = ?1",
        )?
        .execute(params![shard.num, shard.last, shard.documents, shard.bytes])?;
    }
    Ok(())
}

/// Removes documents from a shard, which must be merged before their words leave the files.
pub(crate) fn remove_documents(
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
    if docids.is_empty() { Ok(()) } else { set_unmerged(conn, shard, true) }
}

/// Returns a token as a string of an FTS5 expression. No token contains a quotation mark.
pub(crate) fn quoted(token: &str) -> String {
    format!("\"{token}\"")
}

/// Returns the newest documents within a range of ids that match an FTS5 expression.
pub(crate) fn matching(
    conn: &Connection,
    expression: &str,
    docids: &RangeInclusive<i64>,
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    let mut found = Vec::new();
    let mut end = *docids.end();
    for shard in list_shards(conn)? {
        if found.len() >= limit || end < *docids.start() {
            break;
        }
        if shard.first <= end {
            let range = *docids.start()..=end;
            let limit = limit - found.len();
            found.extend(matching_in_shard(conn, shard.num, expression, &range, limit)?);
            end = shard.first - 1;
        }
    }
    Ok(found)
}

/// Returns the newest documents of one shard within a range of ids that match an FTS5 expression.
pub(crate) fn matching_in_shard(
    conn: &Connection,
    shard: i64,
    expression: &str,
    docids: &RangeInclusive<i64>,
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    let (first, last) = (docids.start(), docids.end());
    conn.prepare_cached(&format!(
        "SELECT rowid FROM words_{shard} WHERE words_{shard} MATCH ?1 AND rowid BETWEEN ?2 AND ?3
         ORDER BY rowid DESC LIMIT ?4"
    ))?
    .query_map(params![expression, first, last, signed(limit as u64)], |row| row.get(0))?
    .collect()
}

/// Returns the ids of the oldest and of the newest document that match an FTS5 expression.
pub(crate) fn ends_of(
    conn: &Connection,
    expression: &str,
) -> rusqlite::Result<Option<RangeInclusive<i64>>> {
    let Some(newest) = matching(conn, expression, &(0..=i64::MAX), 1)?.pop() else {
        return Ok(None);
    };
    for shard in list_shards(conn)?.iter().rev() {
        let num = shard.num;
        let oldest = conn
            .prepare_cached(&format!(
                "SELECT rowid FROM words_{num} WHERE words_{num} MATCH ?1 ORDER BY rowid LIMIT 1"
            ))?
            .query_row([expression], |row| row.get(0))
            .optional()?;
        if let Some(oldest) = oldest {
            return Ok(Some(oldest..=newest));
        }
    }
    Ok(None)
}

/// Returns about how many documents have ids within a range.
pub(crate) fn documents_in(shards: &[Shard], docids: &RangeInclusive<i64>) -> f64 {
    let share = |shard: &Shard| {
        let (first, last) = (to_f64(shard.first), to_f64(shard.last.max(shard.first)));
        let from = to_f64(*docids.start()).max(first);
        let to = to_f64(*docids.end()).min(last);
        ((to - from + 1.0) / (last - first + 1.0)).clamp(0.0, 1.0) * to_f64(shard.documents)
    };
    shards.iter().map(share).sum()
}

#[expect(clippy::cast_precision_loss, reason = "estimates need no more than the first digits")]
const fn to_f64(number: i64) -> f64 {
    number as f64
}

/// A shard: it holds the documents from `first` up to the next shard's `first`.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    /// The number in the name of its table.
    pub num: i64,
    /// The first id that it accepts; the oldest shard also accepts smaller ones.
    first: i64,
    /// The greatest id that was added to it.
    last: i64,
    documents: i64,
    bytes: i64,
}

impl Shard {
    fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            num: row.get(0)?,
            first: row.get(1)?,
            last: row.get(2)?,
            documents: row.get(3)?,
            bytes: row.get(4)?,
        })
    }

    const fn is_full(&self) -> bool {
        self.documents >= MAX_SHARD_DOCUMENTS || self.bytes >= MAX_SHARD_BYTES
    }
}

/// Returns all shards, the newest first.
pub(crate) fn list_shards(conn: &Connection) -> rusqlite::Result<Vec<Shard>> {
    conn.prepare_cached(
        "SELECT num, first, last, documents, bytes FROM shards ORDER BY first DESC",
    )?
    .query_map([], Shard::from_row)?
    .collect()
}

/// Creates the shard that an empty index begins with.
pub(super) fn create_first_shard(conn: &Connection) -> rusqlite::Result<()> {
    create_shard(conn, 1, 0).map(drop)
}

/// Creates a shard.
///
/// `contentless_delete` removes a document by its id, without its words, which were removed with the log. The words
/// leave the files when segments are merged, which [`begin_merge`] and [`continue_merge`] do; `deletemerge=0` turns
/// off the merge by the share of removed documents, which would only interfere. `automerge=8`, because a shard has
/// few large segments and is merged whole when it is full.
fn create_shard(conn: &Connection, num: i64, first: i64) -> rusqlite::Result<Shard> {
    conn.execute_batch(&format!(
        "CREATE VIRTUAL TABLE words_{num} USING
             fts5(text, content='', contentless_delete=1, detail=none, tokenize='ascii');
         INSERT INTO words_{num} (words_{num}, rank) VALUES ('deletemerge', 0);
         INSERT INTO words_{num} (words_{num}, rank) VALUES ('automerge', 8);
         INSERT INTO words_{num} (words_{num}, rank) VALUES ('hashsize', {HASH_BYTES});"
    ))?;
    conn.execute(
        "INSERT INTO shards (num, first, last, documents, bytes, unmerged) VALUES (?1, ?2, -1, 0, 0, 0)",
        params![num, first],
    )?;
    Ok(Shard { num, first, last: -1, documents: 0, bytes: 0 })
}

/// Removes all documents and shards, and creates the first shard of an empty index.
pub(crate) fn reset(conn: &Connection) -> rusqlite::Result<()> {
    conn.flush_prepared_statement_cache();
    for shard in list_shards(conn)? {
        conn.execute_batch(&format!("DROP TABLE words_{}", shard.num))?;
    }
    conn.execute_batch(
        "DELETE FROM shards; DELETE FROM docs; DELETE FROM facts WHERE name = 'spillHours';",
    )?;
    create_first_shard(conn)
}

/// Sets whether all segments of a shard are to be merged, because words of removed documents are still in the files
/// or because it is full. FTS5 itself merges the segments that a full shard gets later.
pub(crate) fn set_unmerged(conn: &Connection, shard: i64, unmerged: bool) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE shards SET unmerged = ?2 WHERE num = ?1")?
        .execute(params![shard, unmerged])
        .map(drop)
}

/// Marks the newest shard as to be merged.
pub(crate) fn set_newest_unmerged(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute("UPDATE shards SET unmerged = 1 WHERE first = (SELECT max(first) FROM shards)", [])
        .map(drop)
}

/// Returns the shards that are to be merged.
pub(crate) fn unmerged_shards(conn: &Connection) -> rusqlite::Result<Vec<i64>> {
    conn.prepare_cached("SELECT num FROM shards WHERE unmerged ORDER BY num")?
        .query_map([], |row| row.get(0))?
        .collect()
}

/// Returns the name of a shard's table.
pub(crate) fn table_of(shard: i64) -> String {
    format!("words_{shard}")
}

/// Begins to merge all segments of an FTS5 table into one, writing about `pages` pages. If no other merge was in progress,
/// all words removed before this call have left the files once [`continue_merge`] returns false.
pub(crate) fn begin_merge(conn: &Connection, table: &str, pages: i64) -> rusqlite::Result<()> {
    merge_step(conn, table, -pages)
}

/// Continues the merge of a table by about `pages` pages; returns false when none is in progress.
pub(crate) fn continue_merge(conn: &Connection, table: &str, pages: i64) -> rusqlite::Result<bool> {
    let before = conn.total_changes();
    merge_step(conn, table, pages)?;
    // A step that changes only the index's own record found nothing to do.
    // (sqlite.org/fts5.html, "The merge command")
    Ok(conn.total_changes() - before >= 2)
}

/// Rewrites the tables behind an FTS5 table that contain words, within the open transaction.
pub(crate) fn rewrite_words(conn: &Connection, table: &str) -> rusqlite::Result<()> {
    rewrite(conn, &format!("{table}_data"))?;
    rewrite(conn, &format!("{table}_idx"))
}

fn merge_step(conn: &Connection, table: &str, pages: i64) -> rusqlite::Result<()> {
    let sql = format!("INSERT INTO {table} ({table}, rank) VALUES ('merge', ?1)");
    conn.prepare_cached(&sql)?.execute([pages]).map(drop)
}
