//! `context.status` and `context.inspect`: how full a context is, and why each record is in it or not.

use std::borrow::Cow;
use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::{
    CompactMode, CountKind, FACTS_BLOCK, OmittedItem, RecalledRecord, Reliability, Retention, Role,
};
use ollm_protocol::methods::TextPart;
use ollm_protocol::methods::context::{
    ContextGetBuildParams, ContextInspectParams, ContextInspectResult, ContextItem, ContextPart,
    ContextStatusParams, ContextStatusResult, EpochSummary,
};

use ollm_protocol::Seq;

use super::build::check_result;
use super::deltas::entries_and_goal;
use super::facts::facts_in;
use super::inputs::{self, BuildLeaf, Inputs, plan, request_like_last};
use super::used_files::mark_stale;
use crate::app::build_request::BuildRequest;
use crate::app::cache::BuildRecipe;
use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, Result, check_context_size, json_part};
use crate::app::models::window::{describe_soon, learn_limits};
use crate::context::compact::prompt_text;
use crate::context::reliability::{ReliabilityEvidence, assess_reliability};
use crate::context::{Built, ItemSource, OmitReason, ShownItem, trigger};
use crate::tokens::Counter;

/// Returns how full the context of a session is, and how far it can be trusted (`context.status`).
pub(crate) async fn status(
    core: Arc<Core>,
    params: ContextStatusParams,
) -> Result<ContextStatusResult> {
    check_context_size(params.context_size)?;
    learn_limits(&core, params.session_id, None).await?;
    let (mut status, retention) = blocking(&core, move |core| fill(core, &params)).await?;
    let (n_compactions, kind) = (status.compression_count, status.count_kind);
    let model = status.model.as_deref();
    // Nothing can be lost before the first compaction.
    if n_compactions > 0 {
        status.reliability = Some(reliability(&core, model, n_compactions, kind, retention).await);
    }
    Ok(status)
}

/// Returns how far a conversation can be trusted, by its compactions and the kind of counting. A model of unknown size
/// is scored as a small one.
pub(crate) async fn reliability(
    core: &Arc<Core>,
    model: Option<&str>,
    n_compactions: u64,
    count_kind: CountKind,
    retention: Option<Retention>,
) -> Reliability {
    let info = match model {
        Some(model) => describe_soon(core, model).await,
        None => None,
    };
    assess_reliability(&ReliabilityEvidence {
        parameters: info.and_then(|info| info.parameter_count),
        n_compactions: u32::try_from(n_compactions).unwrap_or(u32::MAX),
        count_kind,
        retention,
    })
}

/// Lists the included and the omitted parts of a context (`context.inspect`).
pub(crate) async fn inspect(
    core: Arc<Core>,
    params: ContextInspectParams,
) -> Result<ContextInspectResult> {
    learn_limits(&core, params.session_id, params.model.as_deref()).await?;
    let id = params.session_id;
    let mut inspected = blocking(&core, move |core| plan_inspected(core, params)).await?;
    mark_stale(&core, id, &mut inspected.items).await?;
    Ok(inspected)
}

/// Plans the context to inspect. Blocks on the disk.
fn plan_inspected(core: &Arc<Core>, params: ContextInspectParams) -> Result<ContextInspectResult> {
    let ContextInspectParams { session_id: id, build_id, model, tools } = params;
    if let Some(build_id) = build_id {
        let inspected = repeat(core, id, &build_id)?.into_inspection()?;
        check_result(id, &build_id, &inspected)?;
        return Ok(inspected);
    }
    let last = request_like_last(core, id);
    let tools = tools.unwrap_or_else(|| last.tools.clone());
    let request = BuildRequest { tools, model, ..last };
    let inputs = inputs::load(core, &request, None, BuildLeaf::Active)?;
    let (leaf, built) = (inputs.leaf, plan(core, &request, &inputs)?);
    let digest = built.build.digest();
    let inspected = RepeatedBuild { inputs, built, is_changed: false }.into_inspection()?;
    let checked = check_result(id, &inspected.build.build_id, &inspected);
    if checked.is_err() {
        // Its parts are read by its id.
        let recipe = BuildRecipe::new(request, leaf, digest, &inspected.build, None);
        core.cache.with(id, |session| session.builds.note_inspected(recipe));
    }
    checked.and(Ok(inspected))
}

/// Returns a part of the JSON of a recent build (`context.getBuild`).
pub(crate) async fn get_build(core: Arc<Core>, params: ContextGetBuildParams) -> Result<TextPart> {
    blocking(&core, move |core| {
        let ContextGetBuildParams { session_id: id, build_id, inspect, cursor } = params;
        let repeated = repeat(core, id, &build_id)?;
        if repeated.is_changed && !inspect {
            return Err(AppError::BuildChanged { build_id });
        }
        let json = match inspect {
            true => serde_json::to_string(&repeated.into_inspection()?),
            false => serde_json::to_string(&repeated.built.result),
        };
        let json = json.map_err(|error| AppError::invalid("buildId", error.to_string()))?;
        let digest = blake3::hash(json.as_bytes());
        let is_same = core.cache.peek(id, |session| {
            let recipe = session.builds.recipe_of(&build_id)?;
            let read_as = &mut recipe.read_as[usize::from(inspect)];
            if cursor.is_none() {
                *read_as = Some(digest);
            }
            Some(*read_as == Some(digest))
        });
        // All parts must be of one text.
        if is_same.flatten() != Some(true) {
            return Err(AppError::BuildChanged { build_id });
        }
        json_part(&json, cursor.as_deref())
    })
    .await
}

