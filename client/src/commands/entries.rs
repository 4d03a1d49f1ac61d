//! `ollmctl context entries`, `context pin` and `context unpin`.

use ollm_protocol::content::ContextScope;
use ollm_protocol::method::{
    ContextAddEntry, ContextListEntries, ContextPin, ContextRemoveEntry, ContextUnpin,
};
use ollm_protocol::methods::context::{
    ContextAddEntryParams, ContextListEntriesParams, ContextPinParams, ContextPinResult,
    ContextRemoveEntryParams,
};
use ollm_protocol::{Seq, SessionId};

use super::cx::Reply;
use super::record::{TextUse, text_or_stdin};
use super::which::session_of;
use super::{CommandError, Cx, project};
use crate::cli::{EntriesArgs, EntriesCommand, PinArgs, PlaceArgs};
use crate::render::entries;

const TEXT: TextUse = TextUse {
    verb: "add",
    command: "context entries add",
    example: "ollmctl context entries add style 'Answer briefly.' --global",
};

/// Where entries hold, as the daemon is told.
#[derive(Default)]
struct Place {
    session_id: Option<SessionId>,
    project_path: Option<String>,
    scope: Option<ContextScope>,
}

fn place_of(args: &PlaceArgs, cx: &mut Cx<'_>) -> Result<Place, CommandError> {
    if args.global {
        return Ok(Place { scope: Some(ContextScope::Global), ..Place::default() });
    }
    if let Some(given) = &args.project {
        return Ok(Place { project_path: Some(project::path(Some(given))?), ..Place::default() });
    }
    let session_id = session_of(args.session.as_deref(), "context entries", cx)?;
    Ok(Place { session_id: Some(session_id), ..Place::default() })
}

pub(super) fn run(args: EntriesArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let Place { session_id, project_path, scope } = place_of(&args.place, cx)?;
    match args.command.unwrap_or(EntriesCommand::List) {
        EntriesCommand::List => {
            let params = ContextListEntriesParams { session_id, project_path };
            let reply = cx.call::<ContextListEntries>(&params)?;
            cx.print(&reply, |listed, cx| entries::list(listed, cx.view().width))
        }
        EntriesCommand::Add(add) => {
            let params = ContextAddEntryParams {
                session_id,
                project_path,
                scope,
                key: add.key,
                content: text_or_stdin(add.text.as_deref(), &TEXT)?,
                priority: add.priority,
                source: Some(add.source.into()),
            };
            let reply = cx.call::<ContextAddEntry>(&params)?;
            cx.print(&reply, |added, _| entries::added(added))
        }
        EntriesCommand::Remove(remove) => {
            let key = remove.key;
            let params = ContextRemoveEntryParams { session_id, project_path, scope, key };
            let reply = cx.call::<ContextRemoveEntry>(&params)?;
            cx.print(&reply, |result, _| {
                let text = if result.removed { "removed" } else { "there was no such entry" };
                format!("{text}\n")
            })
        }
    }
}

pub(super) fn pin(args: &PinArgs, pinned: bool, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let example = if pinned { "context pin N" } else { "context unpin N" };
    let session_id = session_of(args.session.as_deref(), example, cx)?;
    let reply = set_pin(session_id, args.seq, pinned, cx)?;
    cx.print(&reply, |result, _| entries::pins(result))
}

/// Pins or releases a record.
pub(super) fn set_pin(
    session_id: SessionId,
    seq: u64,
    pinned: bool,
    cx: &mut Cx<'_>,
) -> Result<Reply<ContextPinResult>, CommandError> {
    let params = ContextPinParams { session_id, seq: Seq(seq) };
    Ok(if pinned { cx.call::<ContextPin>(&params)? } else { cx.call::<ContextUnpin>(&params)? })
}
