//! Compaction in the background: sessions that are due while no chat turn runs.

use std::collections::HashSet;
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::MIN_CONTEXT_SIZE;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::events;
use super::summarizer::QueuePlace;
use super::survey::CompactionRequest;
use super::task::CompactionTask;
use crate::app::context::build::params_like_last;
use crate::app::core::Core;
use crate::app::error::{AppError, CompactError};
use crate::app::running::CompactionTrigger;
use crate::context;
use crate::model::Priority;

/// Looks at a session after a record: publishes the thresholds that it passed, and marks it if it is due. Called by the
/// observer; never blocks.
pub(crate) fn follow(core: &Core, id: SessionId) {
    let fill = events::report_fill(core, id);
    let compression = &core.config().compression;
    let is_full = || match fill {
        Some(fill) => fill.used >= context::trigger(fill.available, compression.threshold),
        // No context was built since the start: the stored counts say whether it could be too much.
        None => tokens_recorded(core, id) >= u64::from(MIN_CONTEXT_SIZE) / 2,
    };
    if compression.enabled
        && is_full()
        && !core.turns.is_running(id)
        && has_model(core, id)
        && !core.due_compactions.is_paused(id)
    {
        core.due_compactions.mark(id);
    }
}

fn tokens_recorded(core: &Core, id: SessionId) -> u64 {
    core.sessions.peek(id, |live| live.state().usage().token_count).unwrap_or_default()
}

/// Returns whether a model is known that the session's context could be sent to.
fn has_model(core: &Core, id: SessionId) -> bool {
    let config = core.config();
    let own = core.sessions.peek(id, |live| live.state().model().is_some());
    config.ollama.model.is_some() || config.compression.model.is_some() || own == Some(true)
}

/// Compacts sessions when they are due, several at a time and each one once at a time; never returns.
///
/// **Cancel safety**: a compaction that is dropped before its record is queued leaves no more than a snapshot marker.
pub(crate) async fn run(core: Arc<Core>) {
    let busy = Arc::new(Mutex::new(HashSet::new()));
    let mut running = JoinSet::new();
    loop {
        let is_busy = |id| busy.lock().contains(&id);
        tokio::select! {
            biased;
            // A session that became due again while it was compacted is free now.
            Some(_) = running.join_next() => {}
            id = core.due_compactions.next(is_busy) => {
                busy.lock().insert(id);
                let (core, busy) = (Arc::clone(&core), Arc::clone(&busy));
                running.spawn(async move {
                    compact(&core, id).await;
                    busy.lock().remove(&id);
                });
            }
        }
    }
}

async fn compact(core: &Arc<Core>, id: SessionId) {
    let request = CompactionRequest::configured(core, params_like_last(core, id), None);
    let place = QueuePlace::Own(Priority::Side);
    let trigger = CompactionTrigger::Background;
    let task = CompactionTask { core, request, trigger, place, must_shrink: false };
    match task.run(id).await {
        Ok(_) | Err(AppError::Compact(CompactError::Conflict { .. })) => {}
        Err(error) => {
            core.due_compactions.note_failure(id);
            tracing::info!(session = %id, "not compacted: {error}");
        }
    }
}
