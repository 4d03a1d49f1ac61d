//! `model.*`: the models of the model server, as clients see them.

pub(crate) mod answer_options;
pub(crate) mod fit;
pub(crate) mod gate;
pub(crate) mod learning;
pub(crate) mod lessons;
pub(crate) mod servers;
pub(crate) mod window;

use std::sync::Arc;
use std::time::Instant;

use ollm_protocol::content::{CountKind, ModelServerStatus};
use ollm_protocol::methods::daemon::NoParams;
use ollm_protocol::methods::model::{
    DefaultWindowSource, ModelCountTokensParams, ModelCountTokensResult, ModelDetails,
    ModelListResult, ModelRunningResult, ModelShowParams, ModelShowResult, ModelSummary,
    ModelWarmParams, ModelWarmResult, RunningModelSummary,
};
use serde_json::Value;

use self::learning::{check_description, known_counter, learned_counter};
use self::window::{
    ContextWindow, WindowOrigin, describe, describe_again, describe_soon, may_read_images,
    window_of,
};
use super::core::{Core, blocking};
use super::counts::CountedPrompts;
use super::error::{AppError, Result, check_context_size};
use crate::model::{
    CountingSource, KvGeometry, ListedModel, ModelAddress, ModelError, ModelInfo, Priority,
    RunningModel, Server, ServerStatus, advise,
};
use crate::tokens::{Counter, ESTIMATE_MARGIN_DIVISOR};

/// The longest model name in bytes; servers accept only shorter ones.
const MAX_NAME_BYTES: usize = 512;

/// Returns the server of the default model.
fn main_server(core: &Core) -> Server {
    let server = core.model_or_default(None).and_then(|model| core.models.server_for(&model).ok());
    server.unwrap_or_else(|| core.models.default_server())
}

/// Returns the command that starts the server of the default model; `None` if its settings cannot be used.
pub(crate) fn start_command(core: &Core) -> Option<&'static str> {
    main_server(core).backend().ok().map(|backend| backend.advice().start)
}

/// Returns the status of the server of the default model, for `daemon.status`.
pub(crate) async fn server_status(core: &Core) -> ModelServerStatus {
    let status = main_server(core).status().await;
    let ServerStatus { host, reachable, version, error, checked_at } = status;
    let error = error.map(|error| error.to_string());
    ModelServerStatus { host, reachable, version, error, checked_at }
}

/// Lists the models of the server (`model.list`).
pub(crate) async fn list(core: Arc<Core>, _: NoParams) -> Result<ModelListResult> {
    let main = main_server(&core);
    let (data, missing) = servers::list_all(&core).await?;
    let get_small_model = main.backend().map(|backend| backend.advice().get_small_model);
    let get_small_model = get_small_model.unwrap_or_default().to_owned();
    Ok(ModelListResult { host: main.host(), get_small_model, data, missing })
}

/// Returns the names of the models on the server of a model that read images; none if it does not list them.
pub(super) async fn image_readers(core: &Core, model: &str) -> Vec<String> {
    let Ok(server) = core.models.server_for(model) else { return Vec::new() };
    let all = server.list(None).await.unwrap_or_default().into_iter();
    let readers = all.filter(|listed| listed.capabilities.iter().any(|name| name == "vision"));
    let shown = |listed: ListedModel| {
        let server = server.settings().name.clone();
        core.models.names().shown(&ModelAddress { server, name: listed.model })
    };
    readers.map(shown).collect()
}

/// Describes a model (`model.show`).
pub(crate) async fn show(core: Arc<Core>, params: ModelShowParams) -> Result<ModelShowResult> {
    let model = model_or_default(&core, params.model)?;
    let info = describe_again(&core, &model).await?;
    let host = core.models.host_of(&model);
    let window = window_of(&core, Some(&model), None);
    let requested = core.models.windows().current(&model);
    Ok(ModelShowResult { host, model: details(&info, requested, window) })
}

