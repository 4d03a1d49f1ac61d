//! Servers with the API of OpenAI over HTTP: llama-server, vLLM and their like.
//!
//! Must not know queues or cached reports.

mod chunks;
mod describe;
mod dialect;
mod request;
mod thinking;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use reqwest::{Method, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::chunks::ChatChunks;
use self::describe::{FoundModel, ModelList, Props, is_named};
pub(crate) use self::dialect::Dialect;
use self::dialect::{CountingPath, DialectRules};
use super::address::OwnNames;
use super::backend::{AnswerStream, Backend, BackendFuture, MAX_ATTEMPTS};
use super::chat::{ChatRequest, SamplingNames, WarmRequest};
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
    /// The last properties that a llama-server sent.
    last_props: Mutex<Option<Props>>,
    /// The models that a router loaded, as they were when they were described. Locked while the router is asked for
    /// properties, so that concurrent lists ask once; each request has a time limit.
    routed: tokio::sync::Mutex<HashMap<String, FoundModel>>,
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
    /// Set once the server sent its list of models.
    is_asked: bool,
}

#[derive(Deserialize)]
struct Rendered {
    prompt: String,
}

/// The tokens of a text. Only vLLM sends their number as well.
#[derive(Deserialize)]
struct Counted {
    count: Option<u64>,
    tokens: Option<Vec<serde::de::IgnoredAny>>,
}

impl Counted {
    /// Returns the count; `None` if the server sent another object.
    fn count(self) -> Option<u64> {
        self.count.or(self.tokens.map(|tokens| tokens.len() as u64))
    }
}

#[derive(Deserialize)]
struct VersionReply {
    version: String,
}

