//! The operations of a session follow from its records alone, and undo and redo are exact.

use ollm_protocol::content::{
    Close, CloseReason, LeafMove, OperationKind as Kind, OperationState, RecordBody, RecordKind,
    RecordScope, Role,
};
use ollm_protocol::{Seq, Timestamp};
use proptest::prelude::*;

use super::new_session;
use crate::session::index::{IndexEntry, ScannedRecord};
use crate::session::operations::Operations;
use crate::session::state::SessionState;

/// A log in memory, whose records are kept to be folded again.
struct MemoryLog {
    state: SessionState,
    records: Vec<(IndexEntry, Option<RecordBody>)>,
}

/// A record of a test: the kind, and the role and flags that the fold of operations looks at.
#[derive(Clone, Copy, Debug)]
enum Step {
    User,
    Answer,
    Calls,
    ToolResult,
    Of(RecordKind, u16),
}

/// Records without meaning for the user belong to what is before them.
const USAGE: Step = Step::Of(RecordKind::Usage, 0);
const DELTA: Step = Step::Of(RecordKind::Delta, 0);
const EPOCH: Step = Step::Of(RecordKind::Epoch, IndexEntry::OPENS_EPOCH);
const PIN: Step = Step::Of(RecordKind::Pin, 0);
const GOAL: Step = Step::Of(RecordKind::Goal, 0);
const MARKERS: Step = Step::Of(RecordKind::Goal, IndexEntry::BY_MARKER);
const MODE: Step = Step::Of(RecordKind::ModeChange, 0);
const COMPACTION: Step = Step::Of(RecordKind::Compaction, IndexEntry::OPENS_EPOCH);
const ENTRY: Step = Step::Of(RecordKind::ContextEntry, 0);
const HOOK_ENTRY: Step = Step::Of(RecordKind::ContextEntry, IndexEntry::BY_HOOK);
const NOTE: Step = Step::Of(RecordKind::Custom, IndexEntry::IN_CONTEXT);
const START: Step = Step::Of(RecordKind::Custom, IndexEntry::STARTS_CALL);
const LABEL: Step = Step::Of(RecordKind::Label, 0);
const SUMMARY: Step = Step::Of(RecordKind::BranchSummary, 0);
const ALL: [Step; 18] = [
    Step::User,
    Step::Answer,
    Step::Calls,
    Step::ToolResult,
    USAGE,
    DELTA,
    EPOCH,
    PIN,
    GOAL,
    MARKERS,
    MODE,
    COMPACTION,
    ENTRY,
    HOOK_ENTRY,
    NOTE,
    START,
    LABEL,
    SUMMARY,
];

impl MemoryLog {
    fn new() -> Self {
        let mut log =
            Self { state: SessionState::new(new_session().header.session_id), records: Vec::new() };
        log.push(RecordKind::Session, None, 0, None, None);
        log
    }

    fn of(steps: &[Step]) -> Self {
        let mut log = Self::new();
        for step in steps {
            log.record(*step);
        }
        log
    }

    fn push(
        &mut self,
        kind: RecordKind,
        role: Option<Role>,
        flags: u16,
        parent: Option<Seq>,
        body: Option<RecordBody>,
    ) -> Seq {
        let entry = IndexEntry::new((self.records.len() as u64, 1), parent, kind, role, 5, flags);
        self.records.push((entry, body.clone()));
        let seq = Seq(self.records.len() as u64 - 1);
        self.state.apply(&scanned(seq, entry, body));
        seq
    }

    fn record(&mut self, step: Step) -> Seq {
        let (kind, role, flags) = match step {
            Step::User => (RecordKind::Message, Some(Role::User), 0),
            Step::Answer => (RecordKind::Message, Some(Role::Assistant), 0),
            Step::Calls => (RecordKind::Message, Some(Role::Assistant), IndexEntry::CALLS_TOOLS),
            Step::ToolResult => (RecordKind::ToolCall, None, 0),
            Step::Of(kind, flags) => (kind, None, flags),
        };
        let parent = (kind.scope() == RecordScope::Path).then(|| self.state.leaf()).flatten();
        self.push(kind, role, flags, parent, None)
    }

    fn move_leaf(&mut self, to: Option<Seq>, cause: &str) {
        let body = RecordBody::Leaf(LeafMove { to, cause: cause.to_owned() });
        self.push(RecordKind::Leaf, None, 0, None, Some(body));
    }

    fn operations(&self) -> Operations {
        Operations::of(&self.state)
    }

