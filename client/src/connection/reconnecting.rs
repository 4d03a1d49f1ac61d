//! A connection that is made again when it is lost, for programs that run longer than a daemon: agents, servers, proxies.

use std::sync::Arc;

use ollm_protocol::Method;
use ollm_protocol::method::Effect;
use tokio::sync::Mutex;

use super::async_client::AsyncClient;
use super::connector::Connector;
use crate::error::ClientError;

/// A client of a daemon that may end and start again. Its connection is made when it is needed and shared by all calls.
#[derive(Debug)]
pub struct ReconnectingClient {
    connector: Connector,
    /// Locked while a connection is made, so that concurrent calls wait for the same one.
    current: Mutex<Option<Arc<AsyncClient>>>,
}

impl ReconnectingClient {
    /// Returns a client without a connection. The connector decides whether a call may start the daemon.
    #[must_use]
    pub fn new(connector: Connector) -> Self {
        Self { connector, current: Mutex::new(None) }
    }

    /// Returns the connection; connects if there is none or if it was lost, and starts the daemon if it does not run.
    ///
    /// **Errors**: as [`AsyncClient::connect`].
    pub async fn client(&self) -> Result<Arc<AsyncClient>, ClientError> {
        self.connect(self.connector.clone()).await
    }

    /// Returns the connection as [`Self::client`] does, but never starts a daemon, which a person may have stopped.
    ///
    /// **Errors**: as [`AsyncClient::connect`].
    pub async fn client_of_running(&self) -> Result<Arc<AsyncClient>, ClientError> {
        self.connect(self.connector.clone().without_spawn()).await
    }

    async fn connect(&self, connector: Connector) -> Result<Arc<AsyncClient>, ClientError> {
        let mut current = self.current.lock().await;
        if let Some(client) = current.as_ref().filter(|client| client.is_connected()) {
            return Ok(Arc::clone(client));
        }
        let client = Arc::new(AsyncClient::connect(connector).await?);
        Ok(Arc::clone(current.insert(client)))
    }

    /// Calls a method. A [safe](Effect::Safe) call whose connection was lost is made once more.
    ///
    /// **Errors**: as [`Self::client`] and [`AsyncClient::call`]. A change whose connection was lost may have been made.
    pub async fn call<M: Method>(&self, params: &M::Params) -> Result<M::Result, ClientError> {
        match self.client().await?.call::<M>(params).await {
            Err(error) if error.is_lost_connection() && M::EFFECT == Effect::Safe => {
                self.client().await?.call::<M>(params).await
            }
            result => result,
        }
    }
}
