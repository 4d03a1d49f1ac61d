//! The tables of the catalog, its version, and the settings of its connections.
//!
//! Must not know the meaning of the rows.

use std::collections::BTreeMap;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::{fulltext, titles};

/// The version of tables and index tokens. A file of another version is removed and recreated.
pub(crate) const VERSION: i64 = 11;

// `sessions` holds what lists filter and sort by, small enough that 10,000 rows are scanned in milliseconds; the
// large values lie in `details`. `ending` has the last 16 digits of the id in reverse order. A session number is never
// reused (AUTOINCREMENT): the documents of a replaced log keep the old number and lead nowhere. `docs` has no index by
// session: a private term of the session in the full-text index finds its documents. `docs` repeats from `entries` where
// a record lies, because a page of hits covers many sessions, and reading 50 KB of entries for each would take longer
// than reading the records.
// `gaps` lists records whose text could not be read when its turn came; they are tried again.
// `forgotten` lists removed sessions whose words may still be in the files.
const TABLES: &str = "
CREATE TABLE sessions (
    num INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL UNIQUE,
    ending BLOB NOT NULL,
    last_ms INTEGER NOT NULL,
    status INTEGER NOT NULL,
    project TEXT,
    pinned INTEGER NOT NULL,
    imported INTEGER NOT NULL,
    forked_from BLOB,
    bytes INTEGER NOT NULL,
    records INTEGER NOT NULL,
    last_crc INTEGER NOT NULL,
    n_keys INTEGER NOT NULL,
    text_records INTEGER NOT NULL,
    create_key BLOB,
    create_payload BLOB
);
CREATE INDEX sessions_by_activity ON sessions (last_ms, id, status);
CREATE INDEX sessions_by_ending ON sessions (ending, id);
CREATE INDEX sessions_by_project ON sessions (project, last_ms, id, status) WHERE project IS NOT NULL;
CREATE INDEX sessions_by_create_key ON sessions (create_key) WHERE create_key IS NOT NULL;
CREATE INDEX sessions_by_origin ON sessions (forked_from) WHERE forked_from IS NOT NULL;
CREATE TABLE details (num INTEGER PRIMARY KEY, session TEXT NOT NULL, carry BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE entries (id INTEGER PRIMARY KEY, packed BLOB NOT NULL);
CREATE TABLE keys (id INTEGER PRIMARY KEY, packed BLOB NOT NULL);
CREATE TABLE docs (
    docid INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    len INTEGER NOT NULL
);
CREATE TABLE shards (
    num INTEGER PRIMARY KEY,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    documents INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    unmerged INTEGER NOT NULL
);
CREATE TABLE gaps (num INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (num, seq)) WITHOUT ROWID;
CREATE TABLE forgotten (num INTEGER PRIMARY KEY);
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
";

/// The settings of every connection. The sizes keep an idle daemon below 10 MB. `secure_delete` overwrites deleted
/// data, because nothing of a deleted session may remain; `temp_store` keeps its text out of temporary files. Only the
/// writer copies the journal into the database, because a seal describes the database until then.
const SETTINGS: &str = "
PRAGMA page_size = 4096;
PRAGMA secure_delete = ON;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA cache_size = -2048;
PRAGMA mmap_size = 0;
PRAGMA temp_store = MEMORY;
PRAGMA wal_autocheckpoint = 0;
";

/// Number of statements that a connection keeps prepared.
const PREPARED_STATEMENTS: usize = 96;

/// Applies the settings to a new connection.
///
/// Plans must not depend on bound values (QPSG): otherwise, SQLite prepares a statement with a bound range again for
/// every value of it, which takes longer than most lookups in the index.
pub(crate) fn configure(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(SETTINGS)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    conn.set_prepared_statement_cache_capacity(PREPARED_STATEMENTS);
    Ok(())
}

/// Makes a connection refuse to write.
pub(crate) fn set_read_only(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "query_only", true)
}

/// Returns the version that the file was created with; 0 for an empty file.
pub(crate) fn version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Returns whether the file has no table.
pub(crate) fn is_empty(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get(0))
}

/// Creates all tables, the index of titles and the first shard of the full-text index.
pub(crate) fn create(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(&format!("BEGIN; {TABLES} PRAGMA user_version = {VERSION};"))?;
    fulltext::create_first_shard(conn)?;
    titles::create(conn)?;
    conn.execute_batch("COMMIT")
}

/// Returns whether exactly the tables and indexes exist that [`create`] and the shards need.
pub(crate) fn is_complete(conn: &Connection) -> rusqlite::Result<bool> {
    let fresh = Connection::open_in_memory()?;
    create(&fresh)?;
    let (expected, found) = (objects(&fresh)?, objects(conn)?);
    let shards: Vec<i64> = fulltext::list_shards(conn)?.iter().map(|shard| shard.num).collect();
    let of_shard = |name: &str, sql: &str, num: i64| {
        let (from, to) = ("words_1", format!("words_{num}"));
        (name.replace(from, &to), sql.replace(from, &to))
    };
    let mut n_objects = 0;
    for (name, sql) in &expected {
        let is_of_shard = name.starts_with("words_1");
        for num in if is_of_shard { shards.as_slice() } else { &[1] } {
            let (name, sql) =
                if is_of_shard { of_shard(name, sql, *num) } else { (name.clone(), sql.clone()) };
            if found.get(&name) != Some(&sql) {
                return Ok(false);
            }
            n_objects += 1;
        }
    }
    Ok(!shards.is_empty() && n_objects == found.len())
}

/// Returns the statement that created each table and each index that has one.
fn objects(conn: &Connection) -> rusqlite::Result<BTreeMap<String, String>> {
    conn.prepare("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// Returns whether SQLite finds the whole file consistent, the full-text index included. Reads all of it.
pub(crate) fn is_consistent(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("PRAGMA integrity_check(1)", [], |row| row.get::<_, String>(0))
        .map(|result| result == "ok")
}

/// Reads one page of every table, which finds a truncated or overwritten file without reading all of it.
pub(crate) fn probe(conn: &Connection) -> rusqlite::Result<()> {
    for table in [
        "sessions",
        "details",
        "entries",
        "keys",
        "docs",
        "forgotten",
        "shards",
        "words_1_data",
        "titles_data",
    ] {
        let sql = format!("SELECT EXISTS (SELECT 1 FROM {table})");
        conn.query_row(&sql, [], |_| Ok(()))?;
    }
    Ok(())
}
