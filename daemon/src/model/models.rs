//! The handle on the model server: the server in use, the queues and windows of its models, and cached reports.
//!
//! Must not know HTTP.
//!
//! **Invariant**: after a change of settings, no report of the previous server is cached or returned.

use std::sync::Arc;
use std::time::Duration;

use hashlink::LruCache;
use ollm_protocol::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::backend::Backend;
use super::chat::WarmRequest;
use super::error::{CallPhase, CallTarget, ModelError};
use super::host::{Host, InvalidHost};
use super::info::{ModelInfo, canonical_name};
use super::listed::RunningModel;
use super::ollama::{Ollama, Timeouts};
use super::queue::{Priority, Queues};
use super::window::{ModelWindows, Window, advise, clamp_window};
use crate::clock::Clock;
use crate::config::ApiKey;
use crate::shutdown::Tasks;

/// The time for which a status report is returned without asking the server again.
const STATUS_TTL: Duration = Duration::from_secs(5);
/// The longest wait of the first `status` for a report. A server on this machine needs a millisecond.
const FIRST_STATUS_WAIT: Duration = Duration::from_millis(100);
/// The time for which a model's description is cached. It changes only if the model is replaced by another one of its name.
const INFO_TTL: Duration = Duration::from_secs(300);
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
    }

    /// Returns the server in use.
    pub(crate) fn backend(&self) -> Result<Arc<dyn Backend>, ModelError> {
        Ok(self.state().backend.clone()?)
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

    /// Returns the description of a model, from the cache if it is recent.
    pub(crate) async fn info(&self, model: &str) -> Result<Arc<ModelInfo>, ModelError> {
        let cached = self.state().infos.get(model).cloned();
        match cached {
            Some((info, at)) if at.elapsed() < INFO_TTL => Ok(info),
            _ => self.show(model).await,
        }
    }

    /// Loads a model with a window of at least `wanted` tokens and reports the result.
    ///
    /// Waits in the model's queue.
    pub(crate) async fn warm(
        &self,
        model: &str,
        wanted: u32,
        keep_alive: Duration,
    ) -> Result<LoadReport, ModelError> {
        let backend = self.backend()?;
        let info = self.show(model).await?;
        let ticket = self.0.queues.enter(model, Priority::Background);
        ticket.admitted().await;
        let vision = info.can("vision").unwrap_or(false);
        let wanted = clamp_window(wanted, info.trained_context, vision);
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
                let to = CallTarget { host: status.host.clone(), model: None };
                let phase = CallPhase::Response;
                status.error = Some(ModelError::Timeout { to, phase, after: limit });
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
    let host = Host::parse(host)?;
    Ok(Arc::new(Ollama::new(host, key.clone(), *timeouts, Arc::clone(clock))))
}

fn unknown_status(state: &ModelsState) -> ServerStatus {
    let host = state.backend.as_ref().map_or_else(|_| String::new(), |backend| backend.host());
    ServerStatus { host, reachable: None, version: None, error: None, checked_at: None }
}

/// Returns the model as it is in the server's memory. A failure is only logged, because callers can do without.
async fn running_model(backend: &dyn Backend, model: &str) -> Option<RunningModel> {
    let name = canonical_name(model);
    let all = backend.running().await.inspect_err(|error| tracing::debug!("{error}")).ok()?;
    all.into_iter().find(|running| canonical_name(&running.model) == name)
}
