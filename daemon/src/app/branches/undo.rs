//! `session.undo` and `session.redo`: moving back and forth along the operations of a session.
//!
//! Each undone or redone operation is one step of a move. A call means the operation that is next when it arrives, or the one
//! that the client names: if another one is next when the leaf moves, nothing happens.

use std::sync::Arc;

use ollm_protocol::content::{FilePlan, LeafMove};
use ollm_protocol::methods::session::branches::{SessionUndoParams, SessionUndoResult};
use ollm_protocol::{Seq, SessionId, method};
use tokio_util::sync::CancellationToken;

use super::leaf_move::{MoveCall, Moved, PlannedMove, RecordedMove, carry_out};
use super::operations::{ChangeCounts, draft, with_contents};
use crate::app::change::{View, preview};
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, mark_before, take_key};
use crate::app::error::{AppError, Result};
use crate::app::put_back::FilesRequest;
use crate::session::operations::Operations;
use crate::session::{IdempotencyKey, SessionError};

/// The most operations of one call.
const MAX_STEPS: u32 = 1000;

/// The direction along the operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Back,
    Forward,
}

/// The operations of a planned call.
struct PlannedSteps {
    /// The first record of each.
    operations: Vec<Seq>,
    /// The number of operations that can be undone and redone after the call.
    counts_after: (u64, u64),
}

/// The view of a call: the session and its operations.
type OperationsView<'a> = View<'a, Arc<Operations>>;

impl Direction {
    /// Returns the next operations, each by its first record with the leaf to which the step leads.
    fn next(self, operations: &Operations) -> Vec<(Seq, Option<Seq>)> {
        match self {
            Self::Back => operations.undoable().map(|span| (span.first, span.before)).collect(),
            Self::Forward => operations.redoable().map(|(span, to)| (span.first, to)).collect(),
        }
    }

    /// Plans the steps of a call along operations of which the first one is `meant`.
    fn plan(
        self,
        view: &OperationsView<'_>,
        n_steps: usize,
        meant: Option<Seq>,
    ) -> Result<(PlannedMove, PlannedSteps)> {
        let (verb, done, cause) = match self {
            Self::Back => ("undo", "undone", LeafMove::UNDO),
            Self::Forward => ("redo", "redone", LeafMove::REDO),
        };
        let mut next = self.next(view.fold);
        let refusal = match next.len() {
            0 => Some(format!("there is nothing to {verb}")),
            n_possible if n_possible < n_steps => Some(format!("only {n_possible} can be {done}")),
            _ => None,
        };
        if let Some(problem) = refusal {
            return Err(AppError::invalid("steps", problem));
        }
        if next.first().map(|(first, _)| *first) != meant {
            if !next.iter().any(|(first, _)| Some(*first) == meant) {
                let problem = format!("is not the first record of an operation that can be {done}");
                return Err(AppError::invalid("operation", problem));
            }
            return Err(SessionError::LeafMoved { id: view.state.id() }.into());
        }
        next.truncate(n_steps);
        let (operations, steps) = next.into_iter().unzip();
        let ((undoable, redoable), n_steps) = (counts(view.fold), n_steps as u64);
        let counts_after = match self {
            Self::Back => (undoable - n_steps, redoable + n_steps),
            Self::Forward => (undoable + n_steps, redoable - n_steps),
        };
        let planned = PlannedMove::by(view.state, steps, cause);
        Ok((planned, PlannedSteps { operations, counts_after }))
    }
}

/// Undoes operations (`session.undo`). Canceling `left` ends the call as long as files can be taken back.
///
/// **Errors**: `Conflict` while a turn answers; `Invalid` if there are not as many operations; `LeafMoved` if another
/// operation is newer than the one that the call means.
pub(crate) async fn undo(
    core: Arc<Core>,
    mut params: SessionUndoParams,
    left: CancellationToken,
) -> Result<SessionUndoResult> {
    let key = take_key::<method::SessionUndo>(&mut params, |params| &mut params.key)?;
    step(&core, params, Direction::Back, key, left).await
}

