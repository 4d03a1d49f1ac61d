//! The handles that all functions of `app` use, and the functions that write records and that block.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ollm_protocol::content::{RecordBody, Session};
use ollm_protocol::model_host::ModelHost;
use ollm_protocol::{EventData, Seq, SessionId, Timestamp};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use super::cache::SessionCache;
use super::chat_history::ChatHistory;
use super::counts::Counts;
use super::error::{AppError, Result};
use super::hook_runs::HookRuns;
use super::model_limits::KnownLimits;
use super::model_speed::MeasuredModels;
use super::placement::{Candidate, Placements, choose};
use super::previews::Previews;
use super::running::{Exclusive, RunningCompaction, RunningTurn};
use super::schedule::{DueCompactions, DueDocuments, DueSnapshots};
use super::uploads::{RunningImports, Uploads};
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::config::{Config, OllamaConfig, ServerConfig, ServerKind};
use crate::events::{EventDraft, EventRing};
use crate::files::Files;
use crate::hooks::Hooks;
use crate::model::{
    DEFAULT_SERVER, HttpAddress, ModelError, ModelSettings, Models, ServerSettings, Timeouts,
    at_server,
};
use crate::projects::Projects;
use crate::put_back::journal::Journals;
use crate::session::{Appended, IdempotencyKey, NewRecord, SessionError, SessionState, Sessions};
use crate::shutdown::Tasks;
use crate::snapshot::SnapshotStore;

/// The wait for the catalog to learn the newest sessions, which may have used a key.
const CATCH_UP: Duration = Duration::from_secs(5);
/// The threads that examine files of projects at once.
const MAX_DISK_CHECKS: usize = 4;

/// The context of the key of the values by which routers know the requests of a session.
const AFFINITY: &str = "ollmd 2026-11-27 affinity of the requests of a session";
/// The length of such a value: two sessions of a home never have the same.
const AFFINITY_CHARS: usize = 32;

/// The handles of the application layer; built once and shared by all calls.
pub(crate) struct Core {
    /// The background tasks of the daemon.
    pub(crate) tasks: Tasks,
    pub(crate) sessions: Sessions,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) projects: Projects,
    pub(crate) chat_history: ChatHistory,
    pub(crate) snapshots: SnapshotStore,
    pub(crate) files: Files,
    pub(crate) hooks: Hooks,
    pub(crate) hook_runs: HookRuns,
    pub(crate) events: EventRing,
    pub(crate) clock: Arc<Clock>,
    pub(crate) models: Models,
    pub(crate) counts: Counts,
    pub(crate) limits: KnownLimits,
    pub(crate) speeds: MeasuredModels,
    pub(crate) placements: Placements,
    pub(crate) cache: SessionCache,
    pub(crate) turns: Exclusive<RunningTurn>,
    pub(crate) compactions: Exclusive<RunningCompaction>,
    /// The sessions whose files are being put back.
    pub(crate) putting_back: Exclusive<()>,
    pub(crate) previews: Previews,
    pub(crate) journals: Journals,
    pub(crate) due_documents: DueDocuments,
    pub(crate) due_compactions: DueCompactions,
    pub(crate) due_snapshots: DueSnapshots,
    /// Held by threads that examine files of projects, whose disk may not answer.
    pub(crate) disk_checks: Arc<Semaphore>,
    pub(crate) uploads: Uploads,
    pub(crate) imports: RunningImports,
    /// Held while a session is created with a key, so that two concurrent retries create one.
    pub(crate) creating: Mutex<()>,
    /// Held while sessions are deleted, so that a retry continues the first attempt instead of racing with it.
    pub(crate) deleting: Mutex<()>,
    /// Held by the work on everything that is stored, such as a backup.
    pub(crate) store_work: Mutex<()>,
    config: RwLock<Arc<Config>>,
    /// The key of [`Self::affinity`], which is of this home.
    affinity_key: [u8; 32],
}