/// A recent build that was planned again.
struct RepeatedBuild {
    inputs: Inputs,
    built: Built,
    /// Whether the context differs from the one that was built.
    is_changed: bool,
}

impl RepeatedBuild {
    fn into_inspection(self) -> Result<ContextInspectResult> {
        inspection(&self.inputs, self.built, self.is_changed)
    }
}

/// Plans a recent build again. Blocks on the disk.
fn repeat(core: &Arc<Core>, id: SessionId, build_id: &str) -> Result<RepeatedBuild> {
    let recipe = core.cache.peek(id, |session| session.builds.recipe_of(build_id).cloned());
    let Some(recipe) = recipe.flatten() else {
        // Fails with a clearer error if the session is unknown.
        core.summary(id)?;
        let problem = format!("no recent build of the session is {build_id}");
        return Err(AppError::invalid("buildId", problem));
    };
    let request = BuildRequest { compact: CompactMode::Never, ..(*recipe.request).clone() };
    let mut inputs = inputs::load(core, &request, None, BuildLeaf::Earlier(recipe.leaf))?;
    inputs.build_id = recipe.build_id;
    let recalled = recipe.recalled.as_ref().map_or(Vec::new(), |it| it.delta.recalled.clone());
    let is_recorded = recipe.request.compact == CompactMode::Auto;
    if let Some(recalled) = recipe.recalled.filter(|_| !is_recorded) {
        inputs = inputs.with_recalled(recalled);
    }
    let mut built = plan(core, &request, &inputs)?;
    built.result.prefix_tokens = recipe.prefix_tokens;
    built.result.recalled = recalled;
    let is_changed = built.build.digest() != recipe.digest;
    Ok(RepeatedBuild { inputs, built, is_changed })
}

/// Plans the next context; also returns the retention of the last compaction. Blocks on the disk.
fn fill(
    core: &Arc<Core>,
    params: &ContextStatusParams,
) -> Result<(ContextStatusResult, Option<Retention>)> {
    let id = params.session_id;
    let context_size = params.context_size;
    let request = BuildRequest { context_size, ..request_like_last(core, id) };
    let inputs = inputs::load(core, &request, None, BuildLeaf::Active)?;
    let built = plan(core, &request, &inputs)?;
    let result = &built.result;
    let budget = &result.budget;
    let status = ContextStatusResult {
        model: inputs.model.clone(),
        context_size: result.context_size,
        window: result.window,
        prompt_limit: result.prompt_limit,
        context_tokens: result.context_tokens,
        available_tokens: budget.available_tokens,
        conversation_tokens: budget.conversation_tokens,
        trigger_tokens: trigger(budget.available_tokens, core.config().compression.threshold),
        used_percent: percent(result.context_tokens, result.prompt_limit),
        parts: parts(&built, &inputs.counter),
        count_kind: result.count_kind,
        strategy: result.strategy.clone(),
        epoch: epoch_summary(&inputs),
        compression_count: core.summary(id)?.compression_count,
        checkpoint_count: inputs.checkpoints.len() as u64,
        reliability: None,
    };
    let retention = inputs.retention.map(|retention| {
        inputs.facts.retention_in(retention, &prompt_text(&built.result.messages))
    });
    Ok((status, retention.transpose()?))
}

fn epoch_summary(inputs: &Inputs) -> Option<EpochSummary> {
    let (seq, epoch) = inputs.epoch.as_ref()?;
    Some(EpochSummary {
        seq: *seq,
        strategy: epoch.strategy.clone(),
        cause: epoch.cause.clone(),
        head_tokens: epoch.head_tokens,
    })
}

/// Explains a context. Blocks on the disk.
fn inspection(inputs: &Inputs, built: Built, changed: bool) -> Result<ContextInspectResult> {
    let mut items = items(inputs, &built);
    let head = built.new_epoch.as_ref().or(inputs.shown_epoch().map(|(_, epoch)| epoch));
    if let Some(block) = items.iter_mut().find(|item| item.what == FACTS_BLOCK) {
        block.facts = facts_in(&inputs.facts, head.map_or(&[], |epoch| &epoch.head))?;
    }
    Ok(ContextInspectResult {
        items,
        message_tokens: built.tokens,
        build: built.result,
        epoch: epoch_summary(inputs),
        changed,
    })
}

