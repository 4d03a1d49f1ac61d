//! `ollmctl goal`: the goals of a session, with their steps, decisions and files.
//!
//! The daemon identifies goals, steps and decisions by ids; this command shows and takes numbers that count from 1.

use clap::{Args, Subcommand};
use ollm_protocol::content::{
    ArtifactAction, CheckpointStatus, Goal, GoalDecision, GoalPriority, GoalStatus,
};
use ollm_protocol::method as m;
use ollm_protocol::methods::goal::{self as g, GoalStepParams};
use ollm_protocol::{GoalId, SessionId, sanitize};

use crate::args::session::SessionFlag;
use crate::args::{wire_enum, wire_enum_with_alias};
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::render::Style;

const STATUS_HELP: [&str; 3] =
    ["The session works on the goal", "The goal waits", "The goal is achieved"];

/// Goals of one page.
const PAGE_GOALS: u32 = 100;

/// Show and set the goals of a session.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
The goal is sent with every context. A model reports progress with markers such as `[CHECKPOINT] Add login - \
COMPLETED`, but cannot change a locked decision.

Examples:
  ollmctl goal
  ollmctl goal create 'Implement user authentication'
  ollmctl goal checkpoint 'Add login'
  ollmctl goal checkpoint 1 completed
  ollmctl goal decide 'Use JWT' --locked"
)]
pub(crate) struct GoalArgs {
    #[command(flatten)]
    session: SessionFlag,
    /// The goal, by its number in `goal list` [default: the active one].
    #[arg(long, global = true, value_name = "N")]
    goal: Option<usize>,
    #[command(subcommand)]
    command: Option<GoalCommand>,
}

#[derive(Debug, Subcommand)]
#[command(defer = true)]
enum GoalCommand {
    /// Create a goal and make it the active one; pauses the goal that was active.
    #[command(after_help = "\
Examples:
  ollmctl goal create 'Implement user authentication'
  ollmctl goal create 'Ship version 2' --priority high --step 'Write the notes' --step 'Tag it'")]
    Create {
        /// The result to achieve.
        text: String,
        /// The importance of the goal.
        #[arg(long, default_value = "medium", value_parser = wire_enum::<GoalPriority>(&[]))]
        priority: GoalPriority,
        /// A step of the goal; may be given several times.
        #[arg(long = "step", value_name = "TEXT")]
        steps: Vec<String>,
    },
    /// Show the active goal, and the others on one line each; `goal` alone does the same.
    #[command(after_help = "\
Other commands take the numbers of steps, decisions and goals that are shown here.

Examples:
  ollmctl goal list
  ollmctl goal list --session last --json")]
    List,
    #[command(flatten)]
    Change(ChangeGoalCommand),
}

