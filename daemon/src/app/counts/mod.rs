//! The counters of all models: vocabulary and templates from memory or from `vocab/` in the home. FORMAT.md,
//! "Vocabularies", describes the files.
//!
//! Must not know the model server: `models/learning.rs` calls it and stores its results here.
//!
//! **Invariants**: counting never waits for the network, and recording not even for the disk; stored vocabularies and
//! templates outlive the model server and the daemon; a count is called exact only for the digest that the server listed
//! last, and only if all engines that the server may use find it.

mod feedback;
mod files;
mod served;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::event::MismatchCause;
use parking_lot::Mutex;
use serde_json::Value;

use self::files::{KnownModel, VocabularyFiles};
pub(crate) use self::served::{CountedPrompts, Lesson, LessonSubject, texts_attempt, texts_of};
use self::served::{DueLessons, TextsOfModel};
use crate::error_chain::with_sources;
use crate::model::{ListedDigest, ModelError, ModelInfo, ModelNames, ThinkMode};
use crate::tokens::{
    CachedTokenizer, Counter, Doubts, Engine, ExactCounter, MessageShape, Template, Tokenizer,
    TokenizerError, Vocabulary,
};

/// A vocabulary that is unused for this long is dropped: it takes tens of MB and is read again in milliseconds.
const IDLE: Duration = Duration::from_secs(180);
/// A model that could not be learned is not tried again for this long.
const RETRY_AFTER: Duration = Duration::from_secs(300);
/// The wait after the server ended or did not respond while a model was learned. It may be back at once; but if learning the
/// model is what ends it, each turn must not end it again.
const RETRY_LOST_AFTER: Duration = Duration::from_secs(30);
/// The most templates of a model: one for each set of tools and thinking mode.
const MAX_TEMPLATES: usize = 16;

/// The counters of all models.
pub(crate) struct Counts {
    files: VocabularyFiles,
    names: ModelNames,
    /// Held for lookups and changes, never while a file is read or written.
    state: Mutex<CountsState>,
    /// Held while a file is read, so that concurrent calls read a vocabulary once.
    loading: Mutex<()>,
    /// Held while the list of models is written, so that an older list never replaces a newer one.
    storing: Mutex<()>,
    /// The requests to learn models in the background.
    lessons: DueLessons,
}

#[derive(Default)]
struct CountsState {
    /// `None` before the list was to be read.
    models: Option<BTreeMap<String, KnownModel>>,
    /// Whether the list was read, or there is none that can be used.
    is_read: bool,
    /// The tokenizers in memory, and when they were last used.
    tokenizers: HashMap<TokenizerKey, (Arc<CachedTokenizer>, Instant)>,
    /// The digests that the server listed last, by full name of the model; in memory only.
    listed: HashMap<String, ListedDigest>,
    /// The texts that servers counted, by key of the model; in memory only.
    served: HashMap<String, TextsOfModel>,
    /// When learning a model or a template, or reading a vocabulary, may be tried again.
    failures: HashMap<String, Instant>,
}

/// Names a tokenizer: the digest of its vocabulary, and the engine.
type TokenizerKey = (String, Engine);

impl CountsState {
    /// Returns the properties of the model with a key.
    fn known(&self, key: &str) -> Option<&KnownModel> {
        self.models.as_ref()?.get(key)
    }

    fn tokenizer(&self, known: &KnownModel) -> Option<Arc<CachedTokenizer>> {
        Some(Arc::clone(&self.tokenizers.get(&known.tokenizer_key())?.0))
    }
}

/// A vocabulary that was read, with the tokenizers that engines have for it.
pub(crate) struct LearnedVocabulary {
    vocabulary: Vocabulary,
    /// The tokenizers of the engines that the server may use, the usual one first.
    tokenizers: Vec<(Engine, Tokenizer)>,
    /// Whether the model's name, which decides how the vocabulary is used, was guessed.
    is_name_guessed: bool,
}

impl LearnedVocabulary {
    /// Creates the tokenizers that engines have for a vocabulary.
    ///
    /// `engines`: those that the server may use, the usual one first.
    ///
    /// **Errors**: if the rules of the vocabulary are unknown.
    pub(crate) fn new(
        vocabulary: Vocabulary,
        engines: &[Engine],
        is_name_guessed: bool,
    ) -> Result<Self, TokenizerError> {
        let tokenizer = |engine: &Engine| Ok((*engine, Tokenizer::new(&vocabulary, *engine)?));
        let mut tokenizers = engines.iter().map(tokenizer).collect::<Result<Vec<_>, _>>()?;
        // The engine in Go refuses some vocabularies, which llama.cpp then runs.
        tokenizers.dedup_by_key(|(_, tokenizer)| tokenizer.identity());
        Ok(Self { vocabulary, tokenizers, is_name_guessed })
    }

