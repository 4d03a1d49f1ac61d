//! The state of a session's goals and how a `goal` record changes it.
//!
//! A client's change is applied as a whole or refused as a whole. A marker is applied as far as the goals allow: by
//! markers, a model reports its work and its plans, but neither replaces nor completes a goal of a client, nor changes a
//! locked decision. A marker that is not allowed is ignored.

use ollm_protocol::content::{
    ArtifactAction, CheckpointStatus, Goal, GoalArtifact, GoalChange, GoalCheckpoint, GoalDecision,
    GoalMarker, GoalPriority, GoalSource, GoalStatus, GoalStep,
};
use ollm_protocol::{DecisionId, GoalCheckpointId, GoalId, Timestamp};
use serde::{Deserialize, Serialize};

use ollm_protocol::sanitize;

/// Maximum number of goals of a session, and of checkpoints, decisions, artifacts and next steps of a goal: far more
/// than a person keeps in view.
pub(crate) const MAX_ITEMS: usize = 500;

/// The reason why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GoalError {
    #[error("the session has no active goal")]
    NoActiveGoal,
    #[error("the session has no goal {id}")]
    NoGoal { id: GoalId },
    #[error("the goal has no checkpoint {id}")]
    NoCheckpoint { id: GoalCheckpointId },
    #[error("the goal has no decision {id}")]
    NoDecision { id: DecisionId },
    /// The decision no longer holds: `by` replaced it.
    #[error("decision {id} was superseded by {by}")]
    Superseded { id: DecisionId, by: DecisionId },
    /// An item of kind `what` with the same id or description exists.
    #[error("the goal already has this {what}: {id}")]
    Exists { what: &'static str, id: String },
    #[error("there are already {MAX_ITEMS} {what}, the maximum")]
    TooMany { what: &'static str },
}

/// The goals of a session, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct GoalState {
    goals: Vec<Goal>,
}

impl GoalState {
    /// Returns every goal, oldest first.
    pub(crate) fn goals(&self) -> &[Goal] {
        &self.goals
    }

    pub(crate) fn active(&self) -> Option<&Goal> {
        self.goals.iter().find(|goal| goal.status == GoalStatus::Active)
    }

    pub(crate) fn goal(&self, id: GoalId) -> Result<&Goal, GoalError> {
        self.goals.iter().find(|goal| goal.id == id).ok_or(GoalError::NoGoal { id })
    }

    /// Returns the named goal, or the active goal if none is named.
    pub(crate) fn named_or_active(&self, id: Option<GoalId>) -> Result<&Goal, GoalError> {
        match id {
            Some(id) => self.goal(id),
            None => self.active().ok_or(GoalError::NoActiveGoal),
        }
    }

    /// Applies a recorded change and returns how many of its steps changed something.
    ///
    /// **Errors**: the error of the first step of a client that cannot be made; the state is then unchanged. Markers
    /// never fail.
    pub(crate) fn apply(&mut self, at: Timestamp, change: &GoalChange) -> Result<usize, GoalError> {
        if change.source == GoalSource::Marker {
            let followed = change.steps.iter().filter(|step| self.follow_marker(at, step));
            return Ok(followed.count());
        }
        let mut next = self.clone();
        let mut n_changed = 0;
        for step in &change.steps {
            n_changed += usize::from(next.make_step(at, step)?);
        }
        *self = next;
        Ok(n_changed)
    }

    /// Makes one step; returns whether it changed something.
    ///
    /// **Errors**: the reason why a client's step is refused; the state may then hold a part of it. Markers never fail.
    pub(crate) fn make_step(&mut self, at: Timestamp, step: &GoalStep) -> Result<bool, GoalError> {
        match step {
            GoalStep::Create { id, description, priority, source } => {
                let source = source.unwrap_or(GoalSource::Client);
                self.create(at, *id, source, description, *priority)
            }
            GoalStep::Update { goal, description, priority, status } => {
                if *status == Some(GoalStatus::Active) {
                    self.goal(*goal)?;
                    self.pause_all_but(*goal);
                }
                let goal = self.goal_mut(*goal)?;
                Ok(update_goal(goal, at, description.as_deref(), *priority, *status))
            }
            GoalStep::AddCheckpoint { goal, id, description, status } => {
                let goal = self.goal_mut(*goal)?;
                if let Some(twin) = checkpoint_named(goal, description) {
                    return Err(GoalError::Exists { what: "checkpoint", id: twin.id.to_string() });
                }
                add_checkpoint(goal, at, *id, description, *status)
            }
            GoalStep::UpdateCheckpoint { goal, id, description, status } => {
                let goal = self.goal_mut(*goal)?;
                let checkpoint = goal.checkpoints.iter_mut().find(|one| one.id == *id);
                let checkpoint = checkpoint.ok_or(GoalError::NoCheckpoint { id: *id })?;
                Ok(update_checkpoint(checkpoint, at, description.as_deref(), *status))
            }
            GoalStep::AddDecision { goal, id, kind, description, locked, supersedes, source } => {
                let goal = self.goal_mut(*goal)?;
                if let Some(old) = supersedes {
                    decision_in_force(goal, *old)?.superseded_by = Some(*id);
                }
                let source = source.unwrap_or(GoalSource::Client);
                let decision = new_decision(*id, source, description, *locked, at);
                add_decision(goal, GoalDecision { kind: kind.clone(), ..decision })
            }
            GoalStep::LockDecision { goal, id } => {
                Ok(lock(decision_in_force(self.goal_mut(*goal)?, *id)?, at))
            }
            GoalStep::AddArtifact { goal, kind, path, did } => {
                add_artifact(self.goal_mut(*goal)?, at, kind.as_deref(), path, *did)
            }
            GoalStep::SetNextSteps { goal, next_steps } => {
                Ok(set_next_steps(self.goal_mut(*goal)?, next_steps))
            }
            GoalStep::Mark { .. } => Ok(self.follow_marker(at, step)),
        }
    }

