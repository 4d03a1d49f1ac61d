//! The transactions in which the writer thread takes in new records: their rows, and the words of their text.
//!
//! **Invariant**: the progress that a transaction stores for a session (the described part of its log, the records
//! whose text is indexed) matches the rows of the same transaction. A crash therefore leaves a catalog that is behind,
//! never one that is wrong.

use std::ops::Range;

use hashlink::LruCache;
use ollm_protocol::{Seq, SessionId, Timestamp};
use rusqlite::Connection;

use super::cleanup::remove_documents;
use crate::catalog::database::CatalogShared;
use crate::catalog::document::{READ_BYTES, SearchDocument, has_text, read_bytes};
use crate::catalog::query;
use crate::catalog::query::fulltext::{self, DocumentOrigin, HOUR_IDS};
use crate::catalog::query::sessions::{self, BLOCK_ITEMS, PackedTable, SessionRow};
use crate::catalog::query::titles;
use crate::catalog::queue::IndexNeed;
use crate::session::index::{
    IndexEntry, IndexProgress, IndexUpdate, KeyEntry, SourceError, UpdateScope,
};

/// Number of records that are in memory at once.
const READ_RECORDS: usize = 64;

/// The limits of one transaction. Larger transactions cost less for each record and write the index in fewer
/// small segments; smaller ones limit memory and the time that a removal waits.
#[derive(Clone, Copy)]
pub(super) struct BatchLimits {
    /// Number of sessions and of records whose text is indexed.
    items: usize,
    /// Bytes that are read from logs.
    bytes: u64,
}

/// The limits while the catalog keeps up: transactions of 64 to 256 records cost 30 to 70 us/KiB, those of one
/// record 107 to 480.
pub(super) const FOLLOWING: BatchLimits = BatchLimits { items: 256, bytes: 4 << 20 };
/// The limits while the catalog catches up with many records: 200 ms of work. The bytes decide how much memory the
/// process keeps, because the C library does not give it back: 12 MiB cost as much again and saved a tenth of the
/// time.
pub(super) const CATCHING_UP: BatchLimits = BatchLimits { items: 32_768, bytes: 4 << 20 };

/// A transaction that is being filled.
pub(super) struct IndexTransaction<'a> {
    shared: &'a CatalogShared,
    conn: &'a Connection,
    docids: &'a mut DocidAllocator,
    /// The remaining capacity.
    left: BatchLimits,
    /// The words of new documents by document id, added when the transaction ends.
    words: Vec<(i64, String)>,
}

/// The result of taking in one session.
enum SessionProgress {
    Complete,
    /// The transaction is full, and the session has more text.
    Partial,
    /// The source failed. The rows stored so far are valid.
    SourceFailed(SourceError),
}

impl<'a> IndexTransaction<'a> {
    pub(super) const fn new(
        shared: &'a CatalogShared,
        conn: &'a Connection,
        docids: &'a mut DocidAllocator,
        limits: BatchLimits,
    ) -> Self {
        Self { shared, conn, docids, left: limits, words: Vec::new() }
    }

    /// Takes sessions from the queue until it is empty or the transaction is full, and commits.
    pub(super) fn run(&mut self) -> rusqlite::Result<()> {
        query::begin(self.conn)?;
        while self.has_room() {
            let Some((id, need)) = self.shared.queue.take_session() else { break };
            match self.index_session(id, need)? {
                SessionProgress::Complete => {}
                SessionProgress::Partial => self.shared.queue.put_back(id),
                SessionProgress::SourceFailed(error) => {
                    tracing::warn!(session = %id, %error, "cannot read a log for the catalog");
                    let is_usable = matches!(error, SourceError::Unreadable(_));
                    self.shared.queue.source_failed(id, need, is_usable);
                }
            }
            self.spend(1, 0);
        }
        self.put_words()?;
        query::commit(self.conn)
    }

    fn has_room(&self) -> bool {
        self.left.items > 0 && self.left.bytes > 0 && !self.shared.queue.has_forget_request()
    }

