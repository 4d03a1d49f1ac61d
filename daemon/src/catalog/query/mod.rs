//! Every SQL statement of the project, each in one typed function.
//!
//! A function takes part in the transaction that its caller has open. Values that SQLite stores as signed are
//! converted here and nowhere else. FORMAT.md, "Catalog".

pub(super) mod fulltext;
pub(super) mod schema;
pub(super) mod sessions;
pub(super) mod titles;

use rusqlite::{Connection, Row};

/// Begins a transaction that writes.
pub(super) fn begin(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("BEGIN IMMEDIATE")
}

pub(super) fn commit(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("COMMIT")
}

/// Rolls back the open transaction, unless SQLite already did.
pub(super) fn rollback(conn: &Connection) {
    if !conn.is_autocommit()
        && let Err(error) = conn.execute_batch("ROLLBACK")
    {
        tracing::error!(%error, "cannot roll back a transaction of the catalog");
    }
}

/// Copies the journal into the database and truncates it; returns false when a reader prevented that.
pub(super) fn truncate_wal(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0))
        .map(|busy| busy == 0)
}

/// Rewrites a table within the open transaction, so that no page keeps a copy of a removed row.
///
/// When SQLite moves rows from a page to a sibling, their bytes may stay in the unused part of the page, where
/// `secure_delete` does not overwrite them after the rows are removed. It does overwrite every page of a table that is
/// emptied.
pub(super) fn rewrite(conn: &Connection, table: &str) -> rusqlite::Result<()> {
    conn.execute_batch(&format!(
        "CREATE TABLE rewritten AS SELECT * FROM {table};
         DELETE FROM {table};
         INSERT INTO {table} SELECT * FROM rewritten;
         DROP TABLE rewritten;"
    ))
}

/// Gives cached pages back to the system.
pub(super) fn shrink_memory(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("PRAGMA shrink_memory")
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(|value| u64::try_from(value).unwrap_or_default())
}
