//! Sessions as the source of a catalog's index: open sessions from memory, closed ones from their logs.

use std::fs::File;
use std::io;

use ollm_protocol::content::Record;
use ollm_protocol::{Seq, SessionId, Timestamp};

use super::error::SessionError;
use super::index::{IndexEntry, IndexProgress, IndexSource, IndexUpdate};
use super::open_session::{OpenSession, RecordReader};
use super::store::Sessions;
use crate::fsutil;

impl IndexSource for Sessions {
    fn logs(&self) -> io::Result<Vec<(SessionId, u64)>> {
        self.log_ids().map_err(io::Error::other)
    }

    fn update(&self, id: SessionId, known: IndexProgress) -> io::Result<Option<IndexUpdate>> {
        let now = self.shared.clock.now();
        let update = |session: &OpenSession| update_of(session, known, now);
        let path = self.shared.paths.log(id);
        if path.exists() {
            // Records that a catalog has seen count as synced from then on. Those of an open session may be in the
            // system's cache only, too: a process that was killed may have left them there.
            fsutil::sync_file(&path)?;
        }
        if let Some(update) = self.peek(id, update) {
            return Ok(update);
        }
        // A closed session is opened for this call only, because a catalog reads all logs one after the other.
        if !path.exists() {
            return Ok(None);
        }
        // The hint is missing during the start; the catalog itself then says what it has seen.
        let (blobs, hint) = (self.shared.paths.blobs(id), self.shared.hint(id));
        match OpenSession::open(id, &path, blobs, hint, known.point.records) {
            Ok((session, _)) if session.state.point().records > 0 => Ok(update(&session)),
            Ok(_) => {
                self.shared.set_aside_empty_log(id);
                Ok(None)
            }
            Err(error) => Err(io::Error::other(SessionError::log(id, &error))),
        }
    }

    fn records(
        &self,
        id: SessionId,
        entries: &[(Seq, IndexEntry)],
        wants: &dyn Fn(&[u8]) -> bool,
    ) -> io::Result<Vec<Option<Record>>> {
        let Some(reader) = self.reader(id)? else { return Ok(vec![None; entries.len()]) };
        Ok(reader.read_all(entries, wants))
    }
}

impl Sessions {
    /// Returns a reader for entries that the caller has, or `None` if there is no log.
    ///
    /// A closed session is not opened, because a search reads a few records of many sessions.
    fn reader(&self, id: SessionId) -> io::Result<Option<RecordReader>> {
        if let Some(reader) = self.peek(id, OpenSession::reader) {
            return Ok(Some(reader));
        }
        match File::open(self.shared.paths.log(id)) {
            Ok(file) => Ok(Some(RecordReader::new(file, self.shared.paths.blobs(id)))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the part of a session's index that is missing in `known`, or `None` for a draft.
fn update_of(session: &OpenSession, known: IndexProgress, now: Timestamp) -> Option<IndexUpdate> {
    if session.draft.is_some() {
        return None;
    }
    let state = session.state();
    let point = state.point();
    // If the last known record ends elsewhere in this log, the catalog has indexed another file.
    let continues = known.point.records <= point.records
        && known.keys <= state.keys().len() as u64
        && known.point.records.checked_sub(1).is_none_or(|last| {
            state.entry(Seq(last)).is_some_and(|entry| {
                entry.is_damaged() || entry.offset + u64::from(entry.len) == known.point.bytes
            })
        });
    let (first, first_key) = if continues { (known.point.records, known.keys) } else { (0, 0) };
    Some(IndexUpdate {
        session: session.summary(now),
        restart: !continues,
        entries: state.entries().get(usize::try_from(first).ok()?..)?.to_vec(),
        keys: state.keys().get(usize::try_from(first_key).ok()?..)?.to_vec(),
        point,
        carry: state.carry_bytes(),
        create_key: state.create_key(),
    })
}
