//! The writer thread: asks the source what is new and writes it, many records to a transaction.
//!
//! **Invariant**: what a transaction says of a session (how far its log is described, how far its text is
//! indexed) is true of the rows that the same transaction holds, so a crash at any point leaves a catalog that is
//! behind, never one that is wrong.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use ollm_protocol::{Seq, SessionId, Timestamp};
use rusqlite::Connection;

use super::document::{Document, has_text};
use super::query::text::{self, Origin};
use super::query::{self, BLOCK_ITEMS, Packed, SessionRow};
use super::queue::{Job, Need};
use super::{CatalogError, Shared, State, forget, rebuild};
use crate::session::index::{Entry, IndexUpdate, KeyEntry, Known};

/// How much one transaction takes in. Larger ones are cheaper by the record, and keep the index from being
/// written in many small pieces that have to be merged; smaller ones bound memory and how long a removal waits.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    /// Records whose text is indexed, and sessions.
    pub items: usize,
    /// Bytes of the log that are read.
    pub bytes: u64,
    /// FTS5's memory before it writes a segment.
    pub hash_bytes: i64,
}

/// While the catalog follows: 64 to 256 records cost 30 to 70 us/KiB, one at a time 107 to 480.
pub(super) const FOLLOWING: Batch = Batch { items: 256, bytes: 4 << 20, hash_bytes: 1 << 20 };
/// While it catches up with many records: about a second of work.
pub(super) const CATCHING_UP: Batch =
    Batch { items: 32_768, bytes: 24 << 20, hash_bytes: 32 << 20 };
/// Waiting sessions from which on the catalog is catching up.
const MANY_SESSIONS: usize = 32;

/// The most records and bytes that are in memory at once.
pub(super) const READ_RECORDS: usize = 64;
pub(super) const READ_BYTES: u64 = 4 << 20;
/// What a record with contents out of line counts for: they are larger than 64 KiB, how much is unknown here.
const OUT_OF_LINE_BYTES: u64 = 1 << 20;

/// The thread's own state.
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    /// Absent after the file was found damaged, until another one is made.
    pub(super) conn: Option<Connection>,
    /// The index must be dropped: it holds text that cannot be taken out.
    pub(super) reset: bool,
    docids: DocIds,
    hash_bytes: i64,
}

/// Starts the writer thread.
pub(super) fn spawn(shared: Arc<Shared>, conn: Connection) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("catalog".into()).spawn(move || {
        let mut writer = Writer {
            shared,
            conn: Some(conn),
            reset: false,
            docids: DocIds::default(),
            hash_bytes: 0,
        };
        writer.run();
    })
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Also when the thread panics: nobody may wait for it for ever.
        self.shared.queue.die();
        self.shared.set_reader(None);
        self.shared.set_state(State::Unavailable);
    }
}

impl Writer {
    fn run(&mut self) {
        loop {
            let outcome = match self.shared.queue.next() {
                Job::Index => self.index_batch(),
                Job::Check => rebuild::check(self),
                Job::Recover => rebuild::recover(self),
                Job::Rest => self.rest(),
                Job::Forget(request) => {
                    let outcome = forget::forget(self, request.id);
                    self.shared.queue.forgotten(request.id);
                    // Its caller went away; the removal is done all the same.
                    drop(request.reply.send(outcome));
                    Ok(())
                }
                Job::Close => return,
            };
            match outcome {
                Ok(()) => self.settle(),
                Err(error) => self.fall_back(&error),
            }
        }
    }

    /// The connection, unless the file is being replaced.
    pub(super) fn conn(&self) -> Result<&Connection, CatalogError> {
        self.conn.as_ref().ok_or(CatalogError::Closed)
    }

    /// Forgets what was known of rows that are gone.
    pub(super) fn rows_replaced(&mut self) {
        self.docids = DocIds::default();
        self.hash_bytes = 0;
    }

    fn settle(&self) {
        let caught_up = self.shared.queue.behind() == 0;
        if caught_up || self.shared.state() == State::Unavailable {
            self.shared.set_state(if caught_up { State::Ready } else { State::Rebuilding });
        }
    }

    fn fall_back(&mut self, error: &CatalogError) {
        tracing::warn!(
            error = error as &dyn std::error::Error,
            "the catalog cannot follow the logs"
        );
        if let Some(conn) = &self.conn {
            query::rollback(conn);
        }
        self.rows_replaced();
        self.shared.set_state(State::Unavailable);
        self.shared.queue.batch_failed();
    }

