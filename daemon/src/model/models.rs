//! The handle on all model servers: which server has a model, and the queue and the window of each model.
//!
//! Must not know HTTP, or what differs between servers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::address::{DEFAULT_SERVER, ModelAddress, ModelNames, UnknownServer};
use super::backend::Backend;
use super::chat::WarmRequest;
use super::error::{ModelError, ServerAdvice};
use super::info::ModelInfo;
use super::listed::{ListedDigest, RunningModel};
use super::queue::{Priority, Queues};
#[cfg(test)]
use super::server::ServerStatus;
use super::server::{Server, ServerSettings};
use super::window::{ModelWindows, Window, advise};
use crate::clock::Clock;
use crate::config::ServerKind;
use crate::shutdown::Tasks;

/// The problem of a server that was removed from the configuration since its name was read.
const GONE: &str = "is not configured any more";

/// The settings of all servers. One of them is [`DEFAULT_SERVER`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelSettings(pub(crate) Vec<ServerSettings>);

/// The result of loading a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoadReport {
    pub window: Window,
    /// The model in the server's memory, if the server reports it.
    pub running: Option<RunningModel>,
    pub warnings: Vec<String>,
}

/// The handle on the model servers; clones share everything.
#[derive(Clone)]
pub(crate) struct Models(Arc<ModelsShared>);

struct ModelsShared {
    clock: Arc<Clock>,
    tasks: Tasks,
    names: ModelNames,
    queues: Queues,
    windows: ModelWindows,
    /// The servers by name. Locked for short sections only, never across an await.
    servers: Mutex<BTreeMap<String, Server>>,
}

impl Models {
    /// Creates the handle; the first request to a server opens a connection.
    pub(crate) fn new(settings: ModelSettings, clock: Arc<Clock>, tasks: Tasks) -> Self {
        let names = ModelNames::default();
        let models = Self(Arc::new(ModelsShared {
            clock,
            tasks,
            queues: Queues::new(names.clone()),
            windows: ModelWindows::new(names.clone()),
            names,
            servers: Mutex::default(),
        }));
        models.configure(settings);
        models
    }

    /// Changes the settings. Calls in progress end with their own settings. Returns whether a server has another address
    /// than before, so that nothing that was observed of its models holds.
    pub(crate) fn configure(&self, settings: ModelSettings) -> bool {
        let mut servers = self.0.servers.lock();
        let ModelSettings(settings) = settings;
        let mut has_moved = false;
        let aliases = settings.iter().flat_map(|server| {
            server.models.iter().map(|(alias, model)| {
                let address =
                    ModelAddress { server: server.name.clone(), name: model.name.clone() };
                (alias.clone(), address)
            })
        });
        let names = settings.iter().map(|server| server.name.clone());
        let is_unchanged = |settings: &&ServerSettings| {
            servers.get(&settings.name).is_some_and(|server| server.settings() == *settings)
        };
        let unchanged = settings.iter().filter(is_unchanged).map(|server| server.name.clone());
        self.0.names.set(names.collect(), aliases, &unchanged.collect());
        let ollama = settings.iter().filter(|server| server.kind == ServerKind::Ollama);
        ollama.for_each(|server| self.0.names.note_tags(&server.name));
        let mut changed = BTreeMap::new();
        for settings in settings {
            let name = settings.name.clone();
            let server = match servers.remove(&name) {
                Some(server) if *server.settings() == settings => server,
                before => {
                    has_moved |=
                        before.is_some_and(|before| is_elsewhere(before.settings(), &settings));
                    let (clock, tasks) = (Arc::clone(&self.0.clock), self.0.tasks.clone());
                    Server::new(settings, clock, tasks)
                }
            };
            changed.insert(name, server);
        }
        *servers = changed;
        if has_moved {
            self.0.windows.clear();
            self.0.queues.forget_slots();
        }
        has_moved
    }

    /// Returns the names of models.
    pub(crate) fn names(&self) -> &ModelNames {
        &self.0.names
    }

    /// Returns whether two names mean the same model.
    pub(crate) fn is_same(&self, one: &str, other: &str) -> bool {
        self.0.names.key(one) == self.0.names.key(other)
    }

    /// Returns all servers, by name.
    pub(crate) fn servers(&self) -> Vec<Server> {
        self.0.servers.lock().values().cloned().collect()
    }

    /// Returns the server of a model.
    pub(crate) fn server_for(&self, model: &str) -> Result<Server, ModelError> {
        let unknown = |UnknownServer { server, known }| {
            let known = known.join(", ");
            ModelError::Setup { server, problem: format!("is not configured; there are: {known}") }
        };
        let address = self.0.names.resolve(model).map_err(unknown)?;
        let server = self.0.servers.lock().get(&address.server).cloned();
        let ModelAddress { server: name, .. } = address;
        let gone = || ModelError::Setup { server: name, problem: GONE.to_owned() };
        server.ok_or_else(gone)
    }

    /// Returns the server of a model as what answers.
    pub(crate) fn backend_for(&self, model: &str) -> Result<Arc<dyn Backend>, ModelError> {
        self.server_for(model)?.backend()
    }

    /// Returns the server of names that name none.
    pub(crate) fn default_server(&self) -> Server {
        let server = self.0.servers.lock().get(DEFAULT_SERVER).cloned();
        server.expect("the default server is always configured")
    }

    /// Returns the address of the server of a model; empty if there is none.
    pub(crate) fn host_of(&self, model: &str) -> String {
        self.server_for(model).map_or_else(|_| String::new(), |server| server.host())
    }

