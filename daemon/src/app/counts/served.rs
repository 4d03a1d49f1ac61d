//! What a model server counted itself: the texts of models without a vocabulary, and what is still to be asked.
//!
//! Must not know how the server is asked.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use ollm_protocol::content::ContextMessage;
use parking_lot::Mutex;
use serde_json::Value;

use super::files::KnownModel;
use super::{Counts, TemplateVariant, weights_digest};
use crate::model::{CountingSource, ModelInfo, ThinkMode};

/// The most texts of a prompt that the server is asked to count at once; the others follow with the next prompt.
const MAX_TEXTS: usize = 256;
/// The most lessons of a model that wait; a further one replaces the oldest.
const MAX_LESSONS: usize = 8;

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

impl CountedPrompts {
    fn variant(&self) -> (TemplateVariant, bool) {
        (TemplateVariant::new(self.think, &self.tools), self.num_ctx.is_some())
    }
}

/// What is to be learned of a model in the background.
pub(crate) struct Lesson {
    pub(crate) info: Arc<ModelInfo>,
    pub(crate) prompts: CountedPrompts,
    /// The texts that the server is asked to count.
    pub(crate) texts: Vec<String>,
}

/// The lessons that wait, by key of the model. A model that is in the map has a task that works on its lessons.
#[derive(Default)]
pub(crate) struct DueLessons(Mutex<HashMap<String, VecDeque<Lesson>>>);

impl DueLessons {
    /// Adds a lesson, to one of the same prompts if there is one; returns whether the caller starts a task for the model.
    fn add(&self, key: &str, lesson: Lesson) -> bool {
        let mut all = self.0.lock();
        let starts = !all.contains_key(key);
        let waiting = all.entry(key.to_owned()).or_default();
        let same = waiting.iter_mut().find(|one| one.prompts.variant() == lesson.prompts.variant());
        match same {
            Some(same) => {
                same.info = lesson.info;
                same.texts.extend(lesson.texts);
            }
            None => {
                if waiting.len() >= MAX_LESSONS {
                    waiting.pop_front();
                }
                waiting.push_back(lesson);
            }
        }
        starts
    }

    /// Takes the next lesson of a model; without one, the model has no task from now on.
    fn next(&self, key: &str) -> Option<Lesson> {
        let mut all = self.0.lock();
        let next = all.get_mut(key).and_then(VecDeque::pop_front);
        if next.is_none() {
            all.remove(key);
        }
        next
    }
}

impl Counts {
    /// Adds what is to be learned of a model; returns whether the caller starts the task that does it.
    pub(crate) fn add_lesson(&self, lesson: Lesson) -> bool {
        self.lessons.add(&self.names.key(&lesson.prompts.model), lesson)
    }

    /// Takes the next lesson of a model.
    pub(crate) fn next_lesson(&self, model: &str) -> Option<Lesson> {
        self.lessons.next(&self.names.key(model))
    }

    /// Ends the task of a model that did not take all of its lessons.
    pub(crate) fn drop_lessons(&self, model: &str) {
        self.lessons.0.lock().remove(&self.names.key(model));
    }

    /// Returns the texts of a model without a vocabulary that its server has not counted yet, the newest first.
    pub(crate) fn uncounted_texts(&self, model: &str, texts: Vec<String>) -> Vec<String> {
        let served = {
            let (state, key) = (self.state.lock(), self.names.key(model));
            if state.known(&key).is_some_and(|known| !known.vocabulary.is_empty()) {
                return Vec::new();
            }
            state.served.get(&key).cloned().unwrap_or_default()
        };
        let mut seen = HashSet::new();
        let uncounted = texts.into_iter().rev().filter(|text| served.get(text).is_none());
        uncounted.filter(|text| seen.insert(text.clone())).take(MAX_TEXTS).collect()
    }

    /// Adds texts that the server of a model counted.
    pub(crate) fn add_served(&self, model: &str, counted: &[(String, u32)]) {
        let (mut state, key) = (self.state.lock(), self.names.key(model));
        let texts = Arc::make_mut(state.served.entry(key).or_default());
        counted.iter().for_each(|(text, tokens)| texts.insert(text, *tokens));
    }

    /// Forgets what was learned of another model of the same name: that of another digest. The vocabulary of Ollama's models
    /// stays until the new one is learned, because it usually is the same. Blocks if there is something to forget.
    pub(crate) fn forget_other(&self, info: &ModelInfo) {
        let key = self.names.key(&info.model);
        let digest = info.digest.as_deref().map(weights_digest);
        self.read_models();
        let is_other = |known: &KnownModel| {
            let is_kept = info.counting == CountingSource::Ollama && !known.vocabulary.is_empty();
            !is_kept && digest.is_some() && known.digest.as_deref() != digest
        };
        let mut state = self.state.lock();
        let Some(known) = state.known(&key).filter(|known| is_other(known)) else { return };
        // What was learned before the digest was stored is that of this model.
        let is_first = known.digest.is_none();
        if !is_first {
            state.served.remove(&key);
            let of_model = format!("{} ", info.model);
            state.failures.retain(|name, _| *name != info.model && !name.starts_with(&of_model));
        }
        drop(state);
        self.change(&info.model, |known| {
            let before = if is_first { std::mem::take(known) } else { KnownModel::default() };
            *known = KnownModel { digest: digest.map(str::to_owned), ..before };
        });
    }
}

/// Returns the texts of a prompt as they are counted one by one.
pub(crate) fn texts_of(messages: &[ContextMessage], tools: &[Value]) -> Vec<String> {
    let of_messages = messages.iter().flat_map(|message| {
        let calls = message.tool_calls.iter().map(|call| call.function.arguments.to_string());
        calls.chain([message.content.clone()])
    });
    tools.iter().map(Value::to_string).chain(of_messages).collect()
}
