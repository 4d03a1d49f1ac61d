//! A server whose kind is not configured: the first request asks it what it is.
//!
//! Must not know the requests of any kind.

use std::sync::Arc;

use parking_lot::Mutex;

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
    /// Set once the server said what it is, until it turns out to be another one.
    found: Mutex<Option<Arc<dyn Backend>>>,
    /// The backend that is used until then.
    presumed: Arc<OpenAi>,
}

impl Auto {
    /// Creates the handle; the first request opens a connection.
    pub(super) fn new(
        address: HttpAddress,
        timeouts: Timeouts,
        clock: Arc<Clock>,
        names: OwnNames,
    ) -> Self {
        let presumed = Arc::new(OpenAi::new(
            address.clone(),
            timeouts,
            Arc::clone(&clock),
            names.clone(),
            Dialect::Plain,
            false,
        ));
        let http = Http::new(address.clone(), timeouts, Arc::clone(&clock), presumed.advice());
        Self { http, address, timeouts, clock, names, found: Mutex::default(), presumed }
    }

    fn known(&self) -> Arc<dyn Backend> {
        let found = self.found.lock().clone();
        found.unwrap_or_else(|| Arc::clone(&self.presumed) as Arc<dyn Backend>)
    }

    /// Returns the backend of the kind that the server says.
    async fn identified(&self) -> Arc<dyn Backend> {
        if self.found.lock().is_none() {
            let (address, timeouts) = (self.address.clone(), self.timeouts);
            let (clock, names) = (Arc::clone(&self.clock), self.names.clone());
            let found: Arc<dyn Backend> = match identify(&self.http).await {
                FoundServer::Ollama => Arc::new(Ollama::new(address, timeouts, clock, names)),
                FoundServer::Other(dialect) => {
                    Arc::new(OpenAi::new(address, timeouts, clock, names, dialect, false))
                }
                // The request that follows says why.
                FoundServer::Unknown => return self.known(),
            };
            self.found.lock().get_or_insert(found);
        }
        self.known()
    }

    /// Returns a result of the server. A server that turns out to be of another kind is asked again next time.
    /// Paths that a gateway may hide do not say so.
    fn noted<T>(
        &self,
        backend: &Arc<dyn Backend>,
        result: Result<T, ModelError>,
    ) -> Result<T, ModelError> {
        if matches!(result, Err(ModelError::OtherServer { .. })) {
            let mut found = self.found.lock();
            if found.as_ref().is_some_and(|found| Arc::ptr_eq(found, backend)) {
                *found = None;
            }
        }
        result
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
        let found = self.found.lock().clone();
        found.map_or("not known yet", |found| found.kind())
    }

    fn identify(&self) -> BackendFuture<'_, ()> {
        Box::pin(async {
            let backend = self.identified().await;
            self.noted(&backend, backend.identify().await)
        })
    }

    fn is_identified(&self) -> bool {
        let found = self.found.lock().clone();
        found.is_some_and(|found| found.is_identified())
    }

    fn sampling(&self) -> &'static SamplingNames {
        self.known().sampling()
    }

    fn version(&self) -> BackendFuture<'_, Version> {
        Box::pin(async move {
            let backend = self.identified().await;
            self.noted(&backend, backend.version().await)
        })
    }

    fn is_named(&self, listed: &str, name: &str) -> bool {
        self.known().is_named(listed, name)
    }

    fn names_have_tags(&self) -> bool {
        self.known().names_have_tags()
    }

    fn list(&self, max_attempts: u32) -> BackendFuture<'_, Vec<ListedModel>> {
        Box::pin(async move {
            let backend = self.identified().await;
            self.noted(&backend, backend.list(max_attempts).await)
        })
    }

    fn describe<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo> {
        Box::pin(async move {
            let backend = self.identified().await;
            self.noted(&backend, backend.describe(model).await)
        })
    }

    fn show<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo> {
        Box::pin(async move {
            let backend = self.identified().await;
            self.noted(&backend, backend.show(model).await)
        })
    }

    fn vocabulary<'a>(&'a self, model: &'a str) -> BackendFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move { self.identified().await.vocabulary(model).await })
    }

    fn holds_models(&self) -> bool {
        self.known().holds_models()
    }

    fn running(&self) -> BackendFuture<'_, Vec<RunningModel>> {
        Box::pin(async move { self.identified().await.running().await })
    }

    fn warm<'a>(&'a self, request: &'a WarmRequest) -> BackendFuture<'a, ()> {
        Box::pin(async move { self.identified().await.warm(request).await })
    }

    fn stream<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Box<dyn AnswerStream>> {
        Box::pin(async move {
            let backend = self.identified().await;
            self.noted(&backend, backend.stream(request).await)
        })
    }

    fn render<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Option<String>> {
        Box::pin(async move { self.identified().await.render(request).await })
    }

    fn count<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Option<u64>> {
        Box::pin(async move { self.identified().await.count(request).await })
    }

    fn count_text<'a>(&'a self, model: &'a str, text: &'a str) -> BackendFuture<'a, Option<u64>> {
        Box::pin(async move { self.identified().await.count_text(model, text).await })
    }

    fn release_idle(&self) -> bool {
        let is_own = self.http.release_idle();
        self.known().release_idle() || is_own
    }
}
