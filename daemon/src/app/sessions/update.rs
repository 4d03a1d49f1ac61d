//! `session.update`, `setMode`, `archive`, `unarchive` and `close`: changing fields and status of a session.

use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::content::{
    Close, CloseReason, MetaPatch, ModeChange, RecordBody, SessionStatus,
};
use ollm_protocol::event::SessionArchivedData;
use ollm_protocol::limits::{self, BoundedField};
use ollm_protocol::methods::session::{
    SessionIdParams, SessionResult, SessionSetModeParams, SessionUpdateParams,
};

use super::documents;
use crate::app::change::{View, change, change_state};
use crate::app::context::quota::check_system_prompt;
use crate::app::core::{Core, SessionSettings, blocking};
use crate::app::drafts::{MarkedChange, mark_before, uncounted};
use crate::app::error::{
    AppError, Result, check_context_size, check_keep_alive, check_permissions,
};
use crate::app::models::answer_options::{check_kept, check_size};
use crate::app::models::gate::check_servers;
use crate::projects::Projects;
use crate::session::{SessionError, SessionState};

/// Changes fields of a session (`session.update`).
pub(crate) async fn update(core: Arc<Core>, params: SessionUpdateParams) -> Result<SessionResult> {
    let id = params.session_id;
    let patch = checked_patch(&core, params)?;
    if !patch.options.is_empty() {
        let settings = blocking(&core, move |core| core.settings(id)).await?;
        check_kept(&core, patch.model.clone().or(settings.model), &patch.options).await?;
    }
    let mut checked = None;
    if patch.system_prompt.is_some() || patch.context_size.is_some() || patch.model.is_some() {
        let patch = patch.clone();
        let check = move |core: &Arc<Core>| check_changed_prompt(core, id, patch);
        checked = Some(blocking(&core, check).await?);
    }
    let now = core.clock.now();
    change_state(&core, id, move |state| {
        // Another call may have changed the fields beside which the prompt was counted.
        if checked.is_some_and(|checked| checked != SessionSettings::of(state)) {
            return Err(SessionError::LeafMoved { id }.into());
        }
        if !patch.metadata.is_empty() {
            let mut all = state.summary(now).metadata;
            all.extend(patch.metadata.clone());
            BoundedField::Metadata.check(limits::metadata_bytes(&all))?;
        }
        let mut options = state.options();
        options.extend(patch.options.clone());
        check_size(&options)?;
        Ok(vec![uncounted(RecordBody::Meta(patch))])
    })
    .await?;
    result(&core, id).await
}

/// Returns the change that params name, without a check of what depends on the session or a server.
fn checked_patch(core: &Core, params: SessionUpdateParams) -> Result<MetaPatch> {
    let mut patch = MetaPatch {
        title: params.title,
        description: params.description,
        model: params.model,
        provider: params.provider,
        system_prompt: params.system_prompt,
        context_size: params.context_size,
        keep_alive_seconds: params.keep_alive_seconds,
        allowed_servers: params.allowed_servers,
        options: params.options.unwrap_or_default(),
        project_path: params.project_path.as_deref().map(Projects::canonical).transpose()?,
        pinned: params.pinned,
        archived: None,
        metadata: params.metadata.unwrap_or_default(),
    };
    if patch == MetaPatch::default() {
        return Err(AppError::invalid("params", "name at least one field to change"));
    }
    check_context_size(patch.context_size)?;
    check_keep_alive(patch.keep_alive_seconds)?;
    check_servers(core, patch.allowed_servers.as_deref())?;
    check_permissions(&patch.metadata)?;
    limits::check_patch(&mut patch)?;
    Ok(patch)
}

/// Refuses a change after which the system prompt would not fit. Returns the settings before it. Blocks on the disk.
fn check_changed_prompt(core: &Core, id: SessionId, patch: MetaPatch) -> Result<SessionSettings> {
    let own = core.settings(id)?;
    let prompt = patch.system_prompt.as_ref().or(own.system_prompt.as_ref());
    let model = patch.model.as_ref().or(own.model.as_ref());
    let size = patch.context_size.or(own.context_size);
    check_system_prompt(core, prompt.map(String::as_str), size, model.map(String::as_str))?;
    Ok(own)
}

