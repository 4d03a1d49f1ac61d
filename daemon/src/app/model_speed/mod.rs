//! Observations of models in earlier calls: how fast they read a prompt and write an answer, the window that they run
//! with, the prompts that their server holds, and whether it stops reading when the caller leaves.

mod reading;
mod slots;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashlink::LruCache;
use parking_lot::Mutex;

use self::reading::UnreadPrompts;
pub(crate) use self::reading::{PromptReading, SentPrompt};
use self::slots::ModelSlots;
use crate::model::{ChatEnd, ModelNames, PromptCount};

/// The shortest prompt, in tokens, that is long enough to measure how fast a model reads.
const MIN_PROMPT_TOKENS: u64 = 64;
/// The shortest answer, in tokens, that is long enough to measure how fast a model writes.
const MIN_ANSWER_TOKENS: u64 = 16;

/// The share of a prompt that must be new to a server that does not report what it had in its cache, as a divisor: its
/// reading is then known to within this factor.
const NEW_SHARE_DIVISOR: u64 = 2;

/// The measurements of which the middle one counts, so that a single one says little: a computer that slept meanwhile, or
/// that another program kept busy, would seem to have a model that is a thousand times slower.
const N_MEASURED: usize = 3;

/// Maximum number of models with observations, more than most servers have.
const MAX_MODELS: usize = 256;

/// The observations of the models that were used last, by key; in memory only. Clients choose the names. Clones share
/// everything.
#[derive(Clone)]
pub(crate) struct MeasuredModels {
    names: ModelNames,
    known: Arc<Mutex<LruCache<String, MeasuredModel>>>,
}

impl Default for MeasuredModels {
    fn default() -> Self {
        Self::new(ModelNames::default())
    }
}

/// The observations of one model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MeasuredModel {
    /// The last prompts that were long enough.
    reading: MeasuredPace,
    /// The last answers that were long enough.
    writing: MeasuredPace,
    /// Seconds per new token of the last prompt with new tokens. Too high if the server read more than those.
    guess: Option<f64>,
    /// The tokens of the last answer, which are in the server's cache.
    answer_tokens: u64,
    /// The window that the server gave the model, if it is smaller than requested.
    pub(crate) effective: Option<u32>,
    pub(crate) last_used: Option<Instant>,
    /// Whether the model can choose facts; `None` before it was examined.
    pub(crate) can_choose: Option<bool>,
    /// The sessions whose prompts the server holds.
    pub(crate) slots: ModelSlots,
    unread: UnreadPrompts,
}

/// The last measurements of a pace, the newest first, in seconds per token.
#[derive(Clone, Copy, Debug, Default)]
struct MeasuredPace([Option<f64>; N_MEASURED]);

impl MeasuredPace {
    fn add(&mut self, took: Duration, tokens: u64) {
        self.0.rotate_right(1);
        self.0[0] = Some(seconds_per_token(took, tokens));
    }

    /// Returns the expected time for some tokens.
    fn expected(&self, tokens: u64) -> Option<Duration> {
        let mut measured: Vec<f64> = self.0.iter().copied().flatten().collect();
        measured.sort_by(f64::total_cmp);
        let middle = measured.get(measured.len().saturating_sub(1) / 2)?;
        time_of(*middle, tokens)
    }
}

#[expect(clippy::cast_precision_loss, reason = "token counts are small")]
fn seconds_per_token(took: Duration, tokens: u64) -> f64 {
    took.as_secs_f64() / tokens as f64
}

#[expect(clippy::cast_precision_loss, reason = "token counts are small")]
fn time_of(seconds_per_token: f64, tokens: u64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds_per_token * tokens as f64).ok()
}

impl MeasuredModels {
    /// Creates an empty collection.
    pub(crate) fn new(names: ModelNames) -> Self {
        Self { names, known: Arc::new(Mutex::new(LruCache::new(MAX_MODELS))) }
    }

    pub(crate) fn get(&self, model: &str) -> MeasuredModel {
        self.known.lock().get(&self.names.key(model)).copied().unwrap_or_default()
    }

    /// Forgets all observations.
    pub(crate) fn clear(&self) {
        self.known.lock().clear();
    }

    /// Notes the window that the server gave a model, if it is smaller than requested.
    pub(crate) fn note_effective(&self, model: &str, effective: Option<u32>) {
        self.change(model, |measured| measured.effective = effective);
    }

    /// Notes whether a model can choose facts.
    pub(crate) fn note_choosing(&self, model: &str, can_choose: bool) {
        self.change(model, |measured| measured.can_choose = Some(can_choose));
    }

    /// Adds the observations of an answer to the next prompt of the same session.
    #[cfg(test)]
    pub(crate) fn note(&self, model: &str, end: &ChatEnd, prefix_tokens: u64) {
        let prompt = SentPrompt { prefix_tokens, ..SentPrompt::default() };
        self.change(model, |measured| measured.note(end, &prompt, Some(0)));
    }

