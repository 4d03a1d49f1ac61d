//! The three forms in which a session changes, and no fourth.
//!
//! - *Appended*: records that are known beforehand. [`Core::append`] queues them.
//! - *Planned*: [`change`] queues a pure function of a [`View`]. The session's writer runs it once, when its turn comes:
//!   everything before it is applied and durable, so nothing is stale and nothing is tried again.
//! - *In two phases*: [`in_two_phases`] plans outside of the writer what calls a model, counts tokens or moves files. The
//!   plan names the leaf that it saw. The writer appends it, or the plan is made again from the new state.
//!
//! A planner calls no store, cache, clock or model, takes no lock and counts no tokens: times, ids, counts and the holder of
//! a turn are values. An idempotency key is looked up before a plan is made. A reply follows from the log and the first record
//! of the change, so it is the same for a repeated key.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::content::{RecordBody, SnapshotMark};
use ollm_protocol::{Seq, SessionId};
use tokio::time::Instant;

use super::core::{Core, blocking};
use super::drafts::uncounted;
use super::error::{ChatError, Result};
use super::partial::read_settled;
use super::running::RunningTurn;
use crate::session::operations::Operations;
use crate::session::{
    Appended, IdempotencyKey, NewRecord, OpenSession, SessionError, SessionState,
};

/// The time for which a change in two phases is planned again after another record moved the leaf first.
const PATIENCE: Duration = Duration::from_secs(10);

/// A session at the moment at which a change of it is planned.
pub(crate) struct View<'a, F = ()> {
    pub(crate) state: &'a SessionState,
    /// The fold that the change names, of the active path.
    pub(crate) fold: &'a F,
    /// The turn that is answering.
    turn: Option<&'a RunningTurn>,
}

impl<F> View<'_, F> {
    /// Refuses a change while a turn answers: the turn's records would follow a leaf that it does not expect.
    ///
    /// **Errors**: `Conflict`, which names the turn.
    pub(crate) fn check_no_turn(&self) -> Result<()> {
        check_no_turn(self.state.id(), self.turn)
    }

    /// Returns the record of a snapshot of this state.
    pub(crate) fn snapshot(&self, mark: SnapshotMark) -> NewRecord {
        uncounted(RecordBody::Snapshot(SnapshotMark { leaf: self.state.leaf(), ..mark }))
    }
}

/// Refuses a change while a turn answers.
///
/// **Errors**: `Conflict`, which names the turn.
pub(crate) fn check_no_turn(id: SessionId, turn: Option<&RunningTurn>) -> Result<()> {
    let Some(turn) = turn else { return Ok(()) };
    let (model, since) = (turn.model.clone(), turn.started);
    Err(ChatError::Conflict { id, model, since }.into())
}

/// A fold that a plan reads, beside the session's own.
pub(crate) trait PlannedFold: Send + Sized + 'static {
    /// Folds what is durable now, before the change is queued. Blocks on the disk.
    fn warm(core: &Arc<Core>, id: SessionId) -> Result<Self>;

    /// Folds what was recorded since then. The writer calls it, so it reads records by the reader of the session only.
    fn catch_up(&mut self, live: &OpenSession) -> Result<()>;
}

/// The fold for plans that read the session alone.
impl PlannedFold for () {
    fn warm(core: &Arc<Core>, id: SessionId) -> Result<Self> {
        read_settled(core, id, |_| ())
    }

    fn catch_up(&mut self, _: &OpenSession) -> Result<()> {
        Ok(())
    }
}

impl PlannedFold for Arc<Operations> {
    fn warm(core: &Arc<Core>, id: SessionId) -> Result<Self> {
        read_settled(core, id, |live| core.cache.operations(live.state()))
    }

    fn catch_up(&mut self, live: &OpenSession) -> Result<()> {
        if !self.is_fold_of(live.state()) {
            Self::make_mut(self).extend(live.state());
        }
        Ok(())
    }
}

