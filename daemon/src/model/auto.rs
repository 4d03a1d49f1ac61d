//! A server whose kind is not configured: the first request asks it what it is.
//!
//! Must not know the requests of any kind.

use std::sync::{Arc, OnceLock};

use super::address::OwnNames;
use super::backend::{AnswerStream, Backend, BackendFuture};
use super::chat::{ChatRequest, SamplingNames, WarmRequest};
use super::error::{ModelError, ServerAdvice};
use super::http::{Http, HttpAddress, Timeouts};
use super::identify::{FoundServer, identify};
use super::info::{ModelInfo, Version};
use super::listed::{ListedModel, RunningModel};
use super::ollama::Ollama;
use super::openai::{Dialect, OpenAi};
use crate::clock::Clock;

/// A server of any kind.
pub(super) struct Auto {
    http: Http,
    address: HttpAddress,
    timeouts: Timeouts,
    clock: Arc<Clock>,
    names: OwnNames,
    /// Set once the server said what it is.
    found: OnceLock<Arc<dyn Backend>>,
    /// What stands for the server until then.
    presumed: OpenAi,
}

impl Auto {
    /// Creates the handle; the first request opens a connection.
    pub(super) fn new(
        address: HttpAddress,
        timeouts: Timeouts,
        clock: Arc<Clock>,
        names: OwnNames,
    ) -> Self {
        let (of_http, of_presumed) = (Arc::clone(&clock), Arc::clone(&clock));
        let presumed =
            OpenAi::new(address.clone(), timeouts, of_presumed, names.clone(), Dialect::Plain);
        let http = Http::new(address.clone(), timeouts, of_http, presumed.advice());
        Self { http, address, timeouts, clock, names, found: OnceLock::new(), presumed }
    }

    fn known(&self) -> &dyn Backend {
        self.found.get().map_or(&self.presumed, |found| &**found)
    }

    /// Returns the backend of the kind that the server says.
    ///
    /// **Errors**: the server does not answer, or is of no known kind.
    async fn asked(&self) -> Result<&dyn Backend, ModelError> {
        if self.found.get().is_none() {
            let (address, timeouts) = (self.address.clone(), self.timeouts);
            let (clock, names) = (Arc::clone(&self.clock), self.names.clone());
            let found: Arc<dyn Backend> = match identify(&self.http).await {
                FoundServer::Ollama => Arc::new(Ollama::new(address, timeouts, clock, names)),
                FoundServer::Other(dialect) => {
                    Arc::new(OpenAi::new(address, timeouts, clock, names, dialect))
                }
                // The request that follows says why.
                FoundServer::Unknown => return Ok(&self.presumed),
            };
            drop(self.found.set(found));
        }
        Ok(self.known())
    }
}

impl Backend for Auto {
    fn host(&self) -> String {
        self.http.host()
    }

    fn advice(&self) -> &'static ServerAdvice {
        self.known().advice()
    }

    fn kind(&self) -> &'static str {
        if self.found.get().is_some() { self.known().kind() } else { "not known yet" }
    }

    fn identify(&self) -> BackendFuture<'_, ()> {
        Box::pin(async { self.asked().await.map(drop) })
    }

    fn sampling(&self) -> &'static SamplingNames {
        self.known().sampling()
    }

    fn version(&self) -> BackendFuture<'_, Version> {
        Box::pin(async { self.asked().await?.version().await })
    }

    fn is_named(&self, listed: &str, name: &str) -> bool {
        self.known().is_named(listed, name)
    }

    fn list(&self, max_attempts: u32) -> BackendFuture<'_, Vec<ListedModel>> {
        Box::pin(async move { self.asked().await?.list(max_attempts).await })
    }

    fn describe<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo> {
        Box::pin(async move { self.asked().await?.describe(model).await })
    }

    fn show<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo> {
        Box::pin(async move { self.asked().await?.show(model).await })
    }

    fn vocabulary<'a>(&'a self, model: &'a str) -> BackendFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move { self.asked().await?.vocabulary(model).await })
    }

    fn holds_models(&self) -> bool {
        self.known().holds_models()
    }

    fn running(&self) -> BackendFuture<'_, Vec<RunningModel>> {
        Box::pin(async { self.asked().await?.running().await })
    }

    fn warm<'a>(&'a self, request: &'a WarmRequest) -> BackendFuture<'a, ()> {
        Box::pin(async move { self.asked().await?.warm(request).await })
    }

    fn stream<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Box<dyn AnswerStream>> {
        Box::pin(async move { self.asked().await?.stream(request).await })
    }

    fn render<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Option<String>> {
        Box::pin(async move { self.asked().await?.render(request).await })
    }

    fn count<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Option<u64>> {
        Box::pin(async move { self.asked().await?.count(request).await })
    }

    fn release_idle(&self) -> bool {
        let is_own = self.http.release_idle();
        self.known().release_idle() || is_own
    }
}
