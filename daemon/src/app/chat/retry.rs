//! Answering again: an incomplete answer leaves the active path before the model is called.
//!
//! A model would continue a prompt that ends with its own words, and no answer is ever continued. The answer stays in the
//! log, off the path; records of clients after it are recorded again.

use std::sync::Arc;

use ollm_protocol::content::{LeafMove, RecordBody, RecordKind, Role};
use ollm_protocol::{Seq, SessionId};

use super::answer::is_final_answer;
use crate::app::core::Core;
use crate::app::drafts::counted_for;
use crate::app::error::AppError;
use crate::app::partial::n_pieces;
use crate::session::index::IndexEntry;
use crate::session::{NewRecord, OpenSession, SessionError};

/// The cause of the leaf's move, in the log and in `branch-changed`.
const CAUSE: &str = "retry";
/// The finish reason of an answer that ran into its limit; asking again replaces it.
const LENGTH: &str = "length";
/// Attempts to move the leaf while other records move it.
const MAX_TRIES: usize = 3;

/// Why a turn answers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryIntent {
    /// The client asks for another answer to what is recorded.
    AnswerAgain,
    /// The client sends a recorded message again, which keeps an answer that is complete.
    SendAgain,
}

/// The end of the active path.
struct PathEnd {
    leaf: Option<Seq>,
    /// The newest record that is part of the conversation.
    last: Option<(Seq, IndexEntry)>,
    /// The records after it, oldest first.
    after: Vec<Seq>,
}

/// Moves the leaf before an incomplete answer at the end of the conversation. Blocks on the disk.
///
/// **Errors**: `Invalid` if a client asks for another answer and nothing is left to answer.
pub(super) fn step_back(
    core: &Arc<Core>,
    id: SessionId,
    intent: RetryIntent,
) -> Result<(), AppError> {
    let mut tries = 0;
    loop {
        let end = core.sessions.with(id, path_end)?;
        let Some((answer, parent)) = open_answer(core, id, &end, intent)? else { return Ok(()) };
        let before = before_pieces(core, id, parent)?;
        let drafts = drafts(core, id, before, &end.after)?;
        match core.sessions.append_after(id, end.leaf, drafts, None)?.wait() {
            Ok(_) => tracing::debug!(session = %id, %answer, "an answer left the active path"),
            Err(SessionError::LeafMoved { .. }) if tries < MAX_TRIES => tries += 1,
            Err(error) => return Err(error.into()),
        }
    }
}

fn path_end(live: &OpenSession) -> PathEnd {
    let state = live.state();
    let (mut next, mut last, mut after) = (state.leaf(), None, Vec::new());
    while let Some(seq) = next
        && let Some(entry) = state.entry(seq)
    {
        if is_conversation(entry) {
            last = Some((seq, entry));
            break;
        }
        after.push(seq);
        next = entry.parent().filter(|parent| *parent < seq);
    }
    after.reverse();
    PathEnd { leaf: state.leaf(), last, after }
}

fn is_conversation(entry: IndexEntry) -> bool {
    match entry.kind() {
        Some(RecordKind::Message | RecordKind::ToolCall | RecordKind::BranchSummary) => true,
        Some(RecordKind::Custom) => entry.has(IndexEntry::IN_CONTEXT),
        _ => false,
    }
}

/// Returns the answer at the end of the path that is to be given again, and its parent.
fn open_answer(
    core: &Core,
    id: SessionId,
    end: &PathEnd,
    intent: RetryIntent,
) -> Result<Option<(Seq, Option<Seq>)>, AppError> {
    let Some((seq, entry)) = end.last else {
        return match intent {
            RetryIntent::AnswerAgain => {
                Err(AppError::invalid("message", "is needed: nothing was said yet"))
            }
            RetryIntent::SendAgain => Ok(None),
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
    let replaces_cut = intent == RetryIntent::AnswerAgain && reason == LENGTH;
    if !is_final_answer(&answer) || replaces_cut {
        return Ok(Some((seq, entry.parent())));
    }
    // Calls without results are answered with `[interrupted]`.
    if intent == RetryIntent::SendAgain || entry.has(IndexEntry::CALLS_TOOLS) {
        return Ok(None);
    }
    Err(AppError::invalid("message", "is needed: what was said last is answered already"))
}

/// Returns the record before the pieces that an answer was written in.
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

/// Returns the move of the leaf, and the client records after the answer once more.
fn drafts(
    core: &Arc<Core>,
    id: SessionId,
    to: Option<Seq>,
    after: &[Seq],
) -> Result<Vec<NewRecord>, AppError> {
    let moved = LeafMove { to, cause: CAUSE.to_owned() };
    let mut drafts = vec![NewRecord::new(RecordBody::Leaf(moved), None)];
    let bodies = core.sessions.bodies(id, after)?.into_iter().flatten();
    drafts.extend(bodies.filter(is_kept).map(|body| counted_for(core, id, body).0));
    Ok(drafts)
}

/// Returns whether a record after the answer is independent of it.
const fn is_kept(body: &RecordBody) -> bool {
    match body {
        RecordBody::Usage(_) | RecordBody::Epoch(_) | RecordBody::Compaction(_) => false,
        // Changes by markers of the answer have no message of their own.
        RecordBody::Goal(change) => change.message_seq.is_none(),
        _ => true,
    }
}
