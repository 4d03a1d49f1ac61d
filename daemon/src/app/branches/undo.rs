//! `session.undo` and `session.redo`: moving back and forth along the operations of a session.
//!
//! Each undone or redone operation is one `leaf` record, and all of a call are one write: after a crash either all of
//! them are in the log or none.

use std::sync::Arc;

use ollm_protocol::content::{LeafMove, RecordBody};
use ollm_protocol::methods::session::branches::{SessionUndoParams, SessionUndoResult};
use ollm_protocol::{Seq, SessionId, method};

use super::branch::append;
use super::check_no_turn;
use super::operations::{draft, with_contents};
use crate::app::core::{Core, blocking};
use crate::app::drafts::{take_key, uncounted};
use crate::app::error::{AppError, Result};
use crate::app::partial::settle;
use crate::session::operations::Operations;
use crate::session::{IdempotencyKey, SessionError, SessionState};

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

/// A move that was planned for a state of the session.
struct UndoPlan {
    leaf: Option<Seq>,
    /// The leaf after each step.
    moves: Vec<Option<Seq>>,
    /// The operation of each step, by its first record.
    operations: Vec<Seq>,
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
    let SessionUndoParams { session_id: id, steps, .. } = params;
    let n_steps = steps.unwrap_or(1);
    if !(1..=MAX_STEPS).contains(&n_steps) {
        return Err(AppError::invalid("steps", format!("must lie between 1 and {MAX_STEPS}")));
    }
    let n_steps = n_steps as usize;
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
            core.sessions.with(id, |live| plan(live.state(), n_steps, direction).map(Some))?
        })
        .await?;
        let appended = match planned {
            // Without records, the write only compares the key and its payload.
            None => core.sessions.append(id, Vec::new(), key.clone())?.await?,
            Some(UndoPlan { leaf, moves, operations }) => {
                if wanted.as_ref().is_some_and(|wanted| *wanted != operations) {
                    // The client has not seen the operation that it would undo now.
                    return Err(SessionError::LeafMoved { id }.into());
                }
                let cause =
                    if direction == Direction::Back { LeafMove::UNDO } else { LeafMove::REDO };
                let draft =
                    |to| uncounted(RecordBody::Leaf(LeafMove { to, cause: cause.to_owned() }));
                let drafts = moves.into_iter().map(draft).collect();
                wanted = Some(operations);
                match append(core, id, leaf, drafts, key.clone()).await {
                    Err(AppError::Session(SessionError::LeafMoved { .. })) => continue,
                    appended => appended?,
                }
            }
        };
        let (first, duplicate) = (appended.seq, appended.duplicate);
        return blocking(core, move |core| result(core, id, (first, n_steps), duplicate)).await;
    }
    Err(SessionError::LeafMoved { id }.into())
}

/// Plans the moves of a call.
fn plan(state: &SessionState, n_steps: usize, direction: Direction) -> Result<UndoPlan> {
    let operations = Operations::of(state);
    let mut steps: Vec<(Seq, Option<Seq>)> = match direction {
        Direction::Back => operations.undoable().map(|span| (span.first, span.before)).collect(),
        Direction::Forward => operations.redoable().map(|(span, to)| (span.first, to)).collect(),
    };
    let (verb, done) = match direction {
        Direction::Back => ("undo", "undone"),
        Direction::Forward => ("redo", "redone"),
    };
    match steps.len() {
        0 => return Err(AppError::invalid("steps", format!("there is nothing to {verb}"))),
        n if n < n_steps => {
            let problem = format!("only {n} can be {done}");
            return Err(AppError::invalid("steps", problem));
        }
        _ => steps.truncate(n_steps),
    }
    let (operations, moves) = steps.into_iter().unzip();
    Ok(UndoPlan { leaf: state.leaf(), moves, operations })
}

/// Returns the result of a call that recorded its moves from `first` on. Blocks on the disk.
fn result(
    core: &Core,
    id: SessionId,
    (first, n_steps): (Seq, usize),
    duplicate: bool,
) -> Result<SessionUndoResult> {
    let (mut result, drafts) = core.sessions.with(id, |live| {
        let operations = Operations::of(live.state());
        let states = operations.states();
        let moves = (0..n_steps).filter_map(|step| operations.find(Seq(first.0 + step as u64)));
        let targets = moves.filter_map(|at| operations.find(operations.target(at)?.first));
        let drafts: Vec<_> =
            targets.map(|at| draft(live.state(), &operations, &states, at)).collect();
        let result = SessionUndoResult {
            leaf: live.state().leaf(),
            operations: Vec::new(),
            undoable: operations.undoable().len() as u64,
            redoable: operations.redoable().len() as u64,
            files: None,
            duplicate,
        };
        (result, drafts)
    })?;
    result.operations = with_contents(core, id, drafts)?;
    Ok(result)
}
