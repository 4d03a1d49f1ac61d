//! The tables of the catalog, its connections, and what becomes of a file that cannot be used.
//!
//! Must not know what the rows mean. FORMAT.md, "Catalog".

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::error::{CatalogError, is_damage};
use crate::fsutil;

/// The version of tables and tokens. Another one in a file means that it is moved aside and made anew.
pub(super) const VERSION: i64 = 1;

/// How long a connection waits for the other, in milliseconds. Only a checkpoint that truncates the WAL meets
/// the reader, whose statements are short.
const BUSY_MS: u32 = 5_000;

// `sessions` holds what is filtered and sorted, small enough that 10,000 rows are scanned in milliseconds; the
// large values lie in `details`. Numbers of sessions are never used again (AUTOINCREMENT): documents of a log
// that was replaced keep theirs and lead nowhere. `docs` has no index by session: the session's private term in
// `words` finds its documents. `columnsize=0` because a contentless table with `detail=none` ranks nothing.
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
    orphans INTEGER NOT NULL,
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
CREATE TABLE docs (docid INTEGER PRIMARY KEY, session INTEGER NOT NULL, seq INTEGER NOT NULL);
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
";

/// The full-text index; apart, because it is dropped alone when a session's text cannot be taken out of it.
pub(super) const WORDS: &str = "
CREATE VIRTUAL TABLE words USING fts5(text, content='', columnsize=0, detail=none, tokenize='ascii');
";

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
    size(path) + size(&with_suffix(path, "-wal"))
}

fn open_existing(path: &Path) -> Result<Option<Connections>, CatalogError> {
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
    Ok(Some(Connections { writer, reader, fresh }))
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(std::time::Duration::from_millis(u64::from(BUSY_MS)))?;
    conn.execute_batch(SETTINGS)?;
    conn.set_prepared_statement_cache_capacity(48);
    Ok(conn)
}

fn version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.query_row("PRAGMA user_version", [], |row| row.get(0))
}

fn is_empty(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get(0))
}

fn create(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(&format!("BEGIN; {TABLES} {WORDS} PRAGMA user_version = {VERSION}; COMMIT;"))
}

/// Reads one page of every table, which finds a file that was cut or overwritten without reading all of it.
fn probe(conn: &Connection) -> rusqlite::Result<()> {
    for table in ["sessions", "details", "entries", "keys", "docs", "words_data"] {
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
