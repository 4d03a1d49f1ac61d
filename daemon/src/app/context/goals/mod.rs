//! `goal.change` and `goal.list`: changing and listing the goals of a session.
//!
//! The session's writer plans a change from the goals in force, step by step. So of two clients whose changes exclude
//! each other, only one succeeds. A change without effect is not recorded.

use std::sync::Arc;

use ollm_protocol::content::{
    Goal, GoalChange, GoalMarker, GoalSource, GoalStep, Record, RecordBody, Role,
};
use ollm_protocol::limits::{self, BoundedField, MAX_PAGE_BYTES};
use ollm_protocol::methods::goal::{self as g, GoalStepParams, GoalStepResult};
use ollm_protocol::{DecisionId, GoalCheckpointId, GoalId, Seq, SessionId, Timestamp, method};

use super::folds::{GoalsInForce, active_path, goals, goals_before};
use crate::app::change;
use crate::app::change::View;
use crate::app::core::{Core, blocking};
use crate::app::drafts::{marker_steps, take_key, uncounted};
use crate::app::error::{AppError, Result, page_limit};
use crate::goal::{GoalError, GoalState, MAX_ITEMS, markers, on_one_line};
use crate::session::{Appended, SessionError};

/// The default number of goals in a page; one goal has at most some megabytes.
const DEFAULT_LIMIT: u32 = 25;
const MAX_LIMIT: u32 = 100;
/// The most steps of a change. With more, the markers in the result could be larger than a response.
const MAX_STEPS: usize = 100;

/// Changes goals (`goal.change`).
///
/// **Errors**: the reason why the first step that is impossible is refused; no step is made then.
pub(crate) async fn change(
    core: Arc<Core>,
    mut params: g::GoalChangeParams,
) -> Result<g::GoalChangeResult> {
    let key = take_key::<method::GoalChange>(&mut params, |params| &mut params.key)?;
    let g::GoalChangeParams { session_id: id, steps, .. } = params;
    if !(1..=MAX_STEPS).contains(&steps.len()) {
        return Err(AppError::invalid("steps", format!("must have 1 to {MAX_STEPS} items")));
    }
    let mut prepared = Vec::new();
    for step in steps {
        prepared.push(prepare(&core, id, step).await?);
    }
    let subjects: Vec<_> = prepared.iter().map(PreparedStep::subject).collect();
    core.cache.with(id, |session| session.goal_is_queued = true);
    let at = core.clock.now();
    let appended = change::change(&core, id, key, move |view: &View<'_, GoalsInForce>| {
        let changes = plan(&view.fold.goals, at, prepared)?;
        Ok(changes.into_iter().map(|change| uncounted(RecordBody::Goal(change))).collect())
    })
    .await?;
    blocking(&core, move |core| reply(core, id, subjects, appended.as_ref())).await
}

/// Makes the steps on a copy of the goals and returns the changes to record: consecutive steps of the client are one, and
/// so are the markers of a text. Returns nothing if no step has an effect.
fn plan(
    goals: &GoalState,
    at: Timestamp,
    steps: Vec<PreparedStep>,
) -> Result<Vec<GoalChange>, GoalError> {
    let (mut goals, mut is_changed) = (goals.clone(), false);
    let mut changes: Vec<GoalChange> = Vec::new();
    for step in steps {
        let (source, message_seq, steps) = match step {
            PreparedStep::Client(goal, make) => {
                let goal = match goal {
                    Some(goal) => goal,
                    None => goals.active().ok_or(GoalError::NoActiveGoal)?.id,
                };
                (GoalSource::Client, None, vec![make(goal)])
            }
            PreparedStep::Markers(_, steps) if steps.is_empty() => continue,
            PreparedStep::Markers(seq, steps) => (GoalSource::Marker, seq, steps),
        };
        for step in &steps {
            is_changed |= goals.make_step(at, step)?;
        }
        match changes.last_mut() {
            Some(last) if [last.source, source] == [GoalSource::Client; 2] => {
                last.steps.extend(steps);
            }
            _ => changes.push(GoalChange { source, message_seq, steps }),
        }
    }
    Ok(if is_changed { changes } else { Vec::new() })
}

