//! `/goal`, `/pin` and `/unpin`: what a chat works towards, and what it always keeps.

use ollm_protocol::SessionId;
use ollm_protocol::content::{GoalPriority, GoalStatus, Record, RecordKind};
use ollm_protocol::method::GoalCreate;
use ollm_protocol::methods::goal::GoalCreateParams;

use super::super::{CommandError, Cx, entries, goal};
use super::talk::{Talk, page};
use crate::render;

/// Records among which the last message is: behind it are its pieces, its counts and what its markers say.
const RECORDS_OF_AN_ANSWER: u32 = 1000;

/// Shows the goals of a chat, or sets what it works towards; a chat that has not begun begins with it.
pub(super) fn goal(
    talk: &mut Talk,
    text: Option<String>,
    cx: &mut Cx<'_>,
) -> Result<String, CommandError> {
    let Some(description) = text else {
        let Some(session) = talk.session().map(|session| session.session_id) else {
            return Ok(render::goal::list(&[]));
        };
        return Ok(render::goal::list(&goal::goals(session, cx)?));
    };
    let params = GoalCreateParams {
        session_id: talk.id(cx)?,
        description,
        priority: GoalPriority::default(),
        checkpoints: Vec::new(),
        key: None,
    };
    let made = cx.call::<GoalCreate>(&params)?.value.goal;
    talk.was_accepted(cx);
    debug_assert_eq!(made.status, GoalStatus::Active, "a new goal is the active one");
    Ok(render::goal::brief(&made) + "\n")
}

/// Pins or releases a record, without a number the last message; `None` where nothing was said yet.
pub(super) fn pin(
    talk: &Talk,
    seq: Option<u64>,
    pinned: bool,
    cx: &mut Cx<'_>,
) -> Result<Option<String>, CommandError> {
    let Some(session) = talk.session().map(|session| session.session_id) else { return Ok(None) };
    let seq = match seq {
        Some(seq) => Some(seq),
        None => last_message(session, cx)?,
    };
    let Some(seq) = seq else { return Ok(None) };
    let reply = entries::set_pin(session, seq, pinned, cx)?;
    Ok(Some(render::entries::pins(&reply.value)))
}

/// The number of the newest message in force.
fn last_message(session: SessionId, cx: &mut Cx<'_>) -> Result<Option<u64>, CommandError> {
    let records = page(session, RECORDS_OF_AN_ANSWER, cx)?.records;
    let is_said = |record: &&Record| record.active && record.kind == RecordKind::Message;
    Ok(records.iter().rev().find(is_said).map(|record| record.seq.0))
}
