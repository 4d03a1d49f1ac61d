//! One transaction of the writer thread: what is new in some sessions, and their words.

use std::io;

use ollm_protocol::SessionId;
use rusqlite::Connection;

use super::{Batch, CATCHING_UP, FOLLOWING};
use crate::catalog::docids::DocIds;
use crate::catalog::document::Document;
use crate::catalog::entries::{Entries, Slice};
use crate::catalog::query::packed::{self, Packed};
use crate::catalog::query::text::{self, Origin};
use crate::catalog::query::{self, SessionRow};
use crate::catalog::queue::Need;
use crate::catalog::{Shared, forget};
use crate::session::index::{IndexEntry, IndexProgress, IndexUpdate, KeyEntry};

/// One transaction.
pub(super) struct Indexing<'a> {
    shared: &'a Shared,
    conn: &'a Connection,
    docids: &'a mut DocIds,
    /// How much it still takes in.
    left: Batch,
    /// Words of documents by their ids, added at the end in the order of ids.
    words: Vec<(i64, String)>,
}

/// What became of one session.
enum Progress {
    Done,
    /// The transaction is full.
    More,
    /// The source failed; what was written is true.
    Failed(io::Error),
}

impl<'a> Indexing<'a> {
    /// A transaction that takes in so much.
    pub(super) const fn new(
        shared: &'a Shared,
        conn: &'a Connection,
        docids: &'a mut DocIds,
        batch: Batch,
    ) -> Self {
        Self { shared, conn, docids, left: batch, words: Vec::new() }
    }

    /// Takes sessions from the queue until there are no more or it is full, and commits.
    pub(super) fn run(&mut self) -> rusqlite::Result<()> {
        query::begin(self.conn)?;
        while self.has_room() {
            let Some((id, need)) = self.shared.queue.take() else { break };
            match self.session(id, need)? {
                Progress::Done => {}
                Progress::More => self.shared.queue.put_back(id),
                Progress::Failed(error) => {
                    tracing::warn!(session = %id, %error, "cannot read a log for the catalog");
                    self.shared.queue.fail(id);
                }
            }
            self.spend(1, 0);
        }
        self.put_words()?;
        query::commit(self.conn)
    }

    fn has_room(&self) -> bool {
        self.left.items > 0 && self.left.bytes > 0 && !self.shared.queue.is_urgent()
    }

    fn put_words(&mut self) -> rusqlite::Result<()> {
        self.words.sort_unstable_by_key(|(docid, _)| *docid);
        text::put_words(self.conn, &std::mem::take(&mut self.words))
    }

    fn spend(&mut self, items: usize, bytes: u64) {
        self.left.items = self.left.items.saturating_sub(items);
        self.left.bytes = self.left.bytes.saturating_sub(bytes);
    }

    fn session(&mut self, id: SessionId, need: Need) -> rusqlite::Result<Progress> {
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
        self.add_text(id, &row)
    }

    /// What is new. An update that does not continue what is known is asked for again as a whole.
    fn update(&self, id: SessionId, row: Option<&SessionRow>) -> io::Result<Option<IndexUpdate>> {
        let known = row.map(|row| row.known).unwrap_or_default();
        let source = &self.shared.source;
        let continues = |update: &IndexUpdate, known: IndexProgress| {
            update.first == known.point.records && update.first_key == known.keys
        };
        let Some(update) = source.update(id, known)? else { return Ok(None) };
        if update.restart || continues(&update, known) {
            return Ok(Some(update));
        }
        let whole = source.update(id, IndexProgress::default())?;
        Ok(whole.map(|update| IndexUpdate { restart: true, ..update }))
    }

    /// Writes the rows of an update and gives the session's row as it is then.
    fn apply(
        &mut self,
        row: Option<SessionRow>,
        update: &IndexUpdate,
    ) -> rusqlite::Result<SessionRow> {
        let mut row = row;
        if update.restart
            && let Some(old) = row.take()
        {
            // The documents of the old log stay under the old number, which leads nowhere, until they are
            // cleaned up.
            query::remove_session(self.conn, old.num)?;
        }
        let mut text_records = row.as_ref().map_or(0, |row| row.text_records);
        if let Some(row) = row.as_ref().filter(|row| row.project != update.session.project_hash)
            && text_records > 0
        {
            // Its documents carry the old project: they are taken out and indexed again with the new one.
            self.put_words()?;
            let _more = forget::remove_documents(self.conn, row.num, usize::MAX)?;
            text_records = 0;
        }
        let num = query::put_session(self.conn, row.as_ref(), update, text_records)?;
        let entries: Vec<u8> = update.entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        let keys: Vec<u8> = update.keys.iter().flat_map(|key| key.to_bytes()).collect();
        packed::append(
            self.conn,
            Packed::Entries,
            num,
            (update.first, IndexEntry::BYTES),
            &entries,
        )?;
        packed::append(self.conn, Packed::Keys, num, (update.first_key, KeyEntry::BYTES), &keys)?;
        let known = IndexProgress {
            point: update.point,
            keys: update.first_key + update.keys.len() as u64,
        };
        Ok(SessionRow { num, known, text_records, project: update.session.project_hash.clone() })
    }

    fn remove_vanished(&mut self, row: Option<SessionRow>) -> rusqlite::Result<()> {
        row.map_or(Ok(()), |row| query::remove_session(self.conn, row.num))
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
            let Slice { wanted, next, bytes } = reader.next_with_text(done..end)?;
            if !wanted.is_empty() {
                match self.shared.source.records(id, &wanted, &|_| true) {
                    Ok(records) => {
                        for ((_, entry), record) in wanted.iter().zip(&records) {
                            if let Some(document) = record.as_ref().and_then(Document::of) {
                                self.add_document(row, *entry, &document)?;
                            }
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

    fn add_document(
        &mut self,
        row: &SessionRow,
        entry: IndexEntry,
        document: &Document,
    ) -> rusqlite::Result<()> {
        let docid = self.docids.allocate(self.conn, document.at)?;
        let origin = Origin { session: row.num, seq: document.seq, entry };
        text::put_origin(self.conn, docid, &origin)?;
        self.words.push((docid, document.tokens(row.num, row.project.as_deref())));
        Ok(())
    }
}
