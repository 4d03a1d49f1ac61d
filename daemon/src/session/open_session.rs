//! An open session for readers: the fold, and a reader for the contents of records.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ollm_protocol::content::{Record, Session};
use ollm_protocol::{Seq, SessionId, Timestamp};

use super::error::LogError;
use super::index::{IndexEntry, OpenHint, ScanPoint};
use super::log;
use super::log::recover::{self, ScanEnd};
use super::state::SessionState;
use super::write::NewSession;

/// An open session.
pub(crate) struct OpenSession {
    pub(super) state: SessionState,
    /// The log, absent for a draft.
    log: Option<Arc<File>>,
    blobs: PathBuf,
    /// The header of a draft, which its first write puts into the log.
    pub(super) draft: Option<NewSession>,
}

impl OpenSession {
    /// Returns a session that has no files yet.
    pub(super) fn draft(session: NewSession, blobs: PathBuf) -> Self {
        let state = SessionState::draft(&session);
        Self { state, log: None, blobs, draft: Some(session) }
    }

    /// Opens a log and scans the part that `hint` does not describe; writes nothing. Returns the result of the scan too.
    ///
    /// `seen_records` is the number of records that were intact and synced once. If some of them are missing now, they
    /// count as damage and not as a torn tail.
    ///
    /// **Errors**: `Io`, also for a missing log; `UpgradeRequired`.
    pub(super) fn open(
        id: SessionId,
        path: &Path,
        blobs: PathBuf,
        hint: Option<OpenHint>,
        seen_records: u64,
    ) -> Result<(Self, ScanEnd), LogError> {
        let fail = |source| LogError::io("open", path, source);
        let file = File::open(path).map_err(fail)?;
        let len = file.metadata().map_err(fail)?.len();
        // The records that a catalog has seen were synced, even if its hint cannot be used any more.
        let hinted_records = hint.as_ref().map_or(0, |hint| hint.point.records);
        let durable = hinted_records.max(seen_records).checked_sub(1);
        let shrunk = hint.as_ref().filter(|hint| len < hint.point.bytes);
        let known = shrunk.map(|hint| hint.entries.clone()).unwrap_or_default();
        let hinted = hint
            .and_then(|hint| SessionState::from_hint(id, hint))
            .filter(|state| describes(state, &file, len));
        let mut state = hinted.unwrap_or_else(|| SessionState::new(id));
        let mut end = recover::scan(path, &file, (state.point(), durable), &blobs, &mut state)?;
        state.set_point(end.point);
        state.note_damage(end.damaged_places);
        if end.torn_bytes == 0 {
            end.missing_records = n_missing(&state, &known);
            state.note_missing(end.missing_records);
        }
        Ok((Self { state, log: Some(Arc::new(file)), blobs, draft: None }, end))
    }

    /// Sets the log that was created for a draft; the session is no draft any more.
    pub(super) fn set_log(&mut self, log: File) {
        self.log = Some(Arc::new(log));
        self.draft = None;
    }

    pub(crate) const fn state(&self) -> &SessionState {
        &self.state
    }

    /// Returns the session as lists show it.
    pub(crate) fn summary(&self, now: Timestamp) -> Session {
        Session { draft: self.draft.is_some(), ..self.state.summary(now) }
    }

    /// Returns whether the log does not end with the mark of a resting session.
    pub(super) fn needs_rest_mark(&self) -> bool {
        let last = self.state.entries().last();
        self.draft.is_none() && last.is_some_and(|last| !last.has(IndexEntry::REST_MARK))
    }

    /// Returns a reader that works without the lock of the fold.
    pub(crate) fn reader(&self) -> RecordReader {
        RecordReader { log: self.log.clone(), blobs: self.blobs.clone() }
    }
}

/// Returns whether a stored fold describes this file: the last line that it knows must be intact and in its place.
fn describes(state: &SessionState, file: &File, len: u64) -> bool {
    let point = state.point();
    if point == ScanPoint::default() {
        return true;
    }
    let Some(last) = state.entries().last().filter(|last| !last.is_damaged()) else {
        return false;
    };
    let end = last.offset + u64::from(last.len);
    let mut line = vec![0; last.len as usize];
    end == point.bytes
        && end <= len
        && file.read_exact_at(&mut line, last.offset).is_ok()
        && log::line_crc(&line) == Some(point.last_crc)
}

/// Returns the number of known records after the end of a log that lost its end between two records.
///
/// A log that differs from what is known in its last record is another file, which lost nothing.
fn n_missing(state: &SessionState, known: &[IndexEntry]) -> u64 {
    let n_left = state.entries().len();
    let line = |entry: &IndexEntry| (entry.offset, entry.len, entry.kind(), entry.parent());
    let is_prefix = n_left
        .checked_sub(1)
        .is_some_and(|last| known.get(last).map(line) == state.entries().last().map(line));
    if is_prefix { known.len().saturating_sub(n_left) as u64 } else { 0 }
}

/// Maximum number of adjacent lines that are read at once. Few lines have more than 64 KiB, so this is about 1 MiB.
const MAX_RUN_LINES: usize = 16;

/// A reader of records by their index entries.
#[derive(Clone)]
pub(crate) struct RecordReader {
    log: Option<Arc<File>>,
    blobs: PathBuf,
}

impl RecordReader {
    /// Returns a reader of a log that is not open as a session.
    pub(super) fn new(log: File, blobs: PathBuf) -> Self {
        Self { log: Some(Arc::new(log)), blobs }
    }

    /// Reads one record with its blobs; returns `None` if it is damaged.
    pub(crate) fn read(&self, entry: IndexEntry) -> Option<Record> {
        if entry.is_damaged() {
            return None;
        }
        let mut line = vec![0; entry.len as usize];
        self.log.as_ref()?.read_exact_at(&mut line, entry.offset).ok()?;
        log::decode_line(&line, &self.blobs)
    }

    /// Reads many records; returns `None` for those that are damaged, have another number, or are not wanted.
    ///
    /// `wants` receives the line of a record without blobs before it is checked. Adjacent records are read together.
    pub(super) fn read_all(
        &self,
        entries: &[(Seq, IndexEntry)],
        wants: &dyn Fn(&[u8]) -> bool,
    ) -> Vec<Option<Record>> {
        let mut records = Vec::with_capacity(entries.len());
        let mut bytes = Vec::new();
        let is_next = |(_, one): &(Seq, IndexEntry), (_, next): &(Seq, IndexEntry)| {
            one.offset + u64::from(one.len) == next.offset
        };
        for run in entries.chunk_by(is_next).flat_map(|run| run.chunks(MAX_RUN_LINES)) {
            let first = run[0].1.offset;
            bytes.resize(run.iter().map(|(_, entry)| entry.len as usize).sum(), 0);
            let is_read =
                self.log.as_ref().is_some_and(|log| log.read_exact_at(&mut bytes, first).is_ok());
            if !is_read {
                // The log may have become shorter; the records that are left are read one by one.
                records.extend(
                    run.iter()
                        .map(|(seq, entry)| self.read(*entry).filter(|record| record.seq == *seq)),
                );
                continue;
            }
            records.extend(run.iter().map(|(seq, entry)| {
                let at = usize::try_from(entry.offset.checked_sub(first)?).ok()?;
                let line = bytes.get(at..at + entry.len as usize)?;
                if !entry.has(IndexEntry::HAS_BLOBS) && !wants(line) {
                    return None;
                }
                log::decode_line(line, &self.blobs).filter(|record| record.seq == *seq)
            }));
        }
        records
    }
}
