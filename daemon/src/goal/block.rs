//! The texts about goals that a model is sent: the block of the system message and of a request for a summary, the lines
//! of a change, and the instruction to write markers.
//!
//! **Invariant**: a text keeps within its share by the count that is passed in. Must not know who counts.

use ollm_protocol::content::{
    CheckpointStatus, Goal, GoalArtifact, GoalChange, GoalDecision, GoalSource, GoalStep,
};

use super::state::{GoalState, on_one_line};

/// The instruction to report progress by markers; in the system message if `goals.markers` is on.
pub(crate) const MARKER_INSTRUCTION: &str = "\
When the goal or its progress changes, say so in lines of their own, outside of code and quotes:
[GOAL] <what is to be achieved>
[CHECKPOINT] <one step> - PENDING, or IN PROGRESS, or COMPLETED
[DECISION] <what was decided>, with - LOCKED behind it if it must not change
[ARTIFACT] <Created, Modified or Deleted> <path of the file>
[NEXT] <what comes next>
Repeat the words of a step exactly when its state changes. Leave the lines out when nothing changed.";

/// The beginning of the block of a goal.
pub(crate) const GOAL_BLOCK: &str = "<goal priority=";

/// A text within its share of the prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BoundedText {
    pub text: String,
    /// Items that did not fit; the text names their number and where to get them.
    pub omitted: usize,
}

/// The end of the block of a goal.
pub(crate) const GOAL_END: &str = "</goal>";

/// The sections before that of locked decisions.
const N_STEP_SECTIONS: usize = 2;
/// The longest line that names the number of omitted items.
const MORE: &str = "+10000 more\n";

/// Returns the active goal for a prompt, or `None` without an active goal or room for a few words of it.
///
/// `count` counts the tokens of a text; the result has at most `max_tokens`.
pub(crate) fn goal_block(
    state: &GoalState,
    count: &dyn Fn(&str) -> u64,
    max_tokens: u64,
) -> Option<BoundedText> {
    let goal = state.active()?;
    let head =
        |description: &str| format!("{GOAL_BLOCK}\"{}\">\n{description}\n", goal.priority.as_str());
    bounded(goal, &head, GOAL_END, count, max_tokens)
}

