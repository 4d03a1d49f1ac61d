//! Building a context from a session, and recording the epoch that a new plan opens.

use std::sync::Arc;

use ollm_protocol::content::{Epoch, RecordBody};
use ollm_protocol::methods::context::{CompactMode, ContextBuildParams, ContextBuildResult};
use ollm_protocol::{Seq, SessionId};

use super::mark::{Before, mark};
use super::prepared::{Records, prepare};
use super::update::check_context_size;
use super::volatile::untold;
use super::{Core, TurnError, blocking};
use crate::config::DEFAULT_CONTEXT_SIZE;
use crate::context::{self, Built};
use crate::session::{Draft, SessionError};
use crate::tokens::Counter;

/// How often a plan is made anew because something was recorded meanwhile, before it is given back unrecorded.
const MAX_TRIES: usize = 3;

/// Builds a context; with `compact: auto` a new plan is recorded before it is returned.
pub(crate) async fn build(
    core: &Arc<Core>,
    params: ContextBuildParams,
) -> Result<ContextBuildResult, TurnError> {
    build_with(core, params, None).await
}

/// Builds a context with a counter; without one, with that of the session's model.
pub(super) async fn build_with(
    core: &Arc<Core>,
    params: ContextBuildParams,
    counter: Option<Counter>,
) -> Result<ContextBuildResult, TurnError> {
    check_context_size(params.context_size)?;
    let id = params.session_id;
    let params = Arc::new(params);
    if params.compact == CompactMode::Auto {
        tell(core, &params, counter.clone()).await?;
    }
    for _ in 0..MAX_TRIES {
        let (request, counter) = (Arc::clone(&params), counter.clone());
        let (built, leaf) = blocking(core, move |core| plan(core, &request, counter)).await?;
        let Some(epoch) = built.new_epoch.clone().filter(|_| params.compact == CompactMode::Auto)
        else {
            return Ok(given(core, &params, leaf, built));
        };
        match record_epoch(core, id, epoch, leaf).await {
            Ok(at) => return Ok(given(core, &params, Some(at), built)),
            Err(TurnError::Session(SessionError::LeafMoved { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    let request = ContextBuildParams { compact: CompactMode::Never, ..(*params).clone() };
    let (built, leaf) = blocking(core, move |core| plan(core, &request, counter)).await?;
    Ok(given(core, &params, leaf, built))
}

fn given(
    core: &Core,
    params: &Arc<ContextBuildParams>,
    leaf: Option<Seq>,
    built: Built,
) -> ContextBuildResult {
    core.builds.note(params, leaf, built.build, &built.result);
    built.result
}

/// Records what changed beside the conversation and was not told yet, so that this build and all later ones tell it at
/// the same place.
async fn tell(
    core: &Arc<Core>,
    params: &Arc<ContextBuildParams>,
    counter: Option<Counter>,
) -> Result<(), TurnError> {
    let (id, request) = (params.session_id, Arc::clone(params));
    let find = move |core: &Arc<Core>| {
        let prepared = prepare(core, &request, counter)?;
        let counted = |delta| {
            let body = RecordBody::Delta(delta);
            let tokens = prepared.counter.count_record(&body);
            Draft::new(body, Some((tokens, prepared.counter.identity())))
        };
        let deltas = untold(core, &prepared)?;
        Ok((deltas.into_iter().map(counted).collect::<Vec<_>>(), prepared.leaf))
    };
    let (drafts, leaf) = blocking(core, find).await?;
    if drafts.is_empty() {
        return Ok(());
    }
    let answer = core.sessions.append_after(id, leaf, drafts)?;
    match answer.await.map_err(|_| SessionError::Stopping)? {
        // What was recorded meanwhile is told of by the next build.
        Ok(_) | Err(SessionError::LeafMoved { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Records an epoch, unless something was recorded since it was planned: its head would leave that out. One that shows
/// less than the one before is marked.
async fn record_epoch(
    core: &Core,
    id: SessionId,
    epoch: Epoch,
    leaf: Option<Seq>,
) -> Result<Seq, TurnError> {
    let shows_less = [context::OVERFLOW, context::REQUESTED].contains(&epoch.cause.as_str());
    let mut drafts = vec![Draft::new(RecordBody::Epoch(epoch), None)];
    if shows_less {
        drafts.insert(0, mark(core, leaf, Before::Epoch));
    }
    let n_before = drafts.len() as u64 - 1;
    let answer = core.sessions.append_after(id, leaf, drafts)?;
    let first = answer.await.map_err(|_| SessionError::Stopping)??.seq;
    Ok(Seq(first.0 + n_before))
}

/// The window that a session wants, in tokens.
pub(super) fn context_size(core: &Core, id: SessionId) -> Result<u32, TurnError> {
    let own = core.sessions.with(id, |live| live.context_size())?;
    Ok(own.or(core.config().context.size).unwrap_or(DEFAULT_CONTEXT_SIZE))
}

fn plan(
    core: &Arc<Core>,
    params: &ContextBuildParams,
    counter: Option<Counter>,
) -> Result<(Built, Option<Seq>), TurnError> {
    let prepared = prepare(core, params, counter)?;
    let contents = Records { sessions: &core.sessions, id: prepared.id };
    let input = prepared.input(params, &prepared.checkpoints);
    Ok((context::build(&input, &contents)?, prepared.leaf))
}
