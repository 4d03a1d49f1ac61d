//! Answering again: an incomplete answer leaves the active path before the model is called.
//!
//! A model would continue a prompt that ends with an incomplete answer, and answers are never continued. The answer
//! stays in the log, off the path; records of clients after it are recorded again.

use std::sync::Arc;

use ollm_protocol::content::{LeafMove, Part, RecordBody, RecordKind, Role, ToolCall, ToolResult};
use ollm_protocol::{Seq, SessionId};

use super::answer::is_final_answer;
use super::turn::Turn;
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, counted_for, snapshot_mark, uncounted};
use crate::app::error::{AppError, Result};
use crate::app::partial::before_pieces;
use crate::session::index::IndexEntry;
use crate::session::{NewRecord, OpenSession, SessionError};

/// The result of a call that was never answered.
const INTERRUPTED_CALL: &str = "[interrupted]";
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
        let drafts = drafts(core, id, (end.leaf, before), &end.after)?;
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
    // `answer_open_calls` ends calls without results.
    if intent == RetryIntent::SendAgain || entry.has(IndexEntry::CALLS_TOOLS) {
        return Ok(None);
    }
    Err(AppError::invalid("message", "is needed: the last message is answered already"))
}

impl Turn {
    /// Records the result `[interrupted]` for each call at the end of the path that has none, for example after a crash
    /// or a canceled turn. A new message of the user (`message`) ends such calls by itself.
    pub(super) async fn answer_open_calls(&self, message: Option<Seq>) -> Result<()> {
        let id = self.request.id;
        let drafts = blocking(&self.core, move |core| {
            let leaf = core.sessions.with(id, |live| live.state().leaf())?;
            Ok(if message.is_some() && leaf == message {
                Vec::new()
            } else {
                open_calls(core, id)?
            })
        })
        .await?;
        if !drafts.is_empty() {
            self.core.append(id, drafts, None).await?;
        }
        Ok(())
    }
}

/// Returns the results of the calls at the end of the path that have none. Blocks on the disk.
fn open_calls(core: &Arc<Core>, id: SessionId) -> Result<Vec<NewRecord>> {
    let (message, results) = core.sessions.with(id, |live| {
        let state = live.state();
        let (mut message, mut results) = (None, Vec::new());
        for (seq, entry) in state.walk(state.leaf()) {
            let Some(entry) = entry else { break };
            match (entry.kind(), entry.role()) {
                (Some(RecordKind::ToolCall), _) | (Some(RecordKind::Message), Some(Role::Tool)) => {
                    results.push(seq);
                }
                (Some(RecordKind::Message), role) => {
                    let calls = role == Some(Role::Assistant) && entry.has(IndexEntry::CALLS_TOOLS);
                    message = calls.then_some(seq);
                    break;
                }
                _ => {}
            }
        }
        (message, results)
    })?;
    let Some(message_seq) = message else { return Ok(Vec::new()) };
    let Some(RecordBody::Message(message)) = core.body(id, message_seq)? else {
        return Ok(Vec::new());
    };
    let results = core.sessions.bodies(id, &results)?.into_iter().flatten();
    let answered: Vec<String> = results
        .filter_map(|body| match body {
            RecordBody::ToolCall(call) => Some(call.id),
            RecordBody::Message(message) => message.tool_call_id,
            _ => None,
        })
        .collect();
    let open = message.parts.into_iter().filter_map(|part| match part {
        Part::ToolCall { id, name, args } if !answered.contains(&id) => Some((id, name, args)),
        _ => None,
    });
    let draft = |(call, name, args)| {
        let llm_content = INTERRUPTED_CALL.to_owned();
        let body = RecordBody::ToolCall(ToolCall {
            id: call,
            name,
            args,
            result: ToolResult { llm_content, success: Some(false), ..ToolResult::default() },
            timestamp: core.clock.now(),
            duration_ms: None,
            message_seq: Some(message_seq),
            writes: None,
            writes_root: None,
            writes_omitted: 0,
        });
        counted_for(core, id, body).0
    };
    Ok(open.map(draft).collect())
}

/// Returns a snapshot, the move of the leaf, and the client records after the answer once more.
fn drafts(
    core: &Arc<Core>,
    id: SessionId,
    (leaf, to): (Option<Seq>, Option<Seq>),
    after: &[Seq],
) -> Result<Vec<NewRecord>> {
    let moved = LeafMove { to, cause: LeafMove::RETRY.to_owned() };
    let mark = snapshot_mark(&core.clock, leaf, MarkedChange::Retry);
    let mut drafts = vec![mark, uncounted(RecordBody::Leaf(moved))];
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
