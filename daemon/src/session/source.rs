//! Sessions as the source of a catalog's index: open sessions from memory, closed ones from their logs.

use std::io;
use std::time::{Duration, Instant};

use ollm_protocol::content::Record;
use ollm_protocol::{Seq, SessionId, Timestamp};

use super::error::{LogError, SessionError};
use super::index::{
    IndexEntry, IndexProgress, IndexSource, IndexUpdate, OpenHint, SourceError, UpdateScope,
};
use super::log::LogReader;
use super::open_session::{OpenSession, RecordReader};
use super::store::Sessions;
use super::write::SessionChange;
use crate::fsutil::FsError;

/// The longest wait for the source of hints, which the composition root sets at once.
const HINT_WAIT: Duration = Duration::from_secs(1);

impl IndexSource for Sessions {
    fn logs(&self) -> Result<Vec<(SessionId, u64)>, SourceError> {
        self.log_ids().map_err(|error| SourceError::Unreadable(io::Error::other(error)))
    }

    fn update(
        &self,
        id: SessionId,
        known: IndexProgress,
        scope: UpdateScope,
    ) -> Result<Option<IndexUpdate>, SourceError> {
        let now = self.shared.clock.now();
        // Records that a catalog has seen count as synced from then on.
        let of_synced = |session: &OpenSession| {
            session.unsynced_from.is_none().then(|| update_of(session, known, now))
        };
        let from_memory =
            || self.peek(id, of_synced).flatten().filter(|_| scope == UpdateScope::New);
        if let Some(update) = from_memory() {
            return Ok(update);
        }
        let path = self.shared.paths.log(id);
        if !self.shared.paths.has_log(id) {
            return Ok(None);
        }
        if !self.sync_open(id)? {
            return Ok(None);
        }
        let n_heals = || self.cells().get(&id).map_or(0, |cell| cell.n_heals());
        let heals_before = n_heals();
        // Only acknowledged records are read, not those of a running write.
        let acknowledged = self.peek(id, |session| session.state.point().bytes);
        let open_log = || {
            let log = LogReader::open(&path)?;
            let len = log.len()?;
            Ok((log.limited_to(acknowledged.unwrap_or(u64::MAX).min(len)), len))
        };
        let (log, len) = match self.shared.with_descriptors(open_log) {
            Ok(opened) => opened,
            Err(LogError::File(error)) if error.source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(error) => return Err(source_error(id, &error)),
        };
        if let Some(update) = from_memory() {
            return Ok(update);
        }
        // The hint is missing during the start; the catalog itself then says what it has seen.
        let hint = match scope {
            UpdateScope::New => self.hint_for(id, len < known.point.bytes),
            UpdateScope::Whole => None,
        };
        let blobs = self.shared.paths.blobs(id);
        match OpenSession::open(id, log, blobs, hint, known.point.records) {
            Ok((session, end)) if session.state.point().records > 0 => {
                if !self.sync_read(id, &session)? {
                    return Ok(None);
                }
                let damaged = end.damaged_places + session.unreadable().len() as u64;
                let change = match end.missing_records {
                    0 => SessionChange::Damaged { damaged },
                    damaged => SessionChange::Recovered { torn_bytes: end.torn_bytes, damaged },
                };
                // What was put back while the log was read is no damage; the log is read again for it.
                if damaged + end.missing_records > 0 && n_heals() == heals_before {
                    self.shared.observer.changed(id, &change);
                }
                let known =
                    if scope == UpdateScope::New { known } else { IndexProgress::default() };
                Ok(update_of(&session, known, now))
            }
            Ok(_) => {
                self.shared.set_aside_empty_log(id);
                Ok(None)
            }
            Err(error) => Err(source_error(id, &error)),
        }
    }

