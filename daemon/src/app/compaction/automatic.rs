//! Compactions that no client asked for: in the background, above all in the pause after an answer, and before a chat
//! turn calls its model, if its prompt no longer fits.

use std::collections::HashSet;
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::MIN_CONTEXT_SIZE;
use ollm_protocol::methods::context::ContextBuildParams;
use tokio::task::JoinSet;

use super::events;
use super::read_ahead::{is_reading_noticed, read_ahead};
use super::summarizer::QueuePlace;
use super::survey::{CompactionRequest, NEARLY_FULL_SHARE, PAUSE_SHARE, survey};
use super::task::{CompactionCause, CompactionOutcome, CompactionTask};
use crate::app::cache::{CachedSession, ContextFill};
use crate::app::context::inputs::params_like_last;
use crate::app::core::Core;
use crate::app::error::{AppError, CompactError, Result};
use crate::app::running::CompactionTrigger;
use crate::model::{Priority, Ticket};
use crate::tokens::Counter;

/// The state of a chat turn that is about to call its model.
pub(in crate::app) struct CompactionInTurn<'a> {
    /// The context that the turn will build.
    pub(in crate::app) params: &'a ContextBuildParams,
    pub(in crate::app) counter: &'a Counter,
    /// The turn's place at its model, if that model also summarizes.
    pub(in crate::app) ticket: Option<&'a Ticket>,
    /// The model refused the context, or had no room to answer.
    pub(in crate::app) must_shrink: bool,
}

impl CompactionInTurn<'_> {
    fn request(&self, core: &Core) -> CompactionRequest {
        CompactionRequest::configured(core, self.params.clone(), Some(self.counter.clone()))
    }
}

/// Returns whether a chat turn has to compact before it calls its model: only if its prompt does not fit. What still
/// fits is compacted in the pause after the answer. Cheap as long as the context is far from full.
pub(in crate::app) async fn is_due(core: &Arc<Core>, turn: CompactionInTurn<'_>) -> Result<bool> {
    let compression = core.config().compression.clone();
    if !compression.enabled {
        return Ok(false);
    }
    let fill = events::report_fill(core, turn.params.session_id);
    if turn.must_shrink {
        return Ok(true);
    }
    // The fill was measured by the last build, which may have had another window, model or tools.
    let is_alike = is_like_last(core, turn.params);
    if is_alike && fill.is_some_and(|fill| !fill.reaches(compression.threshold)) {
        return Ok(false);
    }
    Ok(!survey(core, &turn.request(core)).await?.before.fits)
}

/// Returns whether a build would have the window, the model and the tools of the last one.
fn is_like_last(core: &Core, params: &ContextBuildParams) -> bool {
    let is_alike = |last: &ContextBuildParams| {
        let ContextBuildParams { context_size, model, tools, .. } = params;
        last.context_size == *context_size && last.model == *model && last.tools == *tools
    };
    let cached = core.cache.peek(params.session_id, |session| {
        session.builds.recipe(None).is_some_and(|recipe| is_alike(&recipe.params))
    });
    cached.unwrap_or(false)
}

