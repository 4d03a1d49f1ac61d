//! Compactions that no client asked for: in the background, above all in the pause after an answer, and before a chat
//! turn calls its model, if its prompt no longer fits.

use std::collections::HashSet;
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::{MIN_CONTEXT_SIZE, Role};
use tokio::task::JoinSet;

use super::events;
use super::policy::{CompactionNeed, Fullness, PAUSE_TURNS, may_overflow, share_of};
use super::read_ahead::read_ahead;
use super::survey::{CompactionRequest, survey};
use super::task::{CompactionOutcome, CompactionTask, need_of};
use crate::app::build_request::BuildRequest;
use crate::app::cache::{CachedSession, ContextFill};
use crate::app::context::inputs::{reader_of, request_like_last};
use crate::app::core::{Core, SessionSettings};
use crate::app::error::{AppError, CompactError, Result};
use crate::app::running::{CompactionCause, CompactionTrigger};
use crate::app::schedule::CompactionHistory;
use crate::model::Ticket;
use crate::session::SessionState;
use crate::tokens::Counter;

/// Maximum number of records that are looked at for the size of the newest turns.
const MAX_TURN_RECORDS: usize = 64;

/// A compaction that is due before a chat turn calls its model.
pub(in crate::app) struct CompactionInTurn {
    request: CompactionRequest,
    cause: CompactionCause,
}

impl CompactionInTurn {
    /// Returns the compaction before a call with this context, if the context does not fit. A context that still fits is
    /// compacted in the pause after the answer. Cheap as long as the context is far from full.
    ///
    /// `must_shrink`: the model refused the context, or had no room to answer.
    pub(in crate::app) async fn due(
        core: &Arc<Core>,
        params: BuildRequest,
        counter: Counter,
        must_shrink: bool,
    ) -> Result<Option<Self>> {
        if !core.config().compression.enabled {
            return Ok(None);
        }
        let threshold = core.config().compression.threshold;
        let fill = events::report_fill(core, params.session_id);
        let reaches_threshold = fill.is_none_or(|fill| fill.reaches(threshold));
        // The fill is that of the last build, which may have had another window, model or tools.
        let is_like_last = is_like_last(core, &params);
        let cause = match is_like_last {
            _ if must_shrink => CompactionCause::Refusal,
            true => CompactionCause::Growth,
            false => CompactionCause::NewForm,
        };
        let request = CompactionRequest::configured(core, params, Some(counter));
        let is_due = must_shrink
            || may_overflow(reaches_threshold, is_like_last)
                && !survey(core, &request).await?.before.fits();
        Ok(is_due.then_some(Self { request, cause }))
    }

    /// Compacts.
    ///
    /// `ticket`: the turn's place at its model, if that model also summarizes.
    pub(in crate::app) async fn run(self, core: &Arc<Core>, ticket: Option<&Ticket>) -> Result<()> {
        let Self { request, cause } = self;
        let (id, trigger) = (request.params.session_id, CompactionTrigger::ChatTurn(cause));
        match (CompactionTask { core, request, trigger, ticket }).run().await {
            // The result of the compaction that is running serves as well.
            Err(AppError::Compact(CompactError::Conflict { .. })) => {
                core.compactions.wait_until_free(id).await;
                Ok(())
            }
            outcome => outcome.map(drop),
        }
    }
}

/// Returns whether a build would have the window, the model and the tools of the last one, named by its request or not.
fn is_like_last(core: &Core, request: &BuildRequest) -> bool {
    let id = request.session_id;
    let last =
        core.cache.peek(id, |session| Some(Arc::clone(&session.builds.recipe(None)?.request)));
    let Some(last) = last.flatten() else { return false };
    let settings = core.sessions.peek(id, |live| SessionSettings::of(live.state()));
    let Some(settings) = settings else { return false };
    let reader = |request| {
        let (model, window) = reader_of(core, request, &settings);
        (model, window.size)
    };
    last.tools == request.tools && reader(&last) == reader(request)
}

/// Publishes the thresholds that a session passed with its newest record, and marks the session if a compaction is
/// due. Called by the observer; never blocks.
pub(crate) fn follow(core: &Core, id: SessionId) {
    mark_if_due(core, id);
}

