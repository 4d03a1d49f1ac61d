//! The steps that take a compaction back, return to a snapshot, and fork the conversation.

use ollm_protocol::content::{ContextMessage, OperationKind};
use ollm_protocol::method::{
    ContextBuild, SessionFork, SessionUndo, SnapshotCreate, SnapshotRestore,
};
use ollm_protocol::methods::context::ContextBuildParams;
use ollm_protocol::methods::session::branches::{SessionForkParams, SessionUndoParams};
use ollm_protocol::methods::snapshot::{SnapshotCreateParams, SnapshotRestoreParams};
use ollm_protocol::sanitize::one_line;
use ollm_protocol::{SessionId, SnapshotId};
use serde_json::json;

use super::report::{StepReport, check};
use super::{WINDOW_TOKENS, session};
use crate::command_error::CommandResult;
use crate::connection::BlockingClient;
use crate::render::units::grouped;

/// The context before the steps, and the snapshot of it.
pub(super) struct BeforeCompaction {
    snapshot: SnapshotId,
    messages: Vec<ContextMessage>,
}

/// Takes a snapshot and notes the context.
pub(super) fn snapshot(
    client: &mut BlockingClient,
    id: SessionId,
) -> CommandResult<BeforeCompaction> {
    let messages = built(client, id)?;
    let summary = Some("before the compaction".to_owned());
    let params = SnapshotCreateParams { session_id: id, summary, key: None };
    let snapshot = client.call::<SnapshotCreate>(&params)?.snapshot.snapshot_id;
    Ok(BeforeCompaction { snapshot, messages })
}

fn built(client: &mut BlockingClient, id: SessionId) -> CommandResult<Vec<ContextMessage>> {
    let context_size = Some(WINDOW_TOKENS);
    let params = ContextBuildParams { context_size, ..ContextBuildParams::new(id) };
    Ok(client.call::<ContextBuild>(&params)?.messages)
}

/// Undoes the compaction, redoes nothing, and returns to the snapshot.
pub(super) fn undo_and_restore(
    client: &mut BlockingClient,
    id: SessionId,
    before: &BeforeCompaction,
) -> CommandResult<StepReport> {
    let params = SessionUndoParams { session_id: id, steps: Some(1), key: None };
    let undone = client.call::<SessionUndo>(&params)?;
    let is_compaction = undone.operations.iter().any(|one| one.kind == OperationKind::Compaction);
    check(is_compaction, "the undone operation is not the compaction")?;
    let is_back = built(client, id)? == before.messages;
    check(is_back, "the context after an undo is not the one before the compaction")?;
    let snapshot_id = before.snapshot;
    let restored = client.call::<SnapshotRestore>(&SnapshotRestoreParams {
        snapshot_id,
        session_id: None,
        new_session: false,
        dry_run: false,
        key: None,
    })?;
    let is_same = built(client, id)? == before.messages && restored.session.is_none();
    check(is_same, "the context after a restore is not that of the snapshot")?;
    let text = "the compaction is undone, and a snapshot restored: the same context, byte for byte";
    Ok((text.to_owned(), json!({ "undoable": undone.undoable, "redoable": undone.redoable })))
}

/// Forks the conversation.
pub(super) fn fork(client: &mut BlockingClient, id: SessionId) -> CommandResult<StepReport> {
    let params = SessionForkParams { session_id: id, at_seq: None, title: None, key: None };
    let forked = client.call::<SessionFork>(&params)?.session;
    let original = session(client, id)?;
    let is_equal = forked.message_count == original.message_count;
    check(is_equal && forked.forked_from == Some(id), "the fork differs from its session")?;
    let text = format!(
        "\"{}\" continues elsewhere with the same {} messages",
        one_line(&forked.title),
        grouped(forked.message_count),
    );
    Ok((text, json!({ "messages": forked.message_count })))
}
