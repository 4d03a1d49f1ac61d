//! `chat.submitToolResults`: recording the results that a turn waits for.

use std::sync::Arc;

use ollm_protocol::content::{RecordBody, ToolCall};
use ollm_protocol::methods::chat::{
    ChatSubmitToolResultsParams, ChatSubmitToolResultsResult, ChatToolResult,
};
use ollm_protocol::{Seq, SessionId};

use super::check_exists;
use crate::app::core::Core;
use crate::app::drafts::counted_for;
use crate::app::error::{AppError, ChatError, Result};
use crate::app::running::{RefusedResults, TakenCalls};

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
    let taken = turn.pending_calls.take(&results).map_err(|refused| match refused {
        RefusedResults::NothingPending => ChatError::NoPendingCalls { id }.into(),
        RefusedResults::UnknownCall(call) => {
            AppError::invalid("results", format!("the turn does not wait for the call {call}"))
        }
    })?;
    let written = record(&core, id, &taken, results).await;
    let failed = if written.is_ok() { Vec::new() } else { taken.calls };
    let missing = turn.pending_calls.finish(failed);
    Ok(ChatSubmitToolResultsResult { seqs: written?, missing })
}

/// Records the results and returns their seqs, in the order of `results`.
async fn record(
    core: &Arc<Core>,
    id: SessionId,
    taken: &TakenCalls,
    results: Vec<ChatToolResult>,
) -> Result<Vec<Seq>> {
    let order: Vec<usize> = results
        .iter()
        .filter_map(|result| taken.calls.iter().position(|call| call.id == result.id))
        .collect();
    let mut results: Vec<_> = order.iter().copied().zip(results).collect();
    // Recorded in the order of the calls, by which models without call ids match them.
    results.sort_by_key(|(at, _)| *at);
    let mut drafts = Vec::new();
    for (call, (_, result)) in taken.calls.iter().zip(results) {
        let body = RecordBody::ToolCall(ToolCall {
            id: result.id,
            name: call.name.clone(),
            args: call.args.clone(),
            result: result.result,
            timestamp: core.clock.now(),
            duration_ms: result.duration_ms,
            message_seq: taken.message,
        });
        drafts.push(counted_for(core, id, body).0);
    }
    let count = drafts.len();
    let first = core.append(id, drafts, None).await?.seq;
    tracing::debug!(session = %id, count, "recorded tool results");
    Ok(order.into_iter().map(|at| Seq(first.0 + at as u64)).collect())
}
