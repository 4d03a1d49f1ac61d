//! The operations of a session: its log, folded into changes of the active path that can be undone and redone.
//!
//! An operation is a run of records that belong together: a message of the user up to its answer, a compaction, a change
//! of goals, or a move of the leaf. Undo and redo work as in jj: each is a new `leaf` record, undoing again goes further
//! back, redo goes forward, and a new operation ends the line of redo. So the two stacks are a fold like everything else.
//! The fold continues where it ended, so that an undo in a long session does not read its whole log.
//!
//! **Invariants**: pure; equal logs have equal operations, live and after a restart, in one go or bit by bit. A move that
//! this fold cannot explain, of another program or behind damage, is an operation too and can be undone. FORMAT.md,
//! "Operations".

use ollm_protocol::Seq;
use ollm_protocol::content::{
    LeafMove, OperationKind, OperationState, RecordKind, RecordScope, Role,
};

use super::index::IndexEntry;
use super::state::SessionState;

/// The causes of moves that are not operations: the records before them are on several paths, in the order of no user.
const IMPORTS: [&str; 2] = [LeafMove::IMPORT, LeafMove::FORK];

/// A run of records that is undone as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationSpan {
    pub(crate) first: Seq,
    pub(crate) last: Seq,
    pub(crate) kind: OperationKind,
    /// The active leaf before the operation.
    pub(crate) before: Option<Seq>,
    /// The active leaf after it.
    pub(crate) after: Option<Seq>,
    /// The operation that an undo or a redo reversed.
    target: Option<usize>,
}

/// All operations of a session, and what the next record may continue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operations {
    spans: Vec<OperationSpan>,
    /// The operations in force, as indices, the newest last.
    undo: Vec<usize>,
    /// The undone operations with the leaf that a redo moves to, the next one last.
    redo: Vec<(usize, Option<Seq>)>,
    /// The log that is folded so far.
    folded: FoldedLog,
    /// The active leaf.
    leaf: Option<Seq>,
    /// The operation of the newest unanswered message: the answer joins it, with everything since.
    question: Option<usize>,
    /// Set if the last message of the conversation calls tools whose results may follow.
    in_call: bool,
    /// The newest start of a tool call: the record of a call directly behind it joins it.
    started: Option<Seq>,
    /// The deltas that end the path. They belong to a message of the user that follows them, for which they were written,
    /// or else to the change before them.
    deltas: Option<LastDeltas>,
}

/// The part of a log that was folded, to recognize it again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FoldedLog {
    n_records: usize,
    last: Option<IndexEntry>,
    damaged: u64,
}

/// The deltas at the end of a path, and the state without them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LastDeltas {
    first: Seq,
    /// The end of the newest operation, and the leaf after it.
    newest: Option<(Seq, Option<Seq>)>,
    leaf: Option<Seq>,
}

impl Operations {
    /// Folds a whole log.
    #[cfg(test)]
    pub(crate) fn of(state: &SessionState) -> Self {
        let mut operations = Self::default();
        operations.extend(state);
        operations
    }

    /// Folds the records that a log has beyond those that are folded; all of them, if it is another log.
    pub(crate) fn extend(&mut self, state: &SessionState) {
        if !self.is_beginning_of(state) {
            *self = Self::default();
        }
        let mut start = self.folded.n_records;
        if let Some((at, leaf)) = last_jump(state, start, self.leaf) {
            *self = Self::default();
            // Where the leaf jumped between paths, operations before the jump are those on the path that continues.
            for seq in state.path_to(leaf) {
                self.path_record(seq, state.entry(seq));
            }
            self.end_line();
            self.leaf = leaf;
            start = at;
        }
        for (at, entry) in state.entries().iter().enumerate().skip(start) {
            let seq = Seq(at as u64);
            match entry.kind() {
                Some(RecordKind::Leaf) => {
                    if let Some((to, cause)) = state.leaf_move(seq) {
                        self.move_leaf(seq, to, cause);
                    }
                }
                Some(kind) if kind.scope() == RecordScope::Path => {
                    self.path_record(seq, Some(*entry));
                }
                _ => {}
            }
        }
        self.folded = FoldedLog::of(state, state.entries().len());
    }

    /// Returns whether exactly the records of a log are folded.
    pub(crate) fn is_fold_of(&self, state: &SessionState) -> bool {
        self.folded == FoldedLog::of(state, state.entries().len())
    }

    /// Returns whether the log begins with the records that are folded.
    fn is_beginning_of(&self, state: &SessionState) -> bool {
        let n_records = self.folded.n_records;
        n_records <= state.entries().len() && self.folded == FoldedLog::of(state, n_records)
    }

