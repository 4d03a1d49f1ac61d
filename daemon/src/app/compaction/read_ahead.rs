//! Reading ahead: after a compaction in the background, the model reads the new context in the pause, so that the user's
//! next message does not wait for that.

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::SessionId;
use ollm_protocol::content::CompactMode;

use super::policy::is_noticed;
use super::summarizer::{QueuePlace, Summarizer, summarizes_itself};
use crate::app::build_request::BuildRequest;
use crate::app::context::build::build_with;
use crate::app::core::Core;
use crate::app::error::Result;
use crate::model::{Priority, ThinkMode};

/// The model of a session's last chat, to which the next chat certainly sends the context, and from the beginning.
pub(super) struct NextReader {
    /// The expected time in which it reads the context.
    pub(super) reading: Duration,
    model: String,
    window: u32,
    /// The params of the last build of the chat.
    params: Arc<BuildRequest>,
    think: Option<ThinkMode>,
}

/// Sends the new context of a session to the model of its last chat, if the model is slow. Gives way to chats.
///
/// `tokens`: those of the context.
pub(super) async fn read_ahead(core: &Arc<Core>, id: SessionId, tokens: u64) {
    let reader = NextReader::of(core, id, tokens).filter(|reader| is_noticed(reader.reading));
    let Some(reader) = reader else { return };
    match reader.read(core, id).await {
        Ok(true) => tracing::debug!(session = %id, "the model has read the new context"),
        Ok(false) => {}
        Err(error) => tracing::debug!(session = %id, "the new context was not read: {error}"),
    }
}

impl NextReader {
    /// Returns the reader of a context of some tokens, if its speed is known. Never blocks.
    pub(super) fn of(core: &Core, id: SessionId, tokens: u64) -> Option<Self> {
        let last = core.cache.peek(id, |session| {
            let recipe = session.builds.recipe(None)?;
            Some((Arc::clone(&recipe.request), session.last_chat?))
        });
        let (params, chat) = last.flatten()?;
        // A chat names both. Other clients may send their contexts elsewhere.
        let (model, window) = (params.model.clone()?, params.context_size?);
        let measured = core.speeds.get(&model);
        let keep_alive = core.keep_alive(id);
        let is_loaded = measured.last_used.is_some_and(|used| used.elapsed() < keep_alive);
        let reading = measured.reading_or_guess(tokens)?;
        // A different model that writes the summaries may have displaced this one from the server's memory.
        (is_loaded && summarizes_itself(core, id, &model)).then_some(Self {
            reading,
            model,
            window,
            params,
            think: chat.think,
        })
    }

    /// Returns whether the model read the whole context.
    async fn read(self, core: &Arc<Core>, id: SessionId) -> Result<bool> {
        let Self { model, window, params, think, .. } = self;
        let place = QueuePlace::Own(Priority::Background);
        let requests = Summarizer::new(core, id, &model, place, false, window).await?;
        let ticket = core.models.queues().enter(&model, Priority::Background);
        // The user of the other session may come back first.
        let displaces_other = core.speeds.get(&model).slots.displace_other(id);
        if ticket.n_ahead() > 0 || core.turns.is_running(id) || displaces_other {
            return Ok(false);
        }
        let tools = params.tools.clone();
        let params = BuildRequest {
            compact: CompactMode::Never,
            pending: None,
            strategy: None,
            recall: false,
            ..(*params).clone()
        };
        // This build counts as the last one, because the server has its prompt in the cache afterwards.
        let built = build_with(core, params, None).await?;
        let requests = requests.behind_chat(tools).thinking(think);
        Ok(requests.read_prompt(built.messages, built.prefix_tokens, &ticket).await?)
    }
}
