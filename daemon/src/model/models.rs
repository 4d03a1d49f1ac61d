//! The handle on the model server: the server in use, the queues and windows of its models, and cached reports.
//!
//! Must not know HTTP.
//!
//! **Invariant**: after a change of settings, no report of the previous server is cached or returned.

use std::sync::Arc;
use std::time::Duration;

use hashlink::LruCache;
use ollm_protocol::Timestamp;
use ollm_protocol::model_host::{InvalidHost, ModelHost};
use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::backend::{Backend, MAX_ATTEMPTS};
use super::chat::WarmRequest;
use super::error::{CallPhase, ModelError, ServerAdvice};
use super::info::{ModelInfo, canonical_name};
use super::listed::{ListedDigest, ListedModel, RunningModel};
use super::ollama::{Ollama, Timeouts};
use super::queue::{Priority, Queues};
use super::window::{ModelWindows, Window, advise};
use crate::clock::Clock;
use crate::config::ApiKey;
use crate::shutdown::Tasks;

/// The time for which a status report is returned without asking the server again.
const STATUS_TTL: Duration = Duration::from_secs(5);
/// The longest wait of the first `status` for a report. A server on this machine needs a millisecond.
const FIRST_STATUS_WAIT: Duration = Duration::from_millis(100);
/// The time for which a model's description is cached. It changes only if the model is replaced by another one of its name.
const INFO_TTL: Duration = Duration::from_secs(300);
/// The time for descriptions that complete a list; a server on this machine needs milliseconds for each.
const LIST_DETAILS_WAIT: Duration = Duration::from_secs(2);
/// Maximum number of concurrent requests for them.
const MAX_CONCURRENT_DESCRIPTIONS: usize = 4;
/// Maximum number of cached details of listed models, more than most servers have.
const MAX_CACHED_DETAILS: usize = 256;
/// The longest wait of `info_soon`. A server on this machine needs milliseconds.
const INFO_WAIT: Duration = Duration::from_secs(1);
/// The time for which `info_soon` does not ask a server again that did not respond.
const SILENCE: Duration = Duration::from_secs(10);
/// Maximum number of cached descriptions.
const MAX_CACHED_INFOS: usize = 64;

/// The settings of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelSettings {
    /// The configured address; empty for this machine.
    pub host: String,
    pub key: Option<ApiKey>,
    pub timeouts: Timeouts,
}

/// The last known state of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerStatus {
    /// The address of the server.
    pub host: String,
    /// `None` until the server was asked.
    pub reachable: Option<bool>,
    /// The version of a reachable server.
    pub version: Option<String>,
    /// Why the server is not reachable.
    pub error: Option<ModelError>,
    /// When the server was asked.
    pub checked_at: Option<Timestamp>,
}

/// The result of loading a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoadReport {
    pub window: Window,
    /// The model in the server's memory, if the server reports it.
    pub running: Option<RunningModel>,
    pub warnings: Vec<String>,
}

/// The handle on the model server; clones share everything.
#[derive(Clone)]
pub(crate) struct Models(Arc<ModelsShared>);

struct ModelsShared {
    clock: Arc<Clock>,
    tasks: Tasks,
    queues: Queues,
    windows: ModelWindows,
    /// Locked for short sections only, never across an await.
    state: Mutex<ModelsState>,
}

struct ModelsState {
    settings: ModelSettings,
    backend: Result<Arc<dyn Backend>, InvalidHost>,
    /// Counts changes of settings, to recognize reports of a previous server.
    generation: u64,
    status: Option<(ServerStatus, Instant)>,
    /// Whether a task is asking for the status.
    is_asking: bool,
    infos: LruCache<String, (Arc<ModelInfo>, Instant)>,
    /// The trained window and the capabilities of listed models, by digest.
    details: LruCache<String, ListedDetails>,
    /// When `info_soon` last waited in vain.
    silent_since: Option<Instant>,
}

/// The details of a listed model that older servers report only in its description.
type ListedDetails = (Option<u32>, Vec<String>);

