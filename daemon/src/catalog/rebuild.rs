//! Making the catalog right again: the comparison with the logs, a new file.
//!
//! The same code for the first start, for logs that changed while the daemon was away, and for damage: sessions
//! that differ are put into the queue, and [`super::index`] does the work.

use std::collections::HashMap;

use super::index::Writer;
use super::queue::Need;
use super::{CatalogError, State, query, schema};

/// Compares the size of every log with what the catalog has read of it, in one pass over both lists.
///
/// A log that vanished is asked for like a changed one: only the source says that a session is gone.
pub(super) fn check(writer: &Writer) -> Result<(), CatalogError> {
    let shared = &writer.shared;
    let logs = shared.source.logs().map_err(CatalogError::Source)?;
    let extents =
        query::extents(writer.conn()?).map_err(|error| shared.database_error("read", error))?;
    let mut sizes: HashMap<_, _> = logs.into_iter().collect();
    let mut found = Vec::new();
    for extent in extents {
        match sizes.remove(&extent.id) {
            Some(bytes) if bytes == extent.bytes && extent.complete => {}
            Some(bytes) if bytes == extent.bytes => found.push((extent.id, Need::Text)),
            _ => found.push((extent.id, Need::Update)),
        }
    }
    found.extend(sizes.into_keys().map(|id| (id, Need::Update)));
    if !found.is_empty() {
        tracing::info!(sessions = found.len(), "the catalog catches up with the logs");
    }
    shared.queue.mark_found(found);
    Ok(())
}

/// Moves a damaged file aside, makes a new one and fills it from the logs.
pub(super) fn recover(writer: &mut Writer) -> Result<(), CatalogError> {
    let shared = std::sync::Arc::clone(&writer.shared);
    tracing::warn!(path = %shared.path.display(), "the catalog is damaged and made anew");
    shared.set_state(State::Rebuilding);
    shared.set_reader(None);
    writer.conn = None;
    writer.rows_replaced();
    let made = schema::move_aside(&shared.path).and_then(|()| schema::open(&shared.path));
    match made {
        Ok(connections) => {
            shared.set_reader(Some(connections.reader));
            writer.conn = Some(connections.writer);
            writer.has_stale_journal = connections.unclean.journal;
            shared.queue.set_unclean(connections.unclean);
            shared.queue.recovered();
            shared.queue.ask_check(std::time::Duration::ZERO);
            Ok(())
        }
        Err(error) => {
            shared.queue.ask_recover();
            Err(error)
        }
    }
}
