//! Why the catalog could not do something.

use std::io;
use std::path::PathBuf;

use rusqlite::ErrorCode;

use crate::fsutil::FsError;

/// Why the catalog could not do something. Nothing here loses what was recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CatalogError {
    /// The database refused.
    #[error("cannot {attempt} the catalog {}", path.display())]
    Database {
        /// What was tried, as a verb.
        attempt: &'static str,
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        #[source]
        source: rusqlite::Error,
    },
    /// A file of the catalog could not be made, moved or removed.
    #[error(transparent)]
    File(#[from] FsError),
    /// A new file could not be used either.
    #[error("the catalog {} is not usable even after it was made anew", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
    },
    /// A reader kept the journal from being emptied; what was removed is still in it. Try again.
    #[error("the journal of the catalog {} is in use", path.display())]
    JournalInUse {
        /// The file.
        path: PathBuf,
    },
    /// The logs could not be read.
    #[error("cannot read the logs for the catalog")]
    Source(#[source] io::Error),
    /// The system gave no thread.
    #[error("cannot start the thread of the catalog")]
    Thread(#[source] io::Error),
    /// The file was damaged and is being made anew, or the catalog was shut down.
    #[error("the catalog is closed")]
    Closed,
    /// A query without any word.
    #[error("the query has no word to search for")]
    EmptyQuery,
    /// A query that is longer than anybody types.
    #[error("the query is longer than {limit_bytes} bytes")]
    QueryTooLong {
        /// The most bytes.
        limit_bytes: usize,
    },
    /// A cursor that did not come from an earlier page of the same query.
    #[error("the cursor is not one of this search")]
    InvalidCursor,
}

/// Whether SQLite says that the file is not what it should be.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    match error {
        rusqlite::Error::FromSqlConversionFailure(..) | rusqlite::Error::InvalidColumnType(..) => {
            true
        }
        _ => matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::SchemaChanged)
        ),
    }
}
