//! The tour's compaction: a conversation that no longer fits becomes short, and loses nothing.

use ollm_protocol::SessionId;
use ollm_protocol::content::CompactStrategy;
use ollm_protocol::method::{ContextBuild, ContextCompact, SessionGet, SessionUpdate};
use ollm_protocol::methods::context::{ContextBuildParams, ContextCompactParams};
use ollm_protocol::methods::session::SessionUpdateParams;
use serde_json::json;

use super::super::CommandError;
use super::{Steps, WINDOW, broken, scratch};
use crate::connection::BlockingClient;
use crate::render::number::grouped;

/// Makes the conversation fit its window, without a model so that it takes no time.
pub(super) fn run(
    client: &mut BlockingClient,
    id: SessionId,
    steps: &mut Steps<'_, '_>,
) -> Result<(), CommandError> {
    client.call::<SessionUpdate>(&SessionUpdateParams {
        context_size: Some(WINDOW),
        ..SessionUpdateParams::new(id)
    })?;
    let done = client.call::<ContextCompact>(&ContextCompactParams {
        strategy: Some(CompactStrategy::Truncate),
        ..ContextCompactParams::new(id)
    })?;
    let built = client.call::<ContextBuild>(&ContextBuildParams::new(id))?;
    let session = client.call::<SessionGet>(&scratch::first_page(id))?.session;
    if !done.compacted || done.tokens_after >= done.tokens_before {
        return Err(broken("the context is not shorter after a compaction"));
    }
    if built.tokens_used > built.token_budget || built.transient {
        return Err(broken("the context does not fit after a compaction"));
    }
    if session.message_count < built.original_message_count {
        return Err(broken("messages are missing from the log after a compaction"));
    }
    let text = format!(
        "{} tokens before, {} after; the log still has all {} messages,\nand what is left out is named: {} entries",
        grouped(done.tokens_before),
        grouped(done.tokens_after),
        grouped(session.message_count),
        built.omitted.len(),
    );
    let numbers = json!({
        "tokensBefore": done.tokens_before, "tokensAfter": done.tokens_after,
        "messages": session.message_count, "omitted": built.omitted.len(),
    });
    steps.tell("compact", &text, numbers)
}