    /// Returns all operations, the oldest first.
    pub(crate) fn spans(&self) -> &[OperationSpan] {
        &self.spans
    }

    /// Returns the operation that begins with a record.
    pub(crate) fn find(&self, first: Seq) -> Option<usize> {
        self.spans.binary_search_by_key(&first, |span| span.first).ok()
    }

    /// Returns the operation that an undo or a redo reversed.
    pub(crate) fn target(&self, at: usize) -> Option<&OperationSpan> {
        self.spans.get(self.spans.get(at)?.target?)
    }

    /// Returns the operations that can be undone, the next one first.
    pub(crate) fn undoable(&self) -> impl ExactSizeIterator<Item = &OperationSpan> {
        self.undo.iter().rev().map(|at| &self.spans[*at])
    }

    /// Returns the operations that can be redone, the next one first, each with the leaf that it leads to.
    pub(crate) fn redoable(&self) -> impl ExactSizeIterator<Item = (&OperationSpan, Option<Seq>)> {
        self.redo.iter().rev().map(|(at, to)| (&self.spans[*at], *to))
    }

    /// Returns the state of an operation; an undo or a redo has none.
    pub(crate) fn state(&self, at: usize) -> Option<OperationState> {
        if matches!(self.spans.get(at)?.kind, OperationKind::Undo | OperationKind::Redo) {
            return None;
        }
        // The operation that was undone last is redone first, so both lists are sorted.
        Some(if self.undo.binary_search(&at).is_ok() {
            OperationState::Applied
        } else if self.redo.binary_search_by(|(undone, _)| at.cmp(undone)).is_ok() {
            OperationState::Undone
        } else {
            OperationState::Dropped
        })
    }
}

impl FoldedLog {
    fn of(state: &SessionState, n_records: usize) -> Self {
        let last = n_records.checked_sub(1).and_then(|at| state.entries().get(at)).copied();
        Self { n_records, last, damaged: state.n_damaged() }
    }
}

/// Returns the last position from `start` on after which every record follows the active leaf or moves it by an operation,
/// and the leaf there; `None` if that holds from `start` on, where `leaf` is active.
fn last_jump(
    state: &SessionState,
    start: usize,
    mut leaf: Option<Seq>,
) -> Option<(usize, Option<Seq>)> {
    let mut jump = None;
    for (at, entry) in state.entries().iter().enumerate().skip(start) {
        let seq = Seq(at as u64);
        match entry.kind() {
            Some(RecordKind::Leaf) => {
                let Some((to, cause)) = state.leaf_move(seq) else { continue };
                leaf = to;
                if IMPORTS.contains(&cause) {
                    jump = Some((at + 1, leaf));
                }
            }
            Some(kind) if kind.scope() == RecordScope::Path => {
                if entry.parent() != leaf {
                    jump = Some((at, entry.parent()));
                }
                leaf = Some(seq);
            }
            _ => {}
        }
    }
    jump
}

/// The fold.
impl Operations {
    fn path_record(&mut self, seq: Seq, entry: Option<IndexEntry>) {
        let kind = entry.and_then(|entry| entry.kind());
        let Some((entry, kind)) = entry.zip(kind) else { return self.extend_newest(seq) };
        if kind == RecordKind::Delta {
            return self.delta(seq);
        }
        let deltas = self.deltas.take();
        if entry.has(IndexEntry::STARTS_CALL) {
            self.started = Some(seq);
        }
        if entry.role() == Some(Role::User) {
            let first = deltas.map_or(seq, |deltas| self.without(deltas));
            self.begin(first, seq, OperationKind::Turn);
            self.question = self.newest();
            self.in_call = false;
            return;
        }
        let is_answer = entry.role() == Some(Role::Assistant);
        match (kind, operation_of(kind, entry)) {
            _ if is_answer => self.answer(seq, entry.has(IndexEntry::CALLS_TOOLS)),
            (RecordKind::BranchSummary, _) if self.is_behind_move() => self.extend_newest(seq),
            (RecordKind::ToolCall, _)
                if self.started.is_some() && entry.parent() == self.started =>
            {
                self.extend_newest(seq);
            }
            (_, Some(operation)) if !self.in_call => {
                self.begin(seq, seq, operation);
                if entry.has(IndexEntry::IN_CONTEXT) && self.question.is_none() {
                    self.question = self.newest();
                }
            }
            _ => self.extend_newest(seq),
        }
    }

    /// Adds a delta to the newest operation, until a message of the user follows.
    fn delta(&mut self, seq: Seq) {
        let newest = self.spans.last().map(|newest| (newest.last, newest.after));
        let before = LastDeltas { first: seq, newest, leaf: self.leaf };
        self.deltas.get_or_insert(before);
        self.extend_newest(seq);
    }

