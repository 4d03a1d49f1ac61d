//! `session.create`: starting a session, or returning the one that the same key started.

use std::sync::Arc;

use ollm_protocol::content::SessionHeader;
use ollm_protocol::methods::session::{SessionCreateParams, SessionResult};
use ollm_protocol::{limits, method};

use crate::app::context::quota::check_system_prompt;
use crate::app::core::{Core, blocking};
use crate::app::drafts::take_key;
use crate::app::error::{Result, check_context_size, check_keep_alive, check_permissions};
use crate::app::models::answer_options::{check_kept, check_size};
use crate::app::models::gate::check_servers;
use crate::projects::Projects;
use crate::session::{IdempotencyKey, NewSession};

/// Starts a session, or returns the one that the same key started (`session.create`).
pub(crate) async fn create_checked(
    core: Arc<Core>,
    mut params: SessionCreateParams,
) -> Result<SessionResult> {
    let key = take_key::<method::SessionCreate>(&mut params, |params| &mut params.key)?;
    if let Some(options) = &params.options {
        // The options of a session that exists were checked, maybe for a server that has other ones now.
        if let Some(key) = key.clone()
            && let Some(session) = blocking(&core, move |core| core.created_before(&key)).await?
        {
            return Ok(SessionResult { session });
        }
        check_kept(&core, params.model.clone(), options).await?;
    }
    blocking(&core, move |core| create_with(core, params, key)).await
}

/// Starts a session whose options are not checked. Blocks on the disk.
#[cfg(test)]
pub(crate) fn create(core: &Arc<Core>, mut params: SessionCreateParams) -> Result<SessionResult> {
    let key = take_key::<method::SessionCreate>(&mut params, |params| &mut params.key)?;
    create_with(core, params, key)
}

/// Starts a session whose options are checked. Blocks on the disk.
fn create_with(
    core: &Arc<Core>,
    params: SessionCreateParams,
    key: Option<IdempotencyKey>,
) -> Result<SessionResult> {
    let _one_at_a_time = key.is_some().then(|| core.creating.lock());
    if let Some(key) = &key
        && let Some(session) = core.created_before(key)?
    {
        return Ok(SessionResult { session });
    }
    let header = checked_header(core, params)?;
    Ok(SessionResult { session: core.sessions.create(NewSession { header, key })? })
}

fn checked_header(core: &Core, params: SessionCreateParams) -> Result<SessionHeader> {
    check_context_size(params.context_size)?;
    check_keep_alive(params.keep_alive_seconds)?;
    check_servers(core, params.allowed_servers.as_deref())?;
    params.metadata.as_ref().map_or(Ok(()), check_permissions)?;
    let mut header = SessionHeader {
        session_id: core.clock.session_id(),
        start_time: core.clock.now(),
        project_path: params.project_path.as_deref().map(Projects::canonical).transpose()?,
        model: params.model,
        provider: params.provider,
        title: params.title.filter(|title| !title.is_empty()),
        system_prompt: params.system_prompt.filter(|prompt| !prompt.is_empty()),
        context_size: params.context_size,
        keep_alive_seconds: params.keep_alive_seconds,
        allowed_servers: params.allowed_servers.unwrap_or_default(),
        options: params.options.unwrap_or_default(),
        mode: params.mode,
        forked_from: None,
        imported_from: None,
        metadata: params.metadata.unwrap_or_default(),
    };
    header.options.retain(|_, value| !value.is_null());
    check_size(&header.options)?;
    limits::check_header(&mut header)?;
    let SessionHeader { system_prompt, context_size, model, .. } = &header;
    check_system_prompt(core, system_prompt.as_deref(), *context_size, model.as_deref())?;
    Ok(header)
}
