//! The connection to the daemon of a program that lives as long as its client: the MCP server, the ACP proxy.
//!
//! The connection is made at the first call, and again after the daemon ended, so a daemon that is replaced under a client
//! costs that client nothing. Every method that is called can be repeated: it changes nothing, does the same again, or has an
//! idempotency key.

use std::sync::Arc;

use ollm_protocol::content::{Record, Session};
use ollm_protocol::method::{SessionList, SessionSetProjectServers};
use ollm_protocol::methods::session::SessionSetProjectServersParams;
use ollm_protocol::{Method, SessionId};
use parking_lot::Mutex;

use crate::command_error::{CommandError, CommandResult, LIST_HINT};
use crate::connection::{AsyncClient, Connector};
use crate::error::ClientError;
use crate::session_lookup;

/// The daemon of one program.
pub(crate) struct DaemonLink {
    connector: Connector,
    /// The last connection. The lock is held only to copy or replace it.
    client: Mutex<Option<Arc<AsyncClient>>>,
}

impl DaemonLink {
    pub(crate) fn new(connector: Connector) -> Self {
        Self { connector, client: Mutex::new(None) }
    }

    /// Calls a method; connects first if there is no connection, and once more if it broke.
    pub(crate) async fn call<M: Method>(&self, params: &M::Params) -> CommandResult<M::Result> {
        let client = self.client().await?;
        match client.call::<M>(params).await {
            Err(error) if is_broken(&error) => {
                self.drop_broken(&client);
                Ok(self.client().await?.call::<M>(params).await?)
            }
            reply => Ok(reply?),
        }
    }

    /// Returns a record of a page with its content.
    pub(super) async fn whole_record(
        &self,
        id: SessionId,
        record: Record,
    ) -> CommandResult<Record> {
        Ok(self.client().await?.whole_record(id, record).await?)
    }

    /// Returns the session that a text names: an id, a unique end or beginning of one, or `last`.
    pub(super) async fn session(self: &Arc<Self>, text: &str) -> CommandResult<SessionId> {
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        let (link, text) = (Arc::clone(self), text.to_owned());
        let runtime = tokio::runtime::Handle::current();
        // The lookup asks its questions one after the other, as the commands do.
        let found = tokio::task::spawn_blocking(move || {
            session_lookup::resolve(&text, |params| {
                let page = runtime.block_on(link.call::<SessionList>(&params));
                page.map(|page| page.data).map_err(client_error)
            })
        });
        let found = found.await;
        let found = found.map_err(|error| CommandError::Thread(std::io::Error::other(error)))?;
        found.map_err(without_titles)
    }

    /// Returns whether texts of a session may go to any model, and so to that of the client.
    pub(super) async fn may_show(&self, session: &Session) -> CommandResult<bool> {
        if !session.allowed_servers.is_empty() {
            return Ok(false);
        }
        match session.project_path.clone() {
            None => Ok(true),
            Some(project) => self.may_show_project(project).await,
        }
    }

    /// Returns whether texts of a project may go to any model.
    pub(super) async fn may_show_project(&self, project_path: String) -> CommandResult<bool> {
        let params = SessionSetProjectServersParams { project_path, allowed_servers: None };
        Ok(self.call::<SessionSetProjectServers>(&params).await?.allowed_servers.is_empty())
    }

    /// Refuses a session whose texts only some model servers may get.
    pub(super) async fn require_shown(&self, session: &Session) -> CommandResult {
        if self.may_show(session).await? {
            return Ok(());
        }
        let id = session.session_id;
        let message = format!(
            "only some model servers may get the texts of session {id}, so no other program does"
        );
        Err(CommandError::usage(message, &format!("ollmctl sessions servers {id}")))
    }

    async fn client(&self) -> Result<Arc<AsyncClient>, ClientError> {
        if let Some(client) = self.client.lock().clone() {
            return Ok(client);
        }
        let client = Arc::new(AsyncClient::connect(self.connector.clone()).await?);
        Ok(Arc::clone(self.client.lock().insert(client)))
    }

    fn drop_broken(&self, broken: &Arc<AsyncClient>) {
        let mut client = self.client.lock();
        if client.as_ref().is_some_and(|client| Arc::ptr_eq(client, broken)) {
            *client = None;
        }
    }
}

/// Returns an error without the titles of sessions: they are texts of conversations, and some may go to no other program.
fn without_titles(error: CommandError) -> CommandError {
    match error {
        CommandError::AmbiguousId { .. } => CommandError::usage(error.message(), LIST_HINT),
        other => other,
    }
}

fn client_error(error: CommandError) -> ClientError {
    match error {
        CommandError::Client(error) => error,
        other => ClientError::of_turn(0, other.message(), serde_json::Value::Null),
    }
}

/// Returns whether an error shows that the connection ended.
fn is_broken(error: &ClientError) -> bool {
    use ClientError::{Broken, Closed, Transport};
    matches!(error, Broken { .. } | Closed { .. } | Transport { .. })
}
