//! `chat.*`: chat turns, from a user's message over tool calls to the final answer, each step durable before the next.
//!
//! A turn is a task. A detached turn outlives the call that started it. A turn reports through a channel of
//! [`ChatEvent`]s and does not wait for a client that stopped listening.
//!
//! **Invariants**: at most one turn per session at a time; the user's message is synced before the model is called;
//! the answer so far is recorded however the turn ends; a tool's result enters the log once.

mod answer;
mod early_reports;
mod failover;
pub(crate) mod follow;
mod model_call;
mod recall_offer;
mod recall_tools;
mod record;
mod retry;
mod run;
mod turn;

use std::sync::Arc;

use ollm_protocol::content::{NotKept, RecordBody, RecordKind, Role, ToolCall};
use ollm_protocol::methods::chat::{
    ChatCancelResult, ChatEvent, ChatSendParams, ChatSubmitToolResultsParams,
    ChatSubmitToolResultsResult, ChatToolCall, ChatToolResult,
};
use ollm_protocol::methods::session::{MessageInput, SessionIdParams};
use ollm_protocol::{Seq, SessionId, limits, method};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::answer::is_final_answer;
use self::early_reports::EarlyReports;
use self::retry::{RetryIntent, step_back};
use self::turn::{AcceptedMessage, Turn, TurnRequest};
use super::core::{Core, blocking};
use super::drafts::{counted_for, key_use};
use super::error::{AppError, ChatError, Result};
use super::partial::settle_now;
use super::running::{Claim, PendingCalls, RunningTurn, TakenCalls};
use super::sessions::input::checked_message;
use super::turn_feed::TurnFeed;
use super::writes::add_writes;
use crate::session::NewRecord;
use crate::session::index::IndexEntry;
use crate::shutdown::Tasks;

/// The most events that wait for a slow client. A piece of an answer is a few bytes; when the channel is full the
/// model waits, so that a slow client costs no memory.
const MAX_WAITING_EVENTS: usize = 256;

/// A turn that has started, for the client that did so.
pub(crate) struct StartedTurn {
    /// The events of the turn but the last one.
    pub(crate) events: mpsc::Receiver<ChatEvent>,
    turn: Arc<RunningTurn>,
}

impl StartedTurn {
    /// Ends the turn.
    pub(crate) fn cancel(&self) {
        self.turn.cancel.cancel();
    }

    /// Returns the last event, once all others were received; `as_event` makes it of an error. `None` if the turn panicked.
    pub(crate) fn last(&self, as_event: impl FnOnce(AppError) -> ChatEvent) -> Option<ChatEvent> {
        self.turn.feed.last(as_event)
    }
}

/// Records the user's message and starts to answer it (`chat.send`).
///
/// **Errors**: those found before the message is recorded; later ones are the last event.
pub(crate) async fn start(
    core: &Arc<Core>,
    tasks: &Tasks,
    mut params: ChatSendParams,
) -> Result<StartedTurn> {
    let (message, key) = (params.message.take(), params.key.take());
    let request = TurnRequest::new(core, params, message.as_ref()).await?;
    let id = request.id;
    let claim = claim(core, id, &request.named)?;
    // A daemon that stops while it is idle has seen no turn yet, and would end this one at once.
    if tasks.is_stopping() {
        return Err(AppError::Stopping);
    }
    blocking(core, move |core| settle_now(core, id)).await?;
    let reports = EarlyReports::request(core, tasks, id, &request.model);
    let (accepted, answered) = record_message(core, id, message, key).await?;
    let (sender, events) = mpsc::channel(MAX_WAITING_EVENTS);
    let started = StartedTurn { events, turn: Arc::clone(&claim.value) };
    if let Some((seq, finish_reason)) = answered {
        // The turn of the earlier attempt has ended, and what follows a turn was done then.
        let AcceptedMessage { seq: message, duplicate } = accepted;
        let accepted = ChatEvent::Accepted { seq: message, duplicate, model: request.named };
        drop(sender.try_send(accepted));
        started.turn.feed.end(Ok(ChatEvent::Done { seq, finish_reason, usage: None }));
        return Ok(started);
    }
    let (core, tasks) = (Arc::clone(core), tasks.clone());
    let turn = Turn { core, tasks: tasks.clone(), claim, request, reports, events: sender };
    drop(tasks.spawn(turn.run(accepted)));
    Ok(started)
}

/// Ends the turn of a session (`chat.cancel`).
pub(crate) async fn cancel(core: Arc<Core>, params: SessionIdParams) -> Result<ChatCancelResult> {
    let turn = core.turns.get(params.session_id);
    match &turn {
        Some(turn) => turn.cancel.cancel(),
        None => check_exists(&core, params.session_id).await?,
    }
    Ok(ChatCancelResult { canceled: turn.is_some() })
}

