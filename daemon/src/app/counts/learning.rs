//! Learning a model's vocabulary and template from the model server.
//!
//! Nothing here is an error of its caller: who cannot learn counts by what there is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Counts, Known, MAX_TEMPLATES, Variant, weights};
use crate::app::{AppError, Core, blocking};
use crate::model::{
    CallPhase, ChatRequest, ModelError, ModelInfo, Sampling, ThinkMode, canonical_name,
};
use crate::tokens::{CachedTokenizer, Counter, Template, Tokenizer, Vocabulary, learn, probes};

/// What is to be counted.
#[derive(Clone)]
pub(in crate::app) struct Purpose {
    /// The model.
    pub model: String,
    /// How it thinks.
    pub think: Option<ThinkMode>,
    /// The tools that are sent along.
    pub tools: Vec<Value>,
    /// The window that every request to the model names; absent: only the vocabulary is wanted, for which the model
    /// need not be loaded.
    pub num_ctx: Option<u32>,
}

/// How long a model that has rendered one conversation may take for the next one, which is a matter of milliseconds.
const RENDER_LIMIT: Duration = Duration::from_secs(10);

/// The counter for a purpose; asks the model server for what is not known yet.
///
/// **Errors**: only where the server was silent for as long as may be waited for an answer: asking it for one would
/// wait as long again.
///
/// **Cancel safety**: what was learned so far stays.
pub(in crate::app) async fn prepare(
    core: &Arc<Core>,
    info: &ModelInfo,
    purpose: &Purpose,
) -> Result<Counter, ModelError> {
    let before = known(core, purpose).await;
    if info.remote_host.is_some() {
        return Ok(before);
    }
    let has_vocabulary = core.counts.has_vocabulary(info, &purpose.model);
    if !has_vocabulary && learn_vocabulary(core, info, purpose).await.is_none() {
        return Ok(before);
    }
    if let Some(num_ctx) = purpose.num_ctx {
        let variant = Variant::new(purpose.think, &purpose.tools);
        learn_template(core, info, purpose, num_ctx, &variant.without_tools(), &[]).await?;
        if !purpose.tools.is_empty() {
            learn_template(core, info, purpose, num_ctx, &variant, &purpose.tools).await?;
        }
        let model = purpose.model.clone();
        let noted = blocking(core, move |core| {
            core.counts.note_think(&model, &variant.think);
            Ok(())
        });
        drop(noted.await);
    }
    Ok(known(core, purpose).await)
}

/// What is known already.
pub(in crate::app) async fn known(core: &Arc<Core>, purpose: &Purpose) -> Counter {
    let purpose = purpose.clone();
    let loaded = blocking(core, move |core| {
        let think = purpose.num_ctx.map(|_| purpose.think);
        Ok(core.counts.load(Some(&purpose.model), think, &purpose.tools))
    });
    loaded.await.unwrap_or(Counter::ESTIMATE)
}

/// Tokens of the prompt that the server makes of a request; `None` where it does not tell.
pub(in crate::app) async fn rendered(core: &Arc<Core>, request: &ChatRequest) -> Option<u64> {
    let prompt = core.models.backend().ok()?.render(request).await.ok()??;
    let model = request.model.clone();
    let counted = blocking(core, move |core| {
        Ok(core.counts.engine(&model).map(|engine| u64::from(engine.count_prompt(&prompt))))
    });
    counted.await.ok()?
}

/// A template gave another count than the server: it is not used again.
pub(in crate::app) async fn distrust(core: &Arc<Core>, request: &ChatRequest) {
    let (model, think, tools) = (request.model.clone(), request.think, request.tools.clone());
    let done = blocking(core, move |core| {
        core.counts.distrust(&model, think, &tools);
        Ok(())
    });
    drop(done.await);
}

async fn learn_vocabulary(core: &Arc<Core>, info: &ModelInfo, purpose: &Purpose) -> Option<()> {
    let model = &purpose.model;
    if !core.counts.may_try(model) {
        return None;
    }
    if learn_from_file(core, info, model).await {
        return Some(());
    }
    let asked = async { core.models.backend()?.vocabulary(model).await };
    let json = match asked.await {
        Ok(json) => json,
        Err(error) => return core.counts.failed(model, &error),
    };
    let (name, digest) = (model.clone(), info.digest.clone());
    let learned = blocking(core, move |core| {
        let learned = Vocabulary::from_show(&json).map_err(|error| error.to_string());
        let learned = learned.and_then(|vocabulary| {
            let tokenizer = Tokenizer::new(&vocabulary).map_err(|error| error.to_string())?;
            core.counts.take_vocabulary(&name, digest, &vocabulary, tokenizer);
            Ok(())
        });
        Ok::<_, AppError>(learned)
    });
    match learned.await {
        Ok(Ok(())) => Some(()),
        Ok(Err(error)) => core.counts.failed(model, &error),
        Err(error) => core.counts.failed(model, &error),
    }
}

/// Takes a vocabulary from the file of the model's weights, where that is on this machine: it is read in a moment, and
/// alone has the model's name, by which one engine's rules are told apart.
async fn learn_from_file(core: &Arc<Core>, info: &ModelInfo, model: &str) -> bool {
    let Some(named) = info.model_path.clone() else { return false };
    let (name, digest) = (model.to_owned(), info.digest.clone());
    let learned = blocking(core, move |core| {
        let found = weights::vocabulary(&named, &core.config().ollama.models_dirs);
        let Some((vocabulary, tokenizer)) = found else { return Ok(false) };
        core.counts.take_vocabulary(&name, digest, &vocabulary, tokenizer);
        Ok(true)
    });
    learned.await.unwrap_or(false)
}

