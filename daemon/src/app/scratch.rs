//! A core in a scratch directory, for tests.

use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};

use ollm_protocol::SessionId;

use super::{
    Builds, Chats, Compactions, Core, Counts, Documents, Loops, Recalled, Uploads, model_settings,
};
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::config::{Config, FlagOverrides};
use crate::events::Events;
use crate::model::Models;
use crate::projects::Projects;
use crate::session::{Change, Observer, Sessions, SessionsOptions};
use crate::shutdown::Tasks;

/// Tells nobody.
struct Silent;

impl Observer for Silent {
    fn changed(&self, _: SessionId, _: &Change<'_>) {}
}

/// Everything real, in `dir`, with default settings.
pub(crate) fn core(dir: &Path) -> Arc<Core> {
    let clock = Arc::new(Clock::system());
    let sessions = Sessions::new(SessionsOptions {
        dir: dir.to_owned(),
        clock: Arc::clone(&clock),
        observer: Arc::new(Silent),
    });
    let source = Arc::new(sessions.clone());
    let catalog = Catalog::open(dir.join("catalog.sqlite3"), source).expect("opens");
    let no_variables = std::iter::empty::<(String, String)>();
    let (config, _) =
        Config::load(dir, None, no_variables, &FlagOverrides::default()).expect("defaults");
    // Nobody listens on the port that discards.
    let mut settings = model_settings(&config.ollama);
    settings.host = "127.0.0.1:9".to_owned();
    let clock_too = Arc::clone(&clock);
    Arc::new(Core {
        sessions,
        catalog: Arc::new(catalog),
        projects: Projects::new(dir),
        events: Events::new(Arc::clone(&clock)),
        clock,
        models: Models::new(settings, clock_too, Tasks::new()),
        chats: Chats::default(),
        compactions: Compactions::new(Tasks::new()),
        counts: Counts::new(dir.join("vocab")),
        paths: super::Paths::default(),
        builds: Builds::default(),
        recalled: Recalled::default(),
        loops: Loops::default(),
        uploads: Uploads::new(dir.to_owned()),
        documents: Documents::default(),
        creating: Mutex::new(()),
        deleting: Mutex::new(()),
        config: RwLock::new(Arc::new(config)),
    })
}
