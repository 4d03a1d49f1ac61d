//! How full a context is, and why each thing is in it or not.

use std::sync::Arc;

use ollm_protocol::content::{CompactMode, OmittedItem, Retention, Role};
use ollm_protocol::methods::context::{
    ContextBuildParams, ContextInspectParams, ContextInspectResult, ContextItem, ContextPart,
    ContextStatusParams, ContextStatusResult, EpochSummary,
};

use super::build::plan;
use super::compact::judged;
use super::prepared::{Prepared, prepare, prepare_at};
use super::update::check_context_size;
use super::{AppError, Core, blocking};
use crate::context::{Built, ItemSource, ShownItem, trigger};
use crate::goal::block::GOAL_BLOCK;
use crate::tokens::Counter;

/// Tells how full the context of a session is, and how far it can be trusted.
pub(crate) async fn context_status(
    core: &Arc<Core>,
    params: ContextStatusParams,
) -> Result<ContextStatusResult, AppError> {
    check_context_size(params.context_size)?;
    let (mut status, retention) = blocking(core, move |core| fill(core, &params)).await?;
    let evidence = (status.compression_count, status.count_kind);
    let reliability = judged(core, status.model.as_deref(), evidence, retention).await;
    status.reliability = Some(reliability);
    Ok(status)
}

/// How full it is, and what survived the last compaction. Blocks on the disk.
fn fill(
    core: &Arc<Core>,
    params: &ContextStatusParams,
) -> Result<(ContextStatusResult, Option<Retention>), AppError> {
    let id = params.session_id;
    let context_size = params.context_size;
    let params = ContextBuildParams { context_size, ..core.builds.like_last(id) };
    let prepared = prepare(core, &params, None)?;
    let built = plan(core, &params, &prepared)?;
    let result = &built.result;
    let budget = &result.budget;
    let status = ContextStatusResult {
        model: prepared.model.clone(),
        num_ctx: result.num_ctx,
        prompt_limit: result.token_budget,
        tokens_used: result.tokens_used,
        available_tokens: budget.available_tokens,
        conversation_tokens: budget.current_conversation_tokens,
        trigger_tokens: trigger(budget.available_tokens, core.config().compression.threshold),
        used_percent: percent(result.tokens_used, result.token_budget),
        parts: parts(&built, &prepared.counter),
        count_kind: result.count_kind,
        strategy: result.strategy.clone(),
        epoch: epoch(&prepared),
        compression_count: core.summary(id)?.compression_count,
        checkpoint_count: prepared.checkpoints.len() as u64,
        reliability: None,
    };
    Ok((status, prepared.retention(core)?))
}

/// Tells what is in a context and what is not. Blocks on the disk.
pub(crate) fn context_inspect(
    core: &Arc<Core>,
    params: ContextInspectParams,
) -> Result<ContextInspectResult, AppError> {
    let ContextInspectParams { session_id: id, build_id, model, tools } = params;
    if let Some(build_id) = build_id {
        let Some(recipe) = core.builds.recipe(id, Some(&build_id)) else {
            // Whoever names a session that there is not is told that first.
            core.summary(id)?;
            let problem = format!("no recent build of the session is {build_id}");
            return Err(AppError::invalid("buildId", problem));
        };
        let params = ContextBuildParams { compact: CompactMode::Never, ..(*recipe.params).clone() };
        let mut prepared = prepare_at(core, &params, None, recipe.leaf)?;
        prepared.build_id = build_id;
        let built = plan(core, &params, &prepared)?;
        let changed = built.build.digest() != recipe.digest;
        return Ok(told(&prepared, built, changed));
    }
    let last = core.builds.like_last(id);
    let tools = tools.unwrap_or_else(|| last.tools.clone());
    let params = ContextBuildParams { tools, model, ..last };
    let prepared = prepare(core, &params, None)?;
    let built = plan(core, &params, &prepared)?;
    Ok(told(&prepared, built, false))
}

fn epoch(prepared: &Prepared) -> Option<EpochSummary> {
    let (seq, epoch) = prepared.epoch.as_ref()?;
    Some(EpochSummary {
        seq: *seq,
        strategy: epoch.strategy.clone(),
        cause: epoch.cause.clone(),
        head_tokens: epoch.head_tokens,
    })
}

