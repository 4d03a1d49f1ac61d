//! What a turn asks for, checked before anything is recorded, and what earlier turns taught of a model.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use ollm_protocol::SessionId;
use ollm_protocol::methods::chat::{ChatSendParams, Think as AskedThink, ThinkLevel};
use serde_json::Value;

use crate::app::counts::Purpose;
use crate::app::models::named;
use crate::app::{AppError, Core};
use crate::model::{ChatEnd, ModelInfo, PromptCount, Sampling, ThinkMode, clamp_window};

/// Fewer tokens say nothing about how fast a model reads.
const MIN_LEARNED_TOKENS: u64 = 64;

/// What a turn asks for.
pub(super) struct Plan {
    /// The session.
    pub(super) id: SessionId,
    /// The model.
    pub(super) model: String,
    /// Definitions of tools.
    pub(super) tools: Vec<Value>,
    /// How the next token is chosen.
    pub(super) sampling: Sampling,
    /// The longest answer.
    pub(super) max_tokens: Option<NonZeroU32>,
    /// Whether the model thinks first.
    pub(super) think: Option<ThinkMode>,
    /// The form of the answer.
    pub(super) format: Option<Value>,
    /// The window that the session wants.
    pub(super) context_size: u32,
}

impl Plan {
    /// Checks params; the message and its key are not among them any more.
    pub(super) fn check(core: &Core, params: ChatSendParams) -> Result<Self, AppError> {
        let ChatSendParams { session_id, model, tools, options, max_tokens, think, format, .. } =
            params;
        let session = core.summary(session_id)?;
        let model = named(core, model.or(session.model.clone()))?;
        let sampling = Sampling::check(options)
            .map_err(|error| AppError::invalid("options", error.to_string()))?;
        let at_least_one = || AppError::invalid("maxTokens", "must be at least 1");
        let max_tokens =
            max_tokens.map(|most| NonZeroU32::new(most).ok_or_else(at_least_one)).transpose()?;
        if let Some(tool) = tools.iter().find(|tool| tool["function"]["name"].as_str().is_none()) {
            let problem = format!("a definition has no function.name: {}", brief(tool));
            return Err(AppError::invalid("tools", problem));
        }
        let context_size = crate::app::build::context_size(core, session_id)?;
        let think = think.map(think_of);
        Ok(Self { id: session_id, model, tools, sampling, max_tokens, think, format, context_size })
    }

    /// What is to be counted.
    pub(super) fn purpose(&self, num_ctx: u32) -> Purpose {
        let (model, tools) = (self.model.clone(), self.tools.clone());
        Purpose { model, think: self.think, tools, num_ctx: Some(num_ctx) }
    }

    /// The window to build for: what the session wants, within what the model takes.
    pub(super) fn window(&self, info: &ModelInfo, learned: Learned) -> u32 {
        let wanted = clamp_window(
            self.context_size,
            info.trained_context,
            info.can("vision").unwrap_or(false),
        );
        learned.effective.map_or(wanted, |effective| wanted.min(effective))
    }
}

fn brief(value: &Value) -> String {
    let text = value.to_string();
    text.chars().take(80).collect()
}

const fn think_of(asked: AskedThink) -> ThinkMode {
    match asked {
        AskedThink::Flag(false) => ThinkMode::Off,
        AskedThink::Flag(true) => ThinkMode::On,
        AskedThink::Level(ThinkLevel::Low) => ThinkMode::Low,
        AskedThink::Level(ThinkLevel::Medium) => ThinkMode::Medium,
        AskedThink::Level(ThinkLevel::High) => ThinkMode::High,
        AskedThink::Level(ThinkLevel::Max) => ThinkMode::Max,
    }
}

/// What earlier turns taught of a model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Learned {
    /// How fast it reads a prompt.
    reading: Option<(u64, Duration)>,
    /// The window that the server really gave it, where that was less than asked for.
    pub(super) effective: Option<u32>,
    /// When it was last used by us.
    pub(super) used: Option<Instant>,
}

impl Learned {
    /// How long reading so many tokens takes.
    pub(super) fn expected(&self, tokens: u64) -> Option<Duration> {
        let (read, took) = self.reading?;
        #[expect(clippy::cast_precision_loss, reason = "token counts are small")]
        let share = tokens as f64 / read as f64;
        Duration::try_from_secs_f64(took.as_secs_f64() * share).ok()
    }

    /// Notes what an answer cost.
    pub(super) fn note(&mut self, end: &ChatEnd) {
        let read = match end.prompt {
            PromptCount::Whole(tokens) => tokens.saturating_sub(end.cached_tokens.unwrap_or(0)),
            PromptCount::Uncached(tokens) => tokens,
            PromptCount::Unknown => 0,
        };
        // A server that does not tell what it had from before seems to read faster than it does.
        if let Some(took) = end.prompt_time.filter(|_| read >= MIN_LEARNED_TOKENS) {
            self.reading = Some((read, took));
        }
        self.used = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DoneReason;

    #[test]
    fn the_time_to_read_is_by_what_was_measured() {
        let mut learned = Learned::default();
        assert_eq!(learned.expected(1000), None);
        let mut end = ChatEnd {
            reason: DoneReason::Stop,
            prompt: PromptCount::Whole(600),
            cached_tokens: Some(100),
            answer_tokens: Some(5),
            load_time: None,
            prompt_time: Some(Duration::from_secs(1)),
            answer_time: None,
        };
        learned.note(&end);
        assert_eq!(learned.expected(1000), Some(Duration::from_secs(2)));
        end.prompt = PromptCount::Uncached(5);
        learned.note(&end);
        assert_eq!(learned.expected(500), Some(Duration::from_secs(1)));
    }
}
