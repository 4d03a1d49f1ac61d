//! One step of a client, made or refused.

use ollm_protocol::content::{
    ArtifactAction, CheckpointStatus, Goal, GoalArtifact, GoalCheckpoint, GoalDecision,
    GoalPriority, GoalSource, GoalStatus, GoalStep,
};
use ollm_protocol::{DecisionId, GoalCheckpointId, GoalId, Timestamp};

use super::{GoalError, GoalState, MAX_ITEMS, normalized};

/// Makes a step; true where it changed something. A marker's step is none of a client's and changes nothing.
pub(super) fn step(
    state: &mut GoalState,
    at: Timestamp,
    step: &GoalStep,
) -> Result<bool, GoalError> {
    match step {
        GoalStep::Create { id, description, priority } => {
            create(state, at, (*id, GoalSource::Client), description, *priority)
        }
        GoalStep::Update { goal, description, priority, status } => {
            if *status == Some(GoalStatus::Active) {
                state.goal(*goal)?;
                pause_active(state, *goal);
            }
            Ok(update(state.goal_mut(*goal)?, at, (description.as_deref(), *priority, *status)))
        }
        GoalStep::AddCheckpoint { goal, id, description, status } => {
            let goal = state.goal_mut(*goal)?;
            let wanted = normalized(description);
            let twin = goal.checkpoints.iter().find(|one| normalized(&one.description) == wanted);
            if let Some(twin) = twin {
                return Err(GoalError::Exists { what: "checkpoint", id: twin.id.to_string() });
            }
            add_checkpoint(goal, at, *id, (description, *status))
        }
        GoalStep::UpdateCheckpoint { goal, id, description, status } => {
            let goal = state.goal_mut(*goal)?;
            let checkpoint = goal.checkpoints.iter_mut().find(|one| one.id == *id);
            let checkpoint = checkpoint.ok_or(GoalError::NoCheckpoint { id: *id })?;
            Ok(update_checkpoint(checkpoint, at, (description.as_deref(), *status)))
        }
        GoalStep::AddDecision { goal, id, kind, description, locked, supersedes } => {
            let goal = state.goal_mut(*goal)?;
            if let Some(old) = supersedes {
                supersede(goal, *old, *id)?;
            }
            let decided =
                GoalDecision { kind: kind.clone(), ..decision(*id, description, *locked, at) };
            add_decision(goal, decided)
        }
        GoalStep::LockDecision { goal, id } => {
            let decision = in_force(state.goal_mut(*goal)?, *id)?;
            Ok(lock(decision, at))
        }
        GoalStep::AddArtifact { goal, kind, path, did } => {
            add_artifact(state.goal_mut(*goal)?, at, kind.as_deref(), (path, *did))
        }
        GoalStep::SetNextSteps { goal, next_steps } => {
            Ok(set_next_steps(state.goal_mut(*goal)?, next_steps))
        }
        GoalStep::Mark { .. } => Ok(false),
    }
}

/// Adds a goal and makes it the active one.
pub(super) fn create(
    state: &mut GoalState,
    at: Timestamp,
    (id, source): (GoalId, GoalSource),
    description: &str,
    priority: GoalPriority,
) -> Result<bool, GoalError> {
    if state.goals.len() >= MAX_ITEMS {
        return Err(GoalError::TooMany { what: "goals" });
    }
    if state.goals.iter().any(|goal| goal.id == id) {
        return Err(GoalError::Exists { what: "goal", id: id.to_string() });
    }
    pause_active(state, id);
    state.goals.push(Goal {
        id,
        description: description.to_owned(),
        priority,
        status: GoalStatus::Active,
        source,
        created_at: at,
        completed_at: None,
        checkpoints: Vec::new(),
        decisions: Vec::new(),
        artifacts: Vec::new(),
        next_steps: Vec::new(),
    });
    Ok(true)
}

/// Lets every goal wait but one.
pub(super) fn pause_active(state: &mut GoalState, but: GoalId) {
    let others = state.goals.iter_mut().filter(|goal| goal.id != but);
    for goal in others.filter(|goal| goal.status == GoalStatus::Active) {
        goal.status = GoalStatus::Paused;
    }
}

/// Changes fields of a goal.
pub(super) fn update(
    goal: &mut Goal,
    at: Timestamp,
    (description, priority, status): (Option<&str>, Option<GoalPriority>, Option<GoalStatus>),
) -> bool {
    let before = (goal.description.clone(), goal.priority, goal.status);
    if let Some(description) = description {
        description.clone_into(&mut goal.description);
    }
    goal.priority = priority.unwrap_or(goal.priority);
    goal.status = status.unwrap_or(goal.status);
    if goal.status != before.2 {
        goal.completed_at = (goal.status == GoalStatus::Completed).then_some(at);
    }
    before != (goal.description.clone(), goal.priority, goal.status)
}

