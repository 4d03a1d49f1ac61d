//! `ollmctl socket`: the path of the daemon's socket, for scripts.

use std::os::unix::ffi::OsStrExt as _;

use clap::Args;
use serde_json::json;

use crate::command_context::CommandContext;
use crate::command_error::CommandError;

/// Print the path of the daemon's socket; starts the daemon if it does not run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ollmctl socket
  echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session.list\"}' | nc -N -U \"$(ollmctl socket)\"")]
pub(crate) struct SocketArgs {}

pub(super) fn run(ctx: &mut CommandContext<'_>) -> Result<(), CommandError> {
    let socket = ctx.client()?.socket().to_owned();
    if ctx.json() {
        return ctx.print_json(&json!({ "socket": socket.to_string_lossy() }));
    }
    // A path need not be UTF-8, and a script needs its bytes.
    Ok(ctx.terminal.print_raw([socket.as_os_str().as_bytes(), b"\n"].concat())?)
}
