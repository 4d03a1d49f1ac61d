//! Reading the packed entries of a session, and how many of their records may be in memory at once.
//!
//! Must not know what is in the records.

use std::ops::Range;

use ollm_protocol::Seq;
use rusqlite::Connection;

use super::document::has_text;
use super::query::{self, BLOCK_ITEMS, Packed};
use crate::session::index::Entry;

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
    pub(super) fn read(&mut self, seq: u64) -> rusqlite::Result<Option<Entry>> {
        let number = seq / BLOCK_ITEMS;
        if self.block.as_ref().is_none_or(|(held, _)| *held != number) {
            let packed = query::packed_block(self.conn, Packed::Entries, self.num, number)?;
            self.block = Some((number, packed));
        }
        let (entries, _) =
            self.block.as_ref().map_or((&[][..], &[][..]), |(_, packed)| packed.as_chunks());
        Ok(entries
            .get(usize::try_from(seq % BLOCK_ITEMS).unwrap_or(usize::MAX))
            .map(Entry::from_bytes))
    }

    /// The next records with text, as many as may be in memory at once; where the ones after them begin; and how
    /// many bytes they have.
    pub(super) fn next_with_text(
        &mut self,
        range: Range<u64>,
    ) -> rusqlite::Result<(Vec<(Seq, Entry)>, u64, u64)> {
        let (mut wanted, mut bytes, mut at) = (Vec::new(), 0, range.start);
        while at < range.end && wanted.len() < READ_RECORDS && bytes < READ_BYTES {
            if let Some(entry) = self.read(at)?.filter(has_text) {
                bytes += read_bytes(&entry);
                wanted.push((Seq(at), entry));
            }
            at += 1;
        }
        Ok((wanted, at, bytes))
    }
}

/// About how much memory the record of an entry takes.
pub(super) fn read_bytes(entry: &Entry) -> u64 {
    u64::from(entry.len) + if entry.has(Entry::HAS_BLOBS) { OUT_OF_LINE_BYTES } else { 0 }
}
