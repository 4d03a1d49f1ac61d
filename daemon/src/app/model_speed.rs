//! Observations of models in earlier calls: how fast they read a prompt, and the window that they run with.

use std::time::{Duration, Instant};

use hashlink::LruCache;
use parking_lot::Mutex;

use crate::model::{ChatEnd, PromptCount, canonical_name};

/// The shortest prompt, in tokens, that is long enough to measure how fast a model reads.
const MIN_PROMPT_TOKENS: u64 = 64;

/// Maximum number of models with observations, more than most servers have.
const MAX_MODELS: usize = 256;

/// The observations of the models that were used last, by full name; in memory only. Clients choose the names.
pub(crate) struct MeasuredModels(Mutex<LruCache<String, MeasuredModel>>);

impl Default for MeasuredModels {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(MAX_MODELS)))
    }
}

/// The observations of one model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MeasuredModel {
    /// The tokens of a prompt, and the time in which the model read them.
    reading: Option<(u64, Duration)>,
    /// The window that the server gave the model, if it is smaller than requested.
    pub(crate) effective: Option<u32>,
    pub(crate) last_used: Option<Instant>,
}

impl MeasuredModels {
    pub(crate) fn get(&self, model: &str) -> MeasuredModel {
        self.0.lock().get(&canonical_name(model)).copied().unwrap_or_default()
    }

    /// Forgets all observations.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Notes the window that the server gave a model, if it is smaller than requested.
    pub(crate) fn note_effective(&self, model: &str, effective: Option<u32>) {
        self.change(model, |measured| measured.effective = effective);
    }

    /// Adds the observations of one answer.
    pub(crate) fn note(&self, model: &str, end: &ChatEnd, effective: Option<u32>) {
        self.change(model, |measured| {
            measured.note(end);
            measured.effective = effective;
        });
    }

    fn change(&self, model: &str, change: impl FnOnce(&mut MeasuredModel)) {
        let (mut models, name) = (self.0.lock(), canonical_name(model));
        let mut measured = models.get(&name).copied().unwrap_or_default();
        change(&mut measured);
        models.insert(name, measured);
    }
}

impl MeasuredModel {
    /// Estimates how long the model reads a prompt.
    pub(crate) fn expected_reading(&self, tokens: u64) -> Option<Duration> {
        let (read, took) = self.reading?;
        #[expect(clippy::cast_precision_loss, reason = "token counts are small")]
        let share = tokens as f64 / read as f64;
        Duration::try_from_secs_f64(took.as_secs_f64() * share).ok()
    }

    fn note(&mut self, end: &ChatEnd) {
        let read = match end.prompt {
            PromptCount::Whole(tokens) => tokens.saturating_sub(end.cached_tokens.unwrap_or(0)),
            PromptCount::Uncached(tokens) => tokens,
            PromptCount::Unknown => 0,
        };
        // A server that does not report cached tokens seems to read faster than it does.
        if let Some(took) = end.prompt_time.filter(|_| read >= MIN_PROMPT_TOKENS) {
            self.reading = Some((read, took));
        }
        self.last_used = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DoneReason;

    #[test]
    fn reading_time_is_proportional_to_the_last_long_prompt() {
        let models = MeasuredModels::default();
        assert_eq!(models.get("m").expected_reading(1000), None);
        let mut end = ChatEnd {
            reason: DoneReason::Stop,
            prompt: PromptCount::Whole(600),
            cached_tokens: Some(100),
            answer_tokens: Some(5),
            load_time: None,
            prompt_time: Some(Duration::from_secs(1)),
            answer_time: None,
        };
        models.note("m", &end, Some(2048));
        assert_eq!(models.get("library/m:latest").effective, Some(2048));
        assert_eq!(models.get("m").expected_reading(1000), Some(Duration::from_secs(2)));
        end.prompt = PromptCount::Uncached(5);
        models.note("m", &end, None);
        let measured = models.get("m");
        assert_eq!(measured.expected_reading(500), Some(Duration::from_secs(1)));
        assert_eq!(measured.effective, None);
    }

    #[test]
    fn observations_of_many_names_are_bounded() {
        let models = MeasuredModels::default();
        for number in 0..10 * MAX_MODELS {
            models.note_effective(&format!("m{number}"), Some(2048));
        }
        assert_eq!(models.0.lock().len(), MAX_MODELS);
        assert_eq!(models.get("m2559").effective, Some(2048));
    }
}