/// Compacts before a chat turn calls its model; returns whether the context is smaller now.
pub(in crate::app) async fn compact_in_turn(
    core: &Arc<Core>,
    turn: CompactionInTurn<'_>,
) -> Result<bool> {
    let cause = match is_like_last(core, turn.params) {
        _ if turn.must_shrink => CompactionCause::Refusal,
        true => CompactionCause::Growth,
        false => CompactionCause::NewForm,
    };
    let request = turn.request(core);
    let place = turn.ticket.map_or(QueuePlace::Own(Priority::Chat), QueuePlace::Held);
    let trigger = CompactionTrigger::ChatTurn;
    match (CompactionTask { core, request, trigger, place, cause }).run().await {
        Ok(outcome) => Ok(matches!(outcome, CompactionOutcome::Done(_))),
        // The result of the compaction that is running serves as well.
        Err(AppError::Compact(CompactError::Conflict { .. })) => {
            core.compactions.wait_until_free(turn.params.session_id).await;
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Publishes the thresholds that a session passed with its newest record, and marks the session if a compaction is
/// due. Called by the observer; never blocks.
pub(crate) fn follow(core: &Core, id: SessionId) {
    let fill = events::report_fill(core, id);
    mark_if_due(core, id, fill);
}

fn mark_if_due(core: &Core, id: SessionId, fill: Option<ContextFill>) {
    let compression = &core.config().compression;
    let is_full = || match fill {
        Some(fill) => fill.reaches(compression.threshold * PAUSE_SHARE),
        // No context was built since the start: the stored counts show whether one could be too large.
        None => tokens_recorded(core, id) >= u64::from(MIN_CONTEXT_SIZE) / 2,
    };
    if compression.enabled
        && (is_full() || has_provisional(core, id))
        && !core.turns.is_running(id)
        && has_model(core, id)
        && (!core.due_compactions.awaits_retry(id) || needs_extraction(core, id, fill))
    {
        core.due_compactions.mark(id);
    }
}

/// Follows the end of a turn: does what [`follow`] does, and cancels a background compaction that still waits for its
/// summary if lines must be extracted before the next message, because only a new compaction extracts.
pub(crate) fn follow_turn(core: &Core, id: SessionId) {
    let fill = events::report_fill(core, id);
    mark_if_due(core, id, fill);
    if let Some(compaction) = core.compactions.get(id)
        && compaction.trigger == CompactionTrigger::Background
        && needs_extraction(core, id, fill)
    {
        compaction.cancel.cancel();
    }
}

/// Returns whether a summary failed or gave way, the next message probably does not fit, and its user would wait until the
/// model has read the new context.
fn needs_extraction(core: &Core, id: SessionId, fill: Option<ContextFill>) -> bool {
    let share = core.config().compression.threshold.max(NEARLY_FULL_SHARE);
    let is_nearly_full =
        |fill: ContextFill| fill.reaches(share) && is_reading_noticed(core, id, fill.available);
    core.due_compactions.are_notes_missing(id) && fill.is_some_and(is_nearly_full)
}

/// Returns whether a checkpoint in force waits for the summary of a model.
fn has_provisional(core: &Core, id: SessionId) -> bool {
    let checkpoints = |session: &mut CachedSession| match &session.head.compaction {
        Some((_, compaction)) => compaction.checkpoints.iter().any(|one| one.provisional),
        None => false,
    };
    core.cache.peek(id, checkpoints).unwrap_or_default()
}

fn tokens_recorded(core: &Core, id: SessionId) -> u64 {
    core.sessions.peek(id, |live| live.state().usage().token_count).unwrap_or_default()
}

/// Returns whether a model is known that the session's context could be sent to.
fn has_model(core: &Core, id: SessionId) -> bool {
    let config = core.config();
    let own = core.sessions.peek(id, |live| live.state().model().is_some());
    config.models.default.is_some() || config.compression.model.is_some() || own == Some(true)
}

/// Compacts sessions when they are due, several at a time and each one once at a time; never returns.
///
/// **Cancel safety**: a compaction that is dropped before its record is queued leaves no more than a snapshot.
pub(crate) async fn run(core: Arc<Core>) {
    let mut busy = HashSet::new();
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            // A session that became due again while it was compacted can start now.
            Some(ended) = running.join_next() => {
                if let Ok(id) = ended {
                    busy.remove(&id);
                }
            }
            id = core.due_compactions.next(|id| busy.contains(&id)) => {
                busy.insert(id);
                running.spawn(compact(Arc::clone(&core), id));
            }
        }
    }
}

/// Compacts a session in the background and returns its id.
pub(super) async fn compact(core: Arc<Core>, id: SessionId) -> SessionId {
    let request = CompactionRequest::configured(&core, params_like_last(&core, id), None);
    let place = QueuePlace::Own(Priority::Background);
    let trigger = CompactionTrigger::Background;
    let cause = CompactionCause::Growth;
    let task = CompactionTask { core: &core, request, trigger, place, cause };
    match task.run().await {
        Ok(CompactionOutcome::Done(compacted)) => {
            read_ahead(&core, id, compacted.after.tokens_used).await;
        }
        Ok(_) | Err(AppError::Compact(CompactError::Conflict { .. })) => {}
        Err(error) => {
            core.due_compactions.note_failure(id);
            tracing::info!(session = %id, "not compacted: {error}");
        }
    }
    id
}
