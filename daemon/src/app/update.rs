//! Changing what a session is called, how it is set up, and where it is in its life.

use std::sync::Arc;

use ollm_protocol::content::{
    Close, CloseReason, MIN_CONTEXT_SIZE, Meta, MetaPatch, ModeChange, RecordBody, Session,
    SessionStatus,
};
use ollm_protocol::methods::session::{SessionSetModeParams, SessionUpdateParams};
use ollm_protocol::{EventKind, SessionId};

use super::mark::{Moment, mark};
use super::shares::check_system_prompt;
use super::{AppError, Core, append, append_after, blocking};
use crate::events::EventDraft;
use crate::projects::Projects;
use crate::session::{NewRecord, OpenSession, SessionError};

/// How often a change of the mode is made anew because something was recorded meanwhile.
const MAX_TRIES: usize = 32;

/// Refuses a window that no context fits into.
pub(super) fn check_context_size(size: Option<u32>) -> Result<(), AppError> {
    match size {
        Some(size) if size < MIN_CONTEXT_SIZE => {
            let problem = format!("{size} is below {MIN_CONTEXT_SIZE} tokens");
            Err(AppError::invalid("contextSize", problem))
        }
        _ => Ok(()),
    }
}

/// Titles and descriptions are in every list, so they stay short; in bytes.
const MAX_TITLE_BYTES: usize = 4 * 1024;
/// Far more than any window takes; in bytes.
const MAX_PROMPT_BYTES: usize = 1024 * 1024;
/// Client data is in every list too: a page of a thousand sessions must fit a frame only in the usual case,
/// but one session always must; in bytes of JSON.
const MAX_METADATA_BYTES: usize = 256 * 1024;

/// Refuses texts that would make a session too large to be listed.
pub(super) fn check_texts(
    title: Option<&str>,
    description: Option<&str>,
    system_prompt: Option<&str>,
) -> Result<(), AppError> {
    let texts = [
        ("title", title, MAX_TITLE_BYTES),
        ("description", description, MAX_TITLE_BYTES),
        ("systemPrompt", system_prompt, MAX_PROMPT_BYTES),
    ];
    for (field, text, limit) in texts {
        let bytes = text.map_or(0, str::len);
        if bytes > limit {
            let problem = format!("has {bytes} bytes; at most {limit} are taken");
            return Err(AppError::invalid(field, problem));
        }
    }
    Ok(())
}

/// Refuses client data that would make a session too large to be listed.
pub(super) fn check_metadata(metadata: Option<&Meta>) -> Result<(), AppError> {
    let json = serde_json::to_vec(&metadata).map_or(0, |json| json.len());
    if json > MAX_METADATA_BYTES {
        let problem = format!("has {json} bytes in all; at most {MAX_METADATA_BYTES} are kept");
        return Err(AppError::invalid("metadata", problem));
    }
    Ok(())
}

/// Changes fields of a session.
pub(crate) async fn update(
    core: &Arc<Core>,
    params: SessionUpdateParams,
) -> Result<Session, AppError> {
    let SessionUpdateParams {
        session_id,
        title,
        description,
        model,
        provider,
        system_prompt,
        context_size,
        project_path,
        pinned,
        metadata,
    } = params;
    check_context_size(context_size)?;
    check_texts(title.as_deref(), description.as_deref(), system_prompt.as_deref())?;
    if system_prompt.is_some() || context_size.is_some() || model.is_some() {
        let changed = (system_prompt.clone(), context_size, model.clone());
        blocking(core, move |core| check_prompt_of(core, session_id, changed)).await?;
    }
    if let Some(new) = &metadata {
        let mut all = summary(core, session_id).await?.metadata;
        all.extend(new.clone());
        check_metadata(Some(&all))?;
    }
    let patch = MetaPatch {
        title,
        description,
        model,
        provider,
        system_prompt,
        context_size,
        project_path: project_path.as_deref().map(Projects::canonical).transpose()?,
        pinned,
        archived: None,
        metadata: metadata.unwrap_or_default(),
    };
    if patch == MetaPatch::default() {
        return Err(AppError::invalid("params", "name at least one field to change"));
    }
    patched(core, session_id, patch).await
}

