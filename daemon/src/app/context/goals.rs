//! `goal.*`: changing and listing the goals of a session.
//!
//! A change is checked against the goals in force and written only if no other record was written in between. So of
//! two clients whose changes exclude each other, only one succeeds.

use std::sync::Arc;

use ollm_protocol::content::{
    CheckpointStatus, Goal, GoalChange, GoalSource, GoalStep, RecordBody, Role,
};
use ollm_protocol::limits::{self, BoundedField, MAX_PAGE_BYTES};
use ollm_protocol::methods::goal as g;
use ollm_protocol::{DecisionId, GoalCheckpointId, GoalId, Seq, SessionId, method};

use super::folds::{active_path, goals};
use crate::app::core::{Core, blocking};
use crate::app::drafts::{marker_steps, take_key, uncounted};
use crate::app::error::{AppError, Result, page_limit};
use crate::goal::{GoalState, MAX_ITEMS, markers, on_one_line};
use crate::session::{Appended, IdempotencyKey, SessionError};

/// Attempts to write a change while other records move the leaf, before it fails as busy.
const MAX_TRIES: usize = 32;
/// The default number of goals in a page; one goal has at most some megabytes.
const DEFAULT_LIMIT: u32 = 25;
const MAX_LIMIT: u32 = 100;
/// Creates a goal and makes it the active one (`goal.create`).
pub(crate) async fn create(
    core: Arc<Core>,
    mut params: g::GoalCreateParams,
) -> Result<g::GoalResult> {
    let key = take_key::<method::GoalCreate>(&mut params, |params| &mut params.key)?;
    let g::GoalCreateParams { session_id, description, priority, checkpoints, .. } = params;
    let id = GoalId::from_uuid(core.clock.uuid());
    let description = checked_text("description", &description)?;
    let mut steps = vec![GoalStep::Create { id, description, priority, source: None }];
    for checkpoint in checked_texts("checkpoints", checkpoints)? {
        steps.push(GoalStep::AddCheckpoint {
            goal: id,
            id: GoalCheckpointId::from_uuid(core.clock.uuid()),
            description: checkpoint,
            status: CheckpointStatus::Pending,
        });
    }
    change(&core, session_id, key, move |_| Ok(steps)).await
}

/// Changes fields of a goal (`goal.update`).
pub(crate) async fn update(
    core: Arc<Core>,
    mut params: g::GoalUpdateParams,
) -> Result<g::GoalResult> {
    let key = take_key::<method::GoalUpdate>(&mut params, |params| &mut params.key)?;
    let g::GoalUpdateParams { session_id, goal_id, description, priority, status, .. } = params;
    if description.is_none() && priority.is_none() && status.is_none() {
        return Err(AppError::invalid("params", "name at least one field to change"));
    }
    let description = description.map(|text| checked_text("description", &text)).transpose()?;
    let step = move |goal| GoalStep::Update { goal, description, priority, status };
    change_goal(&core, session_id, goal_id, key, step).await
}

/// Adds a checkpoint to a goal (`goal.addCheckpoint`).
pub(crate) async fn add_checkpoint(
    core: Arc<Core>,
    mut params: g::GoalAddCheckpointParams,
) -> Result<g::GoalResult> {
    let key = take_key::<method::GoalAddCheckpoint>(&mut params, |params| &mut params.key)?;
    let g::GoalAddCheckpointParams { session_id, goal_id, description, status, .. } = params;
    let description = checked_text("description", &description)?;
    let id = GoalCheckpointId::from_uuid(core.clock.uuid());
    let step = move |goal| GoalStep::AddCheckpoint { goal, id, description, status };
    change_goal(&core, session_id, goal_id, key, step).await
}

/// Changes a checkpoint of a goal (`goal.updateCheckpoint`).
pub(crate) async fn update_checkpoint(
    core: Arc<Core>,
    mut params: g::GoalUpdateCheckpointParams,
) -> Result<g::GoalResult> {
    let key = take_key::<method::GoalUpdateCheckpoint>(&mut params, |params| &mut params.key)?;
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
    let description = description.map(|text| checked_text("description", &text)).transpose()?;
    let step = move |goal| GoalStep::UpdateCheckpoint { goal, id, description, status };
    change_goal(&core, session_id, goal_id, key, step).await
}

