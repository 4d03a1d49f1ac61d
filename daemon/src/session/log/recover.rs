//! A scan of a log from a verified point to its end, which distinguishes damage from a torn tail.
//!
//! Every line holds the highest number that was synced when it was written. Unreadable bytes whose number is above
//! all of these were never acknowledged: they are the torn tail, which the next write cuts. Unreadable bytes at or
//! below one of these are damage: the scan skips and counts them, and the other records stay readable. So is a record
//! of which a single bit was flipped, wherever it is. FORMAT.md, "Reading back".

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use ollm_protocol::content::{RecordKind, Role};
use ollm_protocol::limits::MAX_RECORD_BYTES;

use super::flipped_bit;
use super::reading::LogReader;
use super::v1::{self, MAX_VERSION, ScannedLine};
use crate::session::error::LogError;
use crate::session::index::{ScanPoint, ScannedRecord};

/// Bytes read at a time: large enough that system calls cost little, small enough to be negligible in memory.
const CHUNK_BYTES: usize = 256 * 1024;

/// The longest line that is read as one, in bytes: two of the largest records, because a flipped line break joins two
/// lines. A longer one is bad, such as zeros that a power cut left, and only this much of it is in memory at a time.
const MAX_LINE_BYTES: usize = 2 * (MAX_RECORD_BYTES + 64 * 1024);
/// Number of records that a log may lack without a trace, beyond those whose bytes are damaged. Each costs 24 bytes of
/// memory. A number above this is not that of a record: with any number, one line could fill the memory with holes.
const MAX_LOST_RECORDS: u64 = 1 << 20;
/// A length that every line exceeds, in bytes.
const MIN_LINE_BYTES: u64 = 64;

/// A record or a hole, in the order of the log.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are records, and none is kept")]
pub(crate) enum ScanItem {
    Record(ScannedRecord),
    /// A damaged record, with the offset at which its line was expected.
    Damaged(u64),
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanEnd {
    /// The end of the readable part of the log.
    pub point: ScanPoint,
    /// The size of the torn tail after it, in bytes.
    pub torn_bytes: u64,
    /// The number of damaged places, including those in which no number was lost.
    pub damaged_places: u64,
    /// The highest number that was synced when some line was written, or was known to be.
    pub vouched: Option<u64>,
    /// The number of known records that are missing at the end without a trace. The opener of a session sets it: a scan
    /// does not know these records.
    pub missing_records: u64,
}

/// The receiver of a scan.
pub(crate) trait ScanSink {
    /// Returns whether the body of a record of this kind and role is needed.
    fn wants_body(&self, kind: RecordKind, role: Option<Role>) -> bool;
    /// Receives the next record or hole.
    fn receive(&mut self, item: ScanItem);
}

/// Scans a log from a point to its end. `durable` is the highest number that is known to have been synced.
///
/// **Errors**: `Io`, `File` for a blob that exists and cannot be read; `UpgradeRequired` for an intact line of a newer
/// version.
pub(crate) fn scan(
    log: &LogReader,
    (from, durable): (ScanPoint, Option<u64>),
    blobs: &Path,
    sink: &mut dyn ScanSink,
) -> Result<ScanEnd, LogError> {
    scan_lines(log, (from, durable), blobs, sink, MAX_LINE_BYTES)
}

/// Scans a log like [`scan`], whose lines have at most `max_bytes`.
fn scan_lines(
    log: &LogReader,
    (from, durable): (ScanPoint, Option<u64>),
    blobs: &Path,
    sink: &mut dyn ScanSink,
    max_bytes: usize,
) -> Result<ScanEnd, LogError> {
    let fail = |source| LogError::io("read", log.path(), source);
    let mut lines = BufReader::with_capacity(CHUNK_BYTES, log.stream(from.bytes));
    let mut line = Vec::new();
    let mut scan = LogScan {
        sink,
        point: from,
        offset: from.bytes,
        durable,
        gap: None,
        bad_bytes: Vec::new(),
        damaged_places: 0,
    };
    let mut is_within_long_line = false;
    loop {
        line.clear();
        // The last line may lack its line break.
        let mut piece = lines.by_ref().take(max_bytes as u64);
        if piece.read_until(b'\n', &mut line).map_err(fail)? == 0 {
            return Ok(scan.finish());
        }
        let is_cut = line.len() == max_bytes && !line.ends_with(b"\n");
        if is_within_long_line || is_cut {
            scan.bad(&line);
        } else {
            scan.line(&line, blobs, log.path())?;
        }
        is_within_long_line = is_cut;
    }
}

/// An unreadable place that may be damage or the beginning of the torn tail.
struct Gap {
    /// The first number that may be lost.
    first_lost: u64,
    /// The records read after it.
    after: Vec<HeldRecord>,
}

/// A record that is accepted if the gap before it is damage.
struct HeldRecord {
    record: ScannedRecord,
    crc: u32,
    /// The offset of the end of its line.
    end: u64,
    /// Whether bytes or numbers are missing between the record before it and this one.
    follows_bad_place: bool,
}

/// The state of a scan.
struct LogScan<'a> {
    sink: &'a mut dyn ScanSink,
    point: ScanPoint,
    offset: u64,
    durable: Option<u64>,
    gap: Option<Gap>,
    /// The bytes of the bad lines since the last good one, up to one more than are examined for a flipped bit.
    bad_bytes: Vec<u8>,
    damaged_places: u64,
}

