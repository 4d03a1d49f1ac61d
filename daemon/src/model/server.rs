//! A model server of the configuration: its backend, and cached reports of it.
//!
//! Must not know HTTP. Changed settings make another [`Server`], so no report of an earlier one is ever returned.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hashlink::LruCache;
use ollm_protocol::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::address::OwnNames;
use super::backend::{Backend, MAX_ATTEMPTS};
use super::error::{CallPhase, ModelError};
use super::http::{HttpAddress, Timeouts};
use super::info::{CountingSource, ModelInfo};
use super::kind;
use super::listed::{ListedDigest, ListedModel, RunningModel};
use crate::clock::Clock;
use crate::config::{ServedModel, ServerKind};
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

/// The settings of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerSettings {
    pub(crate) name: String,
    pub(crate) kind: ServerKind,
    /// An error says why the server cannot be used.
    pub(crate) address: Result<HttpAddress, ModelError>,
    pub(crate) timeouts: Timeouts,
    /// The number of requests that the server answers at the same time, unless it says so itself.
    pub(crate) parallel: Option<u32>,
    /// The models that the configuration describes, by alias.
    pub(crate) models: BTreeMap<String, ServedModel>,
}

impl ServerSettings {
    /// Returns the names at the server.
    pub(super) fn own_names(&self) -> OwnNames {
        let aliases = self.models.iter().map(|(alias, model)| (alias.clone(), model.name.clone()));
        OwnNames { server: self.name.clone(), aliases: aliases.collect() }
    }

    /// Returns what is configured for a model, by its name at the server.
    pub(crate) fn configured(&self, name: &str) -> Option<&ServedModel> {
        self.models.values().find(|model| model.name == name)
    }
}

/// The last known state of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerStatus {
    /// The address of the server.
    pub host: String,
    /// `None` until the server was asked.
    pub reachable: Option<bool>,
    /// The version of a reachable server.
    pub version: Option<String>,
    /// The reason for which the server is not reachable.
    pub error: Option<ModelError>,
    /// The time at which the server was asked.
    pub checked_at: Option<Timestamp>,
}

/// A server; clones share everything.
#[derive(Clone)]
pub(crate) struct Server(Arc<ServerShared>);

struct ServerShared {
    settings: ServerSettings,
    own: OwnNames,
    backend: Result<Arc<dyn Backend>, ModelError>,
    clock: Arc<Clock>,
    tasks: Tasks,
    /// Locked for short sections only, never across an await.
    reports: Mutex<ServerReports>,
}

struct ServerReports {
    status: Option<(ServerStatus, Instant)>,
    /// Set while a task is asking for the status.
    is_asking: bool,
    infos: LruCache<String, (Arc<ModelInfo>, Instant)>,
    /// The trained window and the capabilities of listed models, by digest.
    details: LruCache<String, ListedDetails>,
    /// The time at which `info_soon` last waited in vain.
    silent_since: Option<Instant>,
}

/// The details of a listed model that older servers report only in its description.
type ListedDetails = (Option<u32>, Vec<String>);

impl ServerReports {
    /// Returns a description that was requested recently.
    fn recent_info(&mut self, model: &str) -> Option<Arc<ModelInfo>> {
        let (info, at) = self.infos.get(model)?;
        (at.elapsed() < INFO_TTL).then(|| Arc::clone(info))
    }
}

/// Returns a text that changes with a file.
fn stamp_of(path: &Path) -> String {
    let metadata = std::fs::metadata(path).ok();
    let of = |metadata: std::fs::Metadata| (metadata.len(), metadata.modified().ok());
    format!("{} {:?}", path.display(), metadata.map(of))
}

impl Server {
    /// Creates the handle; the first request opens a connection.
    pub(super) fn new(settings: ServerSettings, clock: Arc<Clock>, tasks: Tasks) -> Self {
        let backend = kind::connect(&settings, &clock);
        Self::with_backend(settings, backend, clock, tasks)
    }

    pub(super) fn with_backend(
        settings: ServerSettings,
        backend: Result<Arc<dyn Backend>, ModelError>,
        clock: Arc<Clock>,
        tasks: Tasks,
    ) -> Self {
        let reports = ServerReports {
            status: None,
            is_asking: false,
            infos: LruCache::new(MAX_CACHED_INFOS),
            details: LruCache::new(MAX_CACHED_DETAILS),
            silent_since: None,
        };
        let (own, reports) = (settings.own_names(), Mutex::new(reports));
        Self(Arc::new(ServerShared { settings, own, backend, clock, tasks, reports }))
    }

    pub(crate) fn settings(&self) -> &ServerSettings {
        &self.0.settings
    }