/// Marks a session if a compaction is due, and returns its need for one.
fn mark_if_due(core: &Core, id: SessionId) -> CompactionNeed {
    let fill = events::report_fill(core, id);
    let recorded = || core.sessions.peek(id, |live| live.state().usage().token_count);
    let is_half_recorded = || recorded().unwrap_or_default() >= u64::from(MIN_CONTEXT_SIZE) / 2;
    let fullness = match fill {
        Some(fill) => fullness(core, id, fill),
        // No context was built since the start: the stored counts show whether one could be too large.
        None if is_half_recorded() => Fullness::DueInPause,
        None => Fullness::Low,
    };
    let available = fill.map_or(0, |fill| fill.available);
    let need = need_of(core, id, fullness, has_provisional(core, id), available);
    let can_run = || !core.turns.is_running(id) && has_model(core, id);
    if core.config().compression.enabled && need.is_due() && can_run() {
        core.due_compactions.mark(id);
    }
    need
}

/// Follows the end of a turn: does what [`follow`] does, and cancels a background compaction that still waits for its
/// summary if lines must be extracted before the next message, because only a new compaction extracts.
pub(crate) fn follow_turn(core: &Core, id: SessionId) {
    let need = mark_if_due(core, id);
    if let Some(compaction) = core.compactions.get(id)
        && compaction.trigger == CompactionTrigger::Background
        && need.is_urgent()
    {
        compaction.cancel.cancel();
    }
}

fn fullness(core: &Core, id: SessionId, fill: ContextFill) -> Fullness {
    let newest_turns = || {
        let tokens = core.sessions.peek(id, |live| newest_tokens(live.state()));
        share_of(tokens.unwrap_or_default(), fill.available)
    };
    let threshold = core.config().compression.threshold;
    Fullness::of_fitting(threshold, newest_turns, |share| fill.reaches(share))
}

/// Returns the tokens of the newest [`PAUSE_TURNS`] turns of the active path, and of no more than [`MAX_TURN_RECORDS`].
pub(super) fn newest_tokens(state: &SessionState) -> u64 {
    let mut next = state.leaf();
    let (mut tokens, mut n_turns) = (0, 0);
    for _ in 0..MAX_TURN_RECORDS {
        let Some((seq, entry)) = next.and_then(|seq| Some((seq, state.entry(seq)?))) else { break };
        tokens += u64::from(entry.tokens);
        n_turns += usize::from(entry.role() == Some(Role::User));
        if n_turns == PAUSE_TURNS {
            break;
        }
        next = entry.parent().filter(|parent| *parent < seq);
    }
    tokens
}

/// Returns whether a checkpoint in force waits for the summary of a model.
fn has_provisional(core: &Core, id: SessionId) -> bool {
    let provisional = |session: &mut CachedSession| {
        let compaction = session.head.compaction.as_ref();
        compaction.is_some_and(|(_, one)| one.checkpoints.iter().any(|one| one.provisional))
    };
    core.cache.peek(id, provisional).unwrap_or_default()
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
    let request = CompactionRequest::configured(&core, request_like_last(&core, id), None);
    let trigger = CompactionTrigger::Background;
    match (CompactionTask { core: &core, request, trigger, ticket: None }).run().await {
        Ok(CompactionOutcome::Done(compacted)) => {
            read_ahead(&core, id, compacted.after.context_tokens).await;
        }
        Ok(_) | Err(AppError::Compact(CompactError::Conflict { .. })) => {}
        Err(error) => {
            core.due_compactions.change(id, CompactionHistory::fail);
            tracing::info!(session = %id, "not compacted: {error}");
        }
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::context::build::build_with;
    use crate::app::testing::TestSession;

    #[tokio::test]
    async fn build_is_like_the_last_one_whether_or_not_it_names_model_and_window() {
        let (test, _backend) = TestSession::with_model(&[]);
        test.record("user", "hello").await;
        let plain = BuildRequest::new(test.id);
        let built = build_with(&test.core, plain.clone(), None).await.expect("builds");
        let named = BuildRequest {
            model: Some("m".to_owned()),
            context_size: Some(built.context_size),
            ..plain.clone()
        };
        assert!(is_like_last(&test.core, &named));
        let other_window =
            BuildRequest { context_size: Some(built.context_size / 2), ..plain.clone() };
        let other_model = BuildRequest { model: Some("n".to_owned()), ..plain };
        assert!(![other_window, other_model].iter().any(|other| is_like_last(&test.core, other)));
    }
}
