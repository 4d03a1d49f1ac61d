//! `session.undo` and `session.redo`: moving back and forth along the operations of a session.
//!
//! Each undone or redone operation is one `leaf` record, and all of a call are one write with a snapshot before them:
//! after a crash either all of them are in the log or none. With `files`, the files that the operations wrote follow
//! (`app::put_back`).

use std::sync::Arc;

use ollm_protocol::content::{FilePlan, LeafMove, RecordBody, RecordKind};
use ollm_protocol::methods::session::branches::{SessionUndoParams, SessionUndoResult};
use ollm_protocol::{PlanId, Seq, SessionId, method};

use super::branch::append;
use super::operations::{ChangeCounts, draft, with_contents};
use super::{check_no_turn, path_change};
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, snapshot_mark, take_key, uncounted};
use crate::app::error::{AppError, Result};
use crate::app::partial::settle;
use crate::app::put_back::{self, FileMove, FilesRequest};
use crate::session::index::IndexEntry;
use crate::session::{IdempotencyKey, NewRecord, SessionError, SessionState};

/// The most operations of one call.
const MAX_STEPS: u32 = 1000;
/// Attempts to move the leaf while the daemon's own records, such as context heads, move it.
const MAX_TRIES: usize = 8;

/// The direction along the operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Back,
    Forward,
}

impl Direction {
    /// Returns the cause of the moves, which is also that of the files.
    const fn cause(self) -> &'static str {
        match self {
            Self::Back => LeafMove::UNDO,
            Self::Forward => LeafMove::REDO,
        }
    }
}

/// A move that was planned for a state of the session.
struct UndoPlan {
    leaf: Option<Seq>,
    /// The leaf after each step.
    moves: Vec<Option<Seq>>,
    /// The operation of each step, by its first record.
    operations: Vec<Seq>,
}

impl UndoPlan {
    /// Returns the records of the move, with a snapshot before them.
    fn drafts(&self, core: &Core, direction: Direction) -> Vec<NewRecord> {
        let (cause, change) = match direction {
            Direction::Back => (LeafMove::UNDO, MarkedChange::Undo),
            Direction::Forward => (LeafMove::REDO, MarkedChange::Redo),
        };
        let draft = |to: &Option<Seq>| {
            uncounted(RecordBody::Leaf(LeafMove { to: *to, cause: cause.to_owned() }))
        };
        let mark = snapshot_mark(&core.clock, self.leaf, change);
        [mark].into_iter().chain(self.moves.iter().map(draft)).collect()
    }

    /// Returns the move that the files follow.
    fn file_move(&self, state: &SessionState, direction: Direction) -> FileMove {
        let to = self.moves.last().copied().flatten();
        let (added, removed) = path_change(state, self.leaf, to);
        let (id, leaf, cause) = (state.id(), self.leaf, direction.cause());
        FileMove { id, leaf, to, removed, added, cause }
    }
}

/// Undoes operations (`session.undo`).
///
/// **Errors**: `Conflict` while a turn answers; `Invalid` if there are not as many operations; `LeafMoved` if another
/// operation was recorded concurrently.
pub(crate) async fn undo(
    core: Arc<Core>,
    mut params: SessionUndoParams,
) -> Result<SessionUndoResult> {
    let key = take_key::<method::SessionUndo>(&mut params, |params| &mut params.key)?;
    step(&core, params, Direction::Back, key).await
}

/// Redoes operations (`session.redo`).
///
/// **Errors**: as [`undo`].
pub(crate) async fn redo(
    core: Arc<Core>,
    mut params: SessionUndoParams,
) -> Result<SessionUndoResult> {
    let key = take_key::<method::SessionRedo>(&mut params, |params| &mut params.key)?;
    step(&core, params, Direction::Forward, key).await
}

async fn step(
    core: &Arc<Core>,
    params: SessionUndoParams,
    direction: Direction,
    key: Option<IdempotencyKey>,
) -> Result<SessionUndoResult> {
    let SessionUndoParams { session_id: id, steps, files, plan_id, .. } = params;
    let n_steps = steps.unwrap_or(1);
    if !(1..=MAX_STEPS).contains(&n_steps) {
        return Err(AppError::invalid("steps", format!("must lie between 1 and {MAX_STEPS}")));
    }
    let n_steps = n_steps as usize;
    let files = FilesRequest::of(files, plan_id)?;
    files.wait_for_others(core, id).await;
    match files {
        FilesRequest::Skip => {}
        FilesRequest::Preview => {
            return blocking(core, move |core| preview(core, id, n_steps, direction)).await;
        }
        FilesRequest::Apply(plan_id) => {
            let step = (id, n_steps, direction);
            return blocking(core, move |core| apply(core, step, plan_id, key)).await;
        }
    }
    let mut wanted: Option<Vec<Seq>> = None;
    for _ in 0..MAX_TRIES {
        let used = key.clone();
        let planned = blocking(core, move |core| {
            settle(core, id)?;
            let is_known = |state: &SessionState| {
                used.as_ref().is_some_and(|key| state.key(&key.digest.key).is_some())
            };
            if core.sessions.with(id, |live| is_known(live.state()))? {
                return Ok(None);
            }
            check_no_turn(core, id)?;
            core.sessions.with(id, |live| plan(core, live.state(), n_steps, direction).map(Some))?
        })
        .await?;
        let appended = match planned {
            // Without records, the write only compares the key and its payload.
            None => core.sessions.append(id, Vec::new(), key.clone())?.await?,
            Some(plan) => {
                let drafts = plan.drafts(core, direction);
                let UndoPlan { leaf, operations, .. } = plan;
                if wanted.as_ref().is_some_and(|wanted| *wanted != operations) {
                    // The client has not seen the operation that it would undo now.
                    return Err(SessionError::LeafMoved { id }.into());
                }
                wanted = Some(operations);
                match append(core, id, leaf, drafts, key.clone()).await {
                    Err(AppError::Session(SessionError::LeafMoved { .. })) => continue,
                    appended => appended?,
                }
            }
        };
        let (first, duplicate) = (appended.seq, appended.duplicate);
        return blocking(core, move |core| result(core, id, (first, n_steps), (duplicate, None)))
            .await;
    }
    Err(SessionError::LeafMoved { id }.into())
}

