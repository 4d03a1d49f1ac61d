//! `ollmctl socket`.

use std::os::unix::ffi::OsStrExt as _;

use serde_json::json;

use super::{CommandError, Cx};

pub(super) fn run(cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let socket = cx.client()?.socket().to_owned();
    if cx.json() {
        return cx.print_json(&json!({ "socket": socket.to_string_lossy() }));
    }
    // A path need not be text, and a script wants the bytes as they are.
    let mut line = socket.as_os_str().as_bytes().to_vec();
    line.push(b'\n');
    cx.terminal.print_bytes(&line).map_err(CommandError::Output)
}