    fn spend(&mut self, items: usize, bytes: u64) {
        self.left.items = self.left.items.saturating_sub(items);
        self.left.bytes = self.left.bytes.saturating_sub(bytes);
    }

    fn put_words(&mut self) -> rusqlite::Result<()> {
        self.words.sort_unstable_by_key(|(docid, _)| *docid);
        fulltext::put_words(self.conn, &std::mem::take(&mut self.words))
    }

    fn index_session(
        &mut self,
        id: SessionId,
        need: IndexNeed,
    ) -> rusqlite::Result<SessionProgress> {
        let scope = if need == IndexNeed::Whole { UpdateScope::Whole } else { UpdateScope::New };
        let row = match (sessions::read_row(self.conn, id)?, need) {
            (Some(row), IndexNeed::Text) => row,
            (row, _) => match self.shared.source.update(id, known_of(row.as_ref()), scope) {
                Ok(Some(update)) => {
                    let update = self.without_known(row.as_ref(), update)?;
                    self.apply(row, &update)?
                }
                Ok(None) => {
                    if let Some(row) = row {
                        sessions::remove(self.conn, row.num)?;
                    }
                    return Ok(SessionProgress::Complete);
                }
                Err(error) => return Ok(SessionProgress::SourceFailed(error)),
            },
        };
        // A long log is taken in with large transactions even when no other session waits.
        if row.known.point.records - row.text_records > FOLLOWING.items as u64 * 16
            && self.left.items <= FOLLOWING.items
        {
            self.left = CATCHING_UP;
        }
        if let Err(error) = self.index_gaps(id, &row)? {
            return Ok(SessionProgress::SourceFailed(error));
        }
        let progress = self.index_text(id, &row)?;
        let has_gaps = !sessions::gaps(self.conn, row.num)?.is_empty();
        self.shared.queue.source_succeeded(id, has_gaps);
        Ok(progress)
    }

    /// Turns an update of the whole log into one of its new records if the stored rows agree with it, so that the text
    /// is not indexed again.
    fn without_known(
        &self,
        row: Option<&SessionRow>,
        update: IndexUpdate,
    ) -> rusqlite::Result<IndexUpdate> {
        let Some(row) = row.filter(|_| update.restart) else { return Ok(update) };
        let num = row.num;
        let stored =
            sessions::read_packed(self.conn, PackedTable::Entries, num, IndexEntry::from_bytes)?;
        let keys = sessions::read_packed(self.conn, PackedTable::Keys, num, KeyEntry::from_bytes)?;
        let (Some(new), Some(new_keys)) =
            (update.entries.strip_prefix(&*stored), update.keys.strip_prefix(&*keys))
        else {
            return Ok(update);
        };
        let is_same_log = !new.is_empty() || update.point == row.known.point;
        if !is_same_log {
            return Ok(update);
        }
        let (entries, keys) = (new.to_vec(), new_keys.to_vec());
        Ok(IndexUpdate { restart: false, entries, keys, ..update })
    }

    /// Indexes the texts that could not be read before and can be read now.
    fn index_gaps(
        &mut self,
        id: SessionId,
        row: &SessionRow,
    ) -> rusqlite::Result<Result<(), SourceError>> {
        let mut entries = EntryReader { conn: self.conn, num: row.num, block: None };
        for seq in sessions::gaps(self.conn, row.num)? {
            let Some(entry) = entries.read(seq.0)? else { continue };
            let mut records = match self.shared.source.records(id, &[(seq, entry)], &|_| true) {
                Ok(records) => records,
                Err(error) => return Ok(Err(error)),
            };
            if let Some(record) = records.pop().flatten() {
                if let Some(document) = SearchDocument::of(&record) {
                    self.add_document(row, entry, &document)?;
                }
                sessions::remove_gap(self.conn, row.num, seq)?;
            }
            self.spend(1, read_bytes(&entry));
        }
        Ok(Ok(()))
    }

