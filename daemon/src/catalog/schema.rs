//! The tables of the catalog, its connections, and what becomes of a file that cannot be used.
//!
//! Must not know what the rows mean. FORMAT.md, "Catalog".

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::error::{CatalogError, is_damage};
use super::query::{self, shards};
use super::queue::Unclean;
use crate::fsutil;

/// The version of tables and tokens. Another one in a file means that it is moved aside and made anew.
pub(super) const VERSION: i64 = 3;

/// How long a connection waits for the other, in milliseconds. Only a checkpoint that truncates the WAL meets
/// the reader, whose statements are short.
const BUSY_MS: u32 = 5_000;

// `sessions` holds what is filtered and sorted, small enough that 10,000 rows are scanned in milliseconds; the
// large values lie in `details`. Numbers of sessions are never used again (AUTOINCREMENT): documents of a log
// that was replaced keep theirs and lead nowhere. `docs` has no index by session: the session's private term in
// the index finds its documents. It says itself where a record lies, though `entries` does too: a page of hits is
// of many sessions, and reading 50 KB of entries for each would take longer than reading the records.
// `forgotten` are sessions that are gone and whose words may still be in the files.
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

/// The statements that make the table of one shard of the full-text index.
///
/// `contentless_delete` takes a document out by its id, without the words that it was added with: they are gone
/// with its log. Its words leave the files when segments are merged, which `forget` sees to; `deletemerge=0`
/// because a merge by the share of removed documents would only be in its way. `hashsize` is what one batch
/// needs at most, so that it becomes one segment; `automerge=8` because a shard has few large segments, and is
/// merged whole when it is full.
pub(super) fn words_table(shard: i64) -> String {
    format!(
        "CREATE VIRTUAL TABLE words_{shard} USING
             fts5(text, content='', contentless_delete=1, detail=none, tokenize='ascii');
         INSERT INTO words_{shard} (words_{shard}, rank) VALUES ('deletemerge', 0);
         INSERT INTO words_{shard} (words_{shard}, rank) VALUES ('automerge', 8);
         INSERT INTO words_{shard} (words_{shard}, rank) VALUES ('hashsize', {HASH_BYTES});"
    )
}

/// FTS5's memory before it writes a segment.
const HASH_BYTES: i64 = 8 << 20;

/// The settings of both connections. The sizes keep an idle daemon under 10 MB; `secure_delete` overwrites what
/// is deleted, because a deleted session must be gone; `temp_store` keeps its text out of temporary files.
const SETTINGS: &str = "
PRAGMA page_size = 4096;
PRAGMA secure_delete = ON;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA cache_size = -2048;
PRAGMA mmap_size = 0;
PRAGMA temp_store = MEMORY;
";

/// The connections of one catalog file.
pub(super) struct Connections {
    /// For the writer thread.
    pub writer: Connection,
    /// For everybody who asks.
    pub reader: Connection,
    /// The file was made just now, so it holds nothing yet.
    pub fresh: bool,
    /// What the daemon before left to clean up.
    pub unclean: Unclean,
}

/// Opens the file, or moves one that cannot be used aside and makes a new one.
pub(super) fn open(path: &Path) -> Result<Connections, CatalogError> {
    match open_existing(path) {
        Ok(Some(connections)) => return Ok(connections),
        Ok(None) => tracing::warn!(path = %path.display(), "the catalog is of another version"),
        Err(CatalogError::Database { source, .. }) if is_damage(&source) => {
            tracing::warn!(path = %path.display(), error = %source, "the catalog is damaged");
        }
        Err(error) => return Err(error),
    }
    move_aside(path)?;
    open_existing(path)?.ok_or_else(|| CatalogError::Unusable { path: path.to_owned() })
}

/// Moves a file that cannot be used out of the way, and removes those that were moved before and its journal.
pub(super) fn move_aside(path: &Path) -> Result<(), CatalogError> {
    let older = aside_files(path);
    let number = older.iter().map(|(number, _)| *number).max().unwrap_or(0) + 1;
    for suffix in ["-wal", "-shm"] {
        fsutil::remove_file(&with_suffix(path, suffix))?;
    }
    fsutil::rename_durably(path, &with_suffix(path, &format!(".corrupt-{number}")))?;
    for (_, file) in older {
        fsutil::remove_file(&file)?;
    }
    Ok(())
}

/// Removes what [`move_aside`] keeps: it may hold the text of a session that is deleted.
pub(super) fn remove_aside(path: &Path) -> Result<(), CatalogError> {
    for (_, file) in aside_files(path) {
        fsutil::remove_file(&file)?;
    }
    Ok(())
}

/// The size of the catalog and its journal on disk, in bytes.
pub(super) fn size_bytes(path: &Path) -> u64 {
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    size(path) + wal_bytes(path)
}

/// The size of its journal on disk, in bytes.
pub(super) fn wal_bytes(path: &Path) -> u64 {
    std::fs::metadata(with_suffix(path, "-wal")).map_or(0, |metadata| metadata.len())
}

fn open_existing(path: &Path) -> Result<Option<Connections>, CatalogError> {
    // A connection that is closed takes its journal with it, so one that is there was left by a crash.
    let journal = wal_bytes(path) > 0;
    // SQLite would make the file with the rights of the umask.
    drop(fsutil::open_private(path)?);
    let fail = |source| CatalogError::Database { attempt: "open", path: path.to_owned(), source };
    let writer = connect(path).map_err(fail)?;
    let fresh = match version(&writer).map_err(fail)? {
        0 if is_empty(&writer).map_err(fail)? => {
            create(&writer).map_err(fail)?;
            true
        }
        VERSION => false,
        _ => return Ok(None),
    };
    let reader = connect(path).map_err(fail)?;
    reader.pragma_update(None, "query_only", true).map_err(fail)?;
    probe(&reader).map_err(fail)?;
    let unclean = Unclean {
        sessions: query::forgotten(&writer).map_err(fail)?.len(),
        shards: !shards::unmerged(&writer).map_err(fail)?.is_empty(),
        journal,
    };
    Ok(Some(Connections { writer, reader, fresh, unclean }))
}

/// One more connection to a file that was opened before.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(std::time::Duration::from_millis(u64::from(BUSY_MS)))?;
    conn.execute_batch(SETTINGS)?;
    conn.set_prepared_statement_cache_capacity(96);
    Ok(conn)
}

fn version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.query_row("PRAGMA user_version", [], |row| row.get(0))
}

fn is_empty(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get(0))
}

fn create(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(&format!("BEGIN; {TABLES} PRAGMA user_version = {VERSION};"))?;
    shards::open_first(conn)?;
    conn.execute_batch("COMMIT")
}

/// Reads one page of every table, which finds a file that was cut or overwritten without reading all of it.
fn probe(conn: &Connection) -> rusqlite::Result<()> {
    for table in
        ["sessions", "details", "entries", "keys", "docs", "forgotten", "shards", "words_1_data"]
    {
        let sql = format!("SELECT EXISTS (SELECT 1 FROM {table})");
        conn.query_row(&sql, [], |_| Ok(()))?;
    }
    Ok(())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn aside_files(path: &Path) -> Vec<(u64, PathBuf)> {
    let prefix = format!("{}.corrupt-", path.file_name().unwrap_or_default().to_string_lossy());
    let Ok(dir) = std::fs::read_dir(path.parent().unwrap_or(Path::new("."))) else {
        return Vec::new();
    };
    dir.flatten()
        .filter_map(|file| {
            let number = file.file_name().to_str()?.strip_prefix(&prefix)?.parse().ok()?;
            Some((number, file.path()))
        })
        .collect()
}
