//! One marker of a model, followed where the goals allow it.
//!
//! A model may say what it did and what it plans. What the user set stays: a goal of a client is neither replaced nor
//! completed by a marker, and a locked decision is not changed.

use ollm_protocol::content::{
    CheckpointStatus, Goal, GoalDecision, GoalMarker, GoalPriority, GoalSource, GoalStatus,
    GoalStep,
};
use ollm_protocol::{DecisionId, GoalCheckpointId, GoalId, Timestamp};

use super::apply::{
    add_artifact, add_checkpoint, add_decision, create, decision, lock, pause_active,
    set_next_steps, update, update_checkpoint,
};
use super::{GoalState, normalized};

/// Follows a marker; true where it changed something. Any other step is none of a marker's.
pub(super) fn follow(state: &mut GoalState, at: Timestamp, step: &GoalStep) -> bool {
    let GoalStep::Mark { id, marker } = step else { return false };
    if let GoalMarker::Goal { description, completed } = marker {
        return goal(state, at, *id, (description, *completed));
    }
    let Some(active) = state.goals.iter_mut().find(|goal| goal.status == GoalStatus::Active) else {
        return false;
    };
    match marker {
        GoalMarker::Goal { .. } => false,
        GoalMarker::Checkpoint { description, status } => {
            checkpoint(active, at, *id, (description, *status))
        }
        GoalMarker::Decision { description, locked } => {
            decide(active, at, *id, (description, *locked))
        }
        GoalMarker::Artifact { did, path } => {
            add_artifact(active, at, None, (path, *did)).unwrap_or(false)
        }
        GoalMarker::Next { steps } => set_next_steps(active, steps),
    }
}

fn goal(
    state: &mut GoalState,
    at: Timestamp,
    id: GoalId,
    (description, completed): (&str, bool),
) -> bool {
    let wanted = normalized(description);
    let is_same = |goal: &Goal| normalized(&goal.description) == wanted;
    if let Some(active) = state.goals.iter_mut().find(|goal| goal.status == GoalStatus::Active) {
        if is_same(active) {
            let may_end = completed && active.source == GoalSource::Marker;
            return may_end && update(active, at, (None, None, Some(GoalStatus::Completed)));
        }
        if active.source == GoalSource::Client {
            return false;
        }
    }
    if completed {
        return false;
    }
    // A goal that a model comes back to is the same one, with all that was done for it.
    let known = state.goals.iter().find(|goal| is_same(goal) && goal.status == GoalStatus::Paused);
    if let Some(known) = known.map(|goal| goal.id) {
        pause_active(state, known);
        return state
            .goal_mut(known)
            .is_ok_and(|goal| update(goal, at, (None, None, Some(GoalStatus::Active))));
    }
    create(state, at, (id, GoalSource::Marker), description, GoalPriority::Medium).unwrap_or(false)
}

fn checkpoint(
    goal: &mut Goal,
    at: Timestamp,
    id: GoalId,
    (description, status): (&str, Option<CheckpointStatus>),
) -> bool {
    let wanted = normalized(description);
    let known = goal.checkpoints.iter_mut().find(|one| normalized(&one.description) == wanted);
    match known {
        Some(known) => update_checkpoint(known, at, (None, status)),
        None => {
            let id = GoalCheckpointId::from_uuid(id.as_uuid());
            add_checkpoint(goal, at, id, (description, status.unwrap_or_default())).unwrap_or(false)
        }
    }
}

fn decide(goal: &mut Goal, at: Timestamp, id: GoalId, (description, locked): (&str, bool)) -> bool {
    let wanted = normalized(description);
    let same = |one: &&mut GoalDecision| normalized(&one.description) == wanted;
    match goal.decisions.iter_mut().find(same) {
        // One that the user replaced is not taken up again because a model repeats it.
        Some(known) => known.superseded_by.is_none() && locked && lock(known, at),
        None => {
            let id = DecisionId::from_uuid(id.as_uuid());
            let made = decision(id, description, locked, at);
            let made = GoalDecision { source: GoalSource::Marker, ..made };
            add_decision(goal, made).unwrap_or(false)
        }
    }
}
