//! `ollmctl sessions delete`, `clear` and `cleanup`: show what will be deleted and ask before they delete it.

use clap::Args;
use ollm_protocol::content::Session;
use ollm_protocol::method::{SessionCleanup, SessionClear, SessionDelete, SessionGet};
use ollm_protocol::methods::session::{
    BranchFilter, SessionCleanupParams, SessionCleanupResult, SessionClearParams, SessionGetParams,
    SessionIdParams,
};
use ollm_protocol::sanitize;
use serde_json::Value;

use super::list;
use crate::args::session::SESSION_HELP;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::completion;
use crate::render::session_table::{self, outcome_line};
use crate::render::units::{counted, grouped};
use crate::render::{RenderOptions, Style};

/// Sessions that are shown before they are deleted.
const SHOWN_SESSIONS: usize = 10;

/// Delete sessions with all their files.
#[derive(Debug, Args)]
#[command(after_help = "\
Asks first; without a terminal --yes is needed.

Examples:
  ollmctl sessions delete 0192f0c1
  ollmctl sessions delete --yes 0192f0c1 0192f0d7")]
pub(crate) struct DeleteArgs {
    #[arg(
        required = true,
        value_name = "SESSION",
        help = SESSION_HELP,
        add = completion::sessions()
    )]
    ids: Vec<String>,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

/// Delete every session.
#[derive(Debug, Args)]
#[command(after_help = "\
Asks first; without a terminal --yes is needed.

Examples:
  ollmctl sessions clear --all")]
