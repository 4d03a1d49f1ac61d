//! Changing goals: checked against what holds, written, and never made on top of something that changed meanwhile.

use std::sync::Arc;

use ollm_protocol::content::{
    Goal, GoalChange, GoalMarker, GoalSource, GoalStep, Message, RecordBody, RecordKind, Role,
};
use ollm_protocol::methods::goal as g;
use ollm_protocol::{DecisionId, GoalCheckpointId, GoalId, Method, Seq, SessionId, method};
use serde::Serialize;

use super::facts::goals;
use super::paths::{active, path_to};
use super::record::key_use;
use super::{AppError, Core, blocking};
use crate::goal::{GoalState, MAX_ITEMS, MAX_TEXT_BYTES, markers, on_one_line};
use crate::session::{Appended, Draft, KeyUse, SessionError};

/// How often a change is checked again because something was recorded meanwhile, before it is refused as busy.
const MAX_TRIES: usize = 32;
/// Goals of a page; one goal is at most some megabytes.
const DEFAULT_LIMIT: u32 = 25;
const MAX_LIMIT: u32 = 100;
/// A page ends before its goals pass this, far enough below a frame.
const PAGE_BYTES: usize = 6 * 1024 * 1024;

/// Sets a goal.
pub(crate) async fn goal_create(
    core: &Arc<Core>,
    mut params: g::GoalCreateParams,
) -> Result<g::GoalResult, AppError> {
    let key = taken::<method::GoalCreate>(&mut params, |params| &mut params.key)?;
    let g::GoalCreateParams { session_id, description, priority, checkpoints, .. } = params;
    let id = GoalId::from_uuid(core.clock.uuid());
    let description = described("description", &description)?;
    let mut steps = vec![GoalStep::Create { id, description, priority }];
    for checkpoint in few("checkpoints", checkpoints)? {
        steps.push(GoalStep::AddCheckpoint {
            goal: id,
            id: GoalCheckpointId::from_uuid(core.clock.uuid()),
            description: checkpoint,
            status: ollm_protocol::content::CheckpointStatus::Pending,
        });
    }
    change(core, session_id, key, move |_| Ok(steps.clone())).await
}

/// Changes fields of a goal.
pub(crate) async fn goal_update(
    core: &Arc<Core>,
    mut params: g::GoalUpdateParams,
) -> Result<g::GoalResult, AppError> {
    let key = taken::<method::GoalUpdate>(&mut params, |params| &mut params.key)?;
    let g::GoalUpdateParams { session_id, goal_id, description, priority, status, .. } = params;
    if description.is_none() && priority.is_none() && status.is_none() {
        return Err(AppError::invalid("params", "name at least one field to change"));
    }
    let description = description.map(|text| described("description", &text)).transpose()?;
    change(core, session_id, key, move |state| {
        let goal = state.named_or_active(goal_id)?.id;
        Ok(vec![GoalStep::Update { goal, description: description.clone(), priority, status }])
    })
    .await
}

/// Adds a step on the way.
pub(crate) async fn goal_add_checkpoint(
    core: &Arc<Core>,
    mut params: g::GoalAddCheckpointParams,
) -> Result<g::GoalResult, AppError> {
    let key = taken::<method::GoalAddCheckpoint>(&mut params, |params| &mut params.key)?;
    let g::GoalAddCheckpointParams { session_id, goal_id, description, status, .. } = params;
    let description = described("description", &description)?;
    let id = GoalCheckpointId::from_uuid(core.clock.uuid());
    change(core, session_id, key, move |state| {
        let goal = state.named_or_active(goal_id)?.id;
        Ok(vec![GoalStep::AddCheckpoint { goal, id, description: description.clone(), status }])
    })
    .await
}

/// Changes a step on the way.
pub(crate) async fn goal_update_checkpoint(
    core: &Arc<Core>,
    mut params: g::GoalUpdateCheckpointParams,
) -> Result<g::GoalResult, AppError> {
    let key = taken::<method::GoalUpdateCheckpoint>(&mut params, |params| &mut params.key)?;
    let g::GoalUpdateCheckpointParams {
        session_id,
        goal_id,
        checkpoint_id: id,
        description,
        status,
        ..
    } = params;
    if description.is_none() && status.is_none() {
        return Err(AppError::invalid("params", "name at least one field to change"));
    }
    let description = description.map(|text| described("description", &text)).transpose()?;
    change(core, session_id, key, move |state| {
        let goal = state.named_or_active(goal_id)?.id;
        Ok(vec![GoalStep::UpdateCheckpoint { goal, id, description: description.clone(), status }])
    })
    .await
}