    /// Follows a marker; returns whether it changed something. Ignores every other step.
    fn follow_marker(&mut self, at: Timestamp, step: &GoalStep) -> bool {
        let GoalStep::Mark { id, marker } = step else { return false };
        let active = self.goals.iter_mut().find(|goal| goal.status == GoalStatus::Active);
        match (marker, active) {
            (GoalMarker::Goal { description, completed }, _) => {
                self.follow_goal_marker(at, *id, description, *completed)
            }
            (_, None) => false,
            (GoalMarker::Checkpoint { description, status }, Some(goal)) => {
                match checkpoint_named(goal, description) {
                    Some(known) => update_checkpoint(known, at, None, *status),
                    None => {
                        let id = GoalCheckpointId::from_uuid(id.as_uuid());
                        let status = status.unwrap_or_default();
                        add_checkpoint(goal, at, id, description, status).unwrap_or(false)
                    }
                }
            }
            (GoalMarker::Decision { description, locked }, Some(goal)) => {
                let wanted = normalized(description);
                let mut decisions = goal.decisions.iter_mut();
                match decisions.find(|one| normalized(&one.description) == wanted) {
                    // A decision that the user replaced is not restored because a model repeats it.
                    Some(known) => known.superseded_by.is_none() && *locked && lock(known, at),
                    None => {
                        let id = DecisionId::from_uuid(id.as_uuid());
                        let new = new_decision(id, GoalSource::Marker, description, *locked, at);
                        add_decision(goal, new).unwrap_or(false)
                    }
                }
            }
            (GoalMarker::Artifact { did, path }, Some(goal)) => {
                add_artifact(goal, at, None, path, *did).unwrap_or(false)
            }
            (GoalMarker::Next { steps }, Some(goal)) => set_next_steps(goal, steps),
        }
    }

    fn follow_goal_marker(
        &mut self,
        at: Timestamp,
        id: GoalId,
        description: &str,
        completed: bool,
    ) -> bool {
        let wanted = normalized(description);
        let is_same = |goal: &Goal| normalized(&goal.description) == wanted;
        if let Some(active) = self.goals.iter_mut().find(|one| one.status == GoalStatus::Active) {
            if is_same(active) {
                let may_complete = completed && active.source == GoalSource::Marker;
                return may_complete
                    && update_goal(active, at, None, None, Some(GoalStatus::Completed));
            }
            if active.source == GoalSource::Client {
                return false;
            }
        }
        if completed {
            return false;
        }
        // A paused goal that a model names again is resumed with everything that was done for it.
        let paused = |goal: &&Goal| goal.status == GoalStatus::Paused && is_same(goal);
        if let Some(known) = self.goals.iter().find(paused).map(|goal| goal.id) {
            self.pause_all_but(known);
            let resume = |goal| update_goal(goal, at, None, None, Some(GoalStatus::Active));
            return self.goal_mut(known).is_ok_and(resume);
        }
        let priority = GoalPriority::Medium;
        self.create(at, id, GoalSource::Marker, description, priority).unwrap_or(false)
    }

    /// Adds a goal and makes it the active one.
    fn create(
        &mut self,
        at: Timestamp,
        id: GoalId,
        source: GoalSource,
        description: &str,
        priority: GoalPriority,
    ) -> Result<bool, GoalError> {
        check_room(&self.goals, "goals")?;
        if self.goal(id).is_ok() {
            return Err(GoalError::Exists { what: "goal", id: id.to_string() });
        }
        self.pause_all_but(id);
        self.goals.push(Goal {
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
            shortened: false,
        });
        Ok(true)
    }

    fn pause_all_but(&mut self, id: GoalId) {
        let others = self.goals.iter_mut().filter(|goal| goal.id != id);
        for goal in others.filter(|goal| goal.status == GoalStatus::Active) {
            goal.status = GoalStatus::Paused;
        }
    }

