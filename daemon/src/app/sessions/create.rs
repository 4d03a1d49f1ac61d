//! `session.create`: starting a session, or returning the one that the same key started; and the limits of the texts
//! and data that a client sets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::{Meta, Session, SessionHeader};
use ollm_protocol::method;
use ollm_protocol::methods::session::{SessionCreateParams, SessionResult};

use crate::app::context::quota::check_system_prompt;
use crate::app::core::Core;
use crate::app::drafts::take_key;
use crate::app::error::{AppError, Result, check_context_size};
use crate::projects::Projects;
use crate::session::{IdempotencyKey, NewSession, SessionError};

/// The wait for the catalog to learn the newest sessions, which may have used the key.
const CATCH_UP: Duration = Duration::from_secs(5);
/// The longest title and description in bytes; both are in every list.
const MAX_TITLE_BYTES: usize = 4 * 1024;
/// The longest system prompt in bytes, more than any window takes.
const MAX_PROMPT_BYTES: usize = 1024 * 1024;
/// The most client data in bytes of JSON. Every list contains it: a page of one session always fits into a frame, a
/// page of a thousand sessions only in the usual case.
const MAX_METADATA_BYTES: usize = 256 * 1024;

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
fn created_before(core: &Core, key: &IdempotencyKey) -> Result<Option<Session>> {
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
    let (title, prompt) = (params.title, params.system_prompt);
    check_context_size(params.context_size)?;
    check_texts(title.as_deref(), None, prompt.as_deref())?;
    check_metadata(params.metadata.as_ref())?;
    check_system_prompt(core, prompt.as_deref(), params.context_size, params.model.as_deref())?;
    Ok(SessionHeader {
        session_id: core.clock.session_id(),
        start_time: core.clock.now(),
        project_path: params.project_path.as_deref().map(Projects::canonical).transpose()?,
        model: params.model,
        provider: params.provider,
        title: title.filter(|title| !title.is_empty()),
        system_prompt: prompt.filter(|prompt| !prompt.is_empty()),
        context_size: params.context_size,
        mode: params.mode,
        forked_from: None,
        imported_from: None,
        metadata: params.metadata.unwrap_or_default(),
    })
}

/// Refuses texts that would make a session too large to be listed.
pub(super) fn check_texts(
    title: Option<&str>,
    description: Option<&str>,
    system_prompt: Option<&str>,
) -> Result<()> {
    let texts = [
        ("title", title, MAX_TITLE_BYTES),
        ("description", description, MAX_TITLE_BYTES),
        ("systemPrompt", system_prompt, MAX_PROMPT_BYTES),
    ];
    for (field, text, limit) in texts {
        let bytes = text.map_or(0, str::len);
        if bytes > limit {
            let problem = format!("has {bytes} bytes; the limit is {limit}");
            return Err(AppError::invalid(field, problem));
        }
    }
    Ok(())
}

/// Refuses client data that would make a session too large to be listed.
pub(super) fn check_metadata(metadata: Option<&Meta>) -> Result<()> {
    let json = serde_json::to_vec(&metadata).map_or(0, |json| json.len());
    if json > MAX_METADATA_BYTES {
        let problem = format!("has {json} bytes in all; the limit is {MAX_METADATA_BYTES}");
        return Err(AppError::invalid("metadata", problem));
    }
    Ok(())
}