/// Archives a session (`session.archive`).
pub(crate) async fn archive(core: Arc<Core>, params: SessionIdParams) -> Result<SessionResult> {
    let id = params.session_id;
    let is_due = |status| status != SessionStatus::Archived;
    if change_status(&core, id, is_due, archived(true)).await? {
        announce_archived(&core, id, "client");
    }
    result(&core, id).await
}

/// Appends a record if the session is due for it by its status; returns whether it was.
async fn change_status(
    core: &Arc<Core>,
    id: SessionId,
    is_due: fn(SessionStatus) -> bool,
    body: RecordBody,
) -> Result<bool> {
    let now = core.clock.now();
    let plan = move |state: &SessionState| {
        let is_due = is_due(state.summary(now).status);
        Ok(if is_due { vec![uncounted(body)] } else { Vec::new() })
    };
    Ok(change_state(core, id, plan).await?.is_some())
}

fn archived(archived: bool) -> RecordBody {
    RecordBody::Meta(MetaPatch { archived: Some(archived), ..MetaPatch::default() })
}

fn announce_archived(core: &Core, id: SessionId, reason: &'static str) {
    core.publish(id, None, &SessionArchivedData { reason: reason.to_owned() });
}

/// Archives a session and announces the reason, which is not recorded. Blocks on the disk.
pub(super) fn archive_for(core: &Core, id: SessionId, reason: &'static str) -> Result<()> {
    core.sessions.append(id, vec![uncounted(archived(true))], None)?.wait()?;
    announce_archived(core, id, reason);
    Ok(())
}

/// Unarchives a session (`session.unarchive`).
pub(crate) async fn unarchive(core: Arc<Core>, params: SessionIdParams) -> Result<SessionResult> {
    let is_due = |status| status == SessionStatus::Archived;
    change_status(&core, params.session_id, is_due, archived(false)).await?;
    result(&core, params.session_id).await
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
    result(&core, session_id).await
}

/// Closes a session and writes its document (`session.close`).
pub(crate) async fn close(core: Arc<Core>, params: SessionIdParams) -> Result<SessionResult> {
    let id = params.session_id;
    let is_due = |status| status != SessionStatus::Closed;
    let body = RecordBody::Close(Close { reason: CloseReason::Client });
    if change_status(&core, id, is_due, body).await? {
        blocking(&core, move |core| documents::write(core, id)).await?;
    }
    result(&core, id).await
}

async fn result(core: &Arc<Core>, id: SessionId) -> Result<SessionResult> {
    let session = blocking(core, move |core| core.summary(id)).await?;
    Ok(SessionResult { session })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::app::testing::TestSession;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn concurrent_updates_never_exceed_the_metadata_limit() {
        let session = TestSession::new(&[]);
        let value = "x".repeat(BoundedField::Metadata.max_bytes() * 2 / 5);
        let tasks: Vec<_> = (0..4)
            .map(|number| {
                let metadata = json!({ format!("key {number}"): value });
                let params = json!({ "sessionId": session.id, "metadata": metadata });
                let params = serde_json::from_value(params).expect("params");
                crate::shutdown::Tasks::new().spawn(update(Arc::clone(&session.core), params))
            })
            .collect();
        let mut n_updated = 0;
        for task in tasks {
            match task.await.expect("no panic") {
                Ok(_) => n_updated += 1,
                Err(error) => assert!(matches!(error, AppError::TooLarge(_)), "{error}"),
            }
        }
        assert_eq!(n_updated, 2);
        let metadata = session.core.summary(session.id).expect("is there").metadata;
        assert_eq!(metadata.len(), 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn session_is_archived_once_by_concurrent_calls() {
        let session = TestSession::new(&[]);
        let params = || SessionIdParams { session_id: session.id };
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let archive = archive(Arc::clone(&session.core), params());
                crate::shutdown::Tasks::new().spawn(archive)
            })
            .collect();
        for task in tasks {
            let archived = task.await.expect("no panic").expect("archives").session;
            assert_eq!(archived.status, SessionStatus::Archived);
        }
        let n_records = |session: &TestSession| {
            let bodies = session.bodies();
            bodies.iter().filter(|body| matches!(body, RecordBody::Meta(_))).count()
        };
        assert_eq!(n_records(&session), 1);
        for _ in 0..2 {
            let session = unarchive(Arc::clone(&session.core), params()).await.expect("unarchives");
            assert_eq!(session.session.status, SessionStatus::Active);
        }
        assert_eq!(n_records(&session), 2);
    }
}
