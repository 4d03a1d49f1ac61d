//! Which counter a model has: its vocabulary and its template, from memory, from `vocab/` in the home, or from the model
//! server. FORMAT.md, "Vocabularies", describes the files.
//!
//! **Invariants**: counting never waits for the network, and recording not even for the disk; what is learned survives
//! the model server and the daemon; what is not known is counted by estimate and says so.

mod feedback;
mod files;
mod learning;
mod weights;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(super) use feedback::learn_from;
pub(super) use learning::{Purpose, distrust, known, prepare, rendered};

use self::files::Files;
use crate::model::{ThinkMode, canonical_name};
use crate::tokens::{CachedTokenizer, Calibration, Counter, ExactCounter, Template};

/// How long a vocabulary stays in memory without being used; it takes tens of MB and is read again in a moment.
const UNUSED: Duration = Duration::from_secs(180);
/// How long a model that could not be learned is not asked again.
const NOT_AGAIN: Duration = Duration::from_secs(300);
/// Most templates of a model that are kept: one for each set of tools and way of thinking.
const MAX_TEMPLATES: usize = 16;

/// The counters of all models.
pub(crate) struct Counts {
    files: Files,
    /// Held for looking up and for setting, never while a file is read or written.
    state: Mutex<State>,
    /// Held while a file is read, so that a vocabulary is read once.
    loading: Mutex<()>,
    /// Held while the list of models is written, so that an older one never replaces a newer one.
    storing: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// What is known of each model; `None` before it was read.
    models: Option<BTreeMap<String, Known>>,
    /// Vocabularies in memory, by digest.
    engines: HashMap<String, (Arc<CachedTokenizer>, Instant)>,
    /// When learning a model or one of its templates, or reading a vocabulary, failed.
    failed: HashMap<String, Instant>,
}

/// What is known of a model.
#[derive(Clone, Debug, Default)]
struct Known {
    /// Names the model's contents; another one is another model of the same name.
    digest: Option<String>,
    /// The file of its vocabulary.
    vocabulary: String,
    /// By way of thinking and tools; `None` where counting by the template was found wrong.
    templates: BTreeMap<String, Option<Arc<Template>>>,
    /// What the server's counts taught of prompts that these templates do not cover, by the same names.
    calibrations: BTreeMap<String, Arc<Calibration>>,
    /// How the model thought when it was used last.
    think: String,
}

/// Which template is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Variant {
    think: String,
    tools: String,
}

impl Variant {
    fn new(think: Option<ThinkMode>, tools: &[Value]) -> Self {
        Self { think: think_name(think).to_owned(), tools: tools_name(tools) }
    }

    fn without_tools(&self) -> Self {
        Self { think: self.think.clone(), tools: String::new() }
    }

    fn key(&self) -> String {
        format!("{}/{}", self.think, self.tools)
    }
}

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

fn tools_name(tools: &[Value]) -> String {
    if tools.is_empty() {
        return String::new();
    }
    let json = Value::Array(tools.to_vec()).to_string();
    blake3::hash(json.as_bytes()).to_hex()[..16].to_owned()
}

impl Counts {
    /// With nothing read yet.
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            files: Files::new(dir),
            state: Mutex::default(),
            loading: Mutex::default(),
            storing: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counter of a model with what is in memory, and whether the disk may have a better one that nobody is
    /// loading yet.
    pub(crate) fn at_hand(&self, model: &str) -> (Counter, bool) {
        let may_load = match self.find(model, None, &[]) {
            Ok(counter) => return (counter, false),
            Err(Missing::Models) => true,
            Err(Missing::Model) => false,
            Err(Missing::Vocabulary(digest)) => self.may_try(&digest),
        };
        let is_free = !matches!(self.loading.try_lock(), Err(TryLockError::WouldBlock));
        (Counter::ESTIMATE, may_load && is_free)
    }

