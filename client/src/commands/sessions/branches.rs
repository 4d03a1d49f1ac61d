//! `ollmctl sessions branch`, `fork` and `operations`.

use clap::Args;
use ollm_protocol::Seq;
use ollm_protocol::content::{PathRecords, Session, SummaryAuthor};
use ollm_protocol::method::{SessionBranch, SessionFork, SessionOperations};
use ollm_protocol::methods::session::branches::{
    SessionBranchParams, SessionBranchResult, SessionForkParams, SessionForkResult,
    SessionOperationsParams, SessionOperationsResult,
};

use crate::args::parse_seq;
use crate::args::session::OptionalSessionArg;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::commands::undo::{operation_line, remaining_line};
use crate::render::RenderOptions;
use crate::render::session_table::outcome_line;
use crate::render::units::counted;

/// Continue the conversation after another record; what follows it stays in the log, on a branch of its own.
#[derive(Debug, Args)]
#[command(
    allow_missing_positional = true,
    after_help = "\
`sessions tree` shows the numbers of the records, `undo` goes back to the branch that was left. Files are not touched.

Examples:
  ollmctl sessions branch 12
  ollmctl sessions branch last 12 --summarize
  ollmctl sessions branch last start"
)]
pub(crate) struct BranchArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// The number of the record, or `start` for the position before the first one.
    #[arg(value_name = "N|start", value_parser = parse_target)]
    to: BranchTarget,
    /// Record a summary of the messages that are left; a model writes it, if one answers.
    #[arg(long)]
    summarize: bool,
}

/// A record to continue after; `None` for the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BranchTarget(Option<Seq>);

/// Parses the number of a record, with or without `#`, or `start`.
fn parse_target(text: &str) -> Result<BranchTarget, &'static str> {
    match text {
        "start" => Ok(BranchTarget(None)),
        number => parse_seq(number).map(|seq| BranchTarget(Some(seq))),
    }
}

/// Create a session that begins as another one does, and is independent of it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl sessions fork
  ollmctl sessions fork last --at 12 --title 'Another way'")]
pub(crate) struct ForkArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// The number of the last record to copy [default: the end of the active branch].
    #[arg(long, value_name = "N", value_parser = parse_seq)]
    at: Option<Seq>,
    /// The title of the new session [default: the same, with `(fork N)`].
    #[arg(long)]
    title: Option<String>,
}

/// List what can be undone and redone, the newest first.
#[derive(Debug, Args)]
#[command(after_help = "\
Operations whose tool calls say which files they wrote are marked with `(files)`.

Examples:
  ollmctl sessions operations
  ollmctl sessions operations last --limit 5 --json")]
pub(crate) struct OperationsArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// The maximum number of operations.
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
}

pub(super) fn branch(args: &BranchArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.id_or_current("sessions branch", ctx)?;
    let (to_seq, summarize) = (args.to.0, args.summarize);
    let params = SessionBranchParams { session_id, to_seq, summarize, key: None };
    ctx.show::<SessionBranch>(&params, render_branch)
}

fn render_branch(result: &SessionBranchResult, _: &RenderOptions) -> String {
    let place = match result.leaf {
        Some(leaf) if result.moved_to_unit_end => {
            format!("#{leaf}, the end of a message with its tool calls")
        }
        Some(leaf) => format!("#{leaf}"),
        None => "the beginning".to_owned(),
    };
    if result.seq.is_none() {
        return format!("the conversation already continues after {place}\n");
    }
    let mut text = format!("the conversation continues after {place}\n");
    text.push_str(&moved_records(&result.added, &result.removed));
    match (result.summary_seq, result.summary_by) {
        (Some(seq), Some(SummaryAuthor::Model)) => {
            text.push_str(&format!("  summary of what was left: #{seq}\n"));
        }
        (Some(seq), _) => {
            text.push_str(&format!("  lines of what was left, without a model: #{seq}\n"));
        }
        _ => {}
    }
    text
}

/// Returns what a move of the active leaf took off the path and brought back, one line each.
pub(in crate::commands) fn moved_records(added: &PathRecords, removed: &PathRecords) -> String {
    let rows = [("taken back", removed), ("brought back", added)];
    let moved = rows.into_iter().filter(|(_, records)| !records.is_empty());
    moved.map(|(verb, records)| format!("  {verb}: {}\n", path_records(records))).collect()
}

/// Returns the same for a move that is only planned.
pub(in crate::commands) fn records_to_move(added: &PathRecords, removed: &PathRecords) -> String {
    let moved = moved_records(added, removed);
    moved.lines().map(|line| format!("  would be {}\n", line.trim_start())).collect()
}

/// Returns numbers such as `2 messages, 1 tool call, 120 tokens`.
pub(in crate::commands) fn path_records(records: &PathRecords) -> String {
    let mut parts = Vec::new();
    for (number, noun) in [
        (records.messages, "message"),
        (records.tool_calls, "tool call"),
        (records.tokens, "token"),
    ] {
        if number > 0 {
            parts.push(counted(number, noun));
        }
    }
    if parts.is_empty() { counted(records.records, "record") } else { parts.join(", ") }
}

/// Forks a session and returns the new one.
pub(in crate::commands) fn fork(
    args: ForkArgs,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<Session> {
    let session_id = args.session.id_or_current("sessions fork", ctx)?;
    let params = SessionForkParams { session_id, at_seq: args.at, title: args.title, key: None };
    let reply = ctx.call::<SessionFork>(&params)?;
    ctx.print(&reply, |result, _| render_fork(result))?;
    Ok(reply.value.session)
}

/// Returns the new session and the record that it continues after.
fn render_fork(result: &SessionForkResult) -> String {
    let line = outcome_line("forked", &result.session);
    format!("{line}  it continues after #{}\n", result.leaf)
}

pub(super) fn operations(args: &OperationsArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.session.id_or_current("sessions operations", ctx)?;
    let params = SessionOperationsParams { session_id, limit: Some(args.limit), cursor: None };
    ctx.show::<SessionOperations>(&params, render_operations)
}

fn render_operations(result: &SessionOperationsResult, options: &RenderOptions) -> String {
    if result.data.is_empty() {
        return "there are no operations yet\n".to_owned();
    }
    let mut text: String =
        result.data.iter().map(|operation| operation_line(operation, options)).collect();
    if result.next_cursor.is_some() {
        text.push_str("...\n");
    }
    text + &remaining_line(result.undoable, result.redoable)
}
