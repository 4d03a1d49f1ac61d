//! An open session as readers see it: the fold, and the file to read contents from.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ollm_protocol::content::{Record, Session};
use ollm_protocol::{Seq, SessionId, Timestamp};

use super::Birth;
use super::index::{Entry, OpenHint, ScanPoint};
use super::log::recover::{self, ScanEnd};
use super::log::{self, LogError};
use super::state::SessionState;

/// An open session.
pub(crate) struct Live {
    /// The fold.
    pub(super) state: SessionState,
    /// The log, for reading; absent for a draft, which has none yet.
    reader: Option<Arc<File>>,
    blobs: PathBuf,
    /// What a draft will begin with.
    pub(super) birth: Option<Birth>,
    /// Bytes after the fold's point, which the next writer cuts.
    pub(super) torn_bytes: u64,
    /// Damage that the opening scan passed.
    pub(super) damaged_places: u64,
}

impl Live {
    /// A session that has no files yet.
    pub(super) fn draft(birth: Birth, blobs: PathBuf) -> Self {
        let state = SessionState::draft(&birth);
        Self { state, reader: None, blobs, birth: Some(birth), torn_bytes: 0, damaged_places: 0 }
    }

    /// Opens a log and reads what `hint` does not tell; writes nothing. `seen_records` were whole and synced
    /// once: those that are missing now are damage and no torn tail.
    ///
    /// **Errors**: `Io`, also when the log is missing; `UpgradeRequired`.
    pub(super) fn open(
        id: SessionId,
        path: &Path,
        blobs: PathBuf,
        hint: Option<OpenHint>,
        seen_records: u64,
    ) -> Result<Self, LogError> {
        let fail = |source| LogError::io("open", path, source);
        let file = File::open(path).map_err(fail)?;
        let len = file.metadata().map_err(fail)?.len();
        // What a catalog has seen was synced, even where its fold cannot be used any more.
        let hinted_records = hint.as_ref().map_or(0, |hint| hint.point.records);
        let claim = hinted_records.max(seen_records).checked_sub(1);
        let hinted = hint
            .and_then(|hint| SessionState::from_hint(id, hint))
            .filter(|state| describes(state, &file, len));
        let mut state = hinted.unwrap_or_else(|| SessionState::new(id));
        let ScanEnd { point, torn_bytes, damaged_places } =
            recover::scan(path, &file, (state.point(), claim), &blobs, &mut state)?;
        state.set_point(point);
        state.note_damage(damaged_places);
        let reader = Some(Arc::new(file));
        Ok(Self { state, reader, blobs, birth: None, torn_bytes, damaged_places })
    }

    /// Gives a draft the log that was made for it.
    pub(super) fn attach(&mut self, reader: File) {
        self.reader = Some(Arc::new(reader));
        self.birth = None;
    }

    /// The fold.
    pub(crate) const fn state(&self) -> &SessionState {
        &self.state
    }

    /// The session as lists show it.
    pub(crate) fn summary(&self, now: Timestamp) -> Session {
        Session { draft: self.birth.is_some(), ..self.state.summary(now) }
    }

    /// A way to read contents without holding the fold's lock.
    pub(crate) fn reader(&self) -> Reader {
        Reader { file: self.reader.clone(), blobs: self.blobs.clone() }
    }
}

/// Whether a stored fold describes this file: the last line it knows is where and what it was.
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

/// How much of a log is read in one go when neighboring records are asked for, in bytes.
const RUN_BYTES: u64 = 1 << 20;

/// Reads records by their entries.
#[derive(Clone)]
pub(crate) struct Reader {
    file: Option<Arc<File>>,
    blobs: PathBuf,
}

impl Reader {
    /// Reads a log that is not open.
    pub(super) fn new(file: File, blobs: PathBuf) -> Self {
        Self { file: Some(Arc::new(file)), blobs }
    }

    /// The records behind entries, `None` for those that are damaged, not what their number says, or refused by
    /// `wants`, which sees the line unless contents lie out of it. Neighbors in the log that are neighbors here
    /// too are read together.
    pub(super) fn read_all(
        &self,
        entries: &[(Seq, Entry)],
        wants: &dyn Fn(&[u8]) -> bool,
    ) -> Vec<Option<Record>> {
        let mut records = Vec::with_capacity(entries.len());
        let mut bytes = Vec::new();
        let mut rest = entries;
        while !rest.is_empty() {
            let (run, later) = rest.split_at(run_of(rest));
            rest = later;
            let (first, len) = extent(run);
            bytes.resize(len, 0);
            let whole = (self.file.as_ref())
                .is_some_and(|file| file.read_exact_at(&mut bytes, first).is_ok());
            if !whole {
                // The end of the log is gone, perhaps; what is left of it is read one by one.
                let one = |(seq, entry): &(Seq, Entry)| {
                    self.read(*entry).filter(|record| record.seq == *seq)
                };
                records.extend(run.iter().map(one));
                continue;
            }
            records.extend(run.iter().map(|(seq, entry)| {
                let at = usize::try_from(entry.offset.checked_sub(first)?).ok()?;
                let line = bytes.get(at..at + entry.len as usize)?;
                if !entry.has(Entry::HAS_BLOBS) && !wants(line) {
                    return None;
                }
                log::decode_line(line, &self.blobs).filter(|record| record.seq == *seq)
            }));
        }
        records
    }

    /// The record behind an entry, blobs put back; `None` when it is damaged.
    pub(crate) fn read(&self, entry: Entry) -> Option<Record> {
        if entry.is_damaged() {
            return None;
        }
        let mut line = vec![0; entry.len as usize];
        self.file.as_ref()?.read_exact_at(&mut line, entry.offset).ok()?;
        log::decode_line(&line, &self.blobs)
    }
}

/// How many entries from the first on lie one behind the other, and are read together.
fn run_of(entries: &[(Seq, Entry)]) -> usize {
    let Some(((_, first), _)) = entries.split_first() else { return 0 };
    let mut end = first.offset + u64::from(first.len);
    let follows = |(_, entry): &&(Seq, Entry)| {
        let next = entry.offset + u64::from(entry.len);
        let is_next = entry.offset == end && next - first.offset <= RUN_BYTES;
        end = if is_next { next } else { end };
        is_next
    };
    1 + entries[1..].iter().take_while(follows).count()
}

/// Where the lines of a run begin, and how many bytes they have together.
fn extent(run: &[(Seq, Entry)]) -> (u64, usize) {
    let first = run.first().map_or(0, |(_, entry)| entry.offset);
    let len = run.iter().map(|(_, entry)| entry.len as usize).sum();
    (first, len)
}
