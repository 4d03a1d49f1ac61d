//! Moves of the leaf: the plan that branch, undo, redo and restore have in common, what carries it out, and what the log
//! says of it afterwards.
//!
//! A move is a snapshot and one `leaf` record a step, in one write: after a crash either all of them are in the log or none.
//! A preview shows the same plan that a call carries out, and with `files` the files follow (`app::put_back`).

use std::sync::Arc;

use ollm_protocol::content::{FilePlan, LeafMove, RecordBody, RecordKind, SnapshotMark};
use ollm_protocol::{Seq, SessionId};
use tokio_util::sync::CancellationToken;

use super::path_change;
use crate::app::change::{PlannedFold, View, change, known, preview};
use crate::app::core::{Core, blocking};
use crate::app::drafts::uncounted;
use crate::app::error::{AppError, Result};
use crate::app::put_back::{self, FileMove, FilesRequest};
use crate::session::{Appended, IdempotencyKey, NewRecord, SessionError, SessionState};

/// A move of the leaf that was planned for a state of the session.
pub(super) struct PlannedMove {
    /// The active leaf.
    leaf: Option<Seq>,
    /// The leaf after each step.
    steps: Vec<Option<Seq>>,
    cause: &'static str,
    /// The record behind the move.
    behind: Option<NewRecord>,
}

impl PlannedMove {
    /// Returns a move of the active leaf by some steps.
    pub(super) fn by(state: &SessionState, steps: Vec<Option<Seq>>, cause: &'static str) -> Self {
        Self { leaf: state.leaf(), steps, cause, behind: None }
    }

    /// Returns a move of the active leaf to another one; if it is the same, nothing moves.
    pub(super) fn to_leaf(state: &SessionState, to: Option<Seq>, cause: &'static str) -> Self {
        let steps = if to == state.leaf() { Vec::new() } else { vec![to] };
        Self::by(state, steps, cause)
    }

    /// Returns the move with a record behind it, if the leaf moves at all.
    pub(super) fn followed_by(self, behind: Option<NewRecord>) -> Self {
        Self { behind, ..self }
    }

    /// Returns the leaf after the move.
    pub(super) fn to(&self) -> Option<Seq> {
        self.steps.last().copied().unwrap_or(self.leaf)
    }

    /// Returns the records of the move, with a snapshot before them; none if nothing moves.
    pub(super) fn records(self, mark: SnapshotMark) -> Vec<NewRecord> {
        if self.steps.is_empty() {
            return Vec::new();
        }
        let mark = RecordBody::Snapshot(SnapshotMark { leaf: self.leaf, ..mark });
        let step = |to: &Option<Seq>| LeafMove { to: *to, cause: self.cause.to_owned() };
        let steps = self.steps.iter().map(step).map(RecordBody::Leaf);
        [mark].into_iter().chain(steps).map(uncounted).chain(self.behind).collect()
    }

    /// Returns the move as files follow it.
    fn file_move(&self, state: &SessionState) -> FileMove {
        let (id, leaf, to, cause) = (state.id(), self.leaf, self.to(), self.cause);
        let (added, removed) = path_change(state, leaf, to);
        FileMove { id, leaf, to, removed, added, cause }
    }
}

/// A move as a call asks for it.
pub(super) struct MoveCall {
    pub(super) id: SessionId,
    pub(super) key: Option<IdempotencyKey>,
    /// The snapshot before the move, whose leaf is set when it is planned.
    pub(super) mark: SnapshotMark,
    pub(super) files: FilesRequest,
    /// Set for a call that only shows what it would do, as each call with [`FilesRequest::Preview`] does.
    pub(super) dry_run: bool,
    /// Canceled when the client leaves. Files that have not all moved yet go back then.
    pub(super) left: CancellationToken,
}

/// The result of a call.
pub(super) enum Moved<T> {
    /// The leaf after the move, what else the call would do, and the files of the move if they are asked for.
    Previewed(Option<Seq>, T, Option<FilePlan>),
    /// The first record of the move, whether an earlier call with the same key wrote it, and the files; `None` if the leaf
    /// is there already.
    Done(Option<(Seq, bool)>, Option<FilePlan>),
}

