//! `ollmctl undo` and `ollmctl redo`, and operations as lines.

use clap::Args;
use ollm_protocol::content::{FilesMode, Operation, OperationState};
use ollm_protocol::event::{FilesProgressData, PutBackStep};
use ollm_protocol::method::{SessionRedo, SessionUndo};
use ollm_protocol::methods::session::branches::{SessionUndoParams, SessionUndoResult};
use ollm_protocol::{EventKind, Method, SessionId, sanitize};

use crate::args::session::SessionFlag;
use crate::command_context::{CallReply, CommandContext};
use crate::command_error::{CommandError, CommandResult};
use crate::error::ClientError;
use crate::render::file_plan::{names_to_put_back, plan_lines, unfinished_call};
use crate::render::progress::ProgressMeter;
use crate::render::session_table::WIDE_COLUMNS;
use crate::render::table::clip;
use crate::render::units::counted;
use crate::render::{RenderOptions, Style};

/// The most operations of one call.
const MAX_STEPS: u32 = 1000;
/// The effect of a canceled call that puts files back.
pub(super) const TAKEN_BACK: &str = "the files that had moved are taken back";

/// Undo the newest operations of a session: turns, compactions, branches, and changes of goals, pins, entries and mode.
#[derive(Debug, Args)]
#[command(after_help = "\
Undoing again goes further back; `redo` goes forward until something new is recorded. Nothing is removed from the log. \
`sessions operations` lists what can be undone.

Files stay as they are unless --files is given. It shows what would happen to each file that the tool calls of the \
operations wrote, asks, and puts back those that are exactly as the session left them. A file that somebody else \
changed since or has open for writing, whose earlier content was not kept, or that belongs to git stays, and so does \
what a command wrote without a record of it. Behind a command of `exec --track` whose result is not recorded, nothing \
is put back. Ctrl-C takes everything back until all files have moved. A \
content that nothing else has is never removed: the output names where it is.

Examples:
  ollmctl undo
  ollmctl undo 3 --session last
  ollmctl undo --files preview
  ollmctl undo 2 --files")]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    step: StepArgs,
}

/// Redo the operations that were undone last.
#[derive(Debug, Args)]
#[command(after_help = "\
With --files, the files that an undo put back change again, as far as they are exactly as the undo left them.

Examples:
  ollmctl redo
  ollmctl redo 3 --session last
  ollmctl redo --files")]
pub(crate) struct RedoArgs {
    #[command(flatten)]
    step: StepArgs,
}

#[derive(Debug, Args)]
struct StepArgs {
    /// The number of operations.
    #[arg(value_name = "N", default_value = "1", value_parser = parse_steps)]
    steps: u32,
    #[command(flatten)]
    session: SessionFlag,
    /// Put files back as well: `preview` only shows what would happen to them.
    #[arg(long, value_name = "ACTION", num_args = 0..=1, default_missing_value = "apply", value_parser = ["preview", "apply"])]
    files: Option<String>,
    /// Put files back without asking.
    #[arg(long, short, requires = "files")]
    yes: bool,
}

/// Parses the number of operations.
fn parse_steps(text: &str) -> Result<u32, String> {
    let steps = text.parse().ok().filter(|steps| (1..=MAX_STEPS).contains(steps));
    steps.ok_or_else(|| format!("the number of operations is 1 to {MAX_STEPS}"))
}

/// A direction along the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepDirection {
    Back,
    Forward,
}

impl StepDirection {
    /// Returns the command.
    pub(super) const fn verb(self) -> &'static str {
        match self {
            Self::Back => "undo",
            Self::Forward => "redo",
        }
    }

    /// Returns the word for operations that were taken in this direction.
    pub(super) const fn done(self) -> &'static str {
        match self {
            Self::Back => "undone",
            Self::Forward => "redone",
        }
    }

    fn call(
        self,
        params: &SessionUndoParams,
        ctx: &mut CommandContext<'_>,
    ) -> Result<CallReply<SessionUndoResult>, ClientError> {
        match self {
            Self::Back => ctx.call::<SessionUndo>(params),
            Self::Forward => ctx.call::<SessionRedo>(params),
        }
    }

    /// Applies a preview and shows its progress.
    fn apply(
        self,
        params: &SessionUndoParams,
        ctx: &CommandContext<'_>,
    ) -> Result<Option<CallReply<SessionUndoResult>>, ClientError> {
        match self {
            Self::Back => put_back::<SessionUndo>(params, params.session_id, ctx),
            Self::Forward => put_back::<SessionRedo>(params, params.session_id, ctx),
        }
    }
}

