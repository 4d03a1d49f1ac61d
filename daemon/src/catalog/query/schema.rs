//! The tables of the catalog, its version, and the settings of its connections.
//!
//! Must not know what the rows mean.

use rusqlite::Connection;

use super::fulltext;

/// The version of tables and index tokens. A file of another version is moved aside and recreated.
pub(crate) const VERSION: i64 = 3;

// `sessions` holds what lists filter and sort by, small enough that 10,000 rows are scanned in milliseconds; the
// large values lie in `details`. A session number is never reused (AUTOINCREMENT): the documents of a replaced log
// keep the old number and lead nowhere. `docs` has no index by session: a private term of the session in the
// full-text index finds its documents. `docs` repeats from `entries` where a record lies, because a page of hits
// covers many sessions, and reading 50 KB of entries for each would take longer than reading the records.
// `forgotten` lists removed sessions whose words may still be in the files.
const TABLES: &str = "
CREATE TABLE sessions (
    num INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL UNIQUE,
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
CREATE INDEX sessions_by_project ON sessions (project, last_ms, id, status) WHERE project IS NOT NULL;
CREATE INDEX sessions_by_create_key ON sessions (create_key) WHERE create_key IS NOT NULL;
CREATE INDEX sessions_by_origin ON sessions (forked_from) WHERE forked_from IS NOT NULL;
CREATE TABLE details (num INTEGER PRIMARY KEY, session TEXT NOT NULL, carry BLOB NOT NULL);
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
CREATE TABLE forgotten (num INTEGER PRIMARY KEY);
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
";

/// The settings of every connection. The sizes keep an idle daemon below 10 MB. `secure_delete` overwrites deleted
/// data, because nothing of a deleted session may remain; `temp_store` keeps its text out of temporary files.
const SETTINGS: &str = "
PRAGMA page_size = 4096;
PRAGMA secure_delete = ON;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA cache_size = -2048;
PRAGMA mmap_size = 0;
PRAGMA temp_store = MEMORY;
";

/// Number of statements that a connection keeps prepared.
const PREPARED_STATEMENTS: usize = 96;

/// Applies the settings to a new connection.
pub(crate) fn configure(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(SETTINGS)?;
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

/// Creates all tables and the first shard of the index.
pub(crate) fn create(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(&format!("BEGIN; {TABLES} PRAGMA user_version = {VERSION};"))?;
    fulltext::create_first_shard(conn)?;
    conn.execute_batch("COMMIT")
}

/// Reads one page of every table, which finds a truncated or overwritten file without reading all of it.
pub(crate) fn probe(conn: &Connection) -> rusqlite::Result<()> {
    for table in
        ["sessions", "details", "entries", "keys", "docs", "forgotten", "shards", "words_1_data"]
    {
        let sql = format!("SELECT EXISTS (SELECT 1 FROM {table})");
        conn.query_row(&sql, [], |_| Ok(()))?;
    }
    Ok(())
}
