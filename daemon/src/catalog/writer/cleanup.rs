//! Removing sessions so that no byte of them is left in any file of the catalog.
//!
//! A removal has two parts, because the second takes about 25 ms for each MB of the shards concerned:
//!
//! 1. [`remove_sessions`] removes the rows in one transaction and lists the sessions as forgotten. From then on
//!    nothing leads to them, and the caller can continue.
//! 2. [`Cleanup`] works in slices, between which the writer does other work: it removes the sessions' documents from
//!    the index, merges all segments of the shards concerned into one, which drops the words that only these
//!    documents had, rewrites these shards, does the same with the index of titles, rewrites the tables of sessions, and
//!    truncates the journal. Then it removes the sessions from the list of forgotten ones.
//!
//! `secure_delete` overwrites freed cells and pages with zeros throughout, but not the copies of rows that
//! [`query::rewrite`] describes. Sessions that are forgotten before a merge begins share it. FTS5's own
//! `secure-delete` removes each word at its place, but walks the list of all documents of a common word to do so: a
//! session of 1,000 records among 60,000 took 15 s.
//!
//! **Crash safety**: a crash leaves either a row whose log no longer exists, which the comparison at the start finds,
//! or an entry in the list of forgotten sessions, for which the cleanup starts over; each of its steps can be
//! repeated. A failed or interrupted transaction leaves pages in the journal that no row mentions, so the journal is
//! truncated then as well.

use ollm_protocol::SessionId;
use rusqlite::Connection;

use crate::catalog::document::session_term;
use crate::catalog::query::{self, fulltext, sessions, titles};

/// Number of documents that one slice removes: about 20 ms.
const SLICE_DOCUMENTS: usize = 2_000;
/// Number of pages that one slice of a merge writes: 2 MB, about 50 ms.
const SLICE_PAGES: i64 = 500;

/// Removes the rows of sessions. Returns true when no session is left; the index was dropped then.
pub(super) fn remove_sessions(conn: &Connection, ids: &[SessionId]) -> rusqlite::Result<bool> {
    let mut found = false;
    for id in ids {
        if let Some(row) = sessions::read_row(conn, *id)? {
            sessions::remove(conn, row.num)?;
            found = true;
        }
    }
    let is_empty = found && sessions::is_empty(conn)?;
    if is_empty {
        fulltext::reset(conn)?;
        titles::reset(conn)?;
    }
    Ok(is_empty)
}