    /// Notes that the server was seen to read a prompt to its end although its caller had left.
    #[cfg(test)]
    pub(crate) fn note_reads_on(&self, model: &str) {
        self.change(model, |measured| measured.unread.see_reading_on());
    }

    /// Notes that the server does not have a model in its memory, and so none of its prompts.
    pub(crate) fn note_unloaded(&self, model: &str) {
        self.change(model, |measured| {
            measured.slots.clear();
            measured.unread.clear();
        });
    }

    fn change(&self, model: &str, change: impl FnOnce(&mut MeasuredModel)) {
        let (mut models, name) = (self.known.lock(), self.names.key(model));
        let mut measured = models.get(&name).copied().unwrap_or_default();
        change(&mut measured);
        models.insert(name, measured);
    }
}

impl MeasuredModel {
    /// Estimates the reading of a prompt from measurements; `None` without any.
    pub(crate) fn expected_reading(&self, tokens: u64) -> Option<Duration> {
        self.reading.expected(tokens)
    }

    /// Estimates the writing of an answer from measurements; `None` without any.
    pub(crate) fn expected_writing(&self, tokens: u64) -> Option<Duration> {
        self.writing.expected(tokens)
    }

    /// Estimates the reading of a prompt from measurements, else from the last prompt with new tokens, which gives too long a
    /// time rather than too short a one.
    pub(crate) fn reading_or_guess(&self, tokens: u64) -> Option<Duration> {
        let guess = || self.guess.and_then(|reading| time_of(reading, tokens));
        self.expected_reading(tokens).or_else(guess)
    }

    /// Returns the tokens of a prompt that are read in some time; `None` without any measurement.
    pub(crate) fn tokens_read_in(&self, time: Duration) -> Option<u64> {
        let thousand = self.reading_or_guess(1000)?.as_millis().max(1);
        u64::try_from(time.as_millis() * 1000 / thousand).ok()
    }

    /// Returns the time for which the server probably reads a prompt that its caller left.
    pub(crate) fn unread_rest(&self) -> Duration {
        self.unread.rest()
    }

    /// Returns whether the server was seen to read a prompt to its end after its caller left.
    pub(crate) fn reads_on(&self) -> bool {
        self.unread.reads_on()
    }

    /// Adds the observations of an answer to a prompt, `age` prompts after the last one of its session.
    fn note(&mut self, end: &ChatEnd, prompt: &SentPrompt, age: Option<usize>) {
        let was_held = self.was_held(end, prompt);
        if let (Some(age), Some(was_held)) = (age, was_held) {
            self.slots.learn(age, was_held);
        }
        let (new, is_sure) = match (end.prompt, end.cached_tokens) {
            (PromptCount::Whole(tokens), Some(cached)) => (tokens.saturating_sub(cached), true),
            // Most servers do not report what they had in their cache; it was at most this.
            (PromptCount::Whole(tokens), None) => {
                let most = match age {
                    Some(0) => prompt.prefix_tokens + self.answer_tokens,
                    Some(_) if was_held != Some(false) => prompt.prefix_tokens,
                    _ => 0,
                };
                let new = tokens.saturating_sub(most);
                (new, new * NEW_SHARE_DIVISOR >= tokens)
            }
            (PromptCount::Uncached(tokens), _) => (tokens, true),
            (PromptCount::Unknown, _) => (0, false),
        };
        if let Some(took) = end.prompt_time.filter(|_| new > 0) {
            self.guess = Some(seconds_per_token(took, new));
            if is_sure && new >= MIN_PROMPT_TOKENS {
                self.reading.add(took, new);
            }
        }
        let answer = end.answer_time.zip(end.answer_tokens);
        if let Some((took, tokens)) = answer.filter(|(_, tokens)| *tokens >= MIN_ANSWER_TOKENS) {
            self.writing.add(took, tokens);
        }
        self.answer_tokens = end.answer_tokens.unwrap_or_default();
        self.last_used = Some(Instant::now());
    }

