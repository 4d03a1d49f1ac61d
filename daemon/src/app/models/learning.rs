//! Learning the vocabulary and the template of a model: from the file of its weights on this machine, or from the
//! model server.
//!
//! A failure here is not an error of the caller: the counts of a model that cannot be learned are estimates.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::SessionId;
use ollm_protocol::content::{ContextMessage, Role};
use serde_json::Value;

use crate::app::core::{Core, blocking};
use crate::app::counts::{CountMismatch, LearnedVocabulary, TemplateVariant};
use crate::app::error::Result;
use crate::app::models::gate::backend_for;
use crate::app::models::window::describe_again;
use crate::fsutil;
use crate::model::{
    CallPhase, ChatRequest, CountingSource, ListedDigest, ModelError, ModelInfo, Sampling,
    ThinkMode, Version,
};
use crate::tokens::{Counter, Engine, Vocabulary, learn, probes};

/// The longest wait for the list of models. A server on this machine needs a millisecond.
const LIST_WAIT: Duration = Duration::from_millis(200);
/// The time for rendering a further conversation, which takes milliseconds after the first one.
const RENDER_LIMIT: Duration = Duration::from_secs(10);
/// The most bytes that are read of a file of weights; the largest known header has some 30 MB.
const MAX_HEADER_BYTES: u64 = 128 << 20;
/// A text that is compared, and what another one has between two of it: vocabularies divide it in different ways.
const SHORT_TEXT: &str = "Hello.";
const DIFFICULT_TEXT: &str =
    " Twelve naïve foxes jump over 1234567 bridges; fn main() { print!(\"{x:?}\") } 東京 überall ";
/// The beginning of the names of blobs; 64 hexadecimal digits follow.
const BLOB_PREFIX: &str = "sha256-";

/// The prompts that a counter is for.
#[derive(Clone)]
pub(crate) struct CountedPrompts {
    pub(crate) model: String,
    pub(crate) think: Option<ThinkMode>,
    /// The tools that are sent along.
    pub(crate) tools: Vec<Value>,
    /// The window that every request to the model names; `None` if only texts are counted, for which the model need
    /// not be loaded.
    pub(crate) num_ctx: Option<u32>,
}

/// Returns the description of a model that the server has now: the given one if the server lists its digest, else a new
/// one. Counts for the model are exact from then on if they were learned for that digest.
///
/// A server that does not respond at once leaves the description as it is, and no count is called exact. Without a
/// server, its last list counts.
pub(crate) async fn check_description(core: &Arc<Core>, info: &Arc<ModelInfo>) -> Arc<ModelInfo> {
    let Some(listed) = core.models.listed_digest(&info.model, LIST_WAIT).await else {
        return Arc::clone(info);
    };
    let is_same = listed == ListedDigest::Unknown || listed.is(info.digest.as_deref());
    core.counts.note_listed(&info.model, listed);
    if is_same {
        return Arc::clone(info);
    }
    tracing::info!(model = info.model, "the model was replaced by another one of its name");
    describe_again(core, &info.model).await.unwrap_or_else(|_| Arc::clone(info))
}

/// Returns the counter for some prompts; first learns the vocabulary and the templates that are missing.
///
/// **Errors**: only if the server was silent for as long as an answer may take; a chat would then wait as long again.
/// **Cancel safety**: everything that was learned before stays.
pub(crate) async fn learned_counter(
    core: &Arc<Core>,
    info: &ModelInfo,
    prompts: &CountedPrompts,
) -> Result<Counter, ModelError> {
    let before = known_counter(core, prompts).await;
    if info.remote_host.is_some() {
        return Ok(before);
    }
    let has_tokenizer = core.counts.has_tokenizer(info, &prompts.model);
    if !has_tokenizer && !learn_vocabulary(core, info, prompts).await {
        calibrate_by_server(core, info, prompts).await;
        return Ok(known_counter(core, prompts).await);
    }
    if let Some(num_ctx) = prompts.num_ctx {
        let variant = TemplateVariant::new(prompts.think, &prompts.tools);
        learn_template(core, info, prompts, num_ctx, &variant.without_tools(), &[]).await?;
        if !prompts.tools.is_empty() {
            learn_template(core, info, prompts, num_ctx, &variant, &prompts.tools).await?;
        }
        let model = prompts.model.clone();
        in_background(core, move |core| core.counts.store_think(&model, variant.think())).await;
    }
    Ok(known_counter(core, prompts).await)
}

