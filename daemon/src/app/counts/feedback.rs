//! The lessons of the tokens that the server read of a prompt: corrections of counts, the engine of the server, and doubts.
//!
//! Must not know how counters are found or stored.

use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::ContextMessage;
use ollm_protocol::event::MismatchCause;
use serde_json::Value;

use super::{CountMismatch, Counts, TemplateVariant, TokenizerKey, weights_digest};
use crate::model::{ChatRequest, ModelInfo, ThinkMode};
use crate::tokens::{Calibration, Counter, Engine, Fault, MessageShape, Tokenizer, is_plausible};

impl Counts {
    /// Learns from a prompt that was counted exactly, and that the server read as another number of tokens. Blocks.
    ///
    /// `prompt`: the prompt as the server renders it, if it does. Returns `None` if the server has read fewer tokens than
    /// any engine finds in the prompt, so that it has truncated it.
    pub(crate) fn contradict(
        &self,
        request: &ChatRequest,
        read: u64,
        prompt: Option<&str>,
    ) -> Option<CountMismatch> {
        let ChatRequest { model, messages, tools, think, .. } = request;
        let counter = self.load(Some(model), Some(*think), tools);
        let counted = counter.count_prompt(messages, tools);
        if prompt.is_some_and(|prompt| self.corrects_tokenizer(model, prompt, read)) {
            let cause = MismatchCause::Engine;
            return Some(CountMismatch { counted, cause, shapes: Vec::new() });
        }
        let tokens = prompt.and_then(|prompt| Some(self.tokenizer(model)?.count_prompt(prompt)));
        let agrees = tokens.is_some_and(|tokens| u64::from(tokens) == read);
        if !agrees && read < counted {
            return None;
        }
        let fault = counter.fault(messages, prompt);
        let key = TemplateVariant::new(*think, tools).key();
        self.change(model, |known| {
            // A template that writes plain messages differently has changed, and is learned again.
            if matches!(&fault, Fault::Rendered(shapes) if shapes.iter().any(MessageShape::is_plain)) {
                known.templates.remove(&key);
            }
            known.doubts = Arc::new(known.doubts.with(fault.shapes(), counted.abs_diff(read)));
        });
        let cause = match &fault {
            Fault::Rendered(_) => MismatchCause::Template,
            Fault::Tokenized(_) => MismatchCause::Tokens,
        };
        Some(CountMismatch { counted, cause, shapes: fault.shapes().to_vec() })
    }

    /// Excludes the engines that find another number than `read` of tokens in a prompt, unless all that the server may use
    /// do. Changes the tokenizer of a model that does to one that finds `read`: that of another engine, or of another name
    /// of the model if the name is a guess. Returns whether it was changed.
    fn corrects_tokenizer(&self, model: &str, prompt: &str, read: u64) -> bool {
        let Some(known) = self.state.lock().known(&self.names.key(model)).cloned() else {
            return false;
        };
        let current = known.tokenizer_key();
        let (digest, engine) = &current;
        let agrees = |key: &TokenizerKey| {
            let tokenizer = self.tokenizer_of(key);
            tokenizer.is_some_and(|tokenizer| u64::from(tokenizer.count_prompt(prompt)) == read)
        };
        let is_right = agrees(&current);
        if is_right && known.other_engines.is_empty() {
            return false;
        }
        let same = engine.of_same_vocabularies();
        let engines = known.other_engines.iter().chain(same).filter(|other| *other != engine);
        let others = engines.map(|other| (digest.clone(), *other));
        let found = if is_right {
            Some(current.clone())
        } else {
            let renamed = known.is_name_guessed.then(|| self.with_other_name(digest, *engine));
            renamed.flatten().into_iter().chain(others).find(agrees)
        };
        let Some((vocabulary, engine)) = found else { return false };
        let possible = |one: &Engine| *one != engine && agrees(&(vocabulary.clone(), *one));
        let other_engines = known.other_engines.iter().copied().filter(possible).collect();
        self.change(model, |known| {
            known.other_engines = other_engines;
            if is_right {
                return;
            }
            (known.vocabulary, known.engine) = (vocabulary, engine);
            known.is_name_guessed = false;
            // Their seams are divided where the other tokenizer counts both sides separately.
            known.templates.clear();
            known.calibrations.clear();
        });
        !is_right
    }

    /// Stores a vocabulary with another name of the model.
    fn with_other_name(&self, digest: &str, engine: Engine) -> Option<TokenizerKey> {
        let renamed = self.files.vocabulary(digest)?.with_other_name();
        let tokenizer = Tokenizer::new(&renamed, engine).ok()?;
        Some((self.add_tokenizers(&renamed, vec![(engine, tokenizer)]), engine))
    }