pub(super) fn undo(args: &UndoArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    run(&args.step, StepDirection::Back, ctx)
}

pub(super) fn redo(args: &RedoArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    run(&args.step, StepDirection::Forward, ctx)
}

fn run(args: &StepArgs, direction: StepDirection, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.id_or_current(direction.verb(), ctx)?;
    match args.files.as_deref() {
        None => step_without_files(session_id, args.steps, direction, ctx),
        Some("preview") => {
            let params = preview_params(session_id, args.steps);
            let reply = direction.call(&params, ctx)?;
            ctx.print(&reply, |result, options| render_preview(direction, result, options))
        }
        Some(_) => step_with_files(session_id, args.steps, direction, args.yes, ctx),
    }
}

/// Undoes or redoes operations, and says which files an undo could have put back.
fn step_without_files(
    session_id: SessionId,
    steps: u32,
    direction: StepDirection,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    let stay = match direction {
        StepDirection::Back => files_to_put_back(session_id, steps, ctx),
        StepDirection::Forward => None,
    };
    let reply = direction.call(&SessionUndoParams::new(session_id, steps), ctx)?;
    ctx.print(&reply, |result, options| render(direction.done(), result, options))?;
    if let Some(names) = stay {
        let command = |name| typed(name, steps as usize, session_id, ctx);
        ctx.terminal.eprintln(&format!(
            "these files stayed as they are: {names}\nto put them back: {}, then {} --files",
            command("redo"),
            command("undo")
        ));
    }
    Ok(())
}

/// Returns a command for some steps as it is typed in a shell, or in the chat that runs this one.
fn typed(name: &str, steps: usize, session_id: SessionId, ctx: &CommandContext<'_>) -> String {
    match ctx.in_chat() {
        true => format!("/{name} {steps}"),
        false => format!("ollmctl {name} {steps} --session {session_id}"),
    }
}

/// Shows what would happen to files, asks, and undoes or redoes operations with their files.
fn step_with_files(
    session_id: SessionId,
    steps: u32,
    direction: StepDirection,
    yes: bool,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    let preview = direction.call(&preview_params(session_id, steps), ctx)?.value;
    let Some(plan) = &preview.files else {
        let problem = "the daemon does not put files back".to_owned();
        return Err(CommandError::usage(problem, "ollmctl daemon restart"));
    };
    if let Some(call) = unfinished_call(plan) {
        let is_its_start = |operation: &Operation| operation.seq == call.seq;
        // The operations before it can be taken with their files, and its own only without.
        let hint = match preview.operations.iter().position(is_its_start) {
            None | Some(0) => typed(direction.verb(), 1, session_id, ctx),
            Some(before) => typed(direction.verb(), before, session_id, ctx) + " --files",
        };
        return Err(CommandError::unfinished(call, hint));
    }
    let action = format!(
        "{} {} and put back {}",
        direction.verb(),
        counted(preview.operations.len() as u64, "operation"),
        counted(plan.counts.put_back, "file")
    );
    let show = |options: &RenderOptions| render_preview(direction, &preview, options);
    // Without files, nothing changes that a redo does not bring back, so nobody is asked.
    let asks = !yes && plan.counts.put_back > 0;
    if asks && !ctx.confirm(&action, "changed", show)? {
        return Ok(());
    }
    let params = SessionUndoParams {
        operation: preview.operations.first().map(|operation| operation.seq),
        files: FilesMode::Apply,
        plan_id: Some(plan.plan_id),
        ..SessionUndoParams::new(session_id, steps)
    };
    match direction.apply(&params, ctx)? {
        Some(reply) => {
            ctx.print(&reply, |result, options| render(direction.done(), result, options))
        }
        None => ctx.say_canceled(TAKEN_BACK),
    }
}

