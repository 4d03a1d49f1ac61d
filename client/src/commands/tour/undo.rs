//! The undo, the snapshot and the fork of the tour: changes are taken back and repeated, a session returns to an earlier
//! state, and a copy of it changes alone.

use ollm_protocol::SessionId;
use ollm_protocol::content::{BuiltContext, Role};
use ollm_protocol::method::{
    ContextBuild, SessionFork, SessionRecord, SessionRedo, SessionUndo, SnapshotCreate,
    SnapshotRestore,
};
use ollm_protocol::methods::context::ContextBuildParams;
use ollm_protocol::methods::session::branches::{SessionForkParams, SessionUndoParams};
use ollm_protocol::methods::session::{MessageInput, SessionRecordParams};
use ollm_protocol::methods::snapshot::{SnapshotCreateParams, SnapshotRestoreParams};
use ollm_protocol::sanitize::one_line;
use serde_json::json;

use super::report::{StepReport, check};
use super::session;
use crate::command_error::CommandResult;
use crate::connection::BlockingClient;
use crate::error::ClientError;
use crate::render::units::grouped;

/// A message that a user takes back.
const HASTY_MESSAGE: &str = "Throw it all away and start again in COBOL.";
/// A message that leads away from what the user wants.
const DETOUR: &str = "By the way, which editor do you like best?";
/// The operations that the tour undoes: the message and the compaction before it.
const STEPS: u32 = 2;

/// Records a message, takes it and the compaction before it back, and redoes both.
pub(super) fn undo(client: &mut BlockingClient, id: SessionId) -> CommandResult<StepReport> {
    record(client, id, HASTY_MESSAGE)?;
    let before = build(client, id)?;
    let params = SessionUndoParams::new(id, STEPS);
    let undone = client.call::<SessionUndo>(&params)?.operations.len();
    let without = build(client, id)?;
    check(!has_message(&without, HASTY_MESSAGE), "the context shows a message that was undone")?;
    check(without.transient, "the compaction is in force after it was undone")?;
    let redone = client.call::<SessionRedo>(&params)?.operations.len();
    let after = build(client, id)?;
    let is_same = has_message(&before, HASTY_MESSAGE) && after.messages == before.messages;
    check(is_same, "the context is another one after undo and redo")?;
    let text = format!(
        "{undone} operations undone, a message and the compaction, and {redone} redone:\nthe context is the same as before, byte for byte"
    );
    Ok((text, json!({ "undone": undone, "redone": redone })))
}

/// Takes a snapshot of a session, records a message, and returns to the snapshot.
pub(super) fn snapshot(client: &mut BlockingClient, id: SessionId) -> CommandResult<StepReport> {
    let before = build(client, id)?;
    let summary = Some("before the detour".to_owned());
    let params =
        SnapshotCreateParams { session_id: id, reason: None, pinned: false, summary, key: None };
    let snapshot_id = client.call::<SnapshotCreate>(&params)?.snapshot.snapshot_id;
    record(client, id, DETOUR)?;
    check(has_message(&build(client, id)?, DETOUR), "the context does not show a new message")?;
    let params = SnapshotRestoreParams::new(snapshot_id);
    let removed = client.call::<SnapshotRestore>(&params)?.removed;
    let is_same = build(client, id)?.messages == before.messages;
    check(is_same, "the context after a restore is not that of the snapshot")?;
    let text = format!(
        "taken, and restored after {} message more: again the same context, byte for byte",
        grouped(removed.messages),
    );
    Ok((text, json!({ "snapshotId": snapshot_id, "removedMessages": removed.messages })))
}

fn has_message(context: &BuiltContext, text: &str) -> bool {
    context.messages.iter().any(|message| message.content.contains(text))
}

fn record(client: &mut BlockingClient, id: SessionId, text: &str) -> Result<(), ClientError> {
    let message = MessageInput::text(Role::User, text);
    let params = SessionRecordParams { session_id: id, message, key: None };
    client.call::<SessionRecord>(&params).map(drop)
}

/// Forks a session and goes on in the copy.
pub(super) fn fork(client: &mut BlockingClient, id: SessionId) -> CommandResult<StepReport> {
    let before = session(client, id)?.message_count;
    let params = SessionForkParams { session_id: id, at_seq: None, title: None, key: None };
    let fork = client.call::<SessionFork>(&params)?.session;
    record(client, fork.session_id, "Let us try the other design here.")?;
    let copied = session(client, fork.session_id)?.message_count;
    check(session(client, id)?.message_count == before, "the fork changed the original")?;
    check(copied > fork.message_count, "the fork does not grow")?;
    let text = format!(
        "\"{}\"\ngrew to {} messages; the original keeps its {}",
        one_line(&fork.title),
        grouped(copied),
        grouped(before),
    );
    Ok((text, json!({ "messages": copied, "messagesOfOriginal": before })))
}

fn build(client: &mut BlockingClient, id: SessionId) -> Result<BuiltContext, ClientError> {
    client.call::<ContextBuild>(&ContextBuildParams::new(id))
}
