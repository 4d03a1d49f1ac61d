//! Reading a log from a verified point to its end, telling damage from a torn tail.
//!
//! Every record names the highest number that was synced when it was written. Bytes that cannot be read and
//! whose number is above every such claim were never acknowledged: the torn tail, which is cut. At or below a
//! claim they are damage: skipped, counted, reported; the rest stays readable.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use ollm_protocol::content::{RecordKind, Role};

use super::super::index::ScanPoint;
use super::v1::{self, MAX_VERSION, ScannedLine};
use super::{LogError, Scanned};

/// Bytes read at a time: large enough that the system call does not show, small enough not to be felt.
const CHUNK_BYTES: usize = 256 * 1024;

/// What a scan hands over, in the order of the log.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are records, and none is kept")]
pub(crate) enum Found {
    /// A record that can be read.
    Record(Scanned),
    /// A record that is damaged, by where its bytes were expected.
    Damaged(u64),
}

/// Where a scan ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanEnd {
    /// How far the log is whole.
    pub point: ScanPoint,
    /// Bytes after that: the torn tail, to be cut.
    pub torn_bytes: u64,
    /// Damaged places passed on the way, those without a lost number included.
    pub damaged_places: u64,
}

/// Who receives what a scan finds.
pub(crate) trait Fold {
    /// Whether the body of a record of this kind and role is needed.
    fn wants(&self, kind: RecordKind, role: Option<Role>) -> bool;
    /// Takes the next record or hole.
    fn take(&mut self, found: Found);
}

/// Reads `file` from a point to its end, knowing the highest number that was surely synced.
///
/// **Errors**: `Io`; `UpgradeRequired` when a whole line has a newer version.
pub(crate) fn scan(
    path: &Path,
    file: &File,
    (from, durable): (ScanPoint, Option<u64>),
    blobs: &Path,
    fold: &mut dyn Fold,
) -> Result<ScanEnd, LogError> {
    let fail = |source| LogError::io("read", path, source);
    let mut reader = file;
    reader.seek(SeekFrom::Start(from.bytes)).map_err(fail)?;
    let mut lines = Lines { reader, buffer: Vec::new(), start: 0, end: 0 };
    let mut scan = Scan::new(from, durable, fold);
    while let Some(line) = lines.next().map_err(fail)? {
        let len = line.len() as u64;
        let at = (scan.offset, u32::try_from(len).unwrap_or(u32::MAX));
        match v1::checked_with_crc(line) {
            None => match v1::foreign_version(line) {
                Some(found) => return Err(newer(path, found)),
                None => scan.bad(len),
            },
            Some((json, crc)) => {
                let fold = &*scan.fold;
                let read = v1::scan(json, at, blobs, &|kind, role| fold.wants(kind, role));
                match read {
                    ScannedLine::Record(record, durable) => scan.good(record, durable, crc, len),
                    ScannedLine::Damaged => scan.bad(len),
                    ScannedLine::Newer(found) => return Err(newer(path, found)),
                }
            }
        }
    }
    Ok(scan.finish())
}

fn newer(path: &Path, found: u32) -> LogError {
    LogError::UpgradeRequired { path: path.to_owned(), found, supported: MAX_VERSION }
}

/// A place that could not be read and is not yet known to be damage or tail.
struct Doubt {
    /// The first number that may have been lost there.
    first_lost: u64,
    /// What was read after it.
    held: Vec<(Scanned, u32, u64)>,
}

struct Scan<'a> {
    fold: &'a mut dyn Fold,
    point: ScanPoint,
    offset: u64,
    durable: Option<u64>,
    doubt: Option<Doubt>,
    damaged_places: u64,
}

impl<'a> Scan<'a> {
    fn new(from: ScanPoint, durable: Option<u64>, fold: &'a mut dyn Fold) -> Self {
        let offset = from.bytes;
        Self { fold, point: from, offset, durable, doubt: None, damaged_places: 0 }
    }

    /// The number that the next record must have.
    fn expected(&self) -> u64 {
        match &self.doubt {
            None => self.point.records,
            Some(doubt) => doubt.held.last().map_or(doubt.first_lost, |(last, ..)| last.seq.0 + 1),
        }
    }

    fn bad(&mut self, len: u64) {
        self.offset += len;
        self.begin_doubt();
    }

    fn begin_doubt(&mut self) {
        if self.doubt.is_none() {
            let first_lost = self.point.records;
            self.doubt = Some(Doubt { first_lost, held: Vec::new() });
        }
    }

    fn good(&mut self, record: Scanned, durable: Option<u64>, crc: u32, len: u64) {
        let seq = record.seq.0;
        // A number that was read before cannot come again: these bytes are not part of the log's order.
        if seq < self.expected() {
            return self.bad(len);
        }
        self.offset += len;
        let end = self.offset;
        self.durable = self.durable.max(durable);
        if seq > self.expected() {
            self.begin_doubt();
        }
        match &mut self.doubt {
            None => self.accept(record, crc, end),
            Some(doubt) => {
                doubt.held.push((record, crc, end));
                // The lost numbers were acknowledged: what is missing is damage, and what follows counts.
                if self.durable >= Some(doubt.first_lost) {
                    self.resolve();
                }
            }
        }
    }

    /// Accepts what followed a damaged place.
    fn resolve(&mut self) {
        let Some(doubt) = self.doubt.take() else { return };
        self.damaged_places += 1;
        for (record, crc, end) in doubt.held {
            while self.point.records < record.seq.0 {
                let hole = Found::Damaged(self.point.bytes);
                self.fold.take(hole);
                self.point.records += 1;
            }
            self.accept(record, crc, end);
        }
    }

    fn accept(&mut self, record: Scanned, crc: u32, end: u64) {
        self.fold.take(Found::Record(record));
        self.point = ScanPoint { bytes: end, records: self.point.records + 1, last_crc: crc };
    }

    fn finish(mut self) -> ScanEnd {
        // A log whose first line alone is damaged is a session all the same.
        if self.point.records == 0
            && self.doubt.as_ref().is_some_and(|doubt| !doubt.held.is_empty())
        {
            self.resolve();
        }
        // The end of the log was synced once: it is cut like a torn tail, and it is damage.
        if self.doubt.as_ref().is_some_and(|doubt| self.durable >= Some(doubt.first_lost)) {
            self.damaged_places += 1;
        }
        let torn_bytes = self.offset - self.point.bytes;
        ScanEnd { point: self.point, torn_bytes, damaged_places: self.damaged_places }
    }
}

/// Lines of a file, each with its line break; the last may be without one.
struct Lines<'a> {
    reader: &'a File,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Lines<'_> {
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let mut searched = self.start;
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[searched..self.end]) {
                let line = self.start..searched + at + 1;
                self.start = line.end;
                return Ok(Some(&self.buffer[line]));
            }
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            searched = self.end;
            if self.buffer.len() < self.end + CHUNK_BYTES {
                self.buffer.resize(self.end + CHUNK_BYTES, 0);
            }
            let read = self.reader.read(&mut self.buffer[self.end..])?;
            if read == 0 {
                let rest = 0..self.end;
                self.start = self.end;
                return Ok((!rest.is_empty()).then(|| &self.buffer[rest]));
            }
            self.end += read;
        }
    }
}
