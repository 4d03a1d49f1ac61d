//! `ollmctl undo` and `ollmctl redo`, and operations as lines.

use clap::Args;
use ollm_protocol::content::{Operation, OperationState};
use ollm_protocol::method::{SessionRedo, SessionUndo};
use ollm_protocol::methods::session::branches::{SessionUndoParams, SessionUndoResult};
use ollm_protocol::{SessionId, sanitize};

use crate::args::session::OPTIONAL_SESSION_HELP;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::completion;
use crate::project::session_or_current;
use crate::render::table::clip;
use crate::render::{RenderOptions, Style};

/// Undo the newest operations of a session: turns, compactions, branches, and changes of goals, pins, entries and mode.
#[derive(Debug, Args)]
#[command(after_help = "\
Undoing again goes further back; `redo` goes forward until something new is recorded. Nothing is removed from the log, \
and files are not touched. `sessions operations` lists what can be undone.

Examples:
  ollmctl undo
  ollmctl undo 3 --session last")]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    step: StepArgs,
}

/// Redo the operations that were undone last.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl redo
  ollmctl redo 3 --session last")]
pub(crate) struct RedoArgs {
    #[command(flatten)]
    step: StepArgs,
}

#[derive(Debug, Args)]
struct StepArgs {
    /// The number of operations.
    #[arg(value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,
    #[arg(
        long,
        value_name = "SESSION",
        help = OPTIONAL_SESSION_HELP,
        add = completion::sessions()
    )]
    session: Option<String>,
}

pub(super) fn undo(args: &UndoArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = session_or_current(args.step.session.as_deref(), "undo", ctx)?;
    step_back(session_id, args.step.steps, ctx)
}

pub(super) fn redo(args: &RedoArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = session_or_current(args.step.session.as_deref(), "redo", ctx)?;
    step_forward(session_id, args.step.steps, ctx)
}

/// Undoes operations and prints them.
pub(super) fn step_back(
    session_id: SessionId,
    steps: u32,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    let params = SessionUndoParams::new(session_id, steps);
    ctx.show::<SessionUndo>(&params, |result, options| render("undone", result, options))
}

/// Redoes operations and prints them.
pub(super) fn step_forward(
    session_id: SessionId,
    steps: u32,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    let params = SessionUndoParams::new(session_id, steps);
    ctx.show::<SessionRedo>(&params, |result, options| render("redone", result, options))
}

fn render(done: &str, result: &SessionUndoResult, options: &RenderOptions) -> String {
    let mut text = format!("{}\n", Style::Strong.paint(&format!("{done}:")));
    for operation in &result.operations {
        text.push_str(&operation_line(operation, options));
    }
    text + &remaining_line(result.undoable, result.redoable)
}

/// Returns an operation on one line.
pub(super) fn operation_line(operation: &Operation, options: &RenderOptions) -> String {
    let state = match operation.state {
        Some(OperationState::Undone) => " (undone)",
        Some(OperationState::Dropped) => " (dropped)",
        Some(OperationState::Applied) | None => "",
    };
    let at = operation.at.map_or_else(|| " ".repeat(16), |at| options.minute(at));
    let fixed = format!("  #{:<5} {at}  {:<10} ", operation.seq.0, operation.kind.as_str());
    let room = options.width.saturating_sub(fixed.chars().count() + state.len()).max(8);
    let text = clip(&sanitize::one_line(&operation.text), room);
    format!("{fixed}{}{}\n", text.trim_end(), Style::Faint.paint(state))
}

/// Returns how many operations can be undone and redone.
pub(super) fn remaining_line(undoable: u64, redoable: u64) -> String {
    let line = format!("{undoable} can be undone, {redoable} redone");
    format!("{}\n", Style::Faint.paint(&line))
}
