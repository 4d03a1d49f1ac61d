//! Records that were read from a file and are not in a session yet, in a temporary file.
//!
//! A format may need the end of the file before its first record is final, and nothing may be written for a file that
//! turns out to be unreadable. So records wait here. The spool holds a few bytes of memory for each record; it does not
//! know where its file lies.
//!
//! **Invariants**: a record is read back as it was pushed, except for fields above their limit, which are shortened and
//! counted, and for writes of files and permissions of tools, which are dropped and counted; memory does not depend on
//! the sizes of the records, except for the one that is being pushed or read.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Seek, SeekFrom, Write};

use ollm_protocol::content::{PERMISSIONS, Record, RecordBody, RecordScope};
use ollm_protocol::limits::{BoundedField, shorten_record};
use ollm_protocol::{Seq, Timestamp};

/// Bytes that are collected before they are written.
const WRITE_BYTES: usize = 256 * 1024;

/// Number of records that an iterator reads at once.
const PAGE_RECORDS: usize = 256;

/// A record to be appended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ImportedRecord {
    /// The index of the previous record on the path; absent for a record that starts a path.
    pub parent: Option<usize>,
    /// The time of the record in the file.
    pub at: Timestamp,
    pub body: RecordBody,
    pub key: Option<String>,
}

/// Returns the number that the store gives to `records[index]`.
pub(in crate::session) const fn seq_of(index: usize) -> Seq {
    Seq(index as u64 + 1)
}

/// Drops the fields by which an imported record could lead to a write of a file: nobody here knows who wrote the file.
/// Returns the name of the field that had something.
fn drop_writes(body: &mut RecordBody) -> Option<&'static str> {
    match body {
        RecordBody::ToolCall(call) => {
            let writes = std::mem::take(&mut call.writes);
            call.writes_root = None;
            let n_omitted = std::mem::take(&mut call.writes_omitted);
            (writes.is_some() || n_omitted > 0).then_some("toolCall.writes")
        }
        RecordBody::PutBack(put_back) => {
            put_back.root.clear();
            let n_files = put_back.files.drain(..).len() + put_back.left.drain(..).len();
            (n_files > 0).then_some("putBack.files")
        }
        _ => None,
    }
}

/// Drops the permissions of tools: a file must not allow what nobody here was asked about. Returns whether it had some.
fn drop_permissions(body: &mut RecordBody) -> bool {
    match body {
        RecordBody::Meta(patch) => patch.metadata.remove(PERMISSIONS).is_some(),
        _ => false,
    }
}

/// The file of a spool.
pub(crate) trait SpoolFile: Read + Write + Seek + Send {}

impl<F: Read + Write + Seek + Send> SpoolFile for F {}

/// The records of an import in their order.
///
/// The first error of the file is kept: later pushes have no effect, and [`RecordSpool::error`] returns it once.
pub(crate) struct RecordSpool {
    file: Box<dyn SpoolFile>,
    /// Bytes at the end of the spool that are not in the file yet.
    unwritten: Vec<u8>,
    /// For each record, the position after its last byte.
    ends: Vec<u64>,
    /// The newest record that is on a path.
    last_on_path: Option<usize>,
    /// The earliest time of a record.
    first_at: Option<Timestamp>,
    /// The number of values that were shortened, by field.
    shortened: BTreeMap<BoundedField, u64>,
    /// The number of records without the writes that their file named, by field.
    without_writes: BTreeMap<&'static str, u64>,
    /// The number of records without the permissions that their file named.
    n_without_permissions: u64,
    error: Option<io::Error>,
}

impl RecordSpool {
    /// Returns an empty spool over an empty file.
    pub(crate) fn new(file: Box<dyn SpoolFile>) -> Self {
        Self {
            file,
            unwritten: Vec::new(),
            ends: Vec::new(),
            last_on_path: None,
            first_at: None,
            shortened: BTreeMap::new(),
            without_writes: BTreeMap::new(),
            n_without_permissions: 0,
            error: None,
        }
    }

    /// Appends a record and returns its index.
    pub(super) fn push(&mut self, record: ImportedRecord) -> usize {
        let index = self.ends.len();
        if self.error.is_some() {
            return index;
        }
        let ImportedRecord { parent, at, mut body, key } = record;
        if let Some(field) = drop_writes(&mut body) {
            *self.without_writes.entry(field).or_default() += 1;
        }
        self.n_without_permissions += u64::from(drop_permissions(&mut body));
        let mut fields = shorten_record(&mut body);
        // The beginning of a key would be another key.
        let is_short = |key: &String| BoundedField::Key.check(key.len()).is_ok();
        let (n_keys, key) = (usize::from(key.is_some()), key.filter(is_short));
        fields.extend((n_keys > usize::from(key.is_some())).then_some(BoundedField::Key));
        for field in fields {
            *self.shortened.entry(field).or_default() += 1;
        }
        if body.kind().scope() == RecordScope::Path {
            self.last_on_path = Some(index);
        }
        self.first_at = Some(self.first_at.map_or(at, |first| first.min(at)));
        let start = self.ends.last().copied().unwrap_or_default();
        let before = self.unwritten.len();
        let record = Record { key, ..Record::new(seq_of(index), parent.map(seq_of), at, body) };
        let written = serde_json::to_writer(&mut self.unwritten, &record);
        self.ends.push(start + (self.unwritten.len() - before) as u64);
        if let Err(error) = written {
            self.error = Some(error.into());
        } else if self.unwritten.len() >= WRITE_BYTES {
            self.write_out();
        }
        index
    }

    /// Takes the number of values that were shortened, by field.
    pub(super) fn take_shortened(&mut self) -> BTreeMap<BoundedField, u64> {
        std::mem::take(&mut self.shortened)
    }