/// Returns the response to a path that a gateway in front of the server may hide; `None` if it does.
fn unless_hidden<T>(response: Result<T, ModelError>) -> Result<Option<T>, ModelError> {
    match response {
        Ok(response) => Ok(Some(response)),
        Err(ModelError::NotFound { .. } | ModelError::OtherServer { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the path of the properties of one model of a router. `loads`: loads the model first.
fn props_path(model: &str, loads: bool) -> String {
    let loads = if loads { "true" } else { "false" };
    let url =
        Url::parse_with_params("http://router/props", [("model", model), ("autoload", loads)]);
    let query = url.ok().and_then(|url| url.query().map(str::to_owned)).unwrap_or_default();
    format!("/props?{query}")
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
            is_asked: false,
        };
        Self {
            http,
            names,
            is_local,
            kind: Mutex::new(kind),
            last_props: Mutex::default(),
            routed: tokio::sync::Mutex::default(),
        }
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
        decode(&call.to, path, &self.ask(&call).await?)
    }

    /// Sends a request that changes nothing at the server. These servers close a connection that was idle for five seconds,
    /// maybe just when it is used again, so a lost connection is tried once more.
    async fn ask(&self, call: &HttpCall<'_>) -> Result<Vec<u8>, ModelError> {
        let limit = self.http.timeouts.response;
        match self.http.call(call, CallPhase::Response, limit).await {
            Err(ModelError::Disconnected { .. }) => {
                self.http.call(call, CallPhase::Response, limit).await
            }
            response => response,
        }
    }

    /// Sends a request to render or to count.
    ///
    /// **Errors**: `Busy` if a router has not loaded the model, which only a turn does.
    async fn count_at<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        model: &str,
    ) -> Result<T, ModelError> {
        if !self.is_router() {
            return self.post(path, body, model).await;
        }
        let counted = self.post(&format!("{path}?autoload=false"), body, model).await;
        counted.map_err(|error| match error {
            ModelError::Refused { to, status: 400, message } => {
                ModelError::Busy { to, message, retry_after: None }
            }
            error => error,
        })
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        model: &str,
    ) -> Result<T, ModelError> {
        let call = post(path, serde_json::to_vec(body), self.target(Some(model)))?;
        decode(&call.to, path, &self.ask(&call).await?)
    }

    /// Returns the models with what the server says about them.
    async fn models(&self, max_attempts: u32) -> Result<Vec<FoundModel>, ModelError> {
        // Both at once, because a turn waits for them.
        let props = async {
            match self.rules().has_props {
                true => Some(self.props(max_attempts).await),
                false => None,
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
            None => self.known_props(self.props(max_attempts).await?),
            Some(props) => self.known_props(props?),
        };
        let models = list.into_models(props.as_ref());
        match props.is_some_and(|props| props.is_router()) {
            true => Ok(self.described_by_router(models).await),
            false => Ok(models),
        }
    }

    /// Adds the properties of the models that a router has loaded. They are requested once after each loading, and one that
    /// was unloaded is described as it was, so that its digest stays the same.
    async fn described_by_router(&self, mut models: Vec<FoundModel>) -> Vec<FoundModel> {
        let mut all = self.routed.lock().await;
        for model in &mut models {
            if let Some(known) = all.get(&model.id).and_then(|known| model.with_known(known)) {
                *model = known;
            } else if model.is_loaded() {
                let path = props_path(&model.id, false);
                // Without them, the list has the window.
                if let Ok(props) = self.get(&path, 1, Some(&model.id)).await {
                    *model = std::mem::take(model).with_props(props);
                    all.insert(model.id.clone(), model.clone());
                }
            }
        }
        all.retain(|id, _| models.iter().any(|model| model.id == *id));
        models
    }

    fn is_router(&self) -> bool {
        self.last_props.lock().as_ref().is_some_and(Props::is_router)
    }

    /// Requests the properties of a llama-server; `None` behind a gateway that hides them.
    ///
    /// **Errors**: `Unauthorized` if the server or the gateway does not permit the request.
    async fn props(&self, max_attempts: u32) -> Result<Option<Props>, ModelError> {
        let props = match unless_hidden(self.get::<Props>("/props", max_attempts, None).await) {
            Err(ModelError::Refused { to, status: 403, message }) => {
                return Err(ModelError::Unauthorized { to, message });
            }
            Err(ModelError::ForbiddenHost { to }) => {
                let message = "status 403 without a message".to_owned();
                return Err(ModelError::Unauthorized { to, message });
            }
            props => props?,
        };
        if let Some(props) = &props {
            *self.last_props.lock() = Some(props.clone());
        }
        Ok(props)
    }

    /// Returns the properties of a llama-server: those that it sent, or else, if they are hidden now, the last ones.
    fn known_props(&self, sent: Option<Props>) -> Option<Props> {
        sent.or_else(|| self.last_props.lock().clone())
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
        kind.is_asked = true;
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
        let first_token = self.http.timeouts.first_token;
        let chunks = ChatChunks::new();
        let (response, first) = self.http.send(&call, CallPhase::FirstToken, first_token).await?;
        let mut stream = LineStream::new(&self.http, call.to, chunks, response, first);
        // Some servers send the head of a response before they read the prompt.
        stream.begin().await?;
        Ok(Box::new(stream))
    }

    async fn rendered(&self, request: &ChatRequest) -> Result<Option<String>, ModelError> {
        if self.rules().counting != CountingPath::Rendered {
            return Ok(None);
        }
        let body = request::prompt_body(self.names.of(&request.model), request, self.rules());
        let rendered = self.count_at::<Rendered>("/apply-template", &body, &request.model).await;
        Ok(unless_hidden(rendered)?.map(|rendered| rendered.prompt))
    }

    async fn counted(&self, request: &ChatRequest) -> Result<Option<u64>, ModelError> {
        let (name, rules) = (self.names.of(&request.model), self.rules());
        let body = match rules.counting {
            CountingPath::None => return Ok(None),
            CountingPath::Rendered => match self.rendered(request).await? {
                Some(prompt) => {
                    json!({ "model": name, "content": prompt, "add_special": true, "parse_special": true })
                }
                None => return Ok(None),
            },
            CountingPath::Conversation => {
                let mut body = request::prompt_body(name, request, rules);
                body["add_generation_prompt"] = true.into();
                body
            }
        };
        self.tokenized(&body, &request.model, request.messages.is_empty()).await
    }

    async fn counted_text(&self, model: &str, text: &str) -> Result<Option<u64>, ModelError> {
        let name = self.names.of(model);
        let body = match self.rules().counting {
            CountingPath::None => return Ok(None),
            CountingPath::Rendered => {
                json!({ "model": name, "content": text, "add_special": false, "parse_special": true })
            }
            CountingPath::Conversation => {
                json!({ "model": name, "prompt": text, "add_special_tokens": false })
            }
        };
        self.tokenized(&body, model, text.is_empty()).await
    }

    /// Sends a request to count, and returns the count; `None` if the server hides the path.
    ///
    /// **Errors**: `OtherServer` for a response that is no count, or that counts nothing of what is not empty.
    async fn tokenized(
        &self,
        body: &Value,
        model: &str,
        is_empty: bool,
    ) -> Result<Option<u64>, ModelError> {
        let counted = self.count_at::<Counted>("/tokenize", body, model).await;
        let Some(counted) = unless_hidden(counted)? else { return Ok(None) };
        match counted.count().filter(|count| *count > 0 || is_empty) {
            Some(count) => Ok(Some(count)),
            None => Err(self.other_server("it returns no count of tokens".to_owned())),
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

    fn identify(&self) -> BackendFuture<'_, ()> {
        Box::pin(async {
            if !self.is_identified() {
                let list: Value = self.get(MODELS, 1, None).await?;
                self.check_kind(&list).await?;
            }
            Ok(())
        })
    }

    fn is_identified(&self) -> bool {
        let known = *self.kind.lock();
        known.dialect != Dialect::Plain || known.is_asked
    }

    fn sampling(&self) -> &'static SamplingNames {
        &self.rules().sampling
    }

    fn version(&self) -> BackendFuture<'_, Version> {
        Box::pin(async {
            // Without them, another server may answer there now, which its list says, or a gateway.
            if self.rules().has_props
                && let Some(props) = self.props(1).await?
            {
                return Ok(Version::parse(props.build_info.as_deref().unwrap_or_default()));
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
        !self.rules().loads_on_demand && !self.is_router()
    }

    fn running(&self) -> BackendFuture<'_, Vec<RunningModel>> {
        Box::pin(async {
            let models = self.models(1).await?;
            let running = models.iter().filter(|model| model.is_loaded()).map(|model| {
                let name = self.own_name(model);
                RunningModel { model: name, ..model.running() }
            });
            Ok(running.collect())
        })
    }

    fn warm<'a>(&'a self, request: &'a WarmRequest) -> BackendFuture<'a, ()> {
        Box::pin(async {
            if !self.is_router() {
                return Ok(());
            }
            let (to, name) = (self.target(Some(&request.model)), self.names.of(&request.model));
            let (method, path) = (Method::GET, props_path(name, true));
            let call =
                HttpCall { method, path: &path, body: None, max_attempts: 1, to, affinity: None };
            self.http
                .call(&call, CallPhase::FirstToken, self.http.timeouts.first_token)
                .await
                .map(drop)
        })
    }

    fn stream<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Box<dyn AnswerStream>> {
        Box::pin(self.begin(request))
    }

    fn render<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Option<String>> {
        Box::pin(self.rendered(request))
    }

    fn count<'a>(&'a self, request: &'a ChatRequest) -> BackendFuture<'a, Option<u64>> {
        Box::pin(self.counted(request))
    }

    fn count_text<'a>(&'a self, model: &'a str, text: &'a str) -> BackendFuture<'a, Option<u64>> {
        Box::pin(self.counted_text(model, text))
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