/// Carries out a change that is planned when its turn comes. Returns what was appended; `None` if there was nothing to
/// change, which confirms an earlier change.
///
/// **Cancel safety**: a change that was queued is carried out.
pub(crate) async fn change<F: PlannedFold>(
    core: &Arc<Core>,
    id: SessionId,
    key: Option<IdempotencyKey>,
    plan: impl FnOnce(&View<'_, F>) -> Result<Vec<NewRecord>> + Send + 'static,
) -> Result<Option<Appended>> {
    let mut fold = blocking(core, move |core| F::warm(core, id)).await?;
    let turns = core.turns.clone();
    let planned = move |live: &OpenSession| {
        fold.catch_up(live)?;
        let turn = turns.get(id);
        plan(&View { state: live.state(), fold: &fold, turn: turn.as_deref() })
    };
    core.sessions.change(id, key, planned)?.done().await
}

/// Carries out a change that is planned from the session's own fold, and concerns no path. It is queued before the first
/// await, as records that are appended are, so that calls of one client keep their order.
pub(crate) async fn change_state(
    core: &Arc<Core>,
    id: SessionId,
    plan: impl FnOnce(&SessionState) -> Result<Vec<NewRecord>> + Send + 'static,
) -> Result<Option<Appended>> {
    core.sessions.change(id, None, move |live: &OpenSession| plan(live.state()))?.done().await
}

/// Plans a change from the present state, and changes nothing. Blocks on the disk.
pub(crate) fn preview<F: PlannedFold, T>(
    core: &Arc<Core>,
    id: SessionId,
    plan: impl FnOnce(&View<'_, F>) -> Result<T>,
) -> Result<T> {
    let mut fold = F::warm(core, id)?;
    core.sessions.with(id, |live| {
        fold.catch_up(live)?;
        let turn = core.turns.get(id);
        plan(&View { state: live.state(), fold: &fold, turn: turn.as_deref() })
    })?
}

/// The first phase of a change: what is planned for the state of a moment.
pub(crate) enum FirstPhase<T> {
    /// Records that follow this leaf.
    Append(Option<Seq>, Vec<NewRecord>, T),
    /// There is nothing to append: an earlier write made this change, and is synced before the call returns.
    Nothing(T),
    /// There is nothing to append, and the result vouches for no earlier write.
    Unrecorded(T),
}

/// Carries out a change in two phases: repeats the first one until its records are appended to the leaf that it saw, each
/// time with the result of the attempt before. Returns its result and the first record of the change. For a known key the
/// first phase is not run, and there is no result.
///
/// **Errors**: `LeafMoved` if other records moved the leaf until the deadline.
pub(crate) async fn in_two_phases<T, P: Future<Output = Result<FirstPhase<T>>>>(
    core: &Arc<Core>,
    id: SessionId,
    key: Option<&IdempotencyKey>,
    mut first_phase: impl FnMut(Option<T>) -> P,
) -> Result<(Option<T>, Option<Seq>)> {
    let (mut refused, mut deadline) = (None, None);
    if let Some(known) = known(core, id, key).await? {
        return Ok((None, Some(known)));
    }
    loop {
        let (leaf, records, done) = match first_phase(refused.take()).await? {
            FirstPhase::Append(leaf, records, done) => (leaf, records, done),
            FirstPhase::Nothing(done) => {
                blocking(core, move |core| Ok(core.sessions.sync(id)?)).await?;
                return Ok((Some(done), None));
            }
            FirstPhase::Unrecorded(done) => return Ok((Some(done), None)),
        };
        match core.sessions.append_after(id, leaf, records, key.cloned())?.await {
            // A concurrent call may have used the key.
            Ok(appended) => {
                return Ok(((!appended.duplicate).then_some(done), Some(appended.seq)));
            }
            Err(error @ SessionError::LeafMoved { .. }) => {
                let now = Instant::now();
                if now >= *deadline.get_or_insert(now + PATIENCE) {
                    return Err(error.into());
                }
                refused = Some(done);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the first record of the change that a key made before.
///
/// **Errors**: `KeyConflict` if the key was used with other content.
pub(crate) async fn known(
    core: &Arc<Core>,
    id: SessionId,
    key: Option<&IdempotencyKey>,
) -> Result<Option<Seq>> {
    let Some(key) = key.cloned() else { return Ok(None) };
    blocking(core, move |core| Ok(core.sessions.known(id, &key)?)).await
}
