//! Answering again: an incomplete answer leaves the active path before the model is called.
//!
//! A model would continue a prompt that ends with an incomplete answer, and answers are never continued. The answer
//! stays in the log, off the path; records of clients after it are recorded again.

use std::sync::Arc;

use ollm_protocol::content::{
    LeafMove, Message, Part, Record, RecordBody, RecordKind, Role, ToolCall, ToolResult,
};
use ollm_protocol::{Seq, SessionId};

use super::answer::is_final_answer;
use super::turn::Turn;
use crate::app::change::{PlannedFold, View, change};
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, counted_for, mark_before, uncounted};
use crate::app::error::{AppError, Result};
use crate::app::partial::{is_conversation, last_pieces};
use crate::session::index::IndexEntry;
use crate::session::{NewRecord, OpenSession, SessionError};

/// The result of a call that was never answered.
const INTERRUPTED_CALL: &str = "[interrupted]";
/// The finish reason of an answer that ran into its limit; asking again replaces it.
const LENGTH: &str = "length";

/// The reason why a turn answers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryIntent {
    /// The client asks for another answer to the recorded conversation.
    AnswerAgain,
    /// The client sends a recorded message again, which keeps an answer that is complete.
    SendAgain,
}

/// The end of the active path: the answer that ends the conversation, if one does, and what could be recorded again.
#[derive(Default)]
struct PathEnd {
    leaf: Option<Seq>,
    /// The newest record that is part of the conversation.
    last: Option<(Seq, IndexEntry)>,
    /// Its content, if it is a message of the model.
    answer: Option<Message>,
    /// The record before the answer and the pieces that it replaced.
    before: Option<Seq>,
    /// The records after that, except the pieces and the answer, oldest first.
    others: Vec<NewRecord>,
}

impl PathEnd {
    fn read(live: &OpenSession) -> Result<Self, SessionError> {
        let (state, reader) = (live.state(), live.reader());
        let leaf = state.leaf();
        let is_last = |entry: &Option<IndexEntry>| entry.is_none_or(is_conversation);
        let last = state.walk(leaf).find(|(_, entry)| is_last(entry));
        let Some((seq, entry)) = last.and_then(|(seq, entry)| Some((seq, entry?))) else {
            return Ok(Self { leaf, ..Self::default() });
        };
        let mut end = Self { leaf, last: Some((seq, entry)), ..Self::default() };
        if entry.role() != Some(Role::Assistant) {
            return Ok(end);
        }
        let failed = |error| SessionError::fs(state.id(), &error);
        if let Some(RecordBody::Message(answer)) =
            reader.read(entry).map_err(failed)?.and_then(Record::into_body)
        {
            end.answer = Some(answer);
        }
        let first_piece = last_pieces(state, entry.parent()).first().copied();
        let first = first_piece.unwrap_or(seq);
        end.before = state.entry(first).and_then(|entry| entry.parent());
        let since = state.walk(leaf).take_while(|(at, _)| *at >= first);
        let others = since.filter(|(at, _)| *at != seq).filter_map(|(_, entry)| entry);
        for entry in others.filter(|entry| !entry.has(IndexEntry::PARTIAL)) {
            end.others.extend(reader.read_again(entry).map_err(failed)?);
        }
        end.others.reverse();
        Ok(end)
    }
}

impl PlannedFold for PathEnd {
    fn warm(core: &Arc<Core>, id: SessionId) -> Result<Self> {
        Ok(core.sessions.with(id, Self::read)??)
    }

    fn catch_up(&mut self, live: &OpenSession) -> Result<()> {
        if self.leaf != live.state().leaf() {
            *self = Self::read(live)?;
        }
        Ok(())
    }
}

/// Moves the leaf before an incomplete answer at the end of the conversation.
///
/// **Errors**: `Invalid` if a client asks for another answer and nothing is left to answer.
pub(super) async fn step_back(core: &Arc<Core>, id: SessionId, intent: RetryIntent) -> Result<()> {
    let mark = mark_before(&core.clock, None, MarkedChange::Retry);
    let plan = move |view: &View<'_, PathEnd>| {
        if !is_open(view.fold, intent)? {
            return Ok(Vec::new());
        }
        let PathEnd { before, others, .. } = view.fold;
        let moved = LeafMove { to: *before, cause: LeafMove::RETRY.to_owned() };
        let mut records = vec![view.snapshot(mark), uncounted(RecordBody::Leaf(moved))];
        records.extend(others.iter().filter(|record| is_kept(&record.body)).cloned());
        Ok(records)
    };
    if change(core, id, None, plan).await?.is_some() {
        tracing::debug!(session = %id, "an answer left the active path");
    }
    Ok(())
}

/// Returns whether the answer at the end of the path is to be given again.
fn is_open(end: &PathEnd, intent: RetryIntent) -> Result<bool> {
    let Some((_, entry)) = end.last else {
        return match intent {
            RetryIntent::AnswerAgain => {
                Err(AppError::invalid("message", "is needed: the session has no message to answer"))
            }
            RetryIntent::SendAgain => Ok(false),
        };
    };
    let Some(answer) = &end.answer else { return Ok(false) };
    let reason = answer.finish_reason.as_deref().unwrap_or_default();
    let replaces_cut = intent == RetryIntent::AnswerAgain && reason == LENGTH;
    if !is_final_answer(answer) || replaces_cut {
        return Ok(true);
    }
    // `answer_open_calls` ends calls without results.
    if intent == RetryIntent::SendAgain || entry.has(IndexEntry::CALLS_TOOLS) {
        return Ok(false);
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

/// Returns whether a record around the answer is independent of it.
const fn is_kept(body: &RecordBody) -> bool {
    match body {
        RecordBody::Usage(_) | RecordBody::Epoch(_) | RecordBody::Compaction(_) => false,
        // The session store sets the message of a change by markers, which is the answer.
        RecordBody::Goal(change) => change.message_seq.is_none(),
        _ => true,
    }
}