/// Lists the models in the server's memory, with warnings about their size (`model.running`).
pub(crate) async fn running(core: Arc<Core>, _: NoParams) -> Result<ModelRunningResult> {
    let backend = core.models.default_server().backend()?;
    let mut data = Vec::new();
    for running in backend.running().await? {
        // Only the warning about a model that is partly in main memory uses the geometry, and it can do without.
        let needs_info =
            running.size_vram_bytes > 0 && running.size_vram_bytes < running.size_bytes;
        let info = if needs_info { describe(&core, &running.model).await.ok() } else { None };
        data.push(running_summary(running, info.and_then(|info| info.geometry)));
    }
    Ok(ModelRunningResult { host: backend.host(), data })
}

/// Loads a model and learns to count for it (`model.warm`).
pub(crate) async fn warm(core: Arc<Core>, params: ModelWarmParams) -> Result<ModelWarmResult> {
    let model = model_or_default(&core, params.model)?;
    check_context_size(params.context_size)?;
    let config = core.config();
    let started = Instant::now();
    let info = describe_again(&core, &model).await?;
    let window = window_of(&core, Some(&model), params.context_size);
    let report = core.models.warm(&info, window.supported, config.ollama.keep_alive).await?;
    let requested = report.window.requested;
    let smaller = report.window.effective.filter(|effective| *effective < requested);
    core.speeds.note_effective(&model, smaller);
    let num_ctx = Some(requested);
    let prompts = CountedPrompts { model: model.clone(), think: None, tools: Vec::new(), num_ctx };
    drop(learned_counter(&core, &info, &prompts).await);
    let running = report.running.as_ref();
    Ok(ModelWarmResult {
        host: core.models.host_of(&model),
        model,
        context_size: requested,
        wanted_context: other_window(&window, requested),
        trained_context: report.window.trained,
        effective_context: report.window.effective,
        size_bytes: running.map(|running| running.size_bytes),
        size_vram_bytes: running.map(|running| running.size_vram_bytes),
        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        warnings: window_warning(&window, requested).into_iter().chain(report.warnings).collect(),
    })
}