/// Adds a decision.
pub(crate) async fn goal_add_decision(
    core: &Arc<Core>,
    mut params: g::GoalAddDecisionParams,
) -> Result<g::GoalResult, AppError> {
    let key = taken::<method::GoalAddDecision>(&mut params, |params| &mut params.key)?;
    let g::GoalAddDecisionParams {
        session_id, goal_id, description, kind, locked, supersedes, ..
    } = params;
    let description = described("description", &description)?;
    let kind = kind.map(|kind| described("kind", &kind)).transpose()?;
    let id = DecisionId::from_uuid(core.clock.uuid());
    change(core, session_id, key, move |state| {
        let goal = state.named_or_active(goal_id)?.id;
        let (kind, description) = (kind.clone(), description.clone());
        Ok(vec![GoalStep::AddDecision { goal, id, kind, description, locked, supersedes }])
    })
    .await
}

/// Locks a decision.
pub(crate) async fn goal_lock_decision(
    core: &Arc<Core>,
    mut params: g::GoalLockDecisionParams,
) -> Result<g::GoalResult, AppError> {
    let key = taken::<method::GoalLockDecision>(&mut params, |params| &mut params.key)?;
    let g::GoalLockDecisionParams { session_id, goal_id, decision_id: id, .. } = params;
    change(core, session_id, key, move |state| {
        Ok(vec![GoalStep::LockDecision { goal: state.named_or_active(goal_id)?.id, id }])
    })
    .await
}

/// Notes what became of a file.
pub(crate) async fn goal_add_artifact(
    core: &Arc<Core>,
    mut params: g::GoalAddArtifactParams,
) -> Result<g::GoalResult, AppError> {
    let key = taken::<method::GoalAddArtifact>(&mut params, |params| &mut params.key)?;
    let g::GoalAddArtifactParams { session_id, goal_id, path, action: did, kind, .. } = params;
    let path = described("path", &path)?;
    let kind = kind.map(|kind| described("type", &kind)).transpose()?;
    change(core, session_id, key, move |state| {
        let goal = state.named_or_active(goal_id)?.id;
        Ok(vec![GoalStep::AddArtifact { goal, kind: kind.clone(), path: path.clone(), did }])
    })
    .await
}

/// Says what comes next.
pub(crate) async fn goal_set_next_steps(
    core: &Arc<Core>,
    mut params: g::GoalSetNextStepsParams,
) -> Result<g::GoalResult, AppError> {
    let key = taken::<method::GoalSetNextSteps>(&mut params, |params| &mut params.key)?;
    let g::GoalSetNextStepsParams { session_id, goal_id, next_steps, .. } = params;
    let next_steps = few("nextSteps", next_steps)?;
    change(core, session_id, key, move |state| {
        let goal = state.named_or_active(goal_id)?.id;
        Ok(vec![GoalStep::SetNextSteps { goal, next_steps: next_steps.clone() }])
    })
    .await
}

/// Lists goals. Blocks on the disk.
pub(crate) fn goal_list(
    core: &Core,
    params: &g::GoalListParams,
) -> Result<g::GoalListResult, AppError> {
    let limit = params.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(AppError::invalid("limit", format!("must lie between 1 and {MAX_LIMIT}")));
    }
    let path = active(core, params.session_id)?;
    let state = goals(core, params.session_id, &path.places)?;
    let all = state.goals();
    let before = params.cursor.map(|cursor| {
        let at = all.iter().position(|goal| goal.id == cursor);
        at.ok_or_else(|| AppError::invalid("cursor", "is none of this list"))
    });
    let older = &all[..before.transpose()?.unwrap_or(all.len())];
    let wanted = |goal: &&Goal| params.status.is_none_or(|status| goal.status == status);
    let mut rest = older.iter().rev().filter(wanted).peekable();
    let (mut data, mut bytes) = (Vec::new(), 0);
    for goal in rest.by_ref() {
        bytes += serde_json::to_vec(goal).map_or(0, |json| json.len());
        data.push(goal.clone());
        if data.len() >= limit as usize || bytes > PAGE_BYTES {
            break;
        }
    }
    let next_cursor = rest.peek().and(data.last()).map(|goal| goal.id);
    Ok(g::GoalListResult { data, next_cursor })
}

