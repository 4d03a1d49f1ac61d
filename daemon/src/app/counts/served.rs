//! Counts of texts by the model server itself, for models without a vocabulary, and the lessons that wait: what the server is
//! still to be asked.
//!
//! Must not know how the server is asked.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use ollm_protocol::content::ContextMessage;
use parking_lot::Mutex;
use serde_json::Value;

use super::files::KnownModel;
use super::{Counts, CountsState, TemplateVariant, weights_digest};
use crate::model::{Backend, CountingSource, ListedDigest, ModelInfo, ThinkMode};
use crate::tokens::ServedTexts;

/// The most texts of a prompt that the server is asked to count at once; the others follow with the next prompt.
const MAX_TEXTS: usize = 256;
/// The most lessons of a model that wait; a further one replaces the oldest.
const MAX_LESSONS: usize = 8;
/// The most texts of a model that wait, and their bytes. Further ones are counted with a later prompt.
const MAX_WAITING: usize = 2 * MAX_TEXTS;
const MAX_WAITING_BYTES: usize = 4 << 20;

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

/// The model that a name meant when learning it began: a reload of the configuration may give the name to another one.
#[derive(Clone)]
pub(crate) struct LessonSubject {
    pub(crate) key: String,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) info: Arc<ModelInfo>,
}

/// A request to learn a model in the background.
pub(crate) struct Lesson {
    pub(crate) subject: LessonSubject,
    pub(crate) prompts: CountedPrompts,
    /// The texts that the server is asked to count.
    pub(crate) texts: Vec<String>,
}

/// The texts that a server counted, and the digest of the model that it counted for.
pub(super) struct TextsOfModel {
    digest: Option<String>,
    texts: Arc<ServedTexts>,
}

impl CountsState {
    /// Returns the texts that the server counted of the model that it listed last.
    pub(super) fn served(&self, key: &str) -> Option<Arc<ServedTexts>> {
        let served = self.served.get(key)?;
        let is_listed = self.listed.get(key)?.is(served.digest.as_deref());
        is_listed.then(|| Arc::clone(&served.texts))
    }

    /// Returns whether the server did not list another digest for a model. It lists none while it is slow.
    fn may_be_listed(&self, key: &str, digest: Option<&str>) -> bool {
        let listed = self.listed.get(key);
        listed.is_none_or(|listed| *listed == ListedDigest::Unknown || listed.is(digest))
    }
}

/// Names the counting of a model's texts, for [`Counts::may_try`].
pub(crate) fn texts_attempt(key: &str) -> String {
    format!("{key} texts")
}

/// The lessons that wait, by key of the model. A model that is in the map has a task that works on its lessons.
#[derive(Default)]
pub(crate) struct DueLessons(Mutex<HashMap<String, VecDeque<Lesson>>>);

impl DueLessons {
    /// Adds a lesson, to one of the same prompts if there is one; returns whether the caller starts a task for the model.
    fn add(&self, mut lesson: Lesson) -> bool {
        let mut all = self.0.lock();
        let starts = !all.contains_key(&lesson.subject.key);
        let waiting = all.entry(lesson.subject.key.clone()).or_default();
        let same = waiting.iter().position(|one| one.prompts.variant() == lesson.prompts.variant());
        if same.is_none() && waiting.len() >= MAX_LESSONS {
            waiting.pop_front();
        }
        let texts: HashSet<&str> =
            waiting.iter().flat_map(|one| &one.texts).map(String::as_str).collect();
        let mut n_texts = texts.len();
        let mut n_bytes: usize = texts.iter().map(|text| text.len()).sum();
        lesson.texts.retain(|text| {
            let is_added = n_texts < MAX_WAITING
                && n_bytes + text.len() <= MAX_WAITING_BYTES
                && !texts.contains(text.as_str());
            if is_added {
                (n_texts, n_bytes) = (n_texts + 1, n_bytes + text.len());
            }
            is_added
        });
        match same {
            Some(at) => {
                let same = &mut waiting[at];
                same.subject = lesson.subject;
                same.texts.extend(lesson.texts);
            }
            None => waiting.push_back(lesson),
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
        self.lessons.add(lesson)
    }

    /// Takes the next lesson of the model with a key.
    pub(crate) fn next_lesson(&self, key: &str) -> Option<Lesson> {
        self.lessons.next(key)
    }

    /// Returns whether a model has a task that learns it.
    #[cfg(test)]
    pub(crate) fn has_lessons(&self, key: &str) -> bool {
        self.lessons.0.lock().contains_key(key)
    }

    /// Ends the task of a model that did not take all of its lessons.
    pub(crate) fn drop_lessons(&self, key: &str) {
        self.lessons.0.lock().remove(key);
    }

    /// Returns whether a description may be that of the model that the server has: it did not list another digest.
    pub(crate) fn may_be_listed(&self, key: &str, info: &ModelInfo) -> bool {
        let digest = info.digest.as_deref().map(weights_digest);
        self.state.lock().may_be_listed(key, digest)
    }

    /// Returns whether the server is asked to count texts of a model: it has no vocabulary, and the server did not fail to
    /// count just now.
    pub(crate) fn needs_texts(&self, key: &str) -> bool {
        let has_vocabulary =
            self.state.lock().known(key).is_some_and(|known| !known.vocabulary.is_empty());
        !has_vocabulary && self.may_try(&texts_attempt(key))
    }

    /// Returns the texts of a model without a vocabulary that its server has not counted yet, the newest first.
    pub(crate) fn uncounted_texts(&self, key: &str, texts: Vec<String>) -> Vec<String> {
        let served = {
            let state = self.state.lock();
            if state.known(key).is_some_and(|known| !known.vocabulary.is_empty()) {
                return Vec::new();
            }
            let served = state.served.get(key);
            let served = served.filter(|served| state.may_be_listed(key, served.digest.as_deref()));
            served.map(|served| Arc::clone(&served.texts)).unwrap_or_default()
        };
        let mut seen = HashSet::new();
        let uncounted = texts.into_iter().rev().filter(|text| served.get(text).is_none());
        uncounted.filter(|text| seen.insert(text.clone())).take(MAX_TEXTS).collect()
    }

    /// Adds a text that the server of a model counted, which it described by `info`.
    pub(crate) fn add_served(&self, key: &str, info: &ModelInfo, text: &str, tokens: u32) {
        let digest = info.digest.as_deref().map(weights_digest);
        let mut state = self.state.lock();
        let new = || TextsOfModel { digest: digest.map(str::to_owned), texts: Arc::default() };
        let served = state.served.entry(key.to_owned()).or_insert_with(new);
        if served.digest.as_deref() != digest {
            *served = new();
        }
        Arc::make_mut(&mut served.texts).insert(text, tokens);
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
        let has_other_texts =
            state.served.get(&key).is_some_and(|served| served.digest.as_deref() != digest);
        if has_other_texts {
            state.served.remove(&key);
        }
        let other = state.known(&key).filter(|known| is_other(known));
        let is_known_as_other = other.is_some();
        if has_other_texts || other.is_some_and(|known| known.digest.is_some()) {
            let of_model = format!("{key} ");
            state.failures.retain(|name, _| *name != key && !name.starts_with(&of_model));
        }
        drop(state);
        if !is_known_as_other {
            return;
        }
        self.change(&info.model, |known| {
            // Another call may have learned the new model meanwhile.
            if !is_other(known) {
                return;
            }
            // What was learned before the digest was stored is that of this model.
            let is_first = known.digest.is_none();
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