    /// Undoes the newest operation; returns false if there is none.
    fn undo(&mut self) -> bool {
        let to = self.operations().undoable().next().map(|span| span.before);
        to.map(|to| self.move_leaf(to, LeafMove::UNDO)).is_some()
    }

    fn redo(&mut self) -> bool {
        let to = self.operations().redoable().next().map(|(_, to)| to);
        to.map(|to| self.move_leaf(to, LeafMove::REDO)).is_some()
    }

    fn kinds(&self) -> Vec<(Kind, u64, u64)> {
        let spans = self.operations();
        spans.spans().iter().map(|span| (span.kind, span.first.0, span.last.0)).collect()
    }

    /// Folds the log again, as a start does.
    fn folded_again(&self) -> SessionState {
        let mut state = SessionState::new(self.state.id());
        for (at, (entry, body)) in self.records.iter().enumerate() {
            state.apply(&scanned(Seq(at as u64), *entry, body.clone()));
        }
        state
    }
}

fn scanned(seq: Seq, entry: IndexEntry, body: Option<RecordBody>) -> ScannedRecord {
    let at = Timestamp::from_unix_ms(1_700_000_000_000 + seq.0 as i64);
    ScannedRecord { seq, at, entry, key: None, body, lacks_body: false }
}

#[test]
fn records_that_belong_together_are_one_operation() {
    let check = |steps: &[Step], expect: &[(Kind, u64, u64)]| {
        assert_eq!(MemoryLog::of(steps).kinds(), expect, "{steps:?}");
    };
    let (user, answer, calls, result) = (Step::User, Step::Answer, Step::Calls, Step::ToolResult);
    check(&[], &[]);
    check(&[user, EPOCH, answer, USAGE, MARKERS], &[(Kind::Turn, 1, 5)]);
    check(&[user, answer, user, answer], &[(Kind::Turn, 1, 2), (Kind::Turn, 3, 4)]);
    // What came between a question and its answer is undone with the turn.
    check(&[user, COMPACTION, PIN, answer], &[(Kind::Turn, 1, 4)]);
    check(&[user, calls, PIN, result, calls, result, answer], &[(Kind::Turn, 1, 7)]);
    check(&[user, PIN, GOAL], &[(Kind::Turn, 1, 1), (Kind::Pin, 2, 2), (Kind::Goal, 3, 3)]);
    let changes = [
        (Kind::Turn, 1, 2),
        (Kind::Compaction, 3, 3),
        (Kind::Mode, 4, 4),
        (Kind::Entry, 5, 5),
        (Kind::Turn, 6, 7),
    ];
    check(&[user, answer, COMPACTION, MODE, ENTRY, user, answer], &changes);
    // Recalled messages are recorded before the message that brought them back; other deltas after a change.
    check(&[user, answer, DELTA, DELTA, user, answer], &[(Kind::Turn, 1, 2), (Kind::Turn, 3, 6)]);
    check(&[GOAL, DELTA, PIN], &[(Kind::Goal, 1, 2), (Kind::Pin, 3, 3)]);
    // Without a question, each answer and each result of a tool is a turn of its own.
    check(&[answer, result], &[(Kind::Turn, 1, 1), (Kind::Turn, 2, 2)]);
    check(&[EPOCH, USAGE], &[]);
    check(&[user, answer, HOOK_ENTRY, ENTRY], &[(Kind::Turn, 1, 3), (Kind::Entry, 4, 4)]);
    check(&[user, NOTE, answer], &[(Kind::Turn, 1, 3)]);
    // A tool call joins its start if it directly follows it.
    check(
        &[user, answer, START, result, START],
        &[(Kind::Turn, 1, 2), (Kind::Turn, 3, 4), (Kind::Turn, 5, 5)],
    );
    check(&[START, PIN, result], &[(Kind::Turn, 1, 1), (Kind::Pin, 2, 2), (Kind::Turn, 3, 3)]);
}