/// Returns the number of items that a line of a bounded text says are left out; 0 for any other line.
pub(crate) fn n_omitted(line: &str) -> u64 {
    let number = line.strip_prefix('+').and_then(|rest| rest.strip_suffix(" more"));
    number.and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// Returns a goal between a head, which contains its description, and a tail, with as many items as fit.
fn bounded(
    goal: &Goal,
    head: &dyn Fn(&str) -> String,
    tail: &str,
    count: &dyn Fn(&str) -> u64,
    max_tokens: u64,
) -> Option<BoundedText> {
    let frame = count(&head("")) + count(tail) + count(MORE);
    let left = max_tokens.checked_sub(frame)?;
    let description = fitting(&goal.description, count, left)?;
    let mut left = left.saturating_sub(count(&description));
    let mut kept: Vec<(&str, Vec<String>)> = Vec::new();
    let mut omitted = usize::from(description != escaped(&goal.description));
    for (n, (title, items)) in sections(goal).into_iter().enumerate() {
        // Steps leave room for locked decisions.
        let mut room = if n < N_STEP_SECTIONS { left - left / 4 } else { left };
        let mut lines = Vec::new();
        for item in items {
            let title_cost = if lines.is_empty() { count(title) + 1 } else { 0 };
            let cost = count(&format!("- {item}\n")) + title_cost;
            if cost <= room {
                (left, room) = (left - cost, room - cost);
                lines.push(item);
            } else {
                omitted += 1;
            }
        }
        if !lines.is_empty() {
            kept.push((title, lines));
        }
    }
    // The parts may count a little less than the whole; the last lines are then removed.
    loop {
        let text = joined(&head(&description), &kept, omitted, tail);
        if count(&text) <= max_tokens {
            return Some(BoundedText { text, omitted });
        }
        kept.last_mut()?.1.pop()?;
        omitted += 1;
        kept.retain(|(_, lines)| !lines.is_empty());
    }
}

fn joined(head: &str, sections: &[(&str, Vec<String>)], omitted: usize, tail: &str) -> String {
    let mut text = head.to_owned();
    sections.iter().for_each(|(title, items)| push_section(&mut text, title, items));
    if omitted > 0 {
        text.push_str(&format!("+{omitted} more\n"));
    }
    text.push_str(tail);
    text
}

fn push_section(text: &mut String, title: &str, items: &[String]) {
    text.push_str(title);
    text.push('\n');
    items.iter().for_each(|item| text.push_str(&format!("- {item}\n")));
}

/// The items of a goal by title, the most important first, each list newest first.
fn sections(goal: &Goal) -> [(&'static str, Vec<String>); 7] {
    let decisions = |locked: bool| {
        let in_force = goal.decisions.iter().rev().filter(|one| one.superseded_by.is_none());
        in_force.filter(|one| one.locked == locked).map(decision_line).collect()
    };
    let checkpoints = |status: CheckpointStatus| {
        let with_status = goal.checkpoints.iter().rev().filter(|one| one.status == status);
        with_status.map(|one| escaped(&one.description)).collect()
    };
    let artifact = |one: &GoalArtifact| format!("{} {}", one.action.as_str(), escaped(&one.path));
    [
        ("In progress:", checkpoints(CheckpointStatus::InProgress)),
        ("Next steps:", goal.next_steps.iter().map(|step| escaped(step)).collect()),
        ("Locked decisions, which only the user changes:", decisions(true)),
        ("Pending:", checkpoints(CheckpointStatus::Pending)),
        ("Decisions:", decisions(false)),
        ("Files:", goal.artifacts.iter().rev().map(artifact).collect()),
        ("Completed:", checkpoints(CheckpointStatus::Completed)),
    ]
}

fn decision_line(decision: &GoalDecision) -> String {
    let description = escaped(&decision.description);
    match &decision.kind {
        Some(kind) => format!("{description} ({})", escaped(kind)),
        None => description,
    }
}

/// Returns a text that cannot end its block. Models write the texts of markers.
fn escaped(text: &str) -> String {
    text.replace("</goal", "<\\/goal")
}

/// Returns the beginning of a text that fits, or `None` if fewer than eight bytes fit.
fn fitting(text: &str, count: &dyn Fn(&str) -> u64, max_tokens: u64) -> Option<String> {
    let text = escaped(text);
    if count(&text) <= max_tokens {
        return Some(text);
    }
    let (mut fits, mut too_long) = (0, text.len());
    while too_long - fits > 1 {
        let middle = fits + (too_long - fits) / 2;
        if count(&on_one_line(&text, middle)) <= max_tokens {
            fits = middle;
        } else {
            too_long = middle;
        }
    }
    (fits >= 8).then(|| on_one_line(&text, fits))
}

/// Returns one line for each step of the clients among `changes`, for a model that was sent the goals before them.
///
/// `state` is the state after the changes.
pub(crate) fn goal_delta(state: &GoalState, changes: &[GoalChange]) -> String {
    let of_clients = changes.iter().filter(|change| change.source == GoalSource::Client);
    let steps = of_clients.flat_map(|change| &change.steps);
    let lines = steps.filter_map(|step| step_line(state, step));
    lines.collect::<Vec<_>>().join("\n")
}

fn step_line(state: &GoalState, step: &GoalStep) -> Option<String> {
    let goal = |id| state.goal(id).ok();
    Some(match step {
        GoalStep::Create { description, priority, .. } => {
            format!("New goal ({} priority): {description}", priority.as_str())
        }
        GoalStep::Update { goal: id, status, .. } => {
            let goal = goal(*id)?;
            let status = status.unwrap_or(goal.status).as_str();
            let priority = goal.priority.as_str();
            format!("Goal, now {status} ({priority} priority): {}", goal.description)
        }
        GoalStep::AddCheckpoint { description, status, .. } => {
            format!("New step ({}): {description}", status.as_str())
        }
        GoalStep::UpdateCheckpoint { goal: of, id, .. } => {
            let step = goal(*of)?.checkpoints.iter().find(|one| one.id == *id)?;
            format!("Step, now {}: {}", step.status.as_str(), step.description)
        }
        GoalStep::AddDecision { goal: of, description, locked, supersedes, .. } => {
            let lock = if *locked { ", locked" } else { "" };
            let old = supersedes.and_then(|old| {
                let decisions = &goal(*of)?.decisions;
                decisions.iter().find(|one| one.id == old)
            });
            let old = old.map(|old| format!(", instead of: {}", old.description));
            format!("Decided{lock}: {description}{}", old.unwrap_or_default())
        }
        GoalStep::LockDecision { goal: of, id } => {
            let decision = goal(*of)?.decisions.iter().find(|one| one.id == *id)?;
            format!("Locked decision: {}", decision.description)
        }
        GoalStep::AddArtifact { path, did, .. } => format!("File {}: {path}", did.as_str()),
        GoalStep::SetNextSteps { next_steps, .. } if next_steps.is_empty() => {
            "Next steps: none".to_owned()
        }
        GoalStep::SetNextSteps { next_steps, .. } => {
            format!("Next steps: {}", next_steps.join("; "))
        }
        GoalStep::Mark { .. } => return None,
    })
}