/// Makes a client's step on a goal.
type MakeStep = Box<dyn FnOnce(GoalId) -> GoalStep + Send>;

/// A step whose texts are checked and whose new ids are assigned.
enum PreparedStep {
    /// A step on a goal; on the active one if none is named.
    Client(Option<GoalId>, MakeStep),
    /// The markers of a text, and the message that has it.
    Markers(Option<Seq>, Vec<GoalStep>),
}

/// The part of a reply about one step that does not follow from the records.
enum StepSubject {
    Goal(Option<GoalId>),
    Markers(Vec<GoalMarker>),
}

impl PreparedStep {
    fn subject(&self) -> StepSubject {
        let marker = |step: &GoalStep| match step {
            GoalStep::Mark { marker, .. } => Some(marker.clone()),
            _ => None,
        };
        match self {
            Self::Client(goal, _) => StepSubject::Goal(*goal),
            Self::Markers(_, steps) => {
                StepSubject::Markers(steps.iter().filter_map(marker).collect())
            }
        }
    }
}

/// Checks a step and assigns the id of what it adds.
///
/// **Errors**: `Invalid` for a text that is empty, and for a step that changes nothing; `TooLarge`.
async fn prepare(core: &Arc<Core>, id: SessionId, step: GoalStepParams) -> Result<PreparedStep> {
    let new_id = core.clock.uuid();
    let (goal, make): (Option<GoalId>, MakeStep) = match step {
        GoalStepParams::Create { description, priority } => {
            let description = checked_text("description", &description)?;
            let create = move |id| GoalStep::Create { id, description, priority, source: None };
            (Some(GoalId::from_uuid(new_id)), Box::new(create))
        }
        GoalStepParams::Update { description: None, priority: None, status: None, .. }
        | GoalStepParams::UpdateCheckpoint { description: None, status: None, .. } => {
            return Err(AppError::invalid("steps", "name at least one field to change"));
        }
        GoalStepParams::Update { goal_id, description, priority, status } => {
            let description = checked_option("description", description)?;
            let update = move |goal| GoalStep::Update { goal, description, priority, status };
            (goal_id, Box::new(update))
        }
        GoalStepParams::AddCheckpoint { goal_id, description, status } => {
            let description = checked_text("description", &description)?;
            let id = GoalCheckpointId::from_uuid(new_id);
            let add = move |goal| GoalStep::AddCheckpoint { goal, id, description, status };
            (goal_id, Box::new(add))
        }
        GoalStepParams::UpdateCheckpoint { goal_id, checkpoint_id: id, description, status } => {
            let description = checked_option("description", description)?;
            let update = move |goal| GoalStep::UpdateCheckpoint { goal, id, description, status };
            (goal_id, Box::new(update))
        }
        GoalStepParams::AddDecision { goal_id, description, kind, locked, supersedes } => {
            let description = checked_text("description", &description)?;
            let kind = checked_option("kind", kind)?;
            let (id, source) = (DecisionId::from_uuid(new_id), None);
            let add = move |goal| GoalStep::AddDecision {
                goal,
                id,
                kind,
                description,
                locked,
                supersedes,
                source,
            };
            (goal_id, Box::new(add))
        }
        GoalStepParams::LockDecision { goal_id, decision_id: id } => {
            (goal_id, Box::new(move |goal| GoalStep::LockDecision { goal, id }))
        }
        GoalStepParams::AddArtifact { goal_id, path, did, kind } => {
            let (path, kind) = (checked_text("path", &path)?, checked_option("type", kind)?);
            (goal_id, Box::new(move |goal| GoalStep::AddArtifact { goal, kind, path, did }))
        }
        GoalStepParams::SetNextSteps { goal_id, next_steps } => {
            if next_steps.len() > MAX_ITEMS {
                let problem = format!("has more than {MAX_ITEMS} items");
                return Err(AppError::invalid("nextSteps", problem));
            }
            let checked = next_steps.iter().map(|step| checked_text("nextSteps", step));
            let next_steps = checked.collect::<Result<_>>()?;
            (goal_id, Box::new(move |goal| GoalStep::SetNextSteps { goal, next_steps }))
        }
        GoalStepParams::ApplyMarkers { text, seq } => {
            let text = match (text, seq) {
                (Some(text), None) => text,
                (None, Some(seq)) => {
                    blocking(core, move |core| assistant_text(core, id, seq)).await?
                }
                _ => return Err(AppError::invalid("text", "name either text or seq")),
            };
            let steps = marker_steps(&core.clock, &markers::parse(&text, true));
            return Ok(PreparedStep::Markers(seq, steps));
        }
    };
    Ok(PreparedStep::Client(goal, make))
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

fn checked_option(field: &'static str, text: Option<String>) -> Result<Option<String>> {
    text.map(|text| checked_text(field, &text)).transpose()
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

/// Returns the result of a call, from the records of its change, or from the goals in force if there was nothing to change.
/// Blocks on the disk.
fn reply(
    core: &Core,
    id: SessionId,
    subjects: Vec<StepSubject>,
    appended: Option<&Appended>,
) -> Result<g::GoalChangeResult> {
    let n_steps = |subject: &StepSubject| match subject {
        StepSubject::Goal(_) => 1,
        StepSubject::Markers(markers) => markers.len(),
    };
    let (goals, recorded) = match appended {
        Some(first) => recorded_steps(core, id, first.seq, subjects.iter().map(n_steps).sum())?,
        None => (goals(core, id, &*active_path(core, id)?)?, Vec::new()),
    };
    let (mut recorded, mut goal, mut steps) = (recorded.into_iter(), None, Vec::new());
    for subject in subjects {
        let mut own = recorded.by_ref().take(n_steps(&subject));
        let mut result = GoalStepResult::default();
        goal = match subject {
            StepSubject::Goal(named) => own.next().map_or(named, |(step, _)| {
                match step {
                    GoalStep::Create { id, .. } => result.goal_id = Some(id),
                    GoalStep::AddCheckpoint { id, .. } => result.checkpoint_id = Some(id),
                    GoalStep::AddDecision { id, .. } => result.decision_id = Some(id),
                    _ => {}
                }
                step.goal()
            }),
            StepSubject::Markers(markers) => {
                result.applied = Some(own.filter(|(_, is_applied)| *is_applied).count() as u64);
                result.markers = Some(markers);
                None
            }
        };
        steps.push(result);
    }
    Ok(g::GoalChangeResult {
        goal: goals.named_or_active(goal).ok().map(short_goal),
        seq: appended.map(|first| first.seq),
        steps,
        duplicate: appended.is_some_and(|first| first.duplicate),
    })
}

/// A recorded step, and whether it changed something.
type MadeStep = (GoalStep, bool);

/// Reads the steps of a change, each with whether it changed something, and the goals after them. Blocks on the disk.
fn recorded_steps(
    core: &Core,
    id: SessionId,
    first: Seq,
    n_steps: usize,
) -> Result<(Arc<GoalState>, Vec<MadeStep>)> {
    let path = core.sessions.with(id, |live| {
        let path = core.cache.path_to(live.state(), live.state().leaf());
        if path.contains(first) { path } else { core.cache.path_to(live.state(), Some(first)) }
    })?;
    let (mut goals, mut steps) = (goals_before(core, id, &path, first)?, Vec::new());
    let mut seq = first;
    while steps.len() < n_steps {
        let record = core.sessions.records(id, &[seq])?.pop().flatten();
        let at = record.as_ref().map(|record| record.at);
        let body = record.and_then(Record::into_body);
        let (Some(at), Some(RecordBody::Goal(change))) = (at, body) else {
            return Err(SessionError::Damaged { id, seq }.into());
        };
        for step in change.steps {
            // The fold ignores a refused step as well.
            let is_changed = Arc::make_mut(&mut goals).make_step(at, &step).unwrap_or(false);
            steps.push((step, is_changed));
        }
        seq.0 += 1;
    }
    Ok((goals, steps))
}

/// Lists goals, newest first (`goal.list`). Blocks on the disk.
pub(crate) fn list(core: &Arc<Core>, params: g::GoalListParams) -> Result<g::GoalListResult> {
    let limit = page_limit(params.limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    let id = params.session_id;
    let state = goals(core, id, &*active_path(core, id)?)?;
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

#[cfg(test)]
mod tests;