    fn goal_mut(&mut self, id: GoalId) -> Result<&mut Goal, GoalError> {
        self.goals.iter_mut().find(|goal| goal.id == id).ok_or(GoalError::NoGoal { id })
    }
}

fn check_room<T>(items: &[T], what: &'static str) -> Result<(), GoalError> {
    if items.len() < MAX_ITEMS { Ok(()) } else { Err(GoalError::TooMany { what }) }
}

fn update_goal(
    goal: &mut Goal,
    at: Timestamp,
    description: Option<&str>,
    priority: Option<GoalPriority>,
    status: Option<GoalStatus>,
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

fn checkpoint_named<'g>(goal: &'g mut Goal, description: &str) -> Option<&'g mut GoalCheckpoint> {
    let wanted = normalized(description);
    goal.checkpoints.iter_mut().find(|one| normalized(&one.description) == wanted)
}

fn add_checkpoint(
    goal: &mut Goal,
    at: Timestamp,
    id: GoalCheckpointId,
    description: &str,
    status: CheckpointStatus,
) -> Result<bool, GoalError> {
    check_room(&goal.checkpoints, "checkpoints")?;
    goal.checkpoints.push(GoalCheckpoint {
        id,
        description: description.to_owned(),
        status,
        created_at: at,
        completed_at: (status == CheckpointStatus::Completed).then_some(at),
    });
    Ok(true)
}

fn update_checkpoint(
    checkpoint: &mut GoalCheckpoint,
    at: Timestamp,
    description: Option<&str>,
    status: Option<CheckpointStatus>,
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

fn new_decision(
    id: DecisionId,
    source: GoalSource,
    description: &str,
    locked: bool,
    at: Timestamp,
) -> GoalDecision {
    GoalDecision {
        id,
        kind: None,
        description: description.to_owned(),
        locked,
        source,
        created_at: at,
        locked_at: locked.then_some(at),
        superseded_by: None,
    }
}

fn add_decision(goal: &mut Goal, decision: GoalDecision) -> Result<bool, GoalError> {
    let wanted = normalized(&decision.description);
    let mut in_force = goal.decisions.iter().filter(|one| one.superseded_by.is_none());
    if let Some(twin) = in_force.find(|one| normalized(&one.description) == wanted) {
        return Err(GoalError::Exists { what: "decision", id: twin.id.to_string() });
    }
    check_room(&goal.decisions, "decisions")?;
    goal.decisions.push(decision);
    Ok(true)
}

fn decision_in_force(goal: &mut Goal, id: DecisionId) -> Result<&mut GoalDecision, GoalError> {
    let found = goal.decisions.iter_mut().find(|one| one.id == id);
    let found = found.ok_or(GoalError::NoDecision { id })?;
    match found.superseded_by {
        Some(by) => Err(GoalError::Superseded { id, by }),
        None => Ok(found),
    }
}

/// Locks a decision; returns false if it was locked before.
fn lock(decision: &mut GoalDecision, at: Timestamp) -> bool {
    if decision.locked {
        return false;
    }
    decision.locked = true;
    decision.locked_at = Some(at);
    true
}

/// Adds a file, or updates what was done to it: a created file stays created when it is modified.
fn add_artifact(
    goal: &mut Goal,
    at: Timestamp,
    kind: Option<&str>,
    path: &str,
    action: ArtifactAction,
) -> Result<bool, GoalError> {
    let Some(known) = goal.artifacts.iter().position(|one| one.path == path) else {
        check_room(&goal.artifacts, "artifacts")?;
        let kind = kind.map(str::to_owned);
        goal.artifacts.push(GoalArtifact { kind, path: path.to_owned(), action, at });
        return Ok(true);
    };
    let known = &mut goal.artifacts[known];
    let before = known.clone();
    if known.action != ArtifactAction::Created || action != ArtifactAction::Modified {
        known.action = action;
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

fn set_next_steps(goal: &mut Goal, steps: &[String]) -> bool {
    let steps = &steps[..steps.len().min(MAX_ITEMS)];
    let is_changed = goal.next_steps != steps;
    goal.next_steps = steps.to_vec();
    is_changed
}

/// Returns the words of a description without case and punctuation: equal for descriptions that mean the same.
fn normalized(description: &str) -> String {
    let word = |word: &str| word.trim_matches(|char: char| !char.is_alphanumeric()).to_lowercase();
    let words = description.split_whitespace().map(word).filter(|word| !word.is_empty());
    let joined = words.collect::<Vec<_>>().join(" ");
    if joined.is_empty() { description.trim().to_owned() } else { joined }
}

/// Returns a text on one line without control characters and escape sequences, cut to `max_bytes`.
pub(crate) fn on_one_line(text: &str, max_bytes: usize) -> String {
    let mut line = sanitize::one_line(text);
    if line.len() > max_bytes {
        let most = max_bytes.saturating_sub('\u{2026}'.len_utf8());
        let end = (0..=most).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        line.truncate(end);
        line.push('\u{2026}');
    }
    line
}