impl Core {
    /// Builds the handles over an open store; `dir` is the daemon's home.
    pub(crate) fn new(
        dir: &Path,
        sessions: Sessions,
        catalog: Arc<Catalog>,
        events: EventRing,
        config: Config,
        clock: Arc<Clock>,
        tasks: &Tasks,
    ) -> Self {
        let models = Models::new(model_settings(&config), Arc::clone(&clock), tasks.clone());
        let names = models.names().clone();
        Self {
            tasks: tasks.clone(),
            sessions,
            catalog,
            projects: Projects::new(dir),
            chat_history: ChatHistory::new(dir),
            snapshots: SnapshotStore::new(dir),
            files: Files::new(Arc::clone(&clock), &config.files),
            hooks: Hooks::new(dir),
            hook_runs: HookRuns::default(),
            events,
            models,
            clock,
            counts: Counts::new(dir.join("vocab")).named(names.clone()),
            limits: KnownLimits::new(&dir.join("vocab")).named(names.clone()),
            speeds: MeasuredModels::new(names),
            placements: Placements::default(),
            cache: SessionCache::default(),
            turns: Exclusive::default(),
            compactions: Exclusive::default(),
            putting_back: Exclusive::default(),
            previews: Previews::default(),
            journals: Journals::new(dir),
            due_documents: DueDocuments::default(),
            due_compactions: DueCompactions::default(),
            due_snapshots: DueSnapshots::default(),
            disk_checks: Arc::new(Semaphore::new(MAX_DISK_CHECKS)),
            uploads: Uploads::new(dir.to_owned()),
            imports: RunningImports::default(),
            creating: Mutex::new(()),
            deleting: Mutex::new(()),
            store_work: Mutex::new(()),
            config: RwLock::new(Arc::new(config)),
            affinity_key: blake3::derive_key(AFFINITY, dir.as_os_str().as_encoded_bytes()),
        }
    }

    /// Returns the value that is the same for all requests of a session to a model server, and does not contain its id.
    pub(crate) fn affinity(&self, id: SessionId) -> String {
        let hash = blake3::keyed_hash(&self.affinity_key, id.to_string().as_bytes()).to_hex();
        hash[..AFFINITY_CHARS].to_owned()
    }

    /// Marks the sessions that were not used since `before` as resting. Blocks on the disk.
    pub(crate) fn rest_sessions(&self, before: Timestamp) {
        // A mark between the records of an import would change the numbers that later ones refer to.
        if !self.imports.is_any() {
            self.sessions.rest_unused(before);
        }
    }

