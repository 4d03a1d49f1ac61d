//! Ollama over HTTP, versions 0.1.35 and later.

mod error_response;
mod http;
mod stream;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::Method;
use serde::de::DeserializeOwned;

use self::http::{Call, Http};
use self::stream::OllamaStream;
use super::backend::{Answer, Backend, ChatStream, Timeouts};
use super::chat::{ChatRequest, WarmRequest};
use super::error::{ModelError, Phase, Target};
use super::host::{Host, Secret};
use super::info::{ListedModel, ModelInfo, RunningModel, Version, canonical};
use crate::clock::Clock;

/// The largest answer that is not streamed: a vocabulary with its scores has about 13 MB.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// One server.
pub(super) struct Ollama {
    http: Http,
    /// What it said last; forgotten when it was away, since another version may come back.
    version: Mutex<Option<Version>>,
}

impl Ollama {
    /// A server that nothing was sent to yet.
    pub(super) fn new(
        host: Host,
        key: Option<Secret>,
        timeouts: Timeouts,
        clock: Arc<Clock>,
    ) -> Self {
        Self { http: Http::new(host, key, timeouts, clock), version: Mutex::new(None) }
    }

    fn target(&self, model: Option<&str>) -> Target {
        Target { host: self.http.host().to_string(), model: model.map(str::to_owned) }
    }

    /// Asks and reads the whole answer.
    async fn ask(
        &self,
        call: Call<'_>,
        phase: Phase,
        after: Duration,
    ) -> Result<Vec<u8>, ModelError> {
        let asked = async {
            let (response, deadline) = self.http.send(&call, phase, after).await?;
            self.http.read(response, &call.to, deadline, "an answer", MAX_ANSWER_BYTES).await
        };
        let answer = asked.await;
        if answer.as_ref().is_err_and(is_away) {
            *self.version.lock() = None;
        }
        answer
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, after: Duration) -> Result<T, ModelError> {
        let to = self.target(None);
        let call = Call { method: Method::GET, path, body: None, to };
        let to = call.to.clone();
        let body = self.ask(call, Phase::Answer, after).await?;
        decode(&to, path, &body)
    }

    async fn ask_version(&self) -> Result<Version, ModelError> {
        let known = self.version.lock().clone();
        if let Some(version) = known {
            return Ok(version);
        }
        let body: wire::VersionBody = self.get("/api/version", self.http.timeouts().answer).await?;
        let version = Version::parse(&body.version);
        *self.version.lock() = Some(version.clone());
        Ok(version)
    }

    async fn ask_list(&self) -> Result<Vec<ListedModel>, ModelError> {
        let body: wire::TagsBody = self.get("/api/tags", self.http.timeouts().answer).await?;
        Ok(body.into_models())
    }

    async fn ask_show(&self, model: &str, verbose: bool) -> Result<Vec<u8>, ModelError> {
        let to = self.target(Some(model));
        let body = encode(&to, wire::show_body(model, verbose))?;
        let call = Call { method: Method::POST, path: "/api/show", body: Some(body), to };
        self.ask(call, Phase::Answer, self.http.timeouts().answer).await
    }

    async fn ask_info(&self, model: &str) -> Result<ModelInfo, ModelError> {
        let body = self.ask_show(model, false).await?;
        let show: wire::ShowBody = decode(&self.target(Some(model)), "/api/show", &body)?;
        let mut info = show.into_info(model);
        // Only the list has the digest. A model that is in no list, such as one elsewhere, has none.
        let name = canonical(model);
        let listed = self.ask_list().await?;
        let own = listed.into_iter().find(|listed| canonical(&listed.model) == name);
        info.digest = own.map(|listed| listed.digest).filter(|digest| !digest.is_empty());
        Ok(info)
    }

    async fn ask_chat(&self, model: &str, body: Vec<u8>) -> Result<wire::ChatLine, ModelError> {
        let to = self.target(Some(model));
        let call = Call { method: Method::POST, path: "/api/chat", body: Some(body), to };
        let to = call.to.clone();
        let body = self.ask(call, Phase::FirstToken, self.http.timeouts().first_token).await?;
        stream::parse(&to, 1, body.trim_ascii())
    }

