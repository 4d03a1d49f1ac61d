//! `ollmctl config`: the daemon's configuration, which the daemon's program reads, shows and checks.

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use crate::command_context::CommandContext;
use crate::command_error::CommandError;
use crate::error::ClientError;

/// Show and check the daemon's configuration.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the settings in force and the source of each.
    #[command(after_help = "\
The source of a value follows it: a line of the file, a variable, `default`, or how it is computed. `no effect yet` \
marks settings that are checked but not used by this version. The output can be used as a configuration file.")]
    Show,
    /// Check the configuration; report the file, line and key of each mistake.
    Check,
    /// Print the path of the configuration file.
    Path,
}

pub(super) fn run(
    command: ConfigCommand,
    ctx: &mut CommandContext<'_>,
) -> Result<(), CommandError> {
    match command {
        ConfigCommand::Show => run_daemon("--show-config", ctx),
        ConfigCommand::Check => run_daemon("--check-config", ctx),
        ConfigCommand::Path => path(ctx),
    }
}

fn path(ctx: &mut CommandContext<'_>) -> Result<(), CommandError> {
    let path: PathBuf = ctx
        .environment
        .config
        .clone()
        .unwrap_or_else(|| ctx.connector().address().home().join("config.yaml"));
    if ctx.json() {
        return ctx.print_json(&json!({ "path": path.to_string_lossy(), "exists": path.exists() }));
    }
    Ok(ctx.terminal.print_raw([path.as_os_str().as_bytes(), b"\n"].concat())?)
}

/// Runs the daemon's program with a flag that makes it print and exit.
fn run_daemon(flag: &str, ctx: &mut CommandContext<'_>) -> Result<(), CommandError> {
    let mut command = ctx.connector().daemon_command()?;
    command.arg(flag);
    if ctx.json() {
        command.arg("--json");
    }
    let path = PathBuf::from(command.get_program());
    let status = command.status().map_err(|source| ClientError::Start {
        action: "running",
        path,
        source,
    })?;
    if status.success() { Ok(()) } else { Err(CommandError::Program { status }) }
}
