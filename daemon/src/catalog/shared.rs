//! The state that the [`Catalog`](super::Catalog) handle and its writer thread share.
//!
//! **Invariant**: the read connection is locked for one short read at a time, and a reader never waits for the
//! writer.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::Connection;

use super::error::{CatalogError, is_damage};
use super::queue::WorkQueue;
use crate::session::index::IndexSource;

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
        if is_damage(&source) {
            self.queue.request_recovery();
        }
        CatalogError::Database { attempt, path: self.path.clone(), source }
    }
}