/// The commands that change a goal.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
enum ChangeGoalCommand {
    /// Change the text, the priority or the status of a goal.
    #[command(after_help = "\
Examples:
  ollmctl goal update --status completed
  ollmctl goal update --goal 1 --status active
  ollmctl goal update --text 'Implement login and logout' --priority low")]
    Update(UpdateArgs),
    /// Add a step, or set the state of one.
    #[command(after_help = "\
A number or the text of an existing step selects that step; another text adds a step.

Examples:
  ollmctl goal checkpoint 'Add login'
  ollmctl goal checkpoint 2 in-progress
  ollmctl goal checkpoint 'Add login' completed")]
    Checkpoint {
        /// The step: its number, its text, or the text of a new one.
        step: String,
        /// The state of the step [default for a new step: pending].
        #[arg(value_parser = wire_enum_with_alias::<CheckpointStatus>(&[], ("done", "completed")))]
        state: Option<CheckpointStatus>,
    },
    /// Record a decision.
    #[command(after_help = "\
With --instead-of it replaces another decision, locked or not.

Examples:
  ollmctl goal decide 'Use JWT' --locked
  ollmctl goal decide 'Use cookies' --kind architecture --instead-of 1")]
    Decide {
        /// The decision.
        text: String,
        /// The subject of the decision, in a word of your own.
        #[arg(long)]
        kind: Option<String>,
        /// Lock the decision, so that a model cannot change it.
        #[arg(long)]
        locked: bool,
        /// The number of the decision to replace.
        #[arg(long, value_name = "N")]
        instead_of: Option<usize>,
    },
    /// Lock a decision, so that a model cannot change it.
    #[command(after_help = "\
Examples:
  ollmctl goal lock 1")]
    Lock {
        /// The number of the decision.
        #[arg(value_name = "N")]
        decision: usize,
    },
    /// Note a file that was created, modified or deleted for the goal.
    #[command(after_help = "\
Examples:
  ollmctl goal artifact created src/login.rs
  ollmctl goal artifact modified README.md --type docs")]
    Artifact {
        /// The change of the file.
        #[arg(value_parser = wire_enum::<ArtifactAction>(&[]))]
        action: ArtifactAction,
        /// The file.
        path: String,
        /// The type of the file, in a word of your own.
        #[arg(long = "type", value_name = "TYPE")]
        kind: Option<String>,
    },
    /// Set the next steps, in place of the previous ones.
    #[command(after_help = "\
Examples:
  ollmctl goal next 'Write the tests' 'Update the README'
  ollmctl goal next --none")]
    Next {
        /// The next steps, in order.
        #[arg(required_unless_present = "none", value_name = "TEXT")]
        steps: Vec<String>,
        /// Remove the next steps.
        #[arg(long, conflicts_with = "steps")]
        none: bool,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct UpdateArgs {
    /// The result to achieve.
    #[arg(long)]
    text: Option<String>,
    /// The importance of the goal.
    #[arg(long, value_parser = wire_enum::<GoalPriority>(&[]))]
    priority: Option<GoalPriority>,
    /// The status of the goal; activating a goal pauses the one that was active.
    #[arg(long, value_parser = wire_enum::<GoalStatus>(&STATUS_HELP))]
    status: Option<GoalStatus>,
}

pub(super) fn run(args: GoalArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.id_or_current("goal list", ctx)?;
    match args.command.unwrap_or(GoalCommand::List) {
        GoalCommand::Create { text: description, priority, steps } => {
            let add = |description| GoalStepParams::AddCheckpoint {
                goal_id: None,
                description,
                status: CheckpointStatus::default(),
            };
            let create = GoalStepParams::Create { description, priority };
            let steps = std::iter::once(create).chain(steps.into_iter().map(add)).collect();
            change(session_id, steps, ctx)
        }
        GoalCommand::List => match args.goal {
            None => list(session_id, ctx),
            Some(number) => {
                let goals = goals(session_id, ctx)?;
                let goal = numbered(&goals, number, "goal")?;
                ctx.print_value(goal, |goal, _| render_goal(goal))
            }
        },
        GoalCommand::Change(command) => {
            let goals = goals(session_id, ctx)?;
            let goal = match args.goal {
                Some(number) => Some(numbered(&goals, number, "goal")?),
                None => goals.iter().find(|goal| goal.status == GoalStatus::Active),
            };
            change(session_id, vec![step(goal, command)?], ctx)
        }
    }
}

/// Returns the step of a command. Without a goal the daemon refuses it, because none is active.
fn step(goal: Option<&Goal>, command: ChangeGoalCommand) -> CommandResult<GoalStepParams> {
    let goal_id = goal.map(|goal| goal.id);
    let decision_id = |number: usize| {
        let decisions = goal.map_or(&[][..], |goal| &goal.decisions);
        numbered(decisions, number, "decision").map(|decision| decision.id)
    };
    Ok(match command {
        ChangeGoalCommand::Update(args) => GoalStepParams::Update {
            goal_id,
            description: args.text,
            priority: args.priority,
            status: args.status,
        },
        ChangeGoalCommand::Checkpoint { step, state } => checkpoint_step(goal, step, state)?,
        ChangeGoalCommand::Decide { text: description, kind, locked, instead_of } => {
            let supersedes = instead_of.map(decision_id).transpose()?;
            GoalStepParams::AddDecision { goal_id, description, kind, locked, supersedes }
        }
        ChangeGoalCommand::Lock { decision } => {
            GoalStepParams::LockDecision { goal_id, decision_id: decision_id(decision)? }
        }
        ChangeGoalCommand::Artifact { action: did, path, kind } => {
            GoalStepParams::AddArtifact { goal_id, path, did, kind }
        }
        ChangeGoalCommand::Next { steps: next_steps, none: _ } => {
            GoalStepParams::SetNextSteps { goal_id, next_steps }
        }
    })
}

/// Returns the step that adds a checkpoint, or sets the state of the checkpoint with this number or text.
fn checkpoint_step(
    goal: Option<&Goal>,
    description: String,
    state: Option<CheckpointStatus>,
) -> CommandResult<GoalStepParams> {
    let goal_id = goal.map(|goal| goal.id);
    let steps = goal.map_or(&[][..], |goal| &goal.checkpoints);
    let typed = description.trim().to_lowercase();
    let existing = match typed.parse() {
        Ok(number) => Some(numbered(steps, number, "step")?),
        Err(_) => steps.iter().find(|step| step.description.trim().to_lowercase() == typed),
    };
    match (existing, state) {
        (Some(step), Some(_)) => Ok(GoalStepParams::UpdateCheckpoint {
            goal_id,
            checkpoint_id: step.id,
            description: None,
            status: state,
        }),
        (Some(_), None) => Err(CommandError::usage(
            "the goal has this step already; give its new state",
            "ollmctl goal checkpoint N completed",
        )),
        (None, state) => {
            let status = state.unwrap_or_default();
            Ok(GoalStepParams::AddCheckpoint { goal_id, description, status })
        }
    }
}

/// Changes goals and prints the new version of the one that was changed.
fn change(
    session_id: SessionId,
    steps: Vec<GoalStepParams>,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    let params = g::GoalChangeParams { session_id, steps, key: None };
    ctx.show::<m::GoalChange>(&params, |changed, _| {
        changed.goal.as_ref().map(render_goal).unwrap_or_default()
    })
}

fn list(session_id: SessionId, ctx: &mut CommandContext<'_>) -> CommandResult {
    if ctx.json() {
        let reply = ctx.call::<m::GoalList>(&page_params(session_id, None))?;
        return ctx.print_raw_json(&reply.raw);
    }
    let all = goals(session_id, ctx)?;
    ctx.print_text(&render_list(&all))
}

/// Returns every goal of a session, oldest first.
fn goals(session_id: SessionId, ctx: &mut CommandContext<'_>) -> CommandResult<Vec<Goal>> {
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let page = ctx.call::<m::GoalList>(&page_params(session_id, cursor))?.value;
        all.extend(page.data);
        cursor = page.next_cursor;
        if cursor.is_none() {
            all.reverse();
            return Ok(all);
        }
    }
}

fn page_params(session_id: SessionId, cursor: Option<GoalId>) -> g::GoalListParams {
    g::GoalListParams { session_id, status: None, limit: Some(PAGE_GOALS), cursor }
}

fn numbered<'a, T>(all: &'a [T], number: usize, noun: &str) -> CommandResult<&'a T> {
    let found = number.checked_sub(1).and_then(|at| all.get(at));
    found.ok_or_else(|| {
        CommandError::not_found(format!("there is no {noun} {number}"), "ollmctl goal list")
    })
}