    /// Takes deltas out of the newest operation, and returns the first one.
    fn without(&mut self, deltas: LastDeltas) -> Seq {
        if let Some((newest, (last, after))) = self.spans.last_mut().zip(deltas.newest) {
            (newest.last, newest.after) = (last, after);
        }
        self.leaf = deltas.leaf;
        deltas.first
    }

    /// Adds a message of the model to the turn that it answers, with everything that was recorded since the question.
    fn answer(&mut self, seq: Seq, calls_tools: bool) {
        if let Some(question) = self.question {
            // No move is among them, so they are the newest operations in force.
            self.spans.truncate(question + 1);
            let kept = self.undo.partition_point(|at| *at <= question);
            self.undo.truncate(kept);
            self.extend_newest(seq);
        } else if self.in_call {
            self.extend_newest(seq);
        } else {
            self.begin(seq, seq, OperationKind::Turn);
        }
        self.in_call = calls_tools;
        if !calls_tools {
            self.question = None;
        }
    }

    fn move_leaf(&mut self, seq: Seq, to: Option<Seq>, cause: &str) {
        self.end_line();
        let before = std::mem::replace(&mut self.leaf, to);
        let last_undone = self.undo.last().filter(|at| self.spans[**at].before == to);
        let next_redone = self.redo.last().filter(|(_, leaf)| *leaf == to);
        let (kind, target) = match cause {
            LeafMove::UNDO if last_undone.is_some() => (OperationKind::Undo, last_undone.copied()),
            LeafMove::REDO if next_redone.is_some() => {
                (OperationKind::Redo, next_redone.map(|(target, _)| *target))
            }
            LeafMove::RETRY => (OperationKind::Retry, None),
            LeafMove::RESTORE => (OperationKind::Restore, None),
            _ if before == to => return,
            _ => (OperationKind::Branch, None),
        };
        let span = OperationSpan { first: seq, last: seq, kind, before, after: to, target };
        self.spans.push(span);
        match (kind, target) {
            (OperationKind::Undo, Some(target)) => {
                self.undo.pop();
                self.redo.push((target, before));
            }
            (_, Some(target)) => {
                self.redo.pop();
                self.undo.push(target);
            }
            (_, None) => self.apply_newest(),
        }
        if kind == OperationKind::Retry {
            self.question = self.newest();
        }
    }

    fn begin(&mut self, first: Seq, last: Seq, kind: OperationKind) {
        let (before, after) = (self.leaf, Some(last));
        self.spans.push(OperationSpan { first, last, kind, before, after, target: None });
        self.apply_newest();
        self.leaf = after;
    }

    /// Puts the newest operation into force, which ends the line of redo.
    fn apply_newest(&mut self) {
        self.undo.extend(self.newest());
        self.redo.clear();
    }

    /// Adds a record to the newest operation. Before the first one it belongs to none and is never undone.
    fn extend_newest(&mut self, seq: Seq) {
        if let Some(newest) = self.spans.last_mut() {
            (newest.last, newest.after) = (seq, Some(seq));
        }
        self.leaf = Some(seq);
    }

    /// Ends everything that a later record could join.
    fn end_line(&mut self) {
        (self.deltas, self.question, self.in_call) = (None, None, false);
    }

    fn newest(&self) -> Option<usize> {
        self.spans.len().checked_sub(1)
    }

    fn is_behind_move(&self) -> bool {
        let newest = self.spans.last();
        newest.is_some_and(|newest| {
            matches!(newest.kind, OperationKind::Branch | OperationKind::Restore)
                && newest.first == newest.last
        })
    }
}

/// Returns the kind of operation that a record begins, or `None` for one that belongs to the record before it.
fn operation_of(kind: RecordKind, entry: IndexEntry) -> Option<OperationKind> {
    match kind {
        RecordKind::Message | RecordKind::ToolCall | RecordKind::BranchSummary => {
            Some(OperationKind::Turn)
        }
        RecordKind::Custom
            if entry.has(IndexEntry::IN_CONTEXT) || entry.has(IndexEntry::STARTS_CALL) =>
        {
            Some(OperationKind::Turn)
        }
        RecordKind::Compaction => Some(OperationKind::Compaction),
        RecordKind::Goal if !entry.has(IndexEntry::BY_MARKER) => Some(OperationKind::Goal),
        RecordKind::ContextEntry if !entry.has(IndexEntry::BY_HOOK) => Some(OperationKind::Entry),
        RecordKind::Pin => Some(OperationKind::Pin),
        RecordKind::ModeChange => Some(OperationKind::Mode),
        _ => None,
    }
}