    /// Returns whether the server had the beginning of a prompt in its cache, if its report or the time says so.
    fn was_held(&self, end: &ChatEnd, prompt: &SentPrompt) -> Option<bool> {
        let prefix = prompt.prefix_tokens;
        if prefix < MIN_PROMPT_TOKENS {
            return None;
        }
        match (end.prompt, end.cached_tokens) {
            (_, Some(cached)) => Some(cached * 2 >= prefix),
            (PromptCount::Uncached(new), None) => {
                Some(prompt.tokens.saturating_sub(new) * 2 >= prefix)
            }
            (PromptCount::Whole(tokens), None) => {
                let middle = self.expected_reading(tokens.saturating_sub(prefix / 2))?;
                Some(end.prompt_time? < middle)
            }
            (PromptCount::Unknown, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DoneReason;

    /// Returns the end of an answer of 100 tokens to a prompt.
    const fn end(prompt: PromptCount, cached_tokens: Option<u64>, seconds: u64) -> ChatEnd {
        ChatEnd {
            reason: DoneReason::Stop,
            prompt,
            cached_tokens,
            answer_tokens: Some(100),
            load_time: None,
            prompt_time: Some(Duration::from_secs(seconds)),
            answer_time: None,
        }
    }

    #[test]
    fn reading_time_is_proportional_to_that_of_long_prompts() {
        let models = MeasuredModels::default();
        assert_eq!(models.get("m").expected_reading(1000), None);
        models.note("m", &end(PromptCount::Whole(600), Some(100), 1), 500);
        models.note_effective("m", Some(2048));
        assert_eq!(models.get("library/m:latest").effective, Some(2048));
        assert_eq!(models.get("m").expected_reading(1000), Some(Duration::from_secs(2)));
        models.note("m", &end(PromptCount::Uncached(5), None, 1), 0);
        models.note_effective("m", None);
        let measured = models.get("m");
        assert_eq!(measured.expected_reading(500), Some(Duration::from_secs(1)));
        assert_eq!(measured.effective, None);
    }

    #[test]
    fn prompt_that_may_be_in_the_cache_measures_no_reading() {
        let models = MeasuredModels::default();
        let reads_1000_in = |tokens, prefix_tokens, seconds| {
            models.note("m", &end(PromptCount::Whole(tokens), None, seconds), prefix_tokens);
            models.get("m").reading.0[0].map(|seconds| (seconds * 1000.0).round())
        };
        assert_eq!(reads_1000_in(1000, 0, 10), Some(10.0));
        // A turn whose prompt begins with the one before and its answer.
        assert_eq!(reads_1000_in(1150, 1000, 1), Some(10.0));
        assert_eq!(reads_1000_in(2400, 1150, 1), Some(10.0), "the last answer may be in the cache");
        // A new head, and a pasted file.
        assert_eq!(reads_1000_in(1200, 100, 20), Some(20.0));
        assert_eq!(reads_1000_in(3000, 1200, 34), Some(20.0));
    }

    #[test]
    fn reading_without_a_measurement_is_guessed_by_the_new_part_of_a_prompt() {
        let models = MeasuredModels::default();
        let guess = || models.get("m").reading_or_guess(1000);
        assert_eq!(guess(), None);
        models.note("m", &end(PromptCount::Whole(40), None, 0), 0);
        // 100 of its tokens are those of the last answer.
        models.note("m", &end(PromptCount::Whole(160), None, 1), 40);
        assert_eq!(guess(), Some(Duration::from_secs(50)));
        models.note("m", &end(PromptCount::Whole(1100), None, 30), 0);
        models.note("m", &end(PromptCount::Whole(1210), None, 1), 1100);
        assert_eq!(guess(), Some(Duration::from_secs(30)), "a whole prompt was measured");
    }

    #[test]
    fn single_slow_reading_says_little() {
        let models = MeasuredModels::default();
        let reads_1000_in = |seconds| {
            models.note("m", &end(PromptCount::Uncached(1000), None, seconds), 0);
            models.get("m").expected_reading(1000).map(|time| time.as_secs())
        };
        assert_eq!(reads_1000_in(3000), Some(3000), "nothing else is known");
        assert_eq!(reads_1000_in(2), Some(2));
        assert_eq!(reads_1000_in(3), Some(3));
        assert_eq!(reads_1000_in(5000), Some(3), "the computer slept");
        assert_eq!(reads_1000_in(20), Some(20), "the model runs on another processor now");
    }

    #[test]
    fn writing_time_is_proportional_to_that_of_long_answers() {
        let models = MeasuredModels::default();
        let writes_100_in = |tokens, seconds| {
            let end = ChatEnd {
                answer_tokens: Some(tokens),
                answer_time: Some(Duration::from_secs(seconds)),
                ..end(PromptCount::Unknown, None, 0)
            };
            models.note("m", &end, 0);
            models.get("m").expected_writing(100).map(|time| time.as_secs())
        };
        assert_eq!(writes_100_in(5, 1), None, "it says little");
        assert_eq!(writes_100_in(200, 4), Some(2));
        assert_eq!(writes_100_in(50, 1), Some(2));
    }

    #[test]
    fn observations_of_many_names_are_bounded() {
        let models = MeasuredModels::default();
        for number in 0..10 * MAX_MODELS {
            models.note_effective(&format!("m{number}"), Some(2048));
        }
        assert_eq!(models.known.lock().len(), MAX_MODELS);
        assert_eq!(models.get("m2559").effective, Some(2048));
    }
}
