//! The writer thread: asks the source what is new and writes it, many records to a transaction.
//!
//! **Invariant**: what a transaction says of a session (how far its log is described, how far its text is
//! indexed) is true of the rows that the same transaction holds, so a crash at any point leaves a catalog that is
//! behind, never one that is wrong.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ollm_protocol::SessionId;
use rusqlite::Connection;

use super::docids::DocIds;
use super::document::Document;
use super::entries::{Entries, Slice};
use super::query::packed::{self, Packed};
use super::query::text::{self, Origin};
use super::query::{self, SessionRow};
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
/// How far the thread stands back: a quarter of what a thread at normal priority gets where cores are short. More
/// would let a removal wait too long, which is done on this thread too.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 6;
/// As far back as a thread can stand.
#[cfg(target_os = "linux")]
const MAX_NICENESS: i32 = 19;
/// Waiting sessions from which on the catalog is catching up.
const MANY_SESSIONS: usize = 32;

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
        step_back();
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

/// Lets the threads that answer callers go first: indexing a burst of records must not slow down their writing.
fn step_back() {
    // Elsewhere than on Linux this would be about the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::getpriority_process(None).and_then(|now| {
        rustix::process::setpriority_process(None, (now + NICENESS).min(MAX_NICENESS))
    }) {
        tracing::debug!(%error, "the catalog runs at normal priority");
    }
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
                Job::Check => rebuild::check(self)
                    .inspect_err(|_| self.shared.queue.ask_check(Duration::ZERO)),
                Job::Recover => rebuild::recover(self),
                Job::Rest => self.rest(),
                Job::Forget(request) => {
                    let outcome = forget::forget(self, &request.ids);
                    self.shared.queue.forgotten(&request.ids);
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
        self.shared.queue.check_done();
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
            let id = update.session.session_id;
            self.unreadable |= !forget::remove_documents(self.conn, &*self.shared.source, id, row)?;
            text_records = 0;
        }
        let num = query::put_session(self.conn, row.as_ref(), update, text_records, orphans)?;
        let entries: Vec<u8> = update.entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        let keys: Vec<u8> = update.keys.iter().flat_map(|key| key.to_bytes()).collect();
        packed::append(self.conn, Packed::Entries, num, (update.first, Entry::BYTES), &entries)?;
        packed::append(self.conn, Packed::Keys, num, (update.first_key, KeyEntry::BYTES), &keys)?;
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
            let Slice { wanted, next, bytes } = reader.next_with_text(done..end)?;
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