    /// Counts the tokens of a text as the usual engine does.
    pub(crate) fn count(&self, text: &str) -> u64 {
        self.tokenizers.first().map_or(0, |(_, tokenizer)| u64::from(tokenizer.count(text)))
    }
}

/// The tokens by which a wrong name usually changes the count of a message: a line feed and a space prefix behind each of
/// three special tokens. A margin is twice as large.
const GUESSED_NAME_TOKENS: u64 = 6;

/// The tokens by which the count of a message is usually wrong if the model may have been replaced by another one of its
/// name, whose template is another one: a few tags and line breaks. A margin is twice as large.
const UNCHECKED_TOKENS: u64 = 6;
/// The most models whose listed digests are remembered, more than most servers have.
const MAX_LISTED: usize = 256;

/// A difference between an exact count and the server's.
#[derive(Debug)]
pub(crate) struct CountMismatch {
    pub(crate) counted: u64,
    pub(crate) cause: MismatchCause,
    /// The shapes of messages whose counts are in doubt from now on.
    pub(crate) shapes: Vec<MessageShape>,
}

/// Names a template of a model: its thinking mode and its tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TemplateVariant {
    think: String,
    tools: String,
}

/// The reason why there is no counter in memory.
enum MissingCounter {
    /// The list of models was not read.
    Models,
    /// The model is not in the list.
    Model,
    /// This tokenizer is not in memory.
    Tokenizer(TokenizerKey),
}

impl TemplateVariant {
    pub(crate) fn new(think: Option<ThinkMode>, tools: &[Value]) -> Self {
        Self { think: think_name(think).to_owned(), tools: tools_name(tools) }
    }

    pub(crate) fn without_tools(&self) -> Self {
        Self { think: self.think.clone(), tools: String::new() }
    }

    /// Returns the key of the variant in `models.json`.
    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.think, self.tools)
    }

    pub(crate) fn think(&self) -> &str {
        &self.think
    }

    pub(crate) const fn has_tools(&self) -> bool {
        !self.tools.is_empty()
    }
}

/// Returns the part of a digest that counts depend on: they do not on the window, which is behind a dot.
fn weights_digest(digest: &str) -> &str {
    digest.split_once('.').map_or(digest, |(weights, _)| weights)
}

/// Returns the version of the server that described a model.
fn server_of(info: &ModelInfo) -> Option<String> {
    let version = info.server_version.as_ref().map(ToString::to_string);
    match &info.tokenizer_stamp {
        None => version,
        Some(stamp) => {
            let stamp = blake3::hash(stamp.as_bytes()).to_hex();
            Some(format!("{}{VOCABULARY_MARK}{stamp}", version.unwrap_or_default()))
        }
    }
}

/// Precedes the digest of a configured vocabulary behind a server's version.
const VOCABULARY_MARK: &str = " with the vocabulary ";

const fn think_name(think: Option<ThinkMode>) -> &'static str {
    match think {
        None => "default",
        Some(ThinkMode::Off) => "off",
        Some(ThinkMode::On) => "on",
        Some(ThinkMode::Low) => "low",
        Some(ThinkMode::Medium) => "medium",
        Some(ThinkMode::High) => "high",
        Some(ThinkMode::Max) => "max",
    }
}

/// Returns a digest of tool definitions; empty without tools.
fn tools_name(tools: &[Value]) -> String {
    if tools.is_empty() {
        return String::new();
    }
    let json = Value::Array(tools.to_vec()).to_string();
    blake3::hash(json.as_bytes()).to_hex()[..16].to_owned()
}

