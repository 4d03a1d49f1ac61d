//! Ollama over HTTP, versions 0.1.35 and later.
//!
//! Must not know queues or cached reports.

mod error_response;
mod http;
mod identify;
mod stream;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use ollm_protocol::model_host::ModelHost;
use parking_lot::Mutex;
use reqwest::Method;
use serde::de::DeserializeOwned;

pub(crate) use self::http::Timeouts;
use self::http::{Http, HttpCall};
use self::identify::{ServerKind, identify};
use self::stream::OllamaStream;
use self::wire::ModelsBody;
use super::backend::{AnswerStream, Backend, BackendFuture, MAX_ATTEMPTS};
use super::chat::{ChatRequest, WarmRequest};
use super::error::{CallPhase, CallTarget, ModelError, ServerAdvice};
use super::info::{ModelInfo, Version};
use super::listed::{ListedDigest, ListedModel, RunningModel};
use crate::clock::Clock;
use crate::config::ApiKey;

/// Maximum size of a response that is not streamed. A vocabulary with its scores has about 13 MB.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// What a person types when Ollama fails.
pub(crate) static ADVICE: ServerAdvice = ServerAdvice {
    kind: "an Ollama server",
    start: "ollama serve",
    get_model: "ollama pull",
    get_small_model: "ollama pull qwen3:0.6b",
    get_image_reader: "ollama pull qwen3-vl:4b",
    address: "OLLAMA_HOST=HOST:PORT, or ollama.host in the file of `ollmctl config path`",
};

/// An Ollama server.
pub(super) struct Ollama {
    http: Http,
    /// Cleared when the server cannot be reached, because it may be replaced by another version.
    version: Mutex<Option<Version>>,
}

impl Ollama {
    /// Creates the handle; the first request opens a connection.
    pub(super) fn new(
        host: ModelHost,
        key: Option<ApiKey>,
        timeouts: Timeouts,
        clock: Arc<Clock>,
    ) -> Self {
        Self { http: Http::new(host, key, timeouts, clock), version: Mutex::new(None) }
    }

    /// Returns the version of the server, which is cached until the server cannot be reached.
    async fn cached_version(&self) -> Result<Version, ModelError> {
        let cached = self.version.lock().clone();
        match cached {
            Some(version) => Ok(version),
            None => self.fetch_version(MAX_ATTEMPTS).await,
        }
    }

    async fn fetch_version(&self, max_attempts: u32) -> Result<Version, ModelError> {
        let body: wire::VersionBody =
            self.get("/api/version", self.http.timeouts.response, max_attempts).await?;
        let version = Version::parse(&body.version);
        *self.version.lock() = Some(version.clone());
        Ok(version)
    }

    /// Clears the cached version if the server may have been replaced.
    fn note_failure(&self, error: &ModelError) {
        if matches!(error, ModelError::Unreachable { .. } | ModelError::Disconnected { .. }) {
            *self.version.lock() = None;
        }
    }

    /// Names the server in an error that another kind of server may have caused.
    async fn explained<T>(&self, result: Result<T, ModelError>) -> Result<T, ModelError> {
        let error = match result {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let may_be_other = matches!(
            error,
            ModelError::NotFound { .. }
                | ModelError::OtherServer { .. }
                | ModelError::Refused { .. }
                | ModelError::Failed { .. }
                | ModelError::Garbage { .. }
                | ModelError::Unauthorized { .. }
        );
        if !may_be_other {
            return Err(error);
        }
        // Only Ollama reports a version.
        let Err(no_version) = self.cached_version().await else { return Err(error) };
        Err(match (identify(&self.http).await, no_version) {
            (ServerKind::Other(name), _) => {
                let found = format!("{name} answers there");
                ModelError::OtherServer { to: self.target(None), found }
            }
            (ServerKind::Unknown, no_version @ ModelError::OtherServer { .. }) => no_version,
            (ServerKind::Unknown | ServerKind::Ollama, _) => error,
        })
    }

    /// Sends a request and reads the whole response.
    async fn call(
        &self,
        call: &HttpCall<'_>,
        phase: CallPhase,
        after: Duration,
    ) -> Result<Vec<u8>, ModelError> {
        let response = async {
            let (response, deadline) = self.http.send(call, phase, after).await?;
            self.http.read(response, &call.to, deadline, "a response", MAX_RESPONSE_BYTES).await
        };
        response.await.inspect_err(|error| self.note_failure(error))
    }

    async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        after: Duration,
        max_attempts: u32,
    ) -> Result<T, ModelError> {
        let to = self.target(None);
        let call = HttpCall { method: Method::GET, path, body: None, max_attempts, to };
        let body = self.call(&call, CallPhase::Response, after).await?;
        decode(&call.to, path, &body)
    }

    async fn post_show(&self, model: &str, verbose: bool) -> Result<Vec<u8>, ModelError> {
        let body = wire::show_body(model, verbose);
        let call = post("/api/show", body, self.target(Some(model)))?;
        self.call(&call, CallPhase::Response, self.http.timeouts.response).await
    }