    /// The counter of a model, from the disk where it is not in memory. Blocks.
    ///
    /// Without a way of thinking it is that of the last turn.
    pub(crate) fn load(
        &self,
        model: Option<&str>,
        think: Option<Option<ThinkMode>>,
        tools: &[Value],
    ) -> Counter {
        let Some(model) = model else { return Counter::ESTIMATE };
        let think = think.map(think_name);
        let found = self.find(model, think, tools);
        let missing = match found {
            Ok(counter) => return counter,
            Err(Missing::Model) => return Counter::ESTIMATE,
            Err(missing) => missing,
        };
        let _one_at_a_time = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Missing::Models = missing {
            let unread = self.state().models.is_none();
            if unread {
                let models = self.files.models();
                self.state().models = Some(models);
            }
        }
        if let Err(Missing::Vocabulary(digest)) = self.find(model, think, tools)
            && self.may_try(&digest)
        {
            match self.files.engine(&digest) {
                Some(engine) => {
                    self.state().engines.insert(digest, (engine, Instant::now()));
                }
                None => drop(self.failed(&digest, &"its vocabulary cannot be read from the disk")),
            }
        }
        self.find(model, think, tools).unwrap_or(Counter::ESTIMATE)
    }

    fn find(&self, model: &str, think: Option<&str>, tools: &[Value]) -> Result<Counter, Missing> {
        let mut state = self.state();
        let State { models, engines, .. } = &mut *state;
        let known = models.as_ref().ok_or(Missing::Models)?;
        let known = known.get(&canonical_name(model)).ok_or(Missing::Model)?;
        let think = think.unwrap_or(&known.think).to_owned();
        let variant = Variant { think, tools: tools_name(tools) };
        let calibration = known.calibrations.get(&variant.key()).cloned();
        if known.vocabulary.is_empty() {
            return Ok(Counter::ESTIMATE.calibrated(calibration));
        }
        let engine = engines.get_mut(&known.vocabulary);
        let (engine, used) = engine.ok_or_else(|| Missing::Vocabulary(known.vocabulary.clone()))?;
        *used = Instant::now();
        let template = |variant: &Variant| known.templates.get(&variant.key()).cloned().flatten();
        Ok(Counter::exact(ExactCounter {
            tokenizer: Arc::clone(engine),
            without_tools: template(&variant.without_tools()),
            with_tools: template(&variant),
        })
        .calibrated(calibration))
    }

    /// A template gave another count than the server: it is not used again. Blocks.
    pub(crate) fn distrust(&self, model: &str, think: Option<ThinkMode>, tools: &[Value]) {
        let variant = Variant::new(think, tools);
        tracing::warn!(model, variant = variant.key(), "counts differ from those of the server");
        self.change(model, |known| {
            known.templates.insert(variant.key(), None);
            known.calibrations.remove(&variant.key());
        });
    }

    /// Changes what is known of a model, and keeps it on the disk. Blocks.
    fn change(&self, model: &str, change: impl FnOnce(&mut Known)) {
        let _in_order = self.storing.lock().unwrap_or_else(PoisonError::into_inner);
        let models = {
            let mut state = self.state();
            let models = state.models.get_or_insert_default();
            change(models.entry(canonical_name(model)).or_default());
            models.clone()
        };
        self.files.store(&models);
    }

    /// Whether the last failure is long enough ago.
    fn may_try(&self, what: &str) -> bool {
        let state = self.state();
        state.failed.get(what).is_none_or(|at| at.elapsed() >= NOT_AGAIN)
    }

    fn failed(&self, what: &str, error: &dyn std::fmt::Display) -> Option<()> {
        tracing::info!(what, "counts stay estimates: {error}");
        let mut state = self.state();
        state.failed.retain(|_, at| at.elapsed() < NOT_AGAIN);
        state.failed.insert(what.to_owned(), Instant::now());
        None
    }

    /// Gives vocabularies back that were not used for a while.
    pub(crate) fn rest(&self) {
        self.state().engines.retain(|_, (_, used)| used.elapsed() < UNUSED);
    }
}

/// Why there is no counter in memory.
enum Missing {
    /// The list of models was not read.
    Models,
    /// The model is not known.
    Model,
    /// The vocabulary is known and not in memory.
    Vocabulary(String),
}