/// Does what the markers of a text say.
pub(crate) async fn goal_apply_markers(
    core: &Arc<Core>,
    mut params: g::GoalApplyMarkersParams,
) -> Result<g::GoalApplyMarkersResult, AppError> {
    let key = taken::<method::GoalApplyMarkers>(&mut params, |params| &mut params.key)?;
    let g::GoalApplyMarkersParams { session_id, text, seq, .. } = params;
    let text = match (text, seq) {
        (Some(text), None) => text,
        (None, Some(seq)) => blocking(core, move |core| said(core, session_id, seq)).await?,
        _ => return Err(AppError::invalid("text", "name either text or seq")),
    };
    let markers = markers::parse(&text, true);
    let change =
        GoalChange { source: GoalSource::Marker, message_seq: seq, steps: steps(core, &markers) };
    let written = write(core, session_id, key, move |_| Ok(change.clone())).await?;
    let Written { state, n_changed, seq, duplicate, .. } = written;
    let goal = state.active().cloned();
    Ok(g::GoalApplyMarkersResult { markers, applied: n_changed, goal, seq, duplicate })
}

/// The goal record that goes with a message, where what a model said has markers for goals.
///
/// Reads nothing and refuses nothing: it is written with the message, and what its markers mean is found when they are
/// folded. `is_whole`: the message came to its end.
pub(super) fn marked(
    core: &Core,
    id: SessionId,
    message: &Message,
    is_whole: bool,
) -> Option<Draft> {
    if message.role != Role::Assistant {
        return None;
    }
    let markers = markers::parse(&message.plain_text(), is_whole);
    if markers.is_empty() {
        return None;
    }
    let sets_goal = markers.iter().any(|marker| matches!(marker, GoalMarker::Goal { .. }));
    if !sets_goal && !may_have_goals(core, id) {
        return None;
    }
    core.recalled.mark(id);
    let steps = steps(core, &markers);
    let change = GoalChange { source: GoalSource::Marker, message_seq: None, steps };
    Some(Draft::new(RecordBody::Goal(change), None))
}

/// Whether a session can have a goal: without one, markers are words like any others, and leave no record.
fn may_have_goals(core: &Core, id: SessionId) -> bool {
    let known = || {
        let newest = |live: &crate::session::Live| live.state().newest_on_path(RecordKind::Goal);
        core.sessions.peek(id, newest)
    };
    core.recalled.is_marked(id) || known().is_none_or(|newest| newest.is_some())
}

fn steps(core: &Core, markers: &[GoalMarker]) -> Vec<GoalStep> {
    let step = |marker: &GoalMarker| GoalStep::Mark {
        id: GoalId::from_uuid(core.clock.uuid()),
        marker: marker.clone(),
    };
    markers.iter().map(step).collect()
}

/// What a message of a model says.
fn said(core: &Core, id: SessionId, seq: Seq) -> Result<String, AppError> {
    if core.sessions.with(id, |live| live.state().entry(seq))?.is_none() {
        return Err(SessionError::RecordNotFound { id, seq }.into());
    }
    match core.sessions.bodies(id, &[seq])?.pop().flatten() {
        Some(RecordBody::Message(message)) if message.role == Role::Assistant => {
            Ok(message.plain_text())
        }
        Some(_) => Err(AppError::invalid("seq", "is not a message of an assistant")),
        None => Err(SessionError::Damaged { id, seq }.into()),
    }
}

/// Takes the key out of params, digested with the rest.
fn taken<M: Method>(
    params: &mut M::Params,
    key: impl Fn(&mut M::Params) -> &mut Option<String>,
) -> Result<Option<KeyUse>, AppError>
where
    M::Params: Serialize,
{
    let text = key(params).take();
    key_use::<M>(text, params)
}

/// A text as it is kept: on one line, not empty, not too long.
fn described(field: &'static str, text: &str) -> Result<String, AppError> {
    let line = on_one_line(text, usize::MAX);
    if line.is_empty() {
        return Err(AppError::invalid(field, "must not be empty"));
    }
    if line.len() > MAX_TEXT_BYTES {
        let problem = format!("has {} bytes; at most {MAX_TEXT_BYTES} are kept", line.len());
        return Err(AppError::invalid(field, problem));
    }
    Ok(line)
}

fn few(field: &'static str, texts: Vec<String>) -> Result<Vec<String>, AppError> {
    if texts.len() > MAX_ITEMS {
        return Err(AppError::invalid(field, format!("has more than {MAX_ITEMS} items")));
    }
    texts.iter().map(|text| described(field, text)).collect()
}

/// A change as it was written, or found to be written before.
struct Written {
    /// The goals after it.
    state: Arc<GoalState>,
    /// The change.
    change: GoalChange,
    /// How many of its steps changed something.
    n_changed: u64,
    /// Its record; absent where there was nothing to change.
    seq: Option<Seq>,
    /// The key had made it before.
    duplicate: bool,
}

