//! `ollmctl sessions`: one file for each larger subcommand; the small ones are here.

pub(super) mod branches;
mod delete;
mod export;
mod files;
mod import;
mod list;
mod move_project;
pub(crate) mod options;
pub(crate) mod permissions;
mod search;
mod servers;
pub(super) mod tree;
mod view;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use ollm_protocol::method::{
    SessionArchive, SessionClose, SessionCurrent, SessionResume, SessionUnarchive, SessionUpdate,
};
use ollm_protocol::methods::session::{
    SessionCurrentParams, SessionIdParams, SessionResult, SessionResumeParams, SessionUpdateParams,
};
use ollm_protocol::{Method, SessionId, sanitize};

use crate::args::session::OptionalSessionArg;
use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::completion;
use crate::project;
use crate::render::session_table::{heading, outcome_line};
use crate::render::transcript::Transcript;

/// List, read, search, branch, fork, export, import and delete sessions.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum SessionsCommand {
    List(list::ListArgs),
    View(view::ViewArgs),
    Search(search::SearchArgs),
    Export(export::ExportArgs),
    Import(import::ImportArgs),
    Tree(tree::TreeArgs),
    Branch(branches::BranchArgs),
    Fork(branches::ForkArgs),
    Label(tree::LabelArgs),
    Operations(branches::OperationsArgs),
    Files(files::FilesArgs),
    Servers(servers::ServersArgs),
    Move(move_project::MoveArgs),
    Options(options::OptionsArgs),
    Permissions(permissions::PermissionsArgs),
    Delete(delete::DeleteArgs),
    Clear(delete::ClearArgs),
    Cleanup(delete::CleanupArgs),
    /// Archive a session; it is then listed only on request.
    Archive(OptionalSessionArg),
    /// Restore an archived session.
    Unarchive {
        /// An id, or a unique end or beginning of one.
        #[arg(value_name = "SESSION", add = completion::sessions())]
        id: String,
    },
    /// Set the title of a session; an empty title restores the automatic one.
    #[command(
        allow_missing_positional = true,
        after_help = "\
Examples:
  ollmctl sessions rename 'The parser'
  ollmctl sessions rename last 'The parser'"
    )]
    Rename {
        #[command(flatten)]
        session: OptionalSessionArg,
        /// The title.
        title: String,
    },
    /// Make a session the current one of its project again, and show its last page.
    Resume(OptionalSessionArg),
    /// Close a session; recording a message opens it again.
    Close(OptionalSessionArg),
    /// Show the current session of a directory, or of the nearest directory above it.
    #[command(after_help = "\
Examples:
  ollmctl sessions current
  ollmctl sessions current --project ~/src/parser")]
    Current {
        /// Only this directory [default: the current one, and those above it].
        #[arg(long, value_name = "DIR")]
        project: Option<PathBuf>,
    },
}

pub(super) fn run(command: SessionsCommand, ctx: &mut CommandContext<'_>) -> CommandResult {
    match command {
        SessionsCommand::List(args) => list::run(&args, ctx),
        SessionsCommand::View(args) => view::run(&args, ctx),
        SessionsCommand::Search(args) => search::run(&args, ctx),
        SessionsCommand::Export(args) => export::run(&args, ctx),
        SessionsCommand::Import(args) => import::run(&args, ctx),
        SessionsCommand::Tree(args) => tree::run(&args, ctx),
        SessionsCommand::Branch(args) => branches::branch(&args, ctx),
        SessionsCommand::Fork(args) => branches::fork(args, ctx).map(drop),
        SessionsCommand::Label(args) => tree::label(&args, ctx),
        SessionsCommand::Operations(args) => branches::operations(&args, ctx),
        SessionsCommand::Files(args) => files::run(&args, ctx),
        SessionsCommand::Servers(args) => servers::run(args, ctx),
        SessionsCommand::Move(args) => move_project::run(&args, ctx),
        SessionsCommand::Options(args) => options::run(&args, ctx),
        SessionsCommand::Permissions(args) => permissions::run(args, ctx),
        SessionsCommand::Delete(args) => delete::delete(&args, ctx),
        SessionsCommand::Clear(args) => delete::clear(&args, ctx),
        SessionsCommand::Cleanup(args) => delete::cleanup(&args, ctx),
        SessionsCommand::Archive(args) => {
            let session_id = args.id_or_current("sessions archive", ctx)?;
            change::<SessionArchive>(session_id, "archived", ctx)
        }
        SessionsCommand::Unarchive { id } => {
            let session_id = ctx.session(&id)?;
            change::<SessionUnarchive>(session_id, "unarchived", ctx)
        }
        SessionsCommand::Close(args) => {
            let session_id = args.id_or_current("sessions close", ctx)?;
            change::<SessionClose>(session_id, "closed", ctx)
        }
        SessionsCommand::Rename { session, title } => rename(&session, title, ctx),
        SessionsCommand::Resume(args) => resume(&args, ctx),
        SessionsCommand::Current { project } => current(project.as_deref(), ctx),
    }
}

fn change<M>(session_id: SessionId, done: &str, ctx: &mut CommandContext<'_>) -> CommandResult
where
    M: Method<Params = SessionIdParams, Result = SessionResult>,
{
    ctx.show::<M>(&SessionIdParams { session_id }, |result, _| outcome_line(done, &result.session))
}

fn rename(
    session: &OptionalSessionArg,
    title: String,
    ctx: &mut CommandContext<'_>,
) -> CommandResult {
    let session_id = session.id_or_current("sessions rename", ctx)?;
    let params = SessionUpdateParams { title: Some(title), ..SessionUpdateParams::new(session_id) };
    ctx.show::<SessionUpdate>(&params, |result, _| outcome_line("renamed", &result.session))
}

fn resume(args: &OptionalSessionArg, ctx: &mut CommandContext<'_>) -> CommandResult {
    let session_id = args.id_or_current("sessions resume", ctx)?;
    let mut reply = ctx.call::<SessionResume>(&SessionResumeParams { session_id, limit: None })?;
    ctx.fetch_contents(&mut reply)?;
    // A session without a project, or with a project of another machine, is resumed without becoming current.
    if let Some(project_path) = reply.value.session.project_path.clone() {
        let shown = sanitize::one_line(&project_path);
        if !project::set_current_session(project_path, session_id, ctx)? && !ctx.json() {
            ctx.terminal.eprintln(&format!("its project is not on this machine: {shown}"));
        }
    }
    ctx.print(&reply, |page, options| {
        let mut text = heading(&page.session, options);
        let mut transcript = Transcript::new(options);
        let active = page.records.iter().filter(|record| record.active);
        text.extend(active.map(|record| transcript.record(record.clone())));
        text
    })
}

fn current(project: Option<&Path>, ctx: &mut CommandContext<'_>) -> CommandResult {
    let params = match project::filter_path(project)? {
        Some(path) => SessionCurrentParams::new(path),
        None => project::current_params(project::canonical_path(None)?, ctx),
    };
    let reply = ctx.call::<SessionCurrent>(&params)?;
    if reply.value.session.is_none() {
        let flag = project.map(|path| format!("--project {} ", path.display()));
        let hint = format!("ollmctl record {}'hello'", flag.unwrap_or_default());
        return Err(project::no_current_session(&params.project_path, hint));
    }
    ctx.print(&reply, |result, options| {
        let session = result.session.as_ref();
        session.map_or_else(String::new, |session| heading(session, options))
    })
}