fn told(prepared: &Prepared, built: Built, changed: bool) -> ContextInspectResult {
    ContextInspectResult {
        items: items(prepared, &built),
        message_tokens: built.tokens,
        build: built.result,
        epoch: epoch(prepared),
        changed,
    }
}

/// Everything in a context and everything left out, by place.
fn items(prepared: &Prepared, built: &Built) -> Vec<ContextItem> {
    let budget = &built.result.budget;
    let has_system = built.result.messages.first().is_some_and(|first| first.role == Role::System);
    let before = u32::from(has_system);
    let mut items = Vec::new();
    if has_system {
        let tokens = budget.system_prompt_tokens;
        items.push(ContextItem { message: Some(0), tokens, ..item("system", "whole") });
    }
    if budget.tool_definition_tokens > 0 {
        items.push(ContextItem { tokens: budget.tool_definition_tokens, ..item("tools", "whole") });
    }
    let mut rest: Vec<ContextItem> =
        built.items.iter().map(|piece| of_piece(prepared, piece, before)).collect();
    let omitted = built.result.omitted.iter();
    let (parts, whole): (Vec<&OmittedItem>, Vec<&OmittedItem>) = omitted.partition(|omitted| {
        rest.iter().any(|item| item.seq == Some(omitted.seq) && item.what == "record")
    });
    for part in parts {
        let shown =
            rest.iter_mut().find(|item| item.seq == Some(part.seq) && item.what == "record");
        if let Some(item) = shown {
            let reason = item.reason.take().map_or(String::new(), |reason| reason + ", ");
            item.reason = Some(reason + &part.reason);
        }
    }
    rest.extend(whole.into_iter().map(of_omitted));
    items.append(&mut rest);
    items
}

fn of_piece(prepared: &Prepared, piece: &ShownItem, before: u32) -> ContextItem {
    let message = u32::try_from(piece.message).ok().map(|at| at + before);
    let common = ContextItem { tokens: piece.tokens, message, ..item("record", piece.form) };
    match &piece.source {
        ItemSource::Record(record) => ContextItem {
            seq: Some(record.seq),
            kind: Some(record.kind),
            role: record.role,
            ..common
        },
        ItemSource::Checkpoint(id) => {
            let checkpoint = prepared.checkpoints.iter().find(|checkpoint| checkpoint.id == *id);
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

fn of_omitted(omitted: &OmittedItem) -> ContextItem {
    ContextItem {
        seq: Some(omitted.seq),
        through_seq: omitted.through_seq,
        reason: Some(omitted.reason.clone()),
        tokens: omitted.tokens,
        ..item("record", "out")
    }
}

fn item(what: &str, form: &str) -> ContextItem {
    ContextItem {
        what: what.to_owned(),
        seq: None,
        through_seq: None,
        checkpoint_id: None,
        kind: None,
        role: None,
        form: form.to_owned(),
        reason: None,
        tokens: 0,
        message: None,
    }
}

/// The window by part; what a message has besides its records counts as recent.
fn parts(built: &Built, counter: &Counter) -> Vec<ContextPart> {
    let budget = &built.result.budget;
    let is_user = |piece: &&ShownItem| matches!(&piece.source, ItemSource::Record(record) if record.role == Some(Role::User));
    let conversation = budget.current_conversation_tokens;
    let user: u64 = built.items.iter().filter(is_user).map(|piece| piece.tokens).sum();
    let user = user.min(conversation);
    let used = built.result.tokens_used;
    let goal_at = built.additions.find(GOAL_BLOCK).unwrap_or(built.additions.len());
    let (entries, goal) = built.additions.split_at(goal_at);
    let count = |text: &str| u64::from(counter.count_text(text));
    let (entries, goals) = (count(entries), count(goal));
    let system = budget.system_prompt_tokens.saturating_sub(entries + goals);
    let (entries, goals) = match budget.system_prompt_tokens - system {
        0 => (0, 0),
        both => (both.saturating_sub(goals), goals.min(both)),
    };
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