/// Returns the active goal in full, then the others on one line each. The goals are in the order of their numbers.
fn render_list(goals: &[Goal]) -> String {
    let is_active = |goal: &Goal| goal.status == GoalStatus::Active;
    let mut text = match goals.iter().find(|goal| is_active(goal)) {
        Some(goal) => render_goal(goal),
        None => "no active goal\n".to_owned(),
    };
    let others = goals.iter().zip(1..).filter(|(goal, _)| !is_active(goal));
    let others = others.map(|(goal, number): (_, usize)| {
        let description = sanitize::one_line(&goal.description);
        format!("{number:>4}  {:<9}  {description}", goal.status.as_str())
    });
    push_section(&mut text, "other goals", others);
    text
}

/// Returns a goal with its steps, its decisions in force, its files and its plan.
fn render_goal(goal: &Goal) -> String {
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
    push_section(&mut text, "steps", steps);
    let in_force = |(decision, _): &(&GoalDecision, usize)| decision.superseded_by.is_none();
    let decisions = goal.decisions.iter().zip(1..).filter(in_force).map(|(decision, number)| {
        let lock = if decision.locked { "lock" } else { "" };
        let kind = decision.kind.as_deref().map(sanitize::one_line);
        let kind = kind.map_or_else(String::new, |kind| format!(" ({kind})"));
        format!("{number:>4}  {lock:<5}  {}{kind}", sanitize::one_line(&decision.description))
    });
    push_section(&mut text, "decisions", decisions);
    let files = goal
        .artifacts
        .iter()
        .map(|file| format!("  {:<8}  {}", file.action.as_str(), sanitize::one_line(&file.path)));
    push_section(&mut text, "files", files);
    let next = goal.next_steps.iter().map(|step| format!("  {}", sanitize::one_line(step)));
    push_section(&mut text, "next", next);
    text
}

/// Appends a title and lines; nothing if there are no lines.
fn push_section(text: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        text.push_str(&format!("{}\n", Style::Faint.paint(title)));
        lines.for_each(|line| text.push_str(&format!("{line}\n")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plain;

    #[test]
    fn numbers_count_from_one() {
        assert_eq!(*numbered(&["a", "b"], 2, "step").unwrap(), "b");
        for number in [0, 3] {
            let error = numbered(&["a", "b"], number, "step").unwrap_err();
            assert!(error.to_text().contains(&format!("no step {number}")), "{}", error.to_text());
        }
    }

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
    fn list_shows_the_active_goal_and_the_numbers_of_everything() {
        let text = render_list(&[goal("completed"), goal("active")]);
        assert_eq!(
            plain(&text),
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
        assert_eq!(render_list(&[]), "no active goal\n");
    }
}
