//! `ollmctl sessions delete`, `clear` and `cleanup`: what cannot be taken back is shown and asked for.

use std::time::Duration;

use ollm_protocol::content::Session;
use ollm_protocol::method::{SessionCleanup, SessionClear, SessionDelete, SessionGet};
use ollm_protocol::methods::session::{
    BranchFilter, SessionCleanupParams, SessionClearParams, SessionGetParams, SessionIdParams,
};
use serde_json::{Value, json};

use super::super::{CommandError, Cx};
use super::list;
use crate::cli::{CleanupArgs, ClearArgs, DeleteArgs};
use crate::render::number::counted;
use crate::render::sessions;

/// Deleting many sessions takes a sync each, and a big one is first taken out of the catalog.
const PATIENCE: Duration = Duration::from_secs(600);

pub(super) fn delete(args: &DeleteArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let mut ids = Vec::new();
    for text in &args.ids {
        let id = cx.session(text)?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    // All are looked at before the first goes: a typing error must not leave half of it done.
    let mut doomed = Vec::new();
    for session_id in &ids {
        let params = SessionGetParams {
            session_id: *session_id,
            from: None,
            limit: Some(1),
            branch: BranchFilter::All,
        };
        doomed.push(cx.call_patiently::<SessionGet>(&params, PATIENCE)?.value.session);
    }
    if !confirm(&doomed, args.yes, cx)? {
        return Ok(());
    }
    let mut results: Vec<Value> = Vec::new();
    for session in &doomed {
        let params = SessionIdParams { session_id: session.session_id };
        let reply = cx.call_patiently::<SessionDelete>(&params, PATIENCE)?;
        if cx.json() {
            results.push(serde_json::from_str(reply.raw.get()).unwrap_or_default());
        } else {
            cx.print_text(&sessions::done("deleted", session))?;
        }
    }
    match (cx.json(), results.as_slice()) {
        (false, _) => Ok(()),
        (true, [only]) => cx.print_json(only),
        (true, _) => cx.print_json(&json!({ "data": results })),
    }
}

pub(super) fn clear(args: &ClearArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    if !args.yes {
        let doomed = list::every(cx)?;
        if !doomed.is_empty() && !confirm(&doomed, false, cx)? {
            return Ok(());
        }
    }
    let params = SessionClearParams { all: args.all };
    let reply = cx.call_patiently::<SessionClear>(&params, PATIENCE)?;
    cx.print(&reply, |result, cx| sessions::cleanup(result, &cx.view()))
}

pub(super) fn cleanup(args: &CleanupArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let params = |dry_run| SessionCleanupParams { keep: args.keep, dry_run };
    if !args.dry_run && !args.yes {
        let doomed = cx.call_patiently::<SessionCleanup>(&params(true), PATIENCE)?.value.deleted;
        if !doomed.is_empty() && !confirm(&doomed, false, cx)? {
            return Ok(());
        }
    }
    let reply = cx.call_patiently::<SessionCleanup>(&params(args.dry_run), PATIENCE)?;
    cx.print(&reply, |result, cx| sessions::cleanup(result, &cx.view()))
}

/// Shows what will go and asks; without a person only `--yes` will do.
fn confirm(doomed: &[Session], yes: bool, cx: &mut Cx<'_>) -> Result<bool, CommandError> {
    if yes {
        return Ok(true);
    }
    let what = counted(doomed.len() as u64, "session");
    if !cx.terminal.can_ask() {
        return Err(CommandError::usage(
            format!("this would delete {what}, and there is no terminal to ask on: add --yes"),
            "",
        ));
    }
    cx.terminal.note(sessions::doomed(doomed, &cx.view()).trim_end());
    let question = format!("delete {what}? This cannot be undone.");
    let affirmed = cx.terminal.ask(&question).map_err(CommandError::Output)?;
    if !affirmed {
        cx.terminal.note("nothing was deleted");
    }
    Ok(affirmed)
}