/// Adds a step on the way.
pub(super) fn add_checkpoint(
    goal: &mut Goal,
    at: Timestamp,
    id: GoalCheckpointId,
    (description, status): (&str, CheckpointStatus),
) -> Result<bool, GoalError> {
    if goal.checkpoints.len() >= MAX_ITEMS {
        return Err(GoalError::TooMany { what: "checkpoints" });
    }
    goal.checkpoints.push(GoalCheckpoint {
        id,
        description: description.to_owned(),
        status,
        created_at: at,
        completed_at: (status == CheckpointStatus::Completed).then_some(at),
    });
    Ok(true)
}

/// Changes a step on the way.
pub(super) fn update_checkpoint(
    checkpoint: &mut GoalCheckpoint,
    at: Timestamp,
    (description, status): (Option<&str>, Option<CheckpointStatus>),
) -> bool {
    let before = checkpoint.clone();
    if let Some(description) = description {
        description.clone_into(&mut checkpoint.description);
    }
    if let Some(status) = status.filter(|status| *status != before.status) {
        checkpoint.status = status;
        checkpoint.completed_at = (status == CheckpointStatus::Completed).then_some(at);
    }
    before != *checkpoint
}

/// A decision of a client.
pub(super) fn decision(
    id: DecisionId,
    description: &str,
    locked: bool,
    at: Timestamp,
) -> GoalDecision {
    GoalDecision {
        id,
        kind: None,
        description: description.to_owned(),
        locked,
        source: GoalSource::Client,
        created_at: at,
        locked_at: locked.then_some(at),
        superseded_by: None,
    }
}

/// Adds a decision.
pub(super) fn add_decision(goal: &mut Goal, decision: GoalDecision) -> Result<bool, GoalError> {
    let wanted = normalized(&decision.description);
    let holds = goal.decisions.iter().filter(|one| one.superseded_by.is_none());
    if let Some(twin) = holds.into_iter().find(|one| normalized(&one.description) == wanted) {
        return Err(GoalError::Exists { what: "decision", id: twin.id.to_string() });
    }
    if goal.decisions.len() >= MAX_ITEMS {
        return Err(GoalError::TooMany { what: "decisions" });
    }
    goal.decisions.push(decision);
    Ok(true)
}

fn supersede(goal: &mut Goal, old: DecisionId, by: DecisionId) -> Result<(), GoalError> {
    in_force(goal, old)?.superseded_by = Some(by);
    Ok(())
}

/// A decision that holds.
fn in_force(goal: &mut Goal, id: DecisionId) -> Result<&mut GoalDecision, GoalError> {
    let found = goal.decisions.iter_mut().find(|one| one.id == id);
    let found = found.ok_or(GoalError::NoDecision { id })?;
    match found.superseded_by {
        Some(by) => Err(GoalError::Superseded { id, by }),
        None => Ok(found),
    }
}

/// Locks a decision; false where it is locked.
pub(super) fn lock(decision: &mut GoalDecision, at: Timestamp) -> bool {
    if decision.locked {
        return false;
    }
    decision.locked = true;
    decision.locked_at = Some(at);
    true
}

/// Notes what became of a file.
pub(super) fn add_artifact(
    goal: &mut Goal,
    at: Timestamp,
    kind: Option<&str>,
    (path, did): (&str, ArtifactAction),
) -> Result<bool, GoalError> {
    let n_artifacts = goal.artifacts.len();
    let Some(known) = goal.artifacts.iter_mut().find(|one| one.path == path) else {
        if n_artifacts >= MAX_ITEMS {
            return Err(GoalError::TooMany { what: "artifacts" });
        }
        let kind = kind.map(str::to_owned);
        goal.artifacts.push(GoalArtifact { kind, path: path.to_owned(), action: did, at });
        return Ok(true);
    };
    let before = known.clone();
    let stays = known.action == ArtifactAction::Created && did == ArtifactAction::Modified;
    if !stays {
        known.action = did;
    }
    if let Some(kind) = kind {
        known.kind = Some(kind.to_owned());
    }
    let is_changed = *known != before;
    if is_changed {
        known.at = at;
    }
    Ok(is_changed)
}

/// Says what comes next.
pub(super) fn set_next_steps(goal: &mut Goal, steps: &[String]) -> bool {
    let steps = &steps[..steps.len().min(MAX_ITEMS)];
    let is_changed = goal.next_steps != steps;
    goal.next_steps = steps.to_vec();
    is_changed
}
