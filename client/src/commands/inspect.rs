//! `ollmctl context status` and `ollmctl context inspect`.

use std::time::Duration;

use ollm_protocol::method::{ContextInspect, ContextStatus};
use ollm_protocol::methods::context::{ContextInspectParams, ContextStatusParams};

use super::which::session_of;
use super::{CommandError, Cx};
use crate::cli::{ContextInspectArgs, ContextStatusArgs};
use crate::render::{context, window};

/// A long log that is not open yet is read first.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn status(args: &ContextStatusArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let session_id = session_of(args.which.given(), "context status", cx)?;
    let params = ContextStatusParams { session_id, context_size: args.size };
    let reply = cx.call_patiently::<ContextStatus>(&params, PATIENCE)?;
    cx.print(&reply, |status, cx| window::status(status, &cx.view()))
}

pub(super) fn inspect(args: ContextInspectArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let session_id = session_of(args.which.given(), "context inspect", cx)?;
    let params =
        ContextInspectParams { session_id, build_id: args.build, model: None, tools: None };
    let reply = cx.call_patiently::<ContextInspect>(&params, PATIENCE)?;
    cx.print(&reply, |found, cx| {
        let mut text = window::items(found, &cx.view());
        if args.messages {
            text.push_str(&context::messages(&found.build.messages));
        }
        text
    })
}
