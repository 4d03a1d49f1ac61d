//! An open session for readers: the fold, and a reader for the contents of records.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use ollm_protocol::content::{Record, Session, SessionStatus};
use ollm_protocol::{Seq, SessionId, Timestamp};

use super::error::LogError;
use super::index::{IndexEntry, OpenHint, ScanPoint};
use super::log::recover::{self, ScanEnd};
use super::log::{self, LogReader};
use super::state::SessionState;
use super::write::{NewRecord, NewSession};
use crate::fsutil::FsError;

/// An open session.
pub(crate) struct OpenSession {
    pub(super) state: SessionState,
    /// The log, absent for a draft.
    log: Option<Arc<LogReader>>,
    blobs: PathBuf,
    /// The records whose last read found another content than the log states, or a missing blob. Each read tries again.
    unreadable: BTreeSet<Seq>,
    /// The header of a draft, which its first write puts into the log.
    pub(super) draft: Option<NewSession>,
    /// The offset of the first bytes of the log that were read and are perhaps in the system's cache only, as a process
    /// that was killed may have left them; `None` if the log was synced since it was read.
    pub(super) unsynced_from: Option<u64>,
}

impl OpenSession {
    /// Returns a session that has no files yet.
    pub(super) fn draft(session: NewSession, blobs: PathBuf) -> Self {
        let state = SessionState::draft(&session);
        Self {
            state,
            log: None,
            blobs,
            unreadable: BTreeSet::new(),
            draft: Some(session),
            unsynced_from: None,
        }
    }

    /// Opens a log and scans the part that `hint` does not describe; writes nothing. Returns the result of the scan too.
    ///
    /// `seen_records` is the number of records that were intact and synced once. If some of them are missing now, they
    /// count as damage and not as a torn tail.
    ///
    /// A hint that says that the log is damaged is not used: only the log itself can say so.
    ///
    /// **Errors**: `Io`, `File`; `UpgradeRequired`.
    pub(super) fn open(
        id: SessionId,
        log: LogReader,
        blobs: PathBuf,
        hint: Option<OpenHint>,
        seen_records: u64,
    ) -> Result<(Self, ScanEnd), LogError> {
        let len = log.len()?;
        // The records that a catalog has seen were synced, even if its hint cannot be used any more.
        let hinted_records = hint.as_ref().map_or(0, |hint| hint.point.records);
        let durable = hinted_records.max(seen_records).checked_sub(1);
        let shrunk = hint.as_ref().filter(|hint| len < hint.point.bytes);
        let known = shrunk.map(|hint| hint.entries.clone()).unwrap_or_default();
        let hinted = hint.and_then(|hint| SessionState::from_hint(id, hint));
        let mut state = match hinted {
            Some(state) if describes(&state, &log, len)? => state,
            _ => SessionState::new(id),
        };
        let mut end = recover::scan(&log, (state.point(), durable), &blobs, &mut state)?;
        state.set_point(end.point);
        state.note_damage(end.damaged_places);
        if end.torn_bytes == 0 {
            end.missing_records = n_missing(&state, &known);
            state.note_missing(end.missing_records);
        }
        let unreadable = state.lacking().iter().copied().collect();
        let log = Some(Arc::new(log));
        // A later line proves the sync of the lines before its batch, so this is the last batch.
        let n_vouched = end.vouched.map_or(0, |seq| seq as usize + 1);
        let first = state.entries().get(n_vouched);
        let unsynced_from = Some(first.map_or(end.point.bytes, |first| first.offset));
        Ok((Self { state, log, blobs, unreadable, draft: None, unsynced_from }, end))
    }

    /// Returns a session whose log this process wrote and synced.
    pub(super) fn created(state: SessionState, log: LogReader, blobs: PathBuf) -> Self {
        let (log, unreadable) = (Some(Arc::new(log)), BTreeSet::new());
        Self { state, log, blobs, unreadable, draft: None, unsynced_from: None }
    }

    /// Sets the log that was created for a draft; the session is no draft any more.
    pub(super) fn set_log(&mut self, log: LogReader) {
        self.log = Some(Arc::new(log));
        self.draft = None;
    }

    /// Returns the log; `None` for a draft.
    pub(super) fn log(&self) -> Option<Arc<LogReader>> {
        self.log.clone()
    }

    /// Returns the part of the log that was read and perhaps never synced; `None` if the log was synced since.
    pub(super) fn unsynced(&self) -> Option<Range<u64>> {
        self.unsynced_from.map(|from| from..self.state.point().bytes)
    }

    /// Returns whether the last line that was read is in its place.
    pub(super) fn is_current(&self) -> Result<bool, FsError> {
        let last = self.state.entries().last();
        let (Some(last), Some(log)) = (last, &self.log) else { return Ok(true) };
        has_last_line(log, *last, self.state.point())
    }

    pub(crate) const fn state(&self) -> &SessionState {
        &self.state
    }

    /// Returns the session as lists show it.
    pub(crate) fn summary(&self, now: Timestamp) -> Session {
        let session = Session { draft: self.draft.is_some(), ..self.state.summary(now) };
        if self.unreadable.is_empty() {
            return session;
        }
        let damaged_records = session.damaged_records + self.unreadable.len() as u64;
        Session { damaged_records, status: SessionStatus::Corrupted, ..session }
    }

    /// Returns the records whose last read failed although the system could read their files.
    pub(super) const fn unreadable(&self) -> &BTreeSet<Seq> {
        &self.unreadable
    }

