//! The paths of a session: its tree, moving the active leaf to another record or to a snapshot, undo and redo, and forks.
//!
//! Nothing here changes a record. A move appends a `leaf` record, and only if the active leaf is still the one that the
//! call saw.
//!
//! **Invariants**: a move never separates a tool call from its results, except a return to a snapshot that did; a snapshot
//! is taken before every move; no move happens while a turn is answering.

pub(crate) mod branch;
pub(crate) mod fork;
mod lines;
pub(crate) mod operations;
pub(crate) mod restore;
pub(crate) mod tree;
pub(crate) mod undo;
mod unit;

use ollm_protocol::content::{PathRecords, RecordKind};
use ollm_protocol::{Seq, SessionId};

use super::core::Core;
use super::error::{ChatError, Result};
use crate::session::SessionState;

/// Refuses a move while a turn answers: its records would follow a leaf that the turn does not expect.
///
/// **Errors**: `Conflict`, which names the turn.
fn check_no_turn(core: &Core, id: SessionId) -> Result<()> {
    match core.turns.get(id) {
        None => Ok(()),
        Some(turn) => {
            let (model, since) = (turn.model.clone(), turn.started);
            Err(ChatError::Conflict { id, model, since }.into())
        }
    }
}

/// Returns the records that come onto the path when the leaf moves from `before` to `after`, and those that leave it.
fn path_change(
    state: &SessionState,
    before: Option<Seq>,
    after: Option<Seq>,
) -> (Vec<Seq>, Vec<Seq>) {
    let parent = |seq: Seq| state.entry(seq)?.parent().filter(|parent| *parent < seq);
    let (mut added, mut removed) = (Vec::new(), Vec::new());
    let (mut old, mut new) = (before, after);
    // A record has a higher number than its parent, so the higher of two different ones is on one path only.
    while old != new {
        let (records, end) =
            if old > new { (&mut removed, &mut old) } else { (&mut added, &mut new) };
        let Some(seq) = *end else { break };
        records.push(seq);
        *end = parent(seq);
    }
    added.reverse();
    removed.reverse();
    (added, removed)
}

/// Counts records.
fn count(state: &SessionState, seqs: &[Seq]) -> PathRecords {
    let mut counts = PathRecords { records: seqs.len() as u64, ..PathRecords::default() };
    for entry in seqs.iter().filter_map(|seq| state.entry(*seq)) {
        match entry.kind() {
            Some(RecordKind::Message) => counts.messages += 1,
            Some(RecordKind::ToolCall) => counts.tool_calls += 1,
            _ => continue,
        }
        counts.tokens += u64::from(entry.tokens);
    }
    counts
}

#[cfg(test)]
mod tests;
