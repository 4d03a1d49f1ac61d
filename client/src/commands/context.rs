//! `ollmctl context`.

use std::time::Duration;

use ollm_protocol::content::CompactMode;
use ollm_protocol::method::ContextBuild;
use ollm_protocol::methods::context::ContextBuildParams;

use super::which::session_of;
use super::{CommandError, Cx, compaction, entries, inspect};
use crate::cli::{ContextBuildArgs, ContextCommand};
use crate::render::context;

/// A build may read a long log that is not open yet.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn run(command: ContextCommand, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    match command {
        ContextCommand::Status(args) => inspect::status(&args, cx),
        ContextCommand::Build(args) => build(args, cx),
        ContextCommand::Inspect(args) => inspect::inspect(args, cx),
        ContextCommand::Entries(args) => entries::run(args, cx),
        ContextCommand::Pin(args) => entries::pin(&args, true, cx),
        ContextCommand::Unpin(args) => entries::pin(&args, false, cx),
        ContextCommand::Compact(args) => compaction::compact(args, cx),
        ContextCommand::Checkpoints(args) => compaction::checkpoints(&args, cx),
    }
}

fn build(args: ContextBuildArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let session_id = session_of(args.which.given(), "context build", cx)?;
    let params = ContextBuildParams {
        context_size: args.size,
        strategy: args.strategy,
        pending: args.pending,
        compact: if args.auto { CompactMode::Auto } else { CompactMode::Never },
        ..ContextBuildParams::new(session_id)
    };
    let reply = cx.call_patiently::<ContextBuild>(&params, PATIENCE)?;
    cx.print(&reply, |built, cx| {
        let mut text = context::build(built, &cx.view());
        if args.messages {
            text.push_str(&context::messages(&built.messages));
        }
        text
    })
}