impl ModelsState {
    /// Returns a description that was requested recently.
    fn recent_info(&mut self, model: &str) -> Option<Arc<ModelInfo>> {
        let (info, at) = self.infos.get(model)?;
        (at.elapsed() < INFO_TTL).then(|| Arc::clone(info))
    }
}

impl Models {
    /// Creates the handle; the first request opens a connection.
    pub(crate) fn new(settings: ModelSettings, clock: Arc<Clock>, tasks: Tasks) -> Self {
        let state = ModelsState {
            backend: create_backend(&settings, &clock),
            settings,
            generation: 0,
            status: None,
            is_asking: false,
            infos: LruCache::new(MAX_CACHED_INFOS),
            details: LruCache::new(MAX_CACHED_DETAILS),
            silent_since: None,
        };
        Self(Arc::new(ModelsShared {
            clock,
            tasks,
            queues: Queues::default(),
            windows: ModelWindows::default(),
            state: Mutex::new(state),
        }))
    }

    /// Changes the settings. Calls in progress end with their own settings.
    pub(crate) fn configure(&self, settings: ModelSettings) {
        let mut state = self.state();
        if state.settings == settings {
            return;
        }
        if state.settings.host != settings.host {
            self.0.windows.clear();
        }
        state.backend = create_backend(&settings, &self.0.clock);
        state.settings = settings;
        state.generation += 1;
        state.status = None;
        state.is_asking = false;
        state.infos.clear();
        state.details.clear();
        state.silent_since = None;
    }

    /// Returns the server in use.
    pub(crate) fn backend(&self) -> Result<Arc<dyn Backend>, ModelError> {
        Ok(self.state().backend.clone()?)
    }

    /// Returns the address of the server; empty if the configured one is invalid.
    pub(crate) fn host(&self) -> String {
        unknown_status(&self.state()).host
    }

