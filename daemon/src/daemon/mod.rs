//! The composition root: builds every part before the socket exists, runs them, and takes them down in reverse order.
//!
//! Must not know methods or records.

mod control;
mod doctor;
mod heap;
pub(crate) mod home;
mod rights;
mod start;
mod upkeep;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use jsonrpsee::Methods;
use ollm_protocol::address::DaemonFile;
use ollm_protocol::{PROTOCOL_VERSION, Timestamp};
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tracing_appender::non_blocking::WorkerGuard;

use self::control::Control;
use self::doctor::ExaminedDirectories;
use self::home::Home;
use self::start::{HomeError, StartError};

use crate::app::open::open_core;
use crate::app::sessions::documents;
use crate::app::sessions::retention::RetentionTask;
use crate::app::snapshots;
use crate::clock::Clock;
use crate::flags::Flags;
use crate::rpc::Handles;
use crate::server::listener::Listener;
use crate::server::lock::InstanceLock;
use crate::server::readiness::{self, Announcement, Readiness};
use crate::server::{OpenConnections, ServerLimits};
use crate::shutdown::Tasks;

/// The time for tasks to finish after the last connection is closed. Together with the drain of the server it stays
/// below the ten seconds after which service managers kill a process.
const DRAIN: Duration = Duration::from_secs(3);
/// The time for writing the last documents and closing the catalog.
const CLOSE: Duration = Duration::from_millis(1500);
/// The number of threads that serve calls. Work that blocks on the disk has threads of its own.
const WORKERS: usize = 2;

/// Runs the daemon until it is asked to stop.
///
/// Returns exit code 0 after a clean shutdown, 75 if another daemon owns the home, 78 if the configuration is invalid,
/// and 1 for any other error.
#[must_use]
pub fn run(flags: &Flags) -> ExitCode {
    // Files and directories are private from here on.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    if flags.run_hook {
        return crate::hooks::serve();
    }
    let readiness = Readiness::from_fd(flags.ready_fd);
    if flags.man_page {
        return start::print_man_page();
    }
    if flags.list_config {
        return start::list_config(flags.json);
    }
    if flags.check_config || flags.show_config {
        return start::report_config(flags, home::home_dir(flags));
    }
    if flags.detach {
        // Fails only for the leader of a process group, which has no terminal.
        rustix::process::setsid().ok();
    }
    // This must happen before there is another thread.
    heap::fix_thresholds();
    let (parts, runtime, _logging) = match prepare(flags) {
        Ok(prepared) => prepared,
        Err(error) => {
            readiness.failed(&error.to_rpc());
            start::print_error(&error);
            return error.exit_code();
        }
    };
    runtime.block_on(parts.serve(readiness));
    // Reads that block on a dead disk must not delay the exit; acknowledged records are synced.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ExitCode::SUCCESS
}

/// Prepares everything that the daemon needs before it serves.
fn prepare(flags: &Flags) -> Result<(Parts, Runtime, WorkerGuard), StartError> {
    start::require_threads(WORKERS).map_err(StartError::Threads)?;
    let home = Home::prepare(flags)?;
    let logging = start::start_logging(&home.dir, &home.config, flags.detach)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name("ollmd")
        .enable_all()
        .build()
        .map_err(StartError::Threads)?;
    let entered = runtime.enter();
    let parts = Parts::build(flags, home)?;
    drop(entered);
    upkeep::watch_termination(&parts.tasks).map_err(StartError::Threads)?;
    Ok((parts, runtime, logging))
}

/// All parts of the daemon.
struct Parts {
    control: Arc<Control>,
    methods: Methods,
    listener: Listener,
    announcement: Option<Announcement>,
    tasks: Tasks,
    limits: ServerLimits,
    /// Held until the process ends.
    _locks: Vec<InstanceLock>,
}

impl Parts {
    fn build(flags: &Flags, home: Home) -> Result<Self, StartError> {
        let Home { dir, id: home_id, sessions_dir, locks, config, warnings } = home;
        start::log_warnings(&warnings);
        let clock = Arc::new(Clock::system());
        let started_at = clock.now();
        let retention = Arc::new(RetentionTask::default());
        let is_elsewhere = !sessions_dir.starts_with(&dir);
        let private_dirs =
            [Some(&dir), is_elsewhere.then_some(&sessions_dir)].into_iter().flatten().cloned();
        let private_dirs: Vec<PathBuf> = private_dirs.collect();
        let examined = ExaminedDirectories::new(private_dirs.clone(), start::log_dir(&dir));
        let tasks = Tasks::new();
        // A catalog that can neither be used nor replaced prevents the start: no session could be listed.
        let core = open_core(&dir, sessions_dir, config, clock, Arc::clone(&retention), &tasks)?;
        let lock = locks.first().ok_or(HomeError::Unknown)?;
        let listener = Listener::open(lock, &dir, flags.socket.as_deref())?;
        let file = DaemonFile {
            socket: listener.path().to_owned(),
            home_id: Some(home_id.clone()),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL_VERSION,
            started_at,
        };
        // On a full disk the daemon must still start, so that sessions can be deleted; clients then try the default
        // addresses of the home.
        let log = |error: &_| {
            tracing::warn!("daemon.json was not written, clients use default addresses: {error}");
        };
        let announcement = Announcement::publish(&dir, &file).inspect_err(log).ok();
        let limits = ServerLimits::default();
        let control = Arc::new(Control {
            at_start: core.config(),
            core: Arc::clone(&core),
            source: start::ConfigSource::new(flags, &dir),
            home: dir,
            private_dirs,
            examined: Arc::new(examined),
            daemon_file: file,
            connections: OpenConnections::default(),
            warnings: Mutex::new(warnings),
            restart_needed: Mutex::default(),
            retention,
        });
        let methods = crate::rpc::methods(Arc::new(Handles {
            is_restarting: AtomicBool::default(),
            shutdown: tasks.clone(),
            core,
            control: Arc::new(Arc::clone(&control)),
            home_id,
            limits: limits.connection.calls.clone(),
        }));
        Ok(Self { control, methods, listener, announcement, tasks, limits, _locks: locks })
    }

    async fn serve(self, readiness: Readiness) {
        let Self { control, methods, listener, announcement, tasks, limits, _locks } = self;
        upkeep::spawn(&tasks, &control);
        tracing::info!(socket = %listener.path().display(), "ready");
        readiness.ready();
        let connections = control.connections.clone();
        let sessions = control.core.sessions.clone();
        let relief = Arc::new(move || sessions.close_half());
        crate::server::run(listener, methods, tasks.clone(), limits, connections, relief).await;
        readiness::stopping();
        let left = tasks.drain(DRAIN).await;
        if left > 0 {
            tracing::warn!(left, "tasks did not finish in time");
        }
        let core = Arc::clone(&control.core);
        let finished = tokio::task::spawn_blocking(move || {
            snapshots::automatic::write_due(&core);
            core.rest_sessions(Timestamp::from_unix_ms(i64::MAX));
            documents::write_small(&core);
            core.catalog.shutdown();
        });
        // A dead disk ends the wait: acknowledged records are synced, and the catalog catches up at the next start.
        tokio::select! {
            _ = finished => {}
            () = tasks.forced() => {}
            () = tokio::time::sleep(CLOSE) => tracing::warn!("the catalog was not closed in time"),
        }
        if let Some(Err(error)) = announcement.map(Announcement::withdraw) {
            tracing::warn!("{error}");
        }
        tracing::info!("stopped");
    }
}