    /// Learns from the tokens that the server read of a request of a session that was not counted exactly. Returns the
    /// difference if it shows that replicas of the server count differently, which was not known. Blocks.
    pub(crate) fn calibrate(
        &self,
        id: SessionId,
        request: &ChatRequest,
        read: u64,
    ) -> Option<CountMismatch> {
        let ChatRequest { model, messages, tools, think, num_ctx, .. } = request;
        let counter = self.load(Some(model), Some(*think), tools).calibrated(None);
        let parts = counter.inexact_parts(messages, tools);
        let counted = counter.count_prompt(messages, tools);
        if !is_plausible(counted, read, *num_ctx, counter.has_vocabulary()) {
            return None;
        }
        if parts.is_empty() {
            self.observe(request, &counter, counted, read);
            return None;
        }
        let known_before = self.difference(model);
        let mut corrected = counted;
        let key = TemplateVariant::new(*think, tools).key();
        self.change(model, |known| {
            // The vocabulary could not be read this time, and corrections of estimates do not apply to it.
            if known.vocabulary.is_empty() == counter.has_vocabulary() {
                return;
            }
            let before = known.calibrations.get(&key).cloned().unwrap_or_default();
            let newest = Some((key.clone(), id));
            let now = before.with_turn(parts, counted, read, known.observed == newest);
            known.observed = newest;
            corrected = now.corrected(&parts, counted);
            known.set_calibration(key, now);
        });
        let is_new = known_before.is_none() && self.difference(model).is_some();
        let (cause, shapes) = (MismatchCause::Replicas, Vec::new());
        is_new.then_some(CountMismatch { counted: corrected, cause, shapes })
    }

    /// Returns the tokens by which the counts of a model jump, if replicas of its server count differently, as far as the
    /// list of models was read.
    pub(crate) fn difference(&self, model: &str) -> Option<u64> {
        let state = self.state.lock();
        let known = state.known(&self.names.key(model))?;
        known.calibrations.values().filter_map(|one| one.difference()).max()
    }

    /// Calibrates the prompts that no template covers by conversations as the server renders them, unless a count of the
    /// server did before. So the margin of the first call is already that of this template and these tools. Blocks.
    pub(crate) fn calibrate_by_rendered(
        &self,
        info: &ModelInfo,
        model: &str,
        think: Option<ThinkMode>,
        tools: &[Value],
        rendered: &[(Vec<ContextMessage>, Option<String>)],
    ) {
        let Some(tokenizer) = self.tokenizer(model) else { return };
        let counted = rendered.iter().filter_map(|(messages, prompt)| {
            Some((messages.clone(), u64::from(tokenizer.count_prompt(prompt.as_ref()?))))
        });
        self.calibrate_by_counted(info, model, think, tools, &counted.collect::<Vec<_>>());
    }

    /// The same by conversations that the server counted for the model that `info` describes. A count that cannot be that
    /// of its conversation is left out.
    pub(crate) fn calibrate_by_counted(
        &self,
        info: &ModelInfo,
        model: &str,
        think: Option<ThinkMode>,
        tools: &[Value],
        counted: &[(Vec<ContextMessage>, u64)],
    ) {
        let counter = self.load(Some(model), Some(think), tools).calibrated(None);
        let observed = counted.iter().filter_map(|(messages, read)| {
            let parts = counter.inexact_parts(messages, tools);
            let own = counter.count_prompt(messages, tools);
            // A template may leave out the tools, which are counted here. No window truncates what is only counted.
            let is_usable = !parts.is_empty() && is_plausible(own, *read, u32::MAX, false);
            is_usable.then_some((parts, own, *read))
        });
        let observed: Vec<_> = observed.collect();
        let key = TemplateVariant::new(think, tools).key();
        if observed.is_empty() {
            return;
        }
        let digest = info.digest.as_deref().map(weights_digest);
        self.change(model, |known| {
            let is_same = |known: &str| digest.is_none_or(|digest| digest == known);
            if !known.digest.as_deref().is_none_or(is_same) {
                return;
            }
            known.digest = known.digest.take().or(digest.map(str::to_owned));
            let before = known.calibrations.get(&key).cloned().unwrap_or_default();
            if !before.is_settled() {
                let all = observed.into_iter();
                let first = all.fold(Calibration::default(), |sum, (parts, counted, read)| {
                    sum.with(parts, counted, read)
                });
                known.set_calibration(key, first.followed_by(&before));
            }
        });
    }

    /// Learns from a prompt whose count was in doubt. Blocks.
    fn observe(&self, request: &ChatRequest, counter: &Counter, counted: u64, read: u64) {
        let ChatRequest { model, messages, .. } = request;
        let prompt = counter.prompt(messages);
        if prompt.is_some_and(|prompt| self.corrects_tokenizer(model, &prompt, read)) {
            return;
        }
        let shapes = counter.shapes(messages);
        self.change(model, |known| {
            known.is_name_guessed &= counted != read;
            known.doubts = Arc::new(known.doubts.observed(&shapes, counted.abs_diff(read)));
        });
    }
}
