//! `session.record`, `session.recordToolCall` and `session.recordCustom`: recording messages, tool calls and data of
//! clients.

use std::sync::Arc;

use ollm_protocol::content::{CountKind, Custom, Message, Part, RecordBody, Role, ToolCall};
use ollm_protocol::limits::{self, BoundedField};
use ollm_protocol::methods::session::{
    MessageInput, SessionRecordCustomParams, SessionRecordParams, SessionRecordResult,
    SessionRecordToolCallParams,
};
use ollm_protocol::{SessionId, method};

use crate::app::core::Core;
use crate::app::drafts::{counted_for, key_use, message_drafts, take_key};
use crate::app::error::{AppError, Result};
use crate::app::loops;
use crate::app::writes::add_writes;
use crate::session::{IdempotencyKey, NewRecord};

/// Records a message (`session.record`).
pub(crate) async fn record(
    core: Arc<Core>,
    params: SessionRecordParams,
) -> Result<SessionRecordResult> {
    let SessionRecordParams { session_id, message, key } = params;
    // `chat.send` has the same keys: a message that is recorded now and sent later is one message.
    let key = key_use::<method::ChatSend>(key, &message)?;
    let message = checked_message(&core, message)?;
    let drafts = message_drafts(&core, session_id, message, true);
    write(&core, session_id, drafts, key).await
}

/// Records an executed tool call (`session.recordToolCall`).
pub(crate) async fn record_tool_call(
    core: Arc<Core>,
    params: SessionRecordToolCallParams,
) -> Result<SessionRecordResult> {
    let SessionRecordToolCallParams { session_id, tool_call: input, key } = params;
    let key = key_use::<method::SessionRecordToolCall>(key, &input)?;
    if input.id.is_empty() || input.name.is_empty() {
        return Err(AppError::invalid("toolCall", "id and name must not be empty"));
    }
    let mut call = ToolCall {
        id: input.id,
        name: input.name,
        args: input.args,
        result: input.result,
        timestamp: input.timestamp.unwrap_or_else(|| core.clock.now()),
        duration_ms: input.duration_ms,
        message_seq: input.message_seq,
        writes: None,
        writes_root: None,
        writes_omitted: 0,
    };
    let files = add_writes(&core, &mut call, input.writes, input.writes_omitted)?;
    let mut body = RecordBody::ToolCall(call);
    limits::check_record(&mut body)?;
    let (draft, kind) = counted_for(&core, session_id, body);
    write(&core, session_id, (vec![NewRecord { files, ..draft }], kind), key).await
}

/// Records data of a client (`session.recordCustom`).
pub(crate) async fn record_custom(
    core: Arc<Core>,
    mut params: SessionRecordCustomParams,
) -> Result<SessionRecordResult> {
    let key = take_key::<method::SessionRecordCustom>(&mut params, |params| &mut params.key)?;
    let SessionRecordCustomParams { session_id, name, data, context_text, .. } = params;
    if name.is_empty() {
        return Err(AppError::invalid("name", "must not be empty"));
    }
    BoundedField::CustomName.check(name.len())?;
    let body = RecordBody::Custom(Custom { name, data, context_text });
    let (draft, kind) = counted_for(&core, session_id, body);
    write(&core, session_id, (vec![draft], kind), key).await
}

/// Writes the drafts of one call; the reply is about the first one.
async fn write(
    core: &Arc<Core>,
    id: SessionId,
    (drafts, kind): (Vec<NewRecord>, CountKind),
    key: Option<IdempotencyKey>,
) -> Result<SessionRecordResult> {
    let counted = drafts.first().and_then(|draft| draft.tokens.as_ref());
    let tokens = counted.map_or(0, |counted| counted.0);
    let appended = core.append(id, drafts, key).await?;
    let r#loop = loops::after_record(core, id, appended.seq).await;
    Ok(SessionRecordResult {
        seq: appended.seq,
        at: appended.at,
        tokens: appended.tokens,
        // An earlier write with the same key may have been counted in another way.
        count_kind: if appended.tokens == tokens { kind } else { CountKind::Estimated },
        usage: appended.usage,
        duplicate: appended.duplicate,
        r#loop,
        not_kept: Some(appended.not_kept).filter(|not_kept| not_kept.count > 0),
    })
}

/// Returns the message to record.
///
/// **Errors**: `Invalid` if its fields contradict each other; `TooLarge`.
pub(crate) fn checked_message(core: &Core, input: MessageInput) -> Result<Message> {
    let parts = match (input.parts, input.content) {
        (Some(parts), None) => parts,
        (None, Some(text)) => vec![Part::Text { text }],
        _ => return Err(AppError::invalid("message", "needs either parts or content")),
    };
    let calls_tools = parts.iter().any(|part| matches!(part, Part::ToolCall { .. }));
    if calls_tools && input.role != Role::Assistant {
        return Err(AppError::invalid("message.parts", "only an assistant message calls tools"));
    }
    if input.role != Role::Tool && (input.tool_call_id.is_some() || input.tool_name.is_some()) {
        let problem = "toolCallId and toolName belong to messages of role tool";
        return Err(AppError::invalid("message", problem));
    }
    let mut message = Message {
        role: input.role,
        parts,
        timestamp: input.timestamp.unwrap_or_else(|| core.clock.now()),
        tool_call_id: input.tool_call_id,
        tool_name: input.tool_name,
        model: input.model,
        finish_reason: input.finish_reason,
        duration_ms: input.duration_ms,
    };
    limits::check_message(&mut message)?;
    Ok(message)
}
