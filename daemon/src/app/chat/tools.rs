//! The tools that a turn waits for, and the results that clients bring.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ollm_protocol::content::{RecordBody, ToolCall};
use ollm_protocol::methods::chat::{
    ChatSubmitToolResultsParams, ChatSubmitToolResultsResult, ChatToolCall, ChatToolResult,
};
use ollm_protocol::{Seq, SessionId};
use tokio::sync::Notify;

use super::{ChatError, Running};
use crate::app::{AppError, Core, append, counted};

/// The calls of one message whose results are missing.
#[derive(Default)]
pub(super) struct Awaited {
    calls: Mutex<Calls>,
    changed: Notify,
}

#[derive(Default)]
struct Calls {
    message: Option<Seq>,
    missing: Vec<ChatToolCall>,
    /// Results that are being written.
    writing: usize,
}

impl Awaited {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to wait for the calls of a message.
    pub(super) fn begin(&self, message: Seq, calls: Vec<ChatToolCall>) {
        *self.lock() = Calls { message: Some(message), missing: calls, writing: 0 };
    }

    /// Takes no further results, and tells which are missing.
    pub(super) fn end(&self) -> Vec<String> {
        self.lock().missing.drain(..).map(|call| call.id).collect()
    }

    /// Waits until every result is durable. Cancel safe.
    pub(super) async fn complete(&self) {
        loop {
            let changed = self.changed.notified();
            let is_complete = {
                let calls = self.lock();
                calls.missing.is_empty() && calls.writing == 0
            };
            if is_complete {
                return;
            }
            changed.await;
        }
    }

    /// Takes calls whose results came; all or none.
    fn take(&self, results: &[ChatToolResult]) -> Result<Taken, Refused> {
        let mut calls = self.lock();
        if calls.missing.is_empty() {
            return Err(Refused::NothingAwaited);
        }
        for (at, result) in results.iter().enumerate() {
            let known = calls.missing.iter().any(|call| call.id == result.id);
            if !known || results[..at].iter().any(|earlier| earlier.id == result.id) {
                return Err(Refused::Unknown(result.id.clone()));
            }
        }
        let is_given = |call: &ChatToolCall| results.iter().any(|result| result.id == call.id);
        let (given, missing) = calls.missing.drain(..).partition(is_given);
        calls.missing = missing;
        calls.writing += 1;
        Ok(Taken { message: calls.message, calls: given })
    }

    /// The results are durable, or are asked for again. Returns the calls that are still missing.
    fn written(&self, again: Vec<ChatToolCall>) -> Vec<String> {
        let mut calls = self.lock();
        calls.writing -= 1;
        calls.missing.extend(again);
        let missing = calls.missing.iter().map(|call| call.id.clone()).collect();
        drop(calls);
        self.changed.notify_one();
        missing
    }
}

struct Taken {
    message: Option<Seq>,
    calls: Vec<ChatToolCall>,
}

enum Refused {
    NothingAwaited,
    Unknown(String),
}

/// Records results that a turn waits for; the turn goes on when none is missing.
pub(crate) async fn submit_tool_results(
    core: &Arc<Core>,
    params: ChatSubmitToolResultsParams,
) -> Result<ChatSubmitToolResultsResult, AppError> {
    let ChatSubmitToolResultsParams { session_id: id, results } = params;
    if results.is_empty() {
        return Err(AppError::invalid("results", "holds at least one result"));
    }
    let Some(turn) = core.chats.of(id) else {
        super::must_exist(core, id).await?;
        return Err(ChatError::NothingAwaited { id }.into());
    };
    let taken = turn.awaited.take(&results).map_err(|refused| match refused {
        Refused::NothingAwaited => ChatError::NothingAwaited { id }.into(),
        Refused::Unknown(call) => {
            AppError::invalid("results", format!("no result is awaited for the call {call}"))
        }
    })?;
    let written = write(core, id, &turn, &taken, results).await;
    let again = if written.is_ok() { Vec::new() } else { taken.calls };
    let missing = turn.awaited.written(again);
    Ok(ChatSubmitToolResultsResult { seqs: written?, missing })
}

async fn write(
    core: &Arc<Core>,
    id: SessionId,
    turn: &Running,
    taken: &Taken,
    results: Vec<ChatToolResult>,
) -> Result<Vec<Seq>, AppError> {
    let order: Vec<usize> = results
        .iter()
        .filter_map(|result| taken.calls.iter().position(|call| call.id == result.id))
        .collect();
    let mut results: Vec<_> = order.iter().copied().zip(results).collect();
    // Models that know no ids tell results apart by their order, so it is that of the calls.
    results.sort_by_key(|(at, _)| *at);
    let mut drafts = Vec::new();
    for (call, (_, given)) in taken.calls.iter().zip(results) {
        let body = RecordBody::ToolCall(ToolCall {
            id: given.id,
            name: call.name.clone(),
            args: call.args.clone(),
            result: given.result,
            timestamp: core.clock.now(),
            duration_ms: given.duration_ms,
            message_seq: taken.message,
        });
        drafts.push(counted(core, id, body).0);
    }
    let count = drafts.len();
    let first = append(core, id, drafts, None).await?.seq;
    tracing::debug!(session = %id, model = turn.model, count, "results of tools");
    Ok(order.into_iter().map(|at| Seq(first.0 + at as u64)).collect())
}
