//! The paths of a session: its tree, moving the active leaf to another record or to a snapshot, undo and redo, and forks.
//!
//! Nothing here changes a record. A move appends `leaf` records; it is planned by the session's writer, or names the active
//! leaf that it saw.
//!
//! **Invariants**: a move never separates a tool call from its results, except a return to a snapshot that did; a snapshot
//! is taken before every move; no move happens while a turn is answering.

pub(crate) mod branch;
pub(crate) mod fork;
mod leaf_move;
mod lines;
pub(crate) mod operations;
pub(crate) mod restore;
pub(crate) mod tree;
pub(crate) mod undo;
mod unit;

use ollm_protocol::Seq;
use ollm_protocol::content::{PathRecords, RecordKind};

use crate::session::SessionState;
use crate::session::index::IndexEntry;

/// Calls `each` with the records that come onto the path (`true`) when the leaf moves, and those that leave it, each from
/// the end of its branch on.
fn walk_change(
    state: &SessionState,
    before: Option<Seq>,
    after: Option<Seq>,
    mut each: impl FnMut(bool, Seq, Option<IndexEntry>),
) {
    let (mut old, mut new) = (before, after);
    // A record has a higher number than its parent, so the higher of two different ones is on one path only.
    while old != new {
        let is_added = old <= new;
        let end = if is_added { &mut new } else { &mut old };
        let Some(seq) = *end else { break };
        let entry = state.entry(seq);
        each(is_added, seq, entry);
        *end = entry.and_then(|entry| entry.parent()).filter(|parent| *parent < seq);
    }
}

/// Returns the records that come onto the path when the leaf moves from `before` to `after`, and those that leave it.
fn path_change(
    state: &SessionState,
    before: Option<Seq>,
    after: Option<Seq>,
) -> (Vec<Seq>, Vec<Seq>) {
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    walk_change(state, before, after, |is_added, seq, _| {
        let records = if is_added { &mut added } else { &mut removed };
        records.push(seq);
    });
    added.reverse();
    removed.reverse();
    (added, removed)
}

/// Counts the records that come onto the path when the leaf moves from `before` to `after`, and those that leave it.
fn count_change(
    state: &SessionState,
    before: Option<Seq>,
    after: Option<Seq>,
) -> (PathRecords, PathRecords) {
    let (mut added, mut removed) = (PathRecords::default(), PathRecords::default());
    walk_change(state, before, after, |is_added, _, entry| {
        let counts = if is_added { &mut added } else { &mut removed };
        counts.records += 1;
        let Some(entry) = entry else { return };
        match entry.kind() {
            Some(RecordKind::Message) => counts.messages += 1,
            Some(RecordKind::ToolCall) => {
                counts.tool_calls += 1;
                counts.file_calls += u64::from(entry.has(IndexEntry::LISTS_WRITES));
            }
            _ => return,
        }
        counts.tokens += u64::from(entry.tokens);
    });
    (added, removed)
}

#[cfg(test)]
mod tests;
