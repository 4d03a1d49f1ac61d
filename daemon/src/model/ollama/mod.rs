//! Ollama over HTTP, versions 0.1.35 and later.
//!
//! Must not know queues or cached reports.

mod error_response;
mod http;
mod stream;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Method;
use serde::de::DeserializeOwned;

pub(crate) use self::http::Timeouts;
use self::http::{Http, HttpCall, MAX_ATTEMPTS};
pub(crate) use self::stream::AnswerStream;
use self::wire::ModelsBody;
pub(crate) use self::wire::{ListedModel, RunningModel};
use super::chat::ChatRequest;
use super::error::{CallPhase, CallTarget, ModelError};
use super::host::Host;
use super::info::{ModelInfo, Version, canonical_name};
use crate::clock::Clock;
use crate::config::ApiKey;

/// Maximum size of a response that is not streamed. A vocabulary with its scores has about 13 MB.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// An Ollama server.
///
/// **Cancel safety**: every future may be dropped, which closes the connection and makes the server stop.
pub(crate) struct Ollama {
    http: Http,
    /// Cleared when the server cannot be reached, because it may be replaced by another version.
    version: Mutex<Option<Version>>,
}

impl Ollama {
    /// Creates the handle; the first request opens a connection.
    pub(super) fn new(
        host: Host,
        key: Option<ApiKey>,
        timeouts: Timeouts,
        clock: Arc<Clock>,
    ) -> Self {
        Self { http: Http::new(host, key, timeouts, clock), version: Mutex::new(None) }
    }

    /// Returns the address of the server.
    pub(crate) fn host(&self) -> String {
        self.http.host.to_string()
    }

    /// Returns the version of the server, which is cached until the server cannot be reached.
    ///
    /// A status report allows one attempt, so that it does not wait for a server that is not there.
    pub(super) async fn version(&self, max_attempts: u32) -> Result<Version, ModelError> {
        let cached = self.version.lock().clone();
        if let Some(version) = cached {
            return Ok(version);
        }
        let body: wire::VersionBody =
            self.get("/api/version", self.http.timeouts.response, max_attempts).await?;
        let version = Version::parse(&body.version);
        *self.version.lock() = Some(version.clone());
        Ok(version)
    }

    /// Lists the models that the server has.
    pub(crate) async fn list(&self) -> Result<Vec<ListedModel>, ModelError> {
        let limit = self.http.timeouts.response;
        Ok(self.get::<ModelsBody<_>>("/api/tags", limit, MAX_ATTEMPTS).await?.models)
    }

    /// Describes a model.
    pub(super) async fn show(&self, model: &str) -> Result<ModelInfo, ModelError> {
        let body = self.post_show(model, false).await?;
        let show: wire::ShowBody = decode(&self.target(Some(model)), "/api/show", &body)?;
        let mut info = show.into_info(model);
        // Only the list contains the digest. Some models, such as remote ones, are not in the list.
        let name = canonical_name(model);
        let listed = self.list().await?;
        let listed = listed.into_iter().find(|listed| canonical_name(&listed.model) == name);
        info.digest = listed.map(|listed| listed.digest).filter(|digest| !digest.is_empty());
        Ok(info)
    }

    /// Returns the verbose description of a model, which includes its vocabulary, as the server's JSON.
    pub(crate) async fn vocabulary(&self, model: &str) -> Result<Vec<u8>, ModelError> {
        self.post_show(model, true).await
    }

    /// Lists the models in the server's memory. May time out while the server loads a model.
    pub(crate) async fn running(&self) -> Result<Vec<RunningModel>, ModelError> {
        let limit = self.http.timeouts.probe;
        Ok(self.get::<ModelsBody<_>>("/api/ps", limit, MAX_ATTEMPTS).await?.models)
    }

    /// Loads a model, or unloads it if `keep_alive` is zero.
    pub(super) async fn warm(
        &self,
        model: &str,
        num_ctx: u32,
        keep_alive: Duration,
    ) -> Result<(), ModelError> {
        let line = self.post_chat(model, wire::warm_body(model, num_ctx, keep_alive)).await?;
        let to = self.target(Some(model));
        if line.is_done() { Ok(()) } else { Err(ModelError::Incomplete { to }) }
    }

    /// Starts an answer.
    pub(crate) async fn stream(&self, request: &ChatRequest) -> Result<AnswerStream, ModelError> {
        let version = self.version(MAX_ATTEMPTS).await?;
        let to = self.target(Some(&request.model));
        let call = post("/api/chat", wire::chat_body(request, false), to)?;
        let Timeouts { first_token, idle, .. } = self.http.timeouts;
        let sent = self.http.send(&call, CallPhase::FirstToken, first_token).await;
        let (response, first) = sent.inspect_err(|error| self.note_failure(error))?;
        Ok(AnswerStream::new(call.to, version, response, first, idle))
    }

    /// Renders the prompt of a request without answering it; `None` if the server cannot.
    pub(crate) async fn render(&self, request: &ChatRequest) -> Result<Option<String>, ModelError> {
        // An older server would ignore the option and answer the request.
        if !self.version(MAX_ATTEMPTS).await?.can_render() {
            return Ok(None);
        }
        let line = self.post_chat(&request.model, wire::chat_body(request, true)).await?;
        Ok(line.into_rendered())
    }

    /// Releases memory and connections that have been idle for a while; returns whether there were any.
    pub(super) fn release_idle(&self) -> bool {
        self.http.release_idle()
    }

    fn target(&self, model: Option<&str>) -> CallTarget {
        CallTarget { host: self.http.host.to_string(), model: model.map(str::to_owned) }
    }

    /// Clears the cached version if the server may have been replaced.
    fn note_failure(&self, error: &ModelError) {
        if matches!(error, ModelError::Unreachable { .. } | ModelError::Disconnected { .. }) {
            *self.version.lock() = None;
        }
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
        ModelError::NotOllama { to: to.clone(), found: format!("{path} returns {kind}") }
    })
}
