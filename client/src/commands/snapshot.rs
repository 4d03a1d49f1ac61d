//! `ollmctl snapshot`: takes, shows, restores, pins and deletes snapshots of a session's context.

use clap::{Args, Subcommand};
use ollm_protocol::content::{ContextState, FilesMode, Session, SkippedSnapshot, SnapshotInfo};
use ollm_protocol::method::{
    SnapshotCreate, SnapshotDelete, SnapshotGet, SnapshotList, SnapshotRestore, SnapshotUpdate,
};
use ollm_protocol::methods::snapshot::{
    SnapshotCreateParams, SnapshotDeleteParams, SnapshotGetParams, SnapshotGetResult,
    SnapshotListParams, SnapshotListResult, SnapshotRestoreParams, SnapshotRestoreResult,
    SnapshotUpdateParams,
};
use ollm_protocol::{SessionId, SnapshotId, sanitize};
use serde_json::Value;

use crate::args::session::{OptionalSessionArg, SessionFlag};
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::commands::sessions::branches::{moved_records, path_records, records_to_move};
use crate::commands::undo::{TAKEN_BACK, put_back};
use crate::completion;
use crate::project::session_or_current;
use crate::render::file_plan::{names_to_put_back, plan_lines, unfinished_call};
use crate::render::session_table::{WIDE_COLUMNS, short_id};
use crate::render::table::TableColumn::{Number, Prose, Word};
use crate::render::table::{self, clip};
use crate::render::units::{bytes, counted, grouped};
use crate::render::{RenderOptions, Style};

/// The command that shows the ids of all snapshots.
const LIST_HINT: &str = "ollmctl snapshot list --all";
/// The help of a snapshot.
const SNAPSHOT_HELP: &str =
    "An id, a unique end or beginning of one, or `last` for the newest of the session";
/// The shortest part of an id that is looked up.
const MIN_PART_CHARS: usize = 4;
/// Snapshots in one page.
const PAGE: u32 = 1000;

/// Take, show, restore, pin and delete snapshots of a session's context.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum SnapshotCommand {
    Create(SnapshotCreateArgs),
    List(SnapshotListArgs),
    Show(SnapshotShowArgs),
    Restore(SnapshotRestoreArgs),
    Pin(SnapshotPinArgs),
    Delete(SnapshotDeleteArgs),
}

/// Take a snapshot; it stays until you delete it.
#[derive(Debug, Args)]
#[command(after_help = "\
Snapshots before compactions, changes of the mode and moves between branches are taken by themselves.

Examples:
  ollmctl snapshot create
  ollmctl snapshot create 'before the port' --session last")]
pub(crate) struct SnapshotCreateArgs {
    /// A line that says what it is for [default: the last message of the user].
    summary: Option<String>,
    #[command(flatten)]
    session: SessionFlag,
}

/// List the snapshots of a session, the newest first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl snapshot list
  ollmctl snapshot list last --json
  ollmctl snapshot list --all")]
pub(crate) struct SnapshotListArgs {
    #[command(flatten)]
    session: OptionalSessionArg,
    /// List the snapshots of all sessions, also of those whose logs are lost.
    #[arg(long, conflicts_with_all = ["id", "session"])]
    all: bool,
}

/// Show a snapshot.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl snapshot show last
  ollmctl snapshot show 0192f0c1 --json")]
pub(crate) struct SnapshotShowArgs {
    #[command(flatten)]
    snapshot: SnapshotArg,
}

/// Return a session to a snapshot: messages, checkpoints, goals, entries, pins and the mode.
#[derive(Debug, Args)]
#[command(after_help = "\
Shows what changes and asks first; without a terminal --yes is needed. Nothing is removed: `undo` takes the return \
back. If the log of the session is lost, the snapshot becomes a new session.

Files stay as they are unless --files is given. It puts back those that the tool calls of the session wrote since and \
that are exactly as the session left them; `undo --files` takes that back as well.

Examples:
  ollmctl snapshot restore last
  ollmctl snapshot restore 0192f0c1 --dry-run
  ollmctl snapshot restore 0192f0c1 --yes
  ollmctl snapshot restore last --files preview
  ollmctl snapshot restore last --files")]
