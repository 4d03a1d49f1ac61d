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
use crate::app::counts::{
    CountMismatch, CountedPrompts, LearnedVocabulary, LessonSubject, TemplateVariant,
};
use crate::app::error::Result;
use crate::app::models::gate::backend_for;
use crate::app::models::lessons::{Pace, calibrate_by_server, is_current, learn_later, subject_of};
use crate::app::models::window::describe_again;
use crate::error_chain::with_sources;
use crate::fsutil;
use crate::model::{
    CallPhase, ChatRequest, CountingSource, ListedDigest, ModelError, ModelInfo, Sampling,
    ThinkMode, Version,
};
use crate::tokens::{Counter, Engine, Vocabulary, learn, probes};

/// The longest wait for the list of models. A server on this machine needs a millisecond.
pub(crate) const LIST_WAIT: Duration = Duration::from_millis(200);
/// The longest wait of a turn for the lesson of a model whose weights are on this machine. Its server renders all probes
/// in some 100 ms, also beside an answer; a hanging one delays a chat by this time.
const LOCAL_LESSON_WAIT: Duration = Duration::from_secs(2);
/// The time for rendering a further conversation, which takes milliseconds after the first one.
pub(super) const RENDER_LIMIT: Duration = Duration::from_secs(10);
/// The most bytes that are read of a file of weights; the largest known header has some 30 MB.
const MAX_HEADER_BYTES: u64 = 128 << 20;
/// A text that is compared, and what another one has between two of it: vocabularies divide it in different ways.
const SHORT_TEXT: &str = "Hello.";
const DIFFICULT_TEXT: &str =
    " Twelve naïve foxes jump over 1234567 bridges; fn main() { print!(\"{x:?}\") } 東京 überall ";
/// The beginning of the names of blobs; 64 hexadecimal digits follow.
const BLOB_PREFIX: &str = "sha256-";

/// Returns the description of a model that the server has now: the given one if the server lists its digest, else a new
/// one. Counts for the model are exact from then on if they were learned for that digest.
///
/// A server that does not respond at once leaves the description as it is, and no count is called exact. Without a
/// server, its last list counts.
pub(crate) async fn check_description(core: &Arc<Core>, info: &Arc<ModelInfo>) -> Arc<ModelInfo> {
    let listed = core.models.listed_digest(&info.model, LIST_WAIT).await;
    check_listed(core, info, listed).await
}

/// Returns the description of the model that the server lists: the given one, or a new one if it is another model.
///
/// `listed`: the listed digest; `None` if the server cannot be reached.
pub(crate) async fn check_listed(
    core: &Arc<Core>,
    info: &Arc<ModelInfo>,
    listed: Option<ListedDigest>,
) -> Arc<ModelInfo> {
    let Some(listed) = listed else { return Arc::clone(info) };
    let is_same = listed == ListedDigest::Unknown || listed.is(info.digest.as_deref());
    core.counts.note_listed(&info.model, listed);
    if is_same {
        return Arc::clone(info);
    }
    tracing::info!(model = info.model, "the model was replaced by another one of its name");
    describe_again(core, &info.model).await.unwrap_or_else(|_| Arc::clone(info))
}

/// Returns the counter for the prompts of a turn or a build. What only Ollama teaches is learned first, as its chat would
/// wait for the model as long, and so is a model whose weights are on this machine, if that is done soon. What another
/// server counts is learned in the pauses, and until then counts are estimates.
///
/// **Errors**: as [`learned_counter`].
pub(crate) async fn counter_in_turn(
    core: &Arc<Core>,
    info: &Arc<ModelInfo>,
    prompts: &CountedPrompts,
) -> Result<Counter, ModelError> {
    if info.counting == CountingSource::Ollama {
        return learned_counter(core, info, prompts).await;
    }
    let learned = match has_weights_here(info) {
        // What is not learned by then is learned in the pauses; a server that fails fails the chat as well.
        true => {
            let learned = learned_counter(core, info, prompts);
            tokio::time::timeout(LOCAL_LESSON_WAIT, learned).await.ok()
        }
        false => None,
    };
    let known = match learned {
        Some(Ok(known)) => known,
        _ => known_counter(core, prompts).await,
    };
    learn_later(core, info, prompts, Vec::new());
    Ok(known)
}