/// Refuses changes after which the system prompt would not fit.
fn check_prompt_of(
    core: &Core,
    id: SessionId,
    (prompt, size, model): (Option<String>, Option<u32>, Option<String>),
) -> Result<(), AppError> {
    let (own_prompt, own_size, own_model) = core.sessions.with(id, |live| {
        let own = |text: Option<&str>| text.map(str::to_owned);
        (own(live.state().system_prompt()), live.state().context_size(), own(live.state().model()))
    })?;
    let (prompt, model) = (prompt.or(own_prompt), model.or(own_model));
    check_system_prompt(core, prompt.as_deref(), size.or(own_size), model.as_deref())
}

/// Puts a session away.
pub(crate) async fn archive(core: &Arc<Core>, id: SessionId) -> Result<Session, AppError> {
    let was = summary(core, id).await?;
    if was.status == SessionStatus::Archived {
        return Ok(was);
    }
    archive_because(core, id, "client").await
}

/// Puts a session away and tells why; that is not in the record.
pub(super) async fn archive_because(
    core: &Arc<Core>,
    id: SessionId,
    reason: &'static str,
) -> Result<Session, AppError> {
    let session = set_archived(core, id, true).await?;
    core.events.publish(EventDraft {
        session_id: Some(id),
        seq: None,
        kind: EventKind::SessionArchived,
        at: core.clock.now(),
        data: serde_json::json!({ "reason": reason }),
    });
    Ok(session)
}

/// Brings an archived session back.
pub(crate) async fn unarchive(core: &Arc<Core>, id: SessionId) -> Result<Session, AppError> {
    let session = summary(core, id).await?;
    if session.status != SessionStatus::Archived {
        return Ok(session);
    }
    set_archived(core, id, false).await
}

async fn set_archived(
    core: &Arc<Core>,
    id: SessionId,
    archived: bool,
) -> Result<Session, AppError> {
    patched(core, id, MetaPatch { archived: Some(archived), ..MetaPatch::default() }).await
}

async fn patched(core: &Arc<Core>, id: SessionId, patch: MetaPatch) -> Result<Session, AppError> {
    append(core, id, vec![NewRecord::new(RecordBody::Meta(patch), None)], None).await?;
    summary(core, id).await
}

/// Changes the mode of a session.
pub(crate) async fn set_mode(
    core: &Arc<Core>,
    params: SessionSetModeParams,
) -> Result<Session, AppError> {
    let SessionSetModeParams { session_id, mode, trigger, confidence } = params;
    if mode.is_empty() {
        return Err(AppError::invalid("mode", "must not be empty"));
    }
    if confidence.is_some_and(|confidence| !(0.0..=1.0).contains(&confidence)) {
        return Err(AppError::invalid("confidence", "must lie between 0 and 1"));
    }
    let trigger = trigger.unwrap_or_else(|| "manual".to_owned());
    for _ in 0..MAX_TRIES {
        // What the mark names and what the change says it changes are true only on top of this leaf.
        let (from, leaf) = blocking(core, move |core| {
            let state = |live: &OpenSession| (live.state().mode(), live.state().leaf());
            Ok(core.sessions.with(session_id, state)?)
        })
        .await?;
        let change = ModeChange {
            from,
            to: mode.clone(),
            timestamp: core.clock.now(),
            trigger: trigger.clone(),
            confidence,
        };
        let change = NewRecord::new(RecordBody::ModeChange(change), None);
        let drafts = vec![mark(core, leaf, Moment::ModeChange), change];
        if append_after(core, session_id, leaf, drafts).await?.is_some() {
            return summary(core, session_id).await;
        }
    }
    Err(SessionError::Busy { id: session_id, waiting: 1 }.into())
}

/// Closes a session and writes its document.
pub(crate) async fn close(core: &Arc<Core>, id: SessionId) -> Result<Session, AppError> {
    let session = summary(core, id).await?;
    if session.status == SessionStatus::Closed {
        return Ok(session);
    }
    let body = RecordBody::Close(Close { reason: CloseReason::Client });
    append(core, id, vec![NewRecord::new(body, None)], None).await?;
    blocking(core, move |core| {
        super::save(core, id)?;
        core.summary(id)
    })
    .await
}

async fn summary(core: &Arc<Core>, id: SessionId) -> Result<Session, AppError> {
    blocking(core, move |core| core.summary(id)).await
}
