//! `ollmctl config`: the daemon reads its configuration, so it is asked to show and check it.

use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use serde_json::json;

use super::{CommandError, Cx};
use crate::cli::ConfigCommand;
use crate::error::ClientError;

pub(super) fn run(command: ConfigCommand, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    match command {
        ConfigCommand::Show => run_daemon("--show-config", cx),
        ConfigCommand::Check => run_daemon("--check-config", cx),
        ConfigCommand::Path => path(cx),
    }
}

fn path(cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let path: PathBuf = cx
        .environment
        .config
        .clone()
        .unwrap_or_else(|| cx.connector().address().home().join("config.yaml"));
    if cx.json() {
        return cx.print_json(&json!({ "path": path.to_string_lossy(), "exists": path.exists() }));
    }
    let mut line = path.as_os_str().as_bytes().to_vec();
    line.push(b'\n');
    cx.terminal.print_bytes(&line).map_err(CommandError::Output)
}

/// Runs the daemon's program with a flag that makes it print and leave.
fn run_daemon(flag: &str, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let connector = cx.connector();
    let mut command = connector.program().command(connector.address())?;
    command.arg(flag);
    if cx.json() {
        command.arg("--json");
    }
    let program = PathBuf::from(command.get_program());
    let status = command.status().map_err(|source| {
        CommandError::Client(ClientError::Start { action: "running", path: program, source })
    })?;
    if status.success() { Ok(()) } else { Err(CommandError::Program { status }) }
}
