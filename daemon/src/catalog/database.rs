//! The database of the catalog: its connections, and the state that the
//! [`Catalog`](super::Catalog) and its writer thread share.
//!
//! A damaged file, or one of another version, is removed: it is derived, and may hold words of sessions that were deleted.
//! FORMAT.md, "Catalog".
//!
//! **Invariant**: the read connection is locked for one short read at a time, and a reader never waits for the writer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::error::CatalogError;
use super::files::{wal_bytes, with_suffix};
use super::query::{fulltext, schema, sessions};
use super::queue::{PendingCleanup, WorkQueue};
use super::seal;
use crate::fsutil;
use crate::session::index::IndexSource;

/// The longest wait of one connection for the other. Only a checkpoint that truncates the journal meets the reader, whose
/// statements are short.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The state that the catalog and its writer thread share.
pub(super) struct CatalogShared {
    pub path: PathBuf,
    pub source: Arc<dyn IndexSource>,
    pub queue: WorkQueue,
    /// The connection for reads; `None` while the file is replaced and after shutdown.
    pub reader: Mutex<Option<Connection>>,
}

impl CatalogShared {
    /// Calls `read` within one transaction, so that all its statements see the same state.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, CatalogError> {
        let reader = self.reader.lock();
        let conn = reader.as_ref().ok_or(CatalogError::Closed)?;
        let result = conn.unchecked_transaction().and_then(|transaction| {
            let value = read(conn)?;
            transaction.commit()?;
            Ok(value)
        });
        result.map_err(|source| self.database_error("read", source))
    }

    /// Adds path and attempted operation to an error of SQLite. Damage also requests the replacement of the file.
    pub(super) fn database_error(
        &self,
        attempt: &'static str,
        source: rusqlite::Error,
    ) -> CatalogError {
        match damage_of(&source) {
            Damage::Certain => self.queue.request_recovery(),
            Damage::Suspected => self.queue.request_check_of_file(),
            Damage::None => {}
        }
        CatalogError::Database { attempt, path: self.path.clone(), source }
    }
}

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
        Err(CatalogError::Database { source, .. }) if damage_of(&source) != Damage::None => {
            tracing::warn!(path = %path.display(), error = %source, "the catalog is damaged");
        }
        Err(error) => return Err(error),
    }
    discard(path)?;
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

/// Removes a file that cannot be used, with its journal and its seal.
pub(super) fn discard(path: &Path) -> Result<(), CatalogError> {
    for suffix in ["-wal", "-shm"] {
        fsutil::remove_file(&with_suffix(path, suffix))?;
    }
    seal::remove(path)?;
    Ok(fsutil::remove_file(path)?)
}

/// Opens the database if it can be used: `None` for one of another version.
fn open_existing(path: &Path) -> Result<Option<Connections>, CatalogError> {
    // The last connection that closes removes the journal, so one that exists was left by a crash.
    let is_journal_stale = wal_bytes(path) > 0;
    // SQLite would follow a link, and would create the file with the rights that the umask leaves.
    for suffix in ["-wal", "-shm"] {
        fsutil::check_regular(&with_suffix(path, suffix))?;
    }
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

/// What an error of SQLite says about the database file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    /// Nothing: the system refused an operation, or a lock was not free.
    None,
    /// A statement failed that succeeds on a file that is whole.
    Suspected,
    /// The file is damaged or has unexpected contents.
    Certain,
}

/// Returns whether an error may end when the file is replaced.
pub(super) fn is_of_damage(error: &CatalogError) -> bool {
    match error {
        CatalogError::Database { source, .. } => damage_of(source) != Damage::None,
        // There is no connection while the file is replaced.
        CatalogError::Damaged { .. } | CatalogError::Closed => true,
        _ => false,
    }
}

/// Classifies an error of SQLite.
pub(super) fn damage_of(error: &rusqlite::Error) -> Damage {
    match error.sqlite_error_code() {
        // A row has a wrong type or content, or is missing.
        None => Damage::Certain,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Damage::Certain,
        Some(
            ErrorCode::Unknown
            | ErrorCode::InternalMalfunction
            | ErrorCode::NotFound
            | ErrorCode::SchemaChanged
            | ErrorCode::TooBig
            | ErrorCode::ConstraintViolation
            | ErrorCode::TypeMismatch
            | ErrorCode::ParameterOutOfRange,
        ) => Damage::Suspected,
        Some(_) => Damage::None,
    }
}