/// Returns whether the server of a model is on this machine and reads its weights from a file that is here.
fn has_weights_here(info: &ModelInfo) -> bool {
    matches!(&info.counting, CountingSource::Weights(path) if fsutil::is_linked_file(path))
}

/// Returns the counter for some prompts; first learns the vocabulary and the templates that are missing.
///
/// **Errors**: only if the server was silent for as long as an answer may take; a chat would then wait as long again.
/// **Cancel safety**: everything that was learned before stays.
pub(crate) async fn learned_counter(
    core: &Arc<Core>,
    info: &Arc<ModelInfo>,
    prompts: &CountedPrompts,
) -> Result<Counter, ModelError> {
    if let Some(subject) = subject_of(core, info, &prompts.model) {
        learn_at(core, &subject, prompts, Pace::AtOnce).await?;
    }
    Ok(known_counter(core, prompts).await)
}

/// Learns the vocabulary and the templates that are missing for some prompts.
pub(super) async fn learn_at(
    core: &Arc<Core>,
    subject: &LessonSubject,
    prompts: &CountedPrompts,
    pace: Pace,
) -> Result<(), ModelError> {
    known_counter(core, prompts).await;
    if subject.info.remote_host.is_some() || !is_current(core, subject, &prompts.model) {
        return Ok(());
    }
    let has_tokenizer = core.counts.has_tokenizer(&subject.info, &prompts.model);
    if !has_tokenizer && !learn_vocabulary(core, subject, prompts, pace).await {
        calibrate_by_server(core, subject, prompts, pace).await;
        return Ok(());
    }
    if prompts.num_ctx.is_some() {
        let variant = TemplateVariant::new(prompts.think, &prompts.tools);
        learn_template(core, subject, prompts, &variant.without_tools(), pace).await?;
        if !prompts.tools.is_empty() {
            learn_template(core, subject, prompts, &variant, pace).await?;
        }
        let model = prompts.model.clone();
        in_background(core, move |core| core.counts.store_think(&model, variant.think())).await;
        if !known_counter(core, prompts).await.has_template() {
            calibrate_by_server(core, subject, prompts, pace).await;
        }
    }
    Ok(())
}