#[test]
fn undo_walks_back_redo_walks_forward_and_an_operation_ends_the_redo() {
    let mut log = MemoryLog::of(&[Step::User, Step::Answer, GOAL, Step::User, Step::Answer]);
    let leaf = |log: &MemoryLog| log.state.leaf().map(|leaf| leaf.0);
    assert!(!log.redo());
    assert!(log.undo());
    assert_eq!(leaf(&log), Some(3));
    assert!(log.undo() && log.undo());
    assert_eq!(leaf(&log), None);
    assert!(!log.undo(), "nothing is left");
    assert!(log.redo() && log.redo());
    assert_eq!(leaf(&log), Some(3));
    // The head of a context is no operation of the user.
    log.record(EPOCH);
    assert!(log.redo());
    assert_eq!(leaf(&log), Some(5));
    assert!(!log.redo());
    assert!(log.undo());
    log.record(PIN);
    assert!(!log.redo(), "a new operation took its place");
    let operations = log.operations();
    let dropped = operations.find(Seq(4)).expect("the second turn");
    assert_eq!(operations.state(dropped), Some(OperationState::Dropped));
    assert_eq!(operations.undoable().len(), 3);
    assert_eq!(operations.undoable().next().map(|span| span.kind), Some(Kind::Pin));
}

#[test]
fn moves_are_operations_and_undone_like_others() {
    let mut log = MemoryLog::of(&[Step::User, Step::Answer, Step::User, Step::Answer]);
    log.move_leaf(Some(Seq(2)), "branch");
    log.record(SUMMARY);
    assert_eq!(log.kinds().last(), Some(&(Kind::Branch, 5, 6)));
    assert!(log.undo());
    assert_eq!(log.state.leaf(), Some(Seq(4)));
    assert!(log.redo());
    assert_eq!(log.state.leaf(), Some(Seq(6)));
    // An answer is given again: the one before comes back first.
    let mut log = MemoryLog::of(&[Step::User, Step::Answer]);
    log.move_leaf(Some(Seq(1)), LeafMove::RETRY);
    log.record(PIN);
    log.record(Step::Answer);
    assert_eq!(log.kinds(), [(Kind::Turn, 1, 2), (Kind::Retry, 3, 5)]);
    assert!(log.undo());
    assert_eq!(log.state.leaf(), Some(Seq(2)));
    // A move to the same record changes nothing, so it is no operation.
    log.move_leaf(Some(Seq(2)), "branch");
    assert_eq!(log.operations().undoable().len(), 1);
}

#[test]
fn operations_before_an_import_or_a_fork_are_those_of_its_path() {
    for cause in [LeafMove::IMPORT, LeafMove::FORK] {
        let mut log = MemoryLog::of(&[Step::User, Step::Answer, Step::User, Step::Answer]);
        log.move_leaf(Some(Seq(2)), "branch");
        log.record(Step::User);
        log.move_leaf(Some(Seq(4)), cause);
        assert_eq!(log.kinds(), [(Kind::Turn, 1, 2), (Kind::Turn, 3, 4)]);
        log.record(PIN);
        assert!(log.undo() && log.undo());
        assert_eq!(log.state.leaf(), Some(Seq(2)));
        assert!(log.redo());
        assert_eq!(log.state.leaf(), Some(Seq(4)));
    }
    // Files of other programs have branches without moves.
    let mut log = MemoryLog::of(&[Step::User, Step::Answer, Step::User]);
    log.push(RecordKind::Message, Some(Role::User), 0, Some(Seq(2)), None);
    assert_eq!(log.kinds(), [(Kind::Turn, 1, 2), (Kind::Turn, 4, 4)]);
    assert!(log.undo());
    assert_eq!(log.state.leaf(), Some(Seq(2)));
}

#[test]
fn unexplained_undo_is_a_move_that_can_be_undone() {
    let mut log = MemoryLog::of(&[Step::User, Step::Answer, Step::User, Step::Answer, Step::User]);
    log.move_leaf(Some(Seq(1)), LeafMove::UNDO);
    assert_eq!(log.kinds().last(), Some(&(Kind::Branch, 6, 6)));
    assert!(log.undo());
    assert_eq!(log.state.leaf(), Some(Seq(5)));
    log.push(
        RecordKind::Close,
        None,
        0,
        None,
        Some(RecordBody::Close(Close { reason: CloseReason::Client })),
    );
    assert_eq!(log.operations().redoable().len(), 1, "closing a session undoes nothing");
}

#[derive(Clone, Debug)]
enum Action {
    Record(Step),
    Branch(usize),
    Retry(usize),
    Undo(usize),
    Redo(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => proptest::sample::select(&ALL[..]).prop_map(Action::Record),
        1 => any::<usize>().prop_map(Action::Branch),
        1 => any::<usize>().prop_map(Action::Retry),
        3 => (1..4_usize).prop_map(Action::Undo),
        2 => (1..4_usize).prop_map(Action::Redo),
    ]
}

