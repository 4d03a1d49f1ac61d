//! Every statement on the shards of the full-text index: which there are, and what of each is to be done.
//!
//! A shard is an FTS5 table of its own that holds the documents of a range of ids, which is a range of time. A
//! search begins at the newest and mostly ends there, so what it costs does not grow with the history; a shard
//! that is full is merged once and for all; and to take out a session's words, only its shards are merged.

use rusqlite::{Connection, Row, params};

use super::schema;

/// Documents after which a shard is full: with the prefixes of five letters that a third of them has, a search in
/// it takes some milliseconds, and merging it a third of a second. Tests have many shards with few documents.
const MAX_DOCUMENTS: i64 = if cfg!(test) { 64 } else { 1 << 16 };
/// Bytes of words after which a shard is full, whatever the number of its documents.
const MAX_BYTES: i64 = 64 << 20;

/// One shard. It takes the documents from `first` up to the next one's first.
#[derive(Clone, Debug)]
pub(in crate::catalog) struct Shard {
    /// The number in the name of its table.
    pub num: i64,
    /// The first id that it takes; the oldest shard takes what is older, too.
    pub first: i64,
    /// The greatest id that was put into it.
    last: i64,
    documents: i64,
    bytes: i64,
}

impl Shard {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            num: row.get(0)?,
            first: row.get(1)?,
            last: row.get(2)?,
            documents: row.get(3)?,
            bytes: row.get(4)?,
        })
    }

    const fn is_full(&self) -> bool {
        self.documents >= MAX_DOCUMENTS || self.bytes >= MAX_BYTES
    }
}

/// Every shard, the newest first.
pub(in crate::catalog) fn newest_first(conn: &Connection) -> rusqlite::Result<Vec<Shard>> {
    conn.prepare_cached(
        "SELECT num, first, last, documents, bytes FROM shards ORDER BY first DESC",
    )?
    .query_map([], Shard::of)?
    .collect()
}

/// Makes the shard that a new index begins with.
pub(in crate::catalog) fn open_first(conn: &Connection) -> rusqlite::Result<()> {
    open(conn, 1, 0).map(drop)
}

fn open(conn: &Connection, num: i64, first: i64) -> rusqlite::Result<Shard> {
    conn.execute_batch(&schema::words_table(num))?;
    conn.execute(
        "INSERT INTO shards (num, first, last, documents, bytes, unmerged) VALUES (?1, ?2, -1, 0, 0, 0)",
        params![num, first],
    )?;
    Ok(Shard { num, first, last: -1, documents: 0, bytes: 0 })
}

/// Drops every shard and makes the first one anew.
pub(in crate::catalog) fn reset(conn: &Connection) -> rusqlite::Result<()> {
    conn.flush_prepared_statement_cache();
    for shard in newest_first(conn)? {
        conn.execute_batch(&format!("DROP TABLE words_{}", shard.num))?;
    }
    conn.execute("DELETE FROM shards", [])?;
    open_first(conn)
}

/// Finds the shards of documents that are put in the order of their ids.
pub(in crate::catalog) struct Filling<'a> {
    conn: &'a Connection,
    /// The newest last.
    shards: Vec<Shard>,
    /// Which of them have grown.
    grown: Vec<bool>,
}

impl<'a> Filling<'a> {
    /// The shards as they are.
    pub(in crate::catalog) fn new(conn: &'a Connection) -> rusqlite::Result<Self> {
        let mut shards = newest_first(conn)?;
        shards.reverse();
        let grown = vec![false; shards.len()];
        Ok(Self { conn, shards, grown })
    }

    /// The number of the shard that takes a document; the newest one is followed by another when it is full.
    pub(in crate::catalog) fn shard_of(
        &mut self,
        docid: i64,
        bytes: usize,
    ) -> rusqlite::Result<i64> {
        let mut at = self.shards.partition_point(|shard| shard.first <= docid).max(1) - 1;
        let newest = self.shards.last().filter(|_| at + 1 == self.shards.len());
        if newest.is_some_and(|shard| shard.is_full() && docid > shard.last) {
            let num = self.shards.iter().map(|shard| shard.num).max().unwrap_or_default() + 1;
            set_unmerged(self.conn, self.shards[at].num, true)?;
            self.shards.push(open(self.conn, num, docid)?);
            self.grown.push(true);
            at += 1;
        }
        let shard = &mut self.shards[at];
        shard.last = shard.last.max(docid);
        shard.documents += 1;
        shard.bytes += i64::try_from(bytes).unwrap_or_default();
        self.grown[at] = true;
        Ok(shard.num)
    }

    /// Writes down how the shards have grown.
    pub(in crate::catalog) fn finish(self) -> rusqlite::Result<()> {
        let grown = self.shards.iter().zip(self.grown).filter(|(_, grown)| *grown);
        for (shard, _) in grown {
            self.conn
                .prepare_cached(
                    "UPDATE shards SET last = ?2, documents = ?3, bytes = ?4 WHERE num = ?1",
                )?
                .execute(params![shard.num, shard.last, shard.documents, shard.bytes])?;
        }
        Ok(())
    }
}

/// Says whether all segments of a shard are to be merged: because documents were taken out, whose words are still
/// in the files, or because it is full. What is put into a full one later is merged in passing.
pub(in crate::catalog) fn set_unmerged(
    conn: &Connection,
    shard: i64,
    unmerged: bool,
) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE shards SET unmerged = ?2 WHERE num = ?1")?
        .execute(params![shard, unmerged])
        .map(drop)
}

/// Says that all segments of the newest shard are to be merged.
pub(in crate::catalog) fn set_newest_unmerged(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute("UPDATE shards SET unmerged = 1 WHERE first = (SELECT max(first) FROM shards)", [])
        .map(drop)
}

/// The shards that are to be merged.
pub(in crate::catalog) fn unmerged(conn: &Connection) -> rusqlite::Result<Vec<i64>> {
    conn.prepare_cached("SELECT num FROM shards WHERE unmerged ORDER BY num")?
        .query_map([], |row| row.get(0))?
        .collect()
}
