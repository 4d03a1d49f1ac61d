//! Reading ahead: after a compaction in the background, the model reads the new context in the pause. Otherwise the user's
//! next message would wait for that, a minute on the slowest machines.

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::SessionId;
use ollm_protocol::content::CompactMode;
use ollm_protocol::methods::context::ContextBuildParams;

use super::automatic::summarizes_itself;
use super::summarizer::{QueuePlace, Summarizer};
use crate::app::context::build::build_with;
use crate::app::core::Core;
use crate::app::error::Result;
use crate::app::models::model_or_default;
use crate::model::Priority;

/// The shortest reading that is worth a request: a user hardly notices less.
const LEAST_READING: Duration = Duration::from_secs(1);

/// Lets the model of a session read its context, if it was sent one before and would need long for this one. Gives way to
/// chats; without an answer, the next turn reads the context itself.
pub(super) async fn read_ahead(core: &Arc<Core>, id: SessionId) {
    match try_read(core, id).await {
        Ok(true) => tracing::debug!(session = %id, "the model has read the new context"),
        Ok(false) => {}
        Err(error) => tracing::debug!(session = %id, "the new context was not read: {error}"),
    }
}

/// Returns whether the model read the whole context.
async fn try_read(core: &Arc<Core>, id: SessionId) -> Result<bool> {
    let last = core
        .cache
        .peek(id, |session| session.builds.recipe(None).map(|recipe| (*recipe.params).clone()));
    let Some(last) = last.flatten() else { return Ok(false) };
    let model = model_or_default(core, last.model.clone().or(core.summary(id)?.model))?;
    let measured = core.speeds.get(&model);
    // Another model that writes the summaries may have taken its memory.
    if measured.last_used.is_none() || !summarizes_itself(core, &model) {
        return Ok(false);
    }
    let params =
        ContextBuildParams { compact: CompactMode::Never, pending: None, strategy: None, ..last };
    let tools = params.tools.clone();
    // It counts as a build, so that the next one knows what the server has in its cache.
    let built = build_with(core, params, None).await?;
    let reading = measured.longest_reading(built.tokens_used);
    if built.transient || reading.is_none_or(|reading| reading < LEAST_READING) {
        return Ok(false);
    }
    let place = QueuePlace::Own(Priority::Background);
    let reader = Summarizer::new(core, &model, place, false, built.num_ctx).await?;
    Ok(reader.behind_chat(tools).read_prompt(built.messages).await?)
}
