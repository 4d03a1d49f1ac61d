//! Limits of what is sent with every context: texts that cannot fit are refused when they are set, not when a context
//! is built.

use ollm_protocol::SessionId;
use ollm_protocol::content::{ContextMessage, MIN_CONTEXT_SIZE, Role};

use crate::app::core::Core;
use crate::app::error::AppError;
use crate::context::{ContextError, prompt_limit};
use crate::session::OpenSession;
use crate::tokens::Counter;

/// The part of a session's prompts that one kind of text may have.
pub(super) struct TokenQuota {
    /// In tokens.
    pub(super) limit: u64,
    /// The counter of the model that will read the texts.
    counter: Counter,
}

impl TokenQuota {
    /// Returns so many percent of the prompts of a session; of a session with default settings without an id. Blocks on
    /// the disk.
    pub(super) fn of(core: &Core, id: Option<SessionId>, percent: u64) -> Result<Self, AppError> {
        let own = |live: &OpenSession| {
            (live.state().context_size(), live.state().model().map(str::to_owned))
        };
        let own = id.map(|id| core.sessions.with(id, own)).transpose()?;
        let (size, model) = own.unwrap_or_default();
        let config = core.config();
        let size = config.context.size_for(size);
        let model = model.or_else(|| config.ollama.model.clone());
        let limit = prompt_limit(size, config.context.answer_reserve) * percent / 100;
        Ok(Self { limit, counter: core.counts.load(model.as_deref(), None, &[]) })
    }

    /// Counts the tokens of a text.
    pub(super) fn count(&self, text: &str) -> u64 {
        u64::from(self.counter.count_text(text))
    }
}

/// Refuses a window below the smallest one.
pub(crate) fn check_context_size(size: Option<u32>) -> Result<(), AppError> {
    match size {
        Some(size) if size < MIN_CONTEXT_SIZE => {
            let problem = format!("{size} is below {MIN_CONTEXT_SIZE} tokens");
            Err(AppError::invalid("contextSize", problem))
        }
        _ => Ok(()),
    }
}

/// Refuses a system prompt that does not fit into the window that the session or the configuration names: no context
/// could be built. Blocks on the disk.
///
/// Without a named window the prompt is accepted: the model's window is known only when a context is built.
pub(crate) fn check_system_prompt(
    core: &Core,
    prompt: Option<&str>,
    size: Option<u32>,
    model: Option<&str>,
) -> Result<(), AppError> {
    let config = core.config();
    let (Some(prompt), Some(size)) = (prompt, size.or(config.context.size)) else { return Ok(()) };
    if prompt.is_empty() {
        return Ok(());
    }
    let counter = core.counts.load(model.or(config.ollama.model.as_deref()), None, &[]);
    let message = ContextMessage::text(Role::System, prompt);
    let needed = u64::from(counter.count_head(Some(&message), &[]).0);
    let available = prompt_limit(size, config.context.answer_reserve);
    if needed > available {
        return Err(ContextError::Overflow { needed, available, what: "system prompt" }.into());
    }
    Ok(())
}

/// Returns the window of a session in tokens.
pub(crate) fn context_size(core: &Core, id: SessionId) -> Result<u32, AppError> {
    let own = core.sessions.with(id, |live| live.state().context_size())?;
    Ok(core.config().context.size_for(own))
}
