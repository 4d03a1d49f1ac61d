//! What a model is told of the goals: the block of the system message, the goal part of a summary prompt, the lines of a
//! change, and how to write markers.

use ollm_protocol::content::{
    CheckpointStatus, Goal, GoalChange, GoalDecision, GoalSource, GoalStep,
};

use super::{GoalState, on_one_line};

/// Tells a model how to report progress; for the system message where `goals.markers` is on.
pub(crate) const MARKER_INSTRUCTION: &str = "\
When the goal or its progress changes, say so in lines of their own, outside of code and quotes:
[GOAL] <what is to be achieved>
[CHECKPOINT] <one step> - PENDING, or IN PROGRESS, or COMPLETED
[DECISION] <what was decided>, with - LOCKED behind it if it must not change
[ARTIFACT] <Created, Modified or Deleted> <path of the file>
[NEXT] <what comes next>
Repeat the words of a step exactly when its state changes. Leave the lines out when nothing changed.";

/// What the block of a goal begins with.
pub(crate) const GOAL_BLOCK: &str = "<goal priority=";

/// A text within its share, and how much of what it should say is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The text.
    pub text: String,
    /// Items that are left out; the text says so, and where they are.
    pub omitted: usize,
}

/// The longest line that says how much is left out.
const MORE: &str = "+10000 more (goal.list)\n";

/// The active goal for the system message; `None` where there is none, or where not even a few words of it fit.
///
/// `count` counts tokens of a text. The text never has more than `max_tokens` by that count.
pub(crate) fn goal_block(
    state: &GoalState,
    count: &dyn Fn(&str) -> u64,
    max_tokens: u64,
) -> Option<Block> {
    let goal = state.active()?;
    let sections = sections(goal);
    let head =
        |description: &str| format!("{GOAL_BLOCK}\"{}\">\n{description}\n", goal.priority.as_str());
    let frame = count(&head("")) + count("</goal>") + count(MORE);
    let left = max_tokens.checked_sub(frame)?;
    let description = cut(&goal.description, count, left)?;
    let mut left = left.saturating_sub(count(&description));
    let mut kept: Vec<(&str, Vec<String>)> = Vec::new();
    let mut omitted = usize::from(description != harmless(&goal.description));
    for (title, items) in sections {
        let mut lines = Vec::new();
        for item in items {
            let line = format!("- {item}\n");
            let title_cost = if lines.is_empty() { count(title) + 1 } else { 0 };
            let cost = count(&line) + title_cost;
            if cost <= left {
                left -= cost;
                lines.push(line);
            } else {
                omitted += 1;
            }
        }
        if !lines.is_empty() {
            kept.push((title, lines));
        }
    }
    // Parts may count a little less than the whole; the last ones go then.
    loop {
        let text = joined(&head(&description), &kept, omitted);
        if count(&text) <= max_tokens {
            return Some(Block { text, omitted });
        }
        kept.last_mut()?.1.pop()?;
        omitted += 1;
        kept.retain(|(_, lines)| !lines.is_empty());
    }
}

fn joined(head: &str, sections: &[(&str, Vec<String>)], omitted: usize) -> String {
    let mut text = head.to_owned();
    for (title, lines) in sections {
        text.push_str(title);
        text.push('\n');
        lines.iter().for_each(|line| text.push_str(line));
    }
    if omitted > 0 {
        text.push_str(&format!("+{omitted} more (goal.list)\n"));
    }
    text.push_str("</goal>");
    text
}

/// What there is to say of a goal, the most important first.
fn sections(goal: &Goal) -> [(&'static str, Vec<String>); 7] {
    let holds = |locked: bool| {
        let of = move |one: &&GoalDecision| one.superseded_by.is_none() && one.locked == locked;
        goal.decisions.iter().filter(of).map(decided).collect()
    };
    let steps = |status: CheckpointStatus| {
        let of = goal.checkpoints.iter().filter(move |one| one.status == status);
        of.map(|one| harmless(&one.description)).collect()
    };
    let artifacts = goal.artifacts.iter();
    let artifacts =
        artifacts.map(|one| format!("{} {}", one.action.as_str(), harmless(&one.path))).collect();
    [
        ("Locked decisions, which only the user changes:", holds(true)),
        ("In progress:", steps(CheckpointStatus::InProgress)),
        ("Pending:", steps(CheckpointStatus::Pending)),
        ("Next steps:", goal.next_steps.iter().map(|step| harmless(step)).collect()),
        ("Decisions:", holds(false)),
        ("Files:", artifacts),
        ("Completed:", steps(CheckpointStatus::Completed)),
    ]
}

fn decided(decision: &GoalDecision) -> String {
    let description = harmless(&decision.description);
    match &decision.kind {
        Some(kind) => format!("{description} ({})", harmless(kind)),
        None => description,
    }
}

/// A text that cannot end the block that it stands in: markers come from models.
fn harmless(text: &str) -> String {
    text.replace("</goal", "<\\/goal")
}

/// As much of a text's beginning as fits; `None` where not even one word of some letters does.
fn cut(text: &str, count: &dyn Fn(&str) -> u64, max_tokens: u64) -> Option<String> {
    let text = harmless(text);
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

/// The goal part of a prompt that asks for a summary; `None` where there is no active goal.
pub(crate) fn goal_prompt(state: &GoalState) -> Option<String> {
    let goal = state.active()?;
    let mut text = format!(
        "The conversation works towards this goal ({} priority): {}\n",
        goal.priority.as_str(),
        harmless(&goal.description)
    );
    for (title, items) in sections(goal) {
        if !items.is_empty() {
            text.push_str(title);
            text.push('\n');
            items.iter().for_each(|item| text.push_str(&format!("- {item}\n")));
        }
    }
    text.push_str(
        "Keep what serves the goal: decisions and their reasons, steps that were done, files that were made or \
         changed, what is in the way, technical details, what was planned next.\n\
         Be brief about the rest: what leads away from the goal, attempts that were given up, the search for errors \
         that are fixed, repetitions.\n",
    );
    Some(text)
}

/// One line for each step of changes that clients made, for a model that was told of the goals before; empty where
/// there is nothing to tell. `state` is what the changes led to.
pub(crate) fn goal_delta(state: &GoalState, changes: &[GoalChange]) -> String {
    let of_clients = changes.iter().filter(|change| change.source == GoalSource::Client);
    let lines = of_clients.flat_map(|change| &change.steps).filter_map(|step| told(state, step));
    lines.collect::<Vec<_>>().join("\n")
}

fn told(state: &GoalState, step: &GoalStep) -> Option<String> {
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