    fn records(
        &self,
        id: SessionId,
        entries: &[(Seq, IndexEntry)],
        wants: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<Option<Record>>, SourceError> {
        let fail = |error| source_error(id, &LogError::File(error));
        let Some(reader) = self.reader(id).map_err(fail)? else {
            return Ok(vec![None; entries.len()]);
        };
        reader.read_all(entries, wants).map_err(fail)
    }
}

/// Converts an error of a session; returns false for `NotFound`, because a session without a log has nothing to index.
fn unless_missing(result: Result<(), SessionError>) -> Result<bool, SourceError> {
    match result {
        Ok(()) => Ok(true),
        Err(SessionError::NotFound { .. }) => Ok(false),
        Err(error @ SessionError::UpgradeRequired { .. }) => {
            Err(SourceError::Unusable(io::Error::other(error)))
        }
        Err(error) => Err(SourceError::Unreadable(io::Error::other(error))),
    }
}

/// Converts an error of a log; only an error of the system can end by itself.
fn source_error(id: SessionId, error: &LogError) -> SourceError {
    let is_directory = |source: &io::Error| source.kind() == io::ErrorKind::IsADirectory;
    let is_final = match error {
        LogError::UpgradeRequired { .. } => true,
        LogError::Io { source, .. } | LogError::File(FsError { source, .. }) => {
            is_directory(source)
        }
        LogError::Encode { .. } | LogError::TooDeep { .. } => false,
    };
    let error = io::Error::other(SessionError::log(id, error));
    if is_final { SourceError::Unusable(error) } else { SourceError::Unreadable(error) }
}

impl Sessions {
    /// Makes the records of a session durable if it is open. Returns whether there may be something to read.
    fn sync_open(&self, id: SessionId) -> Result<bool, SourceError> {
        let cell = self.cells().get(&id).cloned();
        let unsynced = cell.filter(|cell| {
            cell.peek(|session| session.unsynced_from.is_some()).unwrap_or_default()
        });
        unsynced.map_or(Ok(true), |cell| unless_missing(cell.sync()))
    }

    /// Makes the records durable that were read from the log of a session. Returns false if the session is being deleted.
    ///
    /// **Errors**: `Unreadable` also if the log changed while it was read.
    fn sync_read(&self, id: SessionId, read: &OpenSession) -> Result<bool, SourceError> {
        match self.with_cell_of_log(id, |cell| cell.sync_read(read)) {
            Ok(false) => Err(SourceError::Unreadable(io::Error::other("the log has changed"))),
            synced => unless_missing(synced.map(drop)),
        }
    }

    /// Returns the stored hint of a session. If its log is shorter than the hint says, the hint is the last witness of
    /// the missing records, so the call waits for the source of hints, which the start sets after the catalog is open.
    fn hint_for(&self, id: SessionId, is_shorter: bool) -> Option<OpenHint> {
        let deadline = Instant::now() + HINT_WAIT;
        while is_shorter && self.shared.hints.get().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.shared.hint(id)
    }

    /// Returns a reader for entries that the caller has, or `None` if there is no log.
    ///
    /// A closed session is not opened, because a search reads a few records of many sessions.
    fn reader(&self, id: SessionId) -> Result<Option<RecordReader>, FsError> {
        if let Some(reader) = self.peek(id, OpenSession::reader) {
            return Ok(Some(reader));
        }
        if !self.shared.paths.has_log(id) {
            return Ok(None);
        }
        match LogReader::open(&self.shared.paths.log(id)) {
            Ok(log) => Ok(Some(RecordReader::new(log, self.shared.paths.blobs(id)))),
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the part of a session's index that is missing in `known`, or `None` for a draft.
pub(super) fn update_of(
    session: &OpenSession,
    known: IndexProgress,
    now: Timestamp,
) -> Option<IndexUpdate> {
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
        // Records that a read found damaged are not counted here: the catalog stores only what the log itself shows.
        session: state.summary(now),
        restart: !continues || known.point.records == 0,
        entries: state.entries().get(usize::try_from(first).ok()?..)?.to_vec(),
        keys: state.keys().get(usize::try_from(first_key).ok()?..)?.to_vec(),
        point,
        carry: state.carry_bytes(),
        create_key: state.create_key(),
    })
}