    pub(crate) fn backend(&self) -> Result<Arc<dyn Backend>, ModelError> {
        self.0.backend.clone()
    }

    /// Returns the address of the server; empty if the configured one is invalid.
    pub(crate) fn host(&self) -> String {
        self.0.backend.as_ref().map_or_else(|_| String::new(), |backend| backend.host())
    }

    /// Lists the models that the server has. What an older server leaves out of its list comes from the descriptions of
    /// the models that arrive in time.
    ///
    /// `details_until`: the time after which the caller does not wait for descriptions.
    pub(crate) async fn list(
        &self,
        details_until: Option<Instant>,
    ) -> Result<Vec<ListedModel>, ModelError> {
        let mut all = self.backend()?.list(MAX_ATTEMPTS).await?;
        let is_incomplete = |listed: &ListedModel| {
            !listed.is_whole
                && (listed.capabilities.is_empty() || listed.details.trained_context.is_none())
        };
        let missing: Vec<(String, String)> = {
            let mut reports = self.reports();
            let unknown = |listed: &&ListedModel| {
                is_incomplete(listed) && reports.details.get(&listed.digest).is_none()
            };
            let missing = all.iter().filter(unknown);
            missing.map(|listed| (listed.digest.clone(), listed.model.clone())).collect()
        };
        let until = Instant::now() + LIST_DETAILS_WAIT;
        let until = details_until.map_or(until, |end| end.min(until));
        drop(tokio::time::timeout_at(until, self.learn_details(missing)).await);
        let mut reports = self.reports();
        for listed in all.iter_mut().filter(|listed| is_incomplete(listed)) {
            let Some((trained, capabilities)) = reports.details.get(&listed.digest) else {
                continue;
            };
            listed.details.trained_context = listed.details.trained_context.or(*trained);
            if listed.capabilities.is_empty() {
                listed.capabilities.clone_from(capabilities);
            }
        }
        Ok(all)
    }