/// Returns the request for a conversation that is only rendered or counted.
pub(super) fn probe(
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

/// Calibrates the counter of a request that could not be counted exactly by the tokens that the server read of it. Returns
/// the difference if it shows that replicas of the server count differently.
pub(crate) async fn calibrate(
    core: &Arc<Core>,
    id: SessionId,
    request: &ChatRequest,
    read: u64,
) -> Option<CountMismatch> {
    let has_images = request.messages.iter().any(|message| !message.images.is_empty());
    // With a given format, a model that thinks answers in two passes, and the server reports only one of them.
    let has_passes = request.format.is_some() && request.think != Some(ThinkMode::Off);
    if has_images || has_passes {
        return None;
    }
    let request = request.clone();
    blocking(core, move |core| Ok(core.counts.calibrate(id, &request, read))).await.ok()?
}

/// Runs work that blocks on the disk and reports its errors itself.
pub(super) async fn in_background(core: &Arc<Core>, work: impl FnOnce(&Core) + Send + 'static) {
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
async fn learn_vocabulary(
    core: &Arc<Core>,
    subject: &LessonSubject,
    prompts: &CountedPrompts,
    pace: Pace,
) -> bool {
    let (model, info) = (prompts.model.as_str(), &subject.info);
    if !core.counts.may_try(&subject.key) {
        return false;
    }
    let learned = match &info.counting {
        CountingSource::Ollama => vocabulary_of_ollama(core, subject, model).await,
        CountingSource::Weights(path) => {
            let path = path.clone();
            let read = blocking(core, move |_| Ok(read_served_weights(&path))).await;
            compared(core, subject, prompts, read, pace).await
        }
        CountingSource::Configured(path) => {
            let path = path.clone();
            let read = blocking(core, move |_| Ok(read_configured(&path))).await;
            compared(core, subject, prompts, read, pace).await
        }
        CountingSource::Server | CountingSource::Answers => return false,
    };
    match learned {
        Ok(learned) => {
            let (subject, name) = (subject.clone(), model.to_owned());
            in_background(core, move |core| {
                // A lesson and a call may learn at the same time, and what the other one learned with it stays.
                if is_current(core, &subject, &name)
                    && !core.counts.has_tokenizer(&subject.info, &name)
                {
                    core.counts.store_vocabulary(&subject.info, &name, learned);
                }
            })
            .await;
            core.counts.has_tokenizer(info, model)
        }
        Err(LearningError::Server(error)) => {
            core.counts.note_server_failure(&subject.key, &error);
            false
        }
        Err(LearningError::Unusable(problem)) => {
            core.counts.note_failure(&subject.key, &problem);
            false
        }
    }
}

/// Returns a vocabulary from a file that the server did not write, if the server counts as it does, or does not count: the
/// file may be that of another model. Two conversations are compared, so that the template does not matter.
async fn compared(
    core: &Arc<Core>,
    subject: &LessonSubject,
    prompts: &CountedPrompts,
    read: Result<Result<LearnedVocabulary, String>>,
    pace: Pace,
) -> Result<LearnedVocabulary, LearningError> {
    let learned = read.unwrap_or_else(|error| Err(error.to_string()));
    let learned = learned.map_err(LearningError::Unusable)?;
    let long = format!("{SHORT_TEXT}{DIFFICULT_TEXT}{SHORT_TEXT}");
    let mut read = Vec::new();
    for text in [SHORT_TEXT, &long] {
        pace.wait(core, &prompts.model).await;
        let messages = vec![ContextMessage::text(Role::User, text)];
        let request = probe(core, prompts, prompts.num_ctx.unwrap_or_default(), messages, &[]);
        match tokio::time::timeout(RENDER_LIMIT, subject.backend.count(&request)).await {
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
    subject: &LessonSubject,
    model: &str,
) -> Result<LearnedVocabulary, LearningError> {
    let info = &subject.info;
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
        _ => vocabulary_of_server(core, subject, model, engines).await,
    }
}

/// Returns the engines that the server may use for a model, the usual one first; none if its rules are not known.
fn engines_of(info: &ModelInfo) -> Vec<Engine> {
    let release = info.server_version.as_ref().and_then(Version::release);
    let architecture = info.architecture.as_deref().unwrap_or_default();
    Engine::of_ollama(release, info.lists_no_capabilities, architecture, info.has_projector)
}

/// The reason why the server's description of a model teaches nothing.
pub(super) enum LearningError {
    Server(ModelError),
    /// The vocabulary cannot be used; a text for the log.
    Unusable(String),
}

/// Requests the vocabulary of a model from the server.
async fn vocabulary_of_server(
    core: &Arc<Core>,
    subject: &LessonSubject,
    model: &str,
    engines: Arc<[Engine]>,
) -> Result<LearnedVocabulary, LearningError> {
    let requested = subject.backend.vocabulary(model).await;
    let Some(json) = requested.map_err(LearningError::Server)? else {
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

/// Learns the template of a variant of some prompts unless it is known.
async fn learn_template(
    core: &Arc<Core>,
    subject: &LessonSubject,
    prompts: &CountedPrompts,
    variant: &TemplateVariant,
    pace: Pace,
) -> Result<(), ModelError> {
    let Some(tokenizer) = core.counts.tokenizer_for_learning(&prompts.model, variant) else {
        return Ok(());
    };
    let (attempt, key) = (format!("{} {}", subject.key, variant.key()), variant.key());
    if !core.counts.may_try(&attempt) {
        return Ok(());
    }
    let tools = if variant.has_tools() { prompts.tools.clone() } else { Vec::new() };
    let prompts = CountedPrompts { tools, ..prompts.clone() };
    let probes = probes(subject.info.can("tools") != Some(false));
    let rendered = match render_probes(core, subject, &prompts, &probes, pace).await {
        Ok(rendered) => rendered,
        Err(LearningError::Unusable(problem)) => {
            core.counts.note_failure(&attempt, &problem);
            return Ok(());
        }
        Err(LearningError::Server(error)) => {
            core.counts.note_server_failure(&attempt, &error);
            let is_hung = matches!(error, ModelError::Timeout { phase: CallPhase::FirstToken, .. });
            return if is_hung { Err(error) } else { Ok(()) };
        }
    };
    let subject = subject.clone();
    in_background(core, move |core| {
        let CountedPrompts { model, think, tools, .. } = &prompts;
        if !is_current(core, &subject, model) {
            return;
        }
        match learn(tokenizer.tokenizer(), &rendered) {
            Some(template) => core.counts.store_template(model, &key, template),
            None => core.counts.note_failure(&attempt, &"the template is not understood"),
        }
        let rendered: Vec<_> = probes.into_iter().zip(rendered).collect();
        core.counts.calibrate_by_rendered(&subject.info, model, *think, tools, &rendered);
    })
    .await;
    Ok(())
}

/// Lets the server render conversations; `None` stands for one that it refuses.
async fn render_probes(
    core: &Arc<Core>,
    subject: &LessonSubject,
    prompts: &CountedPrompts,
    probes: &[Vec<ContextMessage>],
    pace: Pace,
) -> Result<Vec<Option<String>>, LearningError> {
    let (backend, num_ctx) = (&subject.backend, prompts.num_ctx.unwrap_or_default());
    let mut rendered = Vec::new();
    for messages in probes {
        pace.wait(core, &prompts.model).await;
        let request = probe(core, prompts, num_ctx, messages.clone(), &prompts.tools);
        // The first one may load the model.
        let limit = if rendered.is_empty() { Duration::MAX } else { RENDER_LIMIT };
        let answer = tokio::time::timeout(limit, backend.render(&request)).await;
        let answer = answer.unwrap_or_else(|_| {
            let (to, phase) = (backend.target(Some(&request.model)), CallPhase::Response);
            Err(ModelError::Timeout { to, phase, after: limit })
        });
        match answer {
            Ok(Some(prompt)) => rendered.push(Some(prompt)),
            Ok(None) => {
                let problem = "the model server does not render";
                return Err(LearningError::Unusable(problem.to_owned()));
            }
            // A template may refuse one conversation and accept the next.
            Err(ModelError::Refused { .. } | ModelError::Failed { .. }) => rendered.push(None),
            Err(error) => return Err(LearningError::Server(error)),
        }
    }
    Ok(rendered)
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
    let read = |path: PathBuf| {
        let read = read_gguf(&path, engines);
        read.inspect_err(|error| tracing::debug!("no vocabulary: {error}")).ok()
    };
    std::iter::once(path.to_owned()).chain(local).find_map(read)
}

fn is_blob_name(name: &str) -> bool {
    name.strip_prefix(BLOB_PREFIX).is_some_and(|digest| {
        digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Reads the vocabulary in the weights of a server on this machine. Blocks.
///
/// **Errors**: a fixed text, because the path is the server's own words.
fn read_served_weights(path: &Path) -> Result<LearnedVocabulary, String> {
    read_gguf(path, &[Engine::LlamaCpp]).map_err(|problem| {
        tracing::debug!("no vocabulary: {problem}");
        "the file of the weights has no vocabulary that is understood".to_owned()
    })
}

/// Reads the vocabulary in a file that the configuration names. Blocks.
///
/// **Errors**: a text that says what of the file is not understood.
pub(super) fn read_configured(path: &Path) -> Result<LearnedVocabulary, String> {
    let mut magic = [0; 4];
    open(path)?.read_exact(&mut magic).map_err(|error| failed(path, &error))?;
    if &magic == b"GGUF" {
        return read_gguf(path, &[Engine::LlamaCpp]);
    }
    let mut json = Vec::new();
    let read = open(path)?.take(MAX_HEADER_BYTES + 1).read_to_end(&mut json);
    read.map_err(|error| failed(path, &error))?;
    if json.len() as u64 > MAX_HEADER_BYTES {
        return Err(format!("{}: the file is too large", path.display()));
    }
    let vocabulary =
        Vocabulary::from_tokenizer_json(&json).map_err(|error| failed(path, &error))?;
    drop(json);
    let learned = LearnedVocabulary::new(vocabulary, &[Engine::HuggingFace], false);
    learned.map_err(|error| failed(path, &error))
}

fn read_gguf(path: &Path, engines: &[Engine]) -> Result<LearnedVocabulary, String> {
    let vocabulary = Vocabulary::from_gguf(open(path)?.take(MAX_HEADER_BYTES));
    let vocabulary = vocabulary.map_err(|error| failed(path, &error))?;
    LearnedVocabulary::new(vocabulary, engines, false).map_err(|error| failed(path, &error))
}

fn open(path: &Path) -> Result<std::fs::File, String> {
    if !path.is_absolute() {
        return Err(format!("{}: the path is not absolute", path.display()));
    }
    fsutil::open_linked(path).map_err(|error| with_sources(&error))
}

fn failed(path: &Path, error: &dyn std::error::Error) -> String {
    format!("{}: {}", path.display(), with_sources(error))
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
