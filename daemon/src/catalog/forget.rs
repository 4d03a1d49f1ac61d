//! Removing a session so that no byte of it is left in any file of the catalog.
//!
//! In two parts, because the second takes time by the size of the shards (some 25 ms for each MB of them):
//!
//! 1. [`forget`] removes the session's rows in one transaction and notes its number as forgotten. From then on
//!    nothing leads to the session any more, and its caller can go on.
//! 2. [`clean`] does the rest in slices, between which other work has its turn: takes the session's documents out
//!    of the index, merges all segments of the shards that had some into one, which leaves out the words that only
//!    they had, empties the WAL and cuts it to nothing. Then the number is struck off.
//!
//! `secure_delete` overwrites freed cells and pages with zeros all the while. Several sessions that are forgotten
//! before a merge begins share it. FTS5's own `secure-delete` would take out each word at its place, but walks
//! the list of all documents of a common word for each one: a session of 1,000 records among 60,000 took 15 s.
//!
//! A crash anywhere leaves either the session's row, whose log is gone, so that the check at the start comes
//! back here; or its number among the forgotten, and the cleaning begins again, of which every step can be done
//! twice. A transaction that a crash cut off, or an error, leaves pages in the WAL though no row tells of them:
//! then it is emptied too.

use std::sync::Arc;

use ollm_protocol::SessionId;
use rusqlite::Connection;

use super::document::session_term;
use super::index::Writer;
use super::query::{self, shards, text};
use super::{CatalogError, schema, terms};

/// Documents that one slice takes out: some 20 ms.
const SLICE_DOCUMENTS: usize = 2_000;
/// Pages that one slice of a merge writes: 2 MB, some 50 ms.
const SLICE_PAGES: i64 = 500;

/// Removes the rows of sessions, and files that were moved aside. What is left of them is for [`clean`].
pub(super) fn forget(writer: &mut Writer, ids: &[SessionId]) -> Result<(), CatalogError> {
    let shared = Arc::clone(&writer.shared);
    schema::remove_aside(&shared.path)?;
    let conn = writer.conn()?;
    let outcome = query::begin(conn)
        .and_then(|()| remove_rows(conn, ids))
        .and_then(|all| query::commit(conn).map(|()| all));
    match outcome {
        Ok(all) => {
            if all {
                writer.rows_replaced();
            }
            writer.note_unclean()
        }
        Err(error) => {
            query::rollback(conn);
            Err(shared.database_error("remove a session from", error))
        }
    }
}

/// True when no session is left, and the index with all documents was dropped.
fn remove_rows(conn: &Connection, ids: &[SessionId]) -> rusqlite::Result<bool> {
    let mut found = false;
    for id in ids {
        if let Some(row) = query::session(conn, *id)? {
            query::remove_session(conn, row.num)?;
            found = true;
        }
    }
    let all = found && query::is_without_sessions(conn)?;
    if all {
        text::reset(conn)?;
    }
    Ok(all)
}

/// How far a cleaning has come. Lost with the process: it begins again.
#[derive(Debug)]
pub(super) struct Cleaning {
    /// The sessions that will be gone when it is through.
    nums: Vec<i64>,
    /// The shards that it merges.
    shards: Vec<i64>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Documents of `nums[at]` are to be taken out.
    Documents { at: usize },
    /// A merge of `shards[at]` that began before may have passed over words that are to go: it is finished first.
    Settling { at: usize },
    /// All segments of `shards[at]` are merged.
    Merging { at: usize },
    /// Only the WAL is left.
    Emptying,
}

/// Does one slice of the cleaning up, or finds that nothing is left to do.
pub(super) fn clean(writer: &mut Writer) -> Result<(), CatalogError> {
    let shared = Arc::clone(&writer.shared);
    let fail = |error| shared.database_error("clean up", error);
    let cleaning = writer.cleaning.take();
    let conn = writer.conn()?;
    let mut cleaning = match cleaning {
        Some(cleaning) => cleaning,
        None => match Cleaning::begin(conn, writer.has_stale_journal).map_err(fail)? {
            Some(cleaning) => cleaning,
            None => return writer.note_unclean(),
        },
    };
    if let Stage::Emptying = cleaning.stage {
        if !query::truncate_wal(conn).map_err(fail)? {
            return Err(CatalogError::JournalInUse { path: shared.path.clone() });
        }
        strike_off(conn, &cleaning.nums).map_err(fail)?;
        writer.has_stale_journal = false;
        return writer.note_unclean();
    }
    cleaning.stage = cleaning.step(conn).map_err(fail)?;
    writer.cleaning = Some(cleaning);
    Ok(())
}

impl Cleaning {
    /// `None` when there is nothing to clean up.
    fn begin(conn: &Connection, has_stale_journal: bool) -> rusqlite::Result<Option<Self>> {
        let (nums, shards) = (query::forgotten(conn)?, shards::unmerged(conn)?);
        let is_idle = nums.is_empty() && shards.is_empty() && !has_stale_journal;
        Ok((!is_idle).then_some(Self { nums, shards, stage: Stage::Documents { at: 0 } }))
    }

    /// Does a slice of the stage and gives the next one.
    fn step(&mut self, conn: &Connection) -> rusqlite::Result<Stage> {
        match self.stage {
            Stage::Documents { at } => {
                let Some(num) = self.nums.get(at) else {
                    self.shards = shards::unmerged(conn)?;
                    return Ok(Stage::Settling { at: 0 });
                };
                let more = take_out(conn, *num, SLICE_DOCUMENTS)?;
                Ok(Stage::Documents { at: if more { at } else { at + 1 } })
            }
            Stage::Settling { at } => {
                let Some(shard) = self.shards.get(at) else { return Ok(Stage::Emptying) };
                if text::merge_on(conn, *shard, SLICE_PAGES)? {
                    return Ok(self.stage);
                }
                // At once, so that no other merge can begin in between.
                text::begin_merge(conn, *shard, SLICE_PAGES)?;
                Ok(Stage::Merging { at })
            }
            Stage::Merging { at } => {
                let Some(shard) = self.shards.get(at) else { return Ok(Stage::Emptying) };
                if text::merge_on(conn, *shard, SLICE_PAGES)? {
                    return Ok(self.stage);
                }
                shards::set_unmerged(conn, *shard, false)?;
                Ok(Stage::Settling { at: at + 1 })
            }
            Stage::Emptying => Ok(Stage::Emptying),
        }
    }
}

/// Takes up to `limit` documents of a session out, in one transaction; false when it has no more.
fn take_out(conn: &Connection, num: i64, limit: usize) -> rusqlite::Result<bool> {
    query::begin(conn)?;
    let more = remove_documents(conn, num, limit)?;
    query::commit(conn)?;
    Ok(more)
}

/// Takes up to `limit` documents of a session out of the index; false when it has no more. The shards that had
/// them are to be merged from then on.
pub(super) fn remove_documents(
    conn: &Connection,
    num: i64,
    limit: usize,
) -> rusqlite::Result<bool> {
    let mine = terms::expression(&[], &[session_term(num)]);
    let everywhere = (i64::MIN, i64::MAX);
    let mut left = limit;
    for shard in shards::newest_first(conn)? {
        let docids = text::matching_in(conn, shard.num, &mine, everywhere, left)?;
        text::remove_documents(conn, shard.num, &docids)?;
        left -= docids.len();
        if left == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

fn strike_off(conn: &Connection, nums: &[i64]) -> rusqlite::Result<()> {
    query::begin(conn)?;
    for num in nums {
        query::set_clean(conn, *num)?;
    }
    query::commit(conn)
}