/// Changes goals as a client does, and tells what became of the goal.
async fn change(
    core: &Arc<Core>,
    id: SessionId,
    key: Option<KeyUse>,
    make: impl Fn(&GoalState) -> Result<Vec<GoalStep>, AppError> + Clone + Send + 'static,
) -> Result<g::GoalResult, AppError> {
    let made = move |state: &GoalState| {
        let steps = make(state)?;
        Ok(GoalChange { source: GoalSource::Client, message_seq: None, steps })
    };
    let Written { state, change, seq, duplicate, .. } = write(core, id, key, made).await?;
    let (goal, checkpoint_id, decision_id) = named(&change);
    let goal = match goal {
        Some(goal) => state.goal(goal)?.clone(),
        None => state.named_or_active(None)?.clone(),
    };
    Ok(g::GoalResult { goal, seq, checkpoint_id, decision_id, duplicate })
}

/// What the first step of a change is about.
fn named(change: &GoalChange) -> (Option<GoalId>, Option<GoalCheckpointId>, Option<DecisionId>) {
    match change.steps.first() {
        Some(GoalStep::Create { id, .. }) => (Some(*id), None, None),
        Some(
            GoalStep::AddCheckpoint { goal, id, .. } | GoalStep::UpdateCheckpoint { goal, id, .. },
        ) => (Some(*goal), Some(*id), None),
        Some(GoalStep::AddDecision { goal, id, .. } | GoalStep::LockDecision { goal, id }) => {
            (Some(*goal), None, Some(*id))
        }
        Some(
            GoalStep::Update { goal, .. }
            | GoalStep::AddArtifact { goal, .. }
            | GoalStep::SetNextSteps { goal, .. },
        ) => (Some(*goal), None, None),
        Some(GoalStep::Mark { .. }) | None => (None, None, None),
    }
}

/// What is to be written, on top of which leaf.
enum Plan {
    Write(GoalChange, Option<Seq>, u64),
    /// The key was used before.
    Known,
    /// Nothing is to be changed.
    Nothing(GoalChange, Arc<GoalState>),
}

/// Writes a change that is made from the goals in force.
///
/// It is written only on top of the record that it was checked with, so that two clients cannot both add what only one
/// may; a session that goes on all the time makes it `Busy` in the end.
async fn write(
    core: &Arc<Core>,
    id: SessionId,
    key: Option<KeyUse>,
    make: impl Fn(&GoalState) -> Result<GoalChange, AppError> + Clone + Send + 'static,
) -> Result<Written, AppError> {
    for _ in 0..MAX_TRIES {
        let (make, used) = (make.clone(), key.clone());
        let planned = blocking(core, move |core| plan(core, id, used.as_ref(), make)).await?;
        let (answer, n_changed) = match planned {
            Plan::Nothing(change, state) => {
                return Ok(Written { state, change, n_changed: 0, seq: None, duplicate: false });
            }
            Plan::Known => (core.sessions.append(id, Vec::new(), key.clone())?, 0),
            Plan::Write(change, leaf, n_changed) => {
                core.recalled.mark(id);
                let draft = Draft::new(RecordBody::Goal(change), None);
                let queued =
                    core.sessions.append_keyed_after(id, leaf, vec![draft], key.clone())?;
                (queued, n_changed)
            }
        };
        match answer.await.map_err(|_| SessionError::Stopping)? {
            Ok(appended) => {
                core.documents.note(id);
                return blocking(core, move |core| written(core, id, &appended, n_changed)).await;
            }
            Err(SessionError::LeafMoved { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(SessionError::Busy { id, waiting: 1 }.into())
}

fn plan(
    core: &Core,
    id: SessionId,
    key: Option<&KeyUse>,
    make: impl Fn(&GoalState) -> Result<GoalChange, AppError>,
) -> Result<Plan, AppError> {
    let (path, leaf, known) = core.sessions.with(id, |live| {
        let state = live.state();
        let known = key.and_then(|key| state.key(&key.digest.key));
        (path_to(core, id, live, state.leaf()), state.leaf(), known.is_some())
    })?;
    if known {
        return Ok(Plan::Known);
    }
    let state = goals(core, id, &path.places)?;
    let change = make(&state)?;
    let n_changed = GoalState::clone(&state).apply(core.clock.now(), &change)?;
    if n_changed == 0 {
        return Ok(Plan::Nothing(change, state));
    }
    Ok(Plan::Write(change, leaf, n_changed as u64))
}

fn written(
    core: &Core,
    id: SessionId,
    appended: &Appended,
    n_changed: u64,
) -> Result<Written, AppError> {
    let state = goals(core, id, &active(core, id)?.places)?;
    let seq = appended.seq;
    let Some(RecordBody::Goal(change)) = core.sessions.bodies(id, &[seq])?.pop().flatten() else {
        return Err(SessionError::Damaged { id, seq }.into());
    };
    let duplicate = appended.duplicate;
    Ok(Written { state, change, n_changed, seq: Some(seq), duplicate })
}
