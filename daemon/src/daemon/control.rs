//! `daemon.status` and `daemon.reload`: the process as a whole.

use std::path::PathBuf;
use std::sync::Arc;

use ollm_protocol::ErrorKind;
use ollm_protocol::address::DaemonFile;
use ollm_protocol::content::ModelServerStatus;
use ollm_protocol::event::ConfigReloadedData;
use ollm_protocol::methods::daemon::{DaemonDoctorResult, DaemonReloadResult, DaemonStatusResult};

use parking_lot::Mutex;

use super::doctor::{self, ExaminedDirectories};
use super::heap;
use super::start::{self, ConfigSource};
use crate::app::core::Core;
use crate::app::sessions::retention::RetentionTask;
use crate::app::{files, models};
use crate::config::{Config, ConfigDiff};
use crate::events::EventDraft;
use crate::rpc::error::RpcError;
use crate::rpc::{DaemonControl, ReplyFuture};
use crate::server::OpenConnections;

/// The most warnings that `daemon.status` shows; the log has all of them.
const MAX_WARNINGS: usize = 20;

/// The parts that `daemon.status` reports on and `daemon.reload` configures.
pub(super) struct Control {
    pub(super) core: Arc<Core>,
    pub(super) source: ConfigSource,
    pub(super) home: PathBuf,
    /// The directories whose content only this user may read.
    pub(super) private_dirs: Vec<PathBuf>,
    /// The directories that `daemon.doctor` examines.
    pub(super) examined: Arc<ExaminedDirectories>,
    pub(super) daemon_file: DaemonFile,
    pub(super) connections: OpenConnections,
    /// The warnings of the configuration in force, and the errors of later reloads.
    pub(super) warnings: Mutex<Vec<String>>,
    pub(super) restart_needed: Mutex<Vec<String>>,
    pub(super) retention: Arc<RetentionTask>,
    /// The configuration at the start of the process.
    pub(super) at_start: Arc<Config>,
}

impl Control {
    /// Adds a warning that `daemon.status` shows until the next successful reload.
    pub(super) fn warn(&self, warning: String) {
        let mut warnings = self.warnings.lock();
        if warnings.last() != Some(&warning) {
            warnings.push(warning);
        }
        let over = warnings.len().saturating_sub(MAX_WARNINGS);
        warnings.drain(..over);
    }

    /// Returns the warnings of the configuration and of workspaces.
    fn all_warnings(&self) -> Vec<String> {
        let mut warnings = self.warnings.lock().clone();
        warnings.extend(files::problems(&self.core.files.status()));
        warnings
    }

    fn status_now(&self, model_server: ModelServerStatus) -> DaemonStatusResult {
        let file = &self.daemon_file;
        DaemonStatusResult {
            version: file.version.clone(),
            pid: file.pid,
            started_at: file.started_at,
            home: self.home.clone(),
            socket: file.socket.clone(),
            protocol: file.protocol,
            connections: self.connections.count() as u64,
            store: self.core.sessions.status(),
            catalog: self.core.catalog.status(),
            model_server,
            subscriptions: self.core.events.subscriptions() as u64,
            memory_bytes: heap::resident_bytes(),
            restart_needed: self.restart_needed.lock().clone(),
            warnings: self.all_warnings(),
        }
    }

    fn reload_now(&self) -> Result<DaemonReloadResult, RpcError> {
        let (config, warnings) = self.source.load().map_err(|error| {
            RpcError::new(ErrorKind::Config, error.to_string()).with_hint("ollmctl config check")
        })?;
        start::log_warnings(&warnings);
        let old = self.core.configure(config);
        let config = self.core.config();
        let ConfigDiff { applied, restart_needed } = config.diff(&old);
        self.warnings.lock().clone_from(&warnings);
        // Compared with the configuration at the start: a setting that was set back needs no restart.
        *self.restart_needed.lock() = config.diff(&self.at_start).restart_needed;
        self.retention.request();
        if !applied.is_empty() || !restart_needed.is_empty() {
            let data = ConfigReloadedData {
                applied: applied.clone(),
                restart_needed: restart_needed.clone(),
            };
            self.core.events.publish(EventDraft::new(None, None, self.core.clock.now(), &data));
        }
        Ok(DaemonReloadResult { applied, restart_needed, warnings })
    }
}

impl DaemonControl for Arc<Control> {
    fn status(&self) -> ReplyFuture<'_, DaemonStatusResult> {
        let control = Arc::clone(self);
        Box::pin(async move {
            let model_server = models::server_status(&control.core).await;
            let status = tokio::task::spawn_blocking(move || control.status_now(model_server));
            status.await.map_err(|_| RpcError::stopping())
        })
    }

    fn doctor(&self) -> ReplyFuture<'_, DaemonDoctorResult> {
        let control = Arc::clone(self);
        Box::pin(async move {
            let status = control.status().await?;
            let roots = control.core.files.status();
            let start = models::start_command(&control.core);
            let core = Arc::clone(&control.core);
            let hooks = tokio::task::spawn_blocking(move || core.hooks.problem_of_directory());
            let hooks = tokio::time::timeout(doctor::DISK_LIMIT, hooks).await;
            let hooks = hooks.ok().and_then(Result::ok).flatten();
            let found = doctor::examine(&control.examined, status, &roots, (start, hooks)).await;
            Ok(DaemonDoctorResult { retention: control.retention.done(), ..found })
        })
    }

    fn reload(&self) -> ReplyFuture<'_, DaemonReloadResult> {
        let control = Arc::clone(self);
        Box::pin(async move {
            let reloaded = tokio::task::spawn_blocking(move || control.reload_now());
            reloaded.await.map_err(|_| RpcError::stopping())?
        })
    }
}