/// Adds a decision to a goal (`goal.addDecision`).
pub(crate) async fn add_decision(
    core: Arc<Core>,
    mut params: g::GoalAddDecisionParams,
) -> Result<g::GoalResult> {
    let key = take_key::<method::GoalAddDecision>(&mut params, |params| &mut params.key)?;
    let g::GoalAddDecisionParams {
        session_id, goal_id, description, kind, locked, supersedes, ..
    } = params;
    let description = checked_text("description", &description)?;
    let kind = kind.map(|kind| checked_text("kind", &kind)).transpose()?;
    let id = DecisionId::from_uuid(core.clock.uuid());
    let step = move |goal| GoalStep::AddDecision {
        goal,
        id,
        kind,
        description,
        locked,
        supersedes,
        source: None,
    };
    change_goal(&core, session_id, goal_id, key, step).await
}

/// Locks a decision against changes by models (`goal.lockDecision`).
pub(crate) async fn lock_decision(
    core: Arc<Core>,
    mut params: g::GoalLockDecisionParams,
) -> Result<g::GoalResult> {
    let key = take_key::<method::GoalLockDecision>(&mut params, |params| &mut params.key)?;
    let g::GoalLockDecisionParams { session_id, goal_id, decision_id: id, .. } = params;
    let step = move |goal| GoalStep::LockDecision { goal, id };
    change_goal(&core, session_id, goal_id, key, step).await
}

/// Adds an artifact to a goal (`goal.addArtifact`).
pub(crate) async fn add_artifact(
    core: Arc<Core>,
    mut params: g::GoalAddArtifactParams,
) -> Result<g::GoalResult> {
    let key = take_key::<method::GoalAddArtifact>(&mut params, |params| &mut params.key)?;
    let g::GoalAddArtifactParams { session_id, goal_id, path, action: did, kind, .. } = params;
    let path = checked_text("path", &path)?;
    let kind = kind.map(|kind| checked_text("type", &kind)).transpose()?;
    let step = move |goal| GoalStep::AddArtifact { goal, kind, path, did };
    change_goal(&core, session_id, goal_id, key, step).await
}

/// Replaces the next steps of a goal (`goal.setNextSteps`).
pub(crate) async fn set_next_steps(
    core: Arc<Core>,
    mut params: g::GoalSetNextStepsParams,
) -> Result<g::GoalResult> {
    let key = take_key::<method::GoalSetNextSteps>(&mut params, |params| &mut params.key)?;
    let g::GoalSetNextStepsParams { session_id, goal_id, next_steps, .. } = params;
    let next_steps = checked_texts("nextSteps", next_steps)?;
    let step = move |goal| GoalStep::SetNextSteps { goal, next_steps };
    change_goal(&core, session_id, goal_id, key, step).await
}

