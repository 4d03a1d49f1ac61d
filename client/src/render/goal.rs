//! Goals, for people.

use ollm_protocol::content::{CheckpointStatus, Goal, GoalDecision, GoalStatus};
use ollm_protocol::sanitize;

use super::number::counted;
use super::style::Style;

/// One goal with everything that holds. The numbers are what commands take.
pub(crate) fn whole(goal: &Goal) -> String {
    let state = format!("({}, {} priority)", goal.status.as_str(), goal.priority.as_str());
    let mut text = format!(
        "{}  {}\n",
        Style::Strong.paint(&sanitize::one_line(&goal.description)),
        Style::Faint.paint(&state)
    );
    let steps = goal.checkpoints.iter().zip(1..).map(|(step, number)| {
        let state = match step.status {
            CheckpointStatus::Pending => "",
            CheckpointStatus::InProgress => "begun",
            CheckpointStatus::Completed => "done",
        };
        format!("{number:>4}  {state:<5}  {}", sanitize::one_line(&step.description))
    });
    section(&mut text, "steps", steps);
    let holds = |(decision, _): &(&GoalDecision, usize)| decision.superseded_by.is_none();
    let decisions = goal.decisions.iter().zip(1..).filter(holds).map(|(decision, number)| {
        let lock = if decision.locked { "lock" } else { "" };
        let kind = decision.kind.as_deref().map(sanitize::one_line);
        let kind = kind.map_or_else(String::new, |kind| format!(" ({kind})"));
        format!("{number:>4}  {lock:<5}  {}{kind}", sanitize::one_line(&decision.description))
    });
    section(&mut text, "decisions", decisions);
    let files = goal.artifacts.iter();
    let files = files
        .map(|file| format!("  {:<8}  {}", file.action.as_str(), sanitize::one_line(&file.path)));
    section(&mut text, "files", files);
    section(
        &mut text,
        "next",
        goal.next_steps.iter().map(|step| format!("  {}", sanitize::one_line(step))),
    );
    text
}

fn section(text: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        text.push_str(&format!("{}\n", Style::Faint.paint(title)));
        lines.for_each(|line| text.push_str(&format!("{line}\n")));
    }
}

/// The active goal whole, then the others on one line each; goals come oldest first, which is how they are numbered.
pub(crate) fn list(goals: &[Goal]) -> String {
    let is_active = |goal: &Goal| goal.status == GoalStatus::Active;
    let mut text = match goals.iter().find(|goal| is_active(goal)) {
        Some(goal) => whole(goal),
        None => "no active goal\n".to_owned(),
    };
    let others = goals.iter().zip(1..).filter(|(goal, _)| !is_active(goal));
    let others = others.map(|(goal, number): (_, usize)| {
        let description = sanitize::one_line(&goal.description);
        format!("{number:>4}  {:<9}  {description}", goal.status.as_str())
    });
    section(&mut text, "other goals", others);
    text
}

/// One line, for a chat.
pub(crate) fn brief(goal: &Goal) -> String {
    let done = goal.checkpoints.iter().filter(|one| one.status == CheckpointStatus::Completed);
    let steps = match goal.checkpoints.len() as u64 {
        0 => String::new(),
        all => format!(" ({} of {} done)", done.count(), counted(all, "step")),
    };
    format!("goal: {}{steps}", sanitize::one_line(&goal.description))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goal(status: &str) -> Goal {
        let id = "01890000-0000-7000-8000-000000000000";
        let at = "2026-01-27T10:00:00Z";
        serde_json::from_value(serde_json::json!({
            "id": id, "description": "Ship \u{1b}[2Jit", "priority": "high", "status": status,
            "source": "client", "createdAt": at,
            "checkpoints": [
                { "id": id, "description": "Write", "status": "completed", "createdAt": at },
                { "id": id, "description": "Test", "status": "in-progress", "createdAt": at },
                { "id": id, "description": "Tag", "status": "pending", "createdAt": at }
            ],
            "decisions": [
                { "id": id, "description": "Old", "locked": true, "source": "client", "createdAt": at,
                  "supersededBy": id },
                { "id": id, "kind": "style", "description": "Tabs", "locked": true, "source": "client",
                  "createdAt": at }
            ],
            "artifacts": [{ "path": "a.rs", "action": "created", "at": at }],
            "nextSteps": ["Rest"]
        }))
        .unwrap()
    }

    #[test]
    fn a_list_shows_the_active_goal_whole_and_numbers_what_commands_take() {
        let text = list(&[goal("completed"), goal("active")]);
        assert_eq!(
            anstream::adapter::strip_str(&text).to_string(),
            "\
Ship it  (active, high priority)
steps
   1  done   Write
   2  begun  Test
   3         Tag
decisions
   2  lock   Tabs (style)
files
  created   a.rs
next
  Rest
other goals
   1  completed  Ship it
"
        );
        assert_eq!(list(&[]), "no active goal\n");
        assert_eq!(brief(&goal("active")), "goal: Ship it (1 of 3 steps done)");
    }
}