    /// Stores the rows of an update and returns the session's new row.
    fn apply(
        &mut self,
        mut row: Option<SessionRow>,
        update: &IndexUpdate,
    ) -> rusqlite::Result<SessionRow> {
        if update.restart
            && let Some(old) = row.take()
        {
            // The old log's documents keep the old number, which leads nowhere, until cleanup removes them.
            sessions::remove(self.conn, old.num)?;
        }
        let mut text_records = row.as_ref().map_or(0, |row| row.text_records);
        if let Some(row) = row.as_ref().filter(|row| row.project != update.session.project_hash)
            && text_records > 0
        {
            // The documents carry the old project: they are removed and indexed again with the new one.
            self.put_words()?;
            let _has_more = remove_documents(self.conn, row.num, usize::MAX)?;
            sessions::remove_gaps(self.conn, row.num)?;
            text_records = 0;
        }
        let old_title = match &row {
            Some(row) => sessions::title(self.conn, row.num)?,
            None => None,
        };
        let num = sessions::write_summary(self.conn, row.as_ref(), update, text_records)?;
        titles::put(self.conn, num, old_title.as_deref(), &update.session.title)?;
        let entries: Vec<u8> = update.entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        let keys: Vec<u8> = update.keys.iter().flat_map(|key| key.to_bytes()).collect();
        let old = known_of(row.as_ref());
        let first_entry = (old.point.records, IndexEntry::BYTES);
        let first_key = (old.keys, KeyEntry::BYTES);
        sessions::append_packed(self.conn, PackedTable::Entries, num, first_entry, &entries)?;
        sessions::append_packed(self.conn, PackedTable::Keys, num, first_key, &keys)?;
        let n_keys = old.keys + update.keys.len() as u64;
        let known = IndexProgress { point: update.point, keys: n_keys };
        Ok(SessionRow { num, known, text_records, project: update.session.project_hash.clone() })
    }

    /// Indexes text from the first record that is not indexed yet, as far as the transaction has room.
    fn index_text(&mut self, id: SessionId, row: &SessionRow) -> rusqlite::Result<SessionProgress> {
        let mut entries = EntryReader { conn: self.conn, num: row.num, block: None };
        let (mut done, end) = (row.text_records, row.known.point.records);
        let mut progress = SessionProgress::Complete;
        while done < end {
            if !self.has_room() {
                progress = SessionProgress::Partial;
                break;
            }
            let TextRecords { entries, next, bytes } = entries.next_with_text(done..end)?;
            if !entries.is_empty() {
                let records = match self.shared.source.records(id, &entries, &|_| true) {
                    Ok(records) => records,
                    Err(error) => {
                        progress = SessionProgress::SourceFailed(error);
                        break;
                    }
                };
                for ((seq, entry), record) in entries.iter().zip(&records) {
                    match record {
                        Some(record) => {
                            if let Some(document) = SearchDocument::of(record) {
                                self.add_document(row, *entry, &document)?;
                            }
                        }
                        None => sessions::add_gap(self.conn, row.num, *seq)?,
                    }
                }
            }
            self.spend(entries.len(), bytes);
            done = next;
        }
        if done != row.text_records {
            sessions::set_text_records(self.conn, row.num, done)?;
        }
        Ok(progress)
    }

    fn add_document(
        &mut self,
        row: &SessionRow,
        entry: IndexEntry,
        document: &SearchDocument,
    ) -> rusqlite::Result<()> {
        let docid = self.docids.allocate(self.conn, document.at)?;
        let origin = DocumentOrigin { docid, session: row.num, seq: document.seq, entry };
        fulltext::put_origin(self.conn, &origin)?;
        self.words.push((docid, document.tokens(row.num, row.project.as_deref())));
        Ok(())
    }
}

/// Returns the part of a log that the row of its session describes.
fn known_of(row: Option<&SessionRow>) -> IndexProgress {
    row.map(|row| row.known).unwrap_or_default()
}

/// Reads the packed entries of one session; keeps the last block.
struct EntryReader<'a> {
    conn: &'a Connection,
    num: i64,
    block: Option<(u64, Vec<u8>)>,
}