pub(crate) struct SnapshotRestoreArgs {
    #[command(flatten)]
    snapshot: SnapshotArg,
    /// Make a new session of the snapshot and leave its own session as it is.
    #[arg(long)]
    new_session: bool,
    /// Only show what would change.
    #[arg(long)]
    dry_run: bool,
    /// Put files back as well: `preview` only shows what would happen to them.
    #[arg(long, value_name = "ACTION", num_args = 0..=1, default_missing_value = "apply", value_parser = ["preview", "apply"], conflicts_with = "new_session")]
    files: Option<String>,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

/// Keep an automatic snapshot, which would otherwise make room for newer ones.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl snapshot pin last
  ollmctl snapshot pin 0192f0c1 --off")]
pub(crate) struct SnapshotPinArgs {
    #[command(flatten)]
    snapshot: SnapshotArg,
    /// Unpin it instead.
    #[arg(long)]
    off: bool,
}

/// Delete the files of snapshots.
#[derive(Debug, Args)]
#[command(after_help = "\
Asks first; without a terminal --yes is needed.

Examples:
  ollmctl snapshot delete 0192f0c1
  ollmctl snapshot delete --yes 0192f0c1 0192f0d7")]
pub(crate) struct SnapshotDeleteArgs {
    #[arg(required = true, value_name = "SNAPSHOT", help = SNAPSHOT_HELP, add = completion::snapshots())]
    ids: Vec<String>,
    #[command(flatten)]
    session: SessionFlag,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

// Without a doc comment: clap would print it instead of the help of the command that contains the struct.
#[derive(Debug, Args)]
pub(crate) struct SnapshotArg {
    #[arg(value_name = "SNAPSHOT", default_value = "last", help = SNAPSHOT_HELP, add = completion::snapshots())]
    id: String,
    #[command(flatten)]
    session: SessionFlag,
}

/// A snapshot, and its session if it is known.
type FoundSnapshot = (SnapshotId, Option<SessionId>);

pub(super) fn run(command: SnapshotCommand, ctx: &mut CommandContext<'_>) -> CommandResult {
    match command {
        SnapshotCommand::Create(args) => {
            let session_id = args.session.id_or_current("snapshot create", ctx)?;
            let params = SnapshotCreateParams {
                session_id,
                reason: None,
                pinned: false,
                summary: args.summary,
                key: None,
            };
            ctx.show::<SnapshotCreate>(&params, |result, options| {
                line("snapshot", &result.snapshot, options)
            })
        }
        SnapshotCommand::List(args) => list(&args, ctx),
        SnapshotCommand::Show(args) => show(&args.snapshot, ctx),
        SnapshotCommand::Restore(args) => restore(&args, ctx).map(drop),
        SnapshotCommand::Pin(args) => {
            let (snapshot_id, session_id) =
                find(&args.snapshot.id, args.snapshot.session.given(), ctx)?;
            let pinned = Some(!args.off);
            let params = SnapshotUpdateParams { snapshot_id, session_id, pinned, summary: None };
            let done = if args.off { "unpinned" } else { "pinned" };
            ctx.show::<SnapshotUpdate>(&params, |result, options| {
                line(done, &result.snapshot, options)
            })
        }
        SnapshotCommand::Delete(args) => delete(&args, ctx),
    }
}

fn list(args: &SnapshotListArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = match args.all {
        true => None,
        false => Some(args.session.id_or_current("snapshot list", ctx)?),
    };
    ctx.show::<SnapshotList>(&list_params(session_id, None), render_list)
}

const fn list_params(session_id: Option<SessionId>, cursor: Option<String>) -> SnapshotListParams {
    SnapshotListParams { session_id, limit: Some(PAGE), cursor }
}

/// Finds the snapshot that a text identifies. A whole id is not looked up, because the call that uses it does that.
fn find(
    text: &str,
    session: Option<&str>,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<FoundSnapshot> {
    let session = session.map(|session| ctx.session(session)).transpose()?;
    if let Ok(id) = text.parse() {
        return Ok((id, session));
    }
    if text == "last" {
        let session = match session {
            Some(session) => session,
            None => session_or_current(None, "snapshot list", ctx)?,
        };
        let params = SnapshotListParams { limit: Some(1), ..list_params(Some(session), None) };
        let newest = ctx.call::<SnapshotList>(&params)?.value.data;
        let newest = newest.first().ok_or_else(|| {
            CommandError::not_found("the session has no snapshots", "ollmctl snapshot create")
        })?;
        return Ok((newest.snapshot_id, Some(session)));
    }
    let part = text.to_ascii_lowercase();
    let is_part = part.chars().all(|char| char.is_ascii_hexdigit() || char == '-');
    if !is_part || part.len() < MIN_PART_CHARS {
        let text = sanitize::one_line(text);
        let problem = format!("{text:?} is not a snapshot id or at least 4 characters of one");
        return Err(CommandError::usage(problem, LIST_HINT));
    }
    let (mut ends, mut begins): (Vec<FoundSnapshot>, Vec<FoundSnapshot>) = Default::default();
    let mut cursor = None;
    loop {
        let page = ctx.call::<SnapshotList>(&list_params(session, cursor))?.value;
        for info in &page.data {
            let id = info.snapshot_id.to_string();
            let one = (info.snapshot_id, Some(info.session_id));
            // Short forms are ends; all ids of a minute have the same beginning.
            if id.replace('-', "").ends_with(&part.replace('-', "")) {
                ends.push(one);
            }
            if id.starts_with(&part) {
                begins.push(one);
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    let found = if ends.is_empty() { begins } else { ends };
    match found.as_slice() {
        [only] => Ok(*only),
        [] => {
            Err(CommandError::not_found(format!("no snapshot id has the part {part:?}"), LIST_HINT))
        }
        many => {
            let problem = format!("{} snapshot ids have the part {part:?}", many.len());
            Err(CommandError::usage(problem, LIST_HINT))
        }
    }
}

fn show(args: &SnapshotArg, ctx: &mut CommandContext<'_>) -> CommandResult {
    let (snapshot_id, session_id) = find(&args.id, args.session.given(), ctx)?;
    let params = SnapshotGetParams { snapshot_id, session_id, cursor: None };
    ctx.show::<SnapshotGet>(&params, render_snapshot)
}

/// Restores a snapshot, after asking, and returns the new session if one was made.
pub(super) fn restore(
    args: &SnapshotRestoreArgs,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<Option<Session>> {
    let (snapshot_id, session_id) = find(&args.snapshot.id, args.snapshot.session.given(), ctx)?;
    let new_session = args.new_session;
    let params = SnapshotRestoreParams {
        session_id,
        new_session,
        ..SnapshotRestoreParams::new(snapshot_id)
    };
    let with_files = args.files.is_some();
    if args.dry_run || args.files.as_deref() == Some("preview") {
        let params = preview_of(&params);
        ctx.show::<SnapshotRestore>(&params, |result, _| render_plan(result, with_files))?;
        return Ok(None);
    }
    let Some(params) = confirmed(params, with_files, args.yes, ctx)? else { return Ok(None) };
    let reply = match params.session_id.filter(|_| params.plan_id.is_some()) {
        None => ctx.call::<SnapshotRestore>(&params)?,
        Some(id) => match put_back::<SnapshotRestore>(&params, id, ctx)? {
            Some(reply) => reply,
            None => {
                ctx.say_canceled(TAKEN_BACK)?;
                return Ok(None);
            }
        },
    };
    ctx.print(&reply, |result, _| render_restored(result))?;
    Ok(reply.value.session)
}

/// Returns the params that only describe what a restore would change, in the conversation and in files.
fn preview_of(params: &SnapshotRestoreParams) -> SnapshotRestoreParams {
    // A new session has written no files.
    let files = if params.new_session { FilesMode::Skip } else { FilesMode::Preview };
    SnapshotRestoreParams { dry_run: true, files, ..params.clone() }
}

/// Shows what a restore changes and asks whether to do it, and returns the params of the call, with the session if files are
/// put back; `None` for no.
///
/// **Errors**: no person can be asked.
fn confirmed(
    params: SnapshotRestoreParams,
    with_files: bool,
    yes: bool,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<Option<SnapshotRestoreParams>> {
    if yes && !with_files {
        return Ok(Some(params));
    }
    let plan = ctx.call::<SnapshotRestore>(&preview_of(&params))?.value;
    if let Some(call) = plan.files.as_ref().filter(|_| with_files).and_then(unfinished_call) {
        let id = params.snapshot_id;
        let hint = match ctx.in_chat() {
            true => format!("/snapshot restore {id}"),
            false => format!("ollmctl snapshot restore {id}"),
        };
        return Err(CommandError::unfinished(call, hint));
    }
    let show = |_: &RenderOptions| render_plan(&plan, with_files);
    let puts_back =
        with_files && plan.files.as_ref().is_some_and(|files| files.counts.put_back > 0);
    let changes_nothing =
        !plan.new_session && plan.added.is_empty() && plan.removed.is_empty() && !puts_back;
    if !yes && !changes_nothing && !ctx.confirm("restore the snapshot", "restored", show)? {
        return Ok(None);
    }
    let plan_id = plan.files.filter(|_| with_files).map(|files| files.plan_id);
    let (files, session_id) = match plan_id {
        Some(_) => (FilesMode::Apply, Some(plan.session_id)),
        None => (FilesMode::Skip, params.session_id),
    };
    Ok(Some(SnapshotRestoreParams { session_id, files, plan_id, ..params }))
}

fn delete(args: &SnapshotDeleteArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let mut found: Vec<FoundSnapshot> = Vec::new();
    for text in &args.ids {
        let one = find(text, args.session.given(), ctx)?;
        if !found.contains(&one) {
            found.push(one);
        }
    }
    // All are read before the first is deleted, so that a typing error deletes none.
    let mut snapshots = Vec::new();
    for (snapshot_id, session_id) in found {
        let params = SnapshotGetParams { snapshot_id, session_id, cursor: None };
        snapshots.push(ctx.call::<SnapshotGet>(&params)?.value.snapshot);
    }
    let action = format!("delete {}", counted(snapshots.len() as u64, "snapshot"));
    if !args.yes && !ctx.confirm(&action, "deleted", |options| table_of(&snapshots, options))? {
        return Ok(());
    }
    let mut results: Vec<Value> = Vec::new();
    for info in &snapshots {
        let (snapshot_id, session_id) = (info.snapshot_id, Some(info.session_id));
        let reply =
            ctx.call::<SnapshotDelete>(&SnapshotDeleteParams { snapshot_id, session_id })?;
        if ctx.json() {
            results.push(reply.to_json());
        } else {
            let text = line("deleted", info, &ctx.render_options());
            ctx.print_text(&text)?;
        }
    }
    if ctx.json() { ctx.print_json_list(&results) } else { Ok(()) }
}

/// Returns a snapshot on one line.
fn line(done: &str, info: &SnapshotInfo, options: &RenderOptions) -> String {
    let fixed = format!("{done} {}  ", short_id(info.short_id.as_deref(), info.snapshot_id));
    let room = options.width.saturating_sub(fixed.chars().count()).max(8);
    format!("{fixed}{}\n", clip(&sanitize::one_line(&info.summary), room).trim_end())
}

fn render_list(result: &SnapshotListResult, options: &RenderOptions) -> String {
    if result.data.is_empty() && result.skipped.is_empty() {
        return "there are no snapshots yet\n".to_owned();
    }
    let mut text = table_of(&result.data, options);
    if result.next_cursor.is_some() {
        text.push_str("...\n");
    }
    for SkippedSnapshot { file, reason, .. } in &result.skipped {
        let (file, reason) = (sanitize::one_line(file), sanitize::one_line(reason));
        text.push_str(&format!("{} {file}: {reason}\n", Style::Bad.paint("skipped")));
    }
    text
}

fn table_of(snapshots: &[SnapshotInfo], options: &RenderOptions) -> String {
    let is_wide = options.width >= WIDE_COLUMNS;
    let columns = [
        (true, "ID", Word),
        (true, "SUMMARY", Prose),
        (true, "TAKEN", Word),
        (is_wide, "TOKENS", Number),
        (is_wide, "REASON", Word),
    ];
    let row = |info: &SnapshotInfo| {
        let reason = sanitize::one_line(&info.reason);
        let pinned = if info.pinned { " pinned" } else { "" };
        let cells = [
            short_id(info.short_id.as_deref(), info.snapshot_id),
            sanitize::one_line(&info.summary),
            options.minute(info.timestamp),
            grouped(info.token_count),
            reason + pinned,
        ];
        cells
            .into_iter()
            .zip(&columns)
            .filter(|(_, (shown, ..))| *shown)
            .map(|(cell, _)| cell)
            .collect::<Vec<_>>()
    };
    let shown: Vec<_> =
        columns.iter().filter(|(shown, ..)| *shown).map(|(_, name, kind)| (*name, *kind)).collect();
    table::render(options.width, &shown, snapshots.iter().map(row))
}

fn render_snapshot(result: &SnapshotGetResult, options: &RenderOptions) -> String {
    let info = &result.snapshot;
    let mut rows = vec![
        ("snapshot", info.snapshot_id.to_string()),
        ("session", info.session_id.to_string()),
        ("taken", options.minute(info.timestamp)),
        ("reason", sanitize::one_line(&info.reason)),
        ("summary", sanitize::one_line(&info.summary)),
        ("tokens", grouped(info.token_count)),
        ("messages", format!("{}, {} of the user", info.message_count, info.user_message_count)),
    ];
    if info.checkpoint_count > 0 {
        rows.push(("checkpoints", grouped(info.checkpoint_count)));
    }
    rows.extend(info.goal.as_ref().map(|goal| ("goal", sanitize::one_line(goal))));
    rows.extend(info.mode.as_ref().map(|mode| ("mode", sanitize::one_line(mode))));
    if info.pinned {
        rows.push(("pinned", "yes".to_owned()));
    }
    rows.push(("file", bytes(info.size_bytes)));
    table::wrapped_fields(&rows, options.prose_columns)
}

/// Returns what a restore would change.
fn render_plan(result: &SnapshotRestoreResult, with_files: bool) -> String {
    if result.new_session {
        let files = if with_files { "files stay as they are\n" } else { "" };
        return format!("a new session with {}\n{files}", path_records(&result.added));
    }
    if result.added.is_empty() && result.removed.is_empty() {
        return "nothing would change: the session is at the snapshot\n".to_owned();
    }
    let mut text = records_to_move(&result.added, &result.removed);
    if let (Some(before), Some(after)) = (&result.before, &result.after) {
        text.push_str(&changes(before, after));
    }
    match &result.files {
        Some(plan) if with_files => text.push_str(&plan_lines(plan)),
        Some(plan) => {
            if let Some(names) = names_to_put_back(plan) {
                text.push_str(&format!("  with --files, also put back: {names}\n"));
            }
        }
        None => {}
    }
    text
}

/// Returns the properties that differ, one a line.
pub(super) fn changes(before: &ContextState, after: &ContextState) -> String {
    let number = |number: u64| Some(grouped(number));
    let rows = [
        ("tokens", number(before.tokens), number(after.tokens)),
        ("messages", number(before.messages), number(after.messages)),
        ("checkpoints", number(before.checkpoints), number(after.checkpoints)),
        ("goals", number(before.goals), number(after.goals)),
        ("goal", before.goal.clone(), after.goal.clone()),
        ("entries", number(before.entries), number(after.entries)),
        ("pins", number(before.pins), number(after.pins)),
        ("mode", before.mode.clone(), after.mode.clone()),
    ];
    let shown = |text: &Option<String>| {
        text.as_deref().map_or_else(|| "none".to_owned(), sanitize::one_line)
    };
    let changed = rows.iter().filter(|(_, before, after)| before != after);
    changed
        .map(|(name, before, after)| format!("  {name}: {} -> {}\n", shown(before), shown(after)))
        .collect()
}

fn render_restored(result: &SnapshotRestoreResult) -> String {
    if let Some(session) = &result.session {
        let title = sanitize::one_line(&session.title);
        return format!("restored as a new session {}  {title}\n", session.session_id);
    }
    match (result.seq, result.duplicate) {
        (None, _) => "the session is at the snapshot already\n".to_owned(),
        (Some(_), true) => "restored before\n".to_owned(),
        (Some(_), false) => {
            let moved = moved_records(&result.added, &result.removed);
            let files = result.files.as_ref().map(plan_lines).unwrap_or_default();
            let undo = if result.files.is_some() { "undo --files" } else { "undo" };
            let id = result.snapshot_id;
            format!("restored {id}\n{moved}{files}  `ollmctl {undo}` takes this back\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::Exit;
    use crate::testing::{SESSION_ID, render_options, run_against};

    const ID: &str = "0192f0c1-0000-7000-8000-00000000abcd";

    fn info() -> Value {
        json!({ "snapshotId": ID, "sessionId": SESSION_ID, "timestamp": "2026-01-27T10:00:00Z",
            "reason": "manual", "summary": "before\u{1b}[2J the port", "tokenCount": 1812,
            "messageCount": 7, "userMessageCount": 3, "sizeBytes": 9216 })
    }

    fn answer(method: &str, params: &Value) -> Option<Value> {
        Some(match method {
            "snapshot.list" => json!({ "data": [info()] }),
            "snapshot.get" | "snapshot.update" | "snapshot.create" => json!({ "snapshot": info() }),
            "snapshot.delete" => json!({ "snapshotId": ID, "sessionId": SESSION_ID }),
            _ => {
                let seq = (params["dryRun"] != true).then_some(9);
                json!({ "snapshotId": ID, "sessionId": SESSION_ID, "seq": seq,
                    "removed": { "records": 2, "messages": 2, "tokens": 40 } })
            }
        })
    }

    #[test]
    fn snapshot_is_found_by_its_beginning_its_end_or_as_the_newest() {
        for text in ["0192", "ABCD", "last", ID] {
            let run = run_against(&["snapshot", "pin", text, "--session", SESSION_ID], answer);
            assert!(run.error.is_none(), "{text}: {:?}", run.error);
            assert_eq!(run.stdout, "pinned 0000abcd  before the port\n", "{text}");
        }
        for (text, exit) in [("dead", Exit::NotFound), ("abc", Exit::Usage), ("../x", Exit::Usage)]
        {
            let run = run_against(&["snapshot", "show", text], answer);
            assert_eq!(run.error.as_ref().map(CommandError::exit), Some(exit), "{text}");
        }
    }

    #[test]
    fn without_terminal_and_yes_nothing_is_restored_or_deleted() {
        for command in ["restore", "delete"] {
            let run = run_against(&["snapshot", command, ID], answer);
            let error = run.error.as_ref().expect("is refused");
            assert!(error.to_string().contains("--yes"), "{error}");
            let is_change = |(method, params): &(String, Value)| {
                method == "snapshot.delete"
                    || method == "snapshot.restore" && params["dryRun"] != true
            };
            assert!(!run.calls.iter().any(is_change), "{:?}", run.calls);
        }
        let run = run_against(&["snapshot", "restore", ID, "--yes"], answer);
        assert_eq!(
            run.stdout,
            format!(
                "restored {ID}\n  taken back: 2 messages, 40 tokens\n  `ollmctl undo` takes this back\n"
            )
        );
    }

    #[test]
    fn progress_of_files_is_that_of_the_session_that_the_preview_names() {
        let run =
            run_against(&["snapshot", "restore", ID, "--files", "--yes"], |method, params| {
                let mut result = answer(method, params)?;
                if method == "snapshot.restore" {
                    let plan_id = "0192f0c1-0000-7000-8000-00000000aaaa";
                    let counts = json!({ "putBack": 1 });
                    result["files"] = json!({ "planId": plan_id, "counts": counts, "files": [] });
                }
                Some(result)
            });
        assert!(run.error.is_none(), "{:?}", run.error);
        assert_eq!(run.methods(), ["snapshot.restore", "event.subscribe", "snapshot.restore"]);
        let subscribed = json!({ "sessionId": SESSION_ID, "kinds": ["files-progress"] });
        assert_eq!(run.calls[1].1, subscribed);
        assert_eq!(run.calls[2].1["files"], "apply");
    }

    #[test]
    fn plan_names_what_changes() {
        let before = json!({ "tokens": 90, "messages": 4, "checkpoints": 0, "goals": 1, "entries": 1,
            "pins": 0, "mode": "developer" });
        let after = json!({ "tokens": 50, "messages": 2, "checkpoints": 0, "goals": 1, "entries": 1,
            "pins": 0 });
        let result = json!({ "snapshotId": ID, "sessionId": SESSION_ID, "before": before, "after": after,
            "removed": { "records": 2, "messages": 2, "tokens": 40 } });
        assert_eq!(
            render_plan(&serde_json::from_value(result).expect("a result"), false),
            "  would be taken back: 2 messages, 40 tokens\n  tokens: 90 -> 50\n  messages: 4 -> 2\n  mode: developer -> none\n"
        );
        let list = json!({ "data": [info()], "skipped": [{ "sessionId": SESSION_ID, "file": "snapshot-x.json",
            "reason": "it is not JSON" }] });
        let list = serde_json::from_value(list).expect("a list");
        let text = crate::testing::plain(&render_list(&list, &render_options(100)));
        assert!(
            text.starts_with("ID  ")
                && text.contains("\n0000abcd  before the port")
                && text.contains("1,812  manual")
                && text.contains("skipped snapshot-x.json"),
            "{text}"
        );
    }
}