/// Removes up to `limit` documents of a session from the index; returns false when the session has no more. The
/// shards that had them are to be merged afterwards.
pub(super) fn remove_documents(
    conn: &Connection,
    num: i64,
    limit: usize,
) -> rusqlite::Result<bool> {
    let of_session = fulltext::quoted(&session_term(num));
    let mut left = limit;
    for shard in fulltext::list_shards(conn)? {
        let all = i64::MIN..=i64::MAX;
        let docids = fulltext::matching_in_shard(conn, shard.num, &of_session, &all, left)?;
        fulltext::remove_documents(conn, shard.num, &docids)?;
        left -= docids.len();
        if left == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The progress of a cleanup. It is not stored: after a restart the cleanup starts over.
#[derive(Debug)]
pub(super) struct Cleanup {
    /// The forgotten sessions whose words this cleanup removes.
    nums: Vec<i64>,
    /// Set if the index of titles is still to be merged. A removed or replaced title is in it until then.
    has_titles: bool,
    step: CleanupStep,
}

#[derive(Clone, Copy, Debug)]
enum CleanupStep {
    /// Remove the documents of `nums[at]`.
    RemoveDocuments { at: usize },
    /// Finish an earlier merge of the next table, which may have passed over words that are to be dropped.
    FinishEarlierMerge,
    /// Merge all segments of this table, and rewrite it.
    Merge { table: MergedTable },
    /// Rewrite a table with texts or digests of sessions, `sessions::REWRITTEN[at]`.
    RewriteTable { at: usize },
    /// Truncate the journal.
    TruncateJournal,
}

/// An FTS5 table that is merged.
#[derive(Clone, Copy, Debug)]
enum MergedTable {
    /// The shard with this number.
    Shard(i64),
    Titles,
}

impl MergedTable {
    fn name(self) -> String {
        match self {
            Self::Shard(num) => fulltext::table_of(num),
            Self::Titles => titles::TABLE.to_owned(),
        }
    }
}

/// The result of one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceResult {
    Continue,
    Finished,
    /// A reader kept the journal from being truncated.
    JournalInUse,
}

impl Cleanup {
    /// Begins a cleanup; `None` when nothing is to be cleaned up.
    pub(super) fn begin(
        conn: &Connection,
        is_journal_stale: bool,
    ) -> rusqlite::Result<Option<Self>> {
        let nums = sessions::forgotten(conn)?;
        let has_shards = !fulltext::unmerged_shards(conn)?.is_empty();
        let (has_titles, step) = (!nums.is_empty(), CleanupStep::RemoveDocuments { at: 0 });
        let is_needed = has_titles || has_shards || is_journal_stale;
        Ok(is_needed.then_some(Self { nums, has_titles, step }))
    }

    /// Does one slice of the current step.
    pub(super) fn run_slice(&mut self, conn: &Connection) -> rusqlite::Result<SliceResult> {
        self.step = match self.step {
            CleanupStep::RemoveDocuments { at } => match self.nums.get(at) {
                Some(num) => {
                    query::begin(conn)?;
                    let has_more = remove_documents(conn, *num, SLICE_DOCUMENTS)?;
                    query::commit(conn)?;
                    CleanupStep::RemoveDocuments { at: if has_more { at } else { at + 1 } }
                }
                None => CleanupStep::FinishEarlierMerge,
            },
            CleanupStep::FinishEarlierMerge => self.finish_earlier_merge(conn)?,
            CleanupStep::Merge { table } => self.merge(conn, table)?,
            CleanupStep::RewriteTable { at } => match sessions::REWRITTEN.get(at) {
                Some(table) => {
                    query::begin(conn)?;
                    query::rewrite(conn, table)?;
                    query::commit(conn)?;
                    CleanupStep::RewriteTable { at: at + 1 }
                }
                None => CleanupStep::TruncateJournal,
            },
            CleanupStep::TruncateJournal => {
                if !query::truncate_wal(conn)? {
                    return Ok(SliceResult::JournalInUse);
                }
                query::begin(conn)?;
                for num in &self.nums {
                    sessions::remove_forgotten(conn, *num)?;
                }
                query::commit(conn)?;
                return Ok(SliceResult::Finished);
            }
        };
        Ok(SliceResult::Continue)
    }

    /// Continues an earlier merge of the next table, or begins to merge all of that table; returns the next step.
    fn finish_earlier_merge(&self, conn: &Connection) -> rusqlite::Result<CleanupStep> {
        let shard = fulltext::unmerged_shards(conn)?.first().copied().map(MergedTable::Shard);
        let titles = self.has_titles.then_some(MergedTable::Titles);
        Ok(match shard.or(titles) {
            Some(table) if fulltext::continue_merge(conn, &table.name(), SLICE_PAGES)? => self.step,
            Some(table) => {
                // This stays in the same slice, so that no other merge begins in between.
                fulltext::begin_merge(conn, &table.name(), SLICE_PAGES)?;
                CleanupStep::Merge { table }
            }
            None if self.nums.is_empty() => CleanupStep::TruncateJournal,
            None => CleanupStep::RewriteTable { at: 0 },
        })
    }

    /// Continues to merge all of a table, or rewrites the merged table; returns the next step.
    fn merge(&mut self, conn: &Connection, table: MergedTable) -> rusqlite::Result<CleanupStep> {
        if fulltext::continue_merge(conn, &table.name(), SLICE_PAGES)? {
            return Ok(self.step);
        }
        query::begin(conn)?;
        fulltext::rewrite_words(conn, &table.name())?;
        if let MergedTable::Shard(num) = table {
            fulltext::set_unmerged(conn, num, false)?;
        } else {
            self.has_titles = false;
        }
        query::commit(conn)?;
        Ok(CleanupStep::FinishEarlierMerge)
    }
}