/// Calibrates the counter of some prompts by the server's own counts of conversations, once, so that the first call has the
/// margin of this model already.
async fn calibrate_by_server(core: &Arc<Core>, info: &ModelInfo, prompts: &CountedPrompts) {
    let CountedPrompts { model, think, tools, num_ctx } = prompts;
    let is_asked = matches!(info.counting, CountingSource::Server | CountingSource::Weights(_));
    let variant = TemplateVariant::new(*think, tools).key();
    let attempt = format!("{model} {variant} counts");
    let Some(num_ctx) = num_ctx.filter(|_| is_asked && core.counts.may_try(&attempt)) else {
        return;
    };
    if core.counts.is_calibrated(model, &variant) {
        return;
    }
    let mut counted = Vec::new();
    for messages in probes(info.can("tools") != Some(false)) {
        let request = probe(core, prompts, num_ctx, messages.clone(), tools);
        let count = async { core.models.backend_for(model)?.count(&request).await };
        match tokio::time::timeout(RENDER_LIMIT, count).await {
            Ok(Ok(Some(count))) => counted.push((messages, count)),
            Ok(Ok(None)) => {
                let reason = "the model server does not count";
                return core.counts.note_failure(&attempt, &reason);
            }
            // A template may refuse one conversation and accept the next.
            Ok(Err(ModelError::Refused { .. } | ModelError::Failed { .. })) => {}
            Ok(Err(error)) => return core.counts.note_server_failure(&attempt, &error),
            Err(_) => return core.counts.note_failure(&attempt, &"the model server is slow"),
        }
    }
    let prompts = prompts.clone();
    let calibrate = move |core: &Core| {
        let CountedPrompts { model, think, tools, .. } = &prompts;
        core.counts.calibrate_by_counted(model, *think, tools, &counted);
    };
    in_background(core, calibrate).await;
}

/// Returns the request for a conversation that is only rendered or counted.
fn probe(
    core: &Core,
    prompts: &CountedPrompts,
    num_ctx: u32,
    messages: Vec<ContextMessage>,
    tools: &[Value],
) -> ChatRequest {
    ChatRequest {
        model: prompts.model.clone(),
        messages,
        tools: tools.to_vec(),
        num_ctx,
        num_predict: None,
        sampling: Sampling::default(),
        think: prompts.think,
        format: None,
        logprobs: None,
        keep_alive: core.config().ollama.keep_alive,
        affinity: None,
    }
}

/// Returns the counter for some prompts from memory and disk.
pub(crate) async fn known_counter(core: &Arc<Core>, prompts: &CountedPrompts) -> Counter {
    let prompts = prompts.clone();
    let loaded = blocking(core, move |core| {
        let think = prompts.num_ctx.map(|_| prompts.think);
        Ok(core.counts.load(Some(&prompts.model), think, &prompts.tools))
    });
    loaded.await.unwrap_or(Counter::ESTIMATE)
}

/// Learns from a request that was counted exactly, and that the server read as `read` tokens; returns `None` if the
/// server truncated it.
pub(crate) async fn contradict(
    core: &Arc<Core>,
    id: SessionId,
    request: &ChatRequest,
    read: u64,
) -> Option<CountMismatch> {
    let rendered = async {
        let backend = backend_for(core, id, &request.model).await.ok()?;
        backend.render(request).await.ok()?
    };
    let (prompt, request) = (rendered.await, request.clone());
    let learned =
        blocking(core, move |core| Ok(core.counts.contradict(&request, read, prompt.as_deref())));
    learned.await.ok()?
}

/// Calibrates the counter of a request that could not be counted exactly by the tokens that the server read of it.
pub(crate) async fn calibrate(core: &Arc<Core>, request: &ChatRequest, read: u64) {
    let has_images = request.messages.iter().any(|message| !message.images.is_empty());
    // With a given format, a model that thinks answers in two passes, and the server reports only one of them.
    let has_passes = request.format.is_some() && request.think != Some(ThinkMode::Off);
    if has_images || has_passes {
        return;
    }
    let request = request.clone();
    in_background(core, move |core| core.counts.calibrate(&request, read)).await;
}

/// Runs work that blocks on the disk and reports its errors itself.
async fn in_background(core: &Arc<Core>, work: impl FnOnce(&Core) + Send + 'static) {
    let done = blocking(core, move |core| {
        work(core);
        Ok(())
    });
    drop(done.await);
}

