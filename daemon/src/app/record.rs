//! Recording what was said and done.

use std::sync::Arc;

use ollm_protocol::content::{CountKind, Custom, Message, Part, RecordBody, Role, ToolCall};
use ollm_protocol::methods::session::{
    MessageInput, SessionRecordCustomParams, SessionRecordParams, SessionRecordResult,
    SessionRecordToolCallParams,
};
use ollm_protocol::{Method, SessionId, method};
use serde::Serialize;

use super::{AppError, Core, append, compact, counted, goal, loops};
use crate::loops::observe;
use crate::session::IdempotencyKey;

/// Records one message.
pub(crate) async fn record(
    core: &Arc<Core>,
    params: SessionRecordParams,
) -> Result<SessionRecordResult, AppError> {
    let SessionRecordParams { session_id, message, key } = params;
    let key = key_use::<method::SessionRecord>(key, &message)?;
    let body = RecordBody::Message(message_of(core, message)?);
    write(core, session_id, body, key).await
}

/// Records one executed tool call.
pub(crate) async fn record_tool_call(
    core: &Arc<Core>,
    params: SessionRecordToolCallParams,
) -> Result<SessionRecordResult, AppError> {
    let SessionRecordToolCallParams { session_id, tool_call: input, key } = params;
    let key = key_use::<method::SessionRecordToolCall>(key, &input)?;
    if input.id.is_empty() || input.name.is_empty() {
        return Err(AppError::invalid("toolCall", "id and name must not be empty"));
    }
    let body = RecordBody::ToolCall(ToolCall {
        id: input.id,
        name: input.name,
        args: input.args,
        result: input.result,
        timestamp: input.timestamp.unwrap_or_else(|| core.clock.now()),
        duration_ms: input.duration_ms,
        message_seq: input.message_seq,
    });
    write(core, session_id, body, key).await
}

/// Records data of a client.
pub(crate) async fn record_custom(
    core: &Arc<Core>,
    mut params: SessionRecordCustomParams,
) -> Result<SessionRecordResult, AppError> {
    let key = params.key.take();
    let key = key_use::<method::SessionRecordCustom>(key, &params)?;
    let SessionRecordCustomParams { session_id, name, data, context_text, .. } = params;
    if name.is_empty() {
        return Err(AppError::invalid("name", "must not be empty"));
    }
    write(core, session_id, RecordBody::Custom(Custom { name, data, context_text }), key).await
}

async fn write(
    core: &Arc<Core>,
    id: SessionId,
    body: RecordBody,
    key: Option<IdempotencyKey>,
) -> Result<SessionRecordResult, AppError> {
    let seen = observe(&body);
    let marked = match &body {
        RecordBody::Message(message) => goal::marked(core, id, message, true),
        _ => None,
    };
    let (draft, kind) = counted(core, id, body);
    let tokens = draft.tokens.as_ref().map_or(0, |counted| counted.0);
    let drafts = [draft].into_iter().chain(marked).collect();
    let appended = append(core, id, drafts, key).await?;
    core.documents.note(id);
    let r#loop = loops::note(core, id, appended.seq, seen).await;
    compact::after_record(core, id, appended.usage.token_count);
    Ok(SessionRecordResult {
        seq: appended.seq,
        timestamp: appended.at,
        tokens: appended.tokens,
        // The first of two writes with one key may have been counted in another way.
        count_kind: if appended.tokens == tokens { kind } else { CountKind::Estimated },
        usage: appended.usage,
        duplicate: appended.duplicate,
        r#loop,
    })
}

/// Digests a key together with what it is used for, so that a retry is told apart from a reuse.
pub(super) fn key_use<M: Method>(
    key: Option<String>,
    payload: &impl Serialize,
) -> Result<Option<IdempotencyKey>, AppError> {
    let Some(key) = key else { return Ok(None) };
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        let problem = format!("must have 1 to {MAX_KEY_BYTES} bytes");
        return Err(AppError::invalid("key", problem));
    }
    let payload = serde_json::to_vec(payload)
        .map_err(|error| AppError::invalid("params", error.to_string()))?;
    Ok(Some(IdempotencyKey::new(M::NAME, key, &payload)))
}

/// Long enough for any id that a client makes; a longer one is content by mistake.
const MAX_KEY_BYTES: usize = 256;

/// A message as it is recorded.
pub(super) fn message_of(core: &Core, input: MessageInput) -> Result<Message, AppError> {
    let parts = match (input.parts, input.content) {
        (Some(parts), None) => parts,
        (None, Some(text)) => vec![Part::Text { text }],
        _ => return Err(AppError::invalid("message", "needs either parts or content")),
    };
    let calls = parts.iter().any(|part| matches!(part, Part::ToolCall { .. }));
    if calls && input.role != Role::Assistant {
        return Err(AppError::invalid("message.parts", "only an assistant message calls tools"));
    }
    if input.role != Role::Tool && (input.tool_call_id.is_some() || input.tool_name.is_some()) {
        let problem = "toolCallId and toolName belong to messages of role tool";
        return Err(AppError::invalid("message", problem));
    }
    Ok(Message {
        role: input.role,
        parts,
        timestamp: input.timestamp.unwrap_or_else(|| core.clock.now()),
        tool_call_id: input.tool_call_id,
        tool_name: input.tool_name,
        model: input.model,
        finish_reason: input.finish_reason,
        duration_ms: input.duration_ms,
    })
}
