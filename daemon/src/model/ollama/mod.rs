//! Ollama over HTTP, versions 0.1.35 and later.
//!
//! Must not know queues or cached reports.

mod stream;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Method;
use serde::de::DeserializeOwned;

use self::stream::OllamaLines;
use self::wire::ModelsBody;
use super::address::OwnNames;
use super::backend::{AnswerStream, Backend, BackendFuture, MAX_ATTEMPTS};
use super::chat::{ChatRequest, OptionType, SamplingNames, WarmRequest};
use super::error::{CallPhase, ModelError, ServerAdvice};
use super::http::{Http, HttpAddress, HttpCall, Timeouts, decode, post};
use super::identify::{FoundServer, identify};
use super::info::{ModelInfo, Version};
use super::line_stream::LineStream;
use super::listed::{ListedDigest, ListedModel, RunningModel};
use crate::clock::Clock;

/// What a person types when Ollama fails.
pub(crate) static ADVICE: ServerAdvice = ServerAdvice {
    kind: "an Ollama server",
    start: "ollama serve",
    state: "ollmctl models running",
    get_model: "ollama pull",
    get_small_model: "ollama pull qwen3:0.6b",
    get_image_reader: "ollama pull qwen3-vl:4b",
    address: "OLLAMA_HOST=HOST:PORT, or ollama.host in the file of `ollmctl config path`",
};

/// The options of Ollama.
///
/// **Source**: `api.Options` of Ollama 0.33.
pub(crate) static SAMPLING: SamplingNames = SamplingNames {
    options: &[
        ("num_keep", OptionType::Integer),
        ("seed", OptionType::Integer),
        ("top_k", OptionType::Integer),
        ("top_p", OptionType::Number),
        ("min_p", OptionType::Number),
        ("typical_p", OptionType::Number),
        ("repeat_last_n", OptionType::Integer),
        ("temperature", OptionType::Number),
        ("repeat_penalty", OptionType::Number),
        ("presence_penalty", OptionType::Number),
        ("frequency_penalty", OptionType::Number),
        ("stop", OptionType::Texts),
    ],
    length: &["num_predict"],
    load: &[
        "num_ctx",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "use_mmap",
        "num_thread",
        "draft_num_predict",
    ],
};

/// An Ollama server.
pub(super) struct Ollama {
    http: Http,
    names: OwnNames,
    /// Cleared when the server cannot be reached, because it may be replaced by another version.
    version: Mutex<Option<Version>>,
}

impl Ollama {
    /// Creates the handle; the first request opens a connection.
    pub(super) fn new(
        address: HttpAddress,
        timeouts: Timeouts,
        clock: Arc<Clock>,
        names: OwnNames,
    ) -> Self {
        let http = Http::new(address, timeouts, clock, &ADVICE);
        Self { http, names, version: Mutex::new(None) }
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
            (FoundServer::Other(kind), _) => {
                let found = format!("{} answers there", kind.title());
                ModelError::OtherServer { to: self.target(None), found }
            }
            (FoundServer::Unknown, no_version @ ModelError::OtherServer { .. }) => no_version,
            (FoundServer::Unknown | FoundServer::Ollama, _) => error,
        })
    }

    /// Sends a request and reads the whole response.
    async fn call(
        &self,
        call: &HttpCall<'_>,
        phase: CallPhase,
        after: Duration,
    ) -> Result<Vec<u8>, ModelError> {
        let response = self.http.call(call, phase, after).await;
        response.inspect_err(|error| self.note_failure(error))
    }

    async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        after: Duration,
        max_attempts: u32,
    ) -> Result<T, ModelError> {
        let to = self.target(None);
        let call =
            HttpCall { method: Method::GET, path, body: None, max_attempts, to, affinity: None };
        let body = self.call(&call, CallPhase::Response, after).await?;
        decode(&call.to, path, &body)
    }

    async fn post_show(&self, model: &str, verbose: bool) -> Result<Vec<u8>, ModelError> {
        let body = wire::show_body(self.names.of(model), verbose);
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
        let line = stream::parse(&call.to, 1, body.trim_ascii());
        line.map_err(|failure| failure.into_error(&call.to, &self.http.address))
    }
}

impl Backend for Ollama {
    fn host(&self) -> String {
        self.http.host()
    }

    fn advice(&self) -> &'static ServerAdvice {
        &ADVICE
    }

    fn kind(&self) -> &'static str {
        "Ollama"
    }

    fn sampling(&self) -> &'static SamplingNames {
        &SAMPLING
    }

    fn version(&self) -> BackendFuture<'_, Version> {
        Box::pin(async { self.explained(self.fetch_version(1).await).await })
    }

    fn names_have_tags(&self) -> bool {
        true
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
            info.digest = match ListedDigest::find(list, self.names.of(model)) {
                ListedDigest::Digest(digest) => Some(digest),
                ListedDigest::Absent | ListedDigest::Unknown => None,
            };
            info.server_version = self.cached_version().await.ok();
            Ok(info)
        })
    }

    fn vocabulary<'a>(&'a self, model: &'a str) -> BackendFuture<'a, Option<Vec<u8>>> {
        Box::pin(async move { self.post_show(model, true).await.map(Some) })
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
            let line = self
                .post_chat(&request.model, wire::warm_body(self.names.of(&request.model), request))
                .await;
            let line = self.explained(line).await?;
            let to = self.target(Some(&request.model));
            if line.is_done() { Ok(()) } else { Err(ModelError::Incomplete { to }) }
        })
    }

    fn stream<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Box<dyn AnswerStream>> {
        Box::pin(async move {
            let version = self.explained(self.cached_version().await).await?;
            let to = self.target(Some(&request.model));
            let mut call = post(
                "/api/chat",
                wire::chat_body(self.names.of(&request.model), request, false),
                to,
            )?;
            call.affinity.clone_from(&request.affinity);
            let first_token = self.http.timeouts.first_token;
            let sent = self.http.send(&call, CallPhase::FirstToken, first_token).await;
            let (response, first) = sent.inspect_err(|error| self.note_failure(error))?;
            let stream =
                LineStream::new(&self.http, call.to, OllamaLines(version), response, first);
            Ok(Box::new(stream) as Box<dyn AnswerStream>)
        })
    }

    fn render<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Option<String>> {
        Box::pin(async move {
            // An older server would ignore the option and answer the request.
            if !self.cached_version().await?.can_render() {
                return Ok(None);
            }
            let line = self
                .post_chat(
                    &request.model,
                    wire::chat_body(self.names.of(&request.model), request, true),
                )
                .await?;
            Ok(line.into_rendered())
        })
    }

    fn release_idle(&self) -> bool {
        self.http.release_idle()
    }
}
