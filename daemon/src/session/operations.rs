//! The operations of a session: its log, folded into changes of the active path that can be undone and redone.
//!
//! An operation is a run of records that belong together: a message of the user up to its answer, a compaction, a change
//! of goals, or a move of the leaf. Undo and redo work as in jj: each is a new `leaf` record, undoing again goes further
//! back, redo goes forward, and a new operation ends the line of redo. So the two stacks are a fold like everything else.
//!
//! **Invariants**: pure; equal logs have equal operations, live and after a restart. A move that this fold cannot explain,
//! of another program or behind damage, is an operation too and can be undone. FORMAT.md, "Operations".

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
    /// For an undo or a redo: the operation that it reversed.
    target: Option<usize>,
}

/// All operations of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operations {
    spans: Vec<OperationSpan>,
    /// The operations in force, as indices, the newest last.
    undo: Vec<usize>,
    /// The undone operations with the leaf that a redo moves to, the next one last.
    redo: Vec<(usize, Option<Seq>)>,
}

impl Operations {
    /// Folds a whole log.
    pub(crate) fn of(state: &SessionState) -> Self {
        let mut fold = OperationFold::default();
        let start = last_jump(state).map_or(0, |(at, leaf)| {
            // What comes before several paths were joined is undone along the path that goes on.
            for seq in state.path_to(leaf) {
                fold.path_record(seq, state.entry(seq));
            }
            fold.end_line();
            fold.leaf = leaf;
            at
        });
        for (at, entry) in state.entries().iter().enumerate().skip(start) {
            let seq = Seq(at as u64);
            match entry.kind() {
                Some(RecordKind::Leaf) => {
                    if let Some((to, cause)) = state.leaf_move(seq) {
                        fold.leaf(seq, to, cause);
                    }
                }
                Some(kind) if kind.scope() == RecordScope::Path => {
                    fold.path_record(seq, Some(*entry));
                }
                _ => {}
            }
        }
        fold.end_line();
        fold.done
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

    /// Returns the state of each operation; an undo or a redo has none.
    pub(crate) fn states(&self) -> Vec<Option<OperationState>> {
        let state_of = |span: &OperationSpan| match span.kind {
            OperationKind::Undo | OperationKind::Redo => None,
            _ => Some(OperationState::Dropped),
        };
        let mut states: Vec<_> = self.spans.iter().map(state_of).collect();
        self.undo.iter().for_each(|at| states[*at] = Some(OperationState::Applied));
        self.redo.iter().for_each(|(at, _)| states[*at] = Some(OperationState::Undone));
        states
    }
}

/// Returns the position after which every record follows the active leaf or moves it by an operation, and the leaf there;
/// `None` if that holds for the whole log.
fn last_jump(state: &SessionState) -> Option<(usize, Option<Seq>)> {
    let (mut leaf, mut jump) = (None, None);
    for (at, entry) in state.entries().iter().enumerate() {
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

/// The fold, with what the next record may continue.
#[derive(Default)]
struct OperationFold {
    done: Operations,
    /// The active leaf, without the deltas below.
    leaf: Option<Seq>,
    /// The operation of the newest unanswered message: the answer joins it, with everything since.
    question: Option<usize>,
    /// Whether the last message of the conversation calls tools whose results may follow.
    in_call: bool,
    /// The first and the last of the deltas that end the path. They belong to a message of the user that follows them, for
    /// which they were written, or else to the change before them.
    deltas: Option<(Seq, Seq)>,
}

impl OperationFold {
    fn path_record(&mut self, seq: Seq, entry: Option<IndexEntry>) {
        let kind = entry.and_then(|entry| entry.kind());
        let Some((entry, kind)) = entry.zip(kind) else { return self.extend(seq) };
        if kind == RecordKind::Delta {
            self.deltas = Some((self.deltas.map_or(seq, |(first, _)| first), seq));
            return;
        }
        if entry.role() == Some(Role::User) {
            let first = self.deltas.take().map_or(seq, |(first, _)| first);
            self.begin(first, seq, OperationKind::Turn);
            self.question = self.newest();
            self.in_call = false;
            return;
        }
        self.end_deltas();
        let is_answer = entry.role() == Some(Role::Assistant);
        match (kind, operation_of(kind, entry)) {
            _ if is_answer => self.answer(seq, entry.has(IndexEntry::CALLS_TOOLS)),
            (RecordKind::BranchSummary, _) if self.is_behind_move() => self.extend(seq),
            (_, Some(operation)) if !self.in_call => {
                self.begin(seq, seq, operation);
                if entry.has(IndexEntry::IN_CONTEXT) && self.question.is_none() {
                    self.question = self.newest();
                }
            }
            _ => self.extend(seq),
        }
    }

    /// Adds a message of the model to the turn that it answers, with everything that was recorded since the question.
    fn answer(&mut self, seq: Seq, calls_tools: bool) {
        if let Some(question) = self.question {
            // No move is among them, so they are the newest operations in force.
            self.done.spans.truncate(question + 1);
            self.done.undo.retain(|at| *at <= question);
            self.extend(seq);
        } else if self.in_call {
            self.extend(seq);
        } else {
            self.begin(seq, seq, OperationKind::Turn);
        }
        self.in_call = calls_tools;
        if !calls_tools {
            self.question = None;
        }
    }

    fn leaf(&mut self, seq: Seq, to: Option<Seq>, cause: &str) {
        self.end_line();
        let before = std::mem::replace(&mut self.leaf, to);
        let last_undone = self.done.undo.last().filter(|at| self.done.spans[**at].before == to);
        let next_redone = self.done.redo.last().filter(|(_, leaf)| *leaf == to);
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
        self.done.spans.push(span);
        match (kind, target) {
            (OperationKind::Undo, Some(target)) => {
                self.done.undo.pop();
                self.done.redo.push((target, before));
            }
            (_, Some(target)) => {
                self.done.redo.pop();
                self.done.undo.push(target);
            }
            (_, None) => self.apply_newest(),
        }
        if kind == OperationKind::Retry {
            self.question = self.newest();
        }
    }

    fn begin(&mut self, first: Seq, last: Seq, kind: OperationKind) {
        let (before, after) = (self.leaf, Some(last));
        self.done.spans.push(OperationSpan { first, last, kind, before, after, target: None });
        self.apply_newest();
        self.leaf = after;
    }

    /// Puts the newest operation into force, which ends the line of redo.
    fn apply_newest(&mut self) {
        self.done.undo.extend(self.newest());
        self.done.redo.clear();
    }

    /// Adds a record to the newest operation. Before the first one it belongs to none and is never undone.
    fn extend(&mut self, seq: Seq) {
        if let Some(newest) = self.done.spans.last_mut() {
            (newest.last, newest.after) = (seq, Some(seq));
        }
        self.leaf = Some(seq);
    }

    fn end_deltas(&mut self) {
        if let Some((_, last)) = self.deltas.take() {
            self.extend(last);
        }
    }

    /// Ends everything that a later record could join.
    fn end_line(&mut self) {
        self.end_deltas();
        (self.question, self.in_call) = (None, false);
    }

    fn newest(&self) -> Option<usize> {
        self.done.spans.len().checked_sub(1)
    }

    fn is_behind_move(&self) -> bool {
        let newest = self.done.spans.last();
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
        RecordKind::Custom if entry.has(IndexEntry::IN_CONTEXT) => Some(OperationKind::Turn),
        RecordKind::Compaction => Some(OperationKind::Compaction),
        RecordKind::Goal if !entry.has(IndexEntry::BY_MARKER) => Some(OperationKind::Goal),
        RecordKind::ContextEntry => Some(OperationKind::Entry),
        RecordKind::Pin => Some(OperationKind::Pin),
        RecordKind::ModeChange => Some(OperationKind::Mode),
        _ => None,
    }
}
