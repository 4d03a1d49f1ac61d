//! `session.operations`: the operations that can be undone or redone, and the undos themselves, the newest first.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ollm_protocol::content::{
    Operation, OperationFiles, OperationKind, PathRecords, PutBackFile, RecordBody, RecordKind,
    Role,
};
use ollm_protocol::methods::session::branches::{SessionOperationsParams, SessionOperationsResult};
use ollm_protocol::{Seq, SessionId};

use super::count_change;
use super::lines::line_of;
use crate::app::core::Core;
use crate::app::error::{AppError, Result, page_limit};
use crate::app::partial::read_settled;
use crate::session::SessionState;
use crate::session::operations::{OperationSpan, Operations};

const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 1000;
/// The paths that an operation names, and their bytes.
const MAX_PATHS: usize = 20;
const MAX_PATH_BYTES: usize = 4 * 1024;

/// Reads a page of operations (`session.operations`). Blocks on the disk.
pub(crate) fn operations(
    core: &Arc<Core>,
    params: SessionOperationsParams,
) -> Result<SessionOperationsResult> {
    let SessionOperationsParams { session_id: id, limit, cursor } = params;
    let limit = page_limit(limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    let invalid = || AppError::invalid("cursor", "is not a cursor of operations");
    let newest = match &cursor {
        None => u64::MAX,
        Some(cursor) => cursor.parse().map_err(|_| invalid())?,
    };
    let (drafts, undoable, redoable, next) = read_settled(core, id, |live| {
        let operations = core.cache.operations(live.state());
        let end = operations.spans().partition_point(|span| span.first.0 <= newest);
        let start = end.saturating_sub(limit);
        let next = start.checked_sub(1).map(|next| operations.spans()[next].first);
        let mut counts = ChangeCounts::default();
        let draft = |at| draft(live.state(), &operations, at, &mut counts);
        let drafts: Vec<_> = (start..end).rev().map(draft).collect();
        (drafts, operations.undoable().len(), operations.redoable().len(), next)
    })?;
    Ok(SessionOperationsResult {
        data: with_contents(core, id, drafts)?,
        undoable: undoable as u64,
        redoable: redoable as u64,
        next_cursor: next.map(|next| next.0.to_string()),
    })
}

/// An operation whose time, text and files are not read yet.
pub(super) struct OperationDraft {
    operation: Operation,
    /// The record that says what the operation is about.
    subject: Seq,
    /// The records that say which files it wrote or put back.
    writers: Vec<Seq>,
}

/// The counts of the changes of a path so far. A move and those that take it back and bring it again differ only in their
/// direction, and each can concern most of a session.
#[derive(Default)]
pub(super) struct ChangeCounts(HashMap<[Option<Seq>; 2], (PathRecords, PathRecords)>);

impl ChangeCounts {
    /// Counts the records that come onto the path when the leaf moves from `before` to `after`, and those that leave it.
    fn count(
        &mut self,
        state: &SessionState,
        before: Option<Seq>,
        after: Option<Seq>,
    ) -> (PathRecords, PathRecords) {
        let counted = |low, high| move || count_change(state, low, high);
        if before <= after {
            return *self.0.entry([before, after]).or_insert_with(counted(before, after));
        }
        let (removed, added) =
            *self.0.entry([after, before]).or_insert_with(counted(after, before));
        (added, removed)
    }
}

/// Returns an operation without what only its records say.
pub(super) fn draft(
    state: &SessionState,
    operations: &Operations,
    at: usize,
    counts: &mut ChangeCounts,
) -> OperationDraft {
    let span = operations.spans()[at];
    let target = operations.target(at);
    let (added, removed) = counts.count(state, span.before, span.after);
    OperationDraft {
        operation: Operation {
            seq: span.first,
            through_seq: span.last,
            kind: span.kind,
            state: operations.state(at),
            at: None,
            text: String::new(),
            target: target.map(|target| target.first),
            leaf_before: span.before,
            leaf_after: span.after,
            added,
            removed,
            files: None,
        },
        subject: subject(state, target.unwrap_or(&span)),
        writers: writers(state, operations, at),
    }
}

/// Returns the record that says what an operation is about: of a turn, its first message or tool call.
fn subject(state: &SessionState, span: &OperationSpan) -> Seq {
    if span.kind != OperationKind::Turn {
        return span.first;
    }
    let path = state.walk(span.after).take_while(|(seq, _)| *seq >= span.first);
    let said = path.filter(|(_, entry)| {
        entry.is_some_and(|entry| {
            entry.role().is_some_and(|role| role != Role::System)
                || entry.kind() == Some(RecordKind::ToolCall)
        })
    });
    said.map(|(seq, _)| seq).last().unwrap_or(span.first)
}

/// Returns the records of an operation that say which files it wrote or put back. The record of files that were put back
/// follows the moves of the leaf, so it may lie behind the operation.
fn writers(state: &SessionState, operations: &Operations, at: usize) -> Vec<Seq> {
    let first = operations.spans()[at].first.0;
    let next = operations.spans().get(at + 1).map_or(u64::MAX, |next| next.first.0);
    let writes = |seq: &Seq| state.entry(*seq).is_some_and(|entry| entry.names_files());
    (first..next.min(state.entries().len() as u64)).map(Seq).filter(writes).collect()
}

/// Returns the files that records wrote or put back; `None` if there are none.
fn files_of(writers: impl Iterator<Item = RecordBody>) -> Option<OperationFiles> {
    let mut paths = BTreeSet::new();
    for body in writers {
        match body {
            RecordBody::ToolCall(call) => {
                paths.extend(call.writes.into_iter().flatten().map(|write| write.path));
            }
            RecordBody::PutBack(record) => {
                let changed = |file: &PutBackFile| file.before != file.after || file.mode.is_some();
                paths.extend(record.files.into_iter().filter(changed).map(|file| file.path));
            }
            _ => {}
        }
    }
    let count = paths.len() as u64;
    let mut n_bytes = 0;
    let fits = |path: &String| {
        n_bytes += path.len();
        n_bytes <= MAX_PATH_BYTES
    };
    let paths = paths.into_iter().take(MAX_PATHS).take_while(fits).collect();
    (count > 0).then_some(OperationFiles { count, paths })
}

/// Reads the times, the texts and the files of operations. Blocks on the disk.
pub(super) fn with_contents(
    core: &Core,
    id: SessionId,
    drafts: Vec<OperationDraft>,
) -> Result<Vec<Operation>> {
    let firsts: Vec<Seq> = drafts.iter().map(|draft| draft.operation.seq).collect();
    let subjects: Vec<Seq> = drafts.iter().map(|draft| draft.subject).collect();
    let firsts = core.sessions.records(id, &firsts)?;
    let subjects = core.sessions.bodies(id, &subjects)?;
    let writers: Vec<Seq> = drafts.iter().flat_map(|draft| draft.writers.iter().copied()).collect();
    let mut writers = core.sessions.bodies(id, &writers)?.into_iter();
    let fill = |((draft, first), subject): ((OperationDraft, Option<_>), Option<_>)| {
        let at = first.map(|record: ollm_protocol::content::Record| record.at);
        let text = subject.map(|body| line_of(&body)).unwrap_or_default();
        let files = files_of(writers.by_ref().take(draft.writers.len()).flatten());
        Operation { at, text, files, ..draft.operation }
    };
    Ok(drafts.into_iter().zip(firsts).zip(subjects).map(fill).collect())
}
