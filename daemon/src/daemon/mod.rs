//! The composition root: builds every part before the socket exists, runs them, and takes them down in reverse order.
//!
//! Must not know what a method does or what a record means.

mod control;
mod start;
mod upkeep;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ollm_protocol::address::DaemonFile;
use ollm_protocol::{PROTOCOL_VERSION, SessionId};
use parking_lot::Mutex;

use crate::app::core::Core;
use crate::app::observer::SessionObserver;
use crate::app::sessions::documents;
use crate::app::sessions::retention::Retention;
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::config::Config;
use crate::events::EventRing;
use crate::flags::Flags;
use crate::rpc::Handles;
use crate::server::listener::Listener;
use crate::server::lock::InstanceLock;
use crate::server::readiness::{self, Announcement, Readiness};
use crate::server::{OpenConnections, ServerLimits};
use crate::session::Sessions;
use crate::session::index::{HintSource, OpenHint};
use crate::shutdown::Tasks;

use self::control::Control;
use self::start::{Home, StartError};

/// The time for tasks to finish after the last connection is closed. Together with the drain of the server it stays below
/// the ten seconds after which service managers kill a process.
const DRAIN: Duration = Duration::from_secs(3);
/// The time for writing the last documents and closing the catalog.
const CLOSE: Duration = Duration::from_millis(1500);
/// The threads that serve calls. Blocking work on the disk has its own.
const WORKERS: usize = 2;

/// Runs the daemon until it is asked to stop.
///
/// Returns exit code 0 after a clean shutdown, 75 if another daemon owns the home, 78 if the configuration is invalid,
/// and 1 for any other error.
#[must_use]
pub fn run(flags: &Flags) -> ExitCode {
    // Files and directories are private from here on.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let readiness = Readiness::from_fd(flags.ready_fd);
    if flags.check_config || flags.show_config {
        return start::report_config(flags);
    }
    if flags.detach {
        // Fails only for the leader of a process group, which has no terminal.
        rustix::process::setsid().ok();
    }
    match start(flags, readiness) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            start::print_error(&error);
            error.exit_code()
        }
    }
}

fn start(flags: &Flags, readiness: Readiness) -> Result<(), StartError> {
    let prepared = Home::prepare(flags).and_then(|home| {
        let config = start::load_config(flags, &home.dir)?;
        let logging = start::start_logging(&home.dir, &config.0, flags.detach)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("ollmd")
            .enable_all()
            .build()
            .map_err(StartError::Runtime)?;
        Ok((home, config, logging, runtime))
    });
    let (home, (config, warnings), _logging, runtime) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            readiness.failed(&error.to_rpc());
            return Err(error);
        }
    };
    let result = runtime.block_on(async {
        let parts = match Parts::build(flags, home, config, warnings) {
            Ok(parts) => parts,
            Err(error) => {
                readiness.failed(&error.to_rpc());
                return Err(error);
            }
        };
        parts.serve(readiness).await;
        Ok(())
    });
    // Reads that block on a dead disk must not delay the exit; acknowledged records are synced.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// All parts of the daemon.
struct Parts {
    handles: Arc<Handles>,
    control: Arc<Control>,
    core: Arc<Core>,
    retention: Arc<Retention>,
    listener: Listener,
    announcement: Option<Announcement>,
    tasks: Tasks,
    limits: ServerLimits,
    connections: OpenConnections,
    /// Held until the process ends.
    _locks: Vec<InstanceLock>,
}

