//! Beginning a session.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use ollm_protocol::content::{Session, SessionHeader};
use ollm_protocol::method;
use ollm_protocol::methods::session::SessionCreateParams;

use super::record::key_use;
use super::shares::check_system_prompt;
use super::update::{check_context_size, check_metadata, check_texts};
use super::{AppError, Core};
use crate::projects::Projects;
use crate::session::{IdempotencyKey, NewSession, SessionError};

/// How long a key waits for a catalog that does not know the newest sessions.
const CAUGHT_UP: Duration = Duration::from_secs(5);

/// Begins a session, or returns the one that the same key began. Blocks on the disk.
pub(crate) fn create(
    core: &Arc<Core>,
    mut params: SessionCreateParams,
) -> Result<Session, AppError> {
    let key = params.key.take();
    let key = key_use::<method::SessionCreate>(key, &params)?;
    let _one_at_a_time =
        key.is_some().then(|| core.creating.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(key) = &key
        && let Some(session) = begun_before(core, key)?
    {
        return Ok(session);
    }
    let header = header_of(core, params)?;
    Ok(core.sessions.create(NewSession { header, key })?)
}

/// The session that a key began: among the open ones, else in the catalog.
fn begun_before(core: &Core, key: &IdempotencyKey) -> Result<Option<Session>, AppError> {
    let found = match core.sessions.find_create_key(&key.digest.key) {
        Some(found) => Some(found),
        None => {
            // After a crash the newest sessions are known only once their logs were looked at.
            if !core.catalog.wait_caught_up(Instant::now() + CAUGHT_UP) {
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

fn header_of(core: &Core, params: SessionCreateParams) -> Result<SessionHeader, AppError> {
    let SessionCreateParams {
        project_path,
        model,
        provider,
        title,
        system_prompt,
        context_size,
        mode,
        metadata,
        key: _,
    } = params;
    check_context_size(context_size)?;
    check_texts(title.as_deref(), None, system_prompt.as_deref())?;
    check_metadata(metadata.as_ref())?;
    check_system_prompt(core, system_prompt.as_deref(), context_size, model.as_deref())?;
    let project_path = project_path.as_deref().map(Projects::canonical).transpose()?;
    Ok(SessionHeader {
        session_id: core.clock.session_id(),
        start_time: core.clock.now(),
        project_path,
        model,
        provider,
        title: title.filter(|title| !title.is_empty()),
        system_prompt: system_prompt.filter(|prompt| !prompt.is_empty()),
        context_size,
        mode,
        forked_from: None,
        imported_from: None,
        metadata: metadata.unwrap_or_default(),
    })
}
