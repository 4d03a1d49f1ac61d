//! `ollmctl loop status` and `ollmctl loop reset`.

use ollm_protocol::method::{LoopReset, LoopStatus};
use ollm_protocol::methods::session::SessionIdParams;

use super::which::session_of;
use super::{CommandError, Cx};
use crate::cli::LoopCommand;
use crate::render::loops;

pub(super) fn run(command: &LoopCommand, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let reply = match command {
        LoopCommand::Status(which) => {
            let session_id = session_of(which.given(), "loop status", cx)?;
            cx.call::<LoopStatus>(&SessionIdParams { session_id })?
        }
        LoopCommand::Reset(which) => {
            let session_id = session_of(which.given(), "loop reset", cx)?;
            cx.call::<LoopReset>(&SessionIdParams { session_id })?
        }
    };
    cx.print(&reply, |status, _| loops::status(status))
}
