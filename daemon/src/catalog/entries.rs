//! Reading the packed entries of a session, and how many of their records may be in memory at once.
//!
//! Must not know what is in the records.

use std::ops::Range;

use ollm_protocol::Seq;
use rusqlite::Connection;

use super::document::has_text;
use super::query::packed::{self, BLOCK_ITEMS, Packed};
use crate::session::index::IndexEntry;

/// The most records and bytes that are in memory at once.
pub(super) const READ_RECORDS: usize = 64;
pub(super) const READ_BYTES: u64 = 4 << 20;
/// What a record with contents out of line counts for: they are larger than 64 KiB, how much is unknown here.
const OUT_OF_LINE_BYTES: u64 = 1 << 20;

/// Reads entries out of their blocks, the last block kept.
pub(super) struct Entries<'a> {
    conn: &'a Connection,
    num: i64,
    block: Option<(u64, Vec<u8>)>,
}

impl<'a> Entries<'a> {
    /// The entries of one session.
    pub(super) const fn new(conn: &'a Connection, num: i64) -> Self {
        Self { conn, num, block: None }
    }

    /// The entry of a record; `None` where there is none.
    pub(super) fn read(&mut self, seq: u64) -> rusqlite::Result<Option<IndexEntry>> {
        let number = seq / BLOCK_ITEMS;
        if self.block.as_ref().is_none_or(|(held, _)| *held != number) {
            let packed = packed::block_of(self.conn, Packed::Entries, self.num, number)?;
            self.block = Some((number, packed));
        }
        let (entries, _) =
            self.block.as_ref().map_or((&[][..], &[][..]), |(_, packed)| packed.as_chunks());
        Ok(entries
            .get(usize::try_from(seq % BLOCK_ITEMS).unwrap_or(usize::MAX))
            .map(IndexEntry::from_bytes))
    }

    /// The next records with text, as many as may be in memory at once.
    pub(super) fn next_with_text(&mut self, range: Range<u64>) -> rusqlite::Result<Slice> {
        let mut slice = Slice { wanted: Vec::new(), next: range.start, bytes: 0 };
        while slice.next < range.end
            && slice.wanted.len() < READ_RECORDS
            && slice.bytes < READ_BYTES
        {
            if let Some(entry) = self.read(slice.next)?.filter(has_text) {
                slice.bytes += read_bytes(&entry);
                slice.wanted.push((Seq(slice.next), entry));
            }
            slice.next += 1;
        }
        Ok(slice)
    }
}

/// Records to read.
pub(super) struct Slice {
    /// The records.
    pub wanted: Vec<(Seq, IndexEntry)>,
    /// Where the ones after them begin.
    pub next: u64,
    /// About how many bytes they have.
    pub bytes: u64,
}

/// About how much memory the record of an entry takes.
pub(super) fn read_bytes(entry: &IndexEntry) -> u64 {
    u64::from(entry.len) + if entry.has(IndexEntry::HAS_BLOBS) { OUT_OF_LINE_BYTES } else { 0 }
}
