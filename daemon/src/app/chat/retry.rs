//! Answering again: an answer that did not come to its end leaves the active path before the model is asked.
//!
//! A prompt that ends with the model's own words would be continued by it, and nothing is ever continued by itself.
//! The answer stays in the log, off the path; what a client recorded behind it is recorded again.

use std::sync::Arc;

use ollm_protocol::content::{LeafMove, RecordBody, RecordKind, Role};
use ollm_protocol::{Seq, SessionId};

use super::answer::is_an_answer;
use super::partial::n_pieces;
use crate::app::{AppError, Core, counted};
use crate::session::index::IndexEntry;
use crate::session::{NewRecord, OpenSession, SessionError};

/// Why the leaf moved, as `branch-changed` and the log tell it.
const CAUSE: &str = "retry";
/// The finish reason of an answer that was cut at its longest; who asks again wants another one.
const CUT: &str = "length";
/// How often the end is looked at again because something was recorded meanwhile.
const MAX_TRIES: usize = 3;

/// Whether somebody asked for an answer to what is recorded, or sends a message again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// There must be something to answer.
    Answer,
    /// The message counts as answered where it was.
    Message,
}

/// What ends the active path.
struct End {
    leaf: Option<Seq>,
    /// The newest record that a model is told.
    said: Option<(Seq, IndexEntry)>,
    /// What lies behind it, the oldest first.
    behind: Vec<Seq>,
}

/// Moves the leaf before the answers that did not come to their end, where one is what was said last. Blocks on the
/// disk.
///
/// **Errors**: `Invalid` where somebody wants an answer and nothing is left to be answered.
pub(super) fn step_back(core: &Arc<Core>, id: SessionId, wish: Wish) -> Result<(), AppError> {
    let mut tries = 0;
    loop {
        let end = core.sessions.with(id, end_of)?;
        let Some((answer, parent)) = open_answer(core, id, &end, wish)? else { return Ok(()) };
        let before = before_pieces(core, id, parent)?;
        let drafts = drafts(core, id, before, &end.behind)?;
        let moved = core.sessions.append_after(id, end.leaf, drafts)?;
        match moved.blocking_recv().map_err(|_| SessionError::Stopping)? {
            Ok(_) => tracing::debug!(session = %id, %answer, "an answer left the active path"),
            Err(SessionError::LeafMoved { .. }) if tries < MAX_TRIES => tries += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

fn end_of(live: &OpenSession) -> End {
    let state = live.state();
    let (mut next, mut said, mut behind) = (state.leaf(), None, Vec::new());
    while let Some(seq) = next
        && let Some(entry) = state.entry(seq)
    {
        if is_said(entry) {
            said = Some((seq, entry));
            break;
        }
        behind.push(seq);
        next = entry.parent().filter(|parent| *parent < seq);
    }
    behind.reverse();
    End { leaf: state.leaf(), said, behind }
}

/// Whether a record is something that is answered.
fn is_said(entry: IndexEntry) -> bool {
    match entry.kind() {
        Some(RecordKind::Message | RecordKind::ToolCall | RecordKind::BranchSummary) => true,
        Some(RecordKind::Custom) => entry.has(IndexEntry::IN_CONTEXT),
        _ => false,
    }
}

/// The answer that ends the path and is to be given again, and what it follows.
fn open_answer(
    core: &Core,
    id: SessionId,
    end: &End,
    wish: Wish,
) -> Result<Option<(Seq, Option<Seq>)>, AppError> {
    let Some((seq, entry)) = end.said else {
        return match wish {
            Wish::Answer => Err(AppError::invalid("message", "is needed, nothing was said yet")),
            Wish::Message => Ok(None),
        };
    };
    if entry.kind() != Some(RecordKind::Message) || entry.role() != Some(Role::Assistant) {
        return Ok(None);
    }
    let Some(RecordBody::Message(answer)) = core.sessions.bodies(id, &[seq])?.pop().flatten()
    else {
        return Ok(None);
    };
    let reason = answer.finish_reason.as_deref().unwrap_or_default();
    if !is_an_answer(&answer) || (wish == Wish::Answer && reason == CUT) {
        return Ok(Some((seq, entry.parent())));
    }
    // Results that are missing are told as such.
    if wish == Wish::Message || entry.has(IndexEntry::CALLS_TOOLS) {
        return Ok(None);
    }
    Err(AppError::invalid("message", "is needed, what was said last is answered already"))
}

/// The record before the pieces in which an answer was written.
fn before_pieces(core: &Core, id: SessionId, parent: Option<Seq>) -> Result<Option<Seq>, AppError> {
    let customs = core.sessions.with(id, |live| {
        let state = live.state();
        let (mut next, mut customs) = (parent, Vec::new());
        while let Some(seq) = next
            && let Some(entry) = state.entry(seq)
            && entry.kind() == Some(RecordKind::Custom)
        {
            next = entry.parent().filter(|parent| *parent < seq);
            customs.push((seq, next));
        }
        customs
    })?;
    let seqs: Vec<Seq> = customs.iter().map(|(seq, _)| *seq).collect();
    let n_pieces = n_pieces(core, id, &seqs)?;
    Ok(n_pieces.checked_sub(1).map_or(parent, |last| customs[last].1))
}

/// The move, and again what a client recorded behind the answer.
fn drafts(
    core: &Arc<Core>,
    id: SessionId,
    to: Option<Seq>,
    behind: &[Seq],
) -> Result<Vec<NewRecord>, AppError> {
    let moved = LeafMove { to, cause: CAUSE.to_owned() };
    let mut drafts = vec![NewRecord::new(RecordBody::Leaf(moved), None)];
    let bodies = core.sessions.bodies(id, behind)?.into_iter().flatten();
    drafts.extend(bodies.filter(is_kept).map(|body| counted(core, id, body).0));
    Ok(drafts)
}

/// What does not speak of the answer.
const fn is_kept(body: &RecordBody) -> bool {
    match body {
        RecordBody::Usage(_) | RecordBody::Epoch(_) | RecordBody::Compaction(_) => false,
        // Markers of the answer go with it.
        RecordBody::Goal(change) => change.message_seq.is_none(),
        _ => true,
    }
}