/// Lists the included parts of a context in order, then the omitted ones.
fn items(inputs: &Inputs, built: &Built) -> Vec<ContextItem> {
    let budget = &built.result.budget;
    let has_system = built.result.messages.first().is_some_and(|first| first.role == Role::System);
    let before = u32::from(has_system);
    let mut items = Vec::new();
    if has_system {
        let tokens = budget.system_prompt_tokens;
        let texts = [inputs.system_prompt(), inputs.mode_text(), Some(&built.additions)];
        let is_defused = |text: &str| matches!(inputs.counter.defuse(text), Cow::Owned(_));
        let reason = texts.into_iter().flatten().any(is_defused);
        let reason = reason.then(|| OmitReason::ControlTokens.as_str().to_owned());
        items.push(ContextItem { message: Some(0), tokens, reason, ..item("system", "whole") });
    }
    if budget.tool_definition_tokens > 0 {
        items.push(ContextItem { tokens: budget.tool_definition_tokens, ..item("tools", "whole") });
    }
    let first_shown = items.len();
    items.extend(built.items.iter().map(|piece| shown_item(inputs, piece, before)));
    let mut left_out = Vec::new();
    for omitted in &built.result.omitted {
        // The goal and entries do not belong to a record.
        let shown = omitted.item_count.is_none().then(|| items[first_shown..].iter_mut());
        let mut shown = shown.into_iter().flatten();
        match shown.find(|item| item.seq == Some(omitted.seq) && item.what == "record") {
            Some(item) => {
                let reason = item.reason.take().map_or(String::new(), |reason| reason + ", ");
                item.reason = Some(reason + &omitted.reason);
            }
            None => left_out.push(omitted_item(omitted)),
        }
    }
    items.extend(left_out);
    items
}

fn shown_item(inputs: &Inputs, piece: &ShownItem, before: u32) -> ContextItem {
    let message = u32::try_from(piece.message).ok().map(|at| at + before);
    let common = ContextItem { tokens: piece.tokens, message, ..item("record", piece.form) };
    match &piece.source {
        ItemSource::Record(record) => ContextItem {
            seq: Some(record.seq).filter(|seq| inputs.unrecorded(*seq).is_none()),
            kind: Some(record.kind),
            recalled: recalled_by(inputs, record.seq),
            role: record.role,
            ..common
        },
        ItemSource::Checkpoint(id) => {
            let checkpoint = inputs.checkpoints.iter().find(|checkpoint| checkpoint.id == *id);
            ContextItem {
                what: "checkpoint".to_owned(),
                checkpoint_id: Some(*id),
                seq: checkpoint.map(|checkpoint| checkpoint.from),
                through_seq: checkpoint.map(|checkpoint| checkpoint.to),
                ..common
            }
        }
        ItemSource::Block(topic) => ContextItem { what: topic.clone(), ..common },
    }
}

/// Returns the messages that a delta shows again.
fn recalled_by(inputs: &Inputs, delta: Seq) -> Vec<RecalledRecord> {
    let recalled = inputs.recalled().iter().filter(|(seq, _)| *seq == delta);
    recalled.map(|(_, record)| record.clone()).collect()
}

fn omitted_item(omitted: &OmittedItem) -> ContextItem {
    ContextItem {
        seq: Some(omitted.seq),
        through_seq: omitted.through_seq,
        reason: Some(omitted.reason.clone()),
        tokens: omitted.tokens,
        ..item(if omitted.item_count.is_some() { &omitted.reason } else { "record" }, "out")
    }
}

fn item(what: &str, form: &str) -> ContextItem {
    ContextItem { what: what.to_owned(), form: form.to_owned(), ..ContextItem::default() }
}

/// Divides the window into parts. The tokens around the texts of messages count as recent.
fn parts(built: &Built, counter: &Counter) -> Vec<ContextPart> {
    let budget = &built.result.budget;
    let conversation = budget.conversation_tokens;
    let user_tokens = |piece: &ShownItem| match &piece.source {
        ItemSource::Record(record) if record.role == Some(Role::User) => piece.tokens,
        _ => 0,
    };
    let user: u64 = built.items.iter().map(user_tokens).sum();
    let user = user.min(conversation);
    let used = built.result.context_tokens;
    let (entries, goal) = entries_and_goal(&built.additions);
    let count = |text: &str| u64::from(counter.count_text(text));
    let (entries, goals) = (count(entries), count(goal));
    let system = budget.system_prompt_tokens.saturating_sub(entries + goals);
    let both = budget.system_prompt_tokens - system;
    let (entries, goals) = (both.saturating_sub(goals), goals.min(both));
    let part = |name: &str, tokens| ContextPart { name: name.to_owned(), tokens };
    vec![
        part("system", system),
        part("entries", entries),
        part("goals", goals),
        part("tools", budget.tool_definition_tokens),
        part("checkpoints", budget.checkpoint_tokens),
        part("user", user),
        part("recent", conversation - user),
        part("free", budget.prompt_limit.saturating_sub(used)),
        part("reserve", budget.reserve_for_response),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "token counts lie far below 2^52")]
fn percent(tokens: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { (tokens as f64 * 1000.0 / of as f64).round() / 10.0 }
}
