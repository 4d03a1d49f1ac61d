//! Building a context from a session, and recording the epoch that a new plan opens.

use std::sync::Arc;

use ollm_protocol::content::{BuiltContext, CompactMode, Epoch, RecordBody};
use ollm_protocol::methods::context::ContextBuildParams;
use ollm_protocol::{Seq, SessionId};

use super::mark::{Moment, mark};
use super::prepared::{Prepared, Records, prepare};
use super::update::check_context_size;
use super::volatile::untold;
use super::{AppError, Core, append_after, blocking};
use crate::context::{self, Built};
use crate::session::NewRecord;
use crate::tokens::Counter;

/// How often a build begins anew, because it had something to tell first or because something was recorded meanwhile,
/// before what it plans is given back unrecorded.
const MAX_TRIES: usize = 4;

/// Builds a context; with `compact: auto` a new plan is recorded before it is returned.
pub(crate) async fn build(
    core: &Arc<Core>,
    params: ContextBuildParams,
) -> Result<BuiltContext, AppError> {
    build_with(core, params, None).await
}

/// Builds a context with a counter; without one, with that of the session's model.
pub(super) async fn build_with(
    core: &Arc<Core>,
    params: ContextBuildParams,
    counter: Option<Counter>,
) -> Result<BuiltContext, AppError> {
    check_context_size(params.context_size)?;
    let id = params.session_id;
    let params = Arc::new(params);
    let may_write = params.compact == CompactMode::Auto;
    for _ in 0..MAX_TRIES {
        let (request, counter) = (Arc::clone(&params), counter.clone());
        match blocking(core, move |core| step(core, &request, counter)).await? {
            Step::Tell { deltas, leaf } => {
                append_after(core, id, leaf, deltas).await?;
            }
            Step::Give { built, leaf } => {
                let Some(epoch) = built.new_epoch.clone().filter(|_| may_write) else {
                    return Ok(given(core, &params, leaf, *built));
                };
                let drafts = opening(core, epoch, leaf);
                // A head that was planned before another record would leave that one out.
                if let Some(at) = append_after(core, id, leaf, drafts).await? {
                    return Ok(given(core, &params, Some(at), *built));
                }
            }
        }
    }
    let request = ContextBuildParams { compact: CompactMode::Never, ..(*params).clone() };
    let (built, leaf) = blocking(core, move |core| {
        let prepared = prepare(core, &request, counter)?;
        Ok((plan(core, &request, &prepared)?, prepared.leaf))
    })
    .await?;
    Ok(given(core, &params, leaf, built))
}

/// What a build does next.
enum Step {
    /// Records what changed beside the conversation and was not told yet, so that this build and all later ones tell
    /// it at the same place.
    Tell { deltas: Vec<NewRecord>, leaf: Option<Seq> },
    /// Gives what was built.
    Give { built: Box<Built>, leaf: Option<Seq> },
}

/// Blocks on the disk.
fn step(
    core: &Arc<Core>,
    params: &ContextBuildParams,
    counter: Option<Counter>,
) -> Result<Step, AppError> {
    let prepared = prepare(core, params, counter)?;
    let leaf = prepared.leaf;
    if params.compact == CompactMode::Auto {
        let counted = |delta| {
            let body = RecordBody::Delta(delta);
            let tokens = prepared.counter.count_record(&body);
            NewRecord::new(body, Some((tokens, prepared.counter.identity())))
        };
        let deltas: Vec<NewRecord> = untold(core, &prepared)?.into_iter().map(counted).collect();
        if !deltas.is_empty() {
            return Ok(Step::Tell { deltas, leaf });
        }
    }
    Ok(Step::Give { built: Box::new(plan(core, params, &prepared)?), leaf })
}

fn given(
    core: &Core,
    params: &Arc<ContextBuildParams>,
    leaf: Option<Seq>,
    built: Built,
) -> BuiltContext {
    core.builds.note(params, leaf, built.build, &built.result);
    built.result
}

/// What opens an epoch. One that shows less than the one before it is marked.
fn opening(core: &Core, epoch: Epoch, leaf: Option<Seq>) -> Vec<NewRecord> {
    let shows_less = [context::OVERFLOW, context::REQUESTED].contains(&epoch.cause.as_str());
    let mark = shows_less.then(|| mark(core, leaf, Moment::Epoch));
    mark.into_iter().chain([NewRecord::new(RecordBody::Epoch(epoch), None)]).collect()
}

/// The window that a session wants, in tokens.
pub(super) fn context_size(core: &Core, id: SessionId) -> Result<u32, AppError> {
    let own = core.sessions.with(id, |live| live.state().context_size())?;
    Ok(core.config().context.size_for(own))
}

/// The context of what was prepared. Blocks on the disk.
pub(super) fn plan(
    core: &Core,
    params: &ContextBuildParams,
    prepared: &Prepared,
) -> Result<Built, AppError> {
    let contents = Records { sessions: &core.sessions, id: prepared.id };
    Ok(context::build(&prepared.input(params, &prepared.checkpoints), &contents)?)
}