    /// Returns the digest that the server lists for a model, if it does so within `wait`; `None` if the server cannot be
    /// reached.
    pub(super) async fn listed_digest(&self, model: &str, wait: Duration) -> Option<ListedDigest> {
        // A second attempt would not fit into the wait, and a refused connection would look like a slow server.
        let list = async { self.backend()?.list(1).await };
        match tokio::time::timeout(wait, list).await {
            Ok(Ok(list)) => {
                let listed = list.into_iter().find(|listed| self.is_model(&listed.model, model));
                Some(ListedDigest::of(listed.map(|listed| listed.digest)))
            }
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
                let server = self.clone();
                running.spawn(async move {
                    let info = async { server.backend()?.describe(&model).await };
                    if let Ok(info) = info.await {
                        let details = (info.trained_context, info.capabilities);
                        server.reports().details.insert(digest, details);
                    }
                });
            }
            if running.join_next().await.is_none() {
                return;
            }
        }
    }

    /// Requests the description of a model. What the server does not say is what the configuration says.
    pub(super) async fn show(&self, model: &str) -> Result<Arc<ModelInfo>, ModelError> {
        let mut info = self.backend()?.show(model).await?;
        let settings = &self.0.settings;
        if let Some(configured) = settings.configured(self.0.own.of(model)) {
            info.configure(configured.window, configured.max_output);
            if let Some(path) = &configured.tokenizer {
                info.counting = CountingSource::Configured(path.clone());
                info.tokenizer_stamp = Some(stamp_of(path));
            }
        }
        let is_known = info.served_context.is_some() || info.is_window_known_later;
        if info.needs_served_context && !is_known {
            return Err(self.no_window(model));
        }
        info.slots = info.slots.or(settings.parallel);
        let info = Arc::new(info);
        self.reports().infos.insert(model.to_owned(), (Arc::clone(&info), Instant::now()));
        Ok(info)
    }

    /// Returns the error for a model whose window nobody says.
    fn no_window(&self, model: &str) -> ModelError {
        let (server, own) = (&self.0.settings.name, &self.0.own);
        let alias = own.aliases.iter().find(|(_, name)| *name == own.of(model));
        let alias = alias.map_or("ALIAS", |(alias, _)| alias.as_str());
        let problem = format!(
            "does not say how large the window of {model} is; set servers.{server}.models.{alias}.window"
        );
        ModelError::Setup { server: server.clone(), problem }
    }

    /// Returns the description of a model that was requested recently.
    pub(super) fn recent_info(&self, model: &str) -> Option<Arc<ModelInfo>> {
        self.reports().recent_info(model)
    }

    /// Requests the description of a model; `None` if the server is down, does not have the model or does not respond at
    /// once. Callers must be able to go on without it.
    pub(super) async fn show_soon(&self, model: &str) -> Option<Arc<ModelInfo>> {
        if self.reports().silent_since.is_some_and(|since| since.elapsed() < SILENCE) {
            return None;
        }
        // A request would be sent several times if the connection is refused.
        if self.status().await.reachable == Some(false) {
            return None;
        }
        let Ok(shown) = tokio::time::timeout(INFO_WAIT, self.show(model)).await else {
            self.reports().silent_since = Some(Instant::now());
            return None;
        };
        shown.ok()
    }

    /// Returns the model as it is in the server's memory; `None` if it is not, or if the server does not respond in
    /// time. A failure is only logged, because callers can do without.
    pub(super) async fn in_memory(&self, model: &str) -> Option<RunningModel> {
        let backend = self.backend().ok()?;
        if backend.holds_models() {
            let info = self.recent_info(model)?;
            let effective_context = info.served_context;
            let (model, digest) = (info.model.clone(), info.digest.clone().unwrap_or_default());
            return Some(RunningModel {
                model,
                digest,
                effective_context,
                ..RunningModel::default()
            });
        }
        let all = backend.running().await;
        let all = all.inspect_err(|error| tracing::debug!("{error}")).ok()?;
        all.into_iter().find(|running| self.is_model(&running.model, model))
    }

    /// Returns whether the server has a model in its memory; `None` if it does not report it within `wait`.
    pub(super) async fn is_in_memory(&self, model: &str, wait: Duration) -> Option<bool> {
        let backend = self.backend().ok()?;
        if backend.holds_models() {
            return Some(true);
        }
        let running = tokio::time::timeout(wait, backend.running()).await.ok()?.ok()?;
        Some(running.iter().any(|running| self.is_model(&running.model, model)))
    }

    /// Returns the last known status of the server, and refreshes it in the background if it is old.
    ///
    /// Waits a moment for the first report.
    pub(crate) async fn status(&self) -> ServerStatus {
        let (is_known, asks) = {
            let mut reports = self.reports();
            let is_old = reports.status.as_ref().is_none_or(|(_, at)| at.elapsed() >= STATUS_TTL);
            let asks = is_old && !reports.is_asking;
            reports.is_asking |= asks;
            (reports.status.is_some(), asks)
        };
        if asks {
            let server = self.clone();
            let task = self.0.tasks.spawn(async move { server.refresh_status().await });
            if !is_known {
                drop(tokio::time::timeout(FIRST_STATUS_WAIT, task).await);
            }
        }
        let known = self.reports().status.as_ref().map(|(status, _)| status.clone());
        known.unwrap_or_else(|| self.unknown_status())
    }

    async fn refresh_status(&self) {
        let (backend, limit) = (&self.0.backend, self.0.settings.timeouts.probe);
        let response = match backend {
            Err(error) => Some(Err(error.clone())),
            // A server that does not respond must not delay the shutdown.
            Ok(backend) => tokio::select! {
                () = self.0.tasks.stopping() => return,
                response = tokio::time::timeout(limit, backend.version()) => response.ok(),
            },
        };
        let mut status = self.unknown_status();
        status.checked_at = Some(self.0.clock.now());
        status.reachable = Some(matches!(response, Some(Ok(_))));
        match response {
            Some(Ok(version)) => {
                status.version = Some(version.to_string()).filter(|text| !text.is_empty());
            }
            Some(Err(error)) => status.error = Some(error),
            None => {
                let phase = CallPhase::Response;
                let timeout = |to| ModelError::Timeout { to, phase, after: limit };
                status.error = backend.as_ref().ok().map(|backend| timeout(backend.target(None)));
            }
        }
        let mut reports = self.reports();
        reports.status = Some((status, Instant::now()));
        reports.is_asking = false;
    }

    /// Returns whether a model in the server's lists is the named one.
    pub(crate) fn is_model(&self, listed: &str, model: &str) -> bool {
        let name = self.0.own.of(model);
        self.0.backend.as_ref().is_ok_and(|backend| backend.is_named(listed, name))
    }

    fn unknown_status(&self) -> ServerStatus {
        let host = self.host();
        ServerStatus { host, reachable: None, version: None, error: None, checked_at: None }
    }

    /// Releases memory and connections that have been idle for a while; returns whether there were any.
    pub(super) fn release_idle(&self) -> bool {
        self.0.backend.as_ref().is_ok_and(|backend| backend.release_idle())
    }

    fn reports(&self) -> MutexGuard<'_, ServerReports> {
        self.0.reports.lock()
    }
}