    /// Returns what a person types when the server fails; `None` if the configured address is invalid.
    pub(crate) fn advice(&self) -> Option<&'static ServerAdvice> {
        self.backend().ok().map(|backend| backend.advice())
    }

    /// Replaces the server in use until the settings change.
    #[cfg(test)]
    pub(crate) fn set_backend(&self, backend: Arc<dyn Backend>) {
        self.state().backend = Ok(backend);
    }

    /// Returns the queues of the models.
    pub(crate) fn queues(&self) -> &Queues {
        &self.0.queues
    }

    /// Returns the windows of the models.
    pub(crate) fn windows(&self) -> &ModelWindows {
        &self.0.windows
    }

    /// Lists the models that the server has. What an older server leaves out of its list comes from the descriptions of
    /// the models, as far as they arrive in time.
    pub(crate) async fn list(&self) -> Result<Vec<ListedModel>, ModelError> {
        let backend = self.backend()?;
        let mut all = backend.list(MAX_ATTEMPTS).await?;
        let is_incomplete = |listed: &ListedModel| {
            listed.capabilities.is_empty() || listed.details.trained_context.is_none()
        };
        let missing: Vec<(String, String)> = {
            let mut state = self.state();
            let unknown = |listed: &&ListedModel| {
                is_incomplete(listed) && state.details.get(&listed.digest).is_none()
            };
            let missing = all.iter().filter(unknown);
            missing.map(|listed| (listed.digest.clone(), listed.model.clone())).collect()
        };
        drop(tokio::time::timeout(LIST_DETAILS_WAIT, self.learn_details(missing)).await);
        let mut state = self.state();
        for listed in all.iter_mut().filter(|listed| is_incomplete(listed)) {
            let Some((trained, capabilities)) = state.details.get(&listed.digest) else { continue };
            listed.details.trained_context = listed.details.trained_context.or(*trained);
            if listed.capabilities.is_empty() {
                listed.capabilities.clone_from(capabilities);
            }
        }
        Ok(all)
    }

    /// Returns the digest that the server lists for a model, if it does so within `wait`; `None` if the server cannot be
    /// reached.
    pub(crate) async fn listed_digest(&self, model: &str, wait: Duration) -> Option<ListedDigest> {
        // A second attempt would not fit into the wait, and a refused connection would look like a slow server.
        let list = async { self.backend()?.list(1).await };
        match tokio::time::timeout(wait, list).await {
            Ok(Ok(list)) => Some(ListedDigest::find(list, model)),
            Ok(Err(ModelError::InvalidHost(_) | ModelError::Unreachable { .. })) => None,
            Ok(Err(_)) | Err(_) => Some(ListedDigest::Unknown),
        }
    }

    /// Requests the details of listed models, by digest and name, some at a time.
    async fn learn_details(&self, missing: Vec<(String, String)>) {
        let mut missing = missing.into_iter();
        let mut running = JoinSet::new();
        loop {
            while running.len() < MAX_CONCURRENT_DESCRIPTIONS
                && let Some((digest, model)) = missing.next()
            {
                let models = self.clone();
                running.spawn(async move {
                    let info = async { models.backend()?.describe(&model).await };
                    if let Ok(info) = info.await {
                        let details = (info.trained_context, info.capabilities);
                        models.state().details.insert(digest, details);
                    }
                });
            }
            if running.join_next().await.is_none() {
                return;
            }
        }
    }

    /// Requests the description of a model from the server.
    pub(crate) async fn show(&self, model: &str) -> Result<Arc<ModelInfo>, ModelError> {
        let (backend, generation) = {
            let state = self.state();
            (state.backend.clone()?, state.generation)
        };
        let info = Arc::new(backend.show(model).await?);
        let mut state = self.state();
        if state.generation == generation {
            state.infos.insert(model.to_owned(), (Arc::clone(&info), Instant::now()));
        }
        Ok(info)
    }

    /// Returns the description of a model, from the cache if it is recent, and whether it was requested just now.
    pub(crate) async fn info(&self, model: &str) -> Result<(Arc<ModelInfo>, bool), ModelError> {
        let recent = self.state().recent_info(model);
        match recent {
            Some(info) => Ok((info, false)),
            None => self.show(model).await.map(|info| (info, true)),
        }
    }

    /// Returns the description of a model, and whether it was requested just now; `None` if the server is down, does not
    /// have the model or does not respond at once. Callers must be able to go on without it.
    pub(crate) async fn info_soon(&self, model: &str) -> Option<(Arc<ModelInfo>, bool)> {
        {
            let mut state = self.state();
            if let Some(info) = state.recent_info(model) {
                return Some((info, false));
            }
            if state.silent_since.is_some_and(|since| since.elapsed() < SILENCE) {
                return None;
            }
        }
        // A request would be sent several times if the connection is refused.
        if self.status().await.reachable == Some(false) {
            return None;
        }
        let Ok(shown) = tokio::time::timeout(INFO_WAIT, self.show(model)).await else {
            self.state().silent_since = Some(Instant::now());
            return None;
        };
        shown.ok().map(|info| (info, true))
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
        let backend = self.backend()?;
        let model = info.model.as_str();
        let ticket = self.0.queues.enter(model, Priority::Background);
        ticket.admitted().await;
        let before = running_model(&*backend, model).await;
        let loaded = before.and_then(|running| running.effective_context);
        let num_ctx = self.0.windows.choose(model, wanted, loaded);
        backend.warm(&WarmRequest { model: model.to_owned(), num_ctx, keep_alive }).await?;
        let running = running_model(&*backend, model).await;
        let window = Window {
            requested: num_ctx,
            trained: info.trained_context,
            effective: running.as_ref().and_then(|running| running.effective_context),
        };
        let advice = running.as_ref().and_then(|running| advise(running, info.geometry));
        let warnings = window.warning().into_iter().chain(advice).collect();
        Ok(LoadReport { window, running, warnings })
    }

    /// Returns the model as it is in the server's memory; `None` if it is not, or if the server does not respond in
    /// time.
    pub(crate) async fn in_memory(&self, model: &str) -> Option<RunningModel> {
        running_model(&*self.backend().ok()?, model).await
    }

    /// Returns whether the server has a model in its memory; `None` if it does not report it within `wait`.
    pub(crate) async fn is_in_memory(&self, model: &str, wait: Duration) -> Option<bool> {
        let backend = self.backend().ok()?;
        let running = tokio::time::timeout(wait, backend.running()).await.ok()?.ok()?;
        Some(find_running(running, model).is_some())
    }

    /// Returns the last known status of the server, and refreshes it in the background if it is old.
    ///
    /// Waits a moment for the first report.
    pub(crate) async fn status(&self) -> ServerStatus {
        let (is_known, asks) = {
            let mut state = self.state();
            let is_old = state.status.as_ref().is_none_or(|(_, at)| at.elapsed() >= STATUS_TTL);
            let asks = is_old && !state.is_asking;
            state.is_asking |= asks;
            (state.status.is_some(), asks)
        };
        if asks {
            let models = self.clone();
            let task = self.0.tasks.spawn(async move { models.refresh_status().await });
            if !is_known {
                drop(tokio::time::timeout(FIRST_STATUS_WAIT, task).await);
            }
        }
        let state = self.state();
        match &state.status {
            Some((status, _)) => status.clone(),
            None => unknown_status(&state),
        }
    }

    async fn refresh_status(&self) {
        let (backend, generation, limit) = {
            let state = self.state();
            (state.backend.clone(), state.generation, state.settings.timeouts.probe)
        };
        let response = match &backend {
            Err(error) => Some(Err(error.clone().into())),
            // A server that does not respond must not delay the shutdown.
            Ok(backend) => tokio::select! {
                () = self.0.tasks.stopping() => return,
                response = tokio::time::timeout(limit, backend.version()) => response.ok(),
            },
        };
        let mut state = self.state();
        if state.generation != generation {
            return;
        }
        let mut status = unknown_status(&state);
        status.checked_at = Some(self.0.clock.now());
        status.reachable = Some(matches!(response, Some(Ok(_))));
        match response {
            Some(Ok(version)) => status.version = Some(version.to_string()),
            Some(Err(error)) => status.error = Some(error),
            None => {
                let phase = CallPhase::Response;
                let timeout = |to| ModelError::Timeout { to, phase, after: limit };
                status.error = backend.ok().map(|backend| timeout(backend.target(None)));
            }
        }
        state.status = Some((status, Instant::now()));
        state.is_asking = false;
    }

    /// Releases memory and connections that have been idle for a while; returns whether there were any.
    pub(crate) fn release_idle(&self) -> bool {
        let backend = self.state().backend.clone();
        backend.is_ok_and(|backend| backend.release_idle())
    }

    fn state(&self) -> MutexGuard<'_, ModelsState> {
        self.0.state.lock()
    }
}

fn create_backend(
    settings: &ModelSettings,
    clock: &Arc<Clock>,
) -> Result<Arc<dyn Backend>, InvalidHost> {
    let ModelSettings { host, key, timeouts } = settings;
    let host = ModelHost::parse(host)?;
    Ok(Arc::new(Ollama::new(host, key.clone(), *timeouts, Arc::clone(clock))))
}

fn unknown_status(state: &ModelsState) -> ServerStatus {
    let host = state.backend.as_ref().map_or_else(|_| String::new(), |backend| backend.host());
    ServerStatus { host, reachable: None, version: None, error: None, checked_at: None }
}

/// Returns the model as it is in the server's memory. A failure is only logged, because callers can do without.
async fn running_model(backend: &dyn Backend, model: &str) -> Option<RunningModel> {
    let all = backend.running().await.inspect_err(|error| tracing::debug!("{error}")).ok()?;
    find_running(all, model)
}

fn find_running(all: Vec<RunningModel>, model: &str) -> Option<RunningModel> {
    let name = canonical_name(model);
    all.into_iter().find(|running| canonical_name(&running.model) == name)
}
