//! Answering again: an incomplete answer leaves the active path before the model is called.
//!
//! A model would continue a prompt that ends with an incomplete answer, and answers are never continued. The answer
//! stays in the log, off the path; records of clients after it are recorded again.

use std::sync::Arc;

use ollm_protocol::content::{LeafMove, RecordBody, RecordKind, Role};
use ollm_protocol::{Seq, SessionId};

use super::answer::is_final_answer;
use crate::app::core::Core;
use crate::app::drafts::{counted_for, uncounted};
use crate::app::error::{AppError, Result};
use crate::app::partial::before_pieces;
use crate::session::index::IndexEntry;
use crate::session::{NewRecord, OpenSession, SessionError};

/// The cause of the leaf's move, in the log and in `branch-changed`.
const CAUSE: &str = "retry";
/// The finish reason of an answer that ran into its limit; asking again replaces it.
const LENGTH: &str = "length";
/// Attempts to move the leaf while other records move it.
const MAX_TRIES: usize = 3;

/// The reason why a turn answers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryIntent {
    /// The client asks for another answer to the recorded conversation.
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
pub(super) fn step_back(core: &Arc<Core>, id: SessionId, intent: RetryIntent) -> Result<()> {
    let mut tries = 0;
    loop {
        let end = core.sessions.with(id, path_end)?;
        let Some((answer, parent)) = open_answer(core, id, &end, intent)? else { return Ok(()) };
        let before = before_pieces(core, id, parent)?;
        let drafts = drafts(core, id, before, &end.after)?;
        if core.append_if_leaf_blocking(id, end.leaf, drafts)? {
            tracing::debug!(session = %id, %answer, "an answer left the active path");
        } else if tries == MAX_TRIES {
            return Err(SessionError::LeafMoved { id }.into());
        } else {
            tries += 1;
        }
    }
}

fn path_end(live: &OpenSession) -> PathEnd {
    let leaf = live.state().leaf();
    let (mut last, mut after) = (None, Vec::new());
    for (seq, entry) in live.state().walk(leaf) {
        last = entry.filter(|entry| is_conversation(*entry)).map(|entry| (seq, entry));
        if last.is_some() || entry.is_none() {
            break;
        }
        after.push(seq);
    }
    after.reverse();
    PathEnd { leaf, last, after }
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
) -> Result<Option<(Seq, Option<Seq>)>> {
    let Some((seq, entry)) = end.last else {
        return match intent {
            RetryIntent::AnswerAgain => {
                Err(AppError::invalid("message", "is needed: the session has no message to answer"))
            }
            RetryIntent::SendAgain => Ok(None),
        };
    };
    if entry.kind() != Some(RecordKind::Message) || entry.role() != Some(Role::Assistant) {
        return Ok(None);
    }
    let Some(RecordBody::Message(answer)) = core.body(id, seq)? else { return Ok(None) };
    let reason = answer.finish_reason.as_deref().unwrap_or_default();
    let replaces_cut = intent == RetryIntent::AnswerAgain && reason == LENGTH;
    if !is_final_answer(&answer) || replaces_cut {
        return Ok(Some((seq, entry.parent())));
    }
    // Calls without results are answered with `[interrupted]`.
    if intent == RetryIntent::SendAgain || entry.has(IndexEntry::CALLS_TOOLS) {
        return Ok(None);
    }
    Err(AppError::invalid("message", "is needed: the last message is answered already"))
}

/// Returns the move of the leaf, and the client records after the answer once more.
fn drafts(
    core: &Arc<Core>,
    id: SessionId,
    to: Option<Seq>,
    after: &[Seq],
) -> Result<Vec<NewRecord>> {
    let moved = LeafMove { to, cause: CAUSE.to_owned() };
    let mut drafts = vec![uncounted(RecordBody::Leaf(moved))];
    let bodies = core.sessions.bodies(id, after)?.into_iter().flatten();
    drafts.extend(bodies.filter(is_kept).map(|body| counted_for(core, id, body).0));
    Ok(drafts)
}

/// Returns whether a record after the answer is independent of it.
const fn is_kept(body: &RecordBody) -> bool {
    match body {
        RecordBody::Usage(_) | RecordBody::Epoch(_) | RecordBody::Compaction(_) => false,
        // The session store sets the message of a change by markers, which is the answer.
        RecordBody::Goal(change) => change.message_seq.is_none(),
        _ => true,
    }
}
