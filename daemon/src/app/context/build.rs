//! `context.build`: building a context, and recording what it needs: deltas, the epoch that a new plan opens, and the
//! earlier messages that are recalled for it.
//!
//! **Invariant**: a chat turn builds in the same steps, so `context.build` with recall returns what the turn sends.

use std::sync::Arc;

use ollm_protocol::content::{BuiltContext, CompactMode, Epoch, RecordBody};
use ollm_protocol::limits::{MAX_RESULT_BYTES, json_bytes};
use ollm_protocol::methods::context::ContextBuildParams;
use ollm_protocol::{Seq, SessionId};
use serde::Serialize;

use super::inputs::{self, BuildLeaf, Inputs, plan, plan_with_spare};
use super::turn_recall::{RecallRoom, recall_for};
use crate::app::build_request::BuildRequest;
use crate::app::cache::Recalled;
use crate::app::change::{FirstPhase, in_two_phases};
use crate::app::core::{Core, blocking};
use crate::app::counts::CountedPrompts;
use crate::app::drafts::{MarkedChange, counted, snapshot_mark, uncounted};
use crate::app::error::{AppError, Result, check_context_size};
use crate::app::models::learning::{check_description, counter_in_turn};
use crate::app::models::window::learn_limits;
use crate::context::{self, Built};
use crate::model::ModelInfo;
use crate::session::NewRecord;
use crate::tokens::Counter;

/// The plans that are refused because other records moved the leaf, before a plan is returned unrecorded: a prompt is worth
/// more than its epoch.
const MAX_REFUSALS: usize = 4;

/// Builds a context (`context.build`). With `compact: auto` a new plan is recorded before it is returned.
pub(crate) async fn build(core: Arc<Core>, params: ContextBuildParams) -> Result<BuiltContext> {
    check_context_size(params.context_size)?;
    let request = BuildRequest::from(params);
    let id = request.session_id;
    let built = match learn_limits(&core, id, request.model.as_deref()).await? {
        Some(info) => build_checked(&core, &info, request).await?,
        None => build_with(&core, request, None).await?,
    };
    check_result(id, &built.build_id, &built)?;
    Ok(built)
}