    async fn ask_warm(&self, request: &WarmRequest) -> Result<(), ModelError> {
        let to = self.target(Some(&request.model));
        let line = self.ask_chat(&request.model, encode(&to, wire::warm_body(request))?).await?;
        if !line.is_done() {
            return Err(ModelError::Incomplete { to });
        }
        Ok(())
    }

    async fn begin(&self, request: &ChatRequest) -> Result<Box<dyn ChatStream>, ModelError> {
        let version = self.ask_version().await?;
        let to = self.target(Some(&request.model));
        let body = encode(&to, wire::chat_body(request, false))?;
        let call = Call { method: Method::POST, path: "/api/chat", body: Some(body), to };
        let Timeouts { first_token, idle, .. } = *self.http.timeouts();
        let sent = self.http.send(&call, Phase::FirstToken, first_token).await;
        let (response, first) = sent.inspect_err(|error| {
            if is_away(error) {
                *self.version.lock() = None;
            }
        })?;
        Ok(Box::new(OllamaStream::new(call.to, version, response, first, idle)))
    }

    async fn ask_render(&self, request: &ChatRequest) -> Result<Option<String>, ModelError> {
        // An older server would ignore the wish and answer.
        if !self.ask_version().await?.features().render {
            return Ok(None);
        }
        let to = self.target(Some(&request.model));
        let line =
            self.ask_chat(&request.model, encode(&to, wire::chat_body(request, true))?).await?;
        Ok(line.into_rendered())
    }
}

/// Whether the error means that the server may have been replaced meanwhile.
const fn is_away(error: &ModelError) -> bool {
    matches!(error, ModelError::Unreachable { .. } | ModelError::Disconnected { .. })
}

fn encode(to: &Target, body: serde_json::Result<Vec<u8>>) -> Result<Vec<u8>, ModelError> {
    body.map_err(|error| ModelError::Client { to: to.clone(), reason: error.to_string() })
}

/// Reads an answer; what is not JSON or of another shape comes from somebody else.
fn decode<T: DeserializeOwned>(to: &Target, path: &str, body: &[u8]) -> Result<T, ModelError> {
    let first = body.trim_ascii().first();
    // An array would be read as the fields in their order.
    let read = if first == Some(&b'[') { None } else { serde_json::from_slice(body).ok() };
    read.ok_or_else(|| {
        let kind = match first {
            Some(b'<') => "a page",
            Some(b'{' | b'[') => "other JSON",
            None => "nothing",
            Some(_) => "something that is no JSON",
        };
        ModelError::NotOllama { to: to.clone(), found: format!("{path} answers with {kind}") }
    })
}

impl Backend for Ollama {
    fn host(&self) -> String {
        self.http.host().to_string()
    }

    fn version(&self) -> Answer<'_, Version> {
        Box::pin(self.ask_version())
    }

    fn list(&self) -> Answer<'_, Vec<ListedModel>> {
        Box::pin(self.ask_list())
    }

    fn show<'a>(&'a self, model: &'a str) -> Answer<'a, ModelInfo> {
        Box::pin(self.ask_info(model))
    }

    fn vocabulary<'a>(&'a self, model: &'a str) -> Answer<'a, Vec<u8>> {
        Box::pin(self.ask_show(model, true))
    }

    fn running(&self) -> Answer<'_, Vec<RunningModel>> {
        Box::pin(async {
            let body: wire::PsBody = self.get("/api/ps", self.http.timeouts().probe).await?;
            Ok(body.into_models())
        })
    }

    fn warm<'a>(&'a self, request: &'a WarmRequest) -> Answer<'a, ()> {
        Box::pin(self.ask_warm(request))
    }

    fn stream<'a>(&'a self, request: &'a ChatRequest) -> Answer<'a, Box<dyn ChatStream>> {
        Box::pin(self.begin(request))
    }

    fn render<'a>(&'a self, request: &'a ChatRequest) -> Answer<'a, Option<String>> {
        Box::pin(self.ask_render(request))
    }

    fn rest(&self) -> bool {
        self.http.rest()
    }
}
