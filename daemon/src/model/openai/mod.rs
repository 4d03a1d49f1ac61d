//! Servers with the API of OpenAI over HTTP: llama-server, vLLM and their like.
//!
//! Must not know queues or cached reports.

mod chunks;
mod describe;
mod dialect;
mod request;
mod thinking;

use std::sync::Arc;

use parking_lot::Mutex;
use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::chunks::ChatChunks;
use self::describe::{FoundModel, ModelList, Props, is_named};
pub(crate) use self::dialect::Dialect;
use self::dialect::{CountingPath, DialectRules};
use super::address::OwnNames;
use super::backend::{AnswerStream, Backend, BackendFuture, MAX_ATTEMPTS};
use super::chat::{ChatRequest, SamplingNames};
use super::error::{CallPhase, ModelError, ServerAdvice};
use super::http::{Http, HttpAddress, HttpCall, Timeouts, decode, post};
use super::identify::{FoundServer, identify};
use super::info::{ModelInfo, Version};
use super::line_stream::LineStream;
use super::listed::{ListedModel, RunningModel};
use crate::clock::Clock;

/// The list of models, which every server of this kind has.
const MODELS: &str = "/v1/models";
const CHAT: &str = "/v1/chat/completions";
/// The owner of the models in the list of Ollama's face for clients of OpenAI, which ignores the window of a request.
const OLLAMA_OWNER: &str = "library";
/// The path of Ollama's version, and the owner of the models of the one other server that has it.
const OLLAMA_VERSION: &str = "/api/version";
const KOBOLD_OWNER: &str = "koboldcpp";

/// A server with the API of OpenAI.
pub(super) struct OpenAi {
    http: Http,
    names: OwnNames,
    is_local: bool,
    kind: Mutex<KnownDialect>,
}

/// The known kind of a server, and the source of that knowledge.
#[derive(Clone, Copy)]
struct KnownDialect {
    dialect: Dialect,
    /// Set if the configuration says so, so that a server of another kind is an error.
    is_configured: bool,
    /// Set if the list of models said so, which can say otherwise later.
    is_listed: bool,
    /// Set once the server was asked if it is Ollama, and is not.
    is_not_ollama: bool,
}

#[derive(Deserialize)]
struct Rendered {
    prompt: String,
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<Value>,
}

#[derive(Deserialize)]
struct Counted {
    count: u64,
}

#[derive(Deserialize)]
struct VersionReply {
    version: String,
}

impl OpenAi {
    /// Creates the handle; the first request opens a connection. A server that is only known to have the API is asked what
    /// it is. `is_configured`: the configuration names the dialect, and not the server.
    pub(super) fn new(
        address: HttpAddress,
        timeouts: Timeouts,
        clock: Arc<Clock>,
        names: OwnNames,
        dialect: Dialect,
        is_configured: bool,
    ) -> Self {
        let is_local = address.host.is_loopback();
        let http = Http::new(address, timeouts, clock, &dialect.rules().advice);
        let kind = KnownDialect {
            dialect,
            is_configured: is_configured && dialect != Dialect::Plain,
            is_listed: false,
            is_not_ollama: false,
        };
        Self { http, names, is_local, kind: Mutex::new(kind) }
    }

