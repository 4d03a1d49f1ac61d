//! Opening a home: the store, its catalog, and the connections between them, as the daemon and the tests need them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use ollm_protocol::SessionId;

use super::core::Core;
use super::observer::SessionObserver;
use super::sessions::retention::RetentionTask;
use crate::backup;
use crate::catalog::{Catalog, CatalogError};
use crate::clock::Clock;
use crate::config::Config;
use crate::events::EventRing;
use crate::session::Sessions;
use crate::session::index::{HintSource, OpenHint};
use crate::shutdown::Tasks;

/// Opens the store and the catalog of a home, which must exist and be locked.
///
/// **Errors**: the catalog can neither be used nor replaced.
pub(crate) fn open_core(
    home: &Path,
    sessions_dir: PathBuf,
    config: Config,
    clock: Arc<Clock>,
    retention: Arc<RetentionTask>,
    tasks: &Tasks,
) -> Result<Arc<Core>, CatalogError> {
    backup::finish_at_start(home, &sessions_dir);
    let events = EventRing::new(Arc::clone(&clock));
    let observer = Arc::new(SessionObserver::new(retention));
    let announced_to = Arc::<SessionObserver>::clone(&observer);
    let sessions = Sessions::new(sessions_dir, Arc::clone(&clock), announced_to);
    let source = Arc::new(sessions.clone());
    let catalog = Arc::new(Catalog::open(home.join("catalog.sqlite3"), source)?);
    sessions.set_hints(Arc::new(CatalogHints(Arc::downgrade(&catalog))));
    let core = Arc::new(Core::new(home, sessions, catalog, events, config, clock, tasks));
    observer.report_to(&core);
    Ok(core)
}

/// Opens cold sessions by the entries in the catalog. Weak, because the catalog reads the sessions.
struct CatalogHints(Weak<Catalog>);

impl HintSource for CatalogHints {
    fn hint(&self, id: SessionId) -> Option<OpenHint> {
        self.0.upgrade()?.hint(id)
    }
}
