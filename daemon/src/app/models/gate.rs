//! The gate between sessions and model servers: a session, or its project, can name the servers that may get its texts.
//!
//! **Invariant**: every text of a session that goes to a server goes through [`backend_for`]: prompts, notes, contexts that
//! are read ahead, and prompts that a server renders or counts. Recall asks [`may_quote`].

use std::sync::Arc;

use ollm_protocol::SessionId;
use ollm_protocol::limits::MAX_ALLOWED_SERVERS;

use crate::app::core::{Core, blocking};
use crate::app::error::{AppError, Result};
use crate::model::{Backend, ModelError};

/// Returns the server of a model, as what answers, for texts of a session.
///
/// **Errors**: `NotAllowed` if it must not get them, or if that cannot be found out.
pub(crate) async fn backend_for(
    core: &Arc<Core>,
    id: SessionId,
    model: &str,
) -> Result<Arc<dyn Backend>, ModelError> {
    let allowed = blocking(core, move |core| core.allowed_servers(id)).await;
    // What the name means may change, so that the server that is checked must be the one that is returned.
    let server = core.models.server_for(model)?;
    let name = server.settings().name.clone();
    match allowed {
        Err(error) => {
            let problem =
                format!("gets no text, because the allowed servers are not known: {error}");
            Err(ModelError::Setup { server: name, problem })
        }
        Ok(Some(allowed)) if !allowed.contains(&name) => {
            let is_lost = blocking(core, move |core| {
                Ok(core.sessions.with(id, |live| live.state().has_lost_servers())?)
            });
            let is_lost = is_lost.await.unwrap_or(false);
            let all = if is_lost { " --all" } else { "" };
            let change = format!("ollmctl sessions servers {id}{all}");
            Err(ModelError::NotAllowed { server: name, allowed, is_lost, change })
        }
        Ok(_) => server.backend(),
    }
}

/// Returns whether a model's server may get texts of a session.
pub(crate) fn may_read(core: &Core, id: SessionId, model: &str) -> bool {
    match core.allowed_servers(id) {
        Ok(None) => true,
        Ok(Some(allowed)) => allowed.contains(&core.models.names().server_of(model)),
        Err(_) => false,
    }
}

/// Returns whether a session may quote another one: only if no server that may get its own texts must not get those of the
/// other one. A quotation stays in the log, and the session can go on with any of its servers. A session that no server may
/// read quotes nothing: its list must change before it can go on. Blocks on the disk.
pub(crate) fn may_quote(core: &Core, id: SessionId, other: SessionId) -> bool {
    if id == other {
        return true;
    }
    match (core.allowed_servers(other), core.allowed_servers(id)) {
        (Ok(None), _) => true,
        (Ok(Some(of_other)), Ok(Some(own))) => {
            !own.is_empty() && own.iter().all(|server| of_other.contains(server))
        }
        _ => false,
    }
}

/// Returns whether any server may get texts of a session, so that clients may show them to models of their own. Blocks on the
/// disk.
pub(crate) fn is_unrestricted(core: &Core, id: SessionId) -> bool {
    matches!(core.allowed_servers(id), Ok(None))
}

/// Refuses servers that are not configured, and too many of them.
pub(crate) fn check_servers(core: &Core, servers: Option<&[String]>) -> Result<()> {
    let servers = servers.unwrap_or_default();
    if servers.len() > MAX_ALLOWED_SERVERS {
        let problem = format!("must be at most {MAX_ALLOWED_SERVERS} names");
        return Err(AppError::invalid("allowedServers", problem));
    }
    let known: Vec<String> =
        core.models.servers().iter().map(|server| server.settings().name.clone()).collect();
    match servers.iter().find(|server| !known.contains(server)) {
        None => Ok(()),
        Some(server) => {
            let problem = format!("{server} is not configured; there are: {}", known.join(", "));
            Err(AppError::invalid("allowedServers", problem))
        }
    }
}

#[cfg(test)]
mod tests {
    use ollm_protocol::content::{MetaPatch, RecordBody};

    use super::*;
    use crate::app::testing::TestSession;
    use crate::model::DEFAULT_SERVER;

    async fn allow(core: &Core, id: SessionId, servers: &[&str]) {
        let allowed_servers = Some(servers.iter().map(|name| (*name).to_owned()).collect());
        let patch = MetaPatch { allowed_servers, ..MetaPatch::default() };
        core.append_one(id, RecordBody::Meta(patch)).await.expect("appends");
    }

    #[tokio::test]
    async fn server_that_is_not_allowed_gets_nothing() {
        let (session, _backend) = TestSession::with_model(&[]);
        let (core, id) = (&session.core, session.id);
        assert!(backend_for(core, id, "m").await.is_ok() && may_read(core, id, "m"));
        allow(core, id, &["other"]).await;
        let refused = backend_for(core, id, "m").await.err().expect("is refused");
        assert!(matches!(refused, ModelError::NotAllowed { .. }), "{refused}");
        assert!(!may_read(core, id, "m"));
        allow(core, id, &["other", DEFAULT_SERVER]).await;
        assert!(backend_for(core, id, "m").await.is_ok());
    }

    #[tokio::test]
    async fn session_is_quoted_only_where_no_other_server_can_read_it() {
        let session = TestSession::new(&[]);
        let other = crate::app::sessions::create::create(&session.core, Default::default());
        let (id, other) = (session.id, other.expect("creates").session.session_id);
        for (own, of_other, expect) in [
            (&[] as &[&str], &[] as &[&str], true),
            (&["a"], &[], true),
            (&[], &["a"], false),
            (&["a"], &["a", "b"], true),
            (&["a", "b"], &["a"], false),
        ] {
            allow(&session.core, id, own).await;
            allow(&session.core, other, of_other).await;
            assert_eq!(may_quote(&session.core, id, other), expect, "{own:?} {of_other:?}");
            assert!(may_quote(&session.core, id, id));
        }
    }
}