/// Previews a move, or carries it out with or without its files. `plan` also returns what a preview shows.
///
/// **Errors**: `Conflict` while a turn answers, except for a preview; those of the plan and of the files.
pub(super) async fn carry_out<F: PlannedFold, T: Send + 'static>(
    core: &Arc<Core>,
    call: MoveCall,
    plan: impl FnOnce(&View<'_, F>) -> Result<(PlannedMove, T)> + Send + 'static,
) -> Result<Moved<T>> {
    let MoveCall { id, key, mark, files, dry_run, left } = call;
    files.wait_for_others(core, id).await;
    if dry_run || files == FilesRequest::Preview {
        let show = move |core: &Arc<Core>| show(core, id, files, plan);
        return blocking(core, show).await;
    }
    let plan_now = |view: &View<'_, F>| {
        view.check_no_turn()?;
        Ok::<_, AppError>(plan(view)?.0)
    };
    match files {
        FilesRequest::Skip | FilesRequest::Preview => {
            let records = move |view: &View<'_, F>| Ok(plan_now(view)?.records(mark));
            let appended = change(core, id, key, records).await?;
            start_again(core, id);
            Ok(Moved::Done(appended.map(|Appended { seq, duplicate, .. }| (seq, duplicate)), None))
        }
        FilesRequest::Apply(plan_id) => {
            if let Some(first) = known(core, id, key.as_ref()).await? {
                return Ok(Moved::Done(Some((first, true)), None));
            }
            let applied = move |core: &Arc<Core>| {
                let (file_move, records) = preview(core, id, |view: &View<'_, F>| {
                    let planned = plan_now(view)?;
                    Ok((planned.file_move(view.state), planned.records(mark)))
                })?;
                if records.is_empty() {
                    core.sessions.sync(id)?;
                    return Ok(Moved::Done(None, None));
                }
                let (appended, files) =
                    put_back::apply(core, &file_move, plan_id, records, key, &left)?;
                start_again(core, id);
                Ok(Moved::Done(Some((appended.seq, appended.duplicate)), Some(files)))
            };
            blocking(core, applied).await
        }
    }
}

/// Lets the hooks of a new session run again if no record is before the leaf: the entries that they set are behind it.
fn start_again(core: &Core, id: SessionId) {
    if core.sessions.peek(id, |live| live.state().leaf()) == Some(None) {
        core.hook_runs.mark_started(id);
    }
}

/// Shows what a call would do. Blocks on the disk.
fn show<F: PlannedFold, T>(
    core: &Arc<Core>,
    id: SessionId,
    files: FilesRequest,
    plan: impl FnOnce(&View<'_, F>) -> Result<(PlannedMove, T)>,
) -> Result<Moved<T>> {
    let (shown, file_move) = preview(core, id, |view: &View<'_, F>| {
        let (planned, shown) = plan(view)?;
        Ok((shown, planned.file_move(view.state)))
    })?;
    let to = file_move.to;
    let files = match files {
        FilesRequest::Preview => Some(put_back::preview(core, file_move)?),
        FilesRequest::Skip | FilesRequest::Apply(_) => None,
    };
    Ok(Moved::Previewed(to, shown, files))
}

/// A move as the log has it.
pub(super) struct RecordedMove {
    /// The snapshot before it, with the leaf that it left.
    pub(super) mark: SnapshotMark,
    /// The `leaf` records, one for each step.
    pub(super) steps: Vec<Seq>,
    /// The leaf after it.
    pub(super) to: Option<Seq>,
}

impl RecordedMove {
    /// Reads the move that begins with a record. Blocks on the disk.
    pub(super) fn read(core: &Core, id: SessionId, first: Seq) -> Result<Self> {
        let Some(RecordBody::Snapshot(mark)) = core.body(id, first)? else {
            return Err(SessionError::Damaged { id, seq: first }.into());
        };
        let (steps, to) = core.sessions.with(id, |live| {
            let is_step = |seq: &Seq| {
                live.state().entry(*seq).is_some_and(|entry| entry.kind() == Some(RecordKind::Leaf))
            };
            let steps: Vec<Seq> = (first.0 + 1..).map(Seq).take_while(is_step).collect();
            let to = steps.last().and_then(|seq| live.state().leaf_move(*seq)?.0);
            (steps, to)
        })?;
        Ok(Self { mark, steps, to })
    }
}