/// Learns a template with some tools unless it is known.
async fn learn_template(
    core: &Arc<Core>,
    info: &ModelInfo,
    purpose: &Purpose,
    num_ctx: u32,
    variant: &Variant,
    tools: &[Value],
) -> Result<(), ModelError> {
    let Some(engine) = core.counts.engine_without(&purpose.model, variant) else { return Ok(()) };
    let tried = format!("{} {}", purpose.model, variant.key());
    if !core.counts.may_try(&tried) {
        return Ok(());
    }
    let with_calls = info.can("tools") != Some(false);
    let mut prompts = Vec::new();
    for messages in probes(with_calls) {
        let request = ChatRequest {
            model: purpose.model.clone(),
            messages,
            tools: tools.to_vec(),
            num_ctx,
            num_predict: None,
            sampling: Sampling::default(),
            think: purpose.think,
            format: None,
            keep_alive: core.config().ollama.keep_alive,
        };
        // The first one may load the model.
        let limit = if prompts.is_empty() { Duration::MAX } else { RENDER_LIMIT };
        let rendered = async { core.models.backend()?.render(&request).await };
        let Ok(rendered) = tokio::time::timeout(limit, rendered).await else {
            core.counts.failed(&tried, &"the model server takes too long to render");
            return Ok(());
        };
        match rendered {
            Ok(Some(prompt)) => prompts.push(Some(prompt)),
            Ok(None) => {
                core.counts.failed(&tried, &"the model server does not render");
                return Ok(());
            }
            // A template may refuse one conversation and take the next.
            Err(ModelError::Refused { .. } | ModelError::Failed { .. }) => prompts.push(None),
            Err(error) => {
                core.counts.failed(&tried, &error);
                let is_hung =
                    matches!(error, ModelError::Timeout { phase: CallPhase::FirstToken, .. });
                return if is_hung { Err(error) } else { Ok(()) };
            }
        }
    }
    let (model, key) = (purpose.model.clone(), variant.key());
    let kept = blocking(core, move |core| {
        let template = learn(engine.tokenizer(), &prompts);
        match template {
            Some(template) => core.counts.take_template(&model, &key, template),
            None => drop(core.counts.failed(&tried, &"the template is not understood")),
        }
        Ok(())
    });
    drop(kept.await);
    Ok(())
}

impl Counts {
    /// Whether the vocabulary of a model is in memory, and still that model's.
    fn has_vocabulary(&self, info: &ModelInfo, model: &str) -> bool {
        let state = self.state();
        let known = state.models.as_ref().and_then(|models| models.get(&canonical_name(model)));
        known.is_some_and(|known| {
            state.engines.contains_key(&known.vocabulary)
                && (info.digest.is_none() || known.digest == info.digest)
        })
    }

    fn take_vocabulary(
        &self,
        model: &str,
        digest: Option<String>,
        vocabulary: &Vocabulary,
        tokenizer: Tokenizer,
    ) {
        let name = tokenizer.identity().rsplit('-').next().unwrap_or_default().to_owned();
        self.files.store_vocabulary(&name, vocabulary);
        let engine = Arc::new(CachedTokenizer::new(tokenizer));
        let mut state = self.state();
        state.failed.remove(&name);
        state.engines.insert(name.clone(), (engine, Instant::now()));
        drop(state);
        // Another model of this name has another template too.
        self.change(model, |known| {
            *known = Known { digest, vocabulary: name, ..Known::default() };
        });
    }

    /// The vocabulary of a model, where it is in memory.
    fn engine(&self, model: &str) -> Option<Arc<CachedTokenizer>> {
        let state = self.state();
        let known = state.models.as_ref()?.get(&canonical_name(model))?;
        Some(Arc::clone(&state.engines.get(&known.vocabulary)?.0))
    }

    /// What a template is learned with, unless it is known.
    fn engine_without(&self, model: &str, variant: &Variant) -> Option<Arc<CachedTokenizer>> {
        let is_known = {
            let state = self.state();
            let known = state.models.as_ref()?.get(&canonical_name(model))?;
            known.templates.contains_key(&variant.key())
        };
        if is_known { None } else { self.engine(model) }
    }

    fn take_template(&self, model: &str, key: &str, template: Template) {
        self.change(model, |known| {
            if known.templates.len() >= MAX_TEMPLATES {
                // Tools change; what is used again is learned again.
                known.templates.retain(|key, _| key.ends_with('/'));
            }
            known.templates.insert(key.to_owned(), Some(Arc::new(template)));
            // What was counted without it is counted otherwise now.
            known.calibrations.remove(key);
        });
    }

    /// How the model thinks now, for builds that do not say.
    fn note_think(&self, model: &str, think: &str) {
        let differs = {
            let state = self.state();
            let known = state.models.as_ref().and_then(|models| models.get(&canonical_name(model)));
            known.is_some_and(|known| known.think != think)
        };
        if differs {
            self.change(model, |known| think.clone_into(&mut known.think));
        }
    }
}
