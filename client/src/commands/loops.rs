//! `ollmctl loop status` and `ollmctl loop reset`.

use ollm_protocol::method::{LoopReset, LoopStatus};
use ollm_protocol::methods::session::SessionIdParams;

use super::{CommandError, Cx};
use crate::cli::LoopCommand;
use crate::render::loops;

pub(super) fn run(command: &LoopCommand, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let reply = match command {
        LoopCommand::Status(arg) => {
            let session_id = cx.session(&arg.id)?;
            cx.call::<LoopStatus>(&SessionIdParams { session_id })?
        }
        LoopCommand::Reset(arg) => {
            let session_id = cx.session(&arg.id)?;
            cx.call::<LoopReset>(&SessionIdParams { session_id })?
        }
    };
    cx.print(&reply, |status, _| loops::status(status))
}
