//! The models of the model server, as clients are told of them.

use std::sync::Arc;
use std::time::Instant;

use ollm_protocol::content::{CountKind, MIN_CONTEXT_SIZE, ModelServerStatus};
use ollm_protocol::methods::model::{
    ModelCountTokensParams, ModelCountTokensResult, ModelDetails, ModelListResult,
    ModelRunningResult, ModelShowParams, ModelShowResult, ModelSummary, ModelWarmParams,
    ModelWarmResult, RunningModelSummary,
};
use serde_json::Value;

use super::counts::{Purpose, known, prepare};
use super::{AppError, Core, blocking};
use crate::config::OllamaConfig;
use crate::model::{
    KvGeometry, ListedModel, ModelError, ModelInfo, ModelSettings, Priority, RunningModel, Secret,
    ServerStatus, Timeouts, advise, clamp_window,
};
use crate::tokens::{Counter, ESTIMATE_MARGIN_DIVISOR};

/// The longest name that any server takes is far shorter.
const MAX_NAME_BYTES: usize = 512;

/// The part of the configuration that the connection gets.
pub(crate) fn model_settings(config: &OllamaConfig) -> ModelSettings {
    ModelSettings {
        host: config.host.clone(),
        key: config.api_key.clone().map(|key| Secret::new(key.0)),
        timeouts: Timeouts::new(
            config.connect_timeout,
            config.first_token_timeout,
            config.idle_timeout,
        ),
    }
}

/// What is known of the model server.
pub(crate) async fn model_server(core: &Core) -> ModelServerStatus {
    let ServerStatus { host, reachable, version, error, checked_at } = core.models.status().await;
    let error = error.map(|error| error.to_string());
    ModelServerStatus { host, reachable, version, error, checked_at }
}

/// The models that the server has.
pub(crate) async fn models_list(core: &Core) -> Result<ModelListResult, AppError> {
    let backend = core.models.backend()?;
    let data = backend.list().await?.into_iter().map(summary).collect();
    Ok(ModelListResult { host: backend.host(), data })
}

/// What a model is.
pub(crate) async fn models_show(
    core: &Core,
    params: ModelShowParams,
) -> Result<ModelShowResult, AppError> {
    let model = named(core, params.model)?;
    let info = core.models.show(&model).await?;
    let host = core.models.backend()?.host();
    Ok(ModelShowResult { host, model: details(&info, core.models.windows().current(&model)) })
}

/// The models in the server's memory, with what a person should know of each.
pub(crate) async fn models_running(core: &Core) -> Result<ModelRunningResult, AppError> {
    let backend = core.models.backend()?;
    let mut data = Vec::new();
    for running in backend.running().await? {
        // Only a model that is partly outside needs the numbers of its memory, and the answer does without.
        let needs = running.size_vram_bytes > 0 && running.size_vram_bytes < running.size_bytes;
        let info = if needs { core.models.info(&running.model).await.ok() } else { None };
        data.push(in_memory(running, info.and_then(|info| info.geometry)));
    }
    Ok(ModelRunningResult { host: backend.host(), data })
}

/// Loads a model.
pub(crate) async fn models_warm(
    core: &Arc<Core>,
    params: ModelWarmParams,
) -> Result<ModelWarmResult, AppError> {
    let model = named(core, params.model)?;
    if params.context_size.is_some_and(|size| size < MIN_CONTEXT_SIZE) {
        return Err(AppError::invalid(
            "contextSize",
            format!("must be at least {MIN_CONTEXT_SIZE}"),
        ));
    }
    let config = core.config();
    let wanted = config.context.size_for(params.context_size);
    let started = Instant::now();
    let report = core.models.warm(&model, wanted, config.ollama.keep_alive).await?;
    let info = core.models.info(&model).await?;
    let num_ctx = Some(report.window.requested);
    let purpose = Purpose { model: model.clone(), think: None, tools: Vec::new(), num_ctx };
    drop(prepare(core, &info, &purpose).await);
    let running = report.running.as_ref();
    Ok(ModelWarmResult {
        host: core.models.backend()?.host(),
        model,
        requested_context: report.window.requested,
        trained_context: report.window.trained,
        effective_context: report.window.effective,
        size_bytes: running.map(|running| running.size_bytes),
        size_vram_bytes: running.map(|running| running.size_vram_bytes),
        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        warnings: report.warnings,
    })
}