    /// Sends a chat request that is not streamed.
    async fn post_chat(
        &self,
        model: &str,
        body: serde_json::Result<Vec<u8>>,
    ) -> Result<wire::ChatLine, ModelError> {
        let call = post("/api/chat", body, self.target(Some(model)))?;
        let first_token = self.http.timeouts.first_token;
        let body = self.call(&call, CallPhase::FirstToken, first_token).await?;
        stream::parse(&call.to, 1, body.trim_ascii())
    }
}

impl Backend for Ollama {
    fn host(&self) -> String {
        self.http.host.to_string()
    }

    fn advice(&self) -> &'static ServerAdvice {
        &ADVICE
    }

    fn version(&self) -> BackendFuture<'_, Version> {
        Box::pin(async { self.explained(self.fetch_version(1).await).await })
    }

    fn list(&self, max_attempts: u32) -> BackendFuture<'_, Vec<ListedModel>> {
        Box::pin(async move {
            let limit = self.http.timeouts.response;
            let body = self.get::<ModelsBody<_>>("/api/tags", limit, max_attempts).await;
            Ok(self.explained(body).await?.models)
        })
    }

    fn describe<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo> {
        Box::pin(async move {
            let body = self.explained(self.post_show(model, false).await).await?;
            let show = decode(&self.target(Some(model)), "/api/show", &body);
            Ok(self.explained::<wire::ShowBody>(show).await?.into_info(model))
        })
    }

    fn show<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo> {
        Box::pin(async move {
            let mut info = self.describe(model).await?;
            // Only the list contains the digest. Some models, such as remote ones, are not in the list.
            let list = self.list(MAX_ATTEMPTS).await?;
            info.lists_no_capabilities =
                !list.is_empty() && list.iter().all(|listed| listed.capabilities.is_empty());
            info.digest = match ListedDigest::find(list, model) {
                ListedDigest::Digest(digest) => Some(digest),
                ListedDigest::Absent | ListedDigest::Unknown => None,
            };
            info.server_version = self.cached_version().await.ok();
            Ok(info)
        })
    }

    fn vocabulary<'a>(&'a self, model: &'a str) -> BackendFuture<'a, Vec<u8>> {
        Box::pin(self.post_show(model, true))
    }

    fn running(&self) -> BackendFuture<'_, Vec<RunningModel>> {
        Box::pin(async {
            let limit = self.http.timeouts.probe;
            let body = self.get::<ModelsBody<_>>("/api/ps", limit, MAX_ATTEMPTS).await;
            Ok(self.explained(body).await?.models)
        })
    }

    fn warm<'a>(&'a self, request: &'a WarmRequest) -> BackendFuture<'a, ()> {
        Box::pin(async move {
            let line = self.post_chat(&request.model, wire::warm_body(request)).await;
            let line = self.explained(line).await?;
            let to = self.target(Some(&request.model));
            if line.is_done() { Ok(()) } else { Err(ModelError::Incomplete { to }) }
        })
    }

    fn stream<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Box<dyn AnswerStream>> {
        Box::pin(async move {
            let version = self.explained(self.cached_version().await).await?;
            let to = self.target(Some(&request.model));
            let call = post("/api/chat", wire::chat_body(request, false), to)?;
            let Timeouts { first_token, idle, .. } = self.http.timeouts;
            let sent = self.http.send(&call, CallPhase::FirstToken, first_token).await;
            let (response, first) = sent.inspect_err(|error| self.note_failure(error))?;
            let stream = OllamaStream::new(call.to, version, response, first, idle);
            Ok(Box::new(stream) as Box<dyn AnswerStream>)
        })
    }

    fn render<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Option<String>> {
        Box::pin(async move {
            // An older server would ignore the option and answer the request.
            if !self.cached_version().await?.can_render() {
                return Ok(None);
            }
            let line = self.post_chat(&request.model, wire::chat_body(request, true)).await?;
            Ok(line.into_rendered())
        })
    }

    fn release_idle(&self) -> bool {
        self.http.release_idle()
    }
}

fn post(
    path: &str,
    body: serde_json::Result<Vec<u8>>,
    to: CallTarget,
) -> Result<HttpCall<'_>, ModelError> {
    match body {
        Ok(body) => {
            let (method, max_attempts) = (Method::POST, MAX_ATTEMPTS);
            Ok(HttpCall { method, path, body: Some(body), max_attempts, to })
        }
        Err(error) => Err(ModelError::Client { to, reason: error.to_string() }),
    }
}

/// Parses a response. Anything but the expected JSON comes from another kind of server.
fn decode<T: DeserializeOwned>(to: &CallTarget, path: &str, body: &[u8]) -> Result<T, ModelError> {
    let first = body.trim_ascii().first();
    // serde would read an array as the fields of a struct.
    let parsed = if first == Some(&b'[') { None } else { serde_json::from_slice(body).ok() };
    parsed.ok_or_else(|| {
        let kind = match first {
            Some(b'<') => "a page",
            Some(b'{' | b'[') => "other JSON",
            None => "nothing",
            Some(_) => "something other than JSON",
        };
        ModelError::OtherServer { to: to.clone(), found: format!("{path} returns {kind}") }
    })
}
