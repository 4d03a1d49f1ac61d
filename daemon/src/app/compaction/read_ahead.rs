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
use crate::model::Priority;

/// The shortest reading that is worth a request. Users hardly notice a shorter wait.
const LEAST_READING: Duration = Duration::from_secs(1);

/// Sends the new context of a session to the model of its last chat, if the model is slow. Gives way to chats.
///
/// `tokens`: those of the context.
pub(super) async fn read_ahead(core: &Arc<Core>, id: SessionId, tokens: u64) {
    match try_read(core, id, tokens).await {
        Ok(true) => tracing::debug!(session = %id, "the model has read the new context"),
        Ok(false) => {}
        Err(error) => tracing::debug!(session = %id, "the new context was not read: {error}"),
    }
}

/// Returns whether the model read the whole context.
async fn try_read(core: &Arc<Core>, id: SessionId, tokens: u64) -> Result<bool> {
    let last = core
        .cache
        .peek(id, |session| session.builds.recipe(None).map(|recipe| (*recipe.params).clone()));
    let Some(last) = last.flatten() else { return Ok(false) };
    // A chat names both. Other clients may send their contexts elsewhere.
    let (Some(model), Some(window)) = (last.model.clone(), last.context_size) else {
        return Ok(false);
    };
    let measured = core.speeds.get(&model);
    let reading = measured.reading_or_guess(tokens);
    let keep_alive = core.config().ollama.keep_alive;
    let is_loaded = measured.last_used.is_some_and(|used| used.elapsed() < keep_alive);
    // A different model that writes the summaries may have displaced this one from the server's memory.
    if reading.is_none_or(|reading| reading < LEAST_READING)
        || !is_loaded
        || !summarizes_itself(core, &model)
    {
        return Ok(false);
    }
    let place = QueuePlace::Own(Priority::Background);
    let reader = Summarizer::new(core, &model, place, false, window).await?;
    let ticket = core.models.queues().enter(&model, Priority::Background);
    // Some templates write the mode of thinking at the beginning of a prompt, and each message names its own.
    if reader.can_think() || ticket.n_ahead() > 0 || core.turns.is_running(id) {
        return Ok(false);
    }
    let tools = last.tools.clone();
    let params =
        ContextBuildParams { compact: CompactMode::Never, pending: None, strategy: None, ..last };
    // This build counts as the last one, because the server has its prompt in the cache afterwards.
    let built = build_with(core, params, None).await?;
    let end = reader.behind_chat(tools).read_prompt(built.messages, &ticket).await?;
    if let Some(end) = &end {
        core.speeds.note(&model, end, measured.effective, built.prefix_tokens);
    }
    Ok(end.is_some())
}