/// Plans a call with its files, and changes nothing. Blocks on the disk.
fn preview(
    core: &Arc<Core>,
    id: SessionId,
    n_steps: usize,
    direction: Direction,
) -> Result<SessionUndoResult> {
    settle(core, id)?;
    let (file_move, mut result, drafts) = core.sessions.with(id, |live| {
        let state = live.state();
        let plan = plan(core, state, n_steps, direction)?;
        let operations = core.cache.operations(state);
        let targets = plan.operations.iter().filter_map(|first| operations.find(*first));
        let mut counts = ChangeCounts::default();
        let drafts: Vec<_> = targets.map(|at| draft(state, &operations, at, &mut counts)).collect();
        let (undoable, redoable) = (operations.undoable().len(), operations.redoable().len());
        let (undoable, redoable) = match direction {
            Direction::Back => (undoable - n_steps, redoable + n_steps),
            Direction::Forward => (undoable + n_steps, redoable - n_steps),
        };
        let file_move = plan.file_move(state, direction);
        let result = SessionUndoResult {
            leaf: file_move.to,
            operations: Vec::new(),
            undoable: undoable as u64,
            redoable: redoable as u64,
            files: None,
            duplicate: false,
        };
        Ok::<_, AppError>((file_move, result, drafts))
    })??;
    result.operations = with_contents(core, id, drafts)?;
    result.files = Some(put_back::preview(core, file_move)?);
    Ok(result)
}

/// Carries a call out together with the files of a preview. Blocks on the disk.
fn apply(
    core: &Arc<Core>,
    (id, n_steps, direction): (SessionId, usize, Direction),
    plan_id: PlanId,
    key: Option<IdempotencyKey>,
) -> Result<SessionUndoResult> {
    settle(core, id)?;
    let is_known =
        |state: &SessionState| key.as_ref().is_some_and(|key| state.key(&key.digest.key).is_some());
    if core.sessions.with(id, |live| is_known(live.state()))? {
        // Without records, the write only compares the key and its payload.
        let known = core.sessions.append(id, Vec::new(), key)?.wait()?;
        return result(core, id, (known.seq, n_steps), (true, None));
    }
    check_no_turn(core, id)?;
    let (plan, file_move) = core.sessions.with(id, |live| {
        let plan = plan(core, live.state(), n_steps, direction)?;
        let file_move = plan.file_move(live.state(), direction);
        Ok::<_, AppError>((plan, file_move))
    })??;
    let (appended, files) =
        put_back::apply(core, &file_move, plan_id, plan.drafts(core, direction), key)?;
    result(core, id, (appended.seq, n_steps), (appended.duplicate, Some(files)))
}

/// Plans the moves of a call.
fn plan(
    core: &Core,
    state: &SessionState,
    n_steps: usize,
    direction: Direction,
) -> Result<UndoPlan> {
    let operations = core.cache.operations(state);
    let (n_possible, verb, done) = match direction {
        Direction::Back => (operations.undoable().len(), "undo", "undone"),
        Direction::Forward => (operations.redoable().len(), "redo", "redone"),
    };
    if n_possible == 0 {
        return Err(AppError::invalid("steps", format!("there is nothing to {verb}")));
    }
    if n_possible < n_steps {
        return Err(AppError::invalid("steps", format!("only {n_possible} can be {done}")));
    }
    let steps: Vec<(Seq, Option<Seq>)> = match direction {
        Direction::Back => {
            operations.undoable().take(n_steps).map(|span| (span.first, span.before)).collect()
        }
        Direction::Forward => {
            operations.redoable().take(n_steps).map(|(span, to)| (span.first, to)).collect()
        }
    };
    let (operations, moves) = steps.into_iter().unzip();
    Ok(UndoPlan { leaf: state.leaf(), moves, operations })
}

/// Returns the result of a call whose records begin at `first`. Blocks on the disk.
fn result(
    core: &Core,
    id: SessionId,
    (first, n_steps): (Seq, usize),
    (duplicate, files): (bool, Option<FilePlan>),
) -> Result<SessionUndoResult> {
    let (mut result, drafts) = core.sessions.with(id, |live| {
        let operations = core.cache.operations(live.state());
        // Older logs have no snapshot before the moves.
        let is_mark = |entry: IndexEntry| entry.kind() == Some(RecordKind::Snapshot);
        let first =
            if live.state().entry(first).is_some_and(is_mark) { first.next() } else { first };
        let moves = (0..n_steps).filter_map(|step| operations.find(Seq(first.0 + step as u64)));
        let mut counts = ChangeCounts::default();
        let targets = moves.filter_map(|at| operations.find(operations.target(at)?.first));
        let drafts: Vec<_> =
            targets.map(|at| draft(live.state(), &operations, at, &mut counts)).collect();
        let result = SessionUndoResult {
            leaf: live.state().leaf(),
            operations: Vec::new(),
            undoable: operations.undoable().len() as u64,
            redoable: operations.redoable().len() as u64,
            files,
            duplicate,
        };
        (result, drafts)
    })?;
    result.operations = with_contents(core, id, drafts)?;
    Ok(result)
}