/// Builds a context, and meanwhile asks the model server whether it still has the model that was described. Builds again if
/// the answer changes how exact the counts are.
async fn build_checked(
    core: &Arc<Core>,
    info: &Arc<ModelInfo>,
    request: BuildRequest,
) -> Result<BuiltContext> {
    learn_vocabulary(core, info, &request).await;
    let was_checked = core.counts.is_checked(&info.model);
    let (built, current) =
        tokio::join!(build_with(core, request.clone(), None), check_description(core, info));
    if !Arc::ptr_eq(&current, info) {
        learn_vocabulary(core, &current, &request).await;
    } else if core.counts.is_checked(&info.model) == was_checked {
        return built;
    }
    build_with(core, request, None).await
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
async fn learn_vocabulary(core: &Arc<Core>, info: &Arc<ModelInfo>, request: &BuildRequest) {
    if core.counts.has_tokenizer(info, &info.model) {
        return;
    }
    let (model, tools) = (info.model.clone(), request.tools.clone());
    let prompts = CountedPrompts { model, think: None, tools, num_ctx: None };
    if let Err(error) = counter_in_turn(core, info, &prompts).await {
        tracing::info!(model = info.model, "the vocabulary is not learned: {error}");
    }
}

/// Builds a context with a given counter; by default with that of the session's model.
pub(crate) async fn build_with(
    core: &Arc<Core>,
    request: BuildRequest,
    counter: Option<Counter>,
) -> Result<BuiltContext> {
    let id = request.session_id;
    core.hook_runs.wait_for_start(id, &core.tasks).await;
    let mut recalled = None;
    loop {
        // Looks for messages once.
        let recall = request.recall && recalled.is_none();
        let current = BuildRequest { recall, ..request.clone() };
        let mut n_refused = 0;
        let first_phase = |refused: Option<_>| {
            n_refused += usize::from(refused.is_some());
            let mut current = current.clone();
            if n_refused == MAX_REFUSALS {
                // What is recalled for a plan that cannot be recorded could not be repeated.
                (current.compact, current.recall) = (CompactMode::Never, false);
            }
            let counter = counter.clone();
            blocking(core, move |core| {
                let (records, step) = next_step(core, &current, counter)?;
                let n_later = (records.len() as u64).saturating_sub(1);
                Ok(match records.is_empty() {
                    true => FirstPhase::Unrecorded((step, n_later)),
                    false => FirstPhase::Append(step.leaf, records, (step, n_later)),
                })
            })
        };
        let (step, first) = in_two_phases(core, id, None, first_phase).await?;
        let (step, n_later) = step.expect("a change without a key is planned");
        let leaf = first.map_or(step.leaf, |first| Some(Seq(first.0 + n_later)));
        recalled = recalled.or(step.recalled);
        if let Some(built) = step.built {
            return Ok(remember(core, request, leaf, built, recalled));
        }
    }
}

/// The next step of a build.
struct BuildStep {
    /// The leaf that it is for.
    leaf: Option<Seq>,
    /// The messages that are brought back for the newest message: a record of the step, or a part of `built` alone.
    recalled: Option<Recalled>,
    /// The context; `None` if it is planned once the records are there, so that all later builds contain them at the same
    /// position.
    built: Option<Box<Built>>,
}

/// Plans a context, or what to record before that. Returns the records to append as well: changes that were not sent to the
/// model yet, a new epoch, and recalled messages. Blocks on the disk.
fn next_step(
    core: &Arc<Core>,
    request: &BuildRequest,
    counter: Option<Counter>,
) -> Result<(Vec<NewRecord>, BuildStep)> {
    let inputs = inputs::load(core, request, counter, BuildLeaf::Active)?;
    let leaf = inputs.leaf;
    let draft = |delta| counted(RecordBody::Delta(delta), &inputs.counter);
    let may_record = request.compact == CompactMode::Auto;
    if may_record {
        let drafts: Vec<_> = inputs.pending_deltas(core)?.into_iter().map(draft).collect();
        if !drafts.is_empty() {
            return Ok((drafts, BuildStep { leaf, recalled: None, built: None }));
        }
    }
    let (built, recalled) = plan_with_recall(core, request, &inputs)?;
    let new_epoch = built.new_epoch.clone().filter(|_| may_record);
    let mut drafts = new_epoch.map_or(Vec::new(), |epoch| epoch_drafts(core, epoch, leaf));
    let Some(recalled) = recalled else {
        return Ok((drafts, BuildStep { leaf, recalled: None, built: Some(Box::new(built)) }));
    };
    if may_record {
        drafts.push(draft((*recalled.delta).clone()));
        return Ok((drafts, BuildStep { leaf, recalled: Some(recalled), built: None }));
    }
    let built = plan(core, request, &inputs.with_recalled(recalled.clone()))?;
    Ok((drafts, BuildStep { leaf, recalled: Some(recalled), built: Some(Box::new(built)) }))
}

/// Plans a context, and finds what is recalled for it. If too little room is free for that, another head is planned that
/// leaves it. A build does not depend on recall, so an error of it is only logged.
fn plan_with_recall(
    core: &Arc<Core>,
    request: &BuildRequest,
    inputs: &Inputs,
) -> Result<(Built, Option<Recalled>)> {
    let mut built = plan(core, request, inputs)?;
    if !request.recall {
        return Ok((built, None));
    }
    let find = |built: &Built, room| {
        recall_for(core, request, inputs, built, room).unwrap_or_else(|error| {
            tracing::info!(session = %request.session_id, "nothing is recalled: {error}");
            None
        })
    };
    let mut found = find(&built, RecallRoom::MayBeMade);
    if let Some(spare_tokens) = found.as_ref().and_then(|found| found.spare_tokens) {
        let roomier = plan_with_spare(core, request, inputs, spare_tokens);
        // The message that is answered is worth more than what is recalled for it.
        let roomier = roomier.ok().filter(|built| built.result.cut.is_empty());
        found = roomier.and_then(|roomier| {
            let found = find(&roomier, RecallRoom::Free)?;
            built = roomier;
            Some(found)
        });
        found = found.or_else(|| find(&built, RecallRoom::Free));
    }
    let epoch = built.new_epoch.clone().map(Arc::new);
    let recalled = found.map(|found| Recalled { epoch, delta: Arc::new(found.delta) });
    Ok((built, recalled))
}

/// Remembers a build, so that the next one can be compared with it and `context.inspect` can repeat it.
fn remember(
    core: &Core,
    request: BuildRequest,
    leaf: Option<Seq>,
    built: Box<Built>,
    recalled: Option<Recalled>,
) -> BuiltContext {
    let Built { mut result, build, .. } = *built;
    if let Some(recalled) = &recalled {
        result.recalled.clone_from(&recalled.delta.recalled);
    }
    core.cache.with(request.session_id, |session| {
        session.builds.note(request, leaf, build, &result, recalled);
    });
    result
}

/// Returns the records that open an epoch; a snapshot marker comes first if the epoch shows less than the one before.
fn epoch_drafts(core: &Core, epoch: Epoch, leaf: Option<Seq>) -> Vec<NewRecord> {
    let shows_less = [context::OVERFLOW, context::REQUESTED].contains(&epoch.cause.as_str());
    let mark = shows_less.then(|| snapshot_mark(&core.clock, leaf, MarkedChange::Epoch));
    mark.into_iter().chain([uncounted(RecordBody::Epoch(epoch))]).collect()
}
