//! `ollmctl context compact` and `ollmctl context checkpoints`, and `/compact` in a chat.

use std::time::Duration;

use ollm_protocol::content::CompactStrategy;
use ollm_protocol::method::{ContextCheckpoints, ContextCompact, Method as _};
use ollm_protocol::methods::context::ContextCompactParams;
use ollm_protocol::methods::event::EventSubscribeParams;
use ollm_protocol::methods::session::SessionIdParams;
use ollm_protocol::{Event, EventKind, SessionId};

use super::cx::Reply;
use super::which::session_of;
use super::{CommandError, Cx};
use crate::cli::{ContextCheckpointsArgs, ContextCompactArgs, StrategyArg};
use crate::connection::{BlockingClient, decode};
use crate::render::compaction;
use crate::render::waiting::Waiting;

/// A slow machine takes minutes for a summary, and a long beginning several of them.
const SUMMARIZING: Duration = Duration::from_secs(3600);
/// A long log that is not open yet is read first.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn compact(args: ContextCompactArgs, cx: &mut Cx<'_>) -> Result<(), CommandError> {
    let session_id = session_of(args.which.given(), "context compact", cx)?;
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
    run(&params, &|| true, cx).map(drop)
}

/// Compacts the session of a chat, or tells what that would do; false where it is not wanted any more.
pub(super) fn in_chat(
    session_id: SessionId,
    apply: bool,
    is_wanted: &dyn Fn() -> bool,
    cx: &mut Cx<'_>,
) -> Result<bool, CommandError> {
    let params = ContextCompactParams { dry_run: !apply, ..ContextCompactParams::new(session_id) };
    run(&params, is_wanted, cx)
}

pub(super) fn checkpoints(
    args: &ContextCheckpointsArgs,
    cx: &mut Cx<'_>,
) -> Result<(), CommandError> {
    let session_id = session_of(args.which.given(), "context checkpoints", cx)?;
    let params = SessionIdParams { session_id };
    let reply = cx.call_patiently::<ContextCheckpoints>(&params, PATIENCE)?;
    let summaries = args.summaries;
    cx.print(&reply, |found, _| compaction::checkpoints(found, summaries))
}

/// Asks for a compaction, shows its steps and prints what became of it; false where it is not wanted any more.
fn run(
    params: &ContextCompactParams,
    is_wanted: &dyn Fn() -> bool,
    cx: &mut Cx<'_>,
) -> Result<bool, CommandError> {
    // A connection of its own: leaving it is what ends the compaction.
    let client = BlockingClient::connect(cx.connector())?;
    let events = EventSubscribeParams {
        session_id: Some(params.session_id),
        kinds: vec![EventKind::CompressionProgress],
        ..EventSubscribeParams::default()
    };
    let wait = cx.given_timeout().unwrap_or(SUMMARIZING);
    let mut waiting = Waiting::new("making the context smaller");
    let mut told = |event: Option<&Event>| {
        match event.and_then(|event| compaction::step(&event.data)) {
            Some(step) => waiting.set(step),
            None => waiting.tick(),
        }
        is_wanted()
    };
    let raw = client.call_told::<ContextCompact>(params, &events, wait, &mut told)?;
    drop(waiting);
    let Some(raw) = raw else { return Ok(false) };
    let value = decode(ContextCompact::NAME, &raw)?;
    cx.print(&Reply { raw, value }, |done, _| compaction::done(done))?;
    Ok(true)
}