    fn rules(&self) -> &'static DialectRules {
        self.kind.lock().dialect.rules()
    }

    async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        max_attempts: u32,
        model: Option<&str>,
    ) -> Result<T, ModelError> {
        let to = self.target(model);
        let call =
            HttpCall { method: Method::GET, path, body: None, max_attempts, to, affinity: None };
        let body = self.http.call(&call, CallPhase::Response, self.http.timeouts.response).await?;
        decode(&call.to, path, &body)
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        model: &str,
    ) -> Result<T, ModelError> {
        let call = post(path, serde_json::to_vec(body), self.target(Some(model)))?;
        let body = self.http.call(&call, CallPhase::Response, self.http.timeouts.response).await?;
        decode(&call.to, path, &body)
    }

    /// Returns the models with what the server says about them.
    async fn models(&self, max_attempts: u32) -> Result<Vec<FoundModel>, ModelError> {
        // Both at once, because a turn waits for them.
        let props = async {
            match self.rules().has_props {
                true => self.get::<Props>("/props", max_attempts, None).await.map(Some),
                false => Ok(None),
            }
        };
        let list = self.get::<Value>(MODELS, max_attempts, None);
        let (raw, props) = tokio::join!(list, props);
        let raw = raw?;
        self.check_kind(&raw).await?;
        let other = |_| self.other_server("it returns other JSON".to_owned());
        let mut list: ModelList = serde_json::from_value(raw).map_err(other)?;
        let rules = self.rules();
        if let Some(path) = rules.windows
            && let Ok(windows) = self.get::<ModelList>(path, 1, None).await
        {
            list.add_windows(&windows);
        }
        let props = match props {
            // The server said just now that it is another one.
            _ if !rules.has_props => None,
            // The server said just now that it is a llama-server.
            Ok(None) => Some(self.get("/props", max_attempts, None).await?),
            props => props?,
        };
        Ok(list.into_models(props.as_ref()))
    }

    /// Learns the kind of the server from its list of models.
    ///
    /// **Errors**: `OtherServer` if it is certainly of another kind than the configured one.
    async fn check_kind(&self, list: &Value) -> Result<(), ModelError> {
        let found = Dialect::of_models(list).unwrap_or(Dialect::Plain);
        if self.is_ollama(list, found).await {
            let found = "Ollama answers there, whose kind is ollama".to_owned();
            return Err(self.other_server(found));
        }
        let mut kind = self.kind.lock();
        if found == Dialect::Plain {
            if kind.is_listed {
                (kind.dialect, kind.is_listed) = (found, false);
            }
            return Ok(());
        }
        if kind.is_configured && kind.dialect != found {
            drop(kind);
            return Err(self.other_server(format!("{} answers there", found.title())));
        }
        if kind.dialect != found {
            (kind.dialect, kind.is_listed) = (found, true);
        }
        Ok(())
    }

    /// Returns whether a list of models is that of Ollama: by its owners, or else by what the server says of itself, which
    /// it is asked once while nothing more is known of it.
    async fn is_ollama(&self, list: &Value, found: Dialect) -> bool {
        let has_owner = |owner: &str| {
            let all = list["data"].as_array();
            all.into_iter().flatten().any(|entry| entry["owned_by"] == owner)
        };
        if has_owner(OLLAMA_OWNER) && identify(&self.http).await == FoundServer::Ollama {
            return true;
        }
        let known = *self.kind.lock();
        let is_plain = found == Dialect::Plain && known.dialect == Dialect::Plain;
        if !is_plain || known.is_not_ollama || has_owner(KOBOLD_OWNER) {
            return false;
        }
        let Some(response) = self.http.probe(OLLAMA_VERSION).await else { return false };
        let is_ollama = response.json().is_some_and(|body| body["version"].is_string());
        self.kind.lock().is_not_ollama = !is_ollama;
        is_ollama
    }

    fn other_server(&self, found: String) -> ModelError {
        ModelError::OtherServer { to: self.target(None), found }
    }

    /// Returns a model of the server.
    async fn found(&self, model: &str) -> Result<FoundModel, ModelError> {
        let name = self.names.of(model);
        let all = self.models(MAX_ATTEMPTS).await?;
        let found = all.into_iter().find(|found| is_named(&found.id, name));
        found.ok_or_else(|| ModelError::NotFound { to: self.target(Some(model)) })
    }

    /// Sends a request for a streamed answer, and waits until it begins.
    async fn begin(&self, request: &ChatRequest) -> Result<Box<dyn AnswerStream>, ModelError> {
        let body = request::chat_body(self.names.of(&request.model), request, self.rules());
        let to = self.target(Some(&request.model));
        let mut call = post(CHAT, serde_json::to_vec(&body), to)?;
        call.affinity.clone_from(&request.affinity);
        let Timeouts { first_token, idle, .. } = self.http.timeouts;
        let chunks = ChatChunks::new();
        let (response, first) = self.http.send(&call, CallPhase::FirstToken, first_token).await?;
        let mut stream = LineStream::new(call.to, chunks, response, first, idle);
        // Some servers send the head of a response before they read the prompt.
        stream.begin().await?;
        Ok(Box::new(stream))
    }

    async fn rendered(&self, request: &ChatRequest) -> Result<String, ModelError> {
        let body = request::prompt_body(self.names.of(&request.model), request, self.rules());
        let Rendered { prompt } = self.post("/apply-template", &body, &request.model).await?;
        Ok(prompt)
    }

    async fn counted(&self, request: &ChatRequest) -> Result<Option<u64>, ModelError> {
        let rules = self.rules();
        let counted = match rules.counting {
            CountingPath::None => return Ok(None),
            CountingPath::Rendered => {
                let prompt = self.rendered(request).await?;
                let body = json!({ "content": prompt, "add_special": true, "parse_special": true });
                let tokens = self.post::<Tokens>("/tokenize", &body, &request.model).await;
                tokens.map(|counted| counted.tokens.len() as u64)
            }
            CountingPath::Conversation => {
                let name = self.names.of(&request.model);
                let mut body = request::prompt_body(name, request, rules);
                body["add_generation_prompt"] = true.into();
                let counted = self.post::<Counted>("/tokenize", &body, &request.model).await;
                counted.map(|counted| counted.count)
            }
        };
        match counted {
            Ok(count) => Ok(Some(count)),
            // A gateway hides the path.
            Err(ModelError::NotFound { .. } | ModelError::OtherServer { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Backend for OpenAi {
    fn host(&self) -> String {
        self.http.host()
    }

    fn advice(&self) -> &'static ServerAdvice {
        &self.rules().advice
    }

    fn kind(&self) -> &'static str {
        self.kind.lock().dialect.title()
    }

    fn sampling(&self) -> &'static SamplingNames {
        &self.rules().sampling
    }

    fn version(&self) -> BackendFuture<'_, Version> {
        Box::pin(async {
            let rules = self.rules();
            let is_configured = self.kind.lock().is_configured;
            if rules.has_props {
                match self.get::<Props>("/props", 1, None).await {
                    // Another server may answer there now, which its list says.
                    Err(ModelError::OtherServer { .. }) if !is_configured => {}
                    props => {
                        let build = props?.build_info;
                        return Ok(Version::parse(build.as_deref().unwrap_or_default()));
                    }
                }
            }
            let list: Value = self.get(MODELS, 1, None).await?;
            self.check_kind(&list).await?;
            let Some(path) = self.rules().version else { return Ok(Version::parse("")) };
            let version = self.get::<VersionReply>(path, 1, None).await;
            Ok(Version::parse(&version.map(|body| body.version).unwrap_or_default()))
        })
    }

    fn is_named(&self, listed: &str, name: &str) -> bool {
        is_named(listed, name)
    }

    fn list(&self, max_attempts: u32) -> BackendFuture<'_, Vec<ListedModel>> {
        Box::pin(async move {
            let models = self.models(max_attempts).await?;
            Ok(models.iter().map(|model| self.with_own_name(model.listed(), model)).collect())
        })
    }

    fn describe<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo> {
        self.show(model)
    }

    fn show<'a>(&'a self, model: &'a str) -> BackendFuture<'a, ModelInfo> {
        Box::pin(async move {
            let found = self.found(model).await?;
            Ok(found.info(model, self.rules(), self.is_local))
        })
    }

    fn holds_models(&self) -> bool {
        !self.rules().loads_on_demand
    }

    fn running(&self) -> BackendFuture<'_, Vec<RunningModel>> {
        Box::pin(async {
            let models = self.models(1).await?;
            let running = models.iter().map(|model| {
                let name = self.own_name(model);
                RunningModel { model: name, ..model.running() }
            });
            Ok(running.collect())
        })
    }

    fn stream<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Box<dyn AnswerStream>> {
        Box::pin(self.begin(request))
    }

    fn render<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Option<String>> {
        Box::pin(async move {
            if self.rules().counting != CountingPath::Rendered {
                return Ok(None);
            }
            self.rendered(request).await.map(Some)
        })
    }

    fn count<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Option<u64>> {
        Box::pin(self.counted(request))
    }

    fn release_idle(&self) -> bool {
        self.http.release_idle()
    }
}

impl OpenAi {
    /// Returns the name by which the configuration knows a model, else that of the server.
    fn own_name(&self, model: &FoundModel) -> String {
        let mut known = self.names.aliases.values();
        known.find(|name| is_named(&model.id, name)).unwrap_or(&model.id).clone()
    }

    fn with_own_name(&self, listed: ListedModel, model: &FoundModel) -> ListedModel {
        ListedModel { model: self.own_name(model), ..listed }
    }
}