    /// Returns the configuration in force.
    pub(crate) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read())
    }

    /// Returns a model that is named, or else the default one.
    pub(crate) fn model_or_default(&self, named: Option<String>) -> Option<String> {
        named.or_else(|| self.config().models.default.clone())
    }

    /// Returns whether anything but the defaults names the server `ollama`: an address, the default model or a section of
    /// it, or that no other server is configured.
    pub(crate) fn is_ollama_chosen(&self) -> bool {
        let config = self.config();
        let main = self.model_or_default(None).map(|model| self.models.server_for(&model));
        let is_main = main.is_some_and(|server| {
            server.is_ok_and(|server| server.settings().name == DEFAULT_SERVER)
        });
        !config.ollama.host.is_empty()
            || config.servers.is_empty()
            || config.servers.contains_key(DEFAULT_SERVER)
            || is_main
    }

    /// Returns the servers that may get texts of a session: those that it and its project allow; `None` for all. Blocks on
    /// the disk if the session is not open or has a project.
    ///
    /// **Errors**: also if the file of the project cannot be read.
    pub(crate) fn allowed_servers(&self, id: SessionId) -> Result<Option<Vec<String>>> {
        let (own, project) = self.sessions.with(id, |live| {
            let state = live.state();
            (state.allowed_servers().to_vec(), state.project_path().map(str::to_owned))
        })?;
        let project = project.map(|path| self.projects.allowed_servers(&path)).transpose()?;
        let project = project.filter(|servers| !servers.is_empty());
        Ok(match (own.is_empty(), project) {
            (true, project) => project,
            (false, None) => Some(own),
            (false, Some(project)) => {
                Some(own.into_iter().filter(|server| project.contains(server)).collect())
            }
        })
    }

    /// Returns the equal servers of a model that may get texts of a session and whose settings can be used, in the order of
    /// the configuration.
    pub(crate) fn usable_servers(&self, id: SessionId, alias: &str) -> Vec<String> {
        let mut servers = self.models.names().equal_servers(alias);
        servers.retain(|server| self.models.backend_for(&at_server(alias, server)).is_ok());
        if !servers.is_empty() {
            match self.allowed_servers(id) {
                Ok(None) => {}
                Ok(Some(allowed)) => servers.retain(|server| allowed.contains(server)),
                Err(_) => servers.clear(),
            }
        }
        servers
    }

    /// Returns a model, named or else the default one, as [`Self::placed`] names it.
    pub(crate) fn placed_or_default(&self, id: SessionId, named: Option<String>) -> Option<String> {
        self.model_or_default(named).map(|model| self.placed(id, &model))
    }

    /// Returns the name of a model of one server: for an alias of equal servers, of the one that a session uses. A session
    /// without one is placed.
    pub(crate) fn placed(&self, id: SessionId, model: &str) -> String {
        let servers = self.usable_servers(id, model);
        let own = self.placements.server_of(id, model).filter(|server| servers.contains(server));
        let server = own.or_else(|| {
            let server = self.least_busy(id, model, &servers)?;
            self.placements.keep(id, model, &server);
            Some(server)
        });
        server.map_or_else(|| model.to_owned(), |server| at_server(model, &server))
    }

    /// Returns a model, named or else the default one, at the server that a session uses as far as that is in memory, and
    /// else at the first of equal ones. Does not block, and places nothing.
    pub(crate) fn placed_in_memory(&self, id: SessionId, named: Option<String>) -> Option<String> {
        let model = self.model_or_default(named)?;
        let servers = self.models.names().equal_servers(&model);
        let own = self.placements.server_of(id, &model).filter(|server| servers.contains(server));
        let server = own.or_else(|| servers.into_iter().next());
        Some(server.map_or_else(|| model.clone(), |server| at_server(&model, &server)))
    }

    /// Returns the name of a model that is the same for all equal servers, as logs have it.
    pub(crate) fn shown_model(&self, model: &str) -> String {
        self.models.names().without_server(model).to_owned()
    }

    /// Returns the one of some equal servers that a session should use.
    pub(crate) fn least_busy(
        &self,
        id: SessionId,
        alias: &str,
        servers: &[String],
    ) -> Option<String> {
        let (placements, now) = (&self.placements, Instant::now());
        let own = placements.server_of(id, alias);
        let candidate = |server: &String| {
            let (n_calls, n_slots) = self.models.queues().load(&at_server(alias, server));
            Candidate {
                is_own: own.as_ref() == Some(server),
                is_avoided: placements.is_avoided(server, now),
                n_calls,
                n_slots,
                n_sessions: placements.n_others(id, alias, server),
            }
        };
        let candidates: Vec<_> = servers.iter().map(candidate).collect();
        choose(&candidates).map(|at| servers[at].clone())
    }

    /// Replaces the configuration and returns the previous one, which running calls keep.
    pub(crate) fn configure(&self, config: Config) -> Arc<Config> {
        let has_moved = self.models.configure(model_settings(&config));
        self.files.configure(&config.files);
        if has_moved {
            // Another server has other models.
            self.speeds.clear();
            self.counts.forget_listed();
        }
        std::mem::replace(&mut *self.config.write(), Arc::new(config))
    }

    /// Returns the time for which the model server keeps a model in memory after a request of a session.
    pub(crate) fn keep_alive(&self, id: SessionId) -> Duration {
        let own = self.sessions.peek(id, |live| live.state().keep_alive()).flatten();
        own.unwrap_or_else(|| self.config().ollama.keep_alive)
    }

    /// Returns a session as lists show it. Blocks on the disk unless the session is open.
    pub(crate) fn summary(&self, id: SessionId) -> Result<Session> {
        Ok(self.sessions.summary(id)?)
    }

    /// Returns a session with the short form of its id. Blocks on the disk.
    pub(crate) fn with_short_id(&self, session: Session) -> Session {
        Session { short_id: self.catalog.short_id(session.session_id), ..session }
    }

    /// Returns the settings of a session. Blocks on the disk unless the session is open.
    pub(crate) fn settings(&self, id: SessionId) -> Result<SessionSettings> {
        Ok(self.sessions.with(id, |live| SessionSettings::of(live.state()))?)
    }

    /// Finds the session that a key started, among the open ones and in the catalog. Blocks on the disk.
    ///
    /// **Errors**: `KeyConflict`; `Busy` if the catalog does not know the newest sessions yet.
    pub(crate) fn created_before(&self, key: &IdempotencyKey) -> Result<Option<Session>> {
        let found = match self.sessions.find_create_key(&key.digest.key) {
            Some(found) => Some(found),
            None => {
                // After a crash the catalog knows the newest sessions only when it has read their logs.
                if !self.catalog.wait_caught_up(Instant::now() + CATCH_UP) {
                    let id = self.clock.session_id();
                    return Err(SessionError::Busy { id, waiting: 1 }.into());
                }
                self.catalog.find_create_key(key.digest.key)?
            }
        };
        let Some((id, payload)) = found else { return Ok(None) };
        if payload != key.digest.payload {
            return Err(SessionError::KeyConflict { id, seq: Seq(0) }.into());
        }
        match self.sessions.summary(id) {
            Ok(session) => Ok(Some(session)),
            Err(SessionError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Publishes an event about a session.
    pub(crate) fn publish(&self, id: SessionId, seq: Option<Seq>, data: &impl EventData) {
        self.events.publish(EventDraft::new(Some(id), seq, self.clock.now(), data));
    }

    /// Reads one record; returns `None` for a damaged one. Blocks on the disk.
    pub(crate) fn body(&self, id: SessionId, seq: Seq) -> Result<Option<RecordBody>> {
        Ok(self.sessions.bodies(id, &[seq])?.pop().flatten())
    }

    /// Appends records and waits until they are durable.
    ///
    /// They are queued before the first await, so that calls of one client keep their order.
    pub(crate) async fn append(
        &self,
        id: SessionId,
        drafts: Vec<NewRecord>,
        key: Option<IdempotencyKey>,
    ) -> Result<Appended> {
        Ok(self.sessions.append(id, drafts, key)?.await?)
    }

    /// Appends one record that has no tokens, and waits until it is durable.
    pub(crate) async fn append_one(&self, id: SessionId, body: RecordBody) -> Result<Appended> {
        self.append(id, vec![NewRecord::new(body, None)], None).await
    }
}

/// The settings of a session that its contexts depend on.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct SessionSettings {
    pub(crate) system_prompt: Option<String>,
    pub(crate) context_size: Option<u32>,
    pub(crate) model: Option<String>,
    pub(crate) project_path: Option<String>,
}

impl SessionSettings {
    pub(crate) fn of(state: &SessionState) -> Self {
        Self {
            system_prompt: state.system_prompt().map(str::to_owned),
            context_size: state.context_size(),
            model: state.model().map(str::to_owned),
            project_path: state.project_path().map(str::to_owned),
        }
    }
}

/// Runs work that may block on the disk on a thread of its own, so that other calls do not wait.
///
/// The work is boxed here, so that the task and the wait for it are compiled once and not for every caller.
pub(crate) fn blocking<T: Send + 'static, W>(
    core: &Arc<Core>,
    work: W,
) -> impl Future<Output = Result<T>> + Send + use<T, W>
where
    W: FnOnce(&Arc<Core>) -> Result<T> + Send + 'static,
{
    let result = Arc::new(Mutex::new(None));
    let (core, slot) = (Arc::clone(core), Arc::clone(&result));
    result_of(Box::new(move || *slot.lock() = Some(work(&core))), result)
}

