//! `session.update`, `setMode`, `archive`, `unarchive` and `close`: changing fields and status of a session.

use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::{
    Close, CloseReason, MetaPatch, ModeChange, RecordBody, Session, SessionStatus,
};
use ollm_protocol::event::SessionArchivedData;
use ollm_protocol::limits::{self, BoundedField};
use ollm_protocol::methods::session::{
    SessionIdParams, SessionResult, SessionSetModeParams, SessionUpdateParams,
};

use super::documents;
use crate::app::change::{View, change};
use crate::app::context::quota::check_system_prompt;
use crate::app::core::{Core, blocking};
use crate::app::drafts::{MarkedChange, mark_before, uncounted};
use crate::app::error::{AppError, Result, check_context_size};
use crate::projects::Projects;

/// Changes fields of a session (`session.update`).
pub(crate) async fn update(core: Arc<Core>, params: SessionUpdateParams) -> Result<SessionResult> {
    let id = params.session_id;
    let mut patch = MetaPatch {
        title: params.title,
        description: params.description,
        model: params.model,
        provider: params.provider,
        system_prompt: params.system_prompt,
        context_size: params.context_size,
        project_path: params.project_path.as_deref().map(Projects::canonical).transpose()?,
        pinned: params.pinned,
        archived: None,
        metadata: params.metadata.unwrap_or_default(),
    };
    if patch == MetaPatch::default() {
        return Err(AppError::invalid("params", "name at least one field to change"));
    }
    check_context_size(patch.context_size)?;
    limits::check_patch(&mut patch)?;
    if patch.system_prompt.is_some() || patch.context_size.is_some() || patch.model.is_some() {
        let patch = patch.clone();
        blocking(&core, move |core| check_changed_prompt(core, id, patch)).await?;
    }
    if !patch.metadata.is_empty() {
        let mut all = summary(&core, id).await?.metadata;
        all.extend(patch.metadata.clone());
        BoundedField::Metadata.check(limits::metadata_bytes(&all))?;
    }
    Ok(SessionResult { session: write_patch(&core, id, patch).await? })
}

/// Refuses a change after which the system prompt would not fit. Blocks on the disk.
fn check_changed_prompt(core: &Core, id: SessionId, patch: MetaPatch) -> Result<()> {
    let own = core.settings(id)?;
    let prompt = patch.system_prompt.or(own.system_prompt);
    let (size, model) = (patch.context_size.or(own.context_size), patch.model.or(own.model));
    check_system_prompt(core, prompt.as_deref(), size, model.as_deref())
}

/// Archives a session (`session.archive`).
pub(crate) async fn archive(core: Arc<Core>, params: SessionIdParams) -> Result<SessionResult> {
    let id = params.session_id;
    let session = summary(&core, id).await?;
    if session.status == SessionStatus::Archived {
        return unchanged(&core, session).await;
    }
    blocking(&core, move |core| {
        archive_for(core, id, "client")?;
        Ok(SessionResult { session: core.summary(id)? })
    })
    .await
}

/// Archives a session and announces the reason, which is not recorded. Blocks on the disk.
pub(super) fn archive_for(core: &Core, id: SessionId, reason: &'static str) -> Result<()> {
    let patch = MetaPatch { archived: Some(true), ..MetaPatch::default() };
    core.sessions.append(id, vec![uncounted(RecordBody::Meta(patch))], None)?.wait()?;
    core.publish(id, None, &SessionArchivedData { reason: reason.to_owned() });
    Ok(())
}

/// Unarchives a session (`session.unarchive`).
pub(crate) async fn unarchive(core: Arc<Core>, params: SessionIdParams) -> Result<SessionResult> {
    let session = summary(&core, params.session_id).await?;
    if session.status != SessionStatus::Archived {
        return unchanged(&core, session).await;
    }
    let patch = MetaPatch { archived: Some(false), ..MetaPatch::default() };
    Ok(SessionResult { session: write_patch(&core, params.session_id, patch).await? })
}

async fn write_patch(core: &Arc<Core>, id: SessionId, patch: MetaPatch) -> Result<Session> {
    core.append_one(id, RecordBody::Meta(patch)).await?;
    summary(core, id).await
}

/// Changes the mode of a session (`session.setMode`).
pub(crate) async fn set_mode(
    core: Arc<Core>,
    params: SessionSetModeParams,
) -> Result<SessionResult> {
    let SessionSetModeParams { session_id, mode, trigger, confidence } = params;
    if mode.is_empty() {
        return Err(AppError::invalid("mode", "must not be empty"));
    }
    if confidence.is_some_and(|confidence| !(0.0..=1.0).contains(&confidence)) {
        return Err(AppError::invalid("confidence", "must lie between 0 and 1"));
    }
    let trigger = trigger.unwrap_or_else(|| "manual".to_owned());
    BoundedField::Mode.check(mode.len())?;
    BoundedField::Trigger.check(trigger.len())?;
    let timestamp = core.clock.now();
    let mark = mark_before(&core.clock, None, MarkedChange::ModeChange);
    change(&core, session_id, None, move |view: &View<'_>| {
        let from = view.state.mode();
        let change = ModeChange { from, to: mode, timestamp, trigger, confidence };
        Ok(vec![view.snapshot(mark), uncounted(RecordBody::ModeChange(change))])
    })
    .await?;
    Ok(SessionResult { session: summary(&core, session_id).await? })
}

/// Closes a session and writes its document (`session.close`).
pub(crate) async fn close(core: Arc<Core>, params: SessionIdParams) -> Result<SessionResult> {
    let id = params.session_id;
    let session = summary(&core, id).await?;
    if session.status == SessionStatus::Closed {
        return unchanged(&core, session).await;
    }
    let body = RecordBody::Close(Close { reason: CloseReason::Client });
    core.append_one(id, body).await?;
    blocking(&core, move |core| {
        documents::write(core, id)?;
        Ok(SessionResult { session: core.summary(id)? })
    })
    .await
}

/// Replies that there is nothing to change, which confirms an earlier change: it is made durable before.
async fn unchanged(core: &Arc<Core>, session: Session) -> Result<SessionResult> {
    let id = session.session_id;
    blocking(core, move |core| Ok(core.sessions.sync(id)?)).await?;
    Ok(SessionResult { session })
}

async fn summary(core: &Arc<Core>, id: SessionId) -> Result<Session> {
    blocking(core, move |core| core.summary(id)).await
}