/// Counts a text or a conversation.
pub(crate) async fn count_tokens(
    core: &Arc<Core>,
    params: ModelCountTokensParams,
) -> Result<ModelCountTokensResult, AppError> {
    let ModelCountTokensParams { model, text, messages, tools } = params;
    let model = named(core, model)?;
    if text.is_some() == messages.is_some() {
        return Err(AppError::invalid("text", "give either a text or messages"));
    }
    if messages.is_none() && !tools.is_empty() {
        return Err(AppError::invalid("tools", "belong to messages"));
    }
    let counter = counter_for(core, &model, messages.is_some(), &tools).await?;
    let counted = blocking(core, move |_| {
        Ok(match (text, messages) {
            (Some(text), _) => {
                let (tokens, kind) = (u64::from(counter.count_text(&text)), counter.kind_of_text());
                let is_exact = kind == CountKind::Exact;
                (tokens, kind, if is_exact { 0 } else { tokens.div_ceil(ESTIMATE_MARGIN_DIVISOR) })
            }
            (None, messages) => {
                let messages = messages.unwrap_or_default();
                let tokens = counter.count_prompt(&messages, &tools);
                let margin = counter.margin(&messages, &tools, tokens);
                (tokens, counter.kind_of(&messages), margin)
            }
        })
    });
    let (tokens, kind, margin) = counted.await?;
    Ok(ModelCountTokensResult { model, tokens, kind, margin })
}

/// The counter of a model, with what the model server tells where it is not known yet.
async fn counter_for(
    core: &Arc<Core>,
    model: &str,
    needs_template: bool,
    tools: &[Value],
) -> Result<Counter, AppError> {
    let mut purpose =
        Purpose { model: model.to_owned(), think: None, tools: tools.to_vec(), num_ctx: None };
    let known = known(core, &purpose).await;
    let is_enough = if needs_template {
        CountKind::Exact == known.kind()
    } else {
        known.kind_of_text() == CountKind::Exact
    };
    if is_enough {
        return Ok(known);
    }
    let info = match core.models.info(model).await {
        Ok(info) => info,
        Err(error @ ModelError::NotFound { .. }) => return Err(error.into()),
        // Counting goes on by what there is.
        Err(_) => return Ok(known),
    };
    let ticket = core.models.queues().enter(model, Priority::Background);
    ticket.admitted().await;
    if needs_template {
        let wanted = core.config().context.size_for(None);
        let wanted =
            clamp_window(wanted, info.trained_context, info.can("vision").unwrap_or(false));
        let loaded =
            core.models.in_memory(model).await.and_then(|running| running.effective_context);
        purpose.num_ctx = Some(core.models.windows().choose(model, wanted, loaded));
    }
    // Counting goes on by what there is.
    Ok(prepare(core, &info, &purpose).await.unwrap_or(known))
}

/// The model that a call is about: the one it names, else the configured one.
pub(super) fn named(core: &Core, model: Option<String>) -> Result<String, AppError> {
    let model = model.or_else(|| core.config().ollama.model.clone());
    match model {
        None => Err(AppError::invalid("model", "name one, or set ollama.model")),
        Some(model) if model.trim().is_empty() => Err(AppError::invalid("model", "is empty")),
        Some(model) if model.len() > MAX_NAME_BYTES || model.chars().any(char::is_control) => {
            Err(AppError::invalid("model", "is not the name of a model"))
        }
        Some(model) => Ok(model),
    }
}

fn summary(listed: ListedModel) -> ModelSummary {
    ModelSummary {
        model: listed.model,
        digest: listed.digest,
        size_bytes: listed.size_bytes,
        modified_at: listed.modified_at,
        family: listed.family,
        parameter_size: listed.parameter_size,
        quantization: listed.quantization,
        trained_context: listed.trained_context,
        capabilities: listed.capabilities,
        remote_host: listed.remote_host,
    }
}

fn details(info: &ModelInfo, requested: Option<u32>) -> ModelDetails {
    let info = info.clone();
    ModelDetails {
        model: info.model,
        digest: info.digest,
        architecture: info.architecture,
        family: info.family,
        parameter_size: info.parameter_size,
        parameter_count: info.parameter_count,
        quantization: info.quantization,
        trained_context: info.trained_context,
        requested_context: requested,
        context_bytes_per_token: info.geometry.map(|geometry| geometry.bytes_per_token()),
        capabilities: info.capabilities,
        system: info.system,
        hidden_messages: info.n_hidden_messages,
        template: info.template,
        remote_host: info.remote_host,
    }
}

fn in_memory(running: RunningModel, geometry: Option<KvGeometry>) -> RunningModelSummary {
    let warnings = advise(&running, geometry).into_iter().collect();
    RunningModelSummary {
        model: running.model,
        digest: running.digest,
        size_bytes: running.size_bytes,
        size_vram_bytes: running.size_vram_bytes,
        effective_context: running.effective_context,
        expires_at: running.expires_at,
        warnings,
    }
}