/// Lists goals, newest first (`goal.list`). Blocks on the disk.
pub(crate) fn list(core: &Arc<Core>, params: g::GoalListParams) -> Result<g::GoalListResult> {
    let limit = page_limit(params.limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    let path = active_path(core, params.session_id)?;
    let state = goals(core, params.session_id, &path)?;
    let all = state.goals();
    let before = params.cursor.map(|cursor| {
        let at = all.iter().position(|goal| goal.id == cursor);
        at.ok_or_else(|| AppError::invalid("cursor", "is not a goal of this list"))
    });
    let older = &all[..before.transpose()?.unwrap_or(all.len())];
    let wanted = |goal: &&Goal| params.status.is_none_or(|status| goal.status == status);
    let mut rest = older.iter().rev().filter(wanted).peekable();
    let (mut data, mut bytes) = (Vec::new(), 0);
    for goal in rest.by_ref() {
        let goal = short_goal(goal);
        bytes += limits::json_bytes(&goal);
        data.push(goal);
        if data.len() >= limit || bytes > MAX_PAGE_BYTES {
            break;
        }
    }
    let next_cursor = rest.peek().and(data.last()).map(|goal| goal.id);
    Ok(g::GoalListResult { data, next_cursor })
}

/// Returns a goal as results show it.
fn short_goal(goal: &Goal) -> Goal {
    let mut goal = goal.clone();
    limits::shorten_goal(&mut goal);
    goal
}

/// Applies the markers in a text or in a recorded message (`goal.applyMarkers`).
pub(crate) async fn apply_markers(
    core: Arc<Core>,
    mut params: g::GoalApplyMarkersParams,
) -> Result<g::GoalApplyMarkersResult> {
    let key = take_key::<method::GoalApplyMarkers>(&mut params, |params| &mut params.key)?;
    let g::GoalApplyMarkersParams { session_id, text, seq, .. } = params;
    let text = match (text, seq) {
        (Some(text), None) => text,
        (None, Some(seq)) => {
            blocking(&core, move |core| assistant_text(core, session_id, seq)).await?
        }
        _ => return Err(AppError::invalid("text", "name either text or seq")),
    };
    let markers = markers::parse(&text, true);
    let steps = marker_steps(&core.clock, &markers);
    let change = GoalChange { source: GoalSource::Marker, message_seq: seq, steps };
    let written = write(&core, session_id, key, move |_| Ok(change)).await?;
    let WrittenChange { state, n_changed, seq, duplicate, .. } = written;
    let goal = state.active().map(short_goal);
    Ok(g::GoalApplyMarkersResult { markers, applied: n_changed, goal, seq, duplicate })
}

/// Reads the text of a recorded assistant message. Blocks on the disk.
fn assistant_text(core: &Core, id: SessionId, seq: Seq) -> Result<String> {
    if core.sessions.with(id, |live| live.state().entry(seq))?.is_none() {
        return Err(SessionError::RecordNotFound { id, seq }.into());
    }
    match core.body(id, seq)? {
        Some(RecordBody::Message(message)) if message.role == Role::Assistant => {
            Ok(message.plain_text())
        }
        Some(_) => Err(AppError::invalid("seq", "is not a message of an assistant")),
        None => Err(SessionError::Damaged { id, seq }.into()),
    }
}

/// Returns a text as one line.
///
/// **Errors**: `Invalid` if it is empty; `TooLarge`.
fn checked_text(field: &'static str, text: &str) -> Result<String> {
    let line = on_one_line(text, usize::MAX);
    if line.is_empty() {
        return Err(AppError::invalid(field, "must not be empty"));
    }
    BoundedField::GoalText.check(line.len())?;
    Ok(line)
}

fn checked_texts(field: &'static str, texts: Vec<String>) -> Result<Vec<String>> {
    if texts.len() > MAX_ITEMS {
        return Err(AppError::invalid(field, format!("has more than {MAX_ITEMS} items")));
    }
    texts.iter().map(|text| checked_text(field, text)).collect()
}

/// A change that was written by this call, or by an earlier one with the same key.
struct WrittenChange {
    /// The goals after it.
    state: Arc<GoalState>,
    change: GoalChange,
    /// The number of its steps that changed something.
    n_changed: u64,
    /// Its record; `None` if there was nothing to change.
    seq: Option<Seq>,
    /// An earlier call with the same key wrote it.
    duplicate: bool,
}

/// Makes a step on the named goal, or on the active one if none is named.
async fn change_goal(
    core: &Arc<Core>,
    id: SessionId,
    goal: Option<GoalId>,
    key: Option<IdempotencyKey>,
    step: impl FnOnce(GoalId) -> GoalStep + Clone + Send + 'static,
) -> Result<g::GoalResult> {
    change(core, id, key, move |state| Ok(vec![step(state.named_or_active(goal)?.id)])).await
}

/// Writes a change of a client, and returns the changed goal.
///
/// `steps` makes the steps from the goals in force; a clone of it is called for each attempt.
async fn change(
    core: &Arc<Core>,
    id: SessionId,
    key: Option<IdempotencyKey>,
    steps: impl FnOnce(&GoalState) -> Result<Vec<GoalStep>> + Clone + Send + 'static,
) -> Result<g::GoalResult> {
    let make = move |state: &GoalState| {
        let steps = steps(state)?;
        Ok(GoalChange { source: GoalSource::Client, message_seq: None, steps })
    };
    let WrittenChange { state, change, seq, duplicate, .. } = write(core, id, key, make).await?;
    let (goal, checkpoint_id, decision_id) = subject(&change);
    let goal = short_goal(state.named_or_active(goal)?);
    Ok(g::GoalResult { goal, seq, checkpoint_id, decision_id, duplicate })
}

/// Returns the goal, the checkpoint and the decision that the first step of a change names.
fn subject(change: &GoalChange) -> (Option<GoalId>, Option<GoalCheckpointId>, Option<DecisionId>) {
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

/// The effect of a change on the goals in force.
enum PlannedChange {
    Write {
        change: GoalChange,
        leaf: Option<Seq>,
        n_changed: u64,
    },
    /// The key was used before.
    Duplicate,
    /// The change would have no effect.
    Nothing(WrittenChange),
}

/// Writes the change that `make` makes from the goals in force, if they did not change concurrently.
///
/// **Errors**: `Busy` if the session changed at every attempt.
async fn write(
    core: &Arc<Core>,
    id: SessionId,
    key: Option<IdempotencyKey>,
    make: impl FnOnce(&GoalState) -> Result<GoalChange> + Clone + Send + 'static,
) -> Result<WrittenChange> {
    for _ in 0..MAX_TRIES {
        let (make, used) = (make.clone(), key.clone());
        let planned =
            blocking(core, move |core| plan_change(core, id, used.as_ref(), make)).await?;
        let (answer, n_changed) = match planned {
            PlannedChange::Nothing(unchanged) => return Ok(unchanged),
            PlannedChange::Duplicate => (core.sessions.append(id, Vec::new(), key.clone())?, 0),
            PlannedChange::Write { change, leaf, n_changed } => {
                core.cache.with(id, |session| session.goal_is_queued = true);
                let drafts = vec![uncounted(RecordBody::Goal(change))];
                (core.sessions.append_after(id, leaf, drafts, key.clone())?, n_changed)
            }
        };
        match answer.await {
            Ok(appended) => {
                return blocking(core, move |core| written(core, id, &appended, n_changed)).await;
            }
            Err(SessionError::LeafMoved { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(SessionError::Busy { id, waiting: 1 }.into())
}

/// Applies a change to a copy of the goals in force. Blocks on the disk.
fn plan_change(
    core: &Core,
    id: SessionId,
    key: Option<&IdempotencyKey>,
    make: impl FnOnce(&GoalState) -> Result<GoalChange>,
) -> Result<PlannedChange> {
    let (path, is_used) = core.sessions.with(id, |live| {
        let state = live.state();
        let used = key.and_then(|key| state.key(&key.digest.key));
        (core.cache.path_to(state, state.leaf()), used.is_some())
    })?;
    if is_used {
        return Ok(PlannedChange::Duplicate);
    }
    let state = goals(core, id, &path)?;
    let change = make(&state)?;
    match GoalState::clone(&state).apply(core.clock.now(), &change)? {
        0 => {
            // The reply confirms the change that made this one unnecessary.
            core.sessions.sync(id)?;
            let (n_changed, seq, duplicate) = (0, None, false);
            let unchanged = WrittenChange { state, change, n_changed, seq, duplicate };
            Ok(PlannedChange::Nothing(unchanged))
        }
        n => Ok(PlannedChange::Write { change, leaf: path.leaf, n_changed: n as u64 }),
    }
}

/// Reads a written change and the goals after it. Blocks on the disk.
fn written(
    core: &Core,
    id: SessionId,
    appended: &Appended,
    n_changed: u64,
) -> Result<WrittenChange> {
    let state = goals(core, id, &*active_path(core, id)?)?;
    let seq = appended.seq;
    let Some(RecordBody::Goal(change)) = core.body(id, seq)? else {
        return Err(SessionError::Damaged { id, seq }.into());
    };
    let duplicate = appended.duplicate;
    Ok(WrittenChange { state, change, n_changed, seq: Some(seq), duplicate })
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::{CheckpointStatus, GoalPriority};
    use serde_json::json;

    use super::*;
    use crate::app::testing::TestSession;

    impl TestSession {
        async fn create_goal(&self, description: &str, key: Option<&str>) -> g::GoalResult {
            let params = json!({ "sessionId": self.id, "description": description, "key": key });
            let params = serde_json::from_value(params).expect("params");
            create(Arc::clone(&self.core), params).await.expect("creates")
        }

        async fn update_goal(&self, fields: serde_json::Value) -> Result<g::GoalResult> {
            let mut params = fields;
            params["sessionId"] = json!(self.id);
            let params = serde_json::from_value(params).expect("params");
            update(Arc::clone(&self.core), params).await
        }
    }

    #[tokio::test]
    async fn retried_change_is_written_once() {
        let session = TestSession::new(&[]);
        let first = session.create_goal("one", Some("k")).await;
        let again = session.create_goal("one", Some("k")).await;
        assert_eq!((first.duplicate, again.duplicate), (false, true));
        assert_eq!((first.goal.id, first.seq), (again.goal.id, again.seq));
    }

    #[tokio::test]
    async fn change_without_effect_writes_no_record() {
        let session = TestSession::new(&[]);
        session.create_goal("one", None).await;
        let len = session.bodies().len();
        let same = session.update_goal(json!({ "description": "one" })).await.expect("no error");
        assert_eq!((same.seq, session.bodies().len()), (None, len));
        let changed = session.update_goal(json!({ "priority": "high" })).await.expect("changes");
        assert_eq!(changed.goal.priority, GoalPriority::High);
        assert_eq!(session.bodies().len(), len + 1);
    }

    #[tokio::test]
    async fn invalid_changes_are_refused_before_they_are_written() {
        let session = TestSession::new(&[]);
        let error = session.update_goal(json!({ "description": "one" })).await;
        assert!(matches!(error, Err(AppError::Goal(_))), "there is no goal");
        session.create_goal("one", None).await;
        let len = session.bodies().len();
        for (fields, field) in
            [(json!({}), "params"), (json!({ "description": " \n " }), "description")]
        {
            let error = session.update_goal(fields).await.map(drop);
            let is_refused =
                matches!(&error, Err(AppError::Invalid { field: at, .. }) if *at == field);
            assert!(is_refused, "{field}: {error:?}");
        }
        let long = "x".repeat(BoundedField::GoalText.max_bytes() + 1);
        let error = session.update_goal(json!({ "description": long })).await.map(drop);
        let is_refused =
            matches!(&error, Err(AppError::TooLarge(over)) if over.field == BoundedField::GoalText);
        assert!(is_refused, "{error:?}");
        assert_eq!(session.bodies().len(), len);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn concurrent_changes_are_all_applied_to_the_goals_before_them() {
        let session = Arc::new(TestSession::new(&[]));
        session.create_goal("one", None).await;
        let tasks: Vec<_> = (0..8)
            .map(|number| {
                let session = Arc::clone(&session);
                let add = async move {
                    let description = format!("step {number}");
                    let params = json!({ "sessionId": session.id, "description": description });
                    let params = serde_json::from_value(params).expect("params");
                    add_checkpoint(Arc::clone(&session.core), params).await.expect("adds")
                };
                crate::shutdown::Tasks::new().spawn(add)
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        let params = serde_json::from_value(json!({ "sessionId": session.id })).expect("params");
        let goals = list(&session.core, params).expect("lists").data;
        assert_eq!(goals.len(), 1);
        assert_eq!(goals[0].checkpoints.len(), 8);
        assert!(goals[0].checkpoints.iter().all(|one| one.status == CheckpointStatus::Pending));
    }

    #[tokio::test]
    async fn markers_change_goals_only_if_there_is_one_or_they_set_one() {
        let session = TestSession::new(&[]);
        session.record("assistant", "[CHECKPOINT] Read the code - COMPLETED").await;
        assert!(!session.bodies().iter().any(|body| matches!(body, RecordBody::Goal(_))));
        session.record("assistant", "[GOAL] Port the parser\n[CHECKPOINT] Read - COMPLETED").await;
        let state = goals(
            &session.core,
            session.id,
            &active_path(&session.core, session.id).expect("is open"),
        );
        let state = state.expect("folds");
        let goal = state.active().expect("the marker set it");
        assert_eq!((goal.description.as_str(), goal.checkpoints.len()), ("Port the parser", 1));
    }
}