    /// Notes for some records whether they could be read. Returns the number of records that could be read before and
    /// cannot now, and the number of those that can be read again.
    pub(super) fn note_reads(&mut self, reads: &[(Seq, bool)]) -> (usize, usize) {
        let (mut lost, mut healed) = (0, 0);
        for (seq, is_read) in reads {
            if *is_read {
                healed += usize::from(self.unreadable.remove(seq));
            } else if self.state.entry(*seq).is_some_and(|entry| !entry.is_damaged()) {
                lost += usize::from(self.unreadable.insert(*seq));
            }
        }
        (lost, healed)
    }

    /// Returns whether the log does not end with the mark of a resting session.
    pub(super) fn needs_rest_mark(&self) -> bool {
        let last = self.state.entries().last();
        self.draft.is_none() && last.is_some_and(|last| !last.is_of_log())
    }

    /// Returns a reader that works without the lock of the fold.
    pub(crate) fn reader(&self) -> RecordReader {
        RecordReader { log: self.log.clone(), blobs: self.blobs.clone() }
    }
}

/// Returns whether a stored fold describes this file: it knows no damage, its lines follow each other, and the last one
/// is intact and in its place.
fn describes(state: &SessionState, log: &LogReader, len: u64) -> Result<bool, FsError> {
    let point = state.point();
    if point == ScanPoint::default() {
        return Ok(true);
    }
    if state.is_damaged() || !state.is_contiguous() || point.bytes > len {
        return Ok(false);
    }
    state.entries().last().map_or(Ok(false), |last| has_last_line(log, *last, point))
}

fn has_last_line(log: &LogReader, last: IndexEntry, point: ScanPoint) -> Result<bool, FsError> {
    let mut line = vec![0; last.len as usize];
    Ok(log.read_exact(&mut line, last.offset)? && log::line_crc(&line) == Some(point.last_crc))
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
    log: Option<Arc<LogReader>>,
    blobs: PathBuf,
}

impl RecordReader {
    /// Returns a reader of a log that is not open as a session.
    pub(super) fn new(log: LogReader, blobs: PathBuf) -> Self {
        Self { log: Some(Arc::new(log)), blobs }
    }

    /// Reads one record with its blobs; returns `None` if it is damaged or a blob is missing.
    ///
    /// **Errors**: the log or a blob could not be read, which says nothing about the record.
    pub(crate) fn read(&self, entry: IndexEntry) -> Result<Option<Record>, FsError> {
        self.line(entry)?.map_or(Ok(None), |line| log::decode_line(&line, &self.blobs))
    }

    /// Reads a record to be recorded again, with its blobs and its count; returns `None` if it cannot be read.
    ///
    /// **Errors**: as [`RecordReader::read`].
    pub(crate) fn read_again(&self, entry: IndexEntry) -> Result<Option<NewRecord>, FsError> {
        let Some(line) = self.line(entry)? else { return Ok(None) };
        let record = log::decode_line(&line, &self.blobs)?;
        let Some(body) = record.and_then(Record::into_body) else { return Ok(None) };
        let tokenizer = log::line_tokenizer(&line);
        Ok(Some(NewRecord::new(body, tokenizer.map(|tokenizer| (entry.tokens, tokenizer)))))
    }

    /// Reads the line of a record; returns `None` if it is damaged.
    pub(super) fn line(&self, entry: IndexEntry) -> Result<Option<Vec<u8>>, FsError> {
        let Some(log) = self.log.as_ref().filter(|_| !entry.is_damaged()) else { return Ok(None) };
        let mut line = vec![0; entry.len as usize];
        Ok(log.read_exact(&mut line, entry.offset)?.then_some(line))
    }

    fn read_numbered(&self, seq: Seq, entry: IndexEntry) -> Result<Option<Record>, FsError> {
        Ok(self.read(entry)?.filter(|record| record.seq == seq))
    }

    /// Reads many records; returns `None` for those that are damaged, have another number, or are not wanted.
    ///
    /// `wants` receives the line of a record without blobs before it is checked. Adjacent records are read together.
    ///
    /// **Errors**: the log or a blob could not be read.
    pub(super) fn read_all(
        &self,
        entries: &[(Seq, IndexEntry)],
        wants: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Vec<Option<Record>>, FsError> {
        let mut records = Vec::with_capacity(entries.len());
        let mut bytes = Vec::new();
        let is_next = |(_, one): &(Seq, IndexEntry), (_, next): &(Seq, IndexEntry)| {
            one.offset + u64::from(one.len) == next.offset
        };
        for run in entries.chunk_by(is_next).flat_map(|run| run.chunks(MAX_RUN_LINES)) {
            let first = run[0].1.offset;
            bytes.resize(run.iter().map(|(_, entry)| entry.len as usize).sum(), 0);
            let is_read = match &self.log {
                Some(log) => log.read_exact(&mut bytes, first)?,
                None => false,
            };
            if !is_read {
                // The log may have become shorter; the records that are left are read one by one.
                for (seq, entry) in run {
                    records.push(self.read_numbered(*seq, *entry)?);
                }
                continue;
            }
            let mut rest = bytes.as_slice();
            for (seq, entry) in run {
                let (line, after) = rest.split_at(entry.len as usize);
                rest = after;
                let is_wanted = entry.has(IndexEntry::HAS_BLOBS) || wants(line);
                let record = if is_wanted { log::decode_line(line, &self.blobs)? } else { None };
                records.push(record.filter(|record| record.seq == *seq));
            }
        }
        Ok(records)
    }
}
