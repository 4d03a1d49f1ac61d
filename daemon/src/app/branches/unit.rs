//! Units: a message with everything that was recorded because of it. A leaf moves to the end of a unit, and a fork copies
//! whole units. Pure: reads index entries only.

use ollm_protocol::content::{RecordKind, RecordScope, Role};
use ollm_protocol::{Seq, SessionId};

use crate::app::error::{AppError, Result};
use crate::session::index::IndexEntry;
use crate::session::{SessionError, SessionState};

/// Returns the record that ends the unit of a record.
///
/// A unit is a message with its token usage and the goal changes of its markers. The results of an assistant message's
/// tool calls belong to it; recalled messages belong to the user's message behind them.
///
/// **Errors**: `RecordNotFound`, `Damaged`; `Invalid` for a record that is on no path.
pub(super) fn unit_end(state: &SessionState, seq: Seq, field: &'static str) -> Result<Seq> {
    check_on_tree(state, seq, field)?;
    let later = path_after(state, seq);
    let mut end = seq;
    let mut is_open = state.entry(seq).is_some_and(|entry| has_calls(state, seq, entry));
    let mut is_delta = is_kind(state, seq, RecordKind::Delta);
    for next in later {
        let Some(entry) = state.entry(next) else { break };
        if is_delta {
            // A delta can also stand at the end of a branch, or before another change.
            is_delta = entry.kind() == Some(RecordKind::Delta);
            if is_delta {
                continue;
            }
            if entry.role() != Some(Role::User) {
                break;
            }
            end = next;
            continue;
        }
        if is_result(entry) {
            if !is_open {
                break;
            }
            end = next;
        } else if is_part(entry) {
            // Behind a result that is not the last one, it is inside the unit anyway.
            if is_directly_behind(state, next, end) {
                end = next;
            }
        } else if matches!(entry.role(), Some(Role::User | Role::Assistant)) {
            break;
        } else {
            is_open &= !is_turn(entry);
        }
    }
    Ok(end)
}

/// Refuses records that are not part of the tree.
pub(super) fn check_on_tree(state: &SessionState, seq: Seq, field: &'static str) -> Result<()> {
    let id: SessionId = state.id();
    let entry = state.entry(seq).filter(|entry| !entry.is_of_log());
    let entry = entry.ok_or(SessionError::RecordNotFound { id, seq })?;
    match entry.kind().map(RecordKind::scope) {
        None => Err(SessionError::Damaged { id, seq }.into()),
        Some(RecordScope::Path) => Ok(()),
        Some(RecordScope::Session | RecordScope::Log) => {
            let problem = format!("record {seq} is a property of the session and on no branch");
            Err(AppError::invalid(field, problem))
        }
    }
}

/// Returns the records behind `seq` up to the active leaf, or else up to the newest record that descends from it.
fn path_after(state: &SessionState, seq: Seq) -> Vec<Seq> {
    let active = state.leaf().filter(|leaf| descends(state, *leaf, seq));
    let newest = || {
        let first = usize::try_from(seq.0).unwrap_or(usize::MAX).saturating_add(1);
        let n_later = state.entries().len().saturating_sub(first);
        let mut descends = vec![false; n_later];
        let mut newest = seq;
        for (at, entry) in state.entries().iter().skip(first).enumerate() {
            let later = Seq(seq.0 + 1 + at as u64);
            descends[at] = entry.parent().is_some_and(|parent| {
                parent == seq
                    || (seq < parent && parent < later)
                        && descends[usize::try_from(parent.0 - seq.0 - 1).unwrap_or(usize::MAX)]
            });
            if descends[at] {
                newest = later;
            }
        }
        newest
    };
    let leaf = active.unwrap_or_else(newest);
    let mut path: Vec<Seq> =
        state.walk(Some(leaf)).map(|(seq, _)| seq).take_while(|later| *later > seq).collect();
    path.reverse();
    path
}

fn descends(state: &SessionState, leaf: Seq, from: Seq) -> bool {
    state.walk(Some(leaf)).map(|(seq, _)| seq).take_while(|seq| *seq >= from).any(|seq| seq == from)
}

/// Returns whether the results of tool calls can follow a record: it calls tools, or is one of the results.
fn has_calls(state: &SessionState, seq: Seq, entry: IndexEntry) -> bool {
    if entry.role() == Some(Role::Assistant) {
        return entry.has(IndexEntry::CALLS_TOOLS);
    }
    if !is_result(entry) {
        return false;
    }
    let before = state.walk(Some(seq)).skip(1).filter_map(|(_, entry)| entry);
    let mut turns = before.filter(|entry| is_turn(*entry));
    turns.next().is_some_and(|turn| turn.has(IndexEntry::CALLS_TOOLS))
}

/// Returns whether a record is a turn of the user or of the model.
fn is_turn(entry: IndexEntry) -> bool {
    matches!(entry.role(), Some(Role::User | Role::Assistant))
        || entry.kind() == Some(RecordKind::Custom) && entry.has(IndexEntry::IN_CONTEXT)
}

fn is_result(entry: IndexEntry) -> bool {
    entry.kind() == Some(RecordKind::ToolCall) || entry.role() == Some(Role::Tool)
}

/// Returns whether a record says something about the message before it.
fn is_part(entry: IndexEntry) -> bool {
    entry.kind() == Some(RecordKind::Usage) || entry.has(IndexEntry::BY_MARKER)
}

fn is_kind(state: &SessionState, seq: Seq, kind: RecordKind) -> bool {
    state.entry(seq).is_some_and(|entry| entry.kind() == Some(kind))
}

fn is_directly_behind(state: &SessionState, seq: Seq, end: Seq) -> bool {
    state.entry(seq).is_some_and(|entry| entry.parent() == Some(end))
}
