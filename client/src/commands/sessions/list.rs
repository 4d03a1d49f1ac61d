//! `ollmctl sessions list`.

use std::path::PathBuf;

use clap::Args;
use ollm_protocol::content::{Session, SessionStatus};
use ollm_protocol::methods::session::{SessionListParams, SessionListResult};

use crate::args::wire_enum;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::error::ClientError;
use crate::project;
use crate::render::session_table;

/// The maximum number of sessions of one page.
const PAGE_SESSIONS: u32 = 1000;
/// The remark for a list that was cut at `--limit`.
const CUT_REMARK: &str = "there are more sessions: raise --limit";

const STATUS_HELP: [&str; 4] =
    ["In use", "Not in use", "Hidden from lists", "With damaged records"];

/// List sessions, the most recently active first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl sessions list
  ollmctl sessions list --project . --limit 5
  ollmctl sessions list --status archived --json")]
pub(crate) struct ListArgs {
    /// Only sessions of the project in DIR.
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
    /// Also archived sessions.
    #[arg(long, conflicts_with = "status")]
    all: bool,
    /// Only sessions of this status [default: all but archived].
    #[arg(long, value_parser = wire_enum::<SessionStatus>(&STATUS_HELP))]
    status: Option<SessionStatus>,
    /// The maximum number of sessions.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

pub(super) fn run(args: &ListArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let params = SessionListParams {
        project_path: project::filter_path(args.project.as_deref())?,
        status: args.status,
        ..SessionListParams::default()
    };
    let mut result = list(&params, args.limit, ctx)?;
    let mut is_cut = result.next_cursor.is_some();
    if args.all {
        let params = SessionListParams { status: Some(SessionStatus::Archived), ..params };
        let archived = list(&params, args.limit, ctx)?;
        result.data.extend(archived.data);
        result.data.sort_by_key(|session| std::cmp::Reverse(session.last_activity));
        is_cut |= archived.next_cursor.is_some() || result.data.len() > args.limit as usize;
        result.data.truncate(args.limit as usize);
        result.behind |= archived.behind;
        // A cursor continues only one of the two lists.
        result.next_cursor = None;
        if is_cut && ctx.json() {
            ctx.terminal.eprintln(CUT_REMARK);
        }
    }
    if ctx.json() {
        return ctx.print_json(&result);
    }
    let mut text = match result.data.as_slice() {
        [] => "no sessions\n".to_owned(),
        sessions => session_table::render(sessions, &ctx.render_options()),
    };
    if is_cut {
        text.push_str(&format!("{CUT_REMARK}\n"));
    }
    if result.behind {
        text.push_str("the catalog is being rebuilt: sessions may be missing here\n");
    }
    ctx.print_text(&text)
}

/// Returns every session, or those of a project, archived ones included.
///
/// **Errors**: the catalog is being made again, so sessions may be missing.
pub(super) fn all_sessions(
    project_path: Option<String>,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<Vec<Session>> {
    let mut params = SessionListParams { project_path, ..SessionListParams::default() };
    let mut all = Vec::new();
    for status in [None, Some(SessionStatus::Archived)] {
        params.status = status;
        let found = list(&params, u32::MAX, ctx)?;
        if found.behind {
            return Err(CommandError::CatalogBehind);
        }
        all.extend(found.data);
    }
    Ok(all)
}

/// Requests pages up to a limit and joins them.
fn list(
    params: &SessionListParams,
    limit: u32,
    ctx: &mut CommandContext<'_>,
) -> Result<SessionListResult, ClientError> {
    let mut params = params.clone();
    let mut all = SessionListResult { data: Vec::new(), next_cursor: None, behind: false };
    loop {
        let missing = limit.saturating_sub(u32::try_from(all.data.len()).unwrap_or(u32::MAX));
        params.limit = Some(missing.min(PAGE_SESSIONS));
        let page = ctx.list_sessions(&params)?;
        all.behind |= page.behind;
        let is_empty = page.data.is_empty();
        all.data.extend(page.data);
        all.next_cursor = page.next_cursor;
        // An empty page with a cursor would be requested forever.
        if all.next_cursor.is_none() || is_empty || all.data.len() >= limit as usize {
            return Ok(all);
        }
        params.cursor.clone_from(&all.next_cursor);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{run_against, session_json};

    #[test]
    fn pages_are_joined_up_to_the_limit() {
        let run = run_against(&["--json", "sessions", "list", "--limit", "3"], |_, params| {
            let all = vec![session_json(); 4];
            let from: usize = params["cursor"].as_str().map_or(0, |cursor| cursor.parse().unwrap());
            let to = (from + 2).min(from + params["limit"].as_u64().unwrap() as usize);
            Some(json!({ "data": all[from..to], "nextCursor": to.to_string() }))
        });
        let printed: Value = serde_json::from_str(&run.stdout).unwrap();
        assert_eq!(printed["data"].as_array().unwrap().len(), 3);
        assert_eq!(printed["nextCursor"], "3");
        assert_eq!(run.calls[1].1, json!({"limit": 1, "cursor": "2"}));
    }

    #[test]
    fn list_cut_at_the_limit_has_a_remark() {
        let is_cut = |line: &'static [&str], total: usize| {
            let run = run_against(line, move |_, params| {
                let limit = usize::try_from(params["limit"].as_u64().unwrap()).unwrap();
                let next = (total > limit).then_some("c");
                let data = vec![session_json(); total.min(limit)];
                Some(json!({ "data": data, "nextCursor": next }))
            });
            assert!(run.error.is_none());
            run.stdout.ends_with("\nthere are more sessions: raise --limit\n")
        };
        assert!(is_cut(&["sessions", "list", "--limit", "3"], 4));
        assert!(!is_cut(&["sessions", "list", "--limit", "3"], 3));
        // Each of the two lists is complete with two sessions, but only three of four are shown.
        assert!(is_cut(&["sessions", "list", "--limit", "3", "--all"], 2));
        assert!(!is_cut(&["sessions", "list", "--limit", "4", "--all"], 2));
    }
}
