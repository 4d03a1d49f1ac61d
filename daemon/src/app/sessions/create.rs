//! `session.create`: starting a session, or returning the one that the same key started.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::{Session, SessionHeader};
use ollm_protocol::methods::session::{SessionCreateParams, SessionResult};
use ollm_protocol::{limits, method};

use crate::app::context::quota::check_system_prompt;
use crate::app::core::Core;
use crate::app::drafts::take_key;
use crate::app::error::{Result, check_context_size};
use crate::projects::Projects;
use crate::session::{IdempotencyKey, NewSession, SessionError};

/// The wait for the catalog to learn the newest sessions, which may have used the key.
const CATCH_UP: Duration = Duration::from_secs(5);
/// Starts a session, or returns the one that the same key started (`session.create`). Blocks on the disk.
pub(crate) fn create(core: &Arc<Core>, mut params: SessionCreateParams) -> Result<SessionResult> {
    let key = take_key::<method::SessionCreate>(&mut params, |params| &mut params.key)?;
    let _one_at_a_time = key.is_some().then(|| core.creating.lock());
    if let Some(key) = &key
        && let Some(session) = created_before(core, key)?
    {
        return Ok(SessionResult { session });
    }
    let header = checked_header(core, params)?;
    Ok(SessionResult { session: core.sessions.create(NewSession { header, key })? })
}

/// Finds the session that a key started, among the open ones and in the catalog.
pub(in crate::app) fn created_before(core: &Core, key: &IdempotencyKey) -> Result<Option<Session>> {
    let found = match core.sessions.find_create_key(&key.digest.key) {
        Some(found) => Some(found),
        None => {
            // After a crash the catalog knows the newest sessions only when it has read their logs.
            if !core.catalog.wait_caught_up(Instant::now() + CATCH_UP) {
                let id = core.clock.session_id();
                return Err(SessionError::Busy { id, waiting: 1 }.into());
            }
            core.catalog.find_create_key(key.digest.key)?
        }
    };
    let Some((id, payload)) = found else { return Ok(None) };
    if payload != key.digest.payload {
        return Err(SessionError::KeyConflict { id, seq: ollm_protocol::Seq(0) }.into());
    }
    match core.sessions.summary(id) {
        Ok(session) => Ok(Some(session)),
        Err(SessionError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn checked_header(core: &Core, params: SessionCreateParams) -> Result<SessionHeader> {
    check_context_size(params.context_size)?;
    let mut header = SessionHeader {
        session_id: core.clock.session_id(),
        start_time: core.clock.now(),
        project_path: params.project_path.as_deref().map(Projects::canonical).transpose()?,
        model: params.model,
        provider: params.provider,
        title: params.title.filter(|title| !title.is_empty()),
        system_prompt: params.system_prompt.filter(|prompt| !prompt.is_empty()),
        context_size: params.context_size,
        mode: params.mode,
        forked_from: None,
        imported_from: None,
        metadata: params.metadata.unwrap_or_default(),
    };
    limits::check_header(&mut header)?;
    let SessionHeader { system_prompt, context_size, model, .. } = &header;
    check_system_prompt(core, system_prompt.as_deref(), *context_size, model.as_deref())?;
    Ok(header)
}
