//! `ollmctl sessions servers`: the model servers that may get texts of a session, or of all sessions of a project.

use std::path::PathBuf;

use clap::Args;
use ollm_protocol::method::{SessionGet, SessionSetProjectServers, SessionUpdate};
use ollm_protocol::methods::session::{
    BranchFilter, SessionGetParams, SessionSetProjectServersParams, SessionUpdateParams,
};
use ollm_protocol::sanitize;

use crate::command_context::CommandContext;
use crate::command_error::CommandResult;
use crate::completion;
use crate::project;

/// Show or set the model servers that may get texts of a session or a project.
#[derive(Debug, Args)]
#[command(after_help = "\
No text of the session goes to another server: no prompt, no request for notes, no quotation in another session. A \
session uses the servers that both itself and its project allow.

Examples:
  ollmctl sessions servers last
  ollmctl sessions servers last ollama laptop
  ollmctl sessions servers last --all
  ollmctl sessions servers --project ~/src/private ollama")]
pub(crate) struct ServersArgs {
    /// An id, a unique end or beginning of one, or `last`.
    #[arg(
        value_name = "SESSION",
        required_unless_present = "project",
        add = completion::sessions()
    )]
    session: Option<String>,
    /// The names of the servers; without any, they are shown.
    #[arg(value_name = "SERVER")]
    servers: Vec<String>,
    /// Allow all servers.
    #[arg(long, conflicts_with = "servers")]
    all: bool,
    /// The directory of a project, instead of a session.
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
}

pub(super) fn run(args: ServersArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    let ServersArgs { session, mut servers, all, project } = args;
    if let Some(directory) = project {
        // The first argument is the name of a server.
        servers.splice(..0, session);
        let project_path = project::canonical_path(Some(&directory))?;
        let allowed_servers = (all || !servers.is_empty()).then_some(servers);
        let params = SessionSetProjectServersParams { project_path, allowed_servers };
        return ctx.show::<SessionSetProjectServers>(&params, |result, _| {
            allowed(&result.project_path, &result.allowed_servers)
        });
    }
    let session_id = ctx.session(&session.unwrap_or_default())?;
    if !all && servers.is_empty() {
        let branch = BranchFilter::default();
        let params = SessionGetParams { session_id, from: None, limit: Some(1), branch };
        return ctx.show::<SessionGet>(&params, |result, _| {
            allowed(&session_id.to_string(), &result.session.allowed_servers)
        });
    }
    let allowed_servers = Some(servers);
    let params = SessionUpdateParams { allowed_servers, ..SessionUpdateParams::new(session_id) };
    ctx.show::<SessionUpdate>(&params, |result, _| {
        allowed(&session_id.to_string(), &result.session.allowed_servers)
    })
}

fn allowed(what: &str, servers: &[String]) -> String {
    let servers = if servers.is_empty() { "all servers".to_owned() } else { servers.join(", ") };
    format!("{}: {}\n", sanitize::one_line(what), sanitize::one_line(&servers))
}
