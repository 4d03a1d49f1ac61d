//! Drafts of records: their token counts, their idempotency keys, and the goal changes that a model's message asks
//! for.

use std::sync::Arc;

use ollm_protocol::content::{
    CountKind, GoalChange, GoalMarker, GoalSource, GoalStep, Message, RecordBody, RecordKind, Role,
    SnapshotMark,
};
use ollm_protocol::limits::BoundedField;
use ollm_protocol::{GoalId, Method, Seq, SessionId, SnapshotId};
use serde::Serialize;

use super::core::Core;
use super::error::{AppError, Result};
use crate::clock::Clock;
use crate::goal::markers;
use crate::session::{IdempotencyKey, NewRecord};
use crate::tokens::Counter;

/// Returns a record with its tokens, counted by `counter`.
pub(crate) fn counted(body: RecordBody, counter: &Counter) -> NewRecord {
    let tokens = counter.count_record(&body);
    NewRecord::new(body, Some((tokens, counter.identity())))
}

/// Returns a record that costs no tokens of its own in a context.
pub(crate) fn uncounted(body: RecordBody) -> NewRecord {
    NewRecord::new(body, None)
}

/// Returns a record counted by the counter that is in memory for the session's model: a write waits only for its sync.
pub(crate) fn counted_for(
    core: &Arc<Core>,
    id: SessionId,
    body: RecordBody,
) -> (NewRecord, CountKind) {
    let counter = session_counter(core, id);
    let kind = counter.kind();
    (counted(body, &counter), kind)
}

/// Returns the counter of a session's model from memory.
///
/// A vocabulary that is only on the disk is loaded for the next call. A session that is not open counts by estimate:
/// opening it here would hold up the caller.
pub(crate) fn session_counter(core: &Arc<Core>, id: SessionId) -> Counter {
    let Some(own) = core.sessions.peek(id, |live| live.state().model().map(str::to_owned)) else {
        return Counter::ESTIMATE;
    };
    let Some(model) = core.placed_in_memory(id, own) else {
        return Counter::ESTIMATE;
    };
    let (counter, may_load) = core.counts.at_hand(&model);
    if may_load {
        let core = Arc::clone(core);
        drop(tokio::task::spawn_blocking(move || core.counts.load(Some(&model), None, &[])));
    }
    counter
}

/// Returns the records of a message: the message itself, counted for the session's model, and the goal changes that
/// its markers ask for. `is_complete`: the message was not cut off.
///
/// Markers are only parsed here, which reads no record and refuses none: the fold decides what they change.
pub(crate) fn message_drafts(
    core: &Arc<Core>,
    id: SessionId,
    message: Message,
    is_complete: bool,
) -> (Vec<NewRecord>, CountKind) {
    let goal = goal_draft(core, id, &message, is_complete);
    let (draft, kind) = counted_for(core, id, RecordBody::Message(message));
    ([draft].into_iter().chain(goal).collect(), kind)
}

fn goal_draft(
    core: &Core,
    id: SessionId,
    message: &Message,
    is_complete: bool,
) -> Option<NewRecord> {
    if message.role != Role::Assistant {
        return None;
    }
    let markers = markers::parse(&message.plain_text(), is_complete);
    if markers.is_empty() {
        return None;
    }
    let sets_goal = markers.iter().any(|marker| matches!(marker, GoalMarker::Goal { .. }));
    if !sets_goal && !may_have_goals(core, id) {
        return None;
    }
    core.cache.with(id, |session| session.goal_is_queued = true);
    let steps = marker_steps(&core.clock, &markers);
    let change = GoalChange { source: GoalSource::Marker, message_seq: None, steps };
    Some(uncounted(RecordBody::Goal(change)))
}

/// Returns the steps of a goal record for markers.
pub(crate) fn marker_steps(clock: &Clock, markers: &[GoalMarker]) -> Vec<GoalStep> {
    let step = |marker: &GoalMarker| GoalStep::Mark {
        id: GoalId::from_uuid(clock.uuid()),
        marker: marker.clone(),
    };
    markers.iter().map(step).collect()
}

/// Returns whether a session can have a goal. Without a goal, markers are ordinary text and leave no record.
fn may_have_goals(core: &Core, id: SessionId) -> bool {
    let is_queued = core.cache.peek(id, |session| session.goal_is_queued).unwrap_or_default();
    let newest = core.sessions.peek(id, |live| live.state().newest_on_path(RecordKind::Goal));
    is_queued || newest.is_none_or(|goal| goal.is_some())
}

/// The change that a snapshot marker precedes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkedChange {
    Compaction,
    /// A new head that shows less than the one before.
    Epoch,
    ModeChange,
    /// A move of the leaf to another branch.
    Branch,
    Undo,
    Redo,
    /// A move of the leaf before an answer, which is given again.
    Retry,
    /// A return to a snapshot.
    Restore(SnapshotId),
    /// A context that is nearly full.
    Threshold,
    /// The rest of a file whose beginning is the session.
    Import,
}

/// Returns the `snapshot` record that marks the state with `leaf` before a change.
pub(crate) fn snapshot_mark(clock: &Clock, leaf: Option<Seq>, before: MarkedChange) -> NewRecord {
    uncounted(RecordBody::Snapshot(mark_before(clock, leaf, before)))
}

/// Returns the content of that record.
pub(crate) fn mark_before(clock: &Clock, leaf: Option<Seq>, before: MarkedChange) -> SnapshotMark {
    let (reason, restores) = match before {
        MarkedChange::Compaction => ("compaction", None),
        MarkedChange::Epoch => ("epoch", None),
        MarkedChange::ModeChange => ("modeChange", None),
        MarkedChange::Branch => ("branch", None),
        MarkedChange::Undo => ("undo", None),
        MarkedChange::Redo => ("redo", None),
        MarkedChange::Retry => ("retry", None),
        MarkedChange::Restore(target) => ("restore", Some(target)),
        MarkedChange::Threshold => (SnapshotMark::THRESHOLD, None),
        MarkedChange::Import => (SnapshotMark::IMPORT, None),
    };
    let mark = SnapshotMark::new(SnapshotId::from_uuid(clock.uuid()), leaf, reason);
    SnapshotMark { restores, ..mark }
}

/// Takes the idempotency key out of params and digests it with the other fields, so that a retry differs from a reuse.
pub(crate) fn take_key<M: Method>(
    params: &mut M::Params,
    key: impl Fn(&mut M::Params) -> &mut Option<String>,
) -> Result<Option<IdempotencyKey>> {
    let text = key(params).take();
    key_use::<M>(text, params)
}

/// Digests an idempotency key with the payload that it is used for.
///
/// **Errors**: `Invalid` for an empty key; `TooLarge`.
pub(crate) fn key_use<M: Method>(
    key: Option<String>,
    payload: &impl Serialize,
) -> Result<Option<IdempotencyKey>> {
    let Some(key) = key else { return Ok(None) };
    if key.is_empty() {
        return Err(AppError::invalid("key", "must not be empty"));
    }
    BoundedField::Key.check(key.len())?;
    let payload = serde_json::to_vec(payload)
        .map_err(|error| AppError::invalid("params", error.to_string()))?;
    Ok(Some(IdempotencyKey::new(M::NAME, key, &payload)))
}