    /// Takes the number of records without the writes that their file named, by field.
    pub(super) fn take_without_writes(&mut self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut self.without_writes)
    }

    /// Takes the number of records without the permissions that their file named.
    pub(super) fn take_without_permissions(&mut self) -> u64 {
        std::mem::take(&mut self.n_without_permissions)
    }

    /// Returns the number of records.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the newest record that is on a path.
    pub(super) fn last_on_path(&self) -> Option<usize> {
        self.last_on_path
    }

    /// Returns the earliest time of a record.
    pub(super) fn first_at(&self) -> Option<Timestamp> {
        self.first_at
    }

    /// Reads one record; returns `None` after an error of the file.
    pub(super) fn get(&mut self, index: usize) -> Option<ImportedRecord> {
        match self.read(index, 1, 0) {
            Ok(records) => records.into_iter().next(),
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    /// Reads at most `max_records` records from `first` on, and stops before a record that would make them larger than
    /// `max_bytes`, except for the first. Returns none only at the end.
    pub(crate) fn read(
        &mut self,
        first: usize,
        max_records: usize,
        max_bytes: usize,
    ) -> io::Result<Vec<ImportedRecord>> {
        self.write_out();
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let start = first.checked_sub(1).map_or(0, |before| self.ends[before]);
        let is_within = |n: usize, end: u64| n == 0 || end - start <= max_bytes as u64;
        let ends = self.ends[first.min(self.ends.len())..].iter().copied().take(max_records);
        let ends: Vec<u64> = ends
            .enumerate()
            .take_while(|&(n, end)| is_within(n, end))
            .map(|(_, end)| end)
            .collect();
        let length = ends.last().map_or(0, |end| end - start);
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        self.file.seek(SeekFrom::Start(start))?;
        self.file.read_exact(&mut bytes)?;
        let mut rest = bytes.as_slice();
        let mut from = start;
        let mut records = Vec::with_capacity(ends.len());
        for end in ends {
            let (json, after) =
                rest.split_at(usize::try_from(end - from).map_err(io::Error::other)?);
            (rest, from) = (after, end);
            records.push(decode(json)?);
        }
        Ok(records)
    }

    /// Returns the records from `first` on, which are read in pages of at most `page_bytes`.
    pub(crate) fn iter_from(
        &mut self,
        first: usize,
        page_bytes: usize,
    ) -> impl Iterator<Item = io::Result<ImportedRecord>> {
        let mut next = first;
        let mut page = VecDeque::new();
        std::iter::from_fn(move || {
            if page.is_empty() {
                match self.read(next, PAGE_RECORDS, page_bytes) {
                    Ok(records) => page.extend(records),
                    Err(error) => return Some(Err(error)),
                }
                next += page.len();
            }
            page.pop_front().map(Ok)
        })
    }

    /// Returns the first error of the file, if there was one.
    pub(super) fn error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Returns whether the file failed, so that reading on is of no use.
    pub(super) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    fn write_out(&mut self) {
        if self.unwritten.is_empty() || self.error.is_some() {
            return;
        }
        let written =
            self.file.seek(SeekFrom::End(0)).and_then(|_| self.file.write_all(&self.unwritten));
        self.error = written.err();
        self.unwritten.clear();
        self.unwritten.shrink_to(WRITE_BYTES);
    }
}

fn decode(json: &[u8]) -> io::Result<ImportedRecord> {
    let record: Record = serde_json::from_slice(json)?;
    let index_of = |seq: Seq| usize::try_from(seq.0).ok()?.checked_sub(1);
    let (parent, at, key) = (record.parent.and_then(index_of), record.at, record.key.clone());
    let body = record.into_body().ok_or_else(|| io::Error::other("a record without its body"))?;
    Ok(ImportedRecord { parent, at, body, key })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use ollm_protocol::content::{Message, Role};

    use super::*;

    fn record(text: &str, parent: Option<usize>) -> ImportedRecord {
        let at = Timestamp::from_unix_ms(1_000 - text.len() as i64);
        let body = RecordBody::Message(Message::text(Role::User, text, at));
        ImportedRecord { parent, at, body, key: Some("k".to_owned()) }
    }

    #[test]
    fn records_are_read_back_in_pages_limited_by_bytes() {
        let mut spool = RecordSpool::new(Box::new(Cursor::new(Vec::new())));
        let large = "x".repeat(WRITE_BYTES);
        let pushed = [record("a", None), record(&large, Some(0)), record("c", Some(1))];
        for (index, record) in pushed.iter().enumerate() {
            assert_eq!(spool.push(record.clone()), index);
        }
        assert_eq!(spool.get(1).as_ref(), Some(&pushed[1]));
        assert_eq!(spool.read(0, 10, 1 << 20).unwrap(), pushed);
        assert_eq!(spool.read(0, 10, 1_000).unwrap(), pushed[..1]);
        assert_eq!(spool.read(1, 10, 1_000).unwrap(), pushed[1..2], "one record is always read");
        assert_eq!(spool.read(3, 10, 1_000).unwrap(), []);
        assert_eq!((spool.len(), spool.last_on_path()), (3, Some(2)));
        assert_eq!(spool.first_at(), Some(pushed[1].at));
    }

    #[test]
    fn first_error_of_the_file_is_kept() {
        struct FullDisk;
        impl Read for FullDisk {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Ok(0)
            }
        }
        impl Write for FullDisk {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        impl Seek for FullDisk {
            fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
                Ok(0)
            }
        }
        let mut spool = RecordSpool::new(Box::new(FullDisk));
        spool.push(record(&"x".repeat(WRITE_BYTES), None));
        assert!(spool.has_failed());
        spool.push(record("b", None));
        assert_eq!(spool.error().map(|error| error.kind()), Some(io::ErrorKind::StorageFull));
    }
}
