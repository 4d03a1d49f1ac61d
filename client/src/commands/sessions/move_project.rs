//! `ollmctl sessions move`: the sessions of a project whose directory moved.
//!
//! The order is that of safety: what restricts the sessions and what they begin with is at the new place before the first
//! of them is. A repeated command continues one that was interrupted.

use std::path::PathBuf;

use clap::Args;
use ollm_protocol::content::{ContextScope, Session};
use ollm_protocol::method::{
    ContextAddEntry, ContextListEntries, SessionCurrent, SessionSetCurrent,
    SessionSetProjectServers, SessionUpdate,
};
use ollm_protocol::methods::context::{ContextAddEntryParams, ContextListEntriesParams};
use ollm_protocol::methods::session::{
    SessionCurrentParams, SessionSetCurrentParams, SessionSetProjectServersParams,
    SessionUpdateParams,
};
use ollm_protocol::sanitize;
use serde_json::json;

use super::list::all_sessions;
use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult, LIST_HINT};
use crate::project;
use crate::render::units::counted;

/// Move the sessions of a project to the directory where the project is now.
#[derive(Debug, Args)]
#[command(after_help = "\
Sessions belong to a directory by its path. This command gives those of OLD, which may no longer exist, the path of NEW, \
together with the remembered texts, the allowed model servers and the current session of the project. What NEW has \
already stays.

Examples:
  ollmctl sessions move ~/src/parser ~/work/parser
  ollmctl sessions move ../old-name . --dry-run")]
pub(crate) struct MoveArgs {
    /// The directory that the sessions belong to.
    #[arg(value_name = "OLD")]
    from: PathBuf,
    /// The directory that they are to belong to.
    #[arg(value_name = "NEW")]
    to: PathBuf,
    /// Only show how many sessions would be moved.
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &MoveArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let from = project::filter_path(Some(&args.from))?.unwrap_or_default();
    let to = project::canonical_path(Some(&args.to))?;
    let (from_shown, to_shown) = (sanitize::one_line(&from), sanitize::one_line(&to));
    if from == to {
        let problem = format!("{to_shown} is both the old and the new directory");
        return Err(CommandError::usage(problem, "ollmctl sessions move OLD NEW"));
    }
    let sessions = all_sessions(Some(from.clone()), ctx)?;
    if sessions.is_empty() {
        let problem = format!("no session belongs to {from_shown}");
        return Err(CommandError::not_found(problem, LIST_HINT));
    }
    let missing_servers = missing_servers(&from, &to, ctx)?;
    if !args.dry_run {
        move_settings(&from, &to, missing_servers, ctx)?;
        move_sessions(&sessions, &to, ctx)?;
    }
    if ctx.json() {
        let ids: Vec<_> = sessions.iter().map(|session| session.session_id).collect();
        return ctx.print_json(&json!({
            "from": from, "to": to, "sessionIds": ids, "dryRun": args.dry_run,
        }));
    }
    let done = if args.dry_run { "would be moved" } else { "moved" };
    let count = counted(sessions.len() as u64, "session");
    ctx.print_text(&format!("{count} {done} from {from_shown} to {to_shown}\n"))
}

/// Gives sessions another project, the newest last, so that their order stays. Goes on after one that cannot be changed.
fn move_sessions(sessions: &[Session], to: &str, ctx: &mut CommandContext<'_>) -> CommandResult {
    let mut failures = Vec::new();
    for session in sessions.iter().rev() {
        let (id, project_path) = (session.session_id, Some(to.to_owned()));
        let params = SessionUpdateParams { project_path, ..SessionUpdateParams::new(id) };
        if let Err(error) = ctx.call::<SessionUpdate>(&params) {
            let error = CommandError::from(error);
            ctx.terminal.eprintln(&format!("{id}: {}", error.to_text()));
            failures.push(error);
        }
    }
    match failures.first() {
        None => Ok(()),
        Some(first) => Err(CommandError::PartialFailure {
            failed: failures.len(),
            total: sessions.len(),
            exit: first.exit(),
        }),
    }
}

/// Returns the model servers that one project allows and that another must be given, because it allows all.
///
/// **Errors**: the other one allows a server that the project does not.
fn missing_servers(
    from: &str,
    to: &str,
    ctx: &mut CommandContext<'_>,
) -> CommandResult<Option<Vec<String>>> {
    let mut servers = |path: &str| -> CommandResult<Vec<String>> {
        let project_path = path.to_owned();
        let params = SessionSetProjectServersParams { project_path, allowed_servers: None };
        Ok(ctx.call::<SessionSetProjectServers>(&params)?.value.allowed_servers)
    };
    let (allowed, there) = (servers(from)?, servers(to)?);
    if allowed.is_empty() || there.iter().all(|server| allowed.contains(server)) {
        return Ok(Some(allowed).filter(|allowed| there.is_empty() && !allowed.is_empty()));
    }
    let problem = "the new directory allows model servers that the old one does not";
    Err(CommandError::usage(problem, "ollmctl sessions servers --help"))
}

/// Gives a project the servers that it must have, and the remembered texts and the current session of another, as far as it
/// has none.
fn move_settings(
    from: &str,
    to: &str,
    servers: Option<Vec<String>>,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    if servers.is_some() {
        let project_path = to.to_owned();
        let params = SessionSetProjectServersParams { project_path, allowed_servers: servers };
        ctx.call::<SessionSetProjectServers>(&params)?;
    }
    let entries = |path: &str| ContextListEntriesParams {
        session_id: None,
        project_path: Some(path.to_owned()),
    };
    let there = ctx.call::<ContextListEntries>(&entries(to))?.value.data;
    let missing = ctx.call::<ContextListEntries>(&entries(from))?.value.data;
    let is_own = |scope: ContextScope| scope == ContextScope::Project;
    for entry in missing.into_iter().filter(|entry| is_own(entry.scope)) {
        if there.iter().any(|other| is_own(other.scope) && other.key == entry.key) {
            continue;
        }
        ctx.call::<ContextAddEntry>(&ContextAddEntryParams {
            session_id: None,
            project_path: Some(to.to_owned()),
            scope: None,
            key: entry.key,
            content: entry.content,
            priority: Some(entry.priority),
            source: serde_json::from_value(json!(entry.source)).ok(),
        })?;
    }
    let current = |path: &str| SessionCurrentParams::new(path.to_owned());
    if ctx.call::<SessionCurrent>(&current(to))?.value.session.is_none()
        && let Some(session) = ctx.call::<SessionCurrent>(&current(from))?.value.session
    {
        let session_id = Some(session.session_id);
        let params = SessionSetCurrentParams { project_path: to.to_owned(), session_id };
        ctx.call::<SessionSetCurrent>(&params)?;
    }
    Ok(())
}
