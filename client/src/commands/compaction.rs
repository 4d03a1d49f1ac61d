//! `ollmctl context compact` and `ollmctl context checkpoints`, and `/compact` in a chat.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ollm_protocol::SessionId;
use ollm_protocol::method::{ContextCheckpoints, ContextCompact};
use ollm_protocol::methods::compaction::{CompactStrategy, ContextCompactParams};
use ollm_protocol::methods::session::SessionIdParams;

use super::{CommandError, Cx};
use crate::cli::{ContextCheckpointsArgs, ContextCompactArgs, StrategyArg};
use crate::render::compaction;
use crate::render::waiting::Waiting;

/// A slow machine takes minutes for a summary, and a long beginning several of them.
const SUMMARIZING: Duration = Duration::from_secs(3600);
/// A long log that is not open yet is read first.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the line is drawn that says that something goes on.
const BEAT: Duration = Duration::from_millis(200);

pub(super) fn compact(args: ContextCompactArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let session_id = cx.session(&args.id)?;
    let strategy = args.strategy.map(|strategy| match strategy {
        StrategyArg::Summarize => CompactStrategy::Summarize,
        StrategyArg::Truncate => CompactStrategy::Truncate,
        StrategyArg::Hybrid => CompactStrategy::Hybrid,
    });
    let (dry_run, instructions) = (args.dry_run, args.instructions);
    let params = ContextCompactParams {
        dry_run,
        strategy,
        instructions,
        ..ContextCompactParams::new(session_id)
    };
    run(&params, cx)
}

/// Compacts the session of a chat, or tells what that would do.
pub(super) fn in_chat(
    session_id: SessionId,
    apply: bool,
    cx: &mut Cx<'_>,
) -> Result<(), CommandError> {
    let params = ContextCompactParams { dry_run: !apply, ..ContextCompactParams::new(session_id) };
    run(&params, cx)
}

pub(super) fn checkpoints(
    args: &ContextCheckpointsArgs,
    cx: &mut Cx<'_>,
) -> Result<(), CommandError> {
    let params = SessionIdParams { session_id: cx.session(&args.id)? };
    let reply = cx.call_patiently::<ContextCheckpoints>(&params, PATIENCE)?;
    let summaries = args.summaries;
    cx.print(&reply, |found, _| compaction::checkpoints(found, summaries))
}

fn run(params: &ContextCompactParams, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let is_done = AtomicBool::new(false);
    let reply = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut waiting = Waiting::new("making the context smaller");
            while !is_done.load(Ordering::Relaxed) {
                std::thread::park_timeout(BEAT);
                waiting.tick();
            }
        });
        let reply = cx.call_patiently::<ContextCompact>(params, SUMMARIZING);
        is_done.store(true, Ordering::Relaxed);
        watch.thread().unpark();
        reply
    })?;
    cx.print(&reply, |done, _| compaction::done(done))
}