/// Learns a vocabulary; returns whether it is in memory now.
///
/// The file of the weights is read in milliseconds and has the model's name, which some rules depend on; the server's
/// answer has not.
async fn learn_vocabulary(core: &Arc<Core>, info: &ModelInfo, prompts: &CountedPrompts) -> bool {
    let model = prompts.model.as_str();
    if !core.counts.may_try(model) {
        return false;
    }
    let learned = match &info.counting {
        CountingSource::Ollama => vocabulary_of_ollama(core, info, model).await,
        CountingSource::Weights(path) => {
            let path = path.clone();
            let read = blocking(core, move |_| Ok(read_gguf(&path, &[Engine::LlamaCpp]))).await;
            let unusable = "the file of the weights has no vocabulary that is understood";
            match read.ok().flatten() {
                Some(learned) => compared(core, prompts, learned).await,
                None => Err(LearningError::Unusable(unusable.to_owned())),
            }
        }
        CountingSource::Server | CountingSource::Answers => return false,
    };
    match learned {
        Ok(learned) => {
            let (info, model) = (info.clone(), model.to_owned());
            let store = move |core: &Core| core.counts.store_vocabulary(&info, &model, learned);
            in_background(core, store).await;
            true
        }
        Err(LearningError::Server(error)) => {
            core.counts.note_server_failure(model, &error);
            false
        }
        Err(LearningError::Unusable(problem)) => {
            core.counts.note_failure(model, &problem);
            false
        }
    }
}

/// Returns a vocabulary from a file that the server did not write, if the server counts as it does, or does not count: the
/// file may be that of another model. Two conversations are compared, so that the template does not matter.
async fn compared(
    core: &Arc<Core>,
    prompts: &CountedPrompts,
    learned: LearnedVocabulary,
) -> Result<LearnedVocabulary, LearningError> {
    let long = format!("{SHORT_TEXT}{DIFFICULT_TEXT}{SHORT_TEXT}");
    let mut read = Vec::new();
    for text in [SHORT_TEXT, &long] {
        let messages = vec![ContextMessage::text(Role::User, text)];
        let request = probe(core, prompts, prompts.num_ctx.unwrap_or_default(), messages, &[]);
        let count = async { core.models.backend_for(&prompts.model)?.count(&request).await };
        match tokio::time::timeout(RENDER_LIMIT, count).await {
            Ok(Ok(Some(count))) => read.push(count),
            Ok(Ok(None) | Err(ModelError::Refused { .. } | ModelError::Failed { .. })) => {
                return Ok(learned);
            }
            Ok(Err(error)) => return Err(LearningError::Server(error)),
            Err(_) => return Err(LearningError::Unusable("the model server is slow".to_owned())),
        }
    }
    let own = learned.count(&long).checked_sub(learned.count(SHORT_TEXT));
    if read[1].checked_sub(read[0]) == own {
        return Ok(learned);
    }
    let problem = "the model server does not count as the vocabulary in the file does";
    Err(LearningError::Unusable(problem.to_owned()))
}

/// Reads the vocabulary of a model of Ollama: the blob of its weights, else the server's description.
async fn vocabulary_of_ollama(
    core: &Arc<Core>,
    info: &ModelInfo,
    model: &str,
) -> Result<LearnedVocabulary, LearningError> {
    let engines: Arc<[Engine]> = engines_of(info).into();
    if engines.is_empty() {
        let problem = "the rules of the server's engine are unknown";
        return Err(LearningError::Unusable(problem.to_owned()));
    }
    let (path, possible) = (info.model_path.clone(), Arc::clone(&engines));
    let in_file = blocking(core, move |core| {
        let dirs = &core.config().ollama_models_dirs;
        Ok(path.and_then(|path| read_weights(&path, dirs, &possible)))
    });
    match in_file.await {
        Ok(Some(learned)) => Ok(learned),
        _ => vocabulary_of_server(core, model, engines).await,
    }
}

/// Returns the engines that the server may use for a model, the usual one first; none if its rules are not known.
fn engines_of(info: &ModelInfo) -> Vec<Engine> {
    let release = info.server_version.as_ref().and_then(Version::release);
    let architecture = info.architecture.as_deref().unwrap_or_default();
    Engine::of_ollama(release, info.lists_no_capabilities, architecture, info.has_projector)
}

/// The reason why the server's description of a model teaches nothing.
enum LearningError {
    Server(ModelError),
    /// The vocabulary cannot be used; a text for the log.
    Unusable(String),
}

/// Requests the vocabulary of a model from the server.
async fn vocabulary_of_server(
    core: &Arc<Core>,
    model: &str,
    engines: Arc<[Engine]>,
) -> Result<LearnedVocabulary, LearningError> {
    let requested = async { core.models.backend_for(model)?.vocabulary(model).await };
    let Some(json) = requested.await.map_err(LearningError::Server)? else {
        return Err(LearningError::Unusable("the server describes no vocabulary".to_owned()));
    };
    let parsed = blocking(core, move |_| {
        let vocabulary = Vocabulary::from_show(&json).map_err(|error| error.to_string());
        Ok(vocabulary.and_then(|vocabulary| {
            let is_name_guessed = vocabulary.needs_name();
            let vocabulary =
                if is_name_guessed { vocabulary.with_other_name() } else { vocabulary };
            let learned = LearnedVocabulary::new(vocabulary, &engines, is_name_guessed);
            learned.map_err(|error| error.to_string())
        }))
    });
    let parsed = parsed.await.unwrap_or_else(|error| Err(error.to_string()));
    parsed.map_err(LearningError::Unusable)
}

