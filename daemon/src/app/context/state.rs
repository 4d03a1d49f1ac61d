//! The state of a session's context at a leaf, in numbers: what a move to that leaf would bring back.

use ollm_protocol::content::{ContextState, RecordKind};
use ollm_protocol::{Seq, SessionId};

use super::folds::{goals, pins, session_entries};
use super::head::head_in_force;
use crate::app::core::Core;
use crate::app::error::Result;

/// Returns the state at a leaf. Blocks on the disk.
pub(crate) fn context_state(core: &Core, id: SessionId, leaf: Option<Seq>) -> Result<ContextState> {
    let (path, mode) = core.sessions.with(id, |live| {
        let path = core.cache.path_to(live.state(), leaf);
        let mode = live.state().mode_on(|seq| path.contains(seq));
        (path, mode)
    })?;
    let goals = goals(core, id, &path)?;
    let head = head_in_force(core, id, &path)?;
    let messages = path.items.iter().filter(|item| item.kind == RecordKind::Message);
    let is_said = |kind| matches!(kind, RecordKind::Message | RecordKind::ToolCall);
    let said = path.items.iter().filter(|item| is_said(item.kind));
    Ok(ContextState {
        leaf,
        tokens: said.map(|item| u64::from(item.tokens)).sum(),
        messages: messages.count() as u64,
        checkpoints: head.compaction.map_or(0, |(_, one)| one.checkpoints.len()) as u64,
        goal: goals.active().map(|goal| goal.description.clone()),
        goals: goals.goals().len() as u64,
        entries: session_entries(core, id, &path)?.len() as u64,
        pins: pins(core, id, &path)?.len() as u64,
        mode,
    })
}
