//! Reading ahead: after a compaction in the background, the model reads the new context in the pause, so that the user's
//! next message does not wait for that.

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::SessionId;
use ollm_protocol::content::CompactMode;
use ollm_protocol::methods::context::ContextBuildParams;

use super::summarizer::{QueuePlace, Summarizer, summarizes_itself};
use crate::app::context::build::build_with;
use crate::app::core::Core;
use crate::app::error::Result;
use crate::model::{Priority, ThinkMode};

/// The shortest reading that is worth a request. Users hardly notice a shorter wait.
const LEAST_READING: Duration = Duration::from_secs(1);

/// The model of a session's last chat, if it is so slow that its reading of a new context is worth a request.
struct SlowReader {
    model: String,
    window: u32,
    /// The params of the last build of the chat.
    params: Arc<ContextBuildParams>,
    think: Option<ThinkMode>,
}

/// Returns whether the user of the next message would notice that the model of the last chat reads a new context, which
/// has about half of the tokens that are available.
pub(super) fn is_reading_noticed(core: &Core, id: SessionId, available: u64) -> bool {
    slow_reader(core, id, available / 2).is_some()
}

/// Returns the model of the session's last chat if it needs a noticeable time to read some tokens, and if the next chat
/// certainly sends it this context. Never blocks.
fn slow_reader(core: &Core, id: SessionId, tokens: u64) -> Option<SlowReader> {
    let last = core.cache.peek(id, |session| {
        let recipe = session.builds.recipe(None)?;
        Some((Arc::clone(&recipe.params), session.last_chat?))
    });
    let (params, chat) = last.flatten()?;
    // A chat names both. Other clients may send their contexts elsewhere.
    let (model, window) = (params.model.clone()?, params.context_size?);
    let measured = core.speeds.get(&model);
    let keep_alive = core.config().ollama.keep_alive;
    let is_loaded = measured.last_used.is_some_and(|used| used.elapsed() < keep_alive);
    let is_slow = measured.reading_or_guess(tokens).is_some_and(|reading| reading >= LEAST_READING);
    // A different model that writes the summaries may have displaced this one from the server's memory.
    (is_loaded && is_slow && summarizes_itself(core, &model)).then_some(SlowReader {
        model,
        window,
        params,
        think: chat.think,
    })
}

/// Sends the new context of a session to the model of its last chat, if the model is slow. Gives way to chats.
///
/// `tokens`: those of the context.
pub(super) async fn read_ahead(core: &Arc<Core>, id: SessionId, tokens: u64) {
    let Some(reader) = slow_reader(core, id, tokens) else { return };
    match reader.read(core, id).await {
        Ok(true) => tracing::debug!(session = %id, "the model has read the new context"),
        Ok(false) => {}
        Err(error) => tracing::debug!(session = %id, "the new context was not read: {error}"),
    }
}

impl SlowReader {
    /// Returns whether the model read the whole context.
    async fn read(self, core: &Arc<Core>, id: SessionId) -> Result<bool> {
        let Self { model, window, params, think } = self;
        let place = QueuePlace::Own(Priority::Background);
        let requests = Summarizer::new(core, id, &model, place, false, window).await?;
        let ticket = core.models.queues().enter(&model, Priority::Background);
        if ticket.n_ahead() > 0 || core.turns.is_running(id) {
            return Ok(false);
        }
        let tools = params.tools.clone();
        let params = ContextBuildParams {
            compact: CompactMode::Never,
            pending: None,
            strategy: None,
            ..(*params).clone()
        };
        // This build counts as the last one, because the server has its prompt in the cache afterwards.
        let built = build_with(core, params, None).await?;
        let requests = requests.behind_chat(tools).thinking(think);
        let end = requests.read_prompt(built.messages, &ticket).await?;
        if let Some(end) = &end {
            let effective = core.speeds.get(&model).effective;
            core.speeds.note(&model, end, effective, built.prefix_tokens);
        }
        Ok(end.is_some())
    }
}