/// Returns a record of the tree, or the beginning.
fn some_record(log: &MemoryLog, pick: usize) -> Option<Seq> {
    let is_on_tree =
        |entry: &IndexEntry| entry.kind().is_some_and(|kind| kind.scope() == RecordScope::Path);
    let entries = log.state.entries().iter().enumerate();
    let tree: Vec<Seq> =
        entries.filter(|(_, entry)| is_on_tree(entry)).map(|(at, _)| Seq(at as u64)).collect();
    let place = pick % (tree.len() + 1);
    tree.get(place).copied()
}

/// Checks what must hold after any sequence of records and moves.
fn check_laws(log: &mut MemoryLog) {
    let (operations, leaf) = (log.operations(), log.state.leaf());
    let again = log.folded_again();
    assert_eq!((again.leaf(), &Operations::of(&again)), (leaf, &operations));
    let firsts: Vec<_> = operations.spans().iter().map(|span| span.first).collect();
    assert!(firsts.is_sorted_by(|one, next| one < next), "each has a record of its own");
    for span in operations.spans() {
        assert!(span.first <= span.last, "{span:?}");
    }
    // Undo, then redo, is the identity.
    let (undoable, redoable) = (operations.undoable().len(), operations.redoable().len());
    let n_records = log.records.len();
    if log.undo() {
        assert_eq!(log.operations().redoable().len(), redoable + 1);
        assert!(log.redo());
        assert_eq!(log.state.leaf(), leaf);
        let after = log.operations();
        assert_eq!((after.undoable().len(), after.redoable().len()), (undoable, redoable));
    }
    // All the way back and forward again.
    let mut leaves = Vec::new();
    loop {
        leaves.push(log.state.leaf());
        if !log.undo() {
            break;
        }
    }
    assert_eq!(leaves.len(), undoable + 1);
    for leaf in leaves.iter().rev().skip(1) {
        assert!(log.redo());
        assert_eq!(log.state.leaf(), *leaf);
    }
    assert_eq!(log.operations().redoable().len(), redoable);
    // The checks themselves are not part of the history that is checked.
    log.records.truncate(n_records);
    log.state = log.folded_again();
}

proptest! {
    #[test]
    fn any_history_is_undone_and_redone_exactly(
        actions in proptest::collection::vec(action(), 0..40),
    ) {
        let mut log = MemoryLog::new();
        for action in actions {
            match action {
                Action::Record(step) => {
                    log.record(step);
                }
                Action::Branch(pick) => {
                    let to = some_record(&log, pick);
                    log.move_leaf(to, "branch");
                }
                Action::Retry(pick) => {
                    let to = some_record(&log, pick);
                    log.move_leaf(to, LeafMove::RETRY);
                }
                Action::Undo(steps) => (0..steps).for_each(|_| {
                    log.undo();
                }),
                Action::Redo(steps) => (0..steps).for_each(|_| {
                    log.redo();
                }),
            }
        }
        check_laws(&mut log);
    }

    #[test]
    fn operations_folded_bit_by_bit_are_those_folded_in_one_go(
        actions in proptest::collection::vec((action(), any::<bool>(), 0..10_u8), 0..40),
    ) {
        let (mut log, mut folded) = (MemoryLog::new(), Operations::default());
        for (at, (action, is_looked_at, chance)) in actions.into_iter().enumerate() {
            match action {
                Action::Record(step) if chance > 0 => drop(log.record(step)),
                // A record of another program, which follows another one than the leaf.
                Action::Record(_) => {
                    let parent = some_record(&log, at);
                    log.push(RecordKind::Message, Some(Role::User), 0, parent, None);
                }
                Action::Branch(pick) => {
                    let cause = if chance < 5 { LeafMove::IMPORT } else { "branch" };
                    let to = some_record(&log, pick);
                    log.move_leaf(to, cause);
                }
                Action::Retry(pick) => {
                    let to = some_record(&log, pick);
                    log.move_leaf(to, LeafMove::RETRY);
                }
                Action::Undo(steps) => (0..steps).for_each(|_| {
                    log.undo();
                }),
                Action::Redo(steps) => (0..steps).for_each(|_| {
                    log.redo();
                }),
            }
            if is_looked_at {
                folded.extend(&log.state);
                prop_assert_eq!(&folded, &log.operations());
            }
        }
        // A log with other records is folded anew.
        let other = MemoryLog::of(&[Step::User]);
        folded.extend(&other.state);
        prop_assert_eq!(folded, other.operations());
    }
}