impl Parts {
    fn build(
        flags: &Flags,
        home: Home,
        config: Config,
        warnings: Vec<String>,
    ) -> Result<Self, StartError> {
        start::log_warnings(&warnings);
        let clock = Arc::new(Clock::system());
        let started_at = clock.now();
        let events = EventRing::new(Arc::clone(&clock));
        let retention = Arc::new(Retention::default());
        let observer = Arc::new(SessionObserver::new(Arc::clone(&retention)));
        let Home { dir, sessions_dir, locks } = home;
        let announced_to = Arc::<SessionObserver>::clone(&observer);
        let sessions = Sessions::new(sessions_dir, Arc::clone(&clock), announced_to);
        let catalog = open_catalog(&dir, &sessions)?;
        sessions.set_hints(Arc::new(CatalogHints(Arc::downgrade(&catalog))));
        let tasks = Tasks::new();
        let stores = (sessions, catalog, events);
        let core = Arc::new(Core::new(&dir, stores, config, (clock, &tasks)));
        observer.report_to(&core);
        let lock = locks.first().ok_or(StartError::NoHome)?;
        let listener = Listener::open(lock, &dir, flags.socket.as_deref())?;
        let file = DaemonFile {
            socket: listener.path().to_owned(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL_VERSION,
            started_at,
        };
        // On a full disk the daemon must still start, so that sessions can be deleted; clients then try the default
        // addresses of the home.
        let announcement = Announcement::publish(&dir, &file)
            .inspect_err(|error| {
                tracing::warn!(
                    "daemon.json was not written, clients use default addresses: {error}"
                )
            })
            .ok();
        let (limits, connections) = (ServerLimits::default(), OpenConnections::default());
        let control = Arc::new(Control {
            core: Arc::clone(&core),
            source: start::ConfigSource::new(flags, &dir),
            home: dir,
            daemon_file: file,
            connections: connections.clone(),
            warnings: Mutex::new(warnings),
            restart_needed: Mutex::default(),
            retention: Arc::clone(&retention),
            at_start: core.config(),
        });
        let handles = Arc::new(Handles {
            shutdown: tasks.clone(),
            core: Arc::clone(&core),
            control: Arc::new(Arc::clone(&control)),
            limits: limits.connection.calls.clone(),
        });
        Ok(Self {
            handles,
            control,
            core,
            retention,
            listener,
            announcement,
            tasks,
            limits,
            connections,
            _locks: locks,
        })
    }

    async fn serve(self, readiness: Readiness) {
        let methods = crate::rpc::methods(self.handles);
        upkeep::spawn(&self.tasks, &self.core, &self.retention, &self.control);
        tracing::info!(socket = %self.listener.path().display(), "ready");
        readiness.ready();
        crate::server::run(
            self.listener,
            methods,
            self.tasks.clone(),
            self.limits,
            self.connections,
        )
        .await;
        readiness::stopping();
        let left = self.tasks.drain(DRAIN).await;
        if left > 0 {
            tracing::warn!(left, "tasks did not finish in time");
        }
        let core = Arc::clone(&self.core);
        let finished = tokio::task::spawn_blocking(move || {
            documents::write_small(&core);
            core.catalog.shutdown();
        });
        // A dead disk or a second signal ends the wait: acknowledged records are synced, and the catalog catches up
        // at the next start.
        tokio::select! {
            _ = finished => {}
            () = self.tasks.forced() => {}
            () = tokio::time::sleep(CLOSE) => tracing::warn!("the catalog was not closed in time"),
        }
        if let Some(Err(error)) = self.announcement.map(Announcement::withdraw) {
            tracing::warn!("{error}");
        }
        tracing::info!("stopped");
    }
}

/// Opens the catalog.
///
/// **Errors**: if it can neither be used nor replaced: no session could be listed.
fn open_catalog(dir: &std::path::Path, sessions: &Sessions) -> Result<Arc<Catalog>, StartError> {
    let path: PathBuf = dir.join("catalog.sqlite3");
    let source = Arc::new(sessions.clone());
    Ok(Arc::new(Catalog::open(path, source)?))
}

/// Opens cold sessions from what the catalog stored. Weak, because the catalog reads the sessions.
struct CatalogHints(Weak<Catalog>);

impl HintSource for CatalogHints {
    fn hint(&self, id: SessionId) -> Option<OpenHint> {
        self.0.upgrade()?.hint(id)
    }
}