/// Waits for the result that work leaves in a slot.
async fn result_of<T>(work: BlockingWork, slot: Arc<Mutex<Option<Result<T>>>>) -> Result<T> {
    run_blocking(work).await?;
    let result = slot.lock().take();
    result.expect("finished work left its result")
}

/// Work for a blocking thread.
type BlockingWork = Box<dyn FnOnce() + Send>;

async fn run_blocking(work: BlockingWork) -> Result<()> {
    match tokio::task::spawn_blocking(work).await {
        Ok(()) => Ok(()),
        // The panic barrier around every call reports and logs it.
        Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        Err(_) => Err(AppError::Stopping),
    }
}

/// Returns the settings of the connections to the model servers, in the order of the configuration.
fn model_settings(config: &Config) -> ModelSettings {
    let OllamaConfig { host, connect_timeout, first_token_timeout, idle_timeout, .. } =
        &config.ollama;
    let timeouts = Timeouts::new(*connect_timeout, *first_token_timeout, *idle_timeout);
    let address = ModelHost::parse(host).map_err(ModelError::from);
    let key = config.ollama_key.clone();
    let ollama = ServerSettings {
        name: DEFAULT_SERVER.to_owned(),
        kind: ServerKind::Ollama,
        address: address.map(|host| HttpAddress { key, ..HttpAddress::new(host) }),
        timeouts,
        parallel: None,
        models: BTreeMap::new(),
    };
    let mut servers: Vec<_> = config.servers.iter().collect();
    servers.sort_by_key(|(_, server)| server.position);
    let of = |(name, server): (&String, &ServerConfig)| {
        let address = address_of(name, server, &ollama.address);
        let (name, kind) = (name.clone(), server.kind);
        let (parallel, models) = (server.parallel, server.models.clone());
        ServerSettings { name, kind, address, timeouts, parallel, models }
    };
    let mut all: Vec<_> = servers.into_iter().map(of).collect();
    if !config.servers.contains_key(DEFAULT_SERVER) {
        all.insert(0, ollama);
    }
    ModelSettings(all)
}

/// Returns how a server of the configuration is reached. `ollama`: the address and the key of the section `ollama`, for the
/// server that has no address of its own.
fn address_of(
    name: &str,
    server: &ServerConfig,
    ollama: &Result<HttpAddress, ModelError>,
) -> Result<HttpAddress, ModelError> {
    if let Some(problem) = server.problem.clone() {
        return Err(ModelError::Setup { server: name.to_owned(), problem });
    }
    let (host, key) = match &server.host {
        Some(host) => (host.clone(), None),
        None => {
            let HttpAddress { host, key, .. } = ollama.clone()?;
            (host, key)
        }
    };
    Ok(HttpAddress {
        host,
        key: server.key.clone().or(key),
        headers: server.headers.clone(),
        certificates: server.certificates.clone(),
        affinity: server.affinity.clone(),
    })
}