pub(crate) struct ClearArgs {
    /// Confirm that every session is deleted, pinned and archived ones too.
    #[arg(long, required = true)]
    all: bool,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

/// Delete all but the most recently active sessions; keeps pinned and archived ones.
#[derive(Debug, Args)]
#[command(after_help = "\
Asks first; without a terminal --yes is needed.

Examples:
  ollmctl sessions cleanup --keep 50 --dry-run
  ollmctl sessions cleanup --keep 50 --yes")]
pub(crate) struct CleanupArgs {
    /// The number of sessions to keep.
    #[arg(long, value_name = "N")]
    keep: u32,
    /// Only show what would be deleted.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

pub(super) fn delete(args: &DeleteArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let mut ids = Vec::new();
    for text in &args.ids {
        let id = ctx.session(text)?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    // All sessions are read before the first is deleted, so that a typing error deletes none.
    let mut sessions = Vec::new();
    for session_id in ids {
        let branch = BranchFilter::All;
        let params = SessionGetParams { session_id, from: None, limit: Some(1), branch };
        sessions.push(ctx.call::<SessionGet>(&params)?.value.session);
    }
    if !confirm(&sessions, 0, args.yes, ctx)? {
        return Ok(());
    }
    let mut results: Vec<Value> = Vec::new();
    for session in &sessions {
        let params = SessionIdParams { session_id: session.session_id };
        let reply = ctx.call::<SessionDelete>(&params)?;
        if ctx.json() {
            results.push(reply.to_json());
        } else {
            ctx.print_text(&outcome_line("deleted", session))?;
        }
    }
    if ctx.json() { ctx.print_json_list(&results) } else { Ok(()) }
}

pub(super) fn clear(args: &ClearArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    if !args.yes {
        let sessions = list::all_sessions(None, ctx)?;
        if !sessions.is_empty() && !confirm(&sessions, 0, false, ctx)? {
            return Ok(());
        }
    }
    let params = SessionClearParams { all: args.all };
    ctx.show::<SessionClear>(&params, render_outcome)
}

pub(super) fn cleanup(args: &CleanupArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let params = |dry_run| SessionCleanupParams { keep: args.keep, dry_run };
    if !args.dry_run && !args.yes {
        let plan = ctx.call::<SessionCleanup>(&params(true))?.value;
        if !plan.deleted.is_empty() && !confirm(&plan.deleted, plan.more_deleted, false, ctx)? {
            return Ok(());
        }
    }
    ctx.show::<SessionCleanup>(&params(args.dry_run), render_outcome)
}

/// Shows the sessions and asks whether to delete them and `more` others.
///
/// **Errors**: `--yes` is missing, and no person can be asked.
fn confirm(
    sessions: &[Session],
    more: u64,
    yes: bool,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<bool> {
    if yes {
        return Ok(true);
    }
    let number = counted(sessions.len() as u64 + more, "session");
    ctx.confirm(&format!("permanently delete {number}"), "deleted", |options| {
        first_sessions(sessions, more, options)
    })
}

/// Returns the first sessions of a list, and the number of the others.
fn first_sessions(sessions: &[Session], more: u64, options: &RenderOptions) -> String {
    let shown = &sessions[..sessions.len().min(SHOWN_SESSIONS)];
    let mut text = session_table::render(shown, options);
    let more = sessions.len().saturating_sub(SHOWN_SESSIONS) as u64 + more;
    if more > 0 {
        text.push_str(&format!("and {} more\n", grouped(more)));
    }
    text
}

fn render_outcome(result: &SessionCleanupResult, options: &RenderOptions) -> String {
    let deleted = counted(result.deleted.len() as u64 + result.more_deleted, "session");
    let kept = grouped(result.kept);
    let mut text = String::new();
    if result.dry_run {
        if !result.deleted.is_empty() {
            text.push_str(&first_sessions(&result.deleted, result.more_deleted, options));
        }
        text.push_str(&format!("would delete {deleted}, keep {kept}\n"));
    } else {
        text.push_str(&format!("deleted {deleted}, kept {kept}\n"));
    }
    for failure in &result.failed {
        let (label, message) = (Style::Bad.paint("kept"), sanitize::one_line(&failure.message));
        text.push_str(&format!("{label} {}: {message}\n", failure.session_id));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::error::Exit;
    use crate::testing::{SESSION_ID, render_options, run_against, session_json, session_named};

    #[test]
    fn without_terminal_and_yes_nothing_is_deleted() {
        let answer = |method: &str, _: &Value| {
            Some(match method {
                "session.get" => json!({ "session": session_json(), "records": [] }),
                "session.list" => json!({ "data": [session_json()] }),
                "session.delete" => json!({ "sessionId": SESSION_ID }),
                _ => {
                    let dry_run = method == "session.cleanup";
                    json!({ "deleted": [session_json()], "kept": 0, "dryRun": dry_run })
                }
            })
        };
        for line in [
            &["sessions", "delete", SESSION_ID][..],
            &["sessions", "clear", "--all"],
            &["sessions", "cleanup", "--keep", "1"],
        ] {
            let run = run_against(line, answer);
            let error = run.error.as_ref().unwrap();
            assert_eq!(error.exit(), Exit::Usage);
            assert!(error.to_string().contains("--yes"), "{error}");
            let deletes = run.calls.iter().any(|(method, params)| {
                ["session.delete", "session.clear"].contains(&method.as_str())
                    || (method == "session.cleanup" && params["dryRun"] != true)
            });
            assert!(!deletes, "{:?}", run.calls);
        }
        let run = run_against(&["sessions", "delete", "--yes", SESSION_ID, SESSION_ID], answer);
        assert_eq!(run.methods(), ["session.get", "session.delete"]);
        assert_eq!(run.stdout, "deleted 00000001  Lists\n");
    }

    #[test]
    fn nothing_is_cleared_while_sessions_may_be_missing() {
        let run = run_against(&["sessions", "clear", "--all"], |method, _| {
            let list = json!({ "data": [session_json()], "behind": true });
            (method == "session.list").then_some(list)
        });
        assert_eq!(run.error.as_ref().unwrap().exit(), Exit::Busy);
        assert!(run.methods().iter().all(|method| *method == "session.list"), "{:?}", run.calls);
    }

    #[test]
    fn dry_run_shows_the_first_sessions_and_the_number_of_all() {
        let many: Vec<_> = (10..22)
            .map(|at| session_named(&format!("0192f0{at}-9a3b-7000-8000-000000000001"), "t"))
            .collect();
        let plan = SessionCleanupResult {
            deleted: many,
            kept: 3,
            more_deleted: 0,
            failed: vec![],
            dry_run: true,
        };
        let text = render_outcome(&plan, &render_options(80));
        assert!(text.contains("and 2 more\nwould delete 12 sessions, keep 3\n"), "{text}");
        let done = SessionCleanupResult { dry_run: false, deleted: vec![], ..plan };
        assert_eq!(render_outcome(&done, &render_options(80)), "deleted 0 sessions, kept 3\n");
    }
}