impl Counts {
    /// Returns the counters stored in `dir`, which are read when they are needed.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            files: VocabularyFiles::new(dir),
            names: ModelNames::default(),
            state: Mutex::default(),
            loading: Mutex::default(),
            storing: Mutex::default(),
            lessons: DueLessons::default(),
        }
    }

    /// Replaces the names of models.
    pub(crate) fn named(self, names: ModelNames) -> Self {
        Self { names, ..self }
    }

    /// Returns the counter of a model from memory, and whether [`Counts::load`] may find a better one that no other
    /// call is loading.
    pub(crate) fn at_hand(&self, model: &str) -> (Counter, bool) {
        let may_load = match self.find(model, None, &[]) {
            Ok(counter) => return (counter, false),
            Err(MissingCounter::Models) => true,
            Err(MissingCounter::Model) => false,
            Err(MissingCounter::Tokenizer((digest, _))) => self.may_try(&digest),
        };
        (Counter::ESTIMATE, may_load && self.loading.try_lock().is_some())
    }

    /// Returns the counter of a model, read from the disk if necessary. Blocks.
    ///
    /// `think`: the thinking mode of the call; `None` for that of the last call.
    pub(crate) fn load(
        &self,
        model: Option<&str>,
        think: Option<Option<ThinkMode>>,
        tools: &[Value],
    ) -> Counter {
        let Some(model) = model else { return Counter::ESTIMATE };
        let think = think.map(think_name);
        let missing = match self.find(model, think, tools) {
            Ok(counter) => return counter,
            Err(MissingCounter::Model) if self.state.lock().is_read => return Counter::ESTIMATE,
            Err(missing) => missing,
        };
        let _one_reader = self.loading.lock();
        if !matches!(missing, MissingCounter::Tokenizer(_)) {
            self.read_models();
        }
        while let Err(MissingCounter::Tokenizer(key)) = self.find(model, think, tools)
            && self.may_try(&key.0)
            && self.read_tokenizer(key).is_some()
        {}
        self.find(model, think, tools).unwrap_or(Counter::ESTIMATE)
    }

    /// Reads the list of models unless it was read before; returns false if the system cannot read it. What was learned
    /// in the meantime stays. Blocks.
    pub(crate) fn read_models(&self) -> bool {
        if self.state.lock().is_read {
            return true;
        }
        let stored = self.files.models().inspect_err(|error| {
            tracing::warn!("properties of models are not stored: {}", with_sources(error));
        });
        let mut state = self.state.lock();
        state.is_read = stored.is_ok();
        let models = state.models.get_or_insert_default();
        for (name, known) in stored.unwrap_or_default() {
            models.entry(name).or_insert(known);
        }
        state.is_read
    }

    /// Returns a tokenizer from memory, or else from the disk. Blocks.
    fn tokenizer_of(&self, key: &TokenizerKey) -> Option<Arc<CachedTokenizer>> {
        let in_memory =
            self.state.lock().tokenizers.get(key).map(|(tokenizer, _)| Arc::clone(tokenizer));
        in_memory.or_else(|| self.read_tokenizer(key.clone()))
    }

    /// Reads a tokenizer from the disk. Blocks.
    fn read_tokenizer(&self, key: TokenizerKey) -> Option<Arc<CachedTokenizer>> {
        let (digest, engine) = &key;
        let Some(tokenizer) = self.files.tokenizer(digest, *engine) else {
            self.note_failure(digest, &"its vocabulary cannot be read from the disk");
            return None;
        };
        self.state.lock().tokenizers.insert(key, (Arc::clone(&tokenizer), Instant::now()));
        Some(tokenizer)
    }

    fn find(
        &self,
        model: &str,
        think: Option<&str>,
        tools: &[Value],
    ) -> Result<Counter, MissingCounter> {
        let mut state = self.state.lock();
        let name = self.names.key(model);
        let served = state.served(&name);
        let CountsState { models, tokenizers, listed, .. } = &mut *state;
        let known = models.as_ref().ok_or(MissingCounter::Models)?;
        let known = match (known.get(&name), served.is_some()) {
            (Some(known), _) => known,
            (None, true) => return Ok(Counter::ESTIMATE.with_served(served)),
            (None, false) => return Err(MissingCounter::Model),
        };
        let is_checked = known.is_checked(listed.get(&name));
        let think = think.unwrap_or(&known.think).to_owned();
        let variant = TemplateVariant { think, tools: tools_name(tools) };
        let calibration = known.calibrations.get(&variant.key()).cloned();
        if known.vocabulary.is_empty() {
            return Ok(Counter::ESTIMATE.calibrated(calibration).with_served(served));
        }
        let mut tokenizer = |key: TokenizerKey| {
            let (tokenizer, last_used) =
                tokenizers.get_mut(&key).ok_or(MissingCounter::Tokenizer(key))?;
            *last_used = Instant::now();
            Ok(Arc::clone(tokenizer))
        };
        let others = known.other_engines.iter();
        let others = others.map(|engine| tokenizer((known.vocabulary.clone(), *engine)));
        let others = others.collect::<Result<_, _>>()?;
        let doubts = match known.is_name_guessed {
            true => Arc::new(Doubts::of_all(GUESSED_NAME_TOKENS)),
            false => Arc::clone(&known.doubts),
        };
        let template = |variant: &TemplateVariant| known.templates.get(&variant.key()).cloned();
        Ok(Counter::exact(ExactCounter {
            tokenizer: tokenizer(known.tokenizer_key())?,
            others,
            without_tools: template(&variant.without_tools()),
            with_tools: template(&variant),
            doubts: if is_checked { doubts } else { Arc::new(doubts.and_all(UNCHECKED_TOKENS)) },
            is_checked,
        })
        .calibrated(calibration))
    }

    /// Notes the digest that the server lists for a model. Never blocks on the disk.
    pub(crate) fn note_listed(&self, model: &str, digest: ListedDigest) {
        let digest = match digest {
            ListedDigest::Digest(digest) => {
                ListedDigest::Digest(weights_digest(&digest).to_owned())
            }
            other => other,
        };
        let (mut state, name) = (self.state.lock(), self.names.key(model));
        if state.listed.len() >= MAX_LISTED && !state.listed.contains_key(&name) {
            state.listed.clear();
        }
        state.listed.insert(name, digest);
    }

    /// Forgets the listed digests and the texts that were counted, because another server has other models.
    pub(crate) fn forget_listed(&self) {
        let mut state = self.state.lock();
        state.listed.clear();
        state.served.clear();
    }

    /// Returns whether the server listed the digest that a model was learned for.
    pub(crate) fn is_checked(&self, model: &str) -> bool {
        let (state, name) = (self.state.lock(), self.names.key(model));
        state.known(&name).is_some_and(|known| known.is_checked(state.listed.get(&name)))
    }

    /// Returns whether the server counted enough prompts of a variant.
    pub(crate) fn is_calibrated(&self, model: &str, variant: &str) -> bool {
        let state = self.state.lock();
        let known = state.known(&self.names.key(model));
        let calibration = known.and_then(|known| known.calibrations.get(variant));
        calibration.is_some_and(|calibration| calibration.is_settled())
    }

    /// Returns the tokenizer of a model if it is in memory.
    pub(crate) fn tokenizer(&self, model: &str) -> Option<Arc<CachedTokenizer>> {
        let state = self.state.lock();
        state.tokenizer(state.known(&self.names.key(model))?)
    }

    /// Returns the tokenizer to learn a template with, or `None` if the template is known.
    pub(crate) fn tokenizer_for_learning(
        &self,
        model: &str,
        variant: &TemplateVariant,
    ) -> Option<Arc<CachedTokenizer>> {
        let state = self.state.lock();
        let known = state.known(&self.names.key(model))?;
        if known.templates.contains_key(&variant.key()) { None } else { state.tokenizer(known) }
    }

    /// Returns whether the tokenizer of a model is in memory, and still that of `info`.
    pub(crate) fn has_tokenizer(&self, info: &ModelInfo, model: &str) -> bool {
        let state = self.state.lock();
        let server = server_of(info);
        let is_configured = |known: &KnownModel| {
            known.server.as_ref().is_some_and(|server| server.contains(VOCABULARY_MARK))
        };
        state.known(&self.names.key(model)).is_some_and(|known| {
            state.tokenizers.contains_key(&known.tokenizer_key())
                && (info.digest.is_none()
                    || known.digest.as_deref() == info.digest.as_deref().map(weights_digest))
                && (known.server == server || (server.is_none() && !is_configured(known)))
        })
    }

    /// Stores the vocabulary of a model and forgets its templates, which were learned with another vocabulary, engine or
    /// server. Blocks.
    pub(crate) fn store_vocabulary(
        &self,
        info: &ModelInfo,
        model: &str,
        learned: LearnedVocabulary,
    ) {
        let LearnedVocabulary { vocabulary, tokenizers, is_name_guessed } = learned;
        let mut engines = tokenizers.iter().map(|(engine, _)| *engine);
        let engine = engines.next().unwrap_or_default();
        let other_engines = engines.collect();
        let vocabulary = self.add_tokenizers(&vocabulary, tokenizers);
        let digest = info.digest.as_deref().map(|digest| weights_digest(digest).to_owned());
        let server = server_of(info);
        self.change(model, |known| {
            *known = KnownModel {
                digest,
                server,
                vocabulary,
                engine,
                other_engines,
                is_name_guessed,
                ..KnownModel::default()
            };
        });
    }

    /// Stores a vocabulary with its tokenizers, and returns its digest. Blocks.
    fn add_tokenizers(
        &self,
        vocabulary: &Vocabulary,
        tokenizers: Vec<(Engine, Tokenizer)>,
    ) -> String {
        let digest = vocabulary.file_name();
        self.files.store_vocabulary(&digest, vocabulary);
        let mut state = self.state.lock();
        state.failures.remove(&digest);
        for (engine, tokenizer) in tokenizers {
            let tokenizer = Arc::new(CachedTokenizer::new(tokenizer));
            state.tokenizers.insert((digest.clone(), engine), (tokenizer, Instant::now()));
        }
        digest
    }

    /// Stores a learned template. Blocks.
    pub(crate) fn store_template(&self, model: &str, key: &str, template: Template) {
        self.change(model, |known| {
            if known.templates.len() >= MAX_TEMPLATES {
                // Sets of tools change; a template that is used again is learned again.
                known.templates.retain(|key, _| key.ends_with('/'));
            }
            known.templates.insert(key.to_owned(), Arc::new(template));
            // The calibration corrected counts without this template.
            known.calibrations.remove(key);
        });
    }

    /// Stores the thinking mode of a call, for builds that do not name one. Blocks if it changed.
    pub(crate) fn store_think(&self, model: &str, think: &str) {
        let changes = |known: &KnownModel| known.think != think;
        let has_changed = self.state.lock().known(&self.names.key(model)).is_some_and(changes);
        if has_changed {
            self.change(model, |known| think.clone_into(&mut known.think));
        }
    }

    /// Changes the properties of a model and writes them to the disk. Blocks.
    fn change(&self, model: &str, change: impl FnOnce(&mut KnownModel)) {
        let _in_order = self.storing.lock();
        let is_read = self.read_models();
        let models = {
            let (mut state, key) = (self.state.lock(), self.names.key(model));
            let CountsState { models, listed, .. } = &mut *state;
            let models = models.get_or_insert_default();
            let known = models.entry(key.clone()).or_default();
            change(known);
            // What was learned without a vocabulary is that of the model that the server listed.
            if known.digest.is_none()
                && known.vocabulary.is_empty()
                && let Some(ListedDigest::Digest(digest)) = listed.get(&key)
            {
                known.digest = Some(digest.clone());
            }
            models.clone()
        };
        // A list that could not be read is not replaced by one that lacks its models.
        if is_read {
            self.files.store_models(&models);
        }
    }

    /// Returns whether learning `name`, a model, a template or a vocabulary, may be tried again after a failure.
    pub(crate) fn may_try(&self, name: &str) -> bool {
        let state = self.state.lock();
        state.failures.get(name).is_none_or(|until| *until <= Instant::now())
    }

    /// Notes that learning or reading `name` failed.
    pub(crate) fn note_failure(&self, name: &str, error: &dyn std::fmt::Display) {
        self.note_failure_for(name, error, RETRY_AFTER);
    }

    /// Notes that the server failed while `name` was being learned.
    pub(crate) fn note_server_failure(&self, name: &str, error: &ModelError) {
        let is_lost = matches!(
            error,
            ModelError::Unreachable { .. }
                | ModelError::Timeout { .. }
                | ModelError::Busy { .. }
                | ModelError::LoadFailed { .. }
                | ModelError::GivenUp { .. }
                | ModelError::Incomplete { .. }
                | ModelError::Disconnected { .. }
        );
        self.note_failure_for(name, error, if is_lost { RETRY_LOST_AFTER } else { RETRY_AFTER });
    }

    fn note_failure_for(&self, name: &str, error: &dyn std::fmt::Display, wait: Duration) {
        tracing::info!(name, "counts stay estimates: {error}");
        let (mut state, now) = (self.state.lock(), Instant::now());
        state.failures.retain(|_, until| now < *until);
        state.failures.insert(name.to_owned(), now + wait);
    }

    /// Drops vocabularies that are not in use.
    pub(crate) fn drop_idle(&self) {
        self.state.lock().tokenizers.retain(|_, (_, last_used)| last_used.elapsed() < IDLE);
    }
}