    /// Returns what a person types when the server of a model fails; `None` if its settings cannot be used.
    pub(crate) fn advice_for(&self, model: &str) -> Option<&'static ServerAdvice> {
        self.backend_for(model).ok().map(|backend| backend.advice())
    }

    /// Replaces the default server until the settings change.
    #[cfg(test)]
    pub(crate) fn set_backend(&self, backend: Arc<dyn Backend>) {
        let settings = self.default_server().settings().clone();
        let (clock, tasks) = (Arc::clone(&self.0.clock), self.0.tasks.clone());
        let server = Server::with_backend(settings, Ok(backend), clock, tasks);
        self.0.servers.lock().insert(DEFAULT_SERVER.to_owned(), server);
    }

    /// Returns the queues of the models.
    pub(crate) fn queues(&self) -> &Queues {
        &self.0.queues
    }

    /// Returns the windows of the models.
    pub(crate) fn windows(&self) -> &ModelWindows {
        &self.0.windows
    }

    /// Returns the digest that its server lists for a model, if it does so within `wait`; `None` if the server cannot be
    /// reached.
    pub(crate) async fn listed_digest(&self, model: &str, wait: Duration) -> Option<ListedDigest> {
        self.server_for(model).ok()?.listed_digest(model, wait).await
    }

    /// Requests the description of a model from its server.
    pub(crate) async fn show(&self, model: &str) -> Result<Arc<ModelInfo>, ModelError> {
        let server = self.server_for(model)?;
        let info = server.show(model).await?;
        self.note(&server, &info);
        Ok(info)
    }

    /// Notes what a description says about the names at the server, and about the queue and the window of the model.
    fn note(&self, server: &Server, info: &ModelInfo) {
        if server.backend().is_ok_and(|backend| backend.names_have_tags()) {
            self.0.names.note_tags(&server.settings().name);
        }
        self.0.queues.set_slots(&info.model, info.slots.unwrap_or(1));
        if let Some(served) = info.served_context {
            self.0.windows.fix(&info.model, served);
        }
    }

    /// Returns a description from the cache. The queue and the window may have been forgotten since it was requested.
    fn recent_info(&self, server: &Server, model: &str) -> Option<Arc<ModelInfo>> {
        let info = server.recent_info(model)?;
        self.note(server, &info);
        Some(info)
    }

    /// Returns the description of a model, from the cache if it is recent, and whether it was requested just now.
    pub(crate) async fn info(&self, model: &str) -> Result<(Arc<ModelInfo>, bool), ModelError> {
        match self.recent_info(&self.server_for(model)?, model) {
            Some(info) => Ok((info, false)),
            None => self.show(model).await.map(|info| (info, true)),
        }
    }

    /// Returns the description of a model, and whether it was requested just now; `None` if the server is down, does not
    /// have the model or does not respond at once. Callers must be able to go on without it.
    pub(crate) async fn info_soon(&self, model: &str) -> Option<(Arc<ModelInfo>, bool)> {
        let server = self.server_for(model).ok()?;
        if let Some(info) = self.recent_info(&server, model) {
            return Some((info, false));
        }
        let info = server.show_soon(model).await?;
        self.note(&server, &info);
        Some((info, true))
    }

    /// Loads a model with a window of at least `wanted` tokens, which it must support, and reports the result.
    ///
    /// Waits in the model's queue.
    pub(crate) async fn warm(
        &self,
        info: &ModelInfo,
        wanted: u32,
        keep_alive: Duration,
    ) -> Result<LoadReport, ModelError> {
        let model = info.model.as_str();
        let server = self.server_for(model)?;
        let backend = server.backend()?;
        let ticket = self.0.queues.enter(model, Priority::Background);
        ticket.admitted().await;
        let before = server.in_memory(model).await;
        let loaded = before.and_then(|running| running.effective_context);
        let num_ctx = self.0.windows.choose(model, wanted, loaded);
        backend.warm(&WarmRequest { model: model.to_owned(), num_ctx, keep_alive }).await?;
        let running = server.in_memory(model).await;
        let window = Window {
            requested: num_ctx,
            trained: info.trained_context,
            effective: running.as_ref().and_then(|running| running.effective_context),
        };
        let advice = running.as_ref().and_then(|running| advise(running, info.geometry));
        let warnings = window.warning().into_iter().chain(advice).collect();
        Ok(LoadReport { window, running, warnings })
    }

    /// Returns the model as it is in its server's memory; `None` if it is not, or if the server does not respond in time.
    pub(crate) async fn in_memory(&self, model: &str) -> Option<RunningModel> {
        self.server_for(model).ok()?.in_memory(model).await
    }

    /// Returns whether its server has a model in its memory; `None` if it does not report it within `wait`.
    pub(crate) async fn is_in_memory(&self, model: &str, wait: Duration) -> Option<bool> {
        self.server_for(model).ok()?.is_in_memory(model, wait).await
    }

    /// Returns the last known status of the default server.
    #[cfg(test)]
    pub(crate) async fn status(&self) -> ServerStatus {
        self.default_server().status().await
    }

    /// Releases memory and connections that have been idle for a while; returns whether there were any.
    pub(crate) fn release_idle(&self) -> bool {
        let released = self.servers().into_iter().filter(Server::release_idle);
        released.count() > 0
    }
}

/// Returns whether other settings of a server name another place, where other models may be.
fn is_elsewhere(before: &ServerSettings, after: &ServerSettings) -> bool {
    let host = |settings: &ServerSettings| {
        settings.address.as_ref().ok().map(|address| address.host.clone())
    };
    before.kind != after.kind || host(before) != host(after)
}
