//! The composition root: builds every part before the socket exists, runs them, takes them down in reverse.
//!
//! Must not know: what a method does, what a record means.

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
use crate::events::Events;
use crate::flags::Flags;
use crate::rpc::Handles;
use crate::server::listener::Listener;
use crate::server::lock::InstanceLock;
use crate::server::readiness::{self, Announcement, Readiness};
use crate::server::{OpenConnections, ServerLimits};
use crate::session::index::OpenHint;
use crate::session::{Hints, Sessions, SessionsOptions};
use crate::shutdown::Tasks;

use self::control::Control;
use self::start::{Home, StartError};

/// How long tasks may take to finish after the last connection is gone; together with the server's own drain it
/// stays below the ten seconds after which service managers lose patience.
const DRAIN: Duration = Duration::from_secs(3);
/// How long the last documents and the catalog may take.
const CLOSE: Duration = Duration::from_millis(1500);
/// Threads that serve calls; the disk has threads of its own.
const WORKERS: usize = 2;

/// Runs the daemon until it is told to leave.
///
/// **Shape**: exit code 0 after a clean end, 75 when another daemon owns the home, 78 when the configuration is
/// wrong, 1 for anything else.
#[must_use]
pub fn run(flags: &Flags) -> ExitCode {
    // Nothing that is made from here on is for others.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let readiness = Readiness::from_fd(flags.ready_fd);
    if flags.check_config || flags.show_config {
        return start::report_config(flags);
    }
    if flags.detach {
        // Fails only for the leader of a process group, which has no terminal to lose.
        rustix::process::setsid().ok();
    }
    match start(flags, readiness) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            start::complain(&error);
            error.exit_code()
        }
    }
}

fn start(flags: &Flags, readiness: Readiness) -> Result<(), StartError> {
    let prepared = Home::prepare(flags).and_then(|home| {
        let config = start::load_config(flags, &home.dir)?;
        let logging = start::log_to(&home.dir, &config.0, flags.detach)?;
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
    // Reads that block on a dead disk must not hold up the end; what was acknowledged is synced.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Everything, built.
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
    /// Held for life.
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
        let events = Events::new(Arc::clone(&clock));
        let retention = Arc::new(Retention::default());
        let observer = Arc::new(SessionObserver::new(Arc::clone(&retention)));
        let Home { dir, sessions_dir, locks } = home;
        let sessions = Sessions::new(SessionsOptions {
            dir: sessions_dir,
            clock: Arc::clone(&clock),
            observer: Arc::<SessionObserver>::clone(&observer),
        });
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
        // On a full disk the daemon must still start, so that something can be deleted; clients then find it at
        // the places that follow from the home.
        let announcement = Announcement::publish(&dir, &file)
            .inspect_err(|error| tracing::warn!("clients are not told where it is: {error}"))
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
            tracing::warn!(left, "tasks were cut off: the time to finish is over");
        }
        let core = Arc::clone(&self.core);
        let finished = tokio::task::spawn_blocking(move || {
            documents::write_small(&core);
            core.catalog.shutdown();
        });
        // A dead disk or a second signal ends the wait; what was acknowledged is synced, and the catalog follows
        // the logs at the next start.
        tokio::select! {
            _ = finished => {}
            () = self.tasks.forced() => {}
            () = tokio::time::sleep(CLOSE) => tracing::warn!("the catalog was not closed in time"),
        }
        if let Some(Err(error)) = self.announcement.map(Announcement::withdraw) {
            tracing::warn!("{error}");
        }
        tracing::info!("left");
    }
}

/// Opens the catalog; one that cannot be used at all is an error of the start, because nothing could be listed.
fn open_catalog(dir: &std::path::Path, sessions: &Sessions) -> Result<Arc<Catalog>, StartError> {
    let path: PathBuf = dir.join("catalog.sqlite3");
    let source = Arc::new(sessions.clone());
    Ok(Arc::new(Catalog::open(path, source)?))
}

/// Opens cold sessions from what the catalog stored. Weak, because the catalog reads the sessions.
struct CatalogHints(Weak<Catalog>);

impl Hints for CatalogHints {
    fn hint(&self, id: SessionId) -> Option<OpenHint> {
        self.0.upgrade()?.hint(id)
    }
}
