//! `ollmctl sessions`.

mod delete;
mod export;
mod import;
mod list;
mod search;
mod view;

use ollm_protocol::ErrorKind;
use ollm_protocol::method::{
    Method, SessionArchive, SessionClose, SessionCurrent, SessionResume, SessionSetCurrent,
    SessionUnarchive, SessionUpdate,
};
use ollm_protocol::methods::session::{
    SessionCurrentParams, SessionIdParams, SessionResult, SessionResumeParams,
    SessionSetCurrentParams, SessionUpdateParams,
};
use ollm_protocol::sanitize;

use super::{CommandError, Cx, project};
use crate::cli::{CurrentArgs, RenameArgs, SessionArg, SessionsCommand};
use crate::error::ClientError;
use crate::render::sessions;
use crate::render::transcript::{self, Transcript};

pub(super) fn run(command: SessionsCommand, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    match command {
        SessionsCommand::List(args) => list::run(&args, cx),
        SessionsCommand::View(args) => view::run(&args, cx),
        SessionsCommand::Search(args) => search::run(&args, cx),
        SessionsCommand::Export(args) => export::run(&args, cx),
        SessionsCommand::Import(args) => import::run(&args, cx),
        SessionsCommand::Delete(args) => delete::delete(&args, cx),
        SessionsCommand::Clear(args) => delete::clear(&args, cx),
        SessionsCommand::Cleanup(args) => delete::cleanup(&args, cx),
        SessionsCommand::Archive(args) => change::<SessionArchive>(&args, "archived", cx),
        SessionsCommand::Unarchive(args) => change::<SessionUnarchive>(&args, "brought back", cx),
        SessionsCommand::Close(args) => change::<SessionClose>(&args, "closed", cx),
        SessionsCommand::Rename(args) => rename(args, cx),
        SessionsCommand::Resume(args) => resume(&args, cx),
        SessionsCommand::Current(args) => current(&args, cx),
    }
}

fn change<M>(args: &SessionArg, what: &str, cx: &mut Cx<'_>) -> Result<(), CommandError>
where
    M: Method<Params = SessionIdParams, Result = SessionResult>,
{
    let params = SessionIdParams { session_id: cx.session(&args.id)? };
    let reply = cx.call::<M>(&params)?;
    cx.print(&reply, |result, _| sessions::done(what, &result.session))
}

fn rename(args: RenameArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let params = SessionUpdateParams {
        title: Some(args.title),
        ..SessionUpdateParams::new(cx.session(&args.id)?)
    };
    let reply = cx.call::<SessionUpdate>(&params)?;
    cx.print(&reply, |result, _| sessions::done("renamed", &result.session))
}

fn resume(args: &SessionArg, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let session_id = cx.session(&args.id)?;
    let reply = cx.call::<SessionResume>(&SessionResumeParams { session_id, limit: None })?;
    // A session without a project, or of one that is not on this machine, is resumed all the same; there is
    // nothing to set then.
    if let Some(project_path) = reply.value.session.project_path.clone() {
        let shown = sanitize::one_line(&project_path);
        let params = SessionSetCurrentParams { project_path, session_id: Some(session_id) };
        match cx.call::<SessionSetCurrent>(&params) {
            Err(ClientError::Rpc(failure)) if failure.kind == Some(ErrorKind::InvalidParams) => {
                if !cx.json() {
                    cx.terminal.note(&format!("its project is not here: {shown}"));
                }
            }
            other => drop(other?),
        }
    }
    cx.print(&reply, |page, cx| {
        let view = cx.view();
        let mut text = transcript::head(&page.session, &view);
        let mut transcript = Transcript::new(&chrono::Local, &view);
        for record in page.records.iter().filter(|record| record.active) {
            text.push_str(&transcript.record(record.clone()));
        }
        text
    })
}

fn current(args: &CurrentArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let project_path = match args.project.as_deref() {
        None => project::path(None)?,
        given => project::filter(given)?.unwrap_or_default(),
    };
    let reply =
        cx.call::<SessionCurrent>(&SessionCurrentParams { project_path: project_path.clone() })?;
    if reply.value.session.is_none() {
        let project = args.project.as_ref().map(|path| format!("--project {} ", path.display()));
        return Err(CommandError::Gone {
            message: format!("{project_path} has no current session"),
            hint: Some(format!("ollmctl record {}'hello'", project.unwrap_or_default())),
        });
    }
    cx.print(&reply, |result, cx| {
        result
            .session
            .as_ref()
            .map_or_else(String::new, |session| transcript::head(session, &cx.view()))
    })
}
