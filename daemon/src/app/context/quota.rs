//! Limits of texts that every context contains: a text that cannot fit is refused when it is set, not when a context
//! is built.

use ollm_protocol::SessionId;
use ollm_protocol::content::{ContextMessage, Role};

use crate::app::core::Core;
use crate::app::error::Result;
use crate::app::models::window::window_of;
use crate::context::{ContextError, MIN_TURN_TOKENS, prompt_limit};
use crate::tokens::Counter;

/// The part of a session's prompts that one kind of text may have.
pub(super) struct TokenQuota {
    /// The limit in tokens.
    pub(super) limit: u64,
    /// The counter of the model that will read the texts.
    counter: Counter,
}

impl TokenQuota {
    /// Returns the quota of `percent` of a session's prompts; without an id, of a session with default settings.
    /// Blocks on the disk.
    pub(super) fn of(core: &Core, id: Option<SessionId>, percent: u64) -> Result<Self> {
        let own = id.map(|id| core.settings(id)).transpose()?.unwrap_or_default();
        let model = match id {
            Some(id) => core.placed_or_default(id, own.model),
            None => core.model_or_default(None),
        };
        let window = window_of(core, model.as_deref(), own.context_size);
        let limit = prompt_limit(window.size, core.config().context.answer_reserve) * percent / 100;
        Ok(Self { limit, counter: core.counts.load(model.as_deref(), None, &[]) })
    }

    /// Refuses texts that need more tokens than the quota; `what` names them in the error.
    pub(super) fn check(&self, needed: u64, what: &'static str) -> Result<(), ContextError> {
        let available = self.limit;
        if needed > available {
            return Err(ContextError::Overflow { needed, available, what });
        }
        Ok(())
    }

    /// Counts the tokens of a text.
    pub(super) fn count(&self, text: &str) -> u64 {
        u64::from(self.counter.count_text(text))
    }
}

/// Refuses a system prompt that leaves no room for a turn in the window of a session: no context could be built. Blocks on the
/// disk.
///
/// While nothing names a window and the model was not described, the prompt is accepted: the window may be larger.
pub(crate) fn check_system_prompt(
    core: &Core,
    prompt: Option<&str>,
    size: Option<u32>,
    model: Option<&str>,
) -> Result<()> {
    let Some(prompt) = prompt.filter(|prompt| !prompt.is_empty()) else { return Ok(()) };
    let model = core.model_or_default(model.map(str::to_owned));
    let window = window_of(core, model.as_deref(), size);
    if !window.is_named() && window.trained.is_none() {
        return Ok(());
    }
    let counter = core.counts.load(model.as_deref(), None, &[]);
    let message = ContextMessage::text(Role::System, prompt);
    let needed = u64::from(counter.count_head(Some(&message), &[]).0) + MIN_TURN_TOKENS;
    let available = prompt_limit(window.size, core.config().context.answer_reserve);
    if needed > available {
        return Err(ContextError::Overflow {
            needed,
            available,
            what: "system prompt with a short turn",
        }
        .into());
    }
    Ok(())
}
