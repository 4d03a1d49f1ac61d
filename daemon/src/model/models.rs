//! The handle on models: the server in force, its queues and windows, and what was learned of it.

use std::sync::Arc;
use std::time::Duration;

use hashlink::LruCache;
use ollm_protocol::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::backend::{Backend, Timeouts};
use super::chat::WarmRequest;
use super::error::{ModelError, Phase, Target};
use super::host::{Host, InvalidHost, Secret};
use super::info::{ModelInfo, RunningModel, canonical};
use super::ollama::Ollama;
use super::queue::{Priority, Queues};
use super::window::{Loads, Window, advise, clamp_window};
use crate::clock::Clock;
use crate::shutdown::Tasks;

/// How long what was learned of the server is told again without asking.
const STATUS_FRESH: Duration = Duration::from_secs(5);
/// How long the very first question for the status may wait for an answer: a server on this machine needs a
/// millisecond, and nobody else is waited for.
const FIRST_STATUS: Duration = Duration::from_millis(100);
/// How long what a model is stays known. It changes when somebody makes another of the same name.
const INFO_FRESH: Duration = Duration::from_secs(300);
/// Maximum number of models whose info is remembered.
const MAX_INFOS: usize = 64;

/// How models are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelSettings {
    /// The server's address as somebody wrote it; empty is this machine.
    pub host: String,
    /// The key that it wants.
    pub key: Option<Secret>,
    /// How long each phase may take.
    pub timeouts: Timeouts,
}

/// What is known of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerStatus {
    /// Its address.
    pub host: String,
    /// Whether it answers; `None` while nobody knows.
    pub reachable: Option<bool>,
    /// Its version, where it answers.
    pub version: Option<String>,
    /// Why it does not, where it does not.
    pub error: Option<ModelError>,
    /// When it was asked.
    pub checked_at: Option<Timestamp>,
}

/// What loading a model came to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoadReport {
    /// Its window.
    pub window: Window,
    /// How it lies in memory, where the server says.
    pub running: Option<RunningModel>,
    /// What a person should know.
    pub warnings: Vec<String>,
}

/// The models; clones share everything.
#[derive(Clone)]
pub(crate) struct Models(Arc<Shared>);

struct Shared {
    clock: Arc<Clock>,
    tasks: Tasks,
    queues: Queues,
    loads: Loads,
    state: Mutex<State>,
}

struct State {
    settings: ModelSettings,
    backend: Result<Arc<dyn Backend>, InvalidHost>,
    /// Counts servers, so that what one said is not taken for the next one's.
    generation: u64,
    status: Option<(ServerStatus, Instant)>,
    asking: bool,
    infos: LruCache<String, (Arc<ModelInfo>, Instant)>,
}

impl Models {
    /// Nothing is connected before the first question.
    pub(crate) fn new(settings: ModelSettings, clock: Arc<Clock>, tasks: Tasks) -> Self {
        let state = State {
            backend: connect(&settings, &clock),
            settings,
            generation: 0,
            status: None,
            asking: false,
            infos: LruCache::new(MAX_INFOS),
        };
        Self(Arc::new(Shared {
            clock,
            tasks,
            queues: Queues::default(),
            loads: Loads::default(),
            state: Mutex::new(state),
        }))
    }

    /// Takes other settings; calls that are under way end as they began.
    pub(crate) fn configure(&self, settings: ModelSettings) {
        let mut state = self.state();
        if state.settings == settings {
            return;
        }
        if state.settings.host != settings.host {
            self.0.loads.clear();
        }
        state.backend = connect(&settings, &self.0.clock);
        state.settings = settings;
        state.generation += 1;
        state.status = None;
        state.asking = false;
        state.infos.clear();
    }

    /// The server.
    pub(crate) fn backend(&self) -> Result<Arc<dyn Backend>, ModelError> {
        Ok(self.state().backend.clone()?)
    }

    /// Who may talk to which model.
    pub(crate) fn queues(&self) -> &Queues {
        &self.0.queues
    }

    /// The windows that models are loaded with.
    pub(crate) fn loads(&self) -> &Loads {
        &self.0.loads
    }

    /// What a model is, as the server says now.
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

    /// What a model is, as the server said not long ago.
    pub(crate) async fn info(&self, model: &str) -> Result<Arc<ModelInfo>, ModelError> {
        let known = self.state().infos.get(model).cloned();
        match known {
            Some((info, at)) if at.elapsed() < INFO_FRESH => Ok(info),
            _ => self.show(model).await,
        }
    }

