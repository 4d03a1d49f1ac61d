//! Subcommands of `goal`.

use clap::{Args, Subcommand, ValueEnum};
use ollm_protocol::content::{ArtifactAction, CheckpointStatus, GoalPriority, GoalStatus};

use super::{CURRENT_HELP, by_session};

/// Arguments of `goal`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct GoalArgs {
    #[arg(long, global = true, value_name = "SESSION", help = CURRENT_HELP, add = by_session())]
    pub(crate) session: Option<String>,
    /// Another goal than the active one, by its number in `goal list`.
    #[arg(long, global = true, value_name = "N")]
    pub(crate) goal: Option<usize>,
    #[command(subcommand)]
    pub(crate) command: Option<GoalCommand>,
}

/// What to do with goals.
#[derive(Debug, Subcommand)]
pub(crate) enum GoalCommand {
    /// Set what the session works towards; the goal before it waits.
    #[command(after_help = "\
Examples:
  ollmctl goal create 'Implement user authentication'
  ollmctl goal create 'Ship version 2' --priority high --step 'Write the notes' --step 'Tag it'")]
    Create(GoalCreateArgs),
    /// Show the active goal, and the others on one line each; so does `goal` alone.
    #[command(after_help = "\
The numbers before steps, decisions and goals are what other commands take.

Examples:
  ollmctl goal list
  ollmctl goal list --session last --json")]
    List,
    /// Change a goal: its text, its priority, or where it is in its life.
    #[command(after_help = "\
Examples:
  ollmctl goal update --status completed
  ollmctl goal update --goal 1 --status active
  ollmctl goal update --text 'Implement login and logout' --priority low")]
    Update(GoalUpdateArgs),
    /// Add a step, or say how far one is.
    #[command(after_help = "\
A number, or the words of a step that there is, means that step; other words add one.

Examples:
  ollmctl goal checkpoint 'Add login'
  ollmctl goal checkpoint 2 in-progress
  ollmctl goal checkpoint 'Add login' completed")]
    Checkpoint(CheckpointArgs),
    /// Write down a decision.
    #[command(after_help = "\
With --instead-of it takes the place of another, locked or not.

Examples:
  ollmctl goal decide 'Use JWT' --locked
  ollmctl goal decide 'Use cookies' --kind architecture --instead-of 1")]
    Decide(DecideArgs),
    /// Lock a decision: from then on nothing that a model says changes it.
    #[command(after_help = "\
Examples:
  ollmctl goal lock 1")]
    Lock(LockArgs),
    /// Note a file that was made, changed or deleted for the goal.
    #[command(after_help = "\
Examples:
  ollmctl goal artifact created src/login.rs
  ollmctl goal artifact modified README.md --type docs")]
    Artifact(ArtifactArgs),
    /// Say what comes next, instead of what was planned before.
    #[command(after_help = "\
Examples:
  ollmctl goal next 'Write the tests' 'Update the README'
  ollmctl goal next --none")]
    Next(NextArgs),
}

/// Arguments of `goal create`.
#[derive(Debug, Args)]
pub(crate) struct GoalCreateArgs {
    /// What is to be achieved.
    pub(crate) text: String,
    /// How much it matters.
    #[arg(long, default_value = "medium")]
    pub(crate) priority: PriorityArg,
    /// A step on the way; may be given several times.
    #[arg(long = "step", value_name = "TEXT")]
    pub(crate) steps: Vec<String>,
}

/// Arguments of `goal update`.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct GoalUpdateArgs {
    /// What is to be achieved.
    #[arg(long)]
    pub(crate) text: Option<String>,
    /// How much it matters.
    #[arg(long)]
    pub(crate) priority: Option<PriorityArg>,
    /// Where it is in its life; an active one lets the others wait.
    #[arg(long)]
    pub(crate) status: Option<StatusArg>,
}

/// Arguments of `goal checkpoint`.
#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    /// The step: its number, its words, or the words of a new one.
    pub(crate) step: String,
    /// How far it is [default: pending, for a new one].
    pub(crate) state: Option<StateArg>,
}

/// Arguments of `goal decide`.
#[derive(Debug, Args)]
pub(crate) struct DecideArgs {
    /// What was decided.
    pub(crate) text: String,
    /// What it is about, in a word of your own.
    #[arg(long)]
    pub(crate) kind: Option<String>,
    /// Nothing that a model says changes it.
    #[arg(long)]
    pub(crate) locked: bool,
    /// The number of the decision that it takes the place of.
    #[arg(long, value_name = "N")]
    pub(crate) instead_of: Option<usize>,
}

/// Arguments of `goal lock`.
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// The number of the decision.
    #[arg(value_name = "N")]
    pub(crate) decision: usize,
}

/// Arguments of `goal artifact`.
#[derive(Debug, Args)]
pub(crate) struct ArtifactArgs {
    /// What became of it.
    pub(crate) action: ActionArg,
    /// The file.
    pub(crate) path: String,
    /// What it is, in a word of your own.
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) kind: Option<String>,
}

/// Arguments of `goal next`.
#[derive(Debug, Args)]
pub(crate) struct NextArgs {
    /// What comes next, in order.
    #[arg(required_unless_present = "none", value_name = "TEXT")]
    pub(crate) steps: Vec<String>,
    /// Nothing is planned.
    #[arg(long, conflicts_with = "steps")]
    pub(crate) none: bool,
}

/// A priority as an argument.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PriorityArg {
    /// More than others.
    High,
    /// As usual.
    Medium,
    /// Less than others.
    Low,
}

impl From<PriorityArg> for GoalPriority {
    fn from(priority: PriorityArg) -> Self {
        match priority {
            PriorityArg::High => Self::High,
            PriorityArg::Medium => Self::Medium,
            PriorityArg::Low => Self::Low,
        }
    }
}

/// A goal's status as an argument.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum StatusArg {
    /// It is worked on.
    Active,
    /// It waits.
    Paused,
    /// It is achieved.
    Completed,
}

impl From<StatusArg> for GoalStatus {
    fn from(status: StatusArg) -> Self {
        match status {
            StatusArg::Active => Self::Active,
            StatusArg::Paused => Self::Paused,
            StatusArg::Completed => Self::Completed,
        }
    }
}

/// How far a step is, as an argument.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum StateArg {
    /// Not begun.
    Pending,
    /// Begun.
    InProgress,
    /// Done.
    #[value(alias = "done")]
    Completed,
}

impl From<StateArg> for CheckpointStatus {
    fn from(state: StateArg) -> Self {
        match state {
            StateArg::Pending => Self::Pending,
            StateArg::InProgress => Self::InProgress,
            StateArg::Completed => Self::Completed,
        }
    }
}

/// What became of a file, as an argument.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ActionArg {
    /// It was made.
    Created,
    /// It was changed.
    Modified,
    /// It was removed.
    Deleted,
}

impl From<ActionArg> for ArtifactAction {
    fn from(action: ActionArg) -> Self {
        match action {
            ActionArg::Created => Self::Created,
            ActionArg::Modified => Self::Modified,
            ActionArg::Deleted => Self::Deleted,
        }
    }
}