/// Makes a call that puts files of a session back and shows its progress; returns `None` if Ctrl-C canceled it, which means
/// [`TAKEN_BACK`].
///
/// Ctrl-C outside of a chat ends this process. The daemon takes everything back then, as long as files move.
pub(super) fn put_back<M: Method>(
    params: &M::Params,
    session_id: SessionId,
    ctx: &CommandContext<'_>,
) -> Result<Option<CallReply<M::Result>>, ClientError> {
    let mut meter = ProgressMeter::files("putting files back");
    let kind = EventKind::FilesProgress;
    ctx.call_with_events::<M>(params, session_id, kind, &mut |event| {
        let data = event.map(|event| serde_json::from_value(event.data.clone()));
        if let Some(Ok(progress)) = data {
            let (done, total) = files_done(&progress);
            meter.set(done, total);
        }
    })
}

/// Returns how many files are done, as if each step but the last were half of the work on a file, and the number of all.
fn files_done(progress: &FilesProgressData) -> (u64, u64) {
    let FilesProgressData { step, done, total, .. } = *progress;
    let done = match step {
        PutBackStep::Staging => done / 2,
        PutBackStep::Moving => usize::midpoint(done, total),
        PutBackStep::Recording => total,
    };
    (done as u64, total as u64)
}

/// Returns the names of the files that an undo could put back; `None` if there are none or that cannot be found out.
fn files_to_put_back(
    session_id: SessionId,
    steps: u32,
    ctx: &mut CommandContext<'_>,
) -> Option<String> {
    let reply = StepDirection::Back.call(&preview_params(session_id, steps), ctx);
    names_to_put_back(&reply.ok()?.value.files?)
}

fn preview_params(session_id: SessionId, steps: u32) -> SessionUndoParams {
    let files = FilesMode::Preview;
    SessionUndoParams { files, ..SessionUndoParams::new(session_id, steps) }
}

fn render_preview(
    direction: StepDirection,
    result: &SessionUndoResult,
    options: &RenderOptions,
) -> String {
    render(&format!("would be {}", direction.done()), result, options)
}

fn render(done: &str, result: &SessionUndoResult, options: &RenderOptions) -> String {
    let mut text = format!("{}\n", Style::Strong.paint(&format!("{done}:")));
    for operation in &result.operations {
        text.push_str(&operation_line(operation, options));
    }
    if let Some(plan) = &result.files {
        text.push_str(&plan_lines(plan));
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
    let has_files = operation.added.file_calls + operation.removed.file_calls > 0;
    let state = format!("{}{state}", if has_files { " (files)" } else { "" });
    // On a narrow terminal the text is worth more than the time.
    let at = match operation.at {
        _ if options.width < WIDE_COLUMNS => String::new(),
        Some(at) => options.minute(at) + "  ",
        None => " ".repeat(18),
    };
    let fixed = format!("  #{:<5} {at}{:<10} ", operation.seq.0, operation.kind.as_str());
    let room = options.width.saturating_sub(fixed.chars().count() + state.len()).max(8);
    let text = clip(&sanitize::one_line(&operation.text), room);
    format!("{fixed}{}{}\n", text.trim_end(), Style::Faint.paint(&state))
}

/// Returns how many operations can be undone and redone.
pub(super) fn remaining_line(undoable: u64, redoable: u64) -> String {
    let count = |n: u64, none: &str, some: &str| match n {
        0 => none.to_owned(),
        n => format!("{n} {some}"),
    };
    let undoable = count(undoable, "nothing left to undo", "can be undone");
    let redoable = count(redoable, "nothing to redo", "can be redone");
    let line = format!("{undoable}, {redoable}");
    format!("{}\n", Style::Faint.paint(&line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_steps_is_explained() {
        let check = |text: &str, expect| assert_eq!(parse_steps(text).ok(), expect, "{text}");
        check("1", Some(1));
        check("1000", Some(1000));
        for wrong in ["0", "1001", "-1", "bogus", ""] {
            check(wrong, None);
        }
        let problem = parse_steps("bogus").unwrap_err();
        assert_eq!(problem, "the number of operations is 1 to 1000");
    }
}