    fn rest(&self) -> Result<(), CatalogError> {
        query::shrink_memory(self.conn()?)
            .map_err(|error| self.shared.database_error("tidy", error))?;
        if let Some(reader) =
            &*self.shared.reader.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        {
            query::shrink_memory(reader)
                .map_err(|error| self.shared.database_error("tidy", error))?;
        }
        Ok(())
    }

    fn index_batch(&mut self) -> Result<(), CatalogError> {
        if self.reset {
            rebuild::reset_search(self)?;
        }
        let catching_up = self.shared.queue.behind() >= MANY_SESSIONS;
        let batch = if catching_up { CATCHING_UP } else { FOLLOWING };
        let shared = Arc::clone(&self.shared);
        let conn = self.conn.as_ref().ok_or(CatalogError::Closed)?;
        let mut session = Indexing {
            shared: &shared,
            conn,
            docids: &mut self.docids,
            left: batch,
            unreadable: false,
        };
        session.run(&mut self.hash_bytes).map_err(|error| shared.database_error("write", error))?;
        self.reset |= session.unreadable;
        shared.queue.batch_done();
        if self.reset {
            rebuild::reset_search(self)?;
        }
        Ok(())
    }
}

/// One transaction.
struct Indexing<'a> {
    shared: &'a Shared,
    conn: &'a Connection,
    docids: &'a mut DocIds,
    left: Batch,
    /// The index holds text of a log that is gone.
    unreadable: bool,
}

/// What became of one session.
enum Progress {
    Done,
    /// The transaction is full.
    More,
    /// The source failed; what was written is true.
    Failed(io::Error),
}

impl Indexing<'_> {
    fn run(&mut self, hash_bytes: &mut i64) -> rusqlite::Result<()> {
        query::begin(self.conn)?;
        while self.has_room() {
            let Some((id, need)) = self.shared.queue.take() else { break };
            match self.session(id, need, hash_bytes)? {
                Progress::Done => {}
                Progress::More => self.shared.queue.put_back(id),
                Progress::Failed(error) => {
                    tracing::warn!(session = %id, %error, "cannot read a log for the catalog");
                    self.shared.queue.fail(id);
                }
            }
            self.spend(1, 0);
        }
        query::commit(self.conn)
    }

    fn has_room(&self) -> bool {
        self.left.items > 0 && self.left.bytes > 0
    }

    fn spend(&mut self, items: usize, bytes: u64) {
        self.left.items = self.left.items.saturating_sub(items);
        self.left.bytes = self.left.bytes.saturating_sub(bytes);
    }

    fn session(
        &mut self,
        id: SessionId,
        need: Need,
        hash_bytes: &mut i64,
    ) -> rusqlite::Result<Progress> {
        let row = query::session(self.conn, id)?;
        let row = match (row, need) {
            (Some(row), Need::Text) => row,
            (row, _) => {
                let update = match self.update(id, row.as_ref()) {
                    Ok(Some(update)) => update,
                    Ok(None) => {
                        self.remove_vanished(row)?;
                        return Ok(Progress::Done);
                    }
                    Err(error) => return Ok(Progress::Failed(error)),
                };
                self.apply(row, &update)?
            }
        };
        // A long log is caught up with in large transactions even when it is the only one that waits.
        if row.known.point.records - row.text_records > FOLLOWING.items as u64 * 16
            && self.left.items <= FOLLOWING.items
        {
            self.left = CATCHING_UP;
        }
        if *hash_bytes != self.left.hash_bytes {
            *hash_bytes = self.left.hash_bytes;
            text::set_hash_bytes(self.conn, *hash_bytes)?;
        }
        self.add_text(id, &row)
    }

    /// What is new. An update that does not continue what is known is asked for again as a whole.
    fn update(&self, id: SessionId, row: Option<&SessionRow>) -> io::Result<Option<IndexUpdate>> {
        let known = row.map(|row| row.known).unwrap_or_default();
        let source = &self.shared.source;
        let continues = |update: &IndexUpdate, known: Known| {
            update.first == known.point.records && update.first_key == known.keys
        };
        let Some(update) = source.update(id, known)? else { return Ok(None) };
        if update.restart || continues(&update, known) {
            return Ok(Some(update));
        }
        let whole = source.update(id, Known::default())?;
        Ok(whole.map(|update| IndexUpdate { restart: true, ..update }))
    }

    /// Writes the rows of an update and gives the session's row as it is then.
    fn apply(
        &mut self,
        row: Option<SessionRow>,
        update: &IndexUpdate,
    ) -> rusqlite::Result<SessionRow> {
        let mut row = row;
        let mut orphans = row.as_ref().is_some_and(|row| row.orphans);
        if update.restart
            && let Some(old) = row.take()
        {
            // The text of the old log cannot be read any more, so it stays in the index under the old number,
            // which leads nowhere; removing the session then drops the index.
            orphans |= old.text_records > 0;
            query::remove_session(self.conn, old.num)?;
        }
        let mut text_records = row.as_ref().map_or(0, |row| row.text_records);
        if let Some(row) = row.as_ref().filter(|row| row.project != update.session.project_hash)
            && text_records > 0
        {
            // Its documents carry the old project: they are taken out and indexed again with the new one.
            let session = (update.session.session_id, row);
            self.unreadable |= !forget::remove_documents(
                self.conn,
                &*self.shared.source,
                session,
                &mut BTreeSet::new(),
            )?;
            text_records = 0;
        }
        let num = query::put_session(self.conn, row.as_ref(), update, text_records, orphans)?;
        let entries: Vec<u8> = update.entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        let keys: Vec<u8> = update.keys.iter().flat_map(|key| key.to_bytes()).collect();
        query::append_packed(
            self.conn,
            Packed::Entries,
            num,
            (update.first, Entry::BYTES),
            &entries,
        )?;
        query::append_packed(
            self.conn,
            Packed::Keys,
            num,
            (update.first_key, KeyEntry::BYTES),
            &keys,
        )?;
        let known =
            Known { point: update.point, keys: update.first_key + update.keys.len() as u64 };
        Ok(SessionRow {
            num,
            known,
            text_records,
            orphans,
            project: update.session.project_hash.clone(),
        })
    }

    fn remove_vanished(&mut self, row: Option<SessionRow>) -> rusqlite::Result<()> {
        if let Some(row) = row {
            self.unreadable |= row.text_records > 0 || row.orphans;
            query::remove_session(self.conn, row.num)?;
        }
        Ok(())
    }

    /// Indexes the text of records from where it stopped, as far as the transaction has room.
    fn add_text(&mut self, id: SessionId, row: &SessionRow) -> rusqlite::Result<Progress> {
        let mut reader = Entries::new(self.conn, row.num);
        let (mut done, end) = (row.text_records, row.known.point.records);
        let mut progress = Progress::Done;
        while done < end {
            if !self.has_room() {
                progress = Progress::More;
                break;
            }
            let (wanted, next, bytes) = reader.next_with_text(done..end)?;
            if !wanted.is_empty() {
                match self.shared.source.records(id, &wanted) {
                    Ok(records) => {
                        for document in records.iter().flatten().filter_map(Document::of) {
                            self.add_document(row, &document)?;
                        }
                    }
                    Err(error) => {
                        progress = Progress::Failed(error);
                        break;
                    }
                }
            }
            self.spend(wanted.len(), bytes);
            done = next;
        }
        if done != row.text_records {
            query::set_text_records(self.conn, row.num, done)?;
        }
        Ok(progress)
    }

    fn add_document(&mut self, row: &SessionRow, document: &Document) -> rusqlite::Result<()> {
        let docid = self.docids.allocate(self.conn, document.at)?;
        let tokens = document.tokens(row.num, row.project.as_deref());
        text::put_document(
            self.conn,
            docid,
            Origin { session: row.num, seq: document.seq },
            &tokens,
        )
    }
}

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

