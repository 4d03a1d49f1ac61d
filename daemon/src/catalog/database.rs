//! The files of the catalog: opening the database, and replacing one that cannot be used.
//!
//! A damaged file, or one of another version, is moved aside and kept until a session is forgotten. FORMAT.md,
//! "Catalog".

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::error::{CatalogError, is_damage};
use super::query::{fulltext, schema, sessions};
use super::queue::PendingCleanup;
use crate::fsutil;

/// The longest wait of one connection for the other. Only a checkpoint that truncates the journal meets the reader, whose
/// statements are short.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The connections to one catalog file.
pub(super) struct Connections {
    pub writer: Connection,
    /// The connection for reads; it refuses to write.
    pub reader: Connection,
    /// Whether the file was just created and is empty.
    pub is_new: bool,
    pub cleanup: PendingCleanup,
}

/// Opens the database, or creates a new one in place of a file that cannot be used.
pub(super) fn open(path: &Path) -> Result<Connections, CatalogError> {
    match open_existing(path) {
        Ok(Some(connections)) => return Ok(connections),
        Ok(None) => {
            tracing::warn!(path = %path.display(), "the catalog has another version and is rebuilt");
        }
        Err(CatalogError::Database { source, .. }) if is_damage(&source) => {
            tracing::warn!(path = %path.display(), error = %source, "the catalog is damaged");
        }
        Err(error) => return Err(error),
    }
    move_aside(path)?;
    open_existing(path)?.ok_or_else(|| CatalogError::Unusable { path: path.to_owned() })
}

/// Opens one more connection to a database that was opened before.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    schema::configure(&conn)?;
    Ok(conn)
}

/// Returns the cleanup that is left to do in a database whose journal is stale or not.
pub(super) fn pending_cleanup(
    conn: &Connection,
    is_journal_stale: bool,
) -> rusqlite::Result<PendingCleanup> {
    Ok(PendingCleanup {
        sessions: sessions::forgotten(conn)?.len(),
        shards: !fulltext::unmerged_shards(conn)?.is_empty(),
        journal: is_journal_stale,
    })
}

/// Moves a file that cannot be used aside, and removes its journal and the files that were moved aside before.
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

/// Removes the files that [`move_aside`] kept, because they may contain text of a removed session.
pub(super) fn remove_aside(path: &Path) -> Result<(), CatalogError> {
    for (_, file) in aside_files(path) {
        fsutil::remove_file(&file)?;
    }
    Ok(())
}

/// Returns the size of the database with its journal on disk, in bytes.
pub(super) fn size_bytes(path: &Path) -> u64 {
    file_bytes(path) + wal_bytes(path)
}

/// Returns the size of the journal on disk, in bytes.
pub(super) fn wal_bytes(path: &Path) -> u64 {
    file_bytes(&with_suffix(path, "-wal"))
}

/// Opens the database if it can be used: `None` for one of another version.
fn open_existing(path: &Path) -> Result<Option<Connections>, CatalogError> {
    // The last connection that closes removes the journal, so one that exists was left by a crash.
    let is_journal_stale = wal_bytes(path) > 0;
    // SQLite would create the file with the rights that the umask leaves.
    drop(fsutil::open_private(path)?);
    let fail = |source| CatalogError::Database { attempt: "open", path: path.to_owned(), source };
    let writer = connect(path).map_err(fail)?;
    let is_new = match schema::version(&writer).map_err(fail)? {
        0 if schema::is_empty(&writer).map_err(fail)? => {
            schema::create(&writer).map_err(fail)?;
            true
        }
        schema::VERSION => false,
        _ => return Ok(None),
    };
    let reader = connect(path).map_err(fail)?;
    schema::set_read_only(&reader).map_err(fail)?;
    schema::probe(&reader).map_err(fail)?;
    let cleanup = pending_cleanup(&writer, is_journal_stale).map_err(fail)?;
    Ok(Some(Connections { writer, reader, is_new, cleanup }))
}

fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the files that were moved aside, with their numbers.
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
