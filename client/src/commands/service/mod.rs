//! `ollmctl service`: lets the user's service manager, systemd or launchd, run the daemon.
//!
//! `install` and `uninstall` change the definitions and tell the manager; `status` shows both; `logs` prints the log of the
//! daemon. `findings` is what is wrong with a service, also for `ollmctl doctor`.

pub(super) mod findings;
mod install;
mod logs;
mod status;
mod uninstall;

use clap::{Args, Subcommand};
use ollm_protocol::sanitize;

use crate::command_context::CommandContext;
use crate::command_error::{CommandError, CommandResult};
use crate::commands::exec::shell_quoted;
use crate::service::ManagerKind;

/// Let systemd or launchd run the daemon, from login on.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum ServiceCommand {
    Install(ServiceInstallArgs),
    /// Stop and remove the service; keeps all data.
    Uninstall {
        /// End running answers instead of waiting for them; what they have so far is kept.
        #[arg(long)]
        now: bool,
    },
    /// Show the service and what is wrong with it.
    #[command(after_help = "\
Exit codes: 0 if the service runs, 6 if it is installed and does not run, 3 if none is installed.")]
    Status,
    Logs(ServiceLogsArgs),
}

/// Install the service, or renew it after an update, and start it.
#[derive(Debug, Args)]
#[command(after_help = "\
Writes the units of systemd to ~/.config/systemd/user, or the agent of launchd to ~/Library/LaunchAgents. They name the \
ollmd beside this ollmctl, and the home, configuration and socket if they are not the default ones. No root is needed. \
A daemon that runs is replaced once it writes no answer and compacts nothing, and other clients wait for the new one \
meanwhile; a backup or a check of the store ends with an error.

A service does not have the variables of your shell: what of them it would miss is said at the end.

Without a service manager, as in most containers, the exit code is 3.

Examples:
  ollmctl service install --dry-run
  ollmctl service install")]
pub(crate) struct ServiceInstallArgs {
    /// Print the files and commands, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Replace a running daemon in any case, and end its answers instead of waiting for them; what they have so far is
    /// kept.
    #[arg(long)]
    now: bool,
}

/// Print the newest lines of the daemon's log.
#[derive(Debug, Args)]
#[command(after_help = "\
From the journal if the daemon is a service of systemd, else from the files in the home. The log has no text of a \
conversation.

Examples:
  ollmctl service logs -n 200
  ollmctl service logs -f")]
pub(crate) struct ServiceLogsArgs {
    /// Print new lines as they come, until interrupted.
    #[arg(short, long)]
    follow: bool,
    /// The number of lines to begin with.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    lines: u32,
}

pub(super) fn run(command: &ServiceCommand, ctx: &mut CommandContext<'_>) -> CommandResult {
    match command {
        ServiceCommand::Install(args) => install::run(args, ctx),
        ServiceCommand::Uninstall { now } => uninstall::run(*now, ctx),
        ServiceCommand::Status => status::run(ctx),
        ServiceCommand::Logs(args) => logs::run(args, ctx),
    }
}

/// Refuses to change the service of another home.
fn refuse_other_home(kind: ManagerKind, ctx: &CommandContext<'_>) -> CommandResult {
    let address = ctx.connector().address();
    let installed = kind.installed(ctx.environment);
    let Some(other) = installed.filter(|other| !other.serves(address, ctx.environment)) else {
        return Ok(());
    };
    let named = other.home.map(|home| sanitize::one_line(&home.to_string_lossy()));
    // A shell expands the tilde only without quotes.
    let default = || "~/.ollm".to_owned();
    let argument = named.as_deref().map_or_else(default, shell_quoted);
    let home = named.unwrap_or_else(default);
    let message = format!("the installed service is that of {home}, and a user has only one");
    let hint = format!("ollmctl --home {argument} service uninstall");
    Err(CommandError::usage(message, &hint))
}