    /// Loads a model with at least `wanted` tokens and tells what came of it.
    ///
    /// Waits behind everybody who talks to the model.
    pub(crate) async fn warm(
        &self,
        model: &str,
        wanted: u32,
        keep_alive: Duration,
    ) -> Result<LoadReport, ModelError> {
        let backend = self.backend()?;
        let info = self.show(model).await?;
        let ticket = self.0.queues.enter(model, Priority::Side, "model.warm");
        ticket.admitted().await;
        let vision = info.can("vision").unwrap_or(false);
        let wanted = clamp_window(wanted, info.trained, vision);
        let before = running(&*backend, model).await;
        let loaded = before.and_then(|running| running.effective);
        let agreed = self.0.loads.agree(model, wanted, loaded);
        let request = WarmRequest { model: model.to_owned(), num_ctx: agreed.num_ctx, keep_alive };
        backend.warm(&request).await?;
        let running = running(&*backend, model).await;
        let window = Window {
            requested: agreed.num_ctx,
            trained: info.trained,
            effective: running.as_ref().and_then(|running| running.effective),
        };
        let advice = running.as_ref().and_then(|running| advise(running, info.geometry));
        let warnings = window.warning().into_iter().chain(advice).collect();
        Ok(LoadReport { window, running, warnings })
    }

    /// The model as it lies in the server's memory; `None` where it does not, or the server does not tell in time.
    pub(crate) async fn in_memory(&self, model: &str) -> Option<RunningModel> {
        running(&*self.backend().ok()?, model).await
    }

    /// What is known of the server, which is asked again behind the answer when that is old.
    ///
    /// Waits a moment only where nothing is known at all.
    pub(crate) async fn status(&self) -> ServerStatus {
        let (known, ask) = {
            let mut state = self.state();
            let known = state.status.clone();
            let old = known.as_ref().is_none_or(|(_, at)| at.elapsed() >= STATUS_FRESH);
            let ask = old && !state.asking;
            state.asking |= ask;
            (known, ask)
        };
        if ask {
            let models = self.clone();
            let asked = self.0.tasks.spawn(async move { models.ask_status().await });
            if known.is_none() {
                drop(tokio::time::timeout(FIRST_STATUS, asked).await);
            }
        }
        let state = self.state();
        match &state.status {
            Some((status, _)) => status.clone(),
            None => unknown(&state),
        }
    }

    async fn ask_status(&self) {
        let (backend, generation, limit) = {
            let state = self.state();
            (state.backend.clone(), state.generation, state.settings.timeouts.probe)
        };
        let answer = match &backend {
            Err(error) => Some(Err(error.clone().into())),
            // The end of the daemon is not held up by a server that does not answer.
            Ok(backend) => tokio::select! {
                () = self.0.tasks.stopping() => return,
                answer = tokio::time::timeout(limit, backend.version()) => answer.ok(),
            },
        };
        let mut state = self.state();
        if state.generation != generation {
            return;
        }
        let mut status = unknown(&state);
        status.checked_at = Some(self.0.clock.now());
        status.reachable = Some(matches!(answer, Some(Ok(_))));
        match answer {
            Some(Ok(version)) => status.version = Some(version.to_string()),
            Some(Err(error)) => status.error = Some(error),
            None => {
                let to = Target { host: status.host.clone(), model: None };
                let phase = Phase::Answer;
                status.error = Some(ModelError::Timeout { to, phase, after: limit });
            }
        }
        state.status = Some((status, Instant::now()));
        state.asking = false;
    }

    /// Gives back what was not used for a while.
    pub(crate) fn rest(&self) -> bool {
        let backend = self.state().backend.clone();
        backend.is_ok_and(|backend| backend.rest())
    }

    /// Short sections only; never held across an await.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }
}

fn connect(settings: &ModelSettings, clock: &Arc<Clock>) -> Result<Arc<dyn Backend>, InvalidHost> {
    let ModelSettings { host, key, timeouts } = settings;
    let host = Host::parse(host)?;
    Ok(Arc::new(Ollama::new(host, key.clone(), *timeouts, Arc::clone(clock))))
}

fn unknown(state: &State) -> ServerStatus {
    let host = state.backend.as_ref().map_or_else(|_| String::new(), |backend| backend.host());
    ServerStatus { host, reachable: None, version: None, error: None, checked_at: None }
}

/// The model among those in memory; what cannot be told in time is not worth an error.
async fn running(backend: &dyn Backend, model: &str) -> Option<RunningModel> {
    let name = canonical(model);
    let all = backend.running().await.inspect_err(|error| tracing::debug!("{error}")).ok()?;
    all.into_iter().find(|running| canonical(&running.model) == name)
}
