//! The errors of the catalog. No such error loses a record: the logs are complete without the catalog.

use std::io;
use std::path::PathBuf;

use crate::fsutil::FsError;
use crate::session::index::SourceError;

/// An operation on the catalog that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CatalogError {
    /// SQLite returned an error.
    #[error("cannot {attempt} the catalog {}", path.display())]
    Database {
        /// The attempted operation, as a verb.
        attempt: &'static str,
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    /// A file of the catalog could not be created, moved or removed.
    #[error(transparent)]
    File(#[from] FsError),
    /// A newly created file could not be opened either.
    #[error("cannot open the catalog {} even after recreating it", path.display())]
    Unusable { path: PathBuf },
    /// The file is damaged; it is replaced.
    #[error("the catalog {} is damaged", path.display())]
    Damaged { path: PathBuf },
    /// A reader kept the journal from being truncated, so it still holds removed text. A retry can succeed.
    #[error("the journal of the catalog {} is in use", path.display())]
    JournalInUse { path: PathBuf },
    /// The session logs could not be read.
    #[error("cannot read the logs for the catalog")]
    Source(#[source] SourceError),
    /// The writer thread could not be started.
    #[error("cannot start the catalog's writer thread")]
    Thread(#[source] io::Error),
    /// The catalog is being recreated after damage, or was shut down.
    #[error("the catalog is closed")]
    Closed,
    /// The search query contains no word.
    #[error("the query has no word to search for")]
    EmptyQuery,
    /// The search query exceeds the size limit.
    #[error("the query is longer than {limit_bytes} bytes")]
    QueryTooLong { limit_bytes: usize },
    /// The cursor does not come from an earlier page of the same query.
    #[error("the cursor does not belong to this search")]
    InvalidCursor,
}
