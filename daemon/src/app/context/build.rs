//! `context.build`: building a context, and recording the epoch that a new plan opens.

use std::sync::Arc;

use ollm_protocol::content::{BuiltContext, CompactMode, Epoch, RecalledRecord, RecordBody};
use ollm_protocol::limits::{MAX_RESULT_BYTES, json_bytes};
use ollm_protocol::methods::context::ContextBuildParams;
use ollm_protocol::{Seq, SessionId};
use serde::Serialize;

use super::inputs::{self, BuildLeaf, plan};
use super::turn_recall::recall_for_build;
use crate::app::build_request::BuildRequest;
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, counted, snapshot_mark, uncounted};
use crate::app::error::{AppError, Result, check_context_size};
use crate::app::models::learning::{CountedPrompts, learned_counter};
use crate::app::models::window::learn_limits;
use crate::context::{self, Built};
use crate::model::ModelInfo;
use crate::session::NewRecord;
use crate::tokens::Counter;

/// Attempts to record deltas and the epoch while other records move the leaf; then the plan is returned unrecorded.
const MAX_TRIES: usize = 4;

/// Builds a context (`context.build`). With `compact: auto` a new plan is recorded before it is returned.
pub(crate) async fn build(core: Arc<Core>, params: ContextBuildParams) -> Result<BuiltContext> {
    check_context_size(params.context_size)?;
    let mut params = BuildRequest::from(params);
    let id = params.session_id;
    let info = learn_limits(&core, id, params.model.as_deref()).await?;
    if let Some(info) = info {
        learn_vocabulary(&core, &info, &params).await;
    }
    let recalled = recalled(&core, &mut params).await;
    let mut built = build_with(&core, params, None).await?;
    if !recalled.is_empty() {
        // An inspection of the build repeats it.
        core.cache.with(id, |session| {
            if let Some(recipe) = session.builds.recipe_of(&built.build_id) {
                recipe.recalled.clone_from(&recalled);
            }
        });
        built.recalled = recalled;
    }
    check_result(id, &built.build_id, &built)?;
    Ok(built)
}

/// Adds what a build recalls to its session or its params. A build does not depend on it, so an error is only logged.
async fn recalled(core: &Arc<Core>, params: &mut BuildRequest) -> Vec<RecalledRecord> {
    if !std::mem::take(&mut params.recall) {
        return Vec::new();
    }
    let id = params.session_id;
    recall_for_build(core, params).await.unwrap_or_else(|error| {
        tracing::info!(session = %id, "nothing is recalled: {error}");
        Vec::new()
    })
}

/// Refuses a result that is larger than a response, with the id of the build, by which it can be read in parts.
pub(super) fn check_result(id: SessionId, build_id: &str, result: &impl Serialize) -> Result<()> {
    let bytes = json_bytes(result);
    if bytes <= MAX_RESULT_BYTES {
        return Ok(());
    }
    Err(AppError::ContextTooLarge { id, build_id: build_id.to_owned(), bytes })
}

/// Learns the vocabulary of a model whose texts were never counted, so that counts are no estimates. Does not load the
/// model; without a vocabulary, counts stay estimates.
async fn learn_vocabulary(core: &Arc<Core>, info: &ModelInfo, params: &BuildRequest) {
    if core.counts.has_tokenizer(info, &info.model) {
        return;
    }
    let (model, tools) = (info.model.clone(), params.tools.clone());
    let prompts = CountedPrompts { model, think: None, tools, num_ctx: None };
    if let Err(error) = learned_counter(core, info, &prompts).await {
        tracing::info!(model = info.model, "the vocabulary is not learned: {error}");
    }
}

/// Builds a context with a given counter; by default with that of the session's model.
pub(crate) async fn build_with(
    core: &Arc<Core>,
    params: BuildRequest,
    counter: Option<Counter>,
) -> Result<BuiltContext> {
    let id = params.session_id;
    let params = Arc::new(params);
    let mut request = Arc::clone(&params);
    let mut n_tries = 0;
    loop {
        let (current, counter) = (Arc::clone(&request), counter.clone());
        match blocking(core, move |core| next_step(core, &current, counter)).await? {
            BuildStep::RecordDeltas { deltas, leaf } => {
                core.append_if_leaf(id, leaf, deltas).await?;
            }
            BuildStep::Return { built, leaf } => {
                let may_write = request.compact == CompactMode::Auto;
                let Some(epoch) = built.new_epoch.clone().filter(|_| may_write) else {
                    return Ok(remember(core, &params, leaf, *built));
                };
                let drafts = epoch_drafts(core, epoch, leaf);
                // Planned again if the leaf moved: this head does not contain the concurrent record.
                if let Some(epoch_at) = core.append_if_leaf(id, leaf, drafts).await? {
                    return Ok(remember(core, &params, Some(epoch_at), *built));
                }
            }
        }
        n_tries += 1;
        if n_tries == MAX_TRIES {
            let compact = CompactMode::Never;
            request = Arc::new(BuildRequest { compact, ..(*params).clone() });
        }
    }
}

/// The next step of a build.
enum BuildStep {
    /// Record changes that were not sent to the model yet, so that this build and all later ones contain them at the
    /// same position.
    RecordDeltas {
        deltas: Vec<NewRecord>,
        leaf: Option<Seq>,
    },
    Return {
        built: Box<Built>,
        leaf: Option<Seq>,
    },
}

/// Plans a context, or the deltas to record before that. Blocks on the disk.
fn next_step(
    core: &Arc<Core>,
    params: &BuildRequest,
    counter: Option<Counter>,
) -> Result<BuildStep> {
    let inputs = inputs::load(core, params, counter, BuildLeaf::Active)?;
    let leaf = inputs.leaf;
    if params.compact == CompactMode::Auto {
        let deltas = inputs.pending_deltas(core)?.into_iter();
        let deltas: Vec<NewRecord> =
            deltas.map(|delta| counted(RecordBody::Delta(delta), &inputs.counter)).collect();
        if !deltas.is_empty() {
            return Ok(BuildStep::RecordDeltas { deltas, leaf });
        }
    }
    Ok(BuildStep::Return { built: Box::new(plan(core, params, &inputs)?), leaf })
}

/// Remembers a build, so that the next one can be compared with it and `context.inspect` can repeat it.
fn remember(
    core: &Core,
    params: &Arc<BuildRequest>,
    leaf: Option<Seq>,
    built: Built,
) -> BuiltContext {
    core.cache.with(params.session_id, |session| {
        session.builds.note(params, leaf, built.build, &built.result);
    });
    built.result
}

/// Returns the records that open an epoch; a snapshot marker comes first if the epoch shows less than the one before.
fn epoch_drafts(core: &Core, epoch: Epoch, leaf: Option<Seq>) -> Vec<NewRecord> {
    let shows_less = [context::OVERFLOW, context::REQUESTED].contains(&epoch.cause.as_str());
    let mark = shows_less.then(|| snapshot_mark(&core.clock, leaf, MarkedChange::Epoch));
    mark.into_iter().chain([uncounted(RecordBody::Epoch(epoch))]).collect()
}
