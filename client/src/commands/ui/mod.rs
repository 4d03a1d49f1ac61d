//! `ollmctl ui`: all sessions on the whole screen, with search, their messages, their trees, and what happens now.
//!
//! - `state`: all that is on the screen, as a value; keys, answers and events change it. Knows no terminal and no daemon.
//! - `draw`, `layout`, `text`: the state as a frame. `bindings`: the keys, for help too.
//! - `calls`: the calls to the daemon. `keys`, `terminal`: the terminal. `shell`: the loop that connects all of these.
//!
//! A chat runs as a process of its own, which has the terminal until it ends.

mod bindings;
mod calls;
mod draw;
mod keys;
mod layout;
mod shell;
mod state;
mod terminal;
mod text;

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

use clap::Args;

use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::connection::Connector;
use crate::project;
use state::{OwnProject, UiState};

/// Show your sessions on the whole screen: search, read, talk on, undo, and follow what happens.
#[derive(Debug, Args)]
#[command(after_help = "\
The view begins with the sessions of this directory's project; p shows all. Type / to search titles and messages, Enter \
to talk on in the selected session, t for its branches, ? for all keys.

Examples:
  ollmctl ui")]
pub(crate) struct UiArgs {}

/// The settings of the shell, from the command line and the environment.
struct ShellSettings {
    connector: Connector,
    /// The global flags for a chat.
    flags: Vec<OsString>,
    /// The longest wait for a reply; `None` for that of each call.
    timeout: Option<Duration>,
    has_color: bool,
}

pub(super) fn run(_: &UiArgs, ctx: &mut CommandContext<'_>) -> CommandResult {
    if ctx.json() {
        let problem = "the view is for people; for a program there are lists";
        return Err(CommandError::usage(problem, "ollmctl sessions list --json"));
    }
    if !(std::io::stdin().is_terminal() && ctx.terminal.out_is_terminal()) {
        let problem = "the view needs a terminal";
        return Err(CommandError::usage(problem, "ollmctl sessions list"));
    }
    if !ctx.environment.can_move_cursor() {
        let problem = "this terminal cannot move its cursor (TERM is dumb or not set)";
        return Err(CommandError::usage(problem, "ollmctl sessions list"));
    }
    let times = ctx.render_options();
    // A directory that is no project, such as a removed one, has no sessions.
    let project = project::canonical_path(None).ok().map(|path| {
        let name = Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned());
        OwnProject { name: name.unwrap_or_else(|| path.clone()), path }
    });
    let settings = ShellSettings {
        connector: ctx.connector().clone().with_show_waiting(|_| Box::new(|| {})),
        flags: ctx.global_flags(),
        timeout: ctx.timeout(),
        has_color: ctx.terminal.has_color(),
    };
    ctx.terminal.flush()?;
    shell::run(settings, UiState::new(shell::size(), times, project))
}