/// Hands out document ids: the hour's next one, or one of a later hour when an import filled it.
#[derive(Default)]
struct DocIds {
    /// The next free id for each hour's first id; forgotten when it grows, because it can be read again.
    next: HashMap<i64, i64>,
    spill_hours: Option<i64>,
}

impl DocIds {
    /// Hours that are kept in mind.
    const MAX_HOURS: usize = 1_024;

    fn allocate(&mut self, conn: &Connection, at: Timestamp) -> rusqlite::Result<i64> {
        let first = text::first_docid(at);
        if self.next.len() > Self::MAX_HOURS {
            self.next.clear();
        }
        let mut docid = match self.next.get(&first) {
            Some(next) => *next,
            None => first,
        };
        // An id that lies in a later hour may have been given to a document of that hour meanwhile.
        loop {
            let hour = docid - docid % text::HOUR_IDS;
            match text::greatest_docid(conn, docid, hour + text::HOUR_IDS - 1)? {
                None => break,
                Some(taken) => docid = taken + 1,
            }
        }
        self.next.insert(first, docid + 1);
        self.remember_spill(conn, (docid - first) / text::HOUR_IDS)?;
        Ok(docid)
    }

    fn remember_spill(&mut self, conn: &Connection, hours: i64) -> rusqlite::Result<()> {
        let known = match self.spill_hours {
            Some(known) => known,
            None => text::spill_hours(conn)?,
        };
        if hours > known {
            text::set_spill_hours(conn, hours)?;
        }
        self.spill_hours = Some(known.max(hours));
        Ok(())
    }
}