/// Learns a template with `tools` unless it is known.
async fn learn_template(
    core: &Arc<Core>,
    info: &ModelInfo,
    prompts: &CountedPrompts,
    num_ctx: u32,
    variant: &TemplateVariant,
    tools: &[Value],
) -> Result<(), ModelError> {
    let Some(tokenizer) = core.counts.tokenizer_for_learning(&prompts.model, variant) else {
        return Ok(());
    };
    let attempt = format!("{} {}", prompts.model, variant.key());
    if !core.counts.may_try(&attempt) {
        return Ok(());
    }
    let with_calls = info.can("tools") != Some(false);
    let probes = probes(with_calls);
    let mut rendered = Vec::new();
    for messages in &probes {
        let request = probe(core, prompts, num_ctx, messages.clone(), tools);
        // The first one may load the model.
        let limit = if rendered.is_empty() { Duration::MAX } else { RENDER_LIMIT };
        let answer = async {
            let backend = core.models.backend_for(&request.model)?;
            tokio::time::timeout(limit, backend.render(&request)).await.unwrap_or_else(|_| {
                let (to, phase) = (backend.target(Some(&request.model)), CallPhase::Response);
                Err(ModelError::Timeout { to, phase, after: limit })
            })
        };
        match answer.await {
            Ok(Some(prompt)) => rendered.push(Some(prompt)),
            Ok(None) => {
                core.counts.note_failure(&attempt, &"the model server does not render");
                return Ok(());
            }
            // A template may refuse one conversation and accept the next.
            Err(ModelError::Refused { .. } | ModelError::Failed { .. }) => rendered.push(None),
            Err(error) => {
                core.counts.note_server_failure(&attempt, &error);
                let is_hung =
                    matches!(error, ModelError::Timeout { phase: CallPhase::FirstToken, .. });
                return if is_hung { Err(error) } else { Ok(()) };
            }
        }
    }
    let (prompts, key) =
        (CountedPrompts { tools: tools.to_vec(), ..prompts.clone() }, variant.key());
    in_background(core, move |core| {
        let CountedPrompts { model, think, tools, .. } = &prompts;
        match learn(tokenizer.tokenizer(), &rendered) {
            Some(template) => core.counts.store_template(model, &key, template),
            None => core.counts.note_failure(&attempt, &"the template is not understood"),
        }
        let rendered: Vec<_> = probes.into_iter().zip(rendered).collect();
        core.counts.calibrate_by_rendered(model, *think, tools, &rendered);
    })
    .await;
    Ok(())
}

/// Reads the vocabulary in the file of weights that the server named, or in the blob of that name in `dirs`: a server
/// in a container names paths of its own. Blocks.
///
/// The server is not trusted here: only regular files with the name of a blob are opened, and no more than a header is
/// read.
fn read_weights(path: &str, dirs: &[PathBuf], engines: &[Engine]) -> Option<LearnedVocabulary> {
    let path = Path::new(path);
    let name = path.file_name()?.to_str().filter(|name| is_blob_name(name))?;
    let local = dirs.iter().map(|dir| dir.join("blobs").join(name));
    std::iter::once(path.to_owned()).chain(local).find_map(|path| read_gguf(&path, engines))
}

fn is_blob_name(name: &str) -> bool {
    name.strip_prefix(BLOB_PREFIX).is_some_and(|digest| {
        digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

fn read_gguf(path: &Path, engines: &[Engine]) -> Option<LearnedVocabulary> {
    if !path.is_absolute() {
        return None;
    }
    let log = |error: &dyn std::fmt::Display| {
        tracing::debug!("no vocabulary from {}: {error}", path.display());
    };
    let file = fsutil::open_regular(path).inspect_err(|error| log(error)).ok()?;
    let vocabulary = Vocabulary::from_gguf(file.take(MAX_HEADER_BYTES));
    let vocabulary = vocabulary.inspect_err(|error| log(error)).ok()?;
    let learned = LearnedVocabulary::new(vocabulary, engines, false);
    learned.inspect_err(|error| log(error)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_of_blobs_are_opened() {
        let digest = "0123456789abcdef".repeat(4);
        assert!(is_blob_name(&format!("sha256-{digest}")));
        assert!(!is_blob_name(&format!("sha256-{}", &digest[1..])));
        assert!(!is_blob_name(&format!("sha256-{}g", &digest[1..])));
        assert!(!is_blob_name("passwd"));
        assert!(read_weights("/etc/passwd", &[], &Engine::ALL).is_none());
        assert!(
            read_weights("relative", &[PathBuf::from("also/relative")], &Engine::ALL).is_none()
        );
    }
}