/// Records that have text and fit into memory together.
struct TextRecords {
    entries: Vec<(Seq, IndexEntry)>,
    /// The number of the first record behind them.
    next: u64,
    /// Their approximate size in memory.
    bytes: u64,
}

impl EntryReader<'_> {
    /// Returns the next records with text, as many as may be in memory at once.
    fn next_with_text(&mut self, range: Range<u64>) -> rusqlite::Result<TextRecords> {
        let mut found = TextRecords { entries: Vec::new(), next: range.start, bytes: 0 };
        while found.next < range.end
            && found.entries.len() < READ_RECORDS
            && found.bytes < READ_BYTES
        {
            if let Some(entry) = self.read(found.next)?.filter(has_text) {
                found.bytes += read_bytes(&entry);
                found.entries.push((Seq(found.next), entry));
            }
            found.next += 1;
        }
        Ok(found)
    }

    /// Returns the entry of a record; `None` where the catalog has none.
    fn read(&mut self, seq: u64) -> rusqlite::Result<Option<IndexEntry>> {
        let number = seq / BLOCK_ITEMS;
        let block = match self.block.take().filter(|(cached, _)| *cached == number) {
            Some((_, block)) => block,
            None => sessions::read_block(self.conn, PackedTable::Entries, self.num, number)?,
        };
        let (entries, _) = block.as_chunks();
        let index = usize::try_from(seq % BLOCK_ITEMS).unwrap_or(usize::MAX);
        let entry = entries.get(index).map(IndexEntry::from_bytes);
        self.block = Some((number, block));
        Ok(entry)
    }
}

/// Allocates document ids: the next id of the record's hour, or of a later hour where an import used all of them.
///
/// **Invariant**: no other code allocates ids, so the database is asked once for each cached hour.
pub(super) struct DocidAllocator {
    /// The next free id of an hour, by the first id of the hour.
    next: LruCache<i64, i64>,
    /// The later hour that last had a free id, for each full hour.
    overflow: LruCache<i64, i64>,
    spill_hours: Option<i64>,
}

impl Default for DocidAllocator {
    fn default() -> Self {
        let (next, overflow) =
            (LruCache::new(Self::CACHED_HOURS), LruCache::new(Self::CACHED_HOURS));
        Self { next, overflow, spill_hours: None }
    }
}

impl DocidAllocator {
    const CACHED_HOURS: usize = 1_024;

    /// Returns an unused id, as near to its hour as one is free.
    fn allocate(&mut self, conn: &Connection, at: Timestamp) -> rusqlite::Result<i64> {
        let first = fulltext::first_docid(at);
        let mut hour = self.overflow.get(&first).copied().unwrap_or(first);
        let docid = loop {
            let docid = self.next_in_hour(conn, hour)?;
            if docid < hour + HOUR_IDS {
                break docid;
            }
            hour += HOUR_IDS;
        };
        self.next.insert(hour, docid + 1);
        if hour != first {
            self.overflow.insert(first, hour);
        }
        self.note_spill(conn, (hour - first) / HOUR_IDS)?;
        Ok(docid)
    }

    /// Returns the next id of an hour, which is the first id of the following hour when the hour is full.
    fn next_in_hour(&mut self, conn: &Connection, hour: i64) -> rusqlite::Result<i64> {
        if let Some(next) = self.next.get(&hour) {
            return Ok(*next);
        }
        let greatest = fulltext::greatest_docid(conn, hour..=hour + HOUR_IDS - 1)?;
        let next = greatest.map_or(hour, |greatest| greatest + 1);
        self.next.insert(hour, next);
        Ok(next)
    }

    /// Stores the largest spill, by which a search with an upper time limit widens its range.
    fn note_spill(&mut self, conn: &Connection, hours: i64) -> rusqlite::Result<()> {
        let known = match self.spill_hours {
            Some(known) => known,
            None => fulltext::spill_hours(conn)?,
        };
        if hours > known {
            fulltext::set_spill_hours(conn, hours)?;
        }
        self.spill_hours = Some(known.max(hours));
        Ok(())
    }
}
