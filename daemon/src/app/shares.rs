//! How much of a prompt something may have that is set once and sent with every context.

use ollm_protocol::SessionId;
use ollm_protocol::content::{ContextMessage, Role};

use super::{AppError, Core};
use crate::context::{ContextError, prompt_limit};
use crate::tokens::Counter;

/// A bound, and who counts against it.
pub(super) struct Share {
    /// Tokens that it may have.
    pub(super) limit: u64,
    /// Counts as the model does that will read it.
    pub(super) counter: Counter,
}

impl Share {
    /// Tokens of a text; 0 for the empty one.
    pub(super) fn count(&self, text: &str) -> u64 {
        u64::from(self.counter.count_text(text))
    }
}

/// So many percent of the prompt of a session, or of one that says nothing of its window and model. Blocks on the disk.
pub(super) fn share(
    core: &Core,
    session: Option<SessionId>,
    percent: u64,
) -> Result<Share, AppError> {
    let own = session.map(|id| {
        let of = |live: &crate::session::OpenSession| {
            (live.state().context_size(), live.state().model().map(str::to_owned))
        };
        core.sessions.with(id, of)
    });
    let (size, model) = own.transpose()?.unwrap_or_default();
    let config = core.config();
    let size = config.context.size_for(size);
    let model = model.or_else(|| config.ollama.model.clone());
    let limit = prompt_limit(size, config.context.answer_reserve) * percent / 100;
    Ok(Share { limit, counter: core.counts.load(model.as_deref(), None, &[]) })
}

/// Refuses a system prompt that leaves no room in the window that the session or the configuration names: every context
/// would be refused. Blocks on the disk.
///
/// A window that nobody names is not known before a context is built.
pub(super) fn check_system_prompt(
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
    let message = ContextMessage {
        role: Role::System,
        content: prompt.to_owned(),
        tool_calls: Vec::new(),
        tool_name: None,
        tool_call_id: None,
        images: Vec::new(),
    };
    let needed = u64::from(counter.count_head(Some(&message), &[]).0);
    let available = prompt_limit(size, config.context.answer_reserve);
    if needed > available {
        return Err(ContextError::Overflow { needed, available, what: "system prompt" }.into());
    }
    Ok(())
}