/// Redoes operations (`session.redo`).
///
/// **Errors**: as [`undo`].
pub(crate) async fn redo(
    core: Arc<Core>,
    mut params: SessionUndoParams,
    left: CancellationToken,
) -> Result<SessionUndoResult> {
    let key = take_key::<method::SessionRedo>(&mut params, |params| &mut params.key)?;
    step(&core, params, Direction::Forward, key, left).await
}

async fn step(
    core: &Arc<Core>,
    params: SessionUndoParams,
    direction: Direction,
    key: Option<IdempotencyKey>,
    left: CancellationToken,
) -> Result<SessionUndoResult> {
    let SessionUndoParams { session_id: id, steps, operation, files, plan_id, .. } = params;
    let n_steps = steps.unwrap_or(1);
    if !(1..=MAX_STEPS).contains(&n_steps) {
        return Err(AppError::invalid("steps", format!("must lie between 1 and {MAX_STEPS}")));
    }
    let n_steps = n_steps as usize;
    let files = FilesRequest::of(files, plan_id)?;
    let next = move |view: &OperationsView<'_>| Ok(direction.next(view.fold).first().copied());
    let next = blocking(core, move |core| preview(core, id, next)).await?;
    let meant = operation.or(next.map(|(first, _)| first));
    let before = match direction {
        Direction::Back => MarkedChange::Undo,
        Direction::Forward => MarkedChange::Redo,
    };
    let mark = mark_before(&core.clock, None, before);
    let call = MoveCall { id, key, mark, files, dry_run: false, left };
    let plan = move |view: &OperationsView<'_>| direction.plan(view, n_steps, meant);
    let moved = carry_out(core, call, plan).await?;
    blocking(core, move |core| match moved {
        Moved::Previewed(leaf, steps, files) => {
            let (undoable, redoable) = steps.counts_after;
            let result =
                SessionUndoResult { leaf, undoable, redoable, files, ..Default::default() };
            with_operations(core, id, &steps.operations, result)
        }
        Moved::Done(first, files) => done(core, id, first, files),
    })
    .await
}

/// Returns the result of a call whose first record is given, with whether an earlier call wrote it. Blocks on the disk.
fn done(
    core: &Core,
    id: SessionId,
    first: Option<(Seq, bool)>,
    files: Option<FilePlan>,
) -> Result<SessionUndoResult> {
    let (first, duplicate) = first.expect("a call has at least one step");
    let RecordedMove { steps, to: leaf, .. } = RecordedMove::read(core, id, first)?;
    let (operations, undoable, redoable) = core.sessions.with(id, |live| {
        let operations = core.cache.operations(live.state());
        let target = |seq: &Seq| Some(operations.target(operations.find(*seq)?)?.first);
        let (undoable, redoable) = counts(&operations);
        (steps.iter().filter_map(target).collect::<Vec<_>>(), undoable, redoable)
    })?;
    let result =
        SessionUndoResult { leaf, undoable, redoable, files, duplicate, ..Default::default() };
    with_operations(core, id, &operations, result)
}

/// Returns the number of operations that can be undone, and redone.
fn counts(operations: &Operations) -> (u64, u64) {
    (operations.undoable().len() as u64, operations.redoable().len() as u64)
}

/// Adds operations, each by its first record, to a result. Blocks on the disk.
fn with_operations(
    core: &Core,
    id: SessionId,
    firsts: &[Seq],
    result: SessionUndoResult,
) -> Result<SessionUndoResult> {
    let drafts = core.sessions.with(id, |live| {
        let operations = core.cache.operations(live.state());
        let found = firsts.iter().filter_map(|first| operations.find(*first));
        let mut counts = ChangeCounts::default();
        found.map(|at| draft(live.state(), &operations, at, &mut counts)).collect()
    })?;
    Ok(SessionUndoResult { operations: with_contents(core, id, drafts)?, ..result })
}
