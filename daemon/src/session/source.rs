//! What a catalog reads: the folds of open sessions, and logs that nobody has open.

use std::fs::File;
use std::io;
use std::sync::Arc;

use ollm_protocol::content::Record;
use ollm_protocol::{Seq, SessionId};

use super::cell::Cell;
use super::index::{Entry, IndexSource, IndexUpdate, Known};
use super::live::{Live, Reader};
use super::{SessionError, Sessions};

impl IndexSource for Sessions {
    fn logs(&self) -> io::Result<Vec<(SessionId, u64)>> {
        self.log_ids().map_err(io::Error::other)
    }

    fn update(&self, id: SessionId, known: Known) -> io::Result<Option<IndexUpdate>> {
        let now = self.shared.clock.now();
        self.index_view(id, known.point.records, |live| {
            (live.birth.is_none()).then(|| update_of(live, known, now)).flatten()
        })
        .map(Option::flatten)
    }

    fn records(
        &self,
        id: SessionId,
        entries: &[(Seq, Entry)],
        wants: &dyn Fn(&[u8]) -> bool,
    ) -> io::Result<Vec<Option<Record>>> {
        let Some(reader) = self.contents(id)? else { return Ok(vec![None; entries.len()]) };
        Ok(reader.read_all(entries, wants))
    }
}

impl Sessions {
    /// A way to read a log by entries that the caller has. It folds nothing and syncs nothing: a catalog asks
    /// for a few records of many sessions, and each line is checked by itself.
    fn contents(&self, id: SessionId) -> io::Result<Option<Reader>> {
        let open: Option<Arc<Cell>> = self.cells().get(&id).cloned();
        if let Some(reader) = open.and_then(|cell| cell.peek(Live::reader)) {
            return Ok(Some(reader));
        }
        match File::open(self.shared.paths.log(id)) {
            Ok(file) => Ok(Some(Reader::new(file, self.shared.paths.blobs(id)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Calls `view` with a session: the open one, or one opened for this call alone, so that a catalog that
    /// reads ten thousand logs does not fill the memory with them. `None` when there is no log.
    fn index_view<T>(
        &self,
        id: SessionId,
        seen_records: u64,
        view: impl FnOnce(&Live) -> T,
    ) -> io::Result<Option<T>> {
        let open: Option<Arc<Cell>> = self.cells().get(&id).cloned();
        if let Some(cell) = open.filter(|cell| cell.peek(|_| ()).is_some()) {
            return Ok(cell.peek(view));
        }
        let path = self.shared.paths.log(id);
        if !path.exists() {
            return Ok(None);
        }
        // What a catalog has seen counts as synced ever after.
        std::fs::File::open(&path)?.sync_data()?;
        // At the very start there are no hints yet, but the catalog says itself what it has seen.
        let (blobs, hint) = (self.shared.paths.blobs(id), self.shared.hint(id));
        match Live::open(id, &path, blobs, hint, seen_records) {
            Ok(live) if live.state.point().records > 0 => Ok(Some(view(&live))),
            Ok(_) => {
                self.shared.set_aside_stillborn(id);
                Ok(None)
            }
            Err(error) => Err(io::Error::other(SessionError::log(id, &error))),
        }
    }
}

fn update_of(live: &Live, known: Known, now: ollm_protocol::Timestamp) -> Option<IndexUpdate> {
    let state = live.state();
    let point = state.point();
    // A stored point that lies elsewhere than this log's records describes another file.
    let continues = known.point.records <= point.records
        && known.keys <= state.keys().len() as u64
        && known.point.records.checked_sub(1).is_none_or(|last| {
            state.entry(Seq(last)).is_some_and(|entry| {
                entry.is_damaged() || entry.offset + u64::from(entry.len) == known.point.bytes
            })
        });
    let (first, first_key) = if continues { (known.point.records, known.keys) } else { (0, 0) };
    Some(IndexUpdate {
        session: live.summary(now),
        restart: !continues,
        first,
        entries: state.entries().get(usize::try_from(first).ok()?..)?.to_vec(),
        first_key,
        keys: state.keys().get(usize::try_from(first_key).ok()?..)?.to_vec(),
        point,
        carry: state.carry_bytes(),
        create_key: state.create_key(),
    })
}