/// Counts a text or a conversation (`model.countTokens`).
pub(crate) async fn count_tokens(
    core: Arc<Core>,
    params: ModelCountTokensParams,
) -> Result<ModelCountTokensResult> {
    let ModelCountTokensParams { model, text, mut messages, tools } = params;
    let model = model_or_default(&core, model)?;
    if text.is_some() == messages.is_some() {
        return Err(AppError::invalid("text", "give either a text or messages"));
    }
    if messages.is_none() && !tools.is_empty() {
        return Err(AppError::invalid("tools", "belong to messages"));
    }
    let counter = counter_for(&core, &model, messages.is_some(), &tools).await?;
    let name = model.clone();
    let counted = blocking(&core, move |core| {
        if !may_read_images(core, &name) {
            messages.iter_mut().flatten().for_each(|message| message.images.clear());
        }
        Ok(match (text, messages) {
            (Some(text), _) => {
                let tokens = u64::from(counter.count_text(&text));
                let kind = counter.kind_of_text(&text);
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
    let (tokens, count_kind, margin) = counted.await?;
    Ok(ModelCountTokensResult { model, tokens, count_kind, margin })
}

/// Returns the counter of a model, learned from the model server if it is not exact yet.
async fn counter_for(
    core: &Arc<Core>,
    model: &str,
    needs_template: bool,
    tools: &[Value],
) -> Result<Counter> {
    let mut prompts = CountedPrompts {
        model: model.to_owned(),
        think: None,
        tools: tools.to_vec(),
        num_ctx: None,
    };
    let info = match describe_soon(core, model).await {
        Some(info) => info,
        None => match known_counter(core, &prompts).await {
            known if known.has_vocabulary() => return Ok(known),
            known => match describe(core, model).await {
                Ok(info) => info,
                Err(error @ ModelError::NotFound { .. }) => return Err(error.into()),
                // The count is labeled as an estimate.
                Err(_) => return Ok(known),
            },
        },
    };
    let info = check_description(core, &info).await;
    let known = known_counter(core, &prompts).await;
    // A count that is only unchecked has nothing more to learn.
    let is_learned = if needs_template { known.has_template() } else { known.has_vocabulary() };
    if is_learned && core.counts.has_tokenizer(&info, model) {
        return Ok(known);
    }
    let ticket = core.models.queues().enter(model, Priority::Background);
    ticket.admitted().await;
    // Other servers count beside their answers, and a chat would wait for the place.
    let _place = (info.counting == CountingSource::Ollama).then_some(ticket);
    if needs_template {
        prompts.num_ctx = Some(choose_window(core, model, None).await);
    }
    Ok(learned_counter(core, &info, &prompts).await.unwrap_or(known))
}

/// Returns the window that a call asked for, if another one was requested.
fn other_window(window: &ContextWindow, requested: u32) -> Option<u32> {
    let is_asked = window.origin == WindowOrigin::Caller;
    (is_asked && window.wanted != requested).then_some(window.wanted)
}

/// Returns why another window was requested than the call asked for.
fn window_warning(window: &ContextWindow, requested: u32) -> Option<String> {
    let wanted = other_window(window, requested)?;
    let reason = match (window.trained, requested > wanted) {
        (Some(trained), false) if trained == requested => "the model was trained for no more",
        (_, false) => "the model supports no other",
        (_, true) if window.supported > wanted => "the model needs no less",
        (_, true) => "a larger window is in force for the model",
    };
    Some(format!("the window has {requested} tokens instead of {wanted}: {reason}"))
}

/// Chooses the window that all requests to a model name, of at least `size` tokens, by default those of a session that
/// names none, as far as the model supports it.
pub(super) async fn choose_window(core: &Core, model: &str, size: Option<u32>) -> u32 {
    let wanted = window_of(core, Some(model), size).size;
    match core.models.windows().current(model) {
        Some(current) if current >= wanted => current,
        _ => {
            let running = core.models.in_memory(model).await;
            let loaded = running.and_then(|running| running.effective_context);
            core.models.windows().choose(model, wanted, loaded)
        }
    }
}

/// Returns the model that a call names, else the configured one.
///
/// **Errors**: `Invalid` without either, or for a text that is no model name.
pub(super) fn model_or_default(core: &Core, model: Option<String>) -> Result<String> {
    let model = core.model_or_default(model);
    match model {
        None => Err(AppError::invalid("model", "name a model, or set models.default")),
        Some(model) if model.trim().is_empty() => Err(AppError::invalid("model", "is empty")),
        Some(model) if model.len() > MAX_NAME_BYTES || model.chars().any(char::is_control) => {
            Err(AppError::invalid("model", "is not a model name"))
        }
        Some(model) => Ok(model),
    }
}

/// Returns a listed model as clients see it, without its server and its state.
fn summary(listed: ListedModel) -> ModelSummary {
    ModelSummary {
        server: None,
        loaded: None,
        window: listed.served_context,
        model: listed.model,
        digest: listed.digest,
        size_bytes: listed.size_bytes,
        modified_at: listed.modified_at,
        family: listed.details.family,
        parameter_size: listed.details.parameter_size,
        quantization: listed.details.quantization,
        trained_context: listed.details.trained_context,
        capabilities: listed.capabilities,
        remote_host: listed.remote_host,
        count_difference: None,
    }
}

fn details(info: &ModelInfo, requested: Option<u32>, window: ContextWindow) -> ModelDetails {
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
        modelfile_context: info.modelfile_context,
        default_context: Some(window.size),
        default_context_from: Some(match window.origin {
            WindowOrigin::Config => DefaultWindowSource::Config,
            WindowOrigin::Modelfile => DefaultWindowSource::Modelfile,
            WindowOrigin::Server => DefaultWindowSource::Server,
            WindowOrigin::Caller | WindowOrigin::Default => DefaultWindowSource::Default,
        }),
        context_size: requested,
        context_bytes_per_token: info.geometry.map(|geometry| geometry.bytes_per_token()),
        capabilities: info.capabilities,
        system: info.system,
        hidden_messages: info.n_hidden_messages,
        template: info.template,
        remote_host: info.remote_host,
    }
}

fn running_summary(running: RunningModel, geometry: Option<KvGeometry>) -> RunningModelSummary {
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