/// Records tool results (`chat.submitToolResults`); the turn continues when none is missing.
pub(crate) async fn submit_tool_results(
    core: Arc<Core>,
    params: ChatSubmitToolResultsParams,
) -> Result<ChatSubmitToolResultsResult> {
    let ChatSubmitToolResultsParams { session_id: id, results } = params;
    if results.is_empty() {
        return Err(AppError::invalid("results", "must hold at least one result"));
    }
    let Some(turn) = core.turns.get(id) else {
        check_exists(&core, id).await?;
        return Err(ChatError::NoPendingCalls { id }.into());
    };
    let taken = turn.pending_calls.take(id, &results)?;
    let written = record_results(&core, id, &taken, results).await;
    let failed = if written.is_ok() { Vec::new() } else { taken.calls };
    let missing = turn.pending_calls.finish(failed);
    let (seqs, not_kept) = written?;
    Ok(ChatSubmitToolResultsResult { seqs, missing, not_kept })
}

/// Records the results and returns their seqs, in the order of `results`, and the files that were not kept.
async fn record_results(
    core: &Arc<Core>,
    id: SessionId,
    taken: &TakenCalls,
    results: Vec<ChatToolResult>,
) -> Result<(Vec<Seq>, Option<NotKept>)> {
    let order: Vec<usize> = results
        .iter()
        .filter_map(|result| taken.calls.iter().position(|call| call.id == result.id))
        .collect();
    let mut results: Vec<_> = order.iter().copied().zip(results).collect();
    // Recorded in the order of the calls, by which models without call ids match them.
    results.sort_by_key(|(at, _)| *at);
    let draft = |(call, (_, result)): (&ChatToolCall, (usize, ChatToolResult))| {
        let mut tool_call = ToolCall {
            id: result.id,
            name: call.name.clone(),
            args: call.args.clone(),
            result: result.result,
            timestamp: core.clock.now(),
            duration_ms: result.duration_ms,
            message_seq: taken.message,
            writes: None,
            writes_root: None,
            writes_omitted: 0,
        };
        let files = add_writes(core, &mut tool_call, result.writes, result.writes_omitted)?;
        let mut body = RecordBody::ToolCall(tool_call);
        limits::check_record(&mut body)?;
        Ok(NewRecord { files, ..counted_for(core, id, body).0 })
    };
    let drafts: Result<Vec<_>> = taken.calls.iter().zip(results).map(draft).collect();
    let appended = core.append(id, drafts?, None).await?;
    let not_kept = Some(appended.not_kept).filter(|not_kept| not_kept.count > 0);
    Ok((order.into_iter().map(|at| Seq(appended.seq.0 + at as u64)).collect(), not_kept))
}

/// Fails if there is no such session.
async fn check_exists(core: &Arc<Core>, id: SessionId) -> Result<()> {
    blocking(core, move |core| core.summary(id).map(drop)).await
}

fn claim(core: &Core, id: SessionId, model: &str) -> Result<Claim<RunningTurn>, ChatError> {
    let turn = RunningTurn {
        model: model.to_owned(),
        started: core.clock.now(),
        cancel: CancellationToken::new(),
        pending_calls: PendingCalls::default(),
        feed: TurnFeed::default(),
    };
    core.turns.claim(id, turn).map_err(|holder| {
        let (model, since) = (holder.value.model.clone(), holder.value.started);
        ChatError::Conflict { id, model, since }
    })
}

/// A complete answer and its finish reason.
type CompleteAnswer = (Seq, String);

/// Records the user's message. Without one, the turn answers the recorded conversation again. Also returns the answer to
/// an earlier attempt with the same key.
async fn record_message(
    core: &Arc<Core>,
    id: SessionId,
    message: Option<MessageInput>,
    key: Option<String>,
) -> Result<(AcceptedMessage, Option<CompleteAnswer>)> {
    let Some(message) = message else {
        step_back(core, id, RetryIntent::AnswerAgain).await?;
        return Ok((AcceptedMessage { seq: None, duplicate: false }, None));
    };
    let key = key_use::<method::ChatSend>(key, &message)?;
    let body = RecordBody::Message(checked_message(core, message)?);
    let appended = core.append(id, vec![counted_for(core, id, body).0], key).await?;
    let (seq, duplicate) = (appended.seq, appended.duplicate);
    let accepted = AcceptedMessage { seq: Some(seq), duplicate };
    if !duplicate {
        return Ok((accepted, None));
    }
    let answered = blocking(core, move |core| answer_after(core, id, seq)).await?;
    if answered.is_none() {
        step_back(core, id, RetryIntent::SendAgain).await?;
    }
    Ok((accepted, answered))
}

/// Returns the newest complete answer on the active path after a message, and its finish reason. Blocks on the disk.
fn answer_after(core: &Core, id: SessionId, message: Seq) -> Result<Option<CompleteAnswer>> {
    let is_answer = |entry: IndexEntry| {
        entry.kind() == Some(RecordKind::Message)
            && entry.role() == Some(Role::Assistant)
            && !entry.has(IndexEntry::CALLS_TOOLS)
    };
    let newest = core.sessions.with(id, |live| {
        let state = live.state();
        let mut after = state.walk(state.leaf()).take_while(|(seq, _)| *seq > message);
        after.find(|(_, entry)| entry.is_some_and(is_answer))
    })?;
    let Some((seq, _)) = newest else { return Ok(None) };
    let Some(RecordBody::Message(answer)) = core.body(id, seq)? else { return Ok(None) };
    let is_final = is_final_answer(&answer);
    let reason = answer.finish_reason.unwrap_or_else(|| "stop".to_owned());
    Ok(is_final.then_some((seq, reason)))
}

#[cfg(test)]
mod tests;