impl LogScan<'_> {
    /// Returns the number that the next record must have.
    fn expected(&self) -> u64 {
        match &self.gap {
            None => self.point.records,
            Some(gap) => gap.after.last().map_or(gap.first_lost, |last| last.record.seq.0 + 1),
        }
    }

    /// Receives the next line. Returns the version of a line of a newer version.
    fn line(&mut self, mut line: &[u8], blobs: &Path, log: &Path) -> Result<(), LogError> {
        loop {
            let position = (self.offset, u32::try_from(line.len()).unwrap_or(u32::MAX));
            let wants_body = |kind, role| self.sink.wants_body(kind, role);
            match v1::scan(line, position, blobs, &wants_body)? {
                ScannedLine::Record { record, durable, crc } => {
                    self.good(record, durable, crc, line);
                }
                ScannedLine::Damaged => {
                    if let Some(first_len) = flipped_bit::joined_at(line) {
                        self.bad(&line[..first_len]);
                        line = &line[first_len..];
                        continue;
                    }
                    self.bad(line);
                }
                ScannedLine::Newer(found) => {
                    let path = log.to_owned();
                    return Err(LogError::UpgradeRequired { path, found, supported: MAX_VERSION });
                }
            }
            return Ok(());
        }
    }

    fn bad(&mut self, line: &[u8]) {
        self.offset += line.len() as u64;
        let room = (flipped_bit::MAX_BYTES + 1).saturating_sub(self.bad_bytes.len());
        self.bad_bytes.extend_from_slice(&line[..room.min(line.len())]);
        self.open_gap();
    }

    fn open_gap(&mut self) {
        let first_lost = self.point.records;
        self.gap.get_or_insert_with(|| Gap { first_lost, after: Vec::new() });
    }

    fn good(&mut self, record: ScannedRecord, durable: Option<u64>, crc: u32, line: &[u8]) {
        let seq = record.seq.0;
        // A repeated number breaks the order of the log, so the line counts as unreadable. So does a number that is too
        // high for the bytes before it.
        let max_seq = self.offset / MIN_LINE_BYTES + MAX_LOST_RECORDS;
        if seq < self.expected() || seq > max_seq {
            return self.bad(line);
        }
        self.offset += line.len() as u64;
        let end = self.offset;
        // One flipped bit is damage, so the lost record was complete once. The records before it are accepted already.
        let is_flipped = self.is_one_flipped_record() && seq == self.expected() + 1;
        let follows_bad_place = !self.bad_bytes.is_empty() || seq > self.expected();
        self.bad_bytes.clear();
        self.durable = self.durable.max(durable);
        if seq > self.expected() {
            self.open_gap();
        }
        match &mut self.gap {
            None => self.accept(record, crc, end),
            Some(gap) => {
                gap.after.push(HeldRecord { record, crc, end, follows_bad_place });
                // The lost numbers were synced, so the gap is damage and the records after it are valid.
                if is_flipped || self.durable >= Some(gap.first_lost) {
                    self.close_gap();
                }
            }
        }
    }

    /// Returns whether the gap so far is the line of the expected record with one flipped bit.
    fn is_one_flipped_record(&self) -> bool {
        self.gap.as_ref().is_some_and(|gap| {
            gap.after.is_empty()
                && flipped_bit::flipped_record(&self.bad_bytes) == Some(gap.first_lost)
        })
    }

    /// Counts every bad place of the gap as damage and accepts the records after them.
    fn close_gap(&mut self) {
        let Some(gap) = self.gap.take() else { return };
        for HeldRecord { record, crc, end, follows_bad_place } in gap.after {
            self.damaged_places += u64::from(follows_bad_place);
            while self.point.records < record.seq.0 {
                self.sink.receive(ScanItem::Damaged(self.point.bytes));
                self.point.records += 1;
            }
            self.accept(record, crc, end);
        }
    }

    fn accept(&mut self, record: ScannedRecord, crc: u32, end: u64) {
        self.sink.receive(ScanItem::Record(record));
        self.point = ScanPoint { bytes: end, records: self.point.records + 1, last_crc: crc };
    }

    fn finish(mut self) -> ScanEnd {
        // A log whose first line is damaged is still a session if other records can be read.
        if self.point.records == 0 && self.gap.as_ref().is_some_and(|gap| !gap.after.is_empty()) {
            self.close_gap();
            if !self.bad_bytes.is_empty() {
                self.open_gap();
            }
        }
        // The end of the log was complete once: it is cut like a torn tail, but it also counts as damage.
        let was_synced = |gap: &Gap| self.durable >= Some(gap.first_lost);
        if self.gap.as_ref().is_some_and(was_synced) || self.is_one_flipped_record() {
            self.damaged_places += 1;
        }
        let torn_bytes = self.offset - self.point.bytes;
        let (point, damaged_places) = (self.point, self.damaged_places);
        ScanEnd { point, torn_bytes, damaged_places, vouched: self.durable, missing_records: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::session::index::ScannedRecord;

    #[derive(Default)]
    struct Found(Vec<Option<u64>>);

    impl ScanSink for Found {
        fn wants_body(&self, _: RecordKind, _: Option<Role>) -> bool {
            false
        }

        fn receive(&mut self, item: ScanItem) {
            self.0.push(match item {
                ScanItem::Record(ScannedRecord { seq, .. }) => Some(seq.0),
                ScanItem::Damaged(_) => None,
            });
        }
    }

    /// Returns a line of version 1.
    fn line(seq: u64, durable: &str) -> String {
        let start = format!(
            r#"{{"v":1,"seq":{seq},"parent":null,"durable":{durable},"at":"2026-01-27T10:00:00.000Z","type":"close","close":{{"reason":"client"}}"#
        );
        format!("{start},\"crc\":\"{:08x}\"}}\n", crc32c::crc32c(start.as_bytes()))
    }

    /// Scans a log of which the records up to `durable` are known to be synced.
    fn scanned(log: &str, durable: Option<u64>, max_bytes: usize) -> (Vec<Option<u64>>, ScanEnd) {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("log");
        let mut file = crate::fsutil::open_private(&path).expect("opens");
        file.write_all(log.as_bytes()).expect("writes");
        let reader = LogReader::open(&path).expect("opens");
        let mut found = Found::default();
        let from = (ScanPoint::default(), durable);
        let end = scan_lines(&reader, from, dir.path(), &mut found, max_bytes).expect("scans");
        // `vouched` differs between scans with and without prior knowledge; only its consequences must be equal.
        (found.0, ScanEnd { vouched: None, ..end })
    }

    #[test]
    fn damage_is_the_same_whether_its_records_are_known_to_be_synced_or_not() {
        let flipped = |line: String| line.replacen("client", "clidnt", 1);
        for (log, n_records, places) in [
            // Two places before the line that vouches for the first: of one, and of no lost number.
            (format!("{}x\n{}x\n{}", line(0, "null"), line(2, "0"), line(3, "2")), 4, 2),
            (format!("{}{}x\n{}", line(0, "null"), line(2, "0"), line(4, "2")), 5, 2),
            // The header is lost, and no line vouches for it.
            (format!("x\n{}x\n{}", line(1, "null"), line(2, "null")), 3, 2),
            (format!("x\n{}{}", line(1, "null"), flipped(line(2, "null"))), 2, 2),
            (format!("x\n{}torn", line(1, "null")), 2, 1),
        ] {
            let (found, end) = scanned(&log, None, MAX_LINE_BYTES);
            assert_eq!((end.point.records, end.damaged_places), (n_records, places), "{log}");
            assert_eq!(scanned(&log, Some(n_records - 1), MAX_LINE_BYTES), (found, end), "{log}");
        }
    }

    #[test]
    fn long_line_is_damage_or_torn_tail_as_a_short_one_and_is_read_in_pieces() {
        let scanned = |log: &str, max_bytes: usize| scanned(log, None, max_bytes);
        let (first, second) = (line(0, "null"), line(1, "0"));
        let lost = "x".repeat(10_000);
        let after = line(2, "1");
        let max_bytes = 1_000;
        for (log, expected, is_torn) in [
            (format!("{first}{lost}\n{after}"), vec![Some(0), None, Some(2)], false),
            (format!("{first}{lost}\n{second}"), vec![Some(0)], true),
            (format!("{first}{second}{lost}"), vec![Some(0), Some(1)], true),
            (format!("{lost}\n{second}{after}"), vec![None, Some(1), Some(2)], false),
            (format!("{first}{}\n", "x".repeat(max_bytes - 1)), vec![Some(0)], true),
        ] {
            let (found, end) = scanned(&log, max_bytes);
            assert_eq!((found, end), scanned(&log, usize::MAX >> 1), "{log:.40}");
            let (found, end) = scanned(&log, max_bytes);
            assert_eq!((found, end.torn_bytes > 0), (expected, is_torn), "{log:.40}");
        }
    }
}
